"""Pictures of a training, as PNG."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from roformer_keras.base.extras import import_extra
from roformer_keras.io.atomic import replacing
from roformer_keras.training.log import read_log

# Colours that colour-blind readers can distinguish: Okabe and Ito, "Color Universal
# Design".
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555")


@contextmanager
def drawing(path: Path, width: float, height: float) -> Iterator[Any]:
    """A figure of this size in inches, in the style of all pictures, for `with`.

    It is written completely at the end, or not at all. It is separate from pyplot,
    whose figures in a program or notebook stay unchanged.
    """
    agg = import_extra("matplotlib.backends.backend_agg", "drawing")
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from PIL import Image

    with rc_context(picture_style()):
        figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
        canvas = agg.FigureCanvasAgg(figure)
        yield figure
        canvas.draw()
        # A palette takes a third of the bytes, and looks the same.
        drawn = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        with replacing(path, overwrite=True) as partial:
            drawn.quantize(256).save(partial, format="PNG", optimize=True)


def picture_style() -> Any:
    """Fonts, colours and lines of all pictures: a dict for Matplotlib's `rcParams`."""
    from cycler import cycler

    return {
        "font.family": ["DejaVu Sans"],
        "font.size": 10,
        "axes.prop_cycle": cycler(color=COLORS),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": "medium",
        "axes.titlelocation": "left",
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.alpha": 0.3,
        "legend.frameon": False,
    }


def draw_line(
    axes, rows: list[dict], x: str, y: str | None, label: str, **style
) -> None:
    """Plots a column of a log against another, in the rows that have it."""
    points = [(int(row[x]), float(row[y])) for row in rows if row.get(y)]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, linewidth=1.2, **style)


def draw_losses(log: Path, picture: Path) -> None:
    """Draws the losses of a `log.csv`, of training and of held-out data, as PNG."""
    rows = read_log(log)
    ends = {row["stage"]: int(row["update"]) for row in rows}
    with drawing(picture, 8, 4.5) as figure:
        axes = figure.add_subplot()
        draw_line(axes, rows, "update", "loss", "training")
        dots = {"marker": "o", "markersize": 4}
        draw_line(axes, rows, "update", "val_loss", "held out", **dots)
        for end in list(ends.values())[:-1]:
            axes.axvline(end, color="0.8", linewidth=1, zorder=0)
        axes.set(xlabel="updates", ylabel="loss")
        axes.legend()
