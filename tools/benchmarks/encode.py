"""Loading, converting and encoding, compared with others and with matrix products.

    python -m tools.benchmarks.encode --json figures.json

bert4keras writes a checkpoint of random weights. Sides that are not installed are left
out. The parts:

load        A model from the checkpoint, in fresh processes that have imported what
            it needs: seconds, and the peak of memory. bert4keras reads the folder,
            not the zip.
encode      Ids of fixed shapes, half of the rows padded by a quarter: tokens a second,
            with padding.
mix         Texts, half reviews and half poems, to vectors: texts a second. bert4keras
            by `predict` on 32 texts at a time in their order.
latency     A sentence of 16 tokens to its vector, call after call: milliseconds.
texts       `encode` by each engine of this package and two peers.
text        `latency`, likewise.
predict     The ids of `encode` by what users of Keras call: tokens a second.
calls       The same for 16 tokens, call after call, also by `model(ids)`: milliseconds.

Texts, and `encode`, are computed by the default engine, and by others where the name of
a run says so; ids of `predict` and `calls` by Keras.

The limit is the time of the matrix products alone, in the same type and on the same
threads; int8 is compared with the products in bfloat16.
"""

import math
import sys
import zipfile
from pathlib import Path

from tools.benchmarks.harness import (
    LIMIT,
    THEIRS,
    Benchmark,
    Run,
    compare,
    make_parser,
    ratios,
    show_ratios,
)
from tools.benchmarks.sides import SHORT, SIDES, installed
from tools.benchmarks.texts import FILES, draw_texts
from tools.commands import command
from tools.reference.full_size_checkpoint import write_zip

FLOAT32, BFLOAT16 = "roformer_keras float32", "roformer_keras bfloat16"
INT8 = "roformer_keras openvino-int8"
IMPORTED = "TensorFlow imported, no more"
ZIP, THEIR_FOLDER = "roformer_keras, zip", "bert4keras, folder"
# The warm-up of loading.
IMPORTS = ("import_all",)


def limits(method):
    names = ("float32", "bfloat16")
    return {f"{LIMIT} {name}": Run("limit", method, (name,)) for name in names}


def exports(method):
    return {
        "OpenVINO int8": Run("openvino", method, ("int8",)),
        "ONNX Runtime int8": Run("onnx", method, ("int8",)),
        "OpenVINO bfloat16": Run("openvino", method, ("bfloat16",)),
        "ONNX Runtime float32": Run("onnx", method, ("float32",)),
        "OpenVINO float32": Run("openvino", method, ("float32",)),
        "SavedModel float32": Run("saved_model", method, ("float32",)),
    }


def ours(method):
    """The default engine, and others."""
    return {
        FLOAT32: Run("float32", method),
        BFLOAT16: Run("bfloat16", method),
        INT8: Run("float32", method, ("openvino-int8",)),
        f"{FLOAT32}, engine keras": Run("float32", method, ("keras",)),
        f"{BFLOAT16}, engine keras": Run("bfloat16", method, ("keras",)),
    }


def transformers(method, *models):
    return {
        f"transformers {model} {dtype}": Run("transformers", method, (model, dtype))
        for dtype in ("bfloat16", "float32")
        for model in models
    }


def keras_calls(*ways):
    names = ("float32", "bfloat16")
    return {f"{way} {x}": Run(x, "call_ids", (way,)) for x in names for way in ways} | {
        THEIRS: Run("bert4keras", "call_ids")
    }


# Part -> name of a run -> run, in the order of turns. Shapes come before the arguments.
RUNS = {
    "load": {
        IMPORTED: Run("tensorflow", "load"),
        ZIP: Run("float32", "load", ("base.zip",), IMPORTS),
        "roformer_keras, folder": Run("float32", "load", (".",), IMPORTS),
        "bert4keras, zip unpacked first": Run(
            "bert4keras", "load", ("base.zip",), IMPORTS
        ),
        THEIR_FOLDER: Run("bert4keras", "load", (".",), IMPORTS),
    },
    "encode": {
        **limits("encode"),
        THEIRS: Run("bert4keras", "encode"),
        **ours("encode"),
        **transformers("encode", "Bert", "RoFormer"),
        **exports("encode"),
        "keras_hub BERT bfloat16": Run("keras_hub", "encode", ("bfloat16",)),
        "keras_hub BERT float32": Run("keras_hub", "encode", ("float32",)),
    },
    "mix": {
        **ours("mix"),
        THEIRS: Run("bert4keras", "mix"),
    },
    "latency": {
        **limits("latency"),
        **ours("latency"),
        THEIRS: Run("bert4keras", "latency"),
        **transformers("latency", "Bert"),
        **exports("latency"),
    },
    "texts": {
        **limits("encode"),
        THEIRS: Run("bert4keras", "encode"),
        **ours("encode"),
        **transformers("encode", "Bert"),
    },
    "text": {
        **limits("latency"),
        THEIRS: Run("bert4keras", "latency"),
        **ours("latency"),
        **transformers("latency", "Bert"),
    },
    "predict": keras_calls("predict_on_batch", "predict"),
    "calls": {
        **keras_calls("predict_on_batch", "predict", "call"),
        **transformers("call_ids", "Bert"),
    },
}
UNITS = {"load": "s", "mix": "texts/s"} | dict.fromkeys(
    ("latency", "text", "calls"), "ms"
)
# Other ratios of `encode` that are printed: a run, and what it is compared with.
RATIOS = (
    (BFLOAT16, "transformers Bert bfloat16"),
    ("ONNX Runtime int8", BFLOAT16),
    (INT8, BFLOAT16),
)
SIZES = {
    "layers": (12, 1, "layers of the model"),
    "hidden": (768, 128, "its width, a multiple of 64"),
    "vocabulary": (12000, 200, "its tokens, at least 200"),
    "count": (320, 9, "texts of the mix"),
    "calls": (50, 2, "calls of a turn of latency"),
    "rounds": (5, 1, "turns of each run"),
}


@command
def main(arguments=None):
    parser = make_parser(__doc__, SIZES, RUNS)
    parser.add_argument(
        "--shapes", nargs="+", default=["32x128", "4x512"], help="rows and tokens"
    )
    parser.add_argument(
        "--texts", nargs="+", type=Path, default=FILES, help=".jsonl, .tsv, or lines"
    )
    options = parser.parse_args(arguments)
    with Benchmark(options, "tools.benchmarks.sides", SIDES) as benchmark:
        write_sources(benchmark)
        for part in (part for part in RUNS if part in options.parts):
            benchmark.save(part, measure(benchmark, part))
            benchmark.stop()


def write_sources(benchmark):
    """The checkpoint of random weights, and what the parts need of it."""
    options, folder = benchmark.options, benchmark.folder
    benchmark.write_checkpoint()
    if "mix" in options.parts:
        texts = draw_texts(options.texts, options.count)
        (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    if "load" in options.parts:
        write_zip(folder, folder / "base.zip", zipfile.ZIP_DEFLATED)
    # An export in float32 serves for bfloat16 too.
    stored = {
        (run.side, "int8" if run.arguments == ("int8",) else "float32"): None
        for part in options.parts
        for name, run in installed(RUNS[part]).items()
        if name in exports("encode")
    }
    for format, dtype in stored:
        benchmark["float32"].measure("export", format, dtype)
    benchmark.stop()


def measure(benchmark, part):
    """Name of a run -> its figures; by shape, for parts that have shapes."""
    options, runs = benchmark.options, installed(RUNS[part])
    unit, figures = UNITS.get(part, "tokens/s"), {}
    shapes = options.shapes if part in ("encode", "texts", "predict") else []
    for shape in [SHORT] if part == "calls" else shapes:
        shaped = {
            name: run._replace(arguments=(shape, *run.arguments))
            for name, run in runs.items()
        }
        tokens = math.prod(map(int, shape.split("x"))) if unit == "tokens/s" else 1
        figures[shape] = compare(benchmark, shaped, f"{part} {shape}", unit, tokens)
        for run, other in RATIOS:
            if run in shaped and other in shaped:
                ratio = show_ratios(ratios(figures[shape], run, other))
                print(f"{run}: {ratio} of {other}")
    if figures:
        return figures
    amount = options.count if part == "mix" else 1
    is_load = part == "load"
    theirs = THEIR_FOLDER if is_load else THEIRS
    figures = compare(benchmark, runs, part, unit, amount, theirs, fresh=is_load)
    if part == "mix":
        counts = [benchmark[run.side].call("count_tokens") for run in runs.values()]
        if len({count["ids"] for count in counts}) > 1:
            raise SystemExit(f"the sides must have the same ids, got {counts}")
    if is_load:
        over = figures[ZIP]["peak_mb"] - figures[IMPORTED]["peak_mb"]
        share = over / figures[ZIP]["weights_mb"]
        print(f"the zip takes {share:.2f}x the memory of the weights")
    return figures


if __name__ == "__main__":
    sys.exit(main())
