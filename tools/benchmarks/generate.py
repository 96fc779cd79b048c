"""Generation, compared with the real bert4keras.

    python -m tools.benchmarks.generate --parts first paraphrase

The real bert4keras writes a checkpoint of random weights, which all sides read. Parts:

engines     Each engine in float32, bfloat16 and with weights of 8 bits. RoFormer-GPT
            continues a prompt of 16 ids, with no early end: one sample, and sixteen.
            RoFormer-Sim as in roformer-sim's generate.py, n=100, k=20.
mix         Many prompts of 4 to 128 ids for RoFormer-GPT, in float32 and bfloat16: most
            texts end after about 20 tokens, some are as long as they may be.
paraphrase  RoFormer-Sim by bert4keras too. Random weights hardly ever end a text: once
            as they are, and once with an output bias of [SEP] that ends texts after
            about 20 tokens.
first       In fresh processes, compilation included: seconds to the first and second
            piece of a stream, and of a whole first `generate`.

The limit is the time of the matrix products of a step, of as many rows, by OpenVINO.
"""

import math
import sys
import time

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
)
from tools.benchmarks.sides import TOP_P, Transformers, installed
from tools.commands import command
from tools.reference.bert4keras import build_model, make_tokenizer
from tools.reference.full_size_checkpoint import (
    MEMBERS,
    make_vocabulary,
)

KERAS = "keras float32"
GPT, SIM = "RoFormerCausalLM", "RoFormerSim"
PROMPT, SENTENCE, NEAREST = 16, 20, 20
DRAWING = {"top_p": TOP_P, "seed": 0}
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
    "their-rounds": (1, 1, "runs of bert4keras; 0 leaves it out"),
}
TYPES = ("float32", "bfloat16")
# Types and engines; the first four read the mix.
ENGINE_RUNS = (
    ("float32", "keras"),
    ("bfloat16", "keras"),
    ("float32", "openvino"),
    ("bfloat16", "openvino"),
    ("float32", "openvino-int8"),
    ("bfloat16", "openvino-int8"),
)


@command
def main(arguments=None):
    options = make_parser(__doc__, SIZES, MEASURES).parse_args(arguments)
    with Benchmark(options, __spec__.name, SIDES) as benchmark:
        benchmark.write_checkpoint()
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


def measure_engines(benchmark):
    options, figures = benchmark.options, {}
    many, n = options.samples, options.candidates
    for title, method, count in (
        ("GPT, 1 sample", "generate", 1),
        (f"GPT, {many} samples", "generate", many),
        (f"Sim, paraphrase n={n}", "paraphrase", n),
    ):
        is_gpt = method == "generate"
        steps = options.new if is_gpt else options.longest
        runs = {
            f"{LIMIT} {dtype}, OpenVINO": Run(
                "limit", "take_steps", (dtype, count, steps)
            )
            for dtype in TYPES
        }
        for dtype, engine in ENGINE_RUNS:
            arguments = (count, ".", dtype, engine)
            runs[f"{engine} {dtype}"] = Run("roformer_keras", method, arguments)
        if is_gpt:
            runs[THEIRS] = theirs(options, method, count)
            for dtype in TYPES:
                arguments = (f"{count}x{PROMPT}", dtype)
                peer = Run("transformers", "generate", arguments)
                runs[f"transformers {dtype}"] = peer
        unit, amount = ("tokens/s", steps * count) if is_gpt else ("s", 1)
        figures[title] = compare(
            benchmark, installed(runs), title, unit, amount, theirs=KERAS
        )
    return figures


def theirs(options, method, *arguments):
    """A run of bert4keras, which takes long."""
    warm_up = ("warm_up", method, *arguments)
    return Run("bert4keras", method, arguments, warm_up, options.their_rounds)


def measure_mix(benchmark):
    count = benchmark.options.mix_prompts
    runs = {
        f"{engine} {dtype}": Run(
            "roformer_keras", "write_mix", (count, dtype, engine), rounds=1
        )
        for dtype, engine in ENGINE_RUNS[:4]
    }
    return compare(benchmark, runs, f"GPT, {count} prompts", "s", theirs=KERAS)


def measure_paraphrases(benchmark):
    options, figures = benchmark.options, {}
    for title, source in (("whole texts", "."), ("texts that end", "ending")):
        method, arguments = "paraphrase", (options.candidates, source)
        runs = {
            KERAS: Run("roformer_keras", method, arguments),
            THEIRS: theirs(options, method, *arguments),
        }
        figures[title] = compare(benchmark, runs, f"Sim, paraphrase, {title}", "s")
    return figures


def measure_first_tokens(benchmark):
    """Seconds of fresh processes; those of pieces count from the start of a stream."""
    side, load = "roformer_keras", ("load",)
    runs = {
        "second piece of a stream": Run(side, "stream", (), load),
        "first generate": Run(side, "generate", (1,), load),
    }
    return compare(benchmark, runs, "model loaded", "s", theirs=None, fresh=True)


MEASURES = {
    "engines": measure_engines,
    "mix": measure_mix,
    "paraphrase": measure_paraphrases,
    "first": measure_first_tokens,
}


class Writer(Side):
    def prompt(self):
        drawn = np.random.default_rng(0).integers(106, self.vocabulary, PROMPT - 1)
        return [CLS, *drawn.tolist()]

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

    def load(self):
        self.keep(self.model, GPT, ".", "float32")

    def generate(self, count, source=".", dtype="float32", engine="keras"):
        self.keep(self.model, GPT, source, dtype).generate(
            self.prompt(),
            num_return_sequences=count,
            max_length=PROMPT + self.new,
            stop_tokens=(),
            batch_size=self.samples,
            engine=engine,
            verbose=0,
            **DRAWING,
        )

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

    def paraphrase(self, count, source, dtype="float32", engine="keras"):
        model = self.keep(self.model, SIM, source, dtype)
        sizes = {"max_new_tokens": self.longest, "batch_size": count}
        options = {**sizes, **DRAWING, "engine": engine, "verbose": 0}
        start = time.perf_counter()
        model.paraphrase(self.sentence(), count, NEAREST, **options)
        seconds = time.perf_counter() - start
        # The same seed gives the texts that were ranked.
        prompt = model.text_tokenizer().encode(self.sentence())[0]
        texts = model.generate(prompt, num_return_sequences=count, **options)
        return {"seconds": seconds, "tokens a text": sum(map(len, texts)) / count}

    def stream(self):
        model = self.keep(self.model, GPT, ".", "float32")
        start = time.perf_counter()
        text = self.text(self.prompt()[1:])
        pieces = model.stream(text, max_length=PROMPT + self.new, **DRAWING)
        return {
            name: next(pieces) and time.perf_counter() - start
            for name in ("first piece", "seconds")
        }


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
        inputs = [self.prompt(), [0] * PROMPT]
        sampler = self.keep(self.sampler, None)
        sampler.random_sample(inputs, count, topp=DRAWING["top_p"])

    def paraphrase(self, count, source):
        from bert4keras.snippets import sequence_padding

        sampler = self.keep(self.sampler, source)
        np.random.seed(0)
        tokenizer = self.keep(make_tokenizer, self.folder)
        sentence = self.sentence()
        inputs = list(tokenizer.encode(sentence, maxlen=self.longest))
        samples = sampler.random_sample(inputs, count, topp=DRAWING["top_p"])
        texts = [sentence, *({tokenizer.decode(ids) for ids in samples} - {sentence})]
        rows = zip(*map(tokenizer.encode, texts), strict=True)
        batch = [sequence_padding(ids) for ids in rows]
        vectors = sampler.encoder.predict(batch, verbose=0)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        order = np.argsort(-(vectors[1:] @ vectors[0]))[:NEAREST]
        assert len([texts[i + 1] for i in order]) == min(NEAREST, len(texts) - 1)
        return {"tokens a text": sum(map(len, samples)) / len(samples)}

    def warm_up(self, method, count, source=None):
        """Loads the model and writes a few tokens; its graph takes any length."""
        sampler = self.keep(self.sampler, source)
        length, sampler.maxlen = sampler.maxlen, 3
        getattr(self, method)(count, *filter(None, [source]))
        sampler.maxlen = length


class Limit(Side):
    """The matrix products of a step, by OpenVINO."""

    def request(self, dtype):
        import openvino
        from openvino import opset13 as op

        from roformer_keras.engines.programs import OpenVINOProgram

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
    "transformers": Transformers,
    "limit": Limit,
}


if __name__ == "__main__":
    sys.exit(main())
