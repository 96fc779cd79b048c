"""What the benchmarks share: options, sides in worker processes, turns and tables.

The sides of a comparison work in turn, each in its own process. What a side does is
done once before it counts, because the first call compiles. Figures are medians of the
turns. A ratio is the median of the ratios of neighbouring turns, shown with the
smallest and the largest.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from roformer_keras.errors import RoFormerError
from tools.reference.bert4keras import environment
from tools.tables import write_json
from tools.workers import Worker


def positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return int(text)


def make_parser(description: str, sizes: Mapping, parts=()) -> argparse.ArgumentParser:
    """A parser of `sizes`, `--parts` and `--json`.

    Args:
        description: docstring of the benchmark.
        sizes: flag -> default and help, of positive integers.
        parts: names of the parts that can be measured alone.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, (default, what) in sizes.items():
        help = what if default is None else f"{what}; {default}"
        parser.add_argument(f"--{name}", type=positive, default=default, help=help)
    if parts:
        parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser


class Side(types.SimpleNamespace):
    """One side of a comparison, in its own process; its attributes are the options.

    Its methods are jobs. What they return is added to `seconds` and `peak_mb`. An
    option hides a method with its name.
    """

    def __init__(self, **options):
        super().__init__(**options, _kept={})
        self.folder = Path(self.folder)

    def keep(self, make, *key):
        """What `make(*key)` returned at the first call with this key."""
        key_of_make = (make.__name__, *key)
        if key_of_make not in self._kept:
            self._kept[key_of_make] = make(*key)
        return self._kept[key_of_make]


class Run(NamedTuple):
    """A job of a side.

    Attributes:
        side: name of the side.
        method: of its class.
        arguments: of the method.
        warm_up: method and arguments to call first; the job itself by default.
    """

    side: str
    method: str
    arguments: tuple = ()
    warm_up: tuple | None = None


class Benchmark(contextlib.ExitStack):
    """Sides, a scratch folder and the figures found so far.

    Args:
        options: of the command line.
        sides: name -> `"module:Class"`. Only `bert4keras` can import bert4keras.

    Attributes:
        folder: scratch folder.
        figures: part -> its figures; next to `options`.
    """

    def __init__(self, options: argparse.Namespace, sides: Mapping[str, str]):
        super().__init__()
        self.options, self.sides, self._workers = options, sides, {}
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory()))
        plain = {
            name: value
            for name, value in vars(options).items()
            if isinstance(value, int | str)
        }
        self._passed = {**plain, "folder": str(self.folder)}
        self.figures = {"options": plain}

    def start(self, side: str, **options) -> Worker:
        """A new process of a side; the caller closes it."""
        reference = environment() if side == "bert4keras" else None
        keywords = {**self._passed, "name": side, **options}
        return Worker(self.sides[side], keywords, reference)

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
    benchmark: Benchmark,
    runs: Mapping[str, Run],
    rounds: int,
    title: str,
    fresh: bool = False,
) -> dict[str, list[dict]]:
    """Figures of the turns of each run.

    Args:
        benchmark: whose sides work.
        runs: name -> run, in the order of the turns.
        rounds: turns of each run.
        title: of the progress bar.
        fresh: every turn has a new process; it warms up only where the run says how.
    """
    turns = {name: [] for name in runs}
    with tqdm(total=rounds * len(runs), desc=title, unit="turn") as bar:
        for number in range(rounds):
            for name, run in runs.items():
                bar.set_postfix_str(name)
                job = (run.method, *run.arguments)
                with contextlib.ExitStack() as stack:
                    if fresh:
                        worker = stack.enter_context(benchmark.start(run.side))
                        warm_up = run.warm_up
                    else:
                        worker = benchmark[run.side]
                        warm_up = None if number else run.warm_up or job
                    if warm_up:
                        worker.measure(*warm_up)
                    turns[name].append(worker.measure(*job))
                bar.update()
    return turns


def medians(turns: Mapping[str, Sequence[Mapping]], amount: float = 1) -> dict:
    """Name of a run -> `seconds` of its turns, `rate`, and medians of other numbers.

    Args:
        turns: of `take_turns`.
        amount: what a turn does; the rate is of that, a second.
    """
    found = {}
    for name, own in turns.items():
        numbers = {
            key for key, value in own[0].items() if isinstance(value, int | float)
        }
        found[name] = {
            key: statistics.median(turn[key] for turn in own)
            for key in sorted(numbers - {"seconds"})
        }
        found[name]["seconds"] = [turn["seconds"] for turn in own]
        found[name]["rate"] = amount / statistics.median(found[name]["seconds"])
    return found


def ratios(figures: Mapping, run: str, other: str) -> list[float]:
    """How many times as fast as the other run each turn of a run was; or nothing."""
    if run == other or other not in figures:
        return []
    pairs = zip(figures[other]["seconds"], figures[run]["seconds"], strict=True)
    return [theirs / ours for theirs, ours in pairs]


def show_ratios(values: Sequence[float]) -> str:
    """The median, the smallest and the largest."""
    if not values:
        return ""
    middle = statistics.median(values)
    return f"{middle:.2f}x ({min(values):.2f} to {max(values):.2f})"


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]):
    """Prints rows of a name and values, each column as wide as its widest value."""
    table = [(title, *columns), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    print()
    for name, *values in table:
        cells = [name.ljust(widths[0])]
        cells += [
            value.rjust(width) for value, width in zip(values, widths[1:], strict=True)
        ]
        print("  ".join(cells).rstrip())


def matrix_products(layers: int, hidden: int, tokens: int, dtype: str = "float32"):
    """A function that multiplies vectors by the matrices of all layers, and no more.

    Attention is left out: its products grow with the length.
    """
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


def make_config(layers: int, hidden: int, vocabulary: int = 12_000, **fields):
    """The configuration of an encoder in the proportions of the base model."""
    from roformer_keras import RoFormerConfig

    return RoFormerConfig(
        vocabulary_size=vocabulary,
        hidden_dim=hidden,
        num_layers=layers,
        num_heads=hidden // 64,
        intermediate_dim=4 * hidden,
        **fields,
    )


def exit_with_error(main) -> int:
    """Runs `main`; an error of the package is printed and becomes the exit code."""
    try:
        return main() or 0
    except RoFormerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
