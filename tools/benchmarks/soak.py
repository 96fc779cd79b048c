"""Memory and errors of `serve` under mixed requests of many clients, for a long time.

    python -m tools.benchmarks.soak --minutes 30

One server has RoFormer-Sim, another RoFormer-GPT; half of the clients ask each. Each
draws its requests: vectors of 1 to 32 texts of all lengths, similarities, paraphrases;
completions, streams that it reads to their end, and streams that it leaves after some
pieces. The memory of each server is read every ten seconds. It ends with 1 if an answer
has another status than 200, or if the memory of a server grows by more than 1 MB a
minute after the fifth minute, by least squares.
"""

import asyncio
import contextlib
import random
import sys
import time
from collections import Counter

import httpx
import numpy as np
from tqdm import tqdm

from tools.benchmarks.harness import make_parser
from tools.benchmarks.serve import memory_mb, running
from tools.benchmarks.texts import short_lines
from tools.commands import command
from tools.tables import print_table, write_json

SOURCES = ("roformer-sim-char", "roformer-gpt-char")
SIZES = {
    "minutes": (30, 1, "of requests"),
    "clients": (64, 4, "clients of both servers together"),
    "max-batch": (64, 8, "texts that a server puts together"),
}
SAMPLE_SECONDS, SETTLING_MINUTES, MAX_SLOPE = 10, 5, 1.0
HTTPX_TIMEOUT = 120


@command
def main(arguments=None):
    options = make_parser(__doc__, SIZES).parse_args(arguments)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(running(name, options)) for name in SOURCES]
        soak = Soak(options, servers)
        asyncio.run(soak.run())
    rows = []
    for number, source in enumerate(SOURCES):
        times, sizes = np.array(soak.samples[number]).T
        settled = times > SETTLING_MINUTES * (options.minutes > SETTLING_MINUTES)
        slope = np.polyfit(times[settled], sizes[settled], 1)[0]
        middle = sizes[settled][0]
        rows.append([source, int(sizes[0]), int(middle), int(sizes[-1]), slope])
    columns = ("MB at first", "MB when settled", "MB at last", "MB a minute")
    print_table("server", columns, [[*row[:-1], f"{row[-1]:.2f}"] for row in rows])
    print_table("request", ("status", "count"), sorted(soak.rows(), key=str))
    if options.json:
        figures = {"memory": rows, "requests": soak.rows(), "samples": soak.samples}
        write_json(options.json, figures)
    failed = any(status not in (200, "left") for _, status, _ in soak.rows())
    grows = any(row[-1] > MAX_SLOPE for row in rows)
    return int(failed or (grows and options.minutes > SETTLING_MINUTES))


class Soak:
    """The clients, what they got, and the memory of the servers by minutes."""

    def __init__(self, options, servers):
        self.options, self.servers = options, servers
        self.texts = short_lines()
        self.counts = Counter()
        self.samples = [[] for _ in servers]

    def rows(self):
        return [[*key, count] for key, count in self.counts.items()]

    async def run(self):
        self.start = time.monotonic()
        self.end = self.start + 60 * self.options.minutes
        clients = [
            self.client(random.Random(number), number % len(self.servers))
            for number in range(self.options.clients)
        ]
        await asyncio.gather(self.watch(), *clients)

    async def watch(self):
        with tqdm(total=self.options.minutes * 60, unit="s", disable=None) as bar:
            while (now := time.monotonic()) < self.end:
                for (process, _), samples in zip(
                    self.servers, self.samples, strict=True
                ):
                    minutes = (now - self.start) / 60
                    samples.append((minutes, memory_mb(process.pid)))
                await asyncio.sleep(SAMPLE_SECONDS)
                bar.update(SAMPLE_SECONDS)

    async def client(self, draw, number):
        _, port = self.servers[number]
        url = f"http://127.0.0.1:{port}"
        ask = self.ask_gpt if number else self.ask_sim
        async with httpx.AsyncClient(base_url=url, timeout=HTTPX_TIMEOUT) as client:
            while time.monotonic() < self.end:
                try:
                    await ask(client, draw)
                except httpx.TransportError as error:
                    self.counts["connection", type(error).__name__] += 1

    async def post(self, client, route, body):
        answer = await client.post(route, json=body)
        self.counts[route, answer.status_code] += 1

    def some(self, draw, most):
        """Texts of 1 to some 100 characters."""
        texts = draw.choices(self.texts, k=draw.randint(1, most))
        return [text * draw.randint(1, 6) for text in texts]

    async def ask_sim(self, client, draw):
        kind = draw.random()
        if kind < 0.7:
            most = draw.choice((1, 1, 1, 32))
            await self.post(client, "/v1/embeddings", {"input": self.some(draw, most)})
        elif kind < 0.9:
            pairs = [[a, b] for a, b in zip(*[iter(self.texts[:8])] * 2, strict=True)]
            await self.post(client, "/similarity", {"pairs": pairs})
        else:
            body = {"texts": draw.choices(self.texts, k=1), "n": 8, "k": 3}
            body["max_tokens"] = draw.randint(4, 24)
            await self.post(client, "/paraphrase", body)

    async def ask_gpt(self, client, draw):
        route = "/v1/completions"
        text = draw.choice(self.texts)
        # One character may be unknown to the vocabulary, and is refused alone.
        body = {"prompt": text[: draw.randint(min(4, len(text)), len(text))]}
        body["max_tokens"] = draw.randint(4, 64)
        kind = draw.random()
        if kind < 0.3:
            await self.post(client, route, body | {"n": draw.randint(1, 4)})
            return
        pieces, most = 0, draw.randint(1, 12) if kind < 0.7 else 10**9
        body["stream"] = True
        async with client.stream("POST", route, json=body) as answer:
            async for _ in answer.aiter_lines():
                pieces += 1
                if pieces >= most:
                    break
        is_left = answer.status_code == 200 and pieces >= most
        self.counts["stream", "left" if is_left else answer.status_code] += 1


if __name__ == "__main__":
    sys.exit(main())
