"""On a GPU: JAX and bfloat16, compared with Hugging Face transformers on PyTorch.

    python -m tools.benchmarks.gpu --json figures.json

Both sides have random weights and compute on the same card, in turn. Parts:

encode      Ids of fixed shapes to the vectors of their first tokens: tokens a second.
latency     The same for one row of 16 tokens: milliseconds.
generate    A prompt of 16 ids and 112 sampled tokens for 1, 16 and 256 rows: tokens a
            second.
step        Updates of a classifier on 64x128, with AdamW and clipped gradients, in
            mixed bfloat16: tokens a second.

The limit is what the card multiplies in bfloat16: the floating-point operations of the
model's matrix products, at the rate of one large product. Needs JAX with a GPU; without
transformers and PyTorch their side is left out. `--quick` also runs on a CPU.
"""

import math
import os
import sys

import numpy as np

from roformer_keras.errors import RoFormerError
from tools.benchmarks.harness import (
    LIMIT,
    MODEL_SIZES,
    Benchmark,
    Run,
    Side,
    compare,
    make_batch,
    make_config,
    make_inputs,
    make_parser,
)
from tools.benchmarks.hugging_face import (
    CLIP_NORM,
    LEARNING_RATE,
    TOP_P,
    WEIGHT_DECAY,
    Transformers,
)
from tools.benchmarks.sides import is_installed
from tools.commands import command

OURS, THEIRS = "roformer_keras bfloat16", "transformers bfloat16"
LIMIT_NAME = f"{LIMIT} bfloat16"
SENTENCE = 16
SIZES = {
    **MODEL_SIZES,
    "vocabulary": (12000, 200, "its tokens"),
    "new": (112, 4, "tokens to write"),
    "calls": (20, 1, "calls of a turn"),
    "product": (8192, 64, "rows and columns of the large product"),
    "rounds": (5, 1, "turns of each run"),
}
# Part -> shapes, those with `--quick`, and the unit of its figures.
PARTS = {
    "encode": (("64x512", "256x128"), ("2x8",), "tokens/s"),
    "latency": ((f"1x{SENTENCE}",), ("1x4",), "ms"),
    "generate": (("1x16", "16x16", "256x16"), ("2x4",), "tokens/s"),
    "step": (("64x128",), ("2x8",), "tokens/s"),
}


class NoGPU(RoFormerError):
    """JAX finds no GPU to measure."""


@command
def main(arguments=None):
    options = make_parser(__doc__, SIZES, PARTS).parse_args(arguments)
    os.environ["KERAS_BACKEND"] = "jax"
    with Benchmark(options, __spec__.name, SIDES) as benchmark:
        device = benchmark["limit"].call("device")
        if device["platform"] != "gpu" and not options.quick:
            raise NoGPU(
                "figures of a GPU need one, and JAX finds only "
                f"{device['kind']}: install jax[cuda13] on a machine with a GPU, or "
                "try the script by --quick"
            )
        print(f"device: {device['kind']}")
        benchmark.save("device", device)
        for part in options.parts:
            benchmark.save(part, measure(benchmark, part))
            benchmark.stop()


def measure(benchmark, part):
    """Shape -> name of a run -> its figures."""
    full, quick, unit = PARTS[part]
    calls, found = benchmark.options.calls, {}
    sides = {LIMIT_NAME: "limit", OURS: "roformer_keras", THEIRS: "transformers"}
    for shape in quick if benchmark.options.quick else full:
        rows, length = map(int, shape.split("x"))
        runs = {
            name: Run(side, part, (rows, length))
            for name, side in sides.items()
            # Attention over the cache is not in the limit's products.
            if is_installed(side) and not (part == "generate" and side == "limit")
        }
        tokens = rows * (benchmark.options.new if part == "generate" else length)
        amount = calls * (1 if part == "latency" else tokens)
        found[shape] = compare(
            benchmark, runs, f"{part} {shape}", unit, amount, theirs=THEIRS
        )
    return found


class RoFormer(Side):
    """roformer_keras on JAX."""

    def encoder(self):
        """The backbone, and a model that computes the first vector of each row."""
        import keras

        from roformer_keras import RoFormerBackbone

        config = make_config(self.layers, self.hidden, self.vocabulary)
        backbone = RoFormerBackbone.from_roformer_config(config, dtype="bfloat16")
        return keras.Model(backbone.input, backbone.output[:, 0])

    def encode(self, *shape):
        from roformer_keras.models.forward import run_model

        inputs = self.keep(make_inputs, *shape, self.vocabulary)
        for _ in range(self.calls):
            run_model(self.keep(self.encoder), inputs)

    latency = encode

    def writer(self):
        from roformer_keras import RoFormerCausalLM

        sizes = self.layers, self.hidden, self.vocabulary
        config = make_config(*sizes, attention="causal")
        return RoFormerCausalLM.from_roformer_config(config, dtype="bfloat16")

    def generate(self, rows, length):
        model = self.keep(self.writer)
        prompt = self.keep(make_batch, 1, length, self.vocabulary)[0][0]
        for _ in range(self.calls):
            model.generate(
                [token or 1 for token in prompt.tolist()],
                num_return_sequences=rows,
                max_new_tokens=self.new,
                stop_tokens=(),
                top_p=TOP_P,
                seed=0,
                batch_size=rows,
                verbose=0,
            )

    def classifier(self):
        from roformer_keras import RoFormerBackbone, RoFormerTextClassifier
        from roformer_keras.optimizers import make_optimizer
        from roformer_keras.text.tokenizer import RoFormerTokenizer

        config = make_config(self.layers, self.hidden, self.vocabulary)
        backbone = RoFormerBackbone.from_roformer_config(config, dtype="mixed_bfloat16")
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        tokens += [f"token{number}" for number in range(len(tokens), self.vocabulary)]
        tokenizer = RoFormerTokenizer(tokens)
        model = RoFormerTextClassifier(backbone, tokenizer, num_classes=2)
        options = {"weight_decay": WEIGHT_DECAY, "clip_norm": CLIP_NORM}
        model.compile(make_optimizer(LEARNING_RATE, **options))
        return model

    def step(self, rows, length):
        inputs = self.keep(make_inputs, rows, length, self.vocabulary)
        for _ in range(self.calls):
            self.keep(self.classifier).train_on_batch(inputs, np.arange(rows) % 2)


class Limit(Side):
    """The matrix products of the model, at the rate of one large product."""

    def device(self):
        import jax

        device = jax.devices()[0]
        return {"platform": device.platform, "kind": device.device_kind}

    def rate(self):
        """Floating-point operations a second of one large product."""
        import time

        import jax
        import jax.numpy as jnp

        size, count = self.product, 10
        x = jax.random.normal(jax.random.key(0), (size, size), jnp.bfloat16)
        multiply = jax.jit(lambda x: (x @ x) / size**0.5)
        multiply(x).block_until_ready()
        start, y = time.perf_counter(), x
        for _ in range(count):
            y = multiply(y)
        y.block_until_ready()
        return 2 * size**3 * count / (time.perf_counter() - start)

    def encode(self, rows, length):
        """Seconds of the products; those of attention are included."""
        weights = self.layers * 12 * self.hidden**2
        attention = self.layers * 2 * length * self.hidden
        operations = 2 * math.prod((rows, length)) * (weights + attention)
        return {"seconds": self.calls * operations / self.rate()}

    latency = encode

    def step(self, rows, length):
        # Forward, for the gradients of the inputs, and for those of the weights.
        return {"seconds": 3 * self.encode(rows, length)["seconds"]}


SIDES = {"limit": Limit, "roformer_keras": RoFormer, "transformers": Transformers}


if __name__ == "__main__":
    sys.exit(main())
