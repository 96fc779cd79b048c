"""Learning curves, comparisons with baselines, and the confusion matrix."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from roformer_keras.tasks.evaluation import LOWER_IS_BETTER
from roformer_keras.tasks.reports import compared, width_of
from roformer_keras.training.log import read_log
from roformer_keras.training.plots import COLORS, draw_line, drawing

# Inches of a cell of a confusion matrix, of the whole picture, and of its margins.
_CELL, _MAX_SIDE, _EDGES = 0.62, 20.0, 2.5
# Inches that a cell needs for a count and its share, or for a count alone.
_ROOM_FOR_SHARE, _ROOM_FOR_COUNT = 0.5, 0.3
# Maximal characters of the name of a class, and of a baseline.
_LONGEST_NAME, _LONGEST_BASELINE = 14, 48
_NO_FONT = "numbers of classes, see report.txt: no font here has their characters"
_DOTS = {"marker": "o", "markersize": 4}
# Fonts for simplified Chinese, in order of preference.
_FAMILIES = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "Microsoft YaHei",
    "PingFang SC",
    "Hiragino Sans GB",
    "SimHei",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
)


def draw_curves(
    log: Path, picture: Path, monitor: str, metric: str | None, best: int | None
) -> None:
    """Draws the loss and a figure over the epochs, of training and of `valid`."""
    rows = read_log(log)
    panels = [("loss", "loss", "val_loss"), (monitor, metric, f"val_{monitor}")]
    if monitor == "loss":
        panels.pop()
    with drawing(picture, 9, 4) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (name, train, valid) in zip(axes, panels, strict=True):
            other = f" ({train})" if train != name else ""
            draw_line(axis, rows, "epoch", train, f"training{other}", **_DOTS)
            draw_line(axis, rows, "epoch", valid, "validation", **_DOTS)
            if best is not None:
                axis.axvline(best, color="0.8", linewidth=1, zorder=0)
            axis.set(xlabel="epochs", ylabel=name.replace("_", " "))
            axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
            if any(axis.get_legend_handles_labels()):
                axis.legend()


def draw_comparison(report: dict, picture: Path) -> None:
    """Draws the figures of a model and of its baselines, with their 95 % intervals."""
    rows, names = compared(report)
    shown = [_shortened(name, _LONGEST_BASELINE) for name in rows]
    font = _font_of("".join(shown))
    width = max(3.0, 0.066 * max(map(width_of, shown))) + 1.9 * len(names)
    with drawing(picture, width, 1 + 0.5 * len(rows)) as figure:
        every = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for axes, name in zip(every, names, strict=True):
            remark = "\n(lower is better)" if name in LOWER_IS_BETTER else ""
            axes.set(title=name.replace("_", " ") + remark)
            axes.margins(x=0.25)
            axes.locator_params(axis="x", nbins=4)
            for row, figures in enumerate(rows.values()):
                if (value := figures.get(name)) is None:
                    continue
                style = {"color": COLORS[-1] if row else COLORS[0]}
                axes.plot(value, row, **_DOTS, **style)
                if ends := figures.get("intervals", {}).get(name):
                    axes.plot(ends, (row, row), linewidth=2, **style)
                over = {"xytext": (0, 6), "textcoords": "offset points"}
                axes.annotate(f"{value:.3f}", (value, row), ha="center", **over)
        axes.set_yticks(range(len(rows)), shown)
        _use_font(every[0].get_yticklabels(), font, "medium")
        axes.set_ylim(len(rows) - 0.5, -0.7)
        figure.supxlabel("with 95 % intervals", fontsize="small")


def draw_confusion(
    counts: Sequence[Sequence[int]], names: Sequence[str], picture: Path
) -> bool:
    """Draws a confusion matrix, with counts and their shares of a true class.

    Counts and shares are left out if there are too many classes for them to fit.
    """
    table, shown = np.array(counts), list(map(_shortened, names))
    font = _font_of("".join(shown))
    if font is None:
        shown = [str(n + 1) for n in range(len(names))]
    side = min(_MAX_SIDE, _EDGES + max(2.0, _CELL * len(names)))
    room = (side - _EDGES) / len(names)
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    wide = max(map(width_of, shown))
    with drawing(picture, side, side) as figure:
        axes = figure.add_subplot()
        axes.grid(False)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        numbers = range(len(names))
        axes.set_xticks(numbers, shown, rotation=90 if 0.1 * wide > room else 0)
        axes.set_yticks(numbers, shown)
        size = min(10.0, 60 * room)
        labels = *axes.get_xticklabels(), *axes.get_yticklabels()
        _use_font(labels, font, size)
        axes.set(xlabel="predicted", ylabel="true")
        if font is None:
            figure.supxlabel(_NO_FONT, fontsize="small")
        if room >= _ROOM_FOR_COUNT:
            for (row, column), count in np.ndenumerate(table):
                share = shares[row, column]
                text = (
                    f"{count}\n{share:.0%}" if room >= _ROOM_FOR_SHARE else str(count)
                )
                # Long numbers are smaller, so that they fit into their cell.
                size = min(9.0, 72 * 0.9 * room / (0.65 * max(4, len(str(count)))))
                axes.text(
                    column,
                    row,
                    text,
                    ha="center",
                    va="center",
                    fontsize=size,
                    color="white" if share > 0.5 else "black",
                )
    return font is not None


def _shortened(name, longest=_LONGEST_NAME):
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def _use_font(labels, font, size):
    for label in labels:
        if font is not None:
            label.set_fontproperties(font)
        label.set_fontsize(size)


def _font_of(text):
    """A font of this system that has all characters of a text, or None."""
    from matplotlib import font_manager

    entries = [
        entry
        for entry in font_manager.fontManager.ttflist
        # It draws the number of a character's block, not the character.
        if not entry.name.startswith("Last Resort")
    ]
    rank = {family: number for number, family in enumerate(_FAMILIES)}
    # Prefer the regular weight within a family.
    entries.sort(key=lambda e: (rank.get(e.name, len(rank)), e.weight != 400))
    paths = [
        font_manager.findfont(font_manager.FontProperties()),
        *(entry.fname for entry in entries),
    ]
    needed = {ord(character) for character in text if not character.isspace()}
    for path in dict.fromkeys(paths):
        # A font may be uninstalled, or have no character table.
        with suppress(OSError, RuntimeError):
            if needed <= font_manager.get_font(path).get_charmap().keys():
                return font_manager.FontProperties(fname=path)
    return None
