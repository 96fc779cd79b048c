"""Generation, against the real bert4keras in the same run.

    python -m tools.benchmarks.benchmark_generation # the base model, 12x768
    python -m tools.benchmarks.benchmark_generation --parts first memory
    python -m tools.benchmarks.benchmark_generation --quick # a tiny model

The real bert4keras writes a checkpoint of random weights first, which both sides read.
Each works in a process of its own, in turn, when it is asked. Four parts:

generate    RoFormer-GPT, prompt of 16 ids, 112 new ones, top_p=0.95, no early end: one
            sample; sixteen of one prompt; one of each of sixteen prompts, for which
            bert4keras has no way but one after the other.
paraphrase  RoFormer-Sim, a sentence of 20 characters, n=100, k=20: sampling, vectors
            and ranking, bert4keras as in roformer-sim's generate.py. Random weights
            hardly ever end a text, so once as they are, to 64 tokens a text, and once
            with an output bias of [SEP] that ends each after 20 tokens or so.
            bert4keras does each once.
first       In fresh processes, once the model is loaded: until the first and the second
            piece of a stream, and a whole first `generate`; compilation included.
memory      In fresh processes, above another process that does the same with a tiny
            model of as many layers, so that what TensorFlow, XLA and the compiled
            programs take for themselves is not counted: the peak of a generation that
            needs no compiling, and of loading and the first generation, that
            compiles. To be held against the weights and the keys and values of all
            tokens, those of a prompt counted once where its samples share them. Linux
            only.

The limit is the time of a step's matrix products alone, of as many rows, every weight a
variable of its own; run step after step in one call, with XLA and without, of which
the faster counts. It has no part for the prompt, nor for the vectors of paraphrases.

First runs compile and are not counted. Figures are medians, ratios those of medians,
and in brackets between the extremes.

A full run takes about half an hour on two cores, most of it bert4keras's;
`--their-rounds 0` leaves bert4keras out.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tools.benchmarks.workers import Worker, serve
from tools.reference.full_size_checkpoint import MEMBERS, tokens, write_checkpoint

PROMPT = 16
SENTENCE = 20
NEAREST = 20
TOP_P = 0.95
LIMIT_STEPS = 32
CLS, SEP = 101, 102
SIZES = {
    # name: the base model, --quick, what it is
    "layers": (12, 2, "layers of the model"),
    "hidden": (768, 64, "its width"),
    "vocabulary": (12000, 500, "its tokens"),
    "new": (112, 20, "tokens to write with RoFormer-GPT"),
    "samples": (16, 4, "samples at a time with RoFormer-GPT"),
    "candidates": (100, 10, "n of paraphrase"),
    "longest": (64, 24, "max_length of paraphrase"),
    "rounds": (5, 1, "runs of roformer_keras and of the limit"),
    "their-rounds": (2, 1, "runs of bert4keras; 0 leaves it out"),
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, (full, quick, what) in SIZES.items():
        default = f"{what}; {full}, with --quick {quick}"
        parser.add_argument(f"--{name}", type=int, help=default)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name, sizes in SIZES.items():
        attribute = name.replace("-", "_")
        if getattr(options, attribute) is None:
            setattr(options, attribute, sizes[options.quick])
    if options.worker:
        serve(SIDES[options.worker](options))
        return
    figures = {"options": {name: getattr(options, name) for name in option_names()}}
    with tempfile.TemporaryDirectory() as scratch:
        options.folder = Path(scratch, "plain")
        options.folder.mkdir()
        sizes = options.layers, options.hidden, options.vocabulary
        write_checkpoint(options.folder, "roformer", *sizes)
        for part in options.parts:
            measure_part, report = PARTS[part]
            figures[part] = measure_part(options)
            print(file=sys.stderr)
            report(figures[part])
            # What has been measured is kept if a later part fails.
            if options.json:
                options.json.write_text(json.dumps(figures, indent=2) + "\n")


def option_names():
    return [name.replace("-", "_") for name in SIZES]


# === The side that measures ===


def measure_generation(options):
    with three_workers(options, options.folder) as workers:
        new, many = options.new, options.samples
        samples = {"limit": new, "tokens": new}, {"limit": new, "tokens": many * new}
        runs = [
            ("GPT, 1 sample", ("generate", 1), 1, samples[0], options.their_rounds),
            (
                f"GPT, {many} samples",
                ("generate", many),
                many,
                samples[1],
                options.their_rounds,
            ),
            (f"GPT, {many} prompts", ("prompts", many), many, samples[1], 0),
        ]
        return [measure(options, workers, *run) for run in runs]


def measure_paraphrases(options):
    rows, n = [], options.candidates
    for what, folder in (
        (f"Sim, paraphrase n={n}, {options.longest} tokens each", options.folder),
        (f"Sim, paraphrase n={n}, texts that end", ending_checkpoint(options)),
    ):
        with three_workers(options, folder) as workers:
            # Where rows end, a step is of fewer and fewer: there is no one limit.
            plain = folder is options.folder
            sizes = {"limit": options.longest, "tokens": n * options.longest}
            row = measure(
                options,
                workers,
                what,
                ("paraphrase", n),
                n,
                sizes if plain else {},
                min(1, options.their_rounds),
            )
        rows.append(row)
    return rows


def measure(options, workers, what, job, rows, sizes, their_rounds):
    """The seconds of each side's runs of a job, in turn, and of the limit.

    `sizes` holds the `limit` of the job in steps of so many rows, and its `tokens`.
    """
    ours, theirs, limit = workers
    progress(f"{what}: first runs")
    unit = "s" if job[0] == "paraphrase" else "tokens/s"
    found = {"work": what, "unit": unit, "tokens": sizes.get("tokens"), "limit": []}
    # Texts have other lengths on the two sides, as they are drawn.
    found["tokens_a_text"] = {"roformer_keras": ours.ask(*job).get("tokens_a_text")}
    found["roformer_keras"], found["bert4keras"] = [], []
    if their_rounds:
        theirs.ask("warm-up", *job)
    if sizes:
        limit.ask("limit", rows)
    for number in range(max(options.rounds, their_rounds)):
        progress(f"{what}: {number + 1}/{options.rounds}")
        if number < options.rounds:
            found["roformer_keras"].append(ours.ask(*job)["seconds"])
            if sizes:
                step = limit.ask("limit", rows)
                found["limit"].append(
                    {form: step[form] * sizes["limit"] for form in ("plain", "xla")}
                )
        if number < their_rounds:
            run = theirs.ask(*job)
            found["bert4keras"].append(run["seconds"])
            found["tokens_a_text"]["bert4keras"] = run.get("tokens_a_text")
    return found


def measure_first_tokens(options):
    found = {"load": [], "first_piece": [], "second_piece": [], "first_generate": []}
    for number in range(options.rounds):
        progress(f"first token: {number + 1}/{options.rounds}")
        with worker_of(options, "roformer_keras", options.folder) as worker:
            found["load"].append(worker.ask("load", "gpt")["seconds"])
            pieces = worker.ask("stream")
            found["first_piece"].append(pieces["first_piece"])
            found["second_piece"].append(pieces["second_piece"])
        with worker_of(options, "roformer_keras", options.folder) as worker:
            worker.ask("load", "gpt")
            found["first_generate"].append(worker.ask("generate", 1)["seconds"])
    return found


def measure_memory(options):
    found = []
    for what, *job in (
        ("GPT, 1 sample", "generate", 1),
        (f"GPT, {options.samples} samples", "generate", options.samples),
        (f"Sim, {options.candidates} samples", "candidates", options.candidates),
        (
            f"Sim, paraphrase n={options.candidates}",
            "paraphrase",
            options.candidates,
        ),
    ):
        sizes = {}
        for size in ("tiny", "full"):
            progress(f"memory: {what}, {size}")
            with worker_of(options, "roformer_keras", options.folder) as worker:
                sizes[size] = worker.ask("memory", size, *job)
        full, tiny = sizes["full"], sizes["tiny"]
        found.append(
            {
                "work": what,
                "weights": full["weights"],
                "cache": full["cache"],
                "generating": full["generating"] - tiny["generating"],
                "with_compilation": full["process"] - tiny["process"],
                "process": full["process"],
            }
        )
    return found


def worker_of(options, side, folder):
    sizes = {name: getattr(options, name) for name in option_names()}
    return Worker(__spec__.name, side, {**sizes, "folder": folder})


@contextlib.contextmanager
def three_workers(options, folder):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(worker_of(options, side, folder)) for side in SIDES]


def ending_checkpoint(options):
    """A copy of the checkpoint in which one token of `SENTENCE` is [SEP]."""
    from roformer_keras.conversion.reader import open_checkpoint
    from roformer_keras.io.tensor_bundle import write_tensor_bundle

    with open_checkpoint(options.folder) as checkpoint:
        tensors = {name: tensor.read() for name, tensor in checkpoint.tensors.items()}
    bias = np.array(tensors["cls/predictions/output_bias"])
    # The others are as good as equally likely.
    bias[SEP] = math.log(options.vocabulary / (SENTENCE - 1))
    tensors["cls/predictions/output_bias"] = bias
    folder = options.folder.with_name("ending")
    folder.mkdir()
    for member in MEMBERS:
        if not member.startswith("bert_model.ckpt"):
            (folder / member).write_bytes((options.folder / member).read_bytes())
    write_tensor_bundle(folder / "bert_model.ckpt", tensors.items())
    return folder


def progress(what):
    print(f"\r{what:<70}", end="", file=sys.stderr, flush=True)


# === What is printed ===


def report_runs(runs):
    print(
        f"\n{'work':<45} {'roformer_keras':>14} {'bert4keras':>11}  "
        f"{'ratio':<24} {'limit':>9}  reached"
    )
    for run in runs:
        ours, theirs = run["roformer_keras"], run["bert4keras"]
        run["ratio"] = ratio(ours, theirs)
        limit = limit_of(run)
        run["reached"] = limit and limit / statistics.median(ours)
        shown = [
            "" if seconds is None else amount(run, seconds)
            for seconds in (
                statistics.median(ours),
                statistics.median(theirs) if theirs else None,
                limit,
            )
        ]
        print(
            f"{run['work'] + ', ' + run['unit']:<45} {shown[0]:>14} {shown[1]:>11}  "
            f"{show_ratio(run['ratio']):<24} {shown[2]:>9}  "
            + (f"{run['reached']:.0%}" if limit else "")
        )
    for run in runs:
        counts = f"{len(run['roformer_keras'])} and {len(run['bert4keras'])} runs"
        lengths = run["tokens_a_text"].items()
        means = ", ".join(f"{side} {mean:.1f}" for side, mean in lengths if mean)
        print(f"{run['work']}: {counts}" + (means and f"; tokens a text: {means}"))


def report_first_tokens(found):
    print()
    for name, what in (
        ("load", "fresh process: loading"),
        ("first_piece", "then a stream, compiled: to its first token"),
        ("second_piece", "to its second token"),
        ("first_generate", "or a first generate, compiled: to its end"),
    ):
        low, high = min(found[name]), max(found[name])
        median = statistics.median(found[name])
        print(f"{what:<45} {median:6.2f} s ({low:.2f} to {high:.2f})")


def report_memory(rows):
    print(
        f"\n{'memory, MB':<28} {'weights':>8} {'cache':>7} {'in use':>7} {'share':>7}"
        f"  {'with compilation':>16} {'the process':>12}"
    )
    for row in rows:
        row["share"] = row["generating"] / (row["weights"] + row["cache"])
        print(
            f"{row['work']:<28} {row['weights']:8,.0f} {row['cache']:7,.0f} "
            f"{row['generating']:7,.0f} {row['share']:7.0%}  "
            f"{row['with_compilation']:16,.0f} {row['process']:12,.0f}"
        )


def limit_of(run):
    """The seconds of the faster of the two forms, or None."""
    if not run["limit"]:
        return None
    return min(
        statistics.median(limit[form] for limit in run["limit"])
        for form in ("plain", "xla")
    )


def ratio(ours, theirs):
    """How many times faster we are: of the medians, the least and the most."""
    if not theirs:
        return None
    return {
        "median": statistics.median(theirs) / statistics.median(ours),
        "low": min(theirs) / max(ours),
        "high": max(theirs) / min(ours),
    }


def show_ratio(found):
    if found is None:
        return ""
    return f"{found['median']:.1f}x ({found['low']:.1f} to {found['high']:.1f})"


def amount(run, seconds):
    if run["unit"] == "s":
        return f"{seconds:,.2f}"
    return f"{run['tokens'] / seconds:,.1f}"


PARTS = {
    "generate": (measure_generation, report_runs),
    "paraphrase": (measure_paraphrases, report_runs),
    "first": (measure_first_tokens, report_first_tokens),
    "memory": (measure_memory, report_memory),
}


# === The sides that work ===


def prompts_of(options, count):
    random = np.random.default_rng(0)
    drawn = random.integers(106, options.vocabulary, (count, PROMPT - 1)).tolist()
    return [[CLS, *ids] for ids in drawn]


def text_of(options, ids):
    vocabulary = list(tokens(options.vocabulary))
    return "".join(vocabulary[i] for i in ids)


def sentence_of(options):
    return text_of(options, range(106, 106 + SENTENCE))


def our_side(options):
    from roformer_keras import RoFormerCausalLM, RoFormerSim

    prompts = prompts_of(options, options.samples)
    sentence = sentence_of(options)
    kept = {}
    drawing = {"top_p": TOP_P, "seed": 0, "progress": False}
    classes = {"gpt": RoFormerCausalLM, "sim": RoFormerSim}

    def load(kind):
        kept[kind] = classes[kind].from_preset(options.folder)

    def model_of(kind):
        if kind not in kept:
            load(kind)
        return kept[kind]

    def write(given, count=None):
        model_of("gpt").generate(
            given,
            num_return_sequences=count,
            max_length=PROMPT + options.new,
            stop_tokens=(),
            batch_size=options.samples,
            **drawing,
        )

    def candidates(count):
        return model_of("sim").generate(
            model_of("sim").text_tokenizer().encode(sentence)[0],
            num_return_sequences=int(count),
            max_length=options.longest,
            batch_size=int(count),
            **drawing,
        )

    def rank(count):
        model_of("sim").paraphrase(
            sentence,
            int(count),
            NEAREST,
            max_length=options.longest,
            batch_size=int(count),
            **drawing,
        )

    def paraphrase(count):
        start = time.perf_counter()
        rank(count)
        seconds = time.perf_counter() - start
        # The same seed gives the texts of which it was made.
        mean = sum(map(len, candidates(count))) / int(count)
        return {"seconds": seconds, "tokens_a_text": mean}

    def stream():
        start = time.perf_counter()
        pieces = model_of("gpt").stream(
            text_of(options, prompts[0][1:]),
            max_length=PROMPT + options.new,
            top_p=TOP_P,
            seed=0,
        )
        return {
            name: next(pieces) and time.perf_counter() - start
            for name in ("first_piece", "second_piece")
        }

    jobs = {
        "load": load,
        "generate": lambda count: write(prompts[0], int(count)),
        "prompts": lambda count: write(prompts[: int(count)]),
        "candidates": lambda count: candidates(count) and None,
        "paraphrase": paraphrase,
        "stream": stream,
    }

    def memory(size, name, count):
        kind = "gpt" if name == "generate" else "sim"
        job = {**jobs, "paraphrase": rank}[name]
        if size == "tiny":
            kept[kind] = tiny_model(classes[kind], options)
        else:
            load(kind)
        job(count)
        process = peak_memory()
        settle_memory()
        job(count)
        prompt, new = (
            (PROMPT, options.new) if kind == "gpt" else (SENTENCE + 2, options.longest)
        )
        positions = prompt + int(count) * new
        weights = sum(math.prod(weight.shape) for weight in kept[kind].weights)
        return {
            "weights": 4 * weights / 1e6,
            "cache": 4 * positions * options.layers * 2 * options.hidden / 1e6,
            "generating": peak_memory(),
            "process": process,
        }

    return {**jobs, "memory": memory}


def tiny_model(model_class, options):
    """One of as many layers, and so of about as large a program."""
    from roformer_keras import RoFormerConfig, RoFormerTokenizer
    from roformer_keras.config import MODEL_FIELDS

    config = RoFormerConfig(
        vocabulary_size=options.vocabulary,
        num_layers=options.layers,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        **MODEL_FIELDS[model_class.__name__],
    )
    model = model_class.from_roformer_config(config)
    model.tokenizer = RoFormerTokenizer.from_preset(options.folder)
    return model


def settle_memory():
    """Counts the peak afresh, from what is held and not only not yet given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory():
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


def their_side(options):
    from bert4keras.backend import keras
    from bert4keras.models import build_transformer_model
    from bert4keras.snippets import AutoRegressiveDecoder, sequence_padding
    from bert4keras.tokenizers import Tokenizer

    prompt = prompts_of(options, 1)[0]
    sentence = sentence_of(options)
    kept = {}

    class Sampler(AutoRegressiveDecoder):
        """Goes on in a given segment, as bert4keras's examples do."""

        def __init__(self, model, segment, length, shortest):
            super().__init__(start_id=None, end_id=SEP, maxlen=length, minlen=shortest)
            self.model, self.segment, self.length = model, segment, length

        @AutoRegressiveDecoder.wraps(default_rtype="probas")
        def predict(self, inputs, output_ids, states):
            token_ids, segment_ids = inputs
            new = np.full_like(output_ids, self.segment)
            inputs = [
                np.concatenate([token_ids, output_ids], axis=1),
                np.concatenate([segment_ids, new], axis=1),
            ]
            return self.last_token(self.model).predict(inputs, verbose=0)

    def build(application, **more):
        return build_transformer_model(
            str(options.folder / "bert_config.json"),
            str(options.folder / "bert_model.ckpt"),
            model="roformer",
            application=application,
            **more,
        )

    def sampler(kind):
        if kind in kept:
            return kept[kind]
        if kind == "gpt":
            kept[kind] = Sampler(build("lm"), 0, options.new, options.new)
        else:
            model = build("unilm", with_pool="linear")
            pooled, written = model.outputs
            kept["encoder"] = keras.models.Model(model.inputs, pooled)
            kept["tokenizer"] = Tokenizer(
                str(options.folder / "vocab.txt"), do_lower_case=True
            )
            decoder = keras.models.Model(model.inputs, written)
            kept[kind] = Sampler(decoder, 1, options.longest, 1)
        return kept[kind]

    def generate(count):
        inputs = [prompt, [0] * len(prompt)]
        sampler("gpt").random_sample(inputs, int(count), topp=TOP_P)

    def paraphrase(count):
        np.random.seed(0)
        written = sampler("sim")
        tokenizer = kept["tokenizer"]
        inputs = tokenizer.encode(sentence, maxlen=options.longest)
        found = written.random_sample(list(inputs), int(count), topp=TOP_P)
        others = {tokenizer.decode(ids) for ids in found} - {sentence}
        texts = [sentence, *others]
        token_ids, segment_ids = zip(*map(tokenizer.encode, texts), strict=True)
        vectors = kept["encoder"].predict(
            [sequence_padding(token_ids), sequence_padding(segment_ids)], verbose=0
        )
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        order = np.argsort(-(vectors[1:] @ vectors[0]))[:NEAREST]
        ranked = [texts[i + 1] for i in order]
        assert len(ranked) == min(NEAREST, len(others))
        return {"tokens_a_text": sum(map(len, found)) / len(found)}

    jobs = {"generate": generate, "paraphrase": paraphrase}

    def warm_up(name, count):
        """The model is loaded, and its graph made for any length; a few tokens do."""
        written = sampler("gpt" if name == "generate" else "sim")
        written.maxlen = 3
        jobs[name](count)
        written.maxlen = written.length

    return {**jobs, "warm-up": warm_up}


def limit_side(options):
    import tensorflow as tf

    hidden = options.hidden

    def weight(rows, columns):
        return tf.Variable(tf.random.normal((rows, columns)) / rows**0.5)

    kernels = []
    for _ in range(options.layers):
        kernels += [weight(hidden, hidden) for _ in range(4)]
        kernels += [weight(hidden, 4 * hidden), weight(4 * hidden, hidden)]
    kernels.append(weight(hidden, hidden))
    embedding = weight(options.vocabulary, hidden)

    def step(count, x):
        for kernel in kernels:
            x = tf.matmul(x, kernel)
        logits = tf.matmul(x, embedding, transpose_b=True)
        # The next step waits for all of it; and numbers stay what they are at first.
        x += tf.reduce_max(logits, axis=1, keepdims=True)
        return count + 1, x / tf.reduce_max(tf.abs(x))

    def steps(x):
        def is_continuation(count, _):
            return count < LIMIT_STEPS

        return tf.while_loop(is_continuation, step, (tf.constant(0), x))[1]

    forms = {
        "plain": tf.function(steps, autograph=False),
        "xla": tf.function(steps, autograph=False, jit_compile=True),
    }

    def limit(rows):
        x = tf.random.normal((int(rows), hidden))
        seconds = {}
        for name, form in forms.items():
            start = time.perf_counter()
            form(x).numpy()
            seconds[name] = (time.perf_counter() - start) / LIMIT_STEPS
        return seconds

    return {"limit": limit}


SIDES = {"roformer_keras": our_side, "bert4keras": their_side, "limit": limit_side}


if __name__ == "__main__":
    main()
