"""Counts how often the right text comes first: by vectors, and by a classifier.

    python -m tools.benchmarks.reranking [--train 8000] [--queries 500]

A query is a sentence in modern Chinese, the right text the same one in classical
Chinese. The vectors of `roformer-sim-char` find the nearest classical sentences; a
classifier of pairs, fine-tuned from the same checkpoint, ranks these. It is trained on
right pairs, and on the nearest wrong texts of each query. The queries are of books that
neither has seen.
"""

import random
import sys
import time

import numpy as np

from tools import DATA
from tools.commands import Parser, command
from tools.tables import print_table

MODEL = "roformer-sim-char"
FILE = DATA / "classical" / "classical_modern.tsv.xz"
# As in checkpoints/training/roformer-sim-char.toml: eleven books.
HOLDOUT = 0.112
COLUMNS = ("comes first", "is among 5", "mean reciprocal rank, to 10")


@command
def main(arguments=None):
    parser = Parser(__doc__)
    parser.add_argument("--file", default=str(FILE), help="classical, modern, book")
    for name, count, about in (
        ("train", 8000, "pairs to train on"),
        ("wrong", 2, "wrong texts for each of them"),
        ("epochs", 2, "of the training"),
        ("queries", 500, "held-out queries"),
        ("batch-size", 32, "pairs of an update"),
        ("top-k", 20, "texts of a query that are ranked again"),
    ):
        parser.add_argument(f"--{name}", type=int, default=count, help=about)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    options = parser.parse_args(arguments)
    import keras

    keras.utils.set_random_seed(0)
    search, classifier = train(options)
    held_out = pairs_of(options.file, "held_out")
    asked = random.Random(0).sample(held_out, options.queries)
    texts = sorted({classical for classical, _ in held_out})
    found = nearest(search, [modern for _, modern in asked], texts, options.top_k)
    start = time.perf_counter()
    orders = [
        [number for number, _ in classifier.rerank(modern, near)]
        for (_, modern), near in zip(asked, found, strict=True)
    ]
    seconds = (time.perf_counter() - start) / len(asked)
    ranked = [
        [near[number] for number in order]
        for order, near in zip(orders, found, strict=True)
    ]
    right = [classical for classical, _ in asked]
    among = np.mean([text in near for text, near in zip(right, found, strict=True)])
    print(
        f"{len(asked)} queries among {len(texts):,} texts; the right text is among the "
        f"nearest {options.top_k} of {100 * among:.1f} %; to rank these took "
        f"{1000 * seconds:.0f} ms a query"
    )
    way = f"vectors, then a classifier of the nearest {options.top_k}"
    rows = [("vectors", *figures(right, found)), (way, *figures(right, ranked))]
    print_table("right text", COLUMNS, rows)


def pairs_of(file, part):
    """Classical and modern sentences of the books of a part."""
    from roformer_keras import CorpusSource
    from roformer_keras.tables.corpus import read_corpus

    source = CorpusSource(files=(file,), fields=("1", "2"), group="3", holdout=HOLDOUT)
    return list(read_corpus(source, part))


def nearest(model, queries, texts, top_k):
    """The texts nearest to each query, the nearest first."""
    from roformer_keras.search import semantic_search

    vectors = model.encode(texts)
    found = semantic_search(model.encode(queries), vectors, top_k).numbers
    return [[texts[number] for number in row] for row in found]


def train(options):
    """The model of vectors, and the classifier of pairs."""
    from roformer_keras import RoFormerSim, RoFormerTextClassifier
    from roformer_keras.optimizers import make_optimizer

    search = RoFormerSim.from_preset(MODEL)
    chosen = random.Random(1).sample(pairs_of(options.file, "train"), options.train)
    texts = sorted({classical for classical, _ in chosen})
    queries = [modern for _, modern in chosen]
    pairs, labels = [], []
    for (right, modern), near in zip(
        chosen, nearest(search, queries, texts, options.wrong + 1), strict=True
    ):
        wrong = [text for text in near if text != right][: options.wrong]
        pairs += [(modern, text) for text in (right, *wrong)]
        labels += [1] + [0] * len(wrong)
    classifier = RoFormerTextClassifier.from_preset(
        MODEL, classes=[0, 1], max_length=96, pooling="mean"
    )
    steps = options.epochs * -(-len(pairs) // options.batch_size)
    schedule = [(steps // 10, 1.0), (steps, 0.0)]
    classifier.compile(make_optimizer(options.learning_rate, schedule=schedule))
    classifier.fit(pairs, labels, batch_size=options.batch_size, epochs=options.epochs)
    return search, classifier


def figures(right, found):
    """Shares of the queries in percent, and the mean of 1 / rank."""
    ranks = [
        near.index(text) + 1 if text in near else np.inf
        for text, near in zip(right, found, strict=True)
    ]
    ranks = np.array(ranks)
    shares = [f"{100 * np.mean(ranks <= most):.1f} %" for most in (1, 5)]
    return *shares, f"{np.mean(np.where(ranks <= 10, 1 / ranks, 0)):.3f}"


if __name__ == "__main__":
    sys.exit(main())
