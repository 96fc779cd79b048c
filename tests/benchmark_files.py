"""Files of texts for tests of the benchmarks, and sides without new processes."""

import importlib
import json
import time

import numpy as np

from tools.benchmarks.harness import Benchmark


def write_texts(folder):
    """Twenty reviews of 5 to 24 characters, and twenty poems of 10."""
    random = np.random.default_rng(0)

    def text(count):
        codes = random.integers(106, 200, count)
        return "".join(chr(0x4E00 + code) for code in codes)

    reviews, poems = folder / "reviews.tsv", folder / "poems.jsonl"
    lines = [f"{text(5 + i)}\t{'ab'[i % 2]}\n" for i in range(20)]
    reviews.write_text("".join(lines), encoding="utf-8")
    rows = [{"title": "天地", "lines": [text(5)] * 2} for _ in range(20)]
    poems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [reviews, poems]


class LocalWorker:
    """A side in this process, where everything is imported already."""

    def __init__(self, side):
        self.side = side

    def call(self, method, *arguments):
        return getattr(self.side, method)(*arguments)

    def measure(self, method, *arguments):
        start = time.perf_counter()
        figures = self.call(method, *arguments) or {}
        return {"seconds": time.perf_counter() - start, "peak_mb": 1.0, **figures}

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass


def use_local_sides(monkeypatch):
    """Runs the sides here, except bert4keras, which needs its own process."""
    start = Benchmark.start

    def start_locally(benchmark, name):
        if name == "bert4keras":
            return start(benchmark, name)
        module, class_name = benchmark.sides[name].split(":")
        side_class = getattr(importlib.import_module(module), class_name)
        return LocalWorker(side_class(**benchmark._passed, name=name))

    monkeypatch.setattr(Benchmark, "start", start_locally)
