"""The common part of the benchmarks: sides in worker processes, turns and tables.

The sides of a comparison work in turn, each in its own process. What a side does is
done once before it counts, because the first call compiles. Figures are medians of the
turns. A ratio is the median of the ratios of neighbouring turns, shown with the
smallest and the largest.
"""

import contextlib
import itertools
import os
import platform
import statistics
import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from tools.commands import Parser
from tools.reference.bert4keras import environment
from tools.reference.full_size_checkpoint import write_checkpoint
from tools.tables import print_table, write_json
from tools.workers import Worker

# Flags of a processor, by which the order of the programs changes.
UNITS = {
    "avx512f": "AVX-512",
    "avx512_vnni": "VNNI",
    "avx512_bf16": "BF16",
    "amx_bf16": "AMX",
}
LIMIT, THEIRS = "matrix products", "bert4keras float32"
# Largest difference of sides with the same weights, relative to the largest number:
# bert4keras adds another epsilon in its norms.
TOLERANCE = 0.01
# Flags of most benchmarks: default, with --quick, help.
MODEL_SIZES = {
    "layers": (12, 1, "layers of the model"),
    "hidden": (768, 64, "its width, 64 for each head"),
}


def make_parser(description: str, sizes: Mapping, parts=()) -> Parser:
    parser = Parser(description, sizes, parts)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser


def processor() -> str:
    """The processor, its units, and how many of its cores this process may use."""
    count = len(os.sched_getaffinity(0))
    lines = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    name = (names or [platform.processor() or "unknown"])[0]
    flags = {
        flag for line in lines if line.startswith("flags") for flag in line.split()
    }
    units = [unit for flag, unit in UNITS.items() if flag in flags]
    return f"{count} cores of {name} ({', '.join(units) or 'no AVX-512'})"


class Side(types.SimpleNamespace):
    """One side, in its own process; attributes are options, methods are jobs."""

    def __init__(self, **options):
        super().__init__(**options, _kept={})
        self.folder = Path(self.folder)

    def keep(self, make, *key):
        """The result of `make(*key)` at the first call with this key."""
        if (made := (make.__name__, *key)) not in self._kept:
            self._kept[made] = make(*key)
        return self._kept[made]


class Run(NamedTuple):
    """A job of a side, its warm-up (by default the job itself), and its turns."""

    side: str
    method: str
    arguments: tuple = ()
    warm_up: tuple | None = None
    rounds: int | None = None


class Benchmark(contextlib.ExitStack):
    """Sides, name -> class of a module; a scratch folder; the figures so far, by part.

    Only the side `bert4keras` can import bert4keras.
    """

    def __init__(self, options, module: str, sides: Mapping[str, type]):
        super().__init__()
        self.options, self._workers = options, {}
        self.sides = {name: f"{module}:{side.__name__}" for name, side in sides.items()}
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory()))
        plain = {k: v for k, v in vars(options).items() if isinstance(v, int | str)}
        self._passed = {**plain, "folder": str(self.folder)}
        self.figures = {"options": plain}

    def write_checkpoint(self):
        """Writes the checkpoint of random weights that the sides read."""
        options = self.options
        sizes = options.layers, options.hidden, options.vocabulary
        write_checkpoint(self.folder, "roformer", *sizes)

    def start(self, side: str) -> Worker:
        """A new process of a side; the caller closes it."""
        reference = environment() if side == "bert4keras" else None
        return Worker(self.sides[side], {**self._passed, "name": side}, reference)

    def __getitem__(self, side: str) -> Worker:
        """The process of a side that stays."""
        if side not in self._workers:
            self._workers[side] = self.enter_context(self.start(side))
        return self._workers[side]

    def stop(self):
        """Ends the processes that stay, and frees their memory."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def save(self, part: str, figures):
        """Adds the figures of a part and writes all to the file of `--json`."""
        self.figures[part] = figures
        if self.options.json:
            write_json(self.options.json, self.figures)


def take_turns(
    benchmark: Benchmark, runs: Mapping[str, Run], title: str, fresh: bool = False
) -> dict[str, list[dict]]:
    """Figures of each run's turns; `fresh` ones warm up only where the run says how."""
    common = benchmark.options.rounds
    turns, order = {}, []
    for name, run in runs.items():
        count = common if run.rounds is None else run.rounds
        order += [(number, name) for number in range(count)]
    # Sorting is stable: runs keep their order.
    for number, name in tqdm(sorted(order, key=lambda x: x[0]), title, unit="turn"):
        run = runs[name]
        job, warm_up = (run.method, *run.arguments), run.warm_up
        with contextlib.ExitStack() as stack:
            if fresh:
                worker = stack.enter_context(benchmark.start(run.side))
            else:
                worker = benchmark[run.side]
                warm_up = None if number else warm_up or job
            if warm_up:
                worker.measure(*warm_up)
            turns.setdefault(name, []).append(worker.measure(*job))
    return turns


def medians(turns: Mapping[str, Sequence[Mapping]], amount: float = 1) -> dict:
    """Name of a run -> `seconds` of its turns, other medians, `rate` of an amount."""
    by_run = {}
    for name, own in turns.items():
        numbers = [key for key, x in own[0].items() if isinstance(x, int | float)]
        figures = {key: statistics.median(turn[key] for turn in own) for key in numbers}
        figures["rate"] = amount / figures["seconds"]
        by_run[name] = figures | {"seconds": [turn["seconds"] for turn in own]}
    return by_run


def compare(
    benchmark, runs, title: str, unit: str, amount=1, theirs=THEIRS, fresh=False
) -> dict:
    """Takes turns, checks and prints what they gave, and returns `medians`."""
    turns = take_turns(benchmark, runs, title, fresh)
    check_samples(turns)
    figures = medians(turns, amount)
    print_runs(title, unit, figures, theirs)
    return figures


def check_samples(turns: Mapping):
    """Ends the benchmark if sides with the same weights in float32 differ."""
    samples = {
        name: own[0]["sample"]
        for name, own in turns.items()
        if "float32" in name and "sample" in own[0]
    }
    for (first, found), (other, others) in itertools.pairwise(samples.items()):
        difference = np.abs(np.subtract(found, others)).max()
        if not difference <= TOLERANCE * np.abs(found).max():
            raise SystemExit(
                f"{first} and {other} must compute the same, and differ by "
                f"{difference:.2g} in numbers of up to {np.abs(found).max():.2g}"
            )


def ratios(figures: Mapping, run: str, other: str | None) -> list[float]:
    """The speed of each turn of a run divided by that of the other run; or nothing."""
    if run == other or other not in figures:
        return []
    ours, theirs = figures[run]["seconds"], figures[other]["seconds"]
    # Turns of different numbers have no neighbours.
    pair = zip if len(ours) == len(theirs) else itertools.product
    return [other / own for own, other in pair(ours, theirs)]


def show_ratios(values: Sequence[float]) -> str:
    """The median, the smallest and the largest."""
    if not values:
        return ""
    middle = statistics.median(values)
    return f"{middle:.2f}x ({min(values):.2f} to {max(values):.2f})"


def shares_of_limit(figures: Mapping, name: str) -> list[float]:
    """Shares of the speed of the fastest matrix products in the type of a run."""
    dtype = "float32" if "float32" in name else "bfloat16"
    limits = [run for run in figures if run.startswith(LIMIT) and dtype in run]
    limit = max(limits, key=lambda run: figures[run]["rate"], default=None)
    return ratios(figures, name, limit)


def print_runs(title: str, unit: str, figures: Mapping, theirs: str | None = THEIRS):
    """Prints runs with rates, or in the units "s" and "ms" with the time of a turn."""
    scale = {"s": 1, "ms": 1000}.get(unit)
    others = dict.fromkeys(key for run in figures.values() for key in run)
    others = [key for key in others if key not in ("seconds", "rate")]
    rows = []
    for name, run in figures.items():
        shares = shares_of_limit(figures, name)
        share = f"{statistics.median(shares):.0%}" if shares else ""
        rate = show(scale / run["rate"] if scale else run["rate"])
        other_cells = [show(run[key]) if key in run else "" for key in others]
        rows.append(
            [
                name,
                rate,
                share,
                show_ratios(ratios(figures, name, theirs)),
                *other_cells,
            ]
        )
    times = f"times {theirs}" if theirs else ""
    print_table(title, (unit, "of its products", times, *others), rows)


def show(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def matrix_products(layers: int, hidden: int, tokens: int, dtype: str = "float32"):
    """A function that multiplies vectors by all matrices; attention is left out."""
    import tensorflow as tf

    def random(rows, columns):
        # Repeated products keep the size of the vectors.
        return tf.cast(tf.random.normal((rows, columns)) / rows**0.5, dtype)

    vectors = tf.cast(tf.random.normal((tokens, hidden)), dtype)
    square = random(hidden, hidden)
    up, down = random(hidden, 4 * hidden), random(4 * hidden, hidden)

    @tf.function
    def products():
        x = vectors
        for _ in range(layers):
            for _ in range(4):
                x = tf.matmul(x, square)
            x = tf.matmul(tf.matmul(x, up), down)
        return x

    return lambda: products().numpy()


def make_batch(rows: int, length: int, vocabulary: int):
    """Token and segment ids `(rows, length)`; half of the rows padded by a quarter."""
    random = np.random.default_rng(0)
    token_ids = random.integers(1, vocabulary, (rows, length), dtype="int32")
    token_ids[::2, length * 3 // 4 :] = 0
    return token_ids, np.zeros_like(token_ids)


def make_inputs(*arguments):
    """`make_batch` as the inputs of a model of this package."""
    batch = make_batch(*arguments)
    return dict(zip(("token_ids", "segment_ids"), batch, strict=True))
