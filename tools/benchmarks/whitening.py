"""Spearman correlations of cosines with degrees of similarity, plain and whitened.

    python -m tools.benchmarks.whitening --file pairs.tsv --fit texts.tsv

Each row of a file has two texts and a degree, with tabs between. Whitening is that of
`fit_whitening`, over the texts of --fit, without their degrees.
"""

import sys

import numpy as np

from roformer_keras.tables.files import read_table
from tools import DATA
from tools.commands import Parser, command
from tools.tables import print_table

FILE = DATA / "unlicensed" / "sts-b-zh.test.txt.gz"
FIT = DATA / "unlicensed" / "sts-b-zh.train.txt.gz"
SOURCES = ("roformer-char", "roformer-sim-char")
POOLINGS = ("mean", "first")


@command
def main(arguments=None):
    parser = Parser(__doc__)
    parser.add_argument("--file", default=str(FILE))
    parser.add_argument("--fit", default=str(FIT))
    parser.add_argument("--sources", nargs="+", default=SOURCES)
    parser.add_argument("--dims", nargs="+", type=int, default=[128, 64, 32])
    options = parser.parse_args(arguments)
    table = read_table(options.file, 2)
    texts = sorted({text for row in read_table(options.fit, 2).texts for text in row})
    rows = []
    for source in options.sources:
        # The vectors of RoFormer-Sim itself.
        for pooling in (*POOLINGS, *(["pooler"] if "sim" in source else [])):
            figures = measure(source, pooling, table, texts, options.dims)
            rows.append((source, pooling, *figures))
    print(f"{len(table.texts):,} pairs; whitening of {len(texts):,} texts")
    dims = ("whitened", *(f"whitened, {dim}" for dim in options.dims))
    print_table("checkpoint", ("pooling", "plain", *dims), rows)


def measure(source, pooling, table, texts, dims):
    """The correlation without whitening, whitened, and with each of the widths."""
    from roformer_keras import RoFormerSentenceEncoder
    from roformer_keras.tasks.sentence_encoder import whitening_of

    model = RoFormerSentenceEncoder.from_preset(
        source, pooling=pooling, attention="bidirectional", max_length=64
    )
    options = {"normalize": False, "verbose": 0}
    sides = [model.encode(side, **options) for side in zip(*table.texts, strict=True)]
    fitted = model.encode(texts, **options)
    figures = [spearman(sides, table.labels)]
    for dim in (None, *dims):
        kernel, bias = whitening_of(fitted, dim)
        whitened = [side @ kernel + bias for side in sides]
        figures.append(spearman(whitened, table.labels))
    return [f"{figure:.4f}" for figure in figures]


def spearman(sides, labels):
    """Of the cosines of both sides of each pair."""
    from roformer_keras.search.cosines import unit_rows
    from roformer_keras.tasks.measures import NumberMeasure

    cosines = np.multiply(*map(unit_rows, sides)).sum(axis=1)
    expected = [float(label) for label in labels]
    return NumberMeasure(is_scaled=False).report(expected, cosines)["spearman"]


if __name__ == "__main__":
    sys.exit(main())
