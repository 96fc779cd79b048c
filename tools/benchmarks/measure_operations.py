"""What each way to save passes over memory brings, by leaving it out.

    python -m tools.benchmarks.measure_operations
    python -m tools.benchmarks.measure_operations --layers 2 --hidden 128 --shape \\
        4x32 --rounds 3

Encoding on TensorFlow and a CPU, in float32 and bfloat16: the whole, and the whole
without one thing, in turn. Told are milliseconds a layer, medians, and how much more
they are than with it, as the median of the ratios of neighbouring runs.
"""

import argparse
import contextlib
import json
import statistics
import time
from pathlib import Path
from unittest import mock

import keras
import numpy as np

from roformer_keras import RoFormerBackbone, RoFormerConfig
from roformer_keras.layers import FeedForward
from roformer_keras.layers.projection import Projection
from roformer_keras.models.forward import run_model

WHOLE = "everything"


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--shape", default="32x128", help="rows and tokens; 32x128")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    rows, length = map(int, options.shape.split("x"))
    token_ids = np.random.default_rng(0).integers(1, 1000, (rows, length), "int32")
    inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
    figures = {
        dtype: measure(options, inputs, dtype) for dtype in ("float32", "bfloat16")
    }
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(options, inputs, dtype):
    config = RoFormerConfig(
        vocabulary_size=1000,
        hidden_dim=options.hidden,
        num_layers=options.layers,
        num_heads=options.hidden // 64,
        intermediate_dim=4 * options.hidden,
    )
    models = {}
    for name, without in VARIANTS.items():
        models[name] = RoFormerBackbone(config, dtype=dtype)
        with without():
            # Compiled now, once for all.
            run_model(models[name], inputs)
    seconds = {name: [] for name in models}
    for _ in range(options.rounds):
        for name, model in models.items():
            start = time.perf_counter()
            run_model(model, inputs)
            seconds[name].append((time.perf_counter() - start) / options.layers)
    print(f"{dtype + ', ' + options.shape:<42} ms a layer  more")
    found = {}
    for name, own in seconds.items():
        ratios = [one / whole for one, whole in zip(own, seconds[WHOLE], strict=True)]
        found[name] = {
            "ms": 1000 * statistics.median(own),
            "more": statistics.median(ratios) - 1,
        }
        shown = "" if name == WHOLE else f"{found[name]['more']:+.1%}"
        print(f"{name:<42} {found[name]['ms']:>10.1f}  {shown}".rstrip())
    return found


# === What is left out ===


@contextlib.contextmanager
def with_plain_products():
    """Products of three axes, whose bias and activation TensorFlow computes apart."""

    def feed_forward(self, x):
        return self.output_dense(self.intermediate_dense(x[None]))[0]

    with (
        mock.patch.object(Projection, "call", keras.layers.Dense.call),
        mock.patch.object(FeedForward, "call", feed_forward),
    ):
        yield


def with_plain_norms():
    return mock.patch("roformer_keras.layers.block.fused_operations", lambda: None)


def with_plain_rotation():
    return mock.patch("roformer_keras.layers.attention.fused_operations", lambda: None)


@contextlib.contextmanager
def with_nothing():
    with with_plain_products(), with_plain_norms(), with_plain_rotation():
        yield


VARIANTS = {
    WHOLE: contextlib.nullcontext,
    "without products joined with what follows": with_plain_products,
    "without norms of one operation": with_plain_norms,
    "without rotations as complex products": with_plain_rotation,
    "without any of them": with_nothing,
}


if __name__ == "__main__":
    main()
