"""Pictures of a training, as PNG."""

from pathlib import Path

from roformer_keras.io.atomic import replacing

__all__ = ["draw_line", "new_figure", "save_figure"]


def new_figure(width: float, height: float):
    """A figure of so many inches.

    Not pyplot's: whatever a program or a notebook draws besides stays as it is.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_line(axes, rows: list[dict], x: str, y: str, label: str, **style) -> None:
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
