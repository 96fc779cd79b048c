"""Loading, converting and encoding, compared with others and with matrix products.

    python -m tools.benchmarks.encode --json figures.json --picture speed.png
    python -m tools.benchmarks.encode --parts encode latency --rounds 9
    python -m tools.benchmarks.encode --layers 2 --hidden 128 --count 32 \\
        --growth-tokens 512

The real bert4keras 0.11.5 writes a checkpoint of random weights, of the base model's
size by default. Sides that are not installed are left out. Six parts:

load        A model from the checkpoint, in fresh processes: seconds without imports,
            and the peak of memory. roformer_keras reads a compressed zip, the folder in
            it, and a preset. bert4keras reads the folder; its users unpack the zip.
convert     The zip to a preset folder by `roformer-keras convert`, in fresh processes.
encode      Ids of fixed shapes, half of the rows padded by a quarter: tokens a second,
            with padding. roformer_keras by the compiled function that texts use, and by
            Keras's `predict`; its exports on their runtimes; Hugging Face transformers
            and Keras-Hub with models of the same size.
mix         Texts, half reviews and half poems, to vectors: texts a second.
            roformer_keras by `embed`, in batches of similar length; bert4keras by
            `predict` on 32 texts at a time in their order.
latency     A sentence of 16 tokens to its vector, call after call: milliseconds.
            Exports and transformers get its ids.
growth      Tokens a second of roformer_keras by the length of rows, in batches of equal
            size, and by the rows of a batch.

The limit is the time of the matrix products alone, in the same type and on the same
threads; int8 is compared with the products in bfloat16. Attention adds products that
grow with the length.
"""

import re
import statistics
import sys
import zipfile
from pathlib import Path

import numpy as np

from tools.benchmarks.harness import (
    Benchmark,
    Run,
    exit_with_error,
    make_parser,
    medians,
    print_table,
    ratios,
    show_ratios,
    take_turns,
)
from tools.benchmarks.sides import (
    EXPORTS,
    POSITIONS,
    SIDES,
    convert_to_preset,
    missing_modules,
)
from tools.benchmarks.texts import FILES, draw_texts
from tools.reference.full_size_checkpoint import write_checkpoint, write_zip

FLOAT32, BFLOAT16 = "roformer_keras float32", "roformer_keras bfloat16"
THEIRS = "bert4keras float32"
LIMIT, BFLOAT16_LIMIT = "matrix products float32", "matrix products bfloat16"
HUGGING_FACE = "transformers BERT bfloat16"
IMPORTED = "TensorFlow imported, no more"
ZIP, THEIR_FOLDER = "roformer_keras, zip", "bert4keras, folder"
# Largest difference of sides with the same weights, relative to the largest number:
# bert4keras adds another epsilon in its norms.
TOLERANCE = 0.01
# The shortest rows of growth by length, and the length of growth by rows.
MIN_LENGTH, ROWS_LENGTH = 64, 128


def export_runs(method):
    return {
        "OpenVINO int8": Run("openvino", method, ("int8",)),
        "ONNX Runtime int8": Run("onnx", method, ("int8",)),
        "OpenVINO bfloat16": Run("openvino", method, ("bfloat16",)),
        "ONNX Runtime float32": Run("onnx", method, ("float32",)),
        "OpenVINO float32": Run("openvino", method, ("float32",)),
        "SavedModel float32": Run("saved_model", method, ("float32",)),
    }


def transformers_runs(method, names):
    return {
        f"transformers {name}": Run("transformers", method, tuple(name.split()))
        for name in names
    }


OURS = {FLOAT32: Run("float32", "encode"), BFLOAT16: Run("bfloat16", "encode")}
# Part -> name of a run -> run, in the order of turns. Shapes come before the arguments.
RUNS = {
    "load": {
        IMPORTED: Run("tensorflow", "load"),
        ZIP: Run("float32", "load", ("base.zip",)),
        "roformer_keras, folder": Run("float32", "load", (".",)),
        "roformer_keras, preset": Run("float32", "load", ("preset",)),
        "bert4keras, zip unpacked first": Run("bert4keras", "load", ("base.zip",)),
        THEIR_FOLDER: Run("bert4keras", "load", (".",)),
    },
    "convert": {"roformer-keras convert": Run("command", "convert")},
    "encode": {
        LIMIT: Run("limit", "encode", ("float32",)),
        FLOAT32: OURS[FLOAT32],
        "roformer_keras float32, Keras's predict": Run("float32", "predict"),
        THEIRS: Run("bert4keras", "predict"),
        BFLOAT16_LIMIT: Run("limit", "encode", ("bfloat16",)),
        BFLOAT16: OURS[BFLOAT16],
        **transformers_runs("encode", ("BERT bfloat16", "RoFormer bfloat16")),
        **export_runs("encode"),
        **transformers_runs("encode", ("BERT float32", "RoFormer float32")),
        "keras_hub BERT bfloat16": Run("keras_hub", "predict", ("bfloat16",)),
        "keras_hub BERT float32": Run("keras_hub", "predict", ("float32",)),
    },
    "mix": {
        FLOAT32: Run("float32", "mix"),
        BFLOAT16: Run("bfloat16", "mix"),
        THEIRS: Run("bert4keras", "mix"),
    },
    "latency": {
        LIMIT: Run("limit", "latency", ("float32",)),
        FLOAT32: Run("float32", "latency"),
        BFLOAT16_LIMIT: Run("limit", "latency", ("bfloat16",)),
        BFLOAT16: Run("bfloat16", "latency"),
        THEIRS: Run("bert4keras", "latency"),
        "transformers BERT float32": Run(
            "transformers", "latency", ("Bert", "float32")
        ),
        HUGGING_FACE: Run("transformers", "latency", ("Bert", "bfloat16")),
        **export_runs("latency"),
    },
    "growth": OURS,
}
# Other ratios that are printed: part, run, the run that it is compared with.
RATIOS = (
    ("encode", BFLOAT16, HUGGING_FACE),
    ("encode", "ONNX Runtime int8", BFLOAT16),
    ("encode", "OpenVINO int8", BFLOAT16),
)
SIZES = {
    "layers": (12, "layers of the model"),
    "hidden": (768, "its width, a multiple of 64"),
    "vocabulary": (12000, "its tokens, at least 200"),
    "count": (320, "texts of the mix"),
    "calls": (50, "calls of a turn of latency"),
    "growth-tokens": (4096, "tokens of a batch of growth by length, at least 64"),
    "growth-rows": (128, "largest batch of growth by rows"),
    "rounds": (5, "turns of each run"),
}


def main(arguments=None):
    parser = make_parser(__doc__, SIZES, RUNS)
    parser.add_argument(
        "--shapes", nargs="+", default=["32x128", "4x512"], help="rows and tokens"
    )
    parser.add_argument(
        "--texts", nargs="+", type=Path, default=FILES, help=".jsonl, .tsv, or lines"
    )
    parser.add_argument("--picture", type=Path, help="also draw the figures, as PNG")
    options = parser.parse_args(arguments)
    if options.hidden % 64:
        parser.error(f"--hidden must be a multiple of 64, got {options.hidden}")
    if options.vocabulary < 200:
        parser.error(f"--vocabulary must be at least 200, got {options.vocabulary}")
    if options.growth_tokens < MIN_LENGTH:
        parser.error(f"--growth-tokens must be at least {MIN_LENGTH}")
    for shape in options.shapes:
        found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", shape)
        if not found or int(found[2]) > POSITIONS:
            parser.error(
                "--shapes must be rows and tokens such as 32x128, of at most "
                f"{POSITIONS} tokens, got {shape}"
            )
    absent = [str(path) for path in options.texts if not path.is_file()]
    if "mix" in options.parts and absent:
        parser.error(f"--texts must be files, and these are not: {absent}")
    if options.picture and not {"encode", "growth"} & set(options.parts):
        parser.error("--picture shows encode and growth: add one to --parts")
    with Benchmark(options, SIDES) as benchmark:
        write_sources(benchmark)
        for part in (part for part in RUNS if part in options.parts):
            figures = measure(benchmark, part)
            report(benchmark.options, part, figures)
            benchmark.save(part, figures)
            benchmark.stop()
        figures = benchmark.figures
    if options.picture:
        draw(figures, options)
    return 0


def runs_of(part):
    """The runs of a part whose sides are installed."""
    return {n: run for n, run in RUNS[part].items() if not missing_modules(run.side)}


def write_sources(benchmark):
    """The checkpoint of random weights, and what the parts need of it."""
    options, folder = benchmark.options, benchmark.folder
    sizes = options.layers, options.hidden, options.vocabulary
    write_checkpoint(folder, "roformer", *sizes)
    if "mix" in options.parts:
        texts = draw_texts(options.texts, options.count)
        (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    if {"load", "convert"} & set(options.parts):
        write_zip(folder, folder / "base.zip", zipfile.ZIP_DEFLATED)
    if "load" in options.parts:
        convert_to_preset(folder / "base.zip", folder / "preset")
    runs = [run for part in options.parts for run in runs_of(part).values()]
    # An export in float32 serves for bfloat16 too.
    exports = {
        (run.side, "int8" if run.arguments == ("int8",) else "float32"): None
        for run in runs
        if run.side in EXPORTS
    }
    for format, dtype in exports:
        benchmark["float32"].measure("export", format, dtype)
    benchmark.stop()


def growth_shapes(options):
    """Shapes of growth by length, and by rows."""
    tokens, by_length, by_rows = options.growth_tokens, [], []
    length, rows = MIN_LENGTH, 1
    while length <= tokens:
        by_length.append(f"{tokens // length}x{length}")
        length *= 2
    while rows <= options.growth_rows:
        by_rows.append(f"{rows}x{ROWS_LENGTH}")
        rows *= 2
    return by_length, by_rows


def measure(benchmark, part):
    """Name of a run -> its figures; by shape, for parts that have shapes."""
    options, runs = benchmark.options, runs_of(part)
    if part in ("encode", "growth"):
        by_length, by_rows = growth_shapes(options)
        shapes = options.shapes if part == "encode" else by_length + by_rows
        figures = {}
        for shape in dict.fromkeys(shapes):
            shaped = {
                name: run._replace(arguments=(shape, *run.arguments))
                for name, run in runs.items()
            }
            turns = take_turns(benchmark, shaped, options.rounds, f"{part} {shape}")
            check_samples(turns)
            rows, length = map(int, shape.split("x"))
            figures[shape] = medians(turns, rows * length)
        return figures
    fresh = part in ("load", "convert")
    turns = take_turns(benchmark, runs, options.rounds, part, fresh)
    check_samples(turns)
    figures = medians(turns, options.count if part == "mix" else 1)
    if part == "mix":
        counts = {
            name: benchmark[run.side].call("count_tokens") for name, run in runs.items()
        }
        if len({found["ids"] for found in counts.values()}) > 1:
            raise SystemExit(f"the sides must have the same ids, got {counts}")
    return figures


def check_samples(turns):
    """Ends the benchmark if sides with the same weights in float32 differ."""
    samples = {
        name: own[0]["sample"]
        for name, own in turns.items()
        if "float32" in name and "sample" in own[0]
    }
    if not samples:
        return
    first, *others = samples
    largest = np.abs(samples[first]).max()
    for other in others:
        difference = np.abs(np.subtract(samples[first], samples[other])).max()
        if not difference <= TOLERANCE * largest:
            raise SystemExit(
                f"{first} and {other} must compute the same, and differ by "
                f"{difference:.2g} in numbers of up to {largest:.2g}"
            )


# === What is printed ===


def limit_of(name):
    """The matrix products that a run is compared with."""
    return LIMIT if "float32" in name else BFLOAT16_LIMIT


def share_of_limit(figures, name):
    """Share of the speed of the products, of each turn."""
    return ratios(figures, name, limit_of(name))


def report(options, part, figures):
    if part == "growth":
        for by, shapes in zip(("length", "rows"), growth_shapes(options), strict=True):
            rows = [
                (shape, *(f"{run['rate']:,.0f}" for run in figures[shape].values()))
                for shape in shapes
            ]
            print_table(f"by {by}, tokens/s", list(OURS), rows)
        return
    tables = figures if part == "encode" else {part: figures}
    for title, found in tables.items():
        print_runs(part, title, found)
        for where, run, other in RATIOS:
            if where == part and run in found and other in found:
                print(f"{run}: {show_ratios(ratios(found, run, other))} of {other}")
    if part == "load":
        over = figures[ZIP]["peak_mb"] - figures[IMPORTED]["peak_mb"]
        weights = figures[ZIP]["weights_mb"]
        print(
            f"the weights have {weights:,.0f} MB; the zip takes {over / weights:.2f}x"
        )


def print_runs(part, title, figures):
    """A table of rates, seconds or milliseconds, with ratios."""
    unit, value = {
        "load": ("s", lambda run: f"{1 / run['rate']:.2f}"),
        "convert": ("s", lambda run: f"{1 / run['rate']:.2f}"),
        "encode": ("tokens/s", lambda run: f"{run['rate']:,.0f}"),
        "mix": ("texts/s", lambda run: f"{run['rate']:.4g}"),
        "latency": ("ms", lambda run: f"{1000 / run['rate']:.1f}"),
    }[part]
    theirs = THEIR_FOLDER if part == "load" else THEIRS
    rows = []
    for name, run in figures.items():
        shares = share_of_limit(figures, name)
        rows.append(
            (
                name,
                value(run),
                f"{1000 * run['p95']:.1f}" if "p95" in run else "",
                f"{run['peak_mb']:,.0f}",
                f"{statistics.median(shares):.0%}" if shares else "",
                show_ratios(ratios(figures, name, theirs)),
            )
        )
    columns = (unit, "95th percentile", "peak MB", "of its products", f"times {theirs}")
    print_table(title, columns, rows)


# === Picture ===


def draw(figures, options):
    """Draws the shares of the products of each run, and how the cost grows."""
    from roformer_keras.training.plots import new_figure, save_figure

    wide, narrow = int("encode" in figures), 2 * ("growth" in figures)
    figure = new_figure(7 * wide + 3.8 * narrow, 4.6)
    axes = figure.subplots(
        1, wide + narrow, squeeze=False, width_ratios=[1.8] * wide + [1] * narrow
    )[0]
    if wide:
        draw_shares(axes[0], figures["encode"])
    if narrow:
        by_length, by_rows = growth_shapes(options)
        at_length, at_rows = axes[wide:]
        at_rows.sharey(at_length)
        draw_growth(at_length, figures["growth"], by_length, 1)
        draw_growth(at_rows, figures["growth"], by_rows, 0)
        title = f"batches of {options.growth_tokens:,} tokens"
        at_length.set(title=title, xlabel="tokens of a row", ylabel="tokens a second")
        at_rows.set(title=f"rows of {ROWS_LENGTH} tokens", xlabel="rows of a batch")
        at_length.legend(fontsize=8)
    save_figure(figure, options.picture)


def draw_shares(axes, shapes):
    """A bar for each run and shape: its share of the products, from least to most."""
    first = next(iter(shapes.values()))
    names = [name for name in first if name not in (LIMIT, BFLOAT16_LIMIT)]
    height = 0.84 / len(shapes)
    for at, (shape, figures) in enumerate(shapes.items()):
        shares = 100 * np.array([share_of_limit(figures, name) for name in names])
        middles = np.median(shares, axis=1)
        shift = height * (at - (len(shapes) - 1) / 2)
        bars = axes.barh(
            np.arange(len(names)) + shift,
            middles,
            height,
            xerr=[middles - shares.min(axis=1), shares.max(axis=1) - middles],
            label=shape,
            # The next plots use the first two colours.
            color=f"C{2 + at % 8}",
            error_kw={"alpha": 0.4},
        )
        labels = [f"{figures[name]['rate']:,.0f}" for name in names]
        axes.bar_label(bars, labels, padding=3, fontsize=7)
    axes.axvline(100, color="black", linewidth=1)
    axes.margins(x=0.1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_title("encode, tokens a second", loc="left")
    axes.set_xlabel("% of the matrix products alone, in the same type")
    # Above the axes, as bars may be anywhere in them.
    corner = {"loc": "lower right", "bbox_to_anchor": (1, 1)}
    axes.legend(**corner, ncols=len(shapes), frameon=False)


def draw_growth(axes, figures, shapes, axis):
    """A line for each run: tokens a second by rows (axis 0) or length (axis 1)."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    sizes = [int(shape.split("x")[axis]) for shape in shapes]
    for name in OURS:
        rates = [figures[shape][name]["rate"] for shape in shapes]
        axes.plot(sizes, rates, marker="o", markersize=4, linewidth=1.2, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, sizes)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)


if __name__ == "__main__":
    sys.exit(exit_with_error(main))
