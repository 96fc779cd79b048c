"""Pictures of a training, as PNG."""

from pathlib import Path

from roformer_keras.extras import import_extra
from roformer_keras.io.atomic import replacing
from roformer_keras.training.log import read_log


def new_figure(width: float, height: float):
    """A figure of so many inches.

    Not pyplot's, so what a program or a notebook draws there stays as it is.
    """
    agg = import_extra("matplotlib.backends.backend_agg", "drawing")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    agg.FigureCanvasAgg(figure)
    return figure


def draw_line(
    axes, rows: list[dict], x: str, y: str | None, label: str, **style
) -> None:
    """Draws a column of a log against another, where it has figures."""
    points = [(int(row[x]), float(row[y])) for row in rows if row.get(y)]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, linewidth=1.2, **style)


def save_figure(figure, path: Path) -> None:
    """Writes a figure, whole or not at all.

    Raises:
        OutputError: it cannot be written.
    """
    with replacing(path, overwrite=True) as partial:
        figure.savefig(partial, format="png", dpi=120)


def draw_losses(log: Path, picture: Path) -> None:
    """Draws the losses of a `log.csv`, of training and of held-out data, as PNG.

    Raises:
        OutputError: the picture cannot be written.
    """
    rows = read_log(log)
    figure = new_figure(8, 4.5)
    axes = figure.add_subplot()
    draw_line(axes, rows, "update", "loss", "training")
    draw_line(axes, rows, "update", "val_loss", "held out", marker="o", markersize=4)
    ends = {}
    for row in rows:
        ends[row["stage"]] = int(row["update"])
    for end in list(ends.values())[:-1]:
        axes.axvline(end, color="0.8", linewidth=1, zorder=0)
    axes.set(xlabel="updates", ylabel="loss")
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, picture)
