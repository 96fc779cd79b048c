"""Draws the pictures of the documents from the figures that were recorded.

python -m tools.pictures

Those of benchmarks are drawn from `tools/benchmarks/recorded.json`, as the tables of
the pages are; those of the paper's experiments from `notebooks/data/paper`.
"""

import sys

from roformer_keras.training.plots import drawing
from tools import ROOT
from tools.benchmark import RECORDED, read_figures
from tools.commands import Parser, command
from tools.experiments.extrapolation import Extrapolation
from tools.experiments.lengths import Lengths
from tools.experiments.performers import Performers
from tools.experiments.translation import Translation
from tools.tables import read_rows

FOLDER = ROOT / "docs" / "pictures"
TABLES, OF_EXPERIMENTS = ROOT / "notebooks/data/paper", ROOT / "checkpoints/training"


@command
def main(arguments=None):
    Parser(__doc__).parse_args(arguments)
    recorded = read_figures(RECORDED)
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        draw(recorded, FOLDER / f"{name}.png")
    for name, (experiment, table) in EXPERIMENTS.items():
        # The first table of an experiment has all that is drawn.
        rows = read_rows(TABLES / f"{table}.csv")
        experiment.draw([rows], OF_EXPERIMENTS / f"{name}.png")


def number(cell):
    """The first number of a cell, such as "1,763" or "87 %"; None of an empty one."""
    words = cell.replace(",", "").split()
    return float(words[0]) if words else None


def draw_shares(recorded, path):
    """A bar for each library and type: its share of the products alone."""
    table = recorded["libraries"]
    rows = [row for row in table["rows"] if any(row[2::2])]
    with drawing(path, 8, 5) as figure:
        axes = figure.add_subplot()
        for at, (kind, rate, share) in enumerate(
            (("float32", 1, 2), ("bfloat16 or integers", 3, 4))
        ):
            measured = [(n, row) for n, row in enumerate(rows) if row[share]]
            bars = axes.barh(
                [n + 0.4 * at for n, _ in measured],
                [number(row[share]) for _, row in measured],
                height=0.38,
                label=kind,
            )
            labels = [f"{row[share]}: {row[rate]} tokens/s" for _, row in measured]
            axes.bar_label(bars, labels, padding=3, fontsize=8)
        axes.set_yticks([n + 0.2 for n in range(len(rows))], [row[0] for row in rows])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set(
            xlim=(0, 125),
            xlabel="% of the matrix products alone, in the same type",
            title=f"Encoding 32x128 at base size, {table['processor']}",
        )
        figure.legend(loc="outside lower center", ncols=2)


def draw_linear_attention(recorded, path):
    """Seconds and memory of each kind of attention, by length."""
    markers = "osD^vP"
    with drawing(path, 10, 4.2) as figure:
        every = figure.subplots(1, 2)
        names = ("linear-attention-seconds", "linear-attention-memory")
        for axes, name, what in zip(every, names, ("seconds", "peak, MB"), strict=True):
            table = recorded[name]
            lengths = [number(column) for column in table["columns"][1:]]
            for (kind, *cells), marker in zip(table["rows"], markers, strict=True):
                line = "--" if "causal" in kind else "-"
                values = [number(cell) for cell in cells]
                axes.plot(
                    lengths,
                    values,
                    line,
                    label=kind if axes is every[0] else None,
                    marker=marker,
                    markersize=4,
                )
            axes.set(xscale="log", yscale="log", xlabel="tokens", title=what)
            axes.set_xticks(lengths[::3], [f"{length:,.0f}" for length in lengths[::3]])
            axes.minorticks_off()
        figure.suptitle("One layer of width 768 with 12 heads", fontsize="medium")
        figure.legend(loc="outside lower center", ncols=6)


PICTURES = {"encoding": draw_shares, "linear-attention": draw_linear_attention}
# Name -> the experiment, and its table.
EXPERIMENTS = {
    "extrapolation": (Extrapolation, "extrapolation"),
    "lengths": (Lengths, "lengths"),
    "performers": (Performers, "performers"),
    "translation-classical": (Translation, "classical-curves"),
    "translation-multi30k": (Translation, "multi30k-curves"),
}


if __name__ == "__main__":
    sys.exit(main())
