"""Requests a second that `serve` answers, and what it takes of memory.

    python -m tools.benchmarks.serve [--clients 1 8 64 256] [--texts 1] [--json FILE]

Clients of one process send lines of poems to `/v1/embeddings`, each when it has got the
last answer. Next to each number of clients stands `encode` in this process, while the
server has nothing to do; they work in turn. It takes as many texts at a time as the
server put together in its first two seconds, on average. Every answer is compared with
that of `encode`.

`--source base` is RoFormer-Sim in its released size with random weights. With
`--clients 64 --rounds 1 --seconds 1800` the memory before and after half an hour is
shown. Clients, server and all else share the cores of the machine.
"""

import asyncio
import base64
import contextlib
import gc
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import uvloop

from tools import ROOT
from tools.commands import Parser, command
from tools.tables import print_table

SOURCE = "roformer-sim-char"
# Of poems that are sent to other models, which are slower.
LINES_OF_OTHERS = 500
SIZES = {
    "seconds": (20, 2, "of each turn"),
    "rounds": (3, 1, "turns of each"),
    "texts": (1, 2, "of a request"),
    "max-batch": (64, 8, "texts that the server puts together"),
}


@command
def main(arguments=None):
    parser = Parser(__doc__, SIZES)
    parser.add_argument("--source", default=SOURCE, help=f"or base; default: {SOURCE}")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--json", type=Path, help="where figures are written")
    options = parser.parse_args(arguments)
    from roformer_keras.server.models import ServedModel
    from roformer_keras.server.search import poem_rows

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        if options.source == "base":
            options.source = str(write_base(Path(folder) / "base"))
        model = ServedModel(options.source)
        texts = [line for line, *_ in poem_rows()]
        if options.source != SOURCE:
            texts = texts[:LINES_OF_OTHERS]
        expected = model.vectors(texts)
        # As the server does: the pauses of clients are not what is measured.
        gc.freeze()
        for clients in options.clients:
            with running(options) as (process, port):
                load = Load(port, texts, options.texts, expected)
                uvloop.run(load.run(clients, 2))
                batch, memory = batch_size(port), memory_mb(process.pid)
                turns = []
                for _ in range(options.rounds):
                    seconds = min(options.seconds, 20)
                    alone = rate_of_encode(model, texts, batch, seconds)
                    answers = uvloop.run(load.run(clients, options.seconds))
                    turns.append((answers["rate"], alone, answers))
                memory = f"{memory} to {memory_mb(process.pid)}"
                rows.append(row_of(clients, batch, turns, memory))
                print(rows[-1], file=sys.stderr)
    title, *columns = rows[0]
    print_table(title, columns, [list(row.values()) for row in rows])
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def write_base(folder):
    """A preset of RoFormer-Sim in its released size, with random weights."""
    from roformer_keras import RoFormerBackbone, RoFormerSim

    small = RoFormerSim.from_preset(SOURCE)
    config = small.config.replace(
        num_layers=12, hidden_dim=768, intermediate_dim=3072, num_heads=12
    )
    model = RoFormerSim(RoFormerBackbone(config))
    model.tokenizer = small.tokenizer
    model.save_to_preset(folder)
    return folder


def batch_size(port):
    """The texts that a server has put together, on average."""
    _, content = uvloop.run(ask(port, "GET", "/metrics"))
    metrics = dict(line.rsplit(" ", 1) for line in content.decode().splitlines())
    texts, batches = (
        float(metrics[f"roformer_batch_texts_{name}"]) for name in ("sum", "count")
    )
    return round(texts / batches)


@contextlib.contextmanager
def running(options):
    """A server and its port, once it answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    flags = ("--port", str(port), "--max-batch", str(options.max_batch), "--quiet")
    words = [sys.executable, "-m", "roformer_keras", "serve", options.source, *flags]
    process = subprocess.Popen(words, cwd=ROOT)
    try:
        for _ in range(600):
            if process.poll() is not None:
                raise RuntimeError(f"the server has ended with {process.returncode}")
            with contextlib.suppress(OSError):
                status, _ = uvloop.run(ask(port, "GET", "/ready"))
                if status == 200:
                    break
            time.sleep(0.2)
        yield process, port
    finally:
        process.terminate()
        process.wait(60)


async def ask(port, method, path):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    answer = await read_answer(reader)
    writer.close()
    return answer


async def read_answer(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(head.partition("content-length:")[2].partition("\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


class Load:
    """Clients that send texts, and check what they get."""

    def __init__(self, port, texts, count, expected):
        self.port, self.expected, self.count = port, expected, count
        starts = range(0, len(texts) - count + 1, count)
        self.requests = [self._request(texts[at : at + count]) for at in starts]
        self.next = 0

    def _request(self, texts):
        body = json.dumps({"input": texts, "encoding_format": "base64"}).encode()
        return (
            b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        ) + body

    async def run(self, clients, seconds):
        """Texts a second, milliseconds of them, and how many got which status."""
        self.times, self.statuses = [], Counter()
        start = time.perf_counter()
        await asyncio.gather(*(self._client(start + seconds) for _ in range(clients)))
        spent = time.perf_counter() - start
        times = sorted(self.times)
        return {
            "rate": self.count * self.statuses[200] / spent,
            "p50": 1000 * times[len(times) // 2],
            "p99": 1000 * times[int(len(times) * 0.99)],
            "statuses": dict(self.statuses),
        }

    async def _client(self, end):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        while (start := time.perf_counter()) < end:
            at = self.next = (self.next + 1) % len(self.requests)
            writer.write(self.requests[at])
            status, content = await read_answer(reader)
            self.times.append(time.perf_counter() - start)
            self.statuses[status] += 1
            if status == 200:
                self._check(at * self.count, json.loads(content)["data"])
        writer.close()

    def _check(self, first, data):
        content = [base64.b64decode(row["embedding"]) for row in data]
        vectors = np.frombuffer(b"".join(content), "<f4").reshape(len(content), -1)
        worst = np.abs(vectors - self.expected[first : first + self.count]).max()
        assert worst < 1e-4, f"a text from {first} on differs by {worst}"


def rate_of_encode(model, texts, batch, seconds):
    """Texts a second of `encode`, so many at a time."""
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        at = count % (len(texts) - batch)
        model.vectors(texts[at : at + batch])
        count += batch
    return count / spent


def row_of(clients, batch, turns, memory):
    """Medians of turns; each rate is compared with that of `encode` before it."""
    rates, alone, under_load = zip(*turns, strict=True)
    statuses = sum((Counter(turn["statuses"]) for turn in under_load), Counter())
    return {
        "clients": clients,
        "texts/s": round(statistics.median(rates), 1),
        "texts a batch": batch,
        "encode of as many, texts/s": round(statistics.median(alone), 1),
        "share": round(statistics.median(map(lambda a, b: a / b, rates, alone)), 2),
        "p50 ms": round(statistics.median(turn["p50"] for turn in under_load), 1),
        "p99 ms": round(statistics.median(turn["p99"] for turn in under_load), 1),
        "other statuses": {k: v for k, v in statuses.items() if k != 200} or "none",
        "MB": memory,
    }


def memory_mb(process_id):
    text = Path(f"/proc/{process_id}/status").read_text(encoding="utf-8")
    return int(text.partition("VmRSS:")[2].split()[0]) // 1024


if __name__ == "__main__":
    sys.exit(main())
