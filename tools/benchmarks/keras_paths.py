"""The calls that users of Keras take by habit, compared with the shortest way.

    python -m tools.benchmarks.keras_paths --json figures.json

All sides have the weights of one checkpoint of random numbers. The parts:

predict     Ids of fixed shapes as one batch: tokens a second by `predict`, by
            `predict_on_batch`, and by `predict` of a `keras.Model` with the same
            layers, which runs as Keras does. Also on Keras's OpenVINO backend.
latency     Ids of 16 tokens, call after call: milliseconds; also by `model(ids)`, and
            by `model(ids)` operation by operation.

`python -m tools.predict_wait` shows why Keras's own `predict` is slow,
`python -m tools.benchmarks.encode --parts load` measures loading, and
`python -m tools.benchmarks.finetune` a step of fine-tuning.
"""

import math
import os
import sys

from tools.benchmarks import sides
from tools.benchmarks.harness import (
    THEIRS,
    Benchmark,
    Run,
    compare,
    make_parser,
    ratios,
    show_ratios,
)
from tools.commands import command
from tools.reference.full_size_checkpoint import write_checkpoint

TYPES = ("float32", "bfloat16")
SHORT = f"1x{sides.SENTENCE}"
PREDICT, ON_BATCH, PLAIN = "predict", "predict_on_batch", "plain_predict"
CALL, EAGER = "call", "call_eagerly"
OPENVINO = "Keras on OpenVINO"
HUGGING_FACE = "transformers Bert"


def ours(*methods):
    return {f"{way} {dtype}": Run(dtype, way) for dtype in TYPES for way in methods}


def on_openvino(way):
    return {f"{OPENVINO} {dtype}": Run(f"{OPENVINO} {dtype}", way) for dtype in TYPES}


RUNS = {
    "predict": {
        **ours(ON_BATCH, PREDICT, PLAIN),
        **on_openvino(PREDICT),
        THEIRS: Run("bert4keras", "predict_ids"),
    },
    "latency": {
        **ours(ON_BATCH, PREDICT, PLAIN, CALL, EAGER),
        **on_openvino(CALL),
        THEIRS: Run("bert4keras", "predict_ids"),
        **{
            f"{HUGGING_FACE} {dtype}": Run("transformers", "call", ("Bert", dtype))
            for dtype in TYPES
        },
    },
}
SIZES = {
    "layers": (12, 1, "layers of the model"),
    "hidden": (768, 128, "its width, a multiple of 64"),
    "vocabulary": (12000, 200, "its tokens, at least 200"),
    "calls": (20, 2, "calls of a turn of latency"),
    "rounds": (7, 1, "turns of each run"),
}


@command
def main(arguments=None):
    parser = make_parser(__doc__, SIZES, RUNS)
    parser.add_argument(
        "--shapes", nargs="+", default=["32x128", "4x512"], help="rows and tokens"
    )
    options = parser.parse_args(arguments)
    with Benchmark(options, __spec__.name, SIDES) as benchmark:
        sizes = options.layers, options.hidden, options.vocabulary
        write_checkpoint(benchmark.folder, "roformer", *sizes)
        for part in options.parts:
            shapes = options.shapes if part == "predict" else [SHORT]
            found = {shape: measure(benchmark, part, shape) for shape in shapes}
            benchmark.save(part, found)
    return 0


def measure(benchmark, part, shape):
    """Name of a run -> its figures; prints the ratios that count."""
    runs = {
        name: run._replace(arguments=(shape, *run.arguments))
        for name, run in RUNS[part].items()
        if sides.is_installed("openvino" if OPENVINO in run.side else run.side)
    }
    amount = math.prod(map(int, shape.split("x"))) if part == "predict" else 1
    unit = "tokens/s" if part == "predict" else "ms"
    found = compare(benchmark, runs, f"{part} {shape}", unit, amount)
    for dtype in TYPES:
        for way, other in (
            (PREDICT, f"{ON_BATCH} {dtype}"),
            (PREDICT, THEIRS),
            (OPENVINO, f"{PREDICT if part == 'predict' else CALL} {dtype}"),
            (CALL, f"{EAGER} {dtype}"),
            (CALL, f"{HUGGING_FACE} {dtype}"),
        ):
            run = f"{way} {dtype}"
            if run in found and other in found:
                rate = show_ratios(ratios(found, run, other))
                print(f"{shape}: {run} has {rate} the rate of {other}")
    return found


class IdsSide(sides.EncodeSide):
    def time_ids(self, call, shape):
        """As `time_calls`; one call of a long batch."""
        return self.time_calls(call, None if shape == SHORT else 1)


class RoFormer(IdsSide, sides.RoFormer):
    """roformer_keras, in the type that is the side's name."""

    def plain_model(self):
        import keras

        model = self.keep(self.model)
        return keras.Model(model.input, model.output)

    def predict(self, shape):
        return self._predict(self.keep(self.model), shape)

    def plain_predict(self, shape):
        return self._predict(self.keep(self.plain_model), shape)

    def _predict(self, model, shape):
        inputs = self.keep(self.inputs, shape)
        rows = len(inputs["token_ids"])
        return self.time_ids(
            lambda: model.predict(inputs, batch_size=rows, verbose=0), shape
        )

    def predict_on_batch(self, shape):
        model, inputs = self.keep(self.model), self.keep(self.inputs, shape)
        return self.time_ids(lambda: model.predict_on_batch(inputs), shape)

    def call(self, shape):
        from keras import ops

        model, inputs = self.keep(self.model), self.keep(self.inputs, shape)
        return self.time_ids(lambda: ops.convert_to_numpy(model(inputs)), shape)

    def call_eagerly(self, shape):
        model = self.keep(self.model)
        model.run_eagerly = True
        try:
            return self.call(shape)
        finally:
            model.run_eagerly = False


class OpenVINO(RoFormer):
    """roformer_keras on Keras's OpenVINO backend, in the type that ends its name."""

    def __init__(self, **options):
        os.environ["KERAS_BACKEND"] = "openvino"
        super().__init__(**{**options, "name": options["name"].split()[-1]})


class Bert4keras(IdsSide, sides.Bert4keras):
    """The real bert4keras, in float32."""

    def predict_ids(self, shape):
        batch = list(self.keep(self.batch, shape))
        model, rows = self.keep(sides.build_model, self.folder), len(batch[0])
        return self.time_ids(
            lambda: model.predict(batch, batch_size=rows, verbose=0), shape
        )


class Transformers(IdsSide, sides.Transformers):
    """Hugging Face's encoder of the same size, with random weights."""

    def call(self, shape, name, dtype):
        return self.time_ids(lambda: self.encode(shape, name, dtype), shape)


SIDES = {
    "float32": RoFormer,
    "bfloat16": RoFormer,
    **{f"{OPENVINO} {dtype}": OpenVINO for dtype in TYPES},
    "bert4keras": Bert4keras,
    "transformers": Transformers,
}


if __name__ == "__main__":
    sys.exit(main())
