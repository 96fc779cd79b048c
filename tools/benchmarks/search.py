"""Speed of search among sentences, next to other exact ways.

    python -m tools.benchmarks.search [--texts 100000] [--queries 1000] [--rounds 5]

The texts are real lines, and their vectors those of `roformer-sim-char`. Sides take
turns, each in its own process, and have the same vectors in memory: `index` reads,
encodes and writes all texts, once; the others find the ten nearest texts of all
queries. `recall` is the share of those that all cosines give.
"""

import random
import sys
import time

import numpy as np

from tools import DATA
from tools.benchmarks.harness import Benchmark, Run, Side, compare, make_parser
from tools.benchmarks.texts import FILES, read_lines
from tools.commands import command

MODEL, TOP_K = "roformer-sim-char", 10
SIZES = {
    "texts": (100_000, 300, "lines in the index"),
    "queries": (1000, 20, "other lines, for which the nearest are found"),
    "rounds": (5, 1, "turns of each"),
}
LINES = (*FILES, DATA / "classical" / "classical_modern.tsv.xz")
INDEX, QUERIES, NEAREST = "lines.index", "queries.npy", "nearest.npy"


@command
def main(arguments=None):
    options = make_parser(__doc__, SIZES).parse_args(arguments)
    lines = sorted({line for path in LINES for line in read_lines(path)})
    count = options.texts + options.queries
    lines = [one for one in random.Random(0).sample(lines, count) if one.strip()]
    with Benchmark(options, __spec__.name, SIDES) as benchmark:
        for name, part in (("texts", lines[: -options.queries]), ("queries", lines)):
            file = benchmark.folder / f"{name}.txt"
            part = part if name == "texts" else part[-options.queries :]
            file.write_text("\n".join(part), encoding="utf-8")
        runs = {"index": Run("roformer_keras", "index", warm_up=("warm",), rounds=1)}
        made = compare(benchmark, runs, "making", "texts/s", options.texts, None)
        benchmark.save("index", made)
        runs = {name: Run(name, "search") for name in SIDES}
        runs["roformer_keras, one by one"] = Run("roformer_keras", "search", (1,))
        found = compare(
            benchmark, runs, "searching", "queries/s", options.queries, "numpy"
        )
        benchmark.save("search", found)


class Searching(Side):
    """A side with vectors of the index and of the queries in memory."""

    def arrays(self):
        vectors = np.load(self.folder / INDEX / "vectors.npy")
        return vectors, np.load(self.folder / QUERIES)

    def search(self, rows=None):
        """Finds the nearest of all queries, so many at a time."""
        vectors, queries = self.keep(self.arrays)
        search = self.keep(self.make)
        rows = rows or len(queries)
        start, found = time.perf_counter(), []
        for at in range(0, len(queries), rows):
            found.append(search(vectors, queries[at : at + rows]))
        seconds = time.perf_counter() - start
        nearest = np.load(self.folder / NEAREST)
        pairs = zip(np.concatenate(found).tolist(), nearest.tolist(), strict=True)
        shares = [len({*one} & {*other}) / len(other) for one, other in pairs]
        return {"seconds": seconds, "recall": float(np.mean(shares))}


class RoFormer(Searching):
    def warm(self):
        from roformer_keras import RoFormerSim

        self.model = RoFormerSim.from_preset(MODEL)
        self.model.encode(["今天天气不错"] * 64, verbose=0)
        return {"seconds": 1.0}

    def index(self):
        from roformer_keras.search import build_index

        texts = (self.folder / "texts.txt").read_text(encoding="utf-8").split("\n")
        start = time.perf_counter()
        build_index(self.folder / INDEX, texts, self.model)
        seconds = time.perf_counter() - start
        queries = (self.folder / "queries.txt").read_text(encoding="utf-8").split("\n")
        np.save(self.folder / QUERIES, self.model.encode(queries, verbose=0))
        vectors, queries = self.arrays()
        scores = (row @ vectors.T for row in queries)
        best = [np.argsort(-row, kind="stable")[:TOP_K] for row in scores]
        np.save(self.folder / NEAREST, np.stack(best))
        return {"seconds": seconds}

    def make(self):
        from roformer_keras.search import VectorIndex

        index = VectorIndex(self.folder / INDEX, self.model)
        # Of an index that is open, as a server has it.
        index.nearest(np.zeros((1, index.vectors.shape[1])), TOP_K)
        return lambda vectors, queries: index.nearest(queries, TOP_K).numbers


class NumPy(Searching):
    """One product, of which the best are sorted."""

    def make(self):
        def search(vectors, queries):
            scores = queries @ vectors.T
            best = np.argpartition(-scores, TOP_K, axis=1)[:, :TOP_K]
            order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1)
            return np.take_along_axis(best, order, 1)

        return search


class SentenceTransformers(Searching):
    def make(self):
        import torch
        from sentence_transformers.util import semantic_search

        def search(vectors, queries):
            found = semantic_search(
                *(torch.from_numpy(one) for one in (queries, vectors)), top_k=TOP_K
            )
            return np.array([[hit["corpus_id"] for hit in row] for row in found])

        return search


class Flat(Searching):
    """All cosines, by FAISS."""

    def make(self):
        import faiss

        flat = faiss.IndexFlatIP(self.keep(self.arrays)[0].shape[1])
        flat.add(self.keep(self.arrays)[0])
        return lambda vectors, queries: flat.search(queries, TOP_K)[1]


SIDES = {
    "roformer_keras": RoFormer,
    "numpy": NumPy,
    "sentence_transformers": SentenceTransformers,
    "faiss, exact": Flat,
}


if __name__ == "__main__":
    sys.exit(main())
