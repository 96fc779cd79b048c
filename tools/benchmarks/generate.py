"""Generation, compared with the real bert4keras.

    python -m tools.benchmarks.generate --parts first memory

The real bert4keras writes a checkpoint of random weights, which both sides read. Parts:

generate    RoFormer-GPT, prompt of 16 ids, no early end: one sample; sixteen of one
            prompt; one of each of sixteen prompts.
paraphrase  RoFormer-Sim as in roformer-sim's generate.py, n=100, k=20. Random weights
            hardly ever end a text: once as they are, and once with an output bias of
            [SEP] that ends texts after about 20 tokens.
engines     The same with every engine, in float32, bfloat16 and with weights of 8 bits.
mix         Many prompts of 4 to 128 ids for RoFormer-GPT, in float32 and bfloat16: most
            texts end after about 20 tokens, some are as long as they may be.
first       In fresh processes, compilation included: seconds to the first and second
            piece of a stream, and of a whole first `generate`.
memory      In fresh processes, above one with a tiny model of as many layers: peaks of
            a generation that needs no compiling, and of loading with the first one;
            compared with the weights, keys and values. Linux only.

The limit is the time of the matrix products of a step, of as many rows; of `engines`
those of OpenVINO.
"""

import ctypes
import gc
import math
import sys
import time
from pathlib import Path

import numpy as np

from tools.benchmarks.harness import (
    LIMIT,
    MODEL_SIZES,
    THEIRS,
    Benchmark,
    Run,
    Side,
    compare,
    make_parser,
    show,
)
from tools.benchmarks.hugging_face import Transformers
from tools.benchmarks.sides import is_installed
from tools.commands import command
from tools.reference.bert4keras import build_model, make_tokenizer
from tools.reference.full_size_checkpoint import (
    MEMBERS,
    make_vocabulary,
    write_checkpoint,
)
from tools.tables import print_table

OURS = "roformer_keras float32"
GPT, SIM = "RoFormerCausalLM", "RoFormerSim"
PROMPT, SENTENCE, NEAREST = 16, 20, 20
DRAWING = {"top_p": 0.95, "seed": 0}
LIMIT_STEPS = 32
CLS, SEP = 101, 102
SIZES = {
    **MODEL_SIZES,
    "vocabulary": (12000, 500, "its tokens"),
    "new": (112, 8, "tokens to write with RoFormer-GPT"),
    "samples": (16, 2, "samples at a time with RoFormer-GPT"),
    "mix-prompts": (1000, 12, "prompts of the mix"),
    "candidates": (100, 8, "n of paraphrase"),
    "longest": (64, 24, "max_new_tokens of paraphrase"),
    "rounds": (5, 1, "runs of roformer_keras and of the limit"),
    "their-rounds": (2, 1, "runs of bert4keras; 0 leaves it out"),
}
# The types and engines that are compared.
ENGINE_RUNS = (
    *(("float32", "keras"), ("bfloat16", "keras")),
    *(("float32", "openvino"), ("bfloat16", "openvino")),
    *(("float32", "openvino-int8"), ("bfloat16", "openvino-int8")),
    *(("float32", "onnx"), ("float32", "onnx-int8")),
)
# Label, method of RoFormer, and the option with its count.
MEMORY_RUNS = (
    ("GPT, 1 sample", "generate", None),
    ("GPT, {} samples", "generate", "samples"),
    ("Sim, {} samples", "sample_candidates", "candidates"),
    ("Sim, paraphrase n={}", "rank", "candidates"),
)


@command
def main(arguments=None):
    options = make_parser(__doc__, SIZES, MEASURES).parse_args(arguments)
    with Benchmark(options, __spec__.name, SIDES) as benchmark:
        sizes = options.layers, options.hidden, options.vocabulary
        write_checkpoint(benchmark.folder, "roformer", *sizes)
        write_ending_checkpoint(benchmark)
        for part in options.parts:
            benchmark.save(part, MEASURES[part](benchmark))
            benchmark.stop()


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


def measure_generation(benchmark):
    options = benchmark.options
    new, many, theirs = options.new, options.samples, options.their_rounds
    found = {}
    for title, method, count, rounds in (
        ("GPT, 1 sample", "generate", 1, theirs),
        (f"GPT, {many} samples", "generate", many, theirs),
        (f"GPT, {many} prompts", "continue_prompts", many, 0),
    ):
        runs = runs_of(rounds, new, method, count)
        found[title] = compare(benchmark, runs, title, "tokens/s", new * count)
    return found


def measure_paraphrases(benchmark):
    options, found = benchmark.options, {}
    n, theirs = options.candidates, min(1, options.their_rounds)
    for what, source, steps in (
        (f"{options.longest} tokens each", ".", options.longest),
        # Steps have fewer and fewer rows: there is no one limit.
        ("texts that end", "ending", 0),
    ):
        title = f"Sim, paraphrase n={n}, {what}"
        runs = runs_of(theirs, steps, "paraphrase", n, source)
        found[title] = compare(benchmark, runs, title, "s")
    return found


def measure_engines(benchmark):
    options, found = benchmark.options, {}
    many, n = options.samples, options.candidates
    jobs = (
        ("GPT, 1 sample", "tokens/s", options.new, "generate", 1, options.new),
        (f"GPT, {many} samples", "tokens/s", options.new, "generate", many, None),
        (f"Sim, paraphrase n={n}", "s", options.longest, "paraphrase", n, 1),
    )
    for title, unit, steps, method, count, amount in jobs:
        runs = {
            f"{LIMIT} {dtype}, OpenVINO": Run(
                "openvino", "take_steps", (dtype, count, steps)
            )
            for dtype in ("float32", "bfloat16")
        }
        for dtype, engine in ENGINE_RUNS:
            arguments = (count, ".", dtype, engine)
            runs[f"{engine} {dtype}"] = Run("roformer_keras", method, arguments)
        if method == "generate":
            runs |= peers_of(count, min(1, options.their_rounds))
        figures = compare(
            benchmark,
            runs,
            title,
            unit,
            amount or steps * count,
            theirs="keras float32",
        )
        found[title] = figures
    return found


def peers_of(count, rounds):
    """The samples of others; of Hugging Face if it is installed."""
    job = "generate", count
    theirs = Run("bert4keras", "generate", (count,), ("warm_up", *job), rounds)
    runs = {THEIRS: theirs}
    if is_installed("transformers"):
        for dtype in ("float32", "bfloat16"):
            arguments = (count, dtype)
            runs[f"transformers {dtype}"] = Run("transformers", "write", arguments)
    return runs


def measure_mix(benchmark):
    count = benchmark.options.mix_prompts
    runs = {
        f"{engine} {dtype}": Run(
            "roformer_keras", "write_mix", (count, dtype, engine), rounds=1
        )
        for dtype, engine in ENGINE_RUNS[:4]
    }
    title = f"GPT, {count} prompts"
    return compare(benchmark, runs, title, "s", theirs="keras float32")


def runs_of(their_rounds, steps, *job):
    """The runs of a job (method, rows, ...) of both sides, and of so many steps."""
    method, *arguments = job
    limits = {
        f"{LIMIT} float32, {form}": Run("limit", "take_steps", (form, job[1], steps))
        for form in ("graph", "XLA")
        if steps
    }
    return {
        **limits,
        OURS: Run("roformer_keras", method, arguments),
        THEIRS: Run("bert4keras", method, arguments, ("warm_up", *job), their_rounds),
    }


def measure_first_tokens(benchmark):
    """Seconds of fresh processes; those of pieces count from the start of a stream."""
    side, load = "roformer_keras", ("load", GPT)
    runs = {
        "second piece of a stream": Run(side, "stream", (), load),
        "first generate": Run(side, "generate", (1,), load),
    }
    return compare(benchmark, runs, "model loaded", "s", theirs=None, fresh=True)


def measure_memory(benchmark):
    options, found, tiny = benchmark.options, {}, benchmark.folder / "tiny"
    tiny.mkdir()
    # As many layers, so that its program is about as large.
    write_checkpoint(tiny, "roformer", options.layers, 8, options.vocabulary, 2)
    for what, method, option in MEMORY_RUNS:
        count = getattr(options, option) if option else 1
        sizes = []
        for source in ("tiny", "."):
            with benchmark.start("roformer_keras") as worker:
                sizes.append(worker.call("memory", source, method, count))
        tiny, full = sizes
        generating = full["generating"] - tiny["generating"]
        found[what.format(count)] = {
            "weights": full["weights"],
            "cache": full["cache"],
            "generating": generating,
            "share": generating / (full["weights"] + full["cache"]),
            "with_compilation": full["process"] - tiny["process"],
            "process": full["process"],
        }
    rows = [[name, *map(show, row.values())] for name, row in found.items()]
    print_table("memory, MB", list(next(iter(found.values()))), rows)
    return found


MEASURES = {
    "generate": measure_generation,
    "paraphrase": measure_paraphrases,
    "engines": measure_engines,
    "mix": measure_mix,
    "first": measure_first_tokens,
    "memory": measure_memory,
}


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
    """roformer_keras, from a folder below the scratch folder."""

    def model(self, kind, source=".", dtype="float32"):
        import roformer_keras

        source = self.folder / source
        return getattr(roformer_keras, kind).from_preset(source, dtype=dtype)

    def load(self, kind):
        self.keep(self.model, kind, ".", "float32")

    def write(self, prompts, count=None, source=".", dtype="float32", engine="keras"):
        self.keep(self.model, GPT, source, dtype).generate(
            prompts,
            num_return_sequences=count,
            max_length=PROMPT + self.new,
            stop_tokens=(),
            batch_size=self.samples,
            engine=engine,
            verbose=0,
            **DRAWING,
        )

    def generate(self, count, *form):
        self.write(self.prompts(1)[0], count, *form)

    def continue_prompts(self, count):
        self.write(self.prompts(count))

    def write_mix(self, count, dtype, engine):
        random = np.random.default_rng(0)
        lengths = np.minimum(4 + random.geometric(1 / 24, count), 128)
        prompts = [
            [CLS, *random.integers(106, self.vocabulary, length - 1).tolist()]
            for length in lengths
        ]
        start = time.perf_counter()
        texts = self.keep(self.model, GPT, "ending", dtype).generate(
            prompts,
            max_new_tokens=self.new,
            stop_tokens=[SEP],
            engine=engine,
            verbose=0,
            **DRAWING,
        )
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "tokens a text": sum(map(len, texts)) / count}

    def sim(self, count, source, dtype="float32", engine="keras"):
        """The model, and options of generation."""
        sizes = {"max_new_tokens": self.longest, "batch_size": count}
        model = self.keep(self.model, SIM, source, dtype)
        return model, {**sizes, **DRAWING, "engine": engine, "verbose": 0}

    def sample_candidates(self, count, *form):
        model, options = self.sim(count, *form)
        prompt = model.text_tokenizer().encode(self.sentence())[0]
        texts = model.generate(prompt, num_return_sequences=count, **options)
        return sum(map(len, texts)) / count

    def rank(self, count, *form):
        model, options = self.sim(count, *form)
        model.paraphrase(self.sentence(), count, NEAREST, **options)

    def paraphrase(self, count, *form):
        start = time.perf_counter()
        self.rank(count, *form)
        seconds = time.perf_counter() - start
        # The same seed gives the texts that were ranked.
        tokens = self.sample_candidates(count, *form)
        return {"seconds": seconds, "tokens a text": tokens}

    def stream(self):
        model = self.keep(self.model, GPT, ".", "float32")
        start = time.perf_counter()
        text = self.text(self.prompts(1)[0][1:])
        pieces = model.stream(text, max_length=PROMPT + self.new, **DRAWING)
        return {
            name: next(pieces) and time.perf_counter() - start
            for name in ("first piece", "seconds")
        }

    def memory(self, source, method, count):
        """MB of weights, cache, a second generation, and the process until then."""
        is_gpt = method == "generate"
        model = self.keep(self.model, GPT if is_gpt else SIM, source, "float32")
        getattr(self, method)(count, source)
        process = peak_memory()
        settle_memory()
        getattr(self, method)(count, source)
        prompt = PROMPT if is_gpt else SENTENCE + 2
        new = self.new if is_gpt else self.longest
        cache = 4 * (prompt + count * new) * self.layers * 2 * self.hidden
        return {
            "weights": 4 * model.count_params() / 1e6,
            "cache": cache / 1e6,
            "generating": peak_memory(),
            "process": process,
        }


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

    def sampler(self, source):
        """Of RoFormer-Sim from a folder; of RoFormer-GPT if None."""
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

        if source is None:
            sampler = Sampler(None, SEP, self.new, self.new)
            sampler.model = build_model(self.folder, application="lm")
            sampler.segment = 0
            return sampler
        folder = self.folder / source
        model = build_model(folder, application="unilm", with_pool="linear")
        pooled, written = model.outputs
        sampler = Sampler(None, SEP, self.longest, 1)
        sampler.model = keras.models.Model(model.inputs, written)
        sampler.encoder = keras.models.Model(model.inputs, pooled)
        sampler.segment = 1
        return sampler

    def generate(self, count):
        inputs = [self.prompts(1)[0], [0] * PROMPT]
        sampler = self.keep(self.sampler, None)
        sampler.random_sample(inputs, count, topp=DRAWING["top_p"])

    def paraphrase(self, count, source):
        from bert4keras.snippets import sequence_padding

        sampler = self.keep(self.sampler, source)
        np.random.seed(0)
        tokenizer = self.keep(make_tokenizer, self.folder)
        sentence = self.sentence()
        inputs = list(tokenizer.encode(sentence, maxlen=self.longest))
        found = sampler.random_sample(inputs, count, topp=DRAWING["top_p"])
        texts = [sentence, *({tokenizer.decode(ids) for ids in found} - {sentence})]
        rows = zip(*map(tokenizer.encode, texts), strict=True)
        batch = [sequence_padding(ids) for ids in rows]
        vectors = sampler.encoder.predict(batch, verbose=0)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        order = np.argsort(-(vectors[1:] @ vectors[0]))[:NEAREST]
        assert len([texts[i + 1] for i in order]) == min(NEAREST, len(texts) - 1)
        return {"tokens a text": sum(map(len, found)) / len(found)}

    def warm_up(self, method, count, source=None):
        """Loads the model and writes a few tokens; its graph takes any length."""
        sampler = self.keep(self.sampler, source)
        length, sampler.maxlen = sampler.maxlen, 3
        getattr(self, method)(count, *filter(None, [source]))
        sampler.maxlen = length


class Peer(Transformers):
    """Hugging Face's RoFormer of the same size, with random weights."""

    def write(self, count, dtype):
        self.calls = 1
        self.generate(count, PROMPT, dtype)


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
            "graph": tf.function(steps, autograph=False),
            "XLA": tf.function(steps, autograph=False, jit_compile=True),
        }

    def take_steps(self, form, rows, steps):
        """Seconds of so many steps; `LIMIT_STEPS` are measured."""
        import tensorflow as tf

        x, start = tf.random.normal((rows, self.hidden)), time.perf_counter()
        self.keep(self.forms)[form](x).numpy()
        return {"seconds": (time.perf_counter() - start) / LIMIT_STEPS * steps}


class OpenVINOLimit(Side):
    """The same products by OpenVINO."""

    def request(self, dtype):
        import openvino
        from openvino import opset13 as op

        from roformer_keras.generation.stateful import OpenVINOProgram

        random, hidden = np.random.default_rng(0), self.hidden
        inputs = op.parameter([-1, hidden], np.float32, name="x")

        def product(x, rows, columns):
            kernel = random.standard_normal((columns, rows), "float32") / rows**0.5
            return op.matmul(x, kernel, False, True)

        x = inputs
        for _ in range(self.layers):
            for _ in range(4):
                x = product(x, hidden, hidden)
            x = product(product(x, hidden, 4 * hidden), 4 * hidden, hidden)
        logits = product(product(x, hidden, hidden), hidden, self.vocabulary)
        largest = op.result(op.reduce_max(logits, np.array([1]), True))
        largest.output(0).set_names({"largest"})
        model = openvino.Model([largest], [inputs], "products")
        program = OpenVINOProgram(model, bfloat16=dtype == "bfloat16")
        return program, program.start()

    def take_steps(self, dtype, rows, steps):
        """Seconds of so many steps; `LIMIT_STEPS` are measured."""
        program, request = self.keep(self.request, dtype)
        x = np.random.default_rng(0).standard_normal((rows, self.hidden), "float32")
        start = time.perf_counter()
        for _ in range(LIMIT_STEPS):
            program.run(request, {"x": x})
        return {"seconds": (time.perf_counter() - start) / LIMIT_STEPS * steps}


SIDES = {
    "roformer_keras": RoFormer,
    "bert4keras": Bert4keras,
    "transformers": Peer,
    "limit": Limit,
    "openvino": OpenVINOLimit,
}


if __name__ == "__main__":
    sys.exit(main())
