"""Texts a second that `serve` answers, as a share of `encode` in process.

    python -m tools.benchmarks.serve [--parts lines small base fair] [--clients 16 64]

Clients send texts to `/v1/embeddings` over connections that stay open, each when it has
got the last answer. They are all in one process, and take turns with `encode` in
another process, which gets as many texts a call as there are clients, times the texts
of a request. Neither works in the turn of the other, and the server has a process of
its own; but server and clients share the cores of the machine. All vectors are
compared with those of `encode`. Parts:

lines   roformer-sim-char, and lines of poems.
small   4 layers of width 312, random weights, and texts of 32 and of 128 tokens.
base    The same of 12 layers of width 768.
fair    The time of short requests alone and next to a long one.

`CPU` is the time of the cores for a text, in ms: of the server, of the clients, and of
the process of `encode`. With `--clients 64 --rounds 1 --seconds 1800` the memory of the
server before and after half an hour is shown.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import random
import re
import resource
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np
import uvloop

from tools import ROOT
from tools.benchmarks import fair
from tools.benchmarks.fair import Asker
from tools.benchmarks.figure_tables import (
    FAIR_COLUMNS,
    SERVING_COLUMNS,
    fair_rows,
    serving_row,
)
from tools.benchmarks.harness import Benchmark, Run, Side, make_parser, take_turns
from tools.benchmarks.texts import POEMS, read_lines
from tools.commands import command
from tools.tables import print_table

SOURCE = "roformer-sim-char"
LENGTHS = (32, 128)
# Texts of a length, and the most lines of poems.
TEXTS, LINES = 512, 3000
SIZES = {
    "seconds": (10, 1, "of each turn"),
    "rounds": (5, 1, "turns of each"),
    "texts": (1, 2, "texts of a request"),
    "max-batch": (64, 8, "texts that the server puts together"),
}
# Part -> layers, width and heads; None is a released model.
PARTS = {"lines": None, "small": (4, 312, 12), "base": (12, 768, 12), "fair": None}


@command
def main(arguments=None):
    parser = make_parser(__doc__, SIZES, PARTS)
    parser.add_argument("--clients", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--encoding", choices=("base64", "float"), default="base64")
    options = parser.parse_args(arguments)
    sides = {"encode": Encode, "clients": Clients, "asker": Asker}
    with Benchmark(options, "tools.benchmarks.serve", sides) as benchmark:
        benchmark.save("encoding", options.encoding)
        for part in options.parts:
            if part == "fair":
                benchmark.save(part, figures := fair.measure(benchmark, running))
                print_table(part, ("next to", *FAIR_COLUMNS), fair_rows(figures))
            else:
                benchmark.save(part, measure(benchmark, part))
            benchmark.stop()


def measure(benchmark, part):
    """The figures of a model, by the texts and the number of clients."""
    options, figures, rows = benchmark.options, {}, []
    encode = benchmark["encode"]
    source = encode.call("write_source", part)
    with running(source, options) as (process, port):
        for name in encode.call("write_texts", part, source):
            for clients in options.clients:
                texts = clients * options.texts
                runs = {
                    "encode": Run("encode", "rate", (source, name, texts)),
                    "serve": Run("clients", "rate", (port, name, clients)),
                }
                before = batches(port), memory_mb(process.pid)
                turns = take_turns(benchmark, runs, f"{name}, {clients} clients")
                batch, memory = batches(port) - before[0], memory_mb(process.pid)
                figures[f"{name}, {clients} clients"] = case = {
                    "clients": clients,
                    "turns": turns,
                    "texts of a batch": float(batch[0] / batch[1]),
                    "MB": [before[1], memory],
                }
                rows.append(serving_row(name, case))
    print_table(part, SERVING_COLUMNS, rows)
    return figures


# === The server ===


@contextlib.contextmanager
def running(source, options):
    """A server and its port, once it answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    flags = ("--port", str(port), "--max-batch", str(options.max_batch), "--quiet")
    # On a machine that has other work too, nothing is late.
    flags += ("--timeout", "600")
    words = [sys.executable, "-m", "roformer_keras", "serve", source, *flags]
    process = subprocess.Popen(words, cwd=ROOT)
    try:
        for _ in range(600):
            if process.poll() is not None:
                raise RuntimeError(f"the server has ended with {process.returncode}")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    break
            time.sleep(0.2)
        yield process, port
    finally:
        process.terminate()
        process.wait(60)


def batches(port):
    """Texts and batches that a server has computed."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    return np.array(
        [
            float(re.search(rf"^roformer_batch_texts_{name} (.*)", text, re.M)[1])
            for name in ("sum", "count")
        ]
    )


def memory_mb(process_id):
    text = Path(f"/proc/{process_id}/status").read_text(encoding="utf-8")
    return int(text.partition("VmRSS:")[2].split()[0]) // 1024


def cpu_of_listener(port):
    """Seconds of the cores of the process that listens at a port."""
    inode = next(
        line.split()[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()
        if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
    )
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if link.readlink().name == f"socket:[{inode}]":
                numbers = (link.parents[1] / "stat").read_text().rpartition(")")[2]
                return sum(map(int, numbers.split()[11:13])) / 100
    raise RuntimeError(f"no process listens at {port}")


# === The sides ===


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Encode(Side):
    """`encode` in process; writes the models and the texts too."""

    def write_source(self, part):
        """The source of a part's model, which is written unless it is released."""
        if PARTS[part] is None:
            return SOURCE
        from roformer_keras import RoFormerBackbone, RoFormerSim

        layers, hidden, heads = PARTS[part]
        small = RoFormerSim.from_preset(SOURCE)
        config = small.config.replace(
            num_layers=layers,
            hidden_dim=hidden,
            intermediate_dim=4 * hidden,
            num_heads=heads,
        )
        model = RoFormerSim(RoFormerBackbone(config))
        model.tokenizer = small.tokenizer
        model.save_to_preset(self.folder / part)
        return str(self.folder / part)

    def write_texts(self, part, source):
        """Writes texts of several lengths, and their vectors; returns their names."""
        if PARTS[part] is None:
            # Titles and authors have none.
            lines = (line for line in read_lines(POEMS) if "，" in line)
            texts = {part: list(itertools.islice(lines, LINES))}
        else:
            characters = [
                token
                for token in self.model(source).tokenizer.vocabulary
                if "\u4e00" <= token <= "\u9fff"
            ]
            draw = random.Random(0)
            texts = {
                # With [CLS] and [SEP].
                f"{part}, {length} tokens": [
                    "".join(draw.choices(characters, k=length - 2))
                    for _ in range(TEXTS)
                ]
                for length in LENGTHS
            }
        for name, lines in texts.items():
            (self.folder / f"{name}.json").write_text(json.dumps(lines))
            np.save(self.folder / f"{name}.npy", self.encode(source, lines))
        return list(texts)

    def model(self, source):
        from roformer_keras import RoFormerSim

        return self.keep(RoFormerSim.from_preset, source)

    def encode(self, source, texts):
        return self.model(source).encode(texts, verbose=0)

    def rate(self, source, name, count):
        """Texts a second, so many a call."""
        texts = json.loads((self.folder / f"{name}.json").read_text())
        done, cpu, start = 0, cpu_seconds(), time.perf_counter()
        while (spent := time.perf_counter() - start) < self.seconds:
            at = done % max(1, len(texts) - count)
            done += len(self.encode(source, texts[at : at + count]))
        return {"rate": done / spent, "cpu": 1000 * (cpu_seconds() - cpu) / done}


class Clients(Side):
    """Clients that send texts, and check what they get."""

    def rate(self, port, name, clients):
        """Texts a second, milliseconds of requests, and how many got which status."""
        load = self.keep(Load, self.folder / f"{name}.json", self.texts, self.encoding)
        cpu, server = cpu_seconds(), cpu_of_listener(port)
        rate, times = uvloop.run(load.run(port, clients, self.seconds))
        done = self.texts * len(times)
        cpu, server = cpu_seconds() - cpu, cpu_of_listener(port) - server
        load.check()
        return {
            "rate": rate,
            "p50": 1000 * times[len(times) // 2],
            "p99": 1000 * times[int(len(times) * 0.99)],
            "statuses": dict(load.statuses),
            "cpu": 1000 * cpu / done,
            "server cpu": 1000 * server / done,
        }


class Load:
    """Requests of texts, and the last answer to each."""

    def __init__(self, path, count, encoding):
        texts = json.loads(path.read_text())
        self.expected, self.encoding = np.load(path.with_suffix(".npy")), encoding
        starts = range(0, len(texts) - count + 1, count)
        self.count = count
        self.requests = [self._request(texts[at : at + count]) for at in starts]
        self.next = 0

    def _request(self, texts):
        body = json.dumps({"input": texts, "encoding_format": self.encoding}).encode()
        return (
            b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        ) + body

    async def run(self, port, clients, seconds):
        """Texts a second, and the sorted seconds of requests."""
        self.times, self.statuses, self.answers = [], Counter(), {}
        start = time.perf_counter()
        self.end = start + seconds
        loop = asyncio.get_running_loop()
        connections = [
            await loop.create_connection(lambda: Client(self), "127.0.0.1", port)
            for _ in range(clients)
        ]
        await asyncio.gather(*(client.ended for _, client in connections))
        spent = time.perf_counter() - start
        return self.count * self.statuses["200"] / spent, sorted(self.times)

    def check(self):
        """Compares the answers with `encode`."""
        for number, content in self.answers.items():
            vectors = [row["embedding"] for row in json.loads(content)["data"]]
            if self.encoding == "base64":
                vectors = [np.frombuffer(base64.b64decode(x), "<f4") for x in vectors]
            first = number * self.count
            expected = self.expected[first : first + self.count]
            worst = np.abs(np.array(vectors) - expected).max()
            assert worst < 1e-4, f"a text from {first} on differs by {worst}"


class Client(asyncio.Protocol):
    """A connection that sends a request when it has the answer to the last.

    A protocol takes a tenth of the time of asyncio's streams.
    """

    def __init__(self, load):
        self.load, self.received = load, b""
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        self.send()

    def send(self):
        load, self.start = self.load, time.perf_counter()
        if self.start >= load.end:
            self.transport.close()
            self.ended.set_result(None)
            return
        self.number = load.next = (load.next + 1) % len(load.requests)
        self.transport.write(load.requests[self.number])

    def data_received(self, data):
        self.received += data
        head, _, content = self.received.partition(b"\r\n\r\n")
        if not content:
            return
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if len(content) < int(length):
            return
        status = head.split(maxsplit=2)[1].decode()
        self.load.times.append(time.perf_counter() - self.start)
        self.load.statuses[status] += 1
        if status == "200":
            self.load.answers[self.number] = content
        self.received = b""
        self.send()

    def connection_lost(self, error):
        if not self.ended.done():
            self.ended.set_exception(error or ConnectionError("the server has closed"))


if __name__ == "__main__":
    sys.exit(main())
