"""The losses of a pre-training as a picture."""

import csv
from pathlib import Path

from roformer_keras.conversion.outputs import replacing

__all__ = ["draw_losses"]


def draw_losses(log: Path, picture: Path) -> None:
    """Draws the losses of a `log.csv`, of training and of held-out data, as PNG.

    Raises:
        OutputError: the picture cannot be written.
    """
    # Not pyplot: whatever a program or a notebook draws besides stays as it is.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with open(log, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for column, label, style in (
        ("loss", "training", {"linewidth": 1.2}),
        ("val_loss", "held out", {"linewidth": 1.2, "marker": "o", "markersize": 4}),
    ):
        points = [(int(r["update"]), float(r[column])) for r in rows if r.get(column)]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, **style)
    ends = {}
    for row in rows:
        ends[row["stage"]] = int(row["update"])
    for end in list(ends.values())[:-1]:
        axes.axvline(end, color="0.8", linewidth=1, zorder=0)
    axes.set(xlabel="updates", ylabel="loss")
    axes.grid(alpha=0.3)
    axes.legend()
    with replacing(picture, overwrite=True) as partial:
        figure.savefig(partial, format="png", dpi=120)
