"""What benchmarks say of their turns: ratios, bars, a table, a file."""

import json
import resource
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = [
    "pairs",
    "peak_bytes",
    "print_bars",
    "print_table",
    "shown",
    "write_figures",
]


def peak_bytes() -> int:
    """What this process has held at most, of resident memory."""
    # In KiB, but on macOS, where it is in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def pairs(seconds: Sequence[float], of: Sequence[float]) -> list[float]:
    """How many times as fast each turn was as the other run's of the same round."""
    return [theirs / own for own, theirs in zip(seconds, of, strict=True)]


def shown(ratios: Sequence[float]) -> str:
    """The median, with least and most."""
    low, high = min(ratios), max(ratios)
    return f"{statistics.median(ratios):.2f}x ({low:.2f} to {high:.2f})"


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]):
    """Prints rows of a name and values, each as wide as the widest of its column."""
    table = [(title, *columns), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    print()
    for name, *values in table:
        cells = [name + " " * (widths[0] - len(name))]
        cells += [
            f"{value:>{width}}" for value, width in zip(values, widths[1:], strict=True)
        ]
        print("  ".join(cells).rstrip())


def print_bars(bars: Sequence[Mapping]):
    """Prints what was to be reached, and whether it was.

    Args:
        bars: each with `work`, `run`, `what` is measured, `found`, whether it `met` the
            bar, and the bar itself: `least` or `most`.
    """
    for bar in bars:
        bound = (
            f"at least {bar['least']}" if "least" in bar else f"at most {bar['most']}"
        )
        met = "met" if bar["met"] else "missed"
        print(
            f"{bar['work']}, {bar['run']}: {bar['found']:.2f} {bar['what']}, "
            f"{bound}: {met}"
        )


def write_figures(path: Path | None, figures: Mapping):
    if path:
        path.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
