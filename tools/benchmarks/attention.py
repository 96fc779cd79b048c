"""Time and memory of attention of linear cost, compared with softmax attention.

    python -m tools.benchmarks.attention [--json figures.json]

One layer (768, 12 heads), one text, TensorFlow on a CPU. Each length of each kind has
its own process; its peak of memory is above that with the layer built. Softmax leaves
out lengths that would take more than 12 GB. Then an encoder of two layers reads a text
of the largest length, and random features are compared with softmax attention.
"""

import statistics
import sys
import time

import numpy as np

from tools.benchmarks.harness import make_config, make_inputs, make_parser, show
from tools.commands import command
from tools.tables import print_table, write_json
from tools.workers import Worker, peak_bytes

HIDDEN, HEADS = 768, 12
KINDS = {
    "softmax": {},
    "linear": {"kind": "linear"},
    "cosine": {"kind": "cosine"},
    "performer": {"kind": "performer"},
    "linear, causal": {"kind": "linear", "causal": True},
    "performer, causal": {"kind": "performer", "causal": True},
}
# Kinds whose encoder reads a text of the largest length.
ENCODERS = ("linear", "cosine", "performer")
LENGTHS = [2**power for power in range(9, 17)]
FEATURES = [2**power for power in range(4, 13)]
# Tensors of all pairs of tokens that softmax attention holds at a time, and GB for it.
PAIRS_HELD, MEMORY = 3, 12.0


@command
def main(arguments=None):
    parser = make_parser(__doc__, {"repeats": (3, 1, "timed runs of a layer")})
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    options = parser.parse_args(arguments)
    lengths = sorted(options.lengths)
    layers = measure_layers(lengths, options.repeats)
    linear = {kind: rows for kind, rows in layers.items() if kind != "softmax"}
    figures = {
        "lengths": lengths,
        "layers": layers,
        "encoders": {x: in_process("encoder", x, lengths[-1]) for x in ENCODERS},
        "convergence": in_process("convergence", FEATURES),
        "slopes": {},
        "crossings": {},
    }
    for kind, rows in linear.items():
        figures["slopes"][kind] = {
            what: slope([row[what] for row in rows], lengths)
            for what in ("seconds", "mb")
        }
        figures["crossings"][kind] = crossing(layers["softmax"], rows, lengths)
    if options.json:
        write_json(options.json, figures)
    report(figures)


def measure_layers(lengths, repeats):
    """Kind -> seconds and MB of each length, or None where it is left out."""
    found = {kind: [] for kind in KINDS}
    for length in lengths:
        for kind, rows in found.items():
            gb = PAIRS_HELD * HEADS * length**2 * 4 / 1e9
            if kind == "softmax" and gb > MEMORY:
                rows.append(None)
                continue
            rows.append(in_process("layer", kind, length, repeats))
            print(f"{kind}, {length}: {rows[-1]}", file=sys.stderr, flush=True)
    return found


def in_process(job, *arguments):
    with Worker(f"{__spec__.name}:Job", {"name": job}) as worker:
        return worker.call("run", *arguments)


class Job:
    def __init__(self, name):
        self.run = globals()[f"measure_{name}"]


def measure_layer(kind, length, repeats):
    import keras

    from roformer_keras.compiled import Compiled
    from roformer_keras.layers import LinearRoPEAttention, RoPEAttention
    from roformer_keras.layers.fused import fused

    make = RoPEAttention if kind == "softmax" else LinearRoPEAttention
    layer = make(HEADS, HIDDEN // HEADS, **KINDS[kind])
    x = np.random.default_rng(0).normal(size=(1, length, HIDDEN)).astype("float32")
    layer(x[:, :16])

    def forward(x):
        with fused():
            return layer(x)

    run = Compiled(forward, layer.weights, any_shape=True)
    keras.ops.convert_to_numpy(run(x[:, :16]))
    before, seconds = peak_bytes(), []
    # The first run allocates memory that the others reuse.
    for _ in range(repeats + 1):
        began = time.perf_counter()
        keras.ops.convert_to_numpy(run(x))
        seconds.append(time.perf_counter() - began)
    return {
        "seconds": statistics.median(seconds[1:]),
        "mb": (peak_bytes() - before) / 1e6,
    }


def measure_encoder(kind, length):
    """Seconds, and the peak of the whole process, libraries included."""
    from roformer_keras import RoFormerBackbone
    from roformer_keras.models.forward import run_model

    model = RoFormerBackbone(make_config(2, HIDDEN, attention_type=kind))
    inputs, began = make_inputs(1, length, 12_000), time.perf_counter()
    outputs = run_model(model, inputs)
    seconds = time.perf_counter() - began
    assert outputs.shape == (1, length, HIDDEN) and np.isfinite(outputs).all()
    return {"length": length, "seconds": seconds, "mb": peak_bytes() / 1e6}


def measure_convergence(counts, draws=9, length=256, dim=64):
    """Relative error of the attended values, by the number of random features.

    The median of the draws, because now and then a feature outweighs all others.
    """
    from roformer_keras.layers.linear_attention import (
        bidirectional_sums,
        orthogonal_directions,
        positive_features,
    )

    normal = np.random.default_rng(0).normal(size=(3, 1, length, 1, dim))
    ones = np.ones((1, length, 1, 1), "float32")

    def independent(count, dim, seed):
        generator = np.random.default_rng(seed)
        return generator.normal(size=(count, dim)).astype("float32")

    def error(deviation, directions):
        scales = np.reshape([deviation, deviation, 1], (3, 1, 1, 1, 1))
        query, key, value = (normal * scales).astype("float32")
        weights = np.exp(np.einsum("bmhd,bnhd->bhmn", query, key) / dim**0.5)
        weights /= weights.sum(-1, keepdims=True)
        exact = np.einsum("bhmn,bnhd->bmhd", weights, value)
        mapped = (
            positive_features(query, directions, is_query=True),
            positive_features(key, directions, is_query=False),
        )
        sums = np.array(bidirectional_sums(*mapped, value))
        sums /= np.array(bidirectional_sums(*mapped, ones))
        return np.linalg.norm(sums - exact) / np.linalg.norm(exact)

    cases = {
        "deviation 1": (1.0, orthogonal_directions),
        "deviation 0.5": (0.5, orthogonal_directions),
        "deviation 0.5, independent": (0.5, independent),
        "deviation 0.25": (0.25, orthogonal_directions),
    }
    found = {name: [] for name in cases}
    for name, (deviation, draw) in cases.items():
        for count in counts:
            drawn = [draw(count, dim, seed) for seed in range(draws)]
            errors = [error(deviation, directions) for directions in drawn]
            found[name].append(float(np.median(errors)))
    return {"features": counts, "errors": found}


def slope(values, lengths):
    """The slope of the line through logarithms: 1 if cost is proportional to length."""
    if len(lengths) < 2:
        return None
    return np.polyfit(np.log(lengths), np.log(np.maximum(values, 1e-9)), 1)[0]


def crossing(softmax, others, lengths):
    """The length from which it is faster than softmax attention, or None."""
    pairs = zip(softmax, others, strict=True)
    gains = [np.log(a["seconds"] / b["seconds"]) for a, b in pairs if a is not None]
    if not gains or gains[-1] <= 0:
        return None
    # It stays faster. Logarithms are interpolated between the lengths.
    lasting = np.minimum.accumulate(gains[::-1])[::-1]
    return round(np.exp(np.interp(0, lasting, np.log(lengths[: len(gains)]))))


def report(figures):
    columns = [f"{length:,}" for length in figures["lengths"]]
    for what, title in ("seconds", "one layer, s"), ("mb", "one layer, peak MB"):
        rows = [
            [kind, *(show(row[what]) if row else "" for row in rows)]
            for kind, rows in figures["layers"].items()
        ]
        print_table(title, columns, rows)
    rows = [
        [kind, *map(show, filter(None, slopes.values())), figures["crossings"][kind]]
        for kind, slopes in figures["slopes"].items()
    ]
    columns = ("of time", "of memory", "tokens from which softmax is slower")
    print_table("slopes", columns, rows)
    rows = [
        [kind, *map(show, row.values())] for kind, row in figures["encoders"].items()
    ]
    print_table("encoder of two layers", ("tokens", "s", "MB of the process"), rows)
    found = figures["convergence"]
    rows = [[name, *map(show, errors)] for name, errors in found["errors"].items()]
    print_table("error of random features", found["features"], rows)


if __name__ == "__main__":
    sys.exit(main())
