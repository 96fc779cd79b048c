"""Loading, converting and encoding, beside others and the matrix products alone.

    python -m tools.benchmarks.benchmark --json figures.json --picture speed.png
    python -m tools.benchmarks.benchmark --parts encode latency --rounds 9
    python -m tools.benchmarks.benchmark --layers 2 --hidden 128 --count 32 \\
        --growth-tokens 512

The real bert4keras 0.11.5 writes a checkpoint of random weights first, by default of
the base model's size. All that is compared works in turn, each side in a process of its
own, when it is asked. What stays in its process does the work once before it counts.
Figures are medians of the turns; a ratio is the median of the ratios of neighbouring
turns, with the least and the most. Six parts:

load        A model from the checkpoint, in fresh processes: seconds without imports,
            and the peak of the process's memory. Ours from a compressed zip, from the
            folder in it, and from a preset folder. bert4keras reads that folder only;
            its users unpack the zip first.
convert     The zip to a preset folder by `roformer-keras convert`, in fresh processes.
encode      Ids of fixed shapes that lie in memory, half of the rows padded by a
            quarter: tokens a second, padding included. roformer_keras by the compiled
            function that it keeps for texts (`inference.forward.run_model`), and by
            Keras's `predict`; what `export_model` writes, on its runtimes; an int8
            run is held against the products in bfloat16. Hugging Face transformers and
            Keras-Hub have models of the same size and random weights. What is not
            installed is left out.
mix         Texts as they come, half reviews and half poems, to vectors: texts a second.
            roformer_keras by `embed`, in batches of similar length; bert4keras by
            `predict` on 32 texts at a time in their order, padded to the longest.
latency     A sentence of 16 tokens to its vector, call after call: the median and the
            95th percentile of the milliseconds of a turn. Exported models and those of
            transformers get ids instead of the sentence.
growth      How tokens a second change with the length, in batches of as many tokens,
            and with the rows of a batch, at 128 tokens each; of ours alone.

The limit is the time of the matrix products alone: of a vector for each token with the
matrices of all layers, in the same type, on the same threads. Attention has products of
its own, which grow with the length and are no part of it.

Other works have scripts of their own: benchmark_finetuning.py, benchmark_generation.py,
benchmark_pretraining.py and benchmark_tokenizer.py.
"""

import argparse
import contextlib
import gzip
import json
import random
import re
import statistics
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from tools.benchmarks.benchmark_sides import (
    EXPORTS,
    NEEDS,
    POSITIONS,
    SIDES,
    SOURCES,
    convert_to_preset,
    exported,
    missing,
    texts_of,
    thread_count,
)
from tools.benchmarks.reporting import (
    pairs,
    print_bars,
    print_table,
    shown,
    write_figures,
)
from tools.benchmarks.workers import Worker, serve
from tools.reference.full_size_checkpoint import (
    MEMBERS,
    ROOT,
    check_bert4keras,
    write_checkpoint,
)

DATA = ROOT.parent / "shared" / "data"
TEXTS = [
    DATA / "sentiment" / "sentiment.train.tsv.gz",
    DATA / "poetry" / "tang_poems.jsonl.gz",
]
# Characters of the texts of the mix.
SHORTEST, LONGEST = 5, 500
# Of growth: the shortest rows, and the rows whose number grows.
FROM_LENGTH, AT_LENGTH = 64, 128
# How far numbers of one model may be apart, as a share of the largest: bert4keras adds
# another epsilon in its norms.
TOLERANCE = 0.01

FLOAT32, BFLOAT16 = "roformer_keras float32", "roformer_keras bfloat16"
THEIRS = "bert4keras float32"
IMPORTED = "TensorFlow imported, no more"
ZIP, THEIR_FOLDER = "roformer_keras, zip", "bert4keras, folder"
HUGGING_FACE = "transformers BERT bfloat16"
INTEGERS = "OpenVINO int8"


def limit_of(dtype):
    return f"matrix products {dtype}"


class Run(NamedTuple):
    """What a side is asked to do; the words of an encoding come after the shape."""

    side: str
    job: str
    words: tuple = ()
    dtype: str = "float32"


def run_of(side, job, *words, dtype=None):
    return Run(side, job, words, dtype or (words[-1] if words else "float32"))


def exported_runs(job):
    return {
        INTEGERS: run_of("openvino", job, "int8"),
        "ONNX Runtime int8": run_of("onnx", job, "int8"),
        "OpenVINO bfloat16": run_of("openvino", job, "bfloat16"),
        "ONNX Runtime float32": run_of("onnx", job, "float32"),
        "OpenVINO float32": run_of("openvino", job, "float32"),
        "SavedModel float32": run_of("saved_model", job, "float32"),
    }


# Part -> name of a run; in the order of turns.
RUNS = {
    "load": {
        IMPORTED: run_of("tensorflow", "load"),
        ZIP: run_of("float32", "load", "zip"),
        "roformer_keras, folder": run_of("float32", "load", "folder"),
        "roformer_keras, preset": run_of("float32", "load", "preset"),
        "bert4keras, zip unpacked first": run_of("bert4keras", "load", "zip"),
        THEIR_FOLDER: run_of("bert4keras", "load", "folder"),
    },
    "convert": {"roformer-keras convert": run_of("command", "convert")},
    "encode": {
        limit_of("float32"): run_of("limit", "encode", "float32"),
        FLOAT32: run_of("float32", "encode"),
        "roformer_keras float32, Keras's predict": run_of("float32", "predict"),
        THEIRS: run_of("bert4keras", "predict"),
        limit_of("bfloat16"): run_of("limit", "encode", "bfloat16"),
        BFLOAT16: run_of("bfloat16", "encode", dtype="bfloat16"),
        HUGGING_FACE: run_of("transformers", "encode", "Bert", "bfloat16"),
        **exported_runs("encode"),
        "transformers RoFormer bfloat16": run_of(
            "transformers", "encode", "RoFormer", "bfloat16"
        ),
        "transformers BERT float32": run_of(
            "transformers", "encode", "Bert", "float32"
        ),
        "transformers RoFormer float32": run_of(
            "transformers", "encode", "RoFormer", "float32"
        ),
        "keras_hub BERT bfloat16": run_of("keras_hub", "predict", "bfloat16"),
        "keras_hub BERT float32": run_of("keras_hub", "predict", "float32"),
    },
    "mix": {
        FLOAT32: run_of("float32", "mix"),
        BFLOAT16: run_of("bfloat16", "mix", dtype="bfloat16"),
        THEIRS: run_of("bert4keras", "mix"),
    },
    "latency": {
        limit_of("float32"): run_of("limit", "latency", "float32"),
        FLOAT32: run_of("float32", "latency"),
        limit_of("bfloat16"): run_of("limit", "latency", "bfloat16"),
        BFLOAT16: run_of("bfloat16", "latency", dtype="bfloat16"),
        THEIRS: run_of("bert4keras", "latency"),
        "transformers BERT float32": run_of(
            "transformers", "latency", "Bert", "float32"
        ),
        HUGGING_FACE: run_of("transformers", "latency", "Bert", "bfloat16"),
        **exported_runs("latency"),
    },
    "growth": {
        FLOAT32: run_of("float32", "encode"),
        BFLOAT16: run_of("bfloat16", "encode", dtype="bfloat16"),
    },
}
# Parts of which every turn is a process of its own.
FRESH = ("load", "convert")


class Bar(NamedTuple):
    """What must be reached; `encode` means the first of its shapes.

    Attributes:
        bound: so much at `least`, or else at most.
        find: of the runs of the part; those in `needs` are there.
    """

    part: str
    run: str
    what: str
    least: bool
    bound: float
    find: Callable[[Mapping], float]
    needs: tuple = ()


def as_fast_as(part, run, of, share):
    return Bar(
        part,
        run,
        f"of the speed of {of}",
        True,
        share,
        lambda runs: statistics.median(
            pairs(runs[run]["seconds"], runs[of]["seconds"])
        ),
        (of,),
    )


BARS = (
    Bar(
        "load",
        ZIP,
        f"of the time of {THEIR_FOLDER}",
        False,
        0.6,
        lambda runs: statistics.median(
            pairs(runs[THEIR_FOLDER]["seconds"], runs[ZIP]["seconds"])
        ),
    ),
    Bar(
        "load",
        ZIP,
        "of the size of the weights above the peak of TensorFlow's import",
        False,
        1.2,
        lambda runs: (
            (runs[ZIP]["peak_mb"] - runs[IMPORTED]["peak_mb"]) / runs[ZIP]["weights_mb"]
        ),
    ),
    as_fast_as("encode", FLOAT32, limit_of("float32"), 0.92),
    as_fast_as("encode", FLOAT32, THEIRS, 1.25),
    as_fast_as("encode", BFLOAT16, limit_of("bfloat16"), 0.78),
    as_fast_as("encode", BFLOAT16, THEIRS, 2.0),
    as_fast_as("encode", BFLOAT16, HUGGING_FACE, 1.15),
    as_fast_as("encode", INTEGERS, BFLOAT16, 1.3),
    as_fast_as("mix", FLOAT32, THEIRS, 3.0),
    as_fast_as("mix", BFLOAT16, THEIRS, 5.0),
    Bar(
        "latency",
        FLOAT32,
        "ms",
        False,
        20,
        lambda runs: 1000 * statistics.median(runs[FLOAT32]["seconds"]),
    ),
)

SIZES = {
    "layers": (12, "layers of the model"),
    "hidden": (768, "its width, a multiple of 64"),
    "vocabulary": (12000, "its tokens"),
    "count": (320, "texts of the mix"),
    "calls": (50, "calls a turn of latency"),
    "growth-tokens": (4096, "tokens of a batch while the length grows, up to that"),
    "growth-rows": (128, "rows up to which a batch grows"),
    "rounds": (5, "turns of each run"),
}
# What a side must know.
WORKER_SIZES = ("layers", "hidden", "vocabulary", "calls")


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, (default, what) in SIZES.items():
        help = f"{what}; {default}"
        parser.add_argument(f"--{name}", type=int, default=default, help=help)
    parser.add_argument("--parts", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument(
        "--shapes",
        nargs="+",
        default=["32x128", "4x512"],
        help="rows and tokens of encode; the bars are for the first",
    )
    parser.add_argument(
        "--texts",
        nargs="+",
        type=Path,
        default=TEXTS,
        help="files of which the mix is drawn in equal shares: .jsonl, .tsv or lines",
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--picture", type=Path, help="also draw them, as PNG")
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        serve(SIDES[options.worker](options))
        return
    check(options)
    figures = {
        "options": {
            **{name: getattr(options, name) for name in option_names()},
            "shapes": options.shapes,
        },
        "threads": thread_count(),
        "left_out": left_out(options),
    }
    for name, modules in figures["left_out"].items():
        print(f"without {name}: {' and '.join(modules)} not installed")
    with tempfile.TemporaryDirectory() as scratch:
        options.folder = Path(scratch)
        if "mix" in options.parts:
            draw_texts(options)
        write_sources(options)
        # In the order of `RUNS`, and not of the flag.
        for part in filter(options.parts.__contains__, RUNS):
            with contextlib.ExitStack() as stack:
                figures[part] = measure(options, part, stack)
            REPORTS[part](options, figures[part])
            # What has been measured is kept if another part fails.
            figures["bars"] = bars_of(options, figures)
            write_figures(options.json, figures)
    print()
    print_bars(figures["bars"])
    if options.picture:
        from tools.benchmarks.benchmark_pictures import draw

        draw(figures, growth_shapes(options), options.picture)


def option_names():
    return [name.replace("-", "_") for name in SIZES]


def check(options):
    """Refuses what would fail only after minutes, or in another process."""
    for name in SIZES:
        value = getattr(options, name.replace("-", "_"))
        if value < 1:
            raise SystemExit(f"--{name} must be at least 1, got {value}")
    if options.hidden % 64:
        raise SystemExit(f"--hidden must be a multiple of 64, got {options.hidden}")
    if options.vocabulary < 200:
        raise SystemExit(
            f"--vocabulary must be at least 200, as there must be characters behind "
            f"the special tokens, got {options.vocabulary}"
        )
    if options.growth_tokens < FROM_LENGTH:
        raise SystemExit(
            f"--growth-tokens must be at least {FROM_LENGTH}, the shortest rows, got "
            f"{options.growth_tokens}"
        )
    for shape in options.shapes:
        found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", shape)
        if not found or int(found[2]) > POSITIONS:
            raise SystemExit(
                "--shapes must be rows and tokens as 32x128, of at most "
                f"{POSITIONS} tokens, got {shape}"
            )
    check_bert4keras()
    if options.picture and not {"encode", "growth"} & set(options.parts):
        raise SystemExit(
            "--picture shows encode and growth: add one of them to --parts"
        )
    absent = [str(path) for path in options.texts if not path.is_file()]
    if "mix" in options.parts and absent:
        raise SystemExit(
            f"the texts must be files, and {', '.join(absent)} is none: give others by "
            "--texts, or leave the mix out by --parts"
        )


def left_out(options):
    """Name of a run -> modules that are not installed, of the parts to measure."""
    absent = {side: missing(side) for side in NEEDS}
    return {
        name: absent[run.side]
        for part in options.parts
        for name, run in RUNS[part].items()
        if absent.get(run.side)
    }


# === What all sides read ===


def write_sources(options):
    """The checkpoint of random weights as a folder, and as what the parts need."""
    write_checkpoint(
        options.folder, "roformer", options.layers, options.hidden, options.vocabulary
    )
    if {"load", "convert"} & set(options.parts):
        path = options.folder / SOURCES["zip"]
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for member in MEMBERS:
                archive.write(options.folder / member, f"{path.stem}/{member}")
    if "load" in options.parts:
        convert_to_preset(options.folder, options.folder / SOURCES["preset"])
    exports = {
        exported(options, run.side, run.dtype): (run.side, run.dtype)
        for part in options.parts
        for run in RUNS[part].values()
        if run.side in EXPORTS and not missing(run.side)
    }
    if exports:
        with worker_of(options, "float32") as worker:
            for export in tqdm(exports.values(), desc="export", unit="export"):
                worker.ask("export", *export)


def draw_texts(options):
    """Writes the texts of the mix into the folder."""
    drawn = drawn_texts(options.texts, options.count)
    texts_of(options).write_text(
        json.dumps(drawn, ensure_ascii=False), encoding="utf-8"
    )


def drawn_texts(paths, count):
    """As many texts of each file as of the others, in an order by a seed."""
    draw, drawn = random.Random(0), []
    for number, path in enumerate(paths):
        texts = sorted(
            {text for text in file_texts(path) if SHORTEST <= len(text) <= LONGEST}
        )
        share = count * (number + 1) // len(paths) - len(drawn)
        if len(texts) < share:
            raise SystemExit(
                f"{share} different texts of {SHORTEST} to {LONGEST} characters are "
                f"needed of {path}, which has {len(texts)}: lower --count, or give "
                "other files by --texts"
            )
        drawn += draw.sample(texts, share)
    draw.shuffle(drawn)
    return drawn


def file_texts(path):
    """Yields the texts of a file, gzipped or not, one a line.

    Of `.jsonl` the longest string or list of strings of the object, of `.tsv` the first
    field.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as rows:
        for row in rows:
            if ".jsonl" in path.suffixes:
                values = json.loads(row).values()
                yield max(
                    ("".join(v) for v in values if isinstance(v, list | str)), key=len
                )
            else:
                yield (row.split("\t")[0] if ".tsv" in path.suffixes else row).strip()


# === The side that measures ===


def shapes_of(options, part):
    """The shapes that a part is measured at."""
    if part == "encode":
        return options.shapes
    by_length, by_rows = growth_shapes(options)
    return list(dict.fromkeys([*by_length, *by_rows]))


def growth_shapes(options):
    """Of growth by length, and by rows."""
    by_length, length = [], FROM_LENGTH
    while length <= options.growth_tokens:
        by_length.append(f"{options.growth_tokens // length}x{length}")
        length *= 2
    by_rows, rows = [], 1
    while rows <= options.growth_rows:
        by_rows.append(f"{rows}x{AT_LENGTH}")
        rows *= 2
    return by_length, by_rows


def measure(options, part, stack):
    """The figures of a part: name of a run -> its figures; by shape if it has those.

    Args:
        stack: ExitStack that closes the workers which stay.
    """
    runs = {name: run for name, run in RUNS[part].items() if not missing(run.side)}
    shapes = shapes_of(options, part) if part in ("encode", "growth") else [None]
    workers = {}

    def worker(side):
        if side not in workers:
            workers[side] = stack.enter_context(worker_of(options, side))
        return workers[side]

    turns = {shape: {name: [] for name in runs} for shape in shapes}
    total = options.rounds * len(shapes) * len(runs)
    with tqdm(total=total, unit="turn", desc=part) as bar:
        for number in range(options.rounds):
            for shape in shapes:
                for name, run in runs.items():
                    bar.set_postfix_str(name)
                    words = [run.job, *([shape] if shape else []), *run.words]
                    if part in FRESH:
                        with worker_of(options, run.side) as fresh:
                            turn = fresh.ask(*words)
                    else:
                        if not number:
                            worker(run.side).ask(*words)
                        turn = worker(run.side).ask(*words)
                    turns[shape][name].append(turn)
                    bar.update()
    figures = {}
    for shape, found in turns.items():
        check_samples(found, runs)
        figures[shape] = {name: figures_of(name, runs, found) for name in runs}
        amount = amount_of(options, part, shape)
        for run in figures[shape].values():
            run["rate"] = amount / statistics.median(run["seconds"])
    if part == "mix":
        add_counts(
            figures[None], {name: worker(run.side) for name, run in runs.items()}
        )
    return figures if shapes != [None] else figures[None]


def worker_of(options, side):
    sizes = {name: getattr(options, name) for name in WORKER_SIZES}
    return Worker(__spec__.name, side, {**sizes, "folder": options.folder})


def amount_of(options, part, shape):
    """What a turn's rate counts: tokens, texts, or else the turn."""
    if shape:
        rows, length = map(int, shape.split("x"))
        return rows * length
    return options.count if part == "mix" else 1


def figures_of(name, runs, turns):
    """The seconds of a run's turns, their ratios, and medians of all else."""
    seconds = {
        other: [turn["seconds"] for turn in found] for other, found in turns.items()
    }
    figures = {"seconds": seconds[name], "ratios": {}}
    # TensorFlow multiplies no int8.
    of_type = limit_of("bfloat16" if runs[name].dtype == "int8" else runs[name].dtype)
    for other in (THEIRS, THEIR_FOLDER, of_type):
        if other in runs and other != name:
            figures["ratios"][other] = pairs(seconds[name], seconds[other])
    for what in turns[name][0].keys() - {"seconds", "sample"}:
        figures[what] = statistics.median(turn[what] for turn in turns[name])
    return figures


def check_samples(turns, runs):
    """Ends it unless those sides computed the same that have the same weights."""
    samples = {
        name: turn[0]["sample"]
        for name, turn in turns.items()
        if runs[name].dtype == "float32" and "sample" in turn[0]
    }
    if not samples:
        return
    first, *others = samples
    largest = np.abs(samples[first]).max()
    for other in others:
        apart = np.abs(np.subtract(samples[first], samples[other])).max()
        if not apart <= TOLERANCE * largest:
            raise SystemExit(
                f"{first} and {other} must compute the same, and are {apart:.2g} "
                f"apart, with numbers of up to {largest:.2g}"
            )


def add_counts(figures, workers):
    """Mean tokens of a text, with and without padding; the ids must be the same."""
    found = {name: worker.ask("count") for name, worker in workers.items()}
    ids = {name: counts["ids"] for name, counts in found.items()}
    if len(set(ids.values())) > 1:
        raise SystemExit(f"the sides must have the same ids, got {ids}")
    for name, counts in found.items():
        figures[name].update(tokens=counts["tokens"], padded=counts["padded"])


def bars_of(options, figures):
    """The bars of the parts that were measured."""
    bars = []
    for bar in BARS:
        runs = figures.get(bar.part)
        if runs is not None and bar.part == "encode":
            runs = runs[options.shapes[0]]
        if runs is None or not {bar.run, *bar.needs} <= runs.keys():
            continue
        found = bar.find(runs)
        bars.append(
            {
                "work": bar.part,
                "run": bar.run,
                "what": bar.what,
                "found": found,
                "least" if bar.least else "most": bar.bound,
                "met": found >= bar.bound if bar.least else found <= bar.bound,
            }
        )
    return bars


# === What is printed ===


def ratio_to(run, other):
    return shown(run["ratios"][other]) if other in run["ratios"] else ""


def share_of_limit(run):
    limits = [key for key in run["ratios"] if key.startswith(limit_of(""))]
    return "".join(f"{statistics.median(run['ratios'][key]):.0%}" for key in limits)


def report_load(options, figures):
    rows = [
        (
            name,
            "" if name == IMPORTED else f"{statistics.median(run['seconds']):.2f}",
            f"{run['peak_mb']:,.0f}",
            "" if name == IMPORTED else ratio_to(run, THEIR_FOLDER),
        )
        for name, run in figures.items()
    ]
    print_table("load", ("s", "peak MB", f"times {THEIR_FOLDER}"), rows)
    print(f"the weights have {figures[ZIP]['weights_mb']:,.0f} MB")


def report_convert(options, figures):
    rows = [
        (name, f"{statistics.median(run['seconds']):.2f}", f"{run['peak_mb']:,.0f}")
        for name, run in figures.items()
    ]
    print_table("zip to preset folder", ("s", "peak MB"), rows)


def report_encode(options, figures):
    for shape, runs in figures.items():
        rows = []
        for name, run in runs.items():
            rows.append(
                (
                    name,
                    f"{run['rate']:,.0f}",
                    share_of_limit(run),
                    ratio_to(run, THEIRS),
                )
            )
        columns = ("tokens/s", "of its products", "times bert4keras")
        print_table(f"encode {shape}", columns, rows)


def report_mix(options, figures):
    rows = [
        (
            name,
            f"{run['rate']:.4g}",
            f"{run['tokens']:.0f}",
            f"{run['padded']:.0f}",
            ratio_to(run, THEIRS),
        )
        for name, run in figures.items()
    ]
    columns = ("texts/s", "tokens a text", "with padding", "times bert4keras")
    print_table(f"mix of {options.count} texts", columns, rows)


def report_latency(options, figures):
    rows = [
        (
            name,
            f"{1000 * statistics.median(run['seconds']):.1f}",
            f"{1000 * run['p95']:.1f}",
            share_of_limit(run),
            ratio_to(run, THEIRS),
        )
        for name, run in figures.items()
    ]
    columns = ("ms", "95th percentile", "of its products", "times bert4keras")
    print_table("a sentence", columns, rows)


def report_growth(options, figures):
    for by, shapes in zip(("length", "rows"), growth_shapes(options), strict=True):
        rows = [
            (shape, *(f"{run['rate']:,.0f}" for run in figures[shape].values()))
            for shape in shapes
        ]
        print_table(f"by {by}, tokens/s", list(RUNS["growth"]), rows)


REPORTS = {
    "load": report_load,
    "convert": report_convert,
    "encode": report_encode,
    "mix": report_mix,
    "latency": report_latency,
    "growth": report_growth,
}


if __name__ == "__main__":
    sys.exit(main())
