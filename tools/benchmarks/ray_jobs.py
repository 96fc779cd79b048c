"""Speed of jobs on Ray: workers of one core each, and what the engine itself costs.

    python -m tools.benchmarks.ray_jobs [--texts 20000] [--rounds 5] [--json FILE]

`workers` embeds poems by one process with all cores, and by one and two workers with a
core each, in turn. Each reads JSON lines and writes JSON lines. The rate counts what
all workers do at the same time: from the end of the first piece of the last one, which
compiles, to the end of the first one. What comes before is `start_s`. `cpu_ms` is the
time of processors that a text takes, which depends less on what else the machine does.

`engine` has a model that answers a row in a known time without computing anything, on
more workers than there are cores. What a row takes beyond that time is the cost of
reading, writing and distributing.

`pieces` has pieces of few rows that take no time: how many of them a command can hand
out and count in a second, which bounds the number of workers.
"""

import dataclasses
import json
import shutil
import sys
import time
from pathlib import Path

from roformer_keras.distributed.job import FolderJob
from roformer_keras.distributed.options import RayOptions
from roformer_keras.distributed.parts import PieceWorker
from roformer_keras.distributed.verbs import Embed, LoadedVerb, Verb
from tools import DATA
from tools.benchmarks.harness import (
    Benchmark,
    Run,
    Side,
    compare,
    make_parser,
    processor,
    show,
)
from tools.benchmarks.texts import read_texts
from tools.commands import command
from tools.tables import print_table

PARTS = ("workers", "engine", "pieces")
POEMS = DATA / "poetry" / "tang_poems.jsonl.gz"
SOURCE = "roformer-sim-char"
SIZES = {
    "texts": (20_000, 40, "poems to embed"),
    "piece-rows": (512, 10, "rows of a piece"),
    "rounds": (5, 1, "turns of each"),
    "rows": (1_000_000, 400, "rows of the fake model"),
    "row-us": (400, 100, "microseconds that the fake model takes for a row"),
    "pieces": (5000, 20, "pieces that take no time"),
    "max-workers": (16, 2, "workers of the fake model; half as many are tried too"),
}


@command
def main(arguments=None):
    parser = make_parser(__doc__, SIZES, PARTS)
    parser.add_argument("--source", default=SOURCE, help=f"default: {SOURCE}")
    options = parser.parse_args(arguments)
    with Benchmark(options, __spec__.name, SIDES) as benchmark:
        print(processor())
        if "workers" in options.parts:
            write_texts(benchmark.folder / "texts.jsonl", options.texts)
            found = compare(
                *(benchmark, {name: Run(name, "embed") for name in SIDES}),
                *(f"{options.texts:,} poems", "texts/s", options.texts, ONE),
            )
            benchmark.save("workers", found)
        if "engine" in options.parts:
            benchmark.save("engine", measure_engine(options, benchmark.folder))
        if "pieces" in options.parts:
            benchmark.save("pieces", measure_pieces(options, benchmark.folder))


def write_texts(path, count):
    """JSON lines of poems, again from the first one if there are too few."""
    poems = sorted(set(read_texts(POEMS)))
    texts = [poems[number % len(poems)] for number in range(count)]
    rows = [{"id": number, "text": text} for number, text in enumerate(texts)]
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")


# === Workers ===


def make_job(verb, folder, **options):
    output = Path(folder) / f"out-{time.time_ns()}"
    return FolderJob(verb, Path(folder) / "texts.jsonl", output, RayOptions(**options))


def joint_rate(results):
    """Rows per second of all workers, while all of them work; and when that began."""
    by_process: dict = {}
    for result in results:
        by_process.setdefault(result["process"], []).append(result)
    begin = max(own[0]["ended"] for own in by_process.values())
    end = min(own[-1]["ended"] for own in by_process.values())
    rate = 0.0
    for own in by_process.values():
        own = [one for one in own if begin <= one["began"] and one["ended"] <= end]
        if own:
            seconds = own[-1]["ended"] - own[0]["began"]
            rate += sum(one["rows"] for one in own) / seconds
    if not rate:
        # Too few pieces for all to work at the same time.
        times = [(one["began"], one["ended"]) for one in results]
        seconds = max(end for _, end in times) - min(start for start, _ in times)
        rate = sum(one["rows"] for one in results) / max(seconds, 1e-3)
    return rate, begin


class OneProcess(Side):
    """The work of a worker, without Ray, on all cores."""

    def embed(self):
        begin = time.time()
        verb = Embed(source=self.source)
        with make_job(verb, self.folder, piece_rows=self.piece_rows) as job:
            worker, results = PieceWorker(job._task), []
            for number, piece in enumerate(job.pieces):
                row = {"piece": number, **piece._asdict()}
                found = worker({name: [value] for name, value in row.items()})
                results.append({name: values[0] for name, values in found.items()})
        return _figures(results, begin, self.texts)


class Workers(Side):
    """A job from its start to its end, its Ray included."""

    count = 1

    def embed(self):
        begin = time.time()
        options = {"piece_rows": self.piece_rows, "num_workers": self.count}
        with make_job(Embed(source=self.source), self.folder, **options) as job:
            results = list(job.run())
        return _figures(results, begin, self.texts)


class TwoWorkers(Workers):
    count = 2


def _figures(results, begin, texts):
    assert sum(one["rows"] for one in results) == texts
    assert not any(one["error"] or one["bad"] for one in results)
    rate, ready = joint_rate(results)
    # The first piece of a worker compiles.
    first = {one["process"]: one["piece"] for one in reversed(results)}
    rest = [one for one in results if first[one["process"]] != one["piece"]] or results
    cpu = sum(one["cpu"] for one in rest) / sum(one["rows"] for one in rest)
    return {
        # Of all texts at this rate.
        "seconds": texts / rate,
        "cpu_ms": cpu * 1000,
        "start_s": ready - begin,
        "all_s": time.time() - begin,
    }


ONE = "one process, all cores"
SIDES = {
    ONE: OneProcess,
    "1 worker, 1 core": Workers,
    "2 workers, 1 core each": TwoWorkers,
}


# === The engine ===


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fake(Verb):
    """A model that takes a known time for a row."""

    row_us: int = 0

    column = "score"

    def load(self):
        def answer(rows, numbers):
            time.sleep(len(rows) * self.row_us / 1e6)
            return {"score": [float(len(text)) for (text,) in rows]}

        return LoadedVerb(lambda row: None, answer)


def measure_engine(options, folder: Path):
    """What a row costs beyond the time of the model, by the number of workers."""
    write_texts(folder / "texts.jsonl", options.rows)
    verb = Fake(source=SOURCE, row_us=options.row_us)
    figures, rows = {}, []
    for count in (options.max_workers // 2, options.max_workers):
        begin = time.time()
        with make_job(verb, folder, num_workers=count) as job:
            indexed = time.time()
            results = list(job.run())
            output = Path(job._folder.path)
        rate, ready = joint_rate(results)
        ideal = count / options.row_us * 1e6
        figures[count] = {
            "rate": rate,
            "ideal": ideal,
            "overhead_us": (count / rate * 1e6) - options.row_us,
            "index_s": indexed - begin,
            "start_s": ready - indexed,
            "all_s": time.time() - begin,
        }
        shutil.rmtree(output)
        own = figures[count]
        share = f"{rate / ideal:.0%}"
        rows.append([count, show(rate), share, *(show(own[k]) for k in _SHOWN)])
    print_table(
        f"{options.rows:,} rows of {options.row_us} us",
        ("workers", "rows/s", "of the model's", *_SHOWN),
        rows,
    )
    return figures


def measure_pieces(options, folder: Path):
    """Pieces per second that the command handles."""
    write_texts(folder / "texts.jsonl", options.pieces * 4)
    verb = Fake(source=SOURCE, row_us=0)
    with make_job(verb, folder, num_workers=2, piece_rows=4) as job:
        results = list(job.run())
    begin, end = results[0]["ended"], max(one["ended"] for one in results)
    rate = len(results) / (end - begin)
    print(f"\n{len(results):,} pieces, {rate:,.0f} a second")
    return {"pieces": len(results), "rate": rate}


_SHOWN = ("overhead_us", "index_s", "start_s", "all_s")

if __name__ == "__main__":
    sys.exit(main())
