"""Learning curves and the confusion matrix."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from roformer_keras.training.log import read_log
from roformer_keras.training.plots import draw_line, new_figure, save_figure

# Above so many classes counts would be too small to read.
_MOST_COUNTS = 25
_DOTS = {"marker": "o", "markersize": 4}
# Where a system has several, those that are made for simplified Chinese.
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
    """Draws the loss and a figure over the epochs, of training and of `valid`.

    Args:
        log: a `log.csv`.
        picture: path of the PNG.
        monitor: str. The figure of `valid`.
        metric: str or None. The figure of training.
        best: int or None. The epoch to mark.

    Raises:
        OutputError: the picture cannot be written.
    """
    rows = read_log(log)
    figure = new_figure(9, 4)
    panels = [("loss", "loss", "val_loss"), (monitor, metric, f"val_{monitor}")]
    if monitor == "loss":
        panels.pop()
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for own, (name, train, valid) in zip(axes, panels, strict=True):
        other = f" ({train})" if train != name else ""
        draw_line(own, rows, "epoch", train, f"training{other}", **_DOTS)
        draw_line(own, rows, "epoch", valid, "validation", **_DOTS)
        if best is not None:
            own.axvline(best, color="0.8", linewidth=1, zorder=0)
        own.set(xlabel="epochs", ylabel=name.replace("_", " "))
        own.xaxis.get_major_locator().set_params(integer=True)
        own.grid(alpha=0.3)
        if own.lines:
            own.legend()
    save_figure(figure, picture)


def draw_confusion(
    counts: Sequence[Sequence[int]], names: Sequence[str], picture: Path
) -> bool:
    """Draws a confusion matrix.

    Args:
        counts: rows are true classes, columns predicted classes.
        names: of the classes.
        picture: path of the PNG.

    Returns:
        Whether classes are named; where no font has their characters they are numbered
        from 1 instead.

    Raises:
        OutputError: the picture cannot be written.
    """
    table, font = np.array(counts), _font_of("".join(names))
    shown = names if font is not None else [str(n + 1) for n in range(len(names))]
    side = min(20.0, 3.5 + 0.45 * len(names))
    figure = new_figure(side, side)
    axes = figure.add_subplot()
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    places = range(len(names))
    axes.set_xticks(places, shown, rotation=90 if max(map(len, shown)) > 3 else 0)
    axes.set_yticks(places, shown)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        if font is not None:
            label.set_fontproperties(font)
    axes.set(xlabel="predicted", ylabel="true")
    if len(names) <= _MOST_COUNTS:
        for (row, column), count in np.ndenumerate(counts):
            color = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, count, ha="center", va="center", color=color)
    save_figure(figure, picture)
    return font is not None


def _font_of(text):
    """A font of this system that has all characters of a text, or None."""
    from matplotlib import font_manager

    entries = [
        entry
        for entry in font_manager.fontManager.ttflist
        # A box for each character of all, which says of what block it is.
        if not entry.name.startswith("Last Resort")
    ]
    rank = {family: number for number, family in enumerate(_FAMILIES)}
    paths = [
        font_manager.findfont(font_manager.FontProperties()),
        *(
            entry.fname
            for entry in sorted(entries, key=lambda e: rank.get(e.name, len(rank)))
        ),
    ]
    needed = {ord(character) for character in text if not character.isspace()}
    for path in dict.fromkeys(paths):
        # One that was uninstalled, or has no table of characters.
        with suppress(OSError, RuntimeError):
            if needed <= font_manager.get_font(path).get_charmap().keys():
                return font_manager.FontProperties(fname=path)
    return None
