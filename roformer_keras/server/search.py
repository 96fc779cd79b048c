"""The lines of poems that the page searches, by the vectors of the model."""

import asyncio
import functools
import gzip
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

import numpy as np

from roformer_keras.data.cosines import unit_rows

# Texts whose vectors are computed in one turn, so that others do not wait long.
_CHUNK = 64


@functools.cache
def poem_rows() -> list[list[str]]:
    """Lines of poems, each with the title and the author of its poem."""
    file = resources.files("roformer_keras.server") / "page" / "poems.tsv.gz"
    text = gzip.decompress(file.read_bytes()).decode("utf-8")
    return [line.split("\t") for line in text.splitlines()]


class PoemSearch:
    """Finds the nearest of some three thousand lines of poems.

    Their vectors are computed when the first search begins.

    Args:
        embed: async function from texts to vectors.
        room: int. Texts that may wait for the model.
    """

    def __init__(self, embed: Callable[[list[str]], Awaitable[Any]], room: int):
        self._embed, self._chunk = embed, max(1, min(_CHUNK, room // 2))
        self._vectors: list[Any] = []
        self._task: asyncio.Task | None = None

    async def search(self, text: str, count: int) -> dict:
        """The nearest lines, and the share of lines whose vectors are there yet."""
        if self._task is None or self._has_failed():
            self._task = asyncio.create_task(self._index())
        (vector,) = await self._embed([text])
        query = np.asarray(unit_rows(np.stack([vector])))[0]
        done = len(self._vectors)
        scores = np.stack(self._vectors) @ query if done else np.zeros(0)
        best = np.argsort(-scores, kind="stable")[:count]
        return {
            "share": done / len(poem_rows()),
            "lines": [
                dict(zip(("line", "title", "author"), poem_rows()[i], strict=True))
                | {"similarity": round(float(scores[i]), 4)}
                for i in best
            ],
        }

    def close(self) -> None:
        """Ends the computing of vectors."""
        if self._task is not None:
            self._task.cancel()

    def _has_failed(self):
        """True if a full queue or an error has ended it: it goes on where it was."""
        return self._task.done() and len(self._vectors) < len(poem_rows())

    async def _index(self):
        while (done := len(self._vectors)) < len(poem_rows()):
            rows = poem_rows()[done : done + self._chunk]
            try:
                vectors = await self._embed([line for line, *_ in rows])
            except Exception:
                # The next search tries again.
                return
            self._vectors += list(unit_rows(np.stack(vectors)))
