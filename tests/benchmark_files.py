"""What tests of the benchmarks share: files of texts, and sides without new processes.

Importing TensorFlow takes seconds in each process. Sides of this package run in the
process of the tests, and those of bert4keras in one process that all tests share.
"""

import importlib
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np

from tools.benchmarks.harness import Benchmark
from tools.reference import full_size_checkpoint
from tools.reference.bert4keras import environment


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
        found = self.call(method, *arguments) or {}
        return {"seconds": time.perf_counter() - start, "peak_mb": 1.0, **found}

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass


class Sides:
    """Sides of any benchmarks, in the process of bert4keras."""

    def __init__(self, name):
        self.sides = []

    def make(self, target, options):
        """The number of a new side of a class, `"module:Class"`."""
        self.sides.append(make_side(target, options))
        return len(self.sides) - 1

    def call(self, number, method, *arguments):
        return getattr(self.sides[number], method)(*arguments)

    def end(self, number):
        self.sides[number] = None


class SharedWorker:
    """A side in the process that tests share."""

    def __init__(self, process, target, options):
        self.process, self.number = process, process.call("make", target, options)

    def call(self, method, *arguments):
        return self.process.call("call", self.number, method, *arguments)

    def measure(self, method, *arguments):
        return self.process.measure("call", self.number, method, *arguments)

    def close(self):
        self.process.call("end", self.number)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


def make_side(target, options):
    module, name = target.split(":")
    return getattr(importlib.import_module(module), name)(**options)


class Processes:
    """Processes that tests share, each started when it is first needed.

    One computes with the real bert4keras; one writes its checkpoints, which takes
    TensorFlow's graph mode; one for each backend has the sides of this package, unless
    they are local.
    """

    def __init__(self):
        self.workers, self.writer = {}, None

    def start(self, benchmark, side, start, are_local):
        """In place of `Benchmark.start`, which is given."""
        target, options = benchmark.sides[side], {**benchmark._passed, "name": side}
        if side == "bert4keras":
            kind = side
        elif are_local:
            return LocalWorker(make_side(target, options))
        else:
            kind = os.environ.get("KERAS_BACKEND")
        if kind not in self.workers:
            sides = {side: "tests.benchmark_files:Sides"}
            shared = SimpleNamespace(sides=sides, _passed={})
            self.workers[kind] = start(shared, side)
        return SharedWorker(self.workers[kind], target, options)

    def run_jobs(self, jobs):
        """In place of `run_jobs`, for checkpoints."""
        if self.writer is None:
            self.writer = subprocess.Popen(
                [sys.executable, "-m", "tools.reference.process", "--graph"],
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        for job in jobs:
            assert job["op"] == "write"
            print(json.dumps(job), file=self.writer.stdin, flush=True)
        return [json.loads(self.writer.stdout.readline()) for _ in jobs]

    def install(self, monkeypatch, are_local=True):
        start = Benchmark.start

        def start_shared(benchmark, side):
            return self.start(benchmark, side, start, are_local)

        monkeypatch.setattr(Benchmark, "start", start_shared)
        monkeypatch.setattr(full_size_checkpoint, "run_jobs", self.run_jobs)

    def close(self):
        for worker in self.workers.values():
            worker.close()
        if self.writer is not None:
            self.writer.communicate()
