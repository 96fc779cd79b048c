"""Generation, compared with the real bert4keras.

    python -m tools.benchmarks.generate                   # the base model, 12x768
    python -m tools.benchmarks.generate --parts first memory
    python -m tools.benchmarks.generate --quick           # a tiny model

The real bert4keras writes a checkpoint of random weights, which both sides read. Four
parts:

generate    RoFormer-GPT, prompt of 16 ids, 112 new ones, top_p=0.95, no early end: one
            sample; sixteen of one prompt; one of each of sixteen prompts, which
            bert4keras can only write one after the other.
paraphrase  RoFormer-Sim, a sentence of 20 characters, n=100, k=20: sampling, vectors
            and ranking, bert4keras as in roformer-sim's generate.py. Random weights
            hardly ever end a text: once as they are, to 64 tokens a text, and once with
            an output bias of [SEP] that ends texts after about 20 tokens.
first       In fresh processes with a loaded model, compilation included: seconds to the
            first and second piece of a stream, and of a whole first `generate`.
memory      In fresh processes, above a process that does the same with a tiny model of
            as many layers, so that TensorFlow, XLA and compiled programs do not count:
            peaks of a generation that needs no compiling, and of loading with the first
            generation. They are compared with the weights and the keys and values of
            all tokens; samples share those of a prompt. Linux only.

The limit is the time of the matrix products of a step, of as many rows, with XLA or
without, whichever is faster. It has no part for the prompt or the vectors of
paraphrases. A full run takes half an hour on two cores, most of it bert4keras's;
`--their-rounds 0` leaves bert4keras out.
"""

import ctypes
import gc
import math
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from tools.benchmarks.harness import (
    Benchmark,
    Side,
    exit_with_error,
    make_parser,
    print_table,
)
from tools.reference.bert4keras import build_model, make_tokenizer
from tools.reference.full_size_checkpoint import (
    MEMBERS,
    make_vocabulary,
    write_checkpoint,
)

PROMPT, SENTENCE, NEAREST = 16, 20, 20
DRAWING = {"top_p": 0.95, "seed": 0}
LIMIT_STEPS = 32
CLS, SEP = 101, 102
# Flag -> default, default with --quick, help.
SIZES = {
    "layers": (12, 2, "layers of the model"),
    "hidden": (768, 64, "its width"),
    "vocabulary": (12000, 500, "its tokens"),
    "new": (112, 20, "tokens to write with RoFormer-GPT"),
    "samples": (16, 4, "samples at a time with RoFormer-GPT"),
    "candidates": (100, 10, "n of paraphrase"),
    "longest": (64, 24, "max_new_tokens of paraphrase"),
    "rounds": (5, 1, "runs of roformer_keras and of the limit"),
}
# Label, method of RoFormer, and the option with its count.
MEMORY_RUNS = (
    ("GPT, 1 sample", "generate", None),
    ("GPT, {} samples", "generate", "samples"),
    ("Sim, {} samples", "sample_candidates", "candidates"),
    ("Sim, paraphrase n={}", "rank", "candidates"),
)
PARTS = ("generate", "paraphrase", "first", "memory")


def main(arguments=None):
    sizes = {
        name: (None, f"{what}; {full}, with --quick {quick}")
        for name, (full, quick, what) in SIZES.items()
    }
    parser = make_parser(__doc__, sizes, PARTS)
    help = "runs of bert4keras; 2, with --quick 1; 0 leaves it out"
    parser.add_argument("--their-rounds", type=int, help=help)
    parser.add_argument("--quick", action="store_true", help="a tiny model")
    options = parser.parse_args(arguments)
    for name, values in {**SIZES, "their_rounds": (2, 1)}.items():
        if getattr(options, name) is None:
            setattr(options, name, values[options.quick])
    with Benchmark(options, SIDES) as benchmark:
        model_sizes = options.layers, options.hidden, options.vocabulary
        write_checkpoint(benchmark.folder, "roformer", *model_sizes)
        write_ending_checkpoint(benchmark)
        for part in options.parts:
            benchmark.save(part, MEASURES[part](benchmark))
            benchmark.stop()
    return 0


def write_ending_checkpoint(benchmark):
    """Copies the checkpoint to `ending`; there one token of `SENTENCE` is [SEP]."""
    from roformer_keras.conversion.reader import open_checkpoint
    from roformer_keras.io.tensor_bundle import write_tensor_bundle

    source, folder = benchmark.folder, benchmark.folder / "ending"
    with open_checkpoint(source) as checkpoint:
        tensors = {name: tensor.read() for name, tensor in checkpoint.tensors.items()}
    name = "cls/predictions/output_bias"
    bias = np.array(tensors[name])
    # All others are about equally likely.
    bias[SEP] = math.log(benchmark.options.vocabulary / (SENTENCE - 1))
    folder.mkdir()
    for member in MEMBERS[:2]:
        (folder / member).write_bytes((source / member).read_bytes())
    bundle = {**tensors, name: bias}.items()
    write_tensor_bundle(folder / "bert_model.ckpt", bundle)


# === What is measured ===


def measure_generation(benchmark):
    new, many = benchmark.options.new, benchmark.options.samples
    theirs = benchmark.options.their_rounds
    runs = [
        compare(benchmark, "GPT, 1 sample", "generate", 1, new, theirs),
        compare(benchmark, f"GPT, {many} samples", "generate", many, new, theirs),
        compare(benchmark, f"GPT, {many} prompts", "continue_prompts", many, new, 0),
    ]
    report(runs, "tokens/s", lambda run, seconds: f"{run['tokens'] / seconds:,.1f}")
    return runs


def measure_paraphrases(benchmark):
    options, runs = benchmark.options, []
    n, theirs = options.candidates, min(1, options.their_rounds)
    for what, method, steps in (
        (f"{options.longest} tokens each", "paraphrase", options.longest),
        # Steps have fewer and fewer rows: there is no one limit.
        ("texts that end", "paraphrase_ending", 0),
    ):
        what = f"Sim, paraphrase n={n}, {what}"
        runs.append(compare(benchmark, what, method, n, steps, theirs))
    report(runs, "s", lambda run, seconds: f"{seconds:,.2f}")
    for run in runs:
        print(f"{run['work']}: tokens a text {run['tokens_a_text']}")
    return runs


def compare(benchmark, what, method, count, steps, their_rounds):
    """Seconds of the runs of a job on both sides, in turn, and of the limit.

    Args:
        count: samples, prompts or candidates; the rows of a step.
        steps: of the limit; 0 for none.
        their_rounds: runs of bert4keras.
    """
    ours, theirs, limit = (benchmark[side] for side in SIDES)
    print(f"{what} ...", file=sys.stderr, flush=True)
    found = {"work": what, "tokens": steps * count, "limit": [], "tokens_a_text": {}}
    found["roformer_keras"], found["bert4keras"] = [], []
    ours.measure(method, count)
    if their_rounds:
        theirs.measure("warm_up", method, count)
    if steps:
        limit.call("step", count)

    def measure(worker, side):
        turn = worker.measure(method, count)
        found[side].append(turn["seconds"])
        if "tokens_a_text" in turn:
            found["tokens_a_text"][side] = turn["tokens_a_text"]

    for number in range(max(benchmark.options.rounds, their_rounds)):
        if number < benchmark.options.rounds:
            measure(ours, "roformer_keras")
            if steps:
                step = limit.call("step", count)
                found["limit"].append({form: steps * step[form] for form in step})
        if number < their_rounds:
            measure(theirs, "bert4keras")
    own, others = found["roformer_keras"], found["bert4keras"]
    # Rounds differ in number, so that ratios are those of medians.
    found["ratio"] = None
    if others:
        found["ratio"] = {
            "median": statistics.median(others) / statistics.median(own),
            "low": min(others) / max(own),
            "high": max(others) / min(own),
        }
    limits = [
        statistics.median(turn[form] for turn in found["limit"])
        for form in ("plain", "xla")
        if steps
    ]
    found["limit_seconds"] = min(limits, default=None)
    found["reached"] = min(limits) / statistics.median(own) if limits else None
    return found


def report(runs, unit, show):
    rows = []
    for run in runs:
        seconds = [run["roformer_keras"], run["bert4keras"]]
        values = [show(run, statistics.median(own)) if own else "" for own in seconds]
        limit, ratio = run["limit_seconds"], run["ratio"] or {}
        shown = [f"{value:.1f}" for value in ratio.values()]
        values.append("{}x ({} to {})".format(*shown) if shown else "")
        values.append(show(run, limit) if limit else "")
        rows.append((run["work"], *values, f"{run['reached']:.0%}" if limit else ""))
    columns = ("roformer_keras", "bert4keras", "ratio", "limit", "reached")
    print_table(f"work, {unit}", columns, rows)


def measure_first_tokens(benchmark):
    names = ("load", "first_piece", "second_piece", "first_generate")
    found = {name: [] for name in names}
    for _ in range(benchmark.options.rounds):
        with benchmark.start("roformer_keras") as worker:
            found["load"].append(worker.measure("load", "gpt")["seconds"])
            pieces = worker.call("stream")
            found["first_piece"].append(pieces["first_piece"])
            found["second_piece"].append(pieces["second_piece"])
        with benchmark.start("roformer_keras") as worker:
            worker.call("load", "gpt")
            found["first_generate"].append(worker.measure("generate", 1)["seconds"])
    labels = (
        "fresh process: loading",
        "then a stream, compiled: to its first token",
        "to its second token",
        "or a first generate, compiled: to its end",
    )
    rows = [
        (label, f"{statistics.median(own):.2f}", f"{min(own):.2f}", f"{max(own):.2f}")
        for label, own in zip(labels, found.values(), strict=True)
    ]
    print_table("first tokens", ("s", "from", "to"), rows)
    return found


def measure_memory(benchmark):
    found = []
    for what, method, option in MEMORY_RUNS:
        count = getattr(benchmark.options, option) if option else 1
        sizes = []
        for is_tiny in (True, False):
            with benchmark.start("roformer_keras") as worker:
                sizes.append(worker.call("memory", is_tiny, method, count))
        tiny, full = sizes
        generating = full["generating"] - tiny["generating"]
        row = {
            "work": what.format(count),
            "weights": full["weights"],
            "cache": full["cache"],
            "generating": generating,
            "share": generating / (full["weights"] + full["cache"]),
            "with_compilation": full["process"] - tiny["process"],
            "process": full["process"],
        }
        found.append(row)
    columns = list(found[0])[1:]
    rows = [
        (row["work"], *(f"{row[name]:,.{2 * (name == 'share')}f}" for name in columns))
        for row in found
    ]
    print_table("memory, MB", columns, rows)
    return found


MEASURES = {
    "generate": measure_generation,
    "paraphrase": measure_paraphrases,
    "first": measure_first_tokens,
    "memory": measure_memory,
}


# === The sides ===


class Writer(Side):
    def prompts(self, count):
        random = np.random.default_rng(0)
        drawn = random.integers(106, self.vocabulary, (self.samples, PROMPT - 1))
        return [[CLS, *ids] for ids in drawn[:count].tolist()]

    def text(self, ids):
        vocabulary = make_vocabulary(self.vocabulary)
        return "".join(vocabulary[token_id] for token_id in ids)

    def sentence(self):
        return self.text(range(106, 106 + SENTENCE))


class RoFormer(Writer):
    """roformer_keras; `kind` is `gpt`, `sim` or `ending`, a Sim whose texts end."""

    def model(self, kind):
        return self.model_class(kind).from_preset(
            self.folder / (kind if kind == "ending" else ".")
        )

    def model_class(self, kind):
        from roformer_keras import RoFormerCausalLM, RoFormerSim

        return RoFormerCausalLM if kind == "gpt" else RoFormerSim

    def load(self, kind):
        self.keep(self.model, kind)

    def write(self, prompts, count=None):
        self.keep(self.model, "gpt").generate(
            prompts,
            num_return_sequences=count,
            max_length=PROMPT + self.new,
            stop_tokens=(),
            batch_size=self.samples,
            verbose=0,
            **DRAWING,
        )

    def generate(self, count):
        self.write(self.prompts(1)[0], count)

    def continue_prompts(self, count):
        self.write(self.prompts(count))

    def sim_options(self, count):
        sizes = {"max_new_tokens": self.longest, "batch_size": count}
        return {**sizes, **DRAWING, "verbose": 0}

    def sample_candidates(self, count, kind="sim"):
        model = self.keep(self.model, kind)
        prompt = model.text_tokenizer().encode(self.sentence())[0]
        options = self.sim_options(count)
        texts = model.generate(prompt, num_return_sequences=count, **options)
        return sum(map(len, texts)) / count

    def rank(self, count, kind="sim"):
        model = self.keep(self.model, kind)
        options = self.sim_options(count)
        model.paraphrase(self.sentence(), count, NEAREST, **options)

    def paraphrase(self, count, kind="sim"):
        start = time.perf_counter()
        self.rank(count, kind)
        seconds = time.perf_counter() - start
        # The same seed gives the texts that were ranked.
        return {
            "seconds": seconds,
            "tokens_a_text": self.sample_candidates(count, kind),
        }

    def paraphrase_ending(self, count):
        return self.paraphrase(count, "ending")

    def stream(self):
        start = time.perf_counter()
        text = self.text(self.prompts(1)[0][1:])
        length = PROMPT + self.new
        pieces = self.keep(self.model, "gpt").stream(text, max_length=length, **DRAWING)
        return {
            name: next(pieces) and time.perf_counter() - start
            for name in ("first_piece", "second_piece")
        }

    def memory(self, is_tiny, method, count):
        """MB of weights, cache, a second generation, and the process until then."""
        kind = "gpt" if method == "generate" else "sim"
        if is_tiny:
            self._kept["model", kind] = self.tiny_model(kind)
        model = self.keep(self.model, kind)
        getattr(self, method)(count)
        process = peak_memory()
        settle_memory()
        getattr(self, method)(count)
        prompt, new = PROMPT, self.new
        if kind == "sim":
            prompt, new = SENTENCE + 2, self.longest
        cache = 4 * (prompt + count * new) * self.layers * 2 * self.hidden
        return {
            "weights": 4 * model.count_params() / 1e6,
            "cache": cache / 1e6,
            "generating": peak_memory(),
            "process": process,
        }

    def tiny_model(self, kind):
        """A model of as many layers, whose program is about as large."""
        from roformer_keras import RoFormerConfig, RoFormerTokenizer
        from roformer_keras.config import MODEL_FIELDS

        model_class = self.model_class(kind)
        config = RoFormerConfig(
            vocabulary_size=self.vocabulary,
            num_layers=self.layers,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=16,
            **MODEL_FIELDS[model_class.__name__],
        )
        model = model_class.from_roformer_config(config)
        model.tokenizer = RoFormerTokenizer.from_preset(self.folder)
        return model


def settle_memory():
    """Starts the peak anew, from what is in use."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory():
    """MB since the last `settle_memory`, which `peak_bytes` cannot measure."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


class Bert4keras(Writer):
    """The real bert4keras, with a sampler as in its examples."""

    def sampler(self, kind):
        from bert4keras.backend import keras
        from bert4keras.snippets import AutoRegressiveDecoder

        class Sampler(AutoRegressiveDecoder):
            """Continues in a segment."""

            @AutoRegressiveDecoder.wraps(default_rtype="probas")
            def predict(self, inputs, output_ids, states):
                token_ids, segment_ids = inputs
                new = np.full_like(output_ids, self.segment)
                inputs = [
                    np.concatenate([token_ids, output_ids], axis=1),
                    np.concatenate([segment_ids, new], axis=1),
                ]
                return self.last_token(self.model).predict(inputs, verbose=0)

        if kind == "gpt":
            sampler = Sampler(None, SEP, self.new, self.new)
            sampler.model = build_model(self.folder, application="lm")
            sampler.segment = 0
            return sampler
        folder = self.folder / (kind if kind == "ending" else ".")
        model = build_model(folder, application="unilm", with_pool="linear")
        pooled, written = model.outputs
        sampler = Sampler(None, SEP, self.longest, 1)
        sampler.model = keras.models.Model(model.inputs, written)
        sampler.encoder = keras.models.Model(model.inputs, pooled)
        sampler.segment = 1
        return sampler

    def tokenizer(self):
        return make_tokenizer(self.folder)

    def generate(self, count):
        prompt = self.prompts(1)[0]
        sampler = self.keep(self.sampler, "gpt")
        inputs = [prompt, [0] * PROMPT]
        sampler.random_sample(inputs, count, topp=DRAWING["top_p"])

    def paraphrase(self, count, kind="sim"):
        from bert4keras.snippets import sequence_padding

        np.random.seed(0)
        sampler, tokenizer = self.keep(self.sampler, kind), self.keep(self.tokenizer)
        sentence = self.sentence()
        inputs = list(tokenizer.encode(sentence, maxlen=self.longest))
        found = sampler.random_sample(inputs, count, topp=DRAWING["top_p"])
        others = {tokenizer.decode(ids) for ids in found} - {sentence}
        texts = [sentence, *others]
        rows = zip(*map(tokenizer.encode, texts), strict=True)
        batch = [sequence_padding(ids) for ids in rows]
        vectors = sampler.encoder.predict(batch, verbose=0)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        order = np.argsort(-(vectors[1:] @ vectors[0]))[:NEAREST]
        assert len([texts[i + 1] for i in order]) == min(NEAREST, len(others))
        return {"tokens_a_text": sum(map(len, found)) / len(found)}

    def paraphrase_ending(self, count):
        return self.paraphrase(count, "ending")

    def warm_up(self, method, count):
        """Loads the model and writes a few tokens; its graph takes any length."""
        kinds = {"generate": "gpt", "paraphrase": "sim", "paraphrase_ending": "ending"}
        sampler = self.keep(self.sampler, kinds[method])
        length, sampler.maxlen = sampler.maxlen, 3
        getattr(self, method)(count)
        sampler.maxlen = length


class Limit(Side):
    def forms(self):
        """Functions that do `LIMIT_STEPS` steps; each weight is its own variable."""
        import tensorflow as tf

        hidden = self.hidden

        def weight(rows, columns):
            return tf.Variable(tf.random.normal((rows, columns)) / rows**0.5)

        kernels = []
        for _ in range(self.layers):
            kernels += [weight(hidden, hidden) for _ in range(4)]
            kernels += [weight(hidden, 4 * hidden), weight(4 * hidden, hidden)]
        kernels.append(weight(hidden, hidden))
        embedding = weight(self.vocabulary, hidden)

        def step(count, x):
            for kernel in kernels:
                x = tf.matmul(x, kernel)
            logits = tf.matmul(x, embedding, transpose_b=True)
            # The next step depends on all of it, and numbers keep their size.
            x += tf.reduce_max(logits, axis=1, keepdims=True)
            return count + 1, x / tf.reduce_max(tf.abs(x))

        def steps(x):
            start = tf.constant(0), x
            return tf.while_loop(lambda count, _: count < LIMIT_STEPS, step, start)[1]

        return {
            "plain": tf.function(steps, autograph=False),
            "xla": tf.function(steps, autograph=False, jit_compile=True),
        }

    def step(self, rows):
        """Seconds of a step by form."""
        import tensorflow as tf

        x, seconds = tf.random.normal((rows, self.hidden)), {}
        for name, form in self.keep(self.forms).items():
            start = time.perf_counter()
            form(x).numpy()
            seconds[name] = (time.perf_counter() - start) / LIMIT_STEPS
        return seconds


SIDES = {
    "roformer_keras": f"{__spec__.name}:RoFormer",
    "bert4keras": f"{__spec__.name}:Bert4keras",
    "limit": f"{__spec__.name}:Limit",
}


if __name__ == "__main__":
    sys.exit(exit_with_error(main))
