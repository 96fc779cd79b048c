"""What each way to save passes over memory brings, measured by leaving it out.

    python -m tools.benchmarks.operations

Encodes on TensorFlow and a CPU with everything, and without one thing, in turn. Prints
medians of milliseconds a layer, and of how much more than with everything they are.
"""

import contextlib
import statistics
import sys
import time
from unittest import mock

from tools.benchmarks.harness import make_config, make_inputs, make_parser, ratios
from tools.commands import command
from tools.tables import print_table, write_json

ALL = "everything"
SIZES = {
    "layers": (4, 1, "layers of the model"),
    "hidden": (768, 64, "its width"),
    "rows": (32, 2, "rows of the batch"),
    "length": (128, 8, "tokens of a row"),
    "rounds": (9, 1, "turns of each variant"),
}


@command
def main(arguments=None):
    options = make_parser(__doc__, SIZES).parse_args(arguments)
    figures = {dtype: measure(options, dtype) for dtype in ("float32", "bfloat16")}
    for dtype, found in figures.items():
        rows = [
            (name, f"{own['ms']:.1f}", f"{own['more']:+.1%}")
            for name, own in found.items()
        ]
        title = f"{dtype}, {options.rows}x{options.length}"
        print_table(title, ("ms a layer", "more"), rows)
    if options.json:
        write_json(options.json, figures)


def measure(options, dtype):
    from roformer_keras import RoFormerBackbone
    from roformer_keras.models.forward import run_model

    config = make_config(options.layers, options.hidden, 1000)
    inputs = make_inputs(options.rows, options.length, 1000)
    models, figures = {}, {}
    for name, without in VARIANTS.items():
        models[name] = RoFormerBackbone(config, dtype=dtype)
        figures[name] = {"seconds": []}
        with without():
            # Compiles it, once for all.
            run_model(models[name], inputs)
    for _ in range(options.rounds):
        for name, model in models.items():
            start = time.perf_counter()
            run_model(model, inputs)
            figures[name]["seconds"].append(time.perf_counter() - start)
    for name, own in figures.items():
        own["ms"] = 1000 * statistics.median(own["seconds"]) / options.layers
        own["more"] = statistics.median(ratios(figures, ALL, name) or [1]) - 1
    return figures


@contextlib.contextmanager
def with_plain_products():
    """Products of three axes, whose bias and activation TensorFlow computes apart."""
    import keras

    from roformer_keras.layers import FeedForward
    from roformer_keras.layers.projection import Projection

    def feed_forward(self, x):
        return self.output_dense(self.intermediate_dense(x[None]))[0]

    with (
        mock.patch.object(Projection, "call", keras.layers.Dense.call),
        mock.patch.object(FeedForward, "call", feed_forward),
    ):
        yield


def with_plain_norms():
    return mock.patch("roformer_keras.layers.norms.fused_operations", lambda: None)


def with_plain_rotation():
    return mock.patch("roformer_keras.layers.attention.fused_operations", lambda: None)


@contextlib.contextmanager
def with_nothing():
    with with_plain_products(), with_plain_norms(), with_plain_rotation():
        yield


VARIANTS = {
    ALL: contextlib.nullcontext,
    "without products joined with what follows": with_plain_products,
    "without norms of one operation": with_plain_norms,
    "without rotations as complex products": with_plain_rotation,
    "without any of them": with_nothing,
}


if __name__ == "__main__":
    sys.exit(main())
