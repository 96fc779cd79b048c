"""The picture of what tools/benchmarks/benchmark.py measured."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from roformer_keras.training.plots import new_figure, save_figure

__all__ = ["draw"]

LIMIT = "matrix products "


def draw(figures: Mapping, growth: Sequence[Sequence[str]], path: Path):
    """Draws encode as shares of the limit, and beside it how cost grows.

    Args:
        figures: as tools/benchmarks/benchmark.py writes them to JSON; encode or growth
        may be
            missing.
        growth: shapes of growth by length, and by rows.
        path: of the PNG.
    """
    wide, narrow = int("encode" in figures), 2 * ("growth" in figures)
    figure = new_figure(7 * wide + 3.8 * narrow, 4.6)
    axes = figure.subplots(
        1, wide + narrow, squeeze=False, width_ratios=[1.8] * wide + [1] * narrow
    )[0]
    if wide:
        draw_shares(axes[0], figures["encode"])
    if narrow:
        by_length, by_rows = (
            {
                tuple(map(int, shape.split("x"))): figures["growth"][shape]
                for shape in of
            }
            for of in growth
        )
        at_length, at_rows = axes[wide:]
        at_rows.sharey(at_length)
        tokens = max(rows * length for rows, length in by_length)
        draw_growth(at_length, [length for _, length in by_length], by_length.values())
        at_length.set(
            title=f"batches of {tokens:,} tokens",
            xlabel="tokens of a row",
            ylabel="tokens a second",
        )
        draw_growth(at_rows, [rows for rows, _ in by_rows], by_rows.values())
        at_rows.set(
            title=f"rows of {next(iter(by_rows))[1]} tokens", xlabel="rows of a batch"
        )
        at_length.legend(fontsize=8)
    save_figure(figure, path)


def draw_shares(axes, shapes: Mapping):
    """A bar a run and shape, as long as its share of the products of its type."""
    names = [name for name in next(iter(shapes.values())) if not name.startswith(LIMIT)]
    height = 0.84 / len(shapes)
    for at, (shape, runs) in enumerate(shapes.items()):
        shares = [share_of(runs[name]) for name in names]
        middles = [statistics.median(share) for share in shares]
        ends = [
            [
                middle - min(share)
                for middle, share in zip(middles, shares, strict=True)
            ],
            [
                max(share) - middle
                for middle, share in zip(middles, shares, strict=True)
            ],
        ]
        shift = height * (at - (len(shapes) - 1) / 2)
        bars = axes.barh(
            [number + shift for number in range(len(names))],
            middles,
            height,
            xerr=ends,
            label=shape,
            # The others are those of the types in the pictures beside it.
            color=f"C{2 + at % 8}",
            error_kw={"alpha": 0.4},
        )
        labels = [f"{runs[name]['rate']:,.0f}" for name in names]
        axes.bar_label(bars, labels, padding=3, fontsize=7)
    axes.axvline(100, color="black", linewidth=1)
    axes.margins(x=0.1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_title("encode, tokens a second", loc="left")
    axes.set_xlabel("% of the matrix products alone, in the same type")
    # Above the axes: bars may be anywhere in them.
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 1), ncols=len(shapes), frameon=False
    )


def share_of(run):
    """Percent of the limit, of each turn."""
    (ratios,) = (found for of, found in run["ratios"].items() if of.startswith(LIMIT))
    return [100 * ratio for ratio in ratios]


def draw_growth(axes, sizes, shapes):
    """A line a run: tokens a second over sizes, of as many shapes."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    shapes = list(shapes)
    for name in shapes[0]:
        rates = [runs[name]["rate"] for runs in shapes]
        axes.plot(sizes, rates, marker="o", markersize=4, linewidth=1.2, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, sizes)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
