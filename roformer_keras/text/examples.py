"""Items of a corpus, tokenized once, in an order set by seed and epoch.

The items are in a folder of memory-mapped files: the concatenated ids of all texts, the
end of each text, starts of words, and labels. Position `n` of a training is item
`n % len` of the permutation of epoch `n // len`, so the number of batches suffices to
resume a training.
"""

import functools
import itertools
import json
import math
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roformer_keras.base.errors import SourceError, refuse
from roformer_keras.io.atomic import make_folder, replacing
from roformer_keras.text.encoders import Item

_RECORD = "record.json"
_IDS, _STARTS, _ENDS, _LABELS = "ids.bin", "starts.bin", "ends.npy", "labels.npy"


def tokenize_corpus(
    folder: Path, identity, records: Iterable[tuple], encode: Any
) -> "TokenizedCorpus":
    """The items of some records, read from the folder if it already holds them."""
    identity = json.loads(json.dumps([identity, encode.identity()]))
    try:
        record = json.loads((folder / _RECORD).read_bytes())
    except (OSError, ValueError):
        record = {}
    if record.get("identity") != identity:
        make_folder(folder.parent)
        with replacing(folder, overwrite=True, folder=True) as partial:
            items = (item for record in records for item in encode(record))
            dtype = "<u2" if encode.max_id < 2**16 else "<i4"
            texts = _write(partial, items, dtype)
            content = {"identity": identity, "texts": texts, "dtype": dtype}
            (partial / _RECORD).write_text(json.dumps(content), encoding="utf-8")
    return TokenizedCorpus(folder)


def _write(folder, items, dtype):
    """Writes the arrays of some items; returns the number of texts in an item."""
    lengths, labels, texts = array("q"), array("d"), 0
    with open(folder / _IDS, "wb") as ids, open(folder / _STARTS, "wb") as starts:
        for item in items:
            texts = len(item.ids)
            for text_ids in item.ids:
                lengths.append(len(text_ids))
                ids.write(text_ids.astype(dtype).tobytes())
            for text_ids in item.starts or ():
                starts.write(text_ids.tobytes())
            if item.label is not None:
                labels.append(item.label)
    refuse(
        not texts,
        "a corpus must hold tokens, got none: look at its files, fields and holdout",
        error=SourceError,
    )
    np.save(folder / _ENDS, np.cumsum(lengths, dtype="int64"))
    np.save(folder / _LABELS, np.array(labels, "float64"))
    return texts


class TokenizedCorpus:
    """The items that `tokenize_corpus` wrote, read on use."""

    def __init__(self, folder: Path):
        record = json.loads((folder / _RECORD).read_bytes())
        self._texts = record["texts"]
        self.ids = np.memmap(folder / _IDS, record["dtype"], "r")
        has_starts = (folder / _STARTS).stat().st_size > 0
        self.starts = np.memmap(folder / _STARTS, bool, "r") if has_starts else None
        self.ends = np.load(folder / _ENDS, mmap_mode="r")
        labels = np.load(folder / _LABELS)
        self._labels = labels if len(labels) else None
        item_ends = self.ends[self._texts - 1 :: self._texts]
        self.lengths = np.diff(item_ends, prepend=0)

    def __len__(self):
        return len(self.lengths)

    def __iter__(self):
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: int) -> Item:
        first = number * self._texts
        bounds = [0 if first == 0 else self.ends[first - 1]]
        bounds += self.ends[first : first + self._texts].tolist()
        slices = [slice(*pair) for pair in itertools.pairwise(bounds)]
        label = None if self._labels is None else float(self._labels[number])
        starts = self.starts
        return Item(
            tuple(self.ids[piece].astype("int32") for piece in slices),
            None if starts is None else tuple(np.array(starts[s]) for s in slices),
            label,
        )

    def document(self, number: int, piece: slice) -> tuple:
        """A slice of an item of one text: its ids, and the starts of its words."""
        first = self.ends[number] - self.lengths[number]
        piece = slice(first + piece.start, first + piece.stop)
        return self.ids[piece], None if self.starts is None else self.starts[piece]


class ItemList(list):
    """Items in memory, which `EpochItems` accepts instead of a tokenized corpus."""

    @property
    def lengths(self) -> np.ndarray:
        return np.array([sum(map(len, item.ids)) for item in self], "int64")


class EpochItems:
    """The items of a tokenized corpus, epoch after epoch, without end.

    Each epoch has every item once, in an order set by the seed and the epoch's number.
    """

    def __init__(
        self,
        corpus: TokenizedCorpus,
        seed: Sequence[int] | None = None,
        *,
        packed: int | None = None,
        separator: int | None = None,
        whole_epochs: bool = False,
    ):
        self._corpus, self._seed = corpus, seed
        self._whole_epochs = whole_epochs
        self._packed, self._separator = packed, separator
        self._size = len(corpus)
        if packed:
            # A corpus too small to fill an item is one short item.
            self._size = max(1, (len(corpus.ids) + len(corpus)) // packed)
        # A batch may hold the end of one epoch and the start of the next.
        self._order = functools.lru_cache(2)(self._draw_order)

    def __len__(self):
        """The number of items in an epoch."""
        return self._size

    def batch(self, number: int, size: int) -> list[Item]:
        """The items of a batch of the endless sequence."""
        if self._whole_epochs:
            epoch, batch_number = divmod(number, math.ceil(self._size / size))
            item_numbers = range(
                batch_number * size, min((batch_number + 1) * size, self._size)
            )
            return [self._item(epoch, n) for n in item_numbers]
        numbers = range(number * size, (number + 1) * size)
        return [self._item(*divmod(number, self._size)) for number in numbers]

    def _item(self, epoch, position):
        if self._packed:
            return self._row(*self._order(epoch), position)
        return self._corpus[self._order(epoch)[0][position]]

    def _draw_order(self, epoch):
        """The order of an epoch's items, and the ends of documents if packed."""
        order = np.arange(len(self._corpus))
        if self._seed is not None:
            np.random.default_rng([*self._seed, epoch]).shuffle(order)
        ends = np.cumsum(self._corpus.lengths[order] + 1) if self._packed else None
        return order, ends

    def _row(self, order, ends, position):
        """Tokens `position * packed` to `(position + 1) * packed` of the documents."""
        start = position * self._packed
        stop = min(start + self._packed, ends[-1])
        first_row, last_row = np.searchsorted(ends, [start, stop - 1], "right")
        ids, starts = [], []
        for n in range(first_row, last_row + 1):
            length = self._corpus.lengths[order[n]]
            before = ends[n] - length - 1
            piece = slice(max(start - before, 0), min(stop - before, length))
            own_ids, own_starts = self._corpus.document(order[n], piece)
            ids.append(own_ids)
            starts.append(own_starts)
            if stop >= ends[n]:
                ids.append([self._separator])
                starts.append([True])
        has_starts = self._corpus.starts is not None
        return Item(
            (np.concatenate(ids).astype("int32"),),
            (np.concatenate(starts),) if has_starts else None,
        )
