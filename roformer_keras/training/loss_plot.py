"""The losses of a pre-training as a picture."""

from pathlib import Path

from roformer_keras.training.log import read_log
from roformer_keras.training.plots import draw_line, new_figure, save_figure

__all__ = ["draw_losses"]


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
