"""From records to items: the token ids of what becomes a row of a batch.

    corpus -> chunks of records -> encoder -> items

An encoder turns a record into items. `Examples` maps it over the corpus, in other
processes if wanted, and knows at any moment how to go on from the next item. Items do
not depend on the number of processes.

Neither Keras nor a model is imported here, so a worker process is small.
"""

import contextlib
import itertools
import math
import os
import pickle
import queue
import re
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from roformer_keras.checks import check_integer, is_integer
from roformer_keras.data.corpus import Corpus
from roformer_keras.errors import ConfigurationError, SourceError
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.text.words import default_segmenter

__all__ = [
    "DocumentEncoder",
    "Examples",
    "LabelledPairEncoder",
    "PairEncoder",
    "SortedExamples",
    "TeacherPairEncoder",
    "WholePairEncoder",
    "split_sentences",
]

# The text of one task for a worker: long enough that handing it over costs little,
# and short enough that a resumed run has little to repeat.
_CHUNK_CHARACTERS = 1 << 15
# What a record costs beside its text, in characters.
_RECORD_CHARACTERS = 16
# Batches whose items are sorted by length together.
_SORTED_BATCHES = 64
# Chunks that wait, finished or not, for each worker.
_CHUNKS_AHEAD = 3

# Where a text is cut, the best places first: behind the end of a sentence, with the
# quotation marks that close there, and behind a clause or a word.
_CUTS = (
    re.compile("[^\n。！？!?]*[\n。！？!?]+[”’」』）】》〉\"')]*|[^\n。！？!?]+"),
    re.compile("[^；;，,\\s]*[；;，,\\s]+|[^；;，,\\s]+"),
)


def split_sentences(text: str, longest: int) -> list[str]:
    """Cuts a text at the ends of sentences into pieces as long as they may be.

    It is cut after line feeds and 。！？!? (and quotation marks that close there), then
    a sentence that is too long after ；;，, and spaces, then a clause that is too long
    anywhere. Neighbours are joined again, from the left, while they fit.

    Args:
        text: str.
        longest: int, at least 1. Characters of a piece.

    Returns:
        list of str, none of them blank, without spaces around them; apart from such
        spaces their concatenation is the text.
    """
    pieces = []
    current = ""
    for part in _cut(text, longest, _CUTS):
        if len(current) + len(part) > longest:
            pieces.append(current)
            current = part
        else:
            current += part
    pieces.append(current)
    return [stripped for piece in pieces if (stripped := piece.strip())]


def _cut(text, longest, patterns):
    if len(text) <= longest:
        yield text
    elif patterns:
        for part in patterns[0].findall(text):
            yield from _cut(part, longest, patterns[1:])
    else:
        for start in range(0, len(text), longest):
            yield text[start : start + longest]


# === Encoders ===


class _Encoder:
    """What the encoders share.

    Args:
        tokenizer: RoFormerTokenizer.
        limit: int. Tokens of an item, without specials.
        whole_word: bool. Whether beginnings of words are found.
    """

    def __init__(self, tokenizer: RoFormerTokenizer, limit: int, whole_word: bool):
        self.tokenizer = tokenizer
        self._limit = limit
        self._whole_word = whole_word

    def _encode(self, text):
        """The ids of a text, and where a word begins, or None."""
        ids = np.array(self.tokenizer.encode(text)[0][1:-1], "int32")
        return ids, self._word_starts(text, len(ids)) if self._whole_word else None

    def _word_starts(self, text, length):
        if not length:
            return np.zeros(0, bool)
        words = list(map(len, default_segmenter().cut(text)))
        tokens = self.tokenizer.tokenize(text)[1:-1]
        if tokens == list("".join(text.split())):
            # Each character but a space is a token; the general way is slower.
            starts = np.zeros(len(text), bool)
            starts[list(itertools.accumulate(words[:-1], initial=0))] = True
            if length < len(text):
                starts = starts[[not character.isspace() for character in text]]
            return starts
        spans = self.tokenizer.offsets(text)[1:-1]
        # The word of each character, then of each token.
        words = np.repeat(np.arange(len(words)), words)
        words = words[[start for start, _ in spans]]
        starts = np.ones(length, bool)
        starts[1:] = words[1:] != words[:-1]
        # jieba ends a word at an accented letter.
        return starts & [not token.startswith("##") for token in tokens]


class DocumentEncoder(_Encoder):
    """A record whose fields are documents; each gives items of whole sentences.

    Args:
        tokenizer: RoFormerTokenizer.
        length: int, at least 3. Of a row with `[CLS]` and `[SEP]`, so an item has at
            most `length - 2` tokens.
        whole_word: bool. Whether items say where words begin.

    Call arguments:
        record: strs, of any number.

    Returns:
        list of (ids, word_starts): int32 `(tokens,)` without `[CLS]` and `[SEP]`, and
        bool `(tokens,)`, True at the first token of each word, or None.
    """

    def __init__(
        self, tokenizer: RoFormerTokenizer, length: int, whole_word: bool = False
    ):
        _check_length("length", length)
        super().__init__(tokenizer, length - 2, whole_word)

    def __call__(self, record):
        items = []
        for document in record:
            for piece in split_sentences(document, self._limit):
                ids, starts = self._encode(piece)
                # A character may be several tokens, such as a Hangul syllable.
                for start in range(0, len(ids), self._limit):
                    part = slice(start, start + self._limit)
                    items.append((ids[part], None if starts is None else starts[part]))
        return items

    def documents(self, record) -> list:
        """The same of each document as a whole, of any length, for packing."""
        documents = map(self._encode, record)
        return [document for document in documents if len(document[0])]


class PairEncoder(_Encoder):
    """A record of two texts that say the same.

    Args:
        tokenizer: RoFormerTokenizer.
        max_length: int, at least 3. Of each text with `[CLS]` and `[SEP]`; what is
            longer is cut off.
        whole_word: bool. Whether items say where words begin.

    Call arguments:
        record: (str, str).

    Returns:
        list of (a_ids, b_ids, a_starts, b_starts), as of `DocumentEncoder`: one item,
        or none if a text has no token.

    Raises:
        SourceError: the record has not two fields.
    """

    def __init__(
        self, tokenizer: RoFormerTokenizer, max_length: int, whole_word: bool = False
    ):
        _check_length("max_length", max_length)
        super().__init__(tokenizer, max_length - 2, whole_word)

    def __call__(self, record):
        _check_fields(record, "two texts", 2)
        texts = [self._encode(text) for text in record]
        if not all(len(ids) for ids, _ in texts):
            return []
        (a_ids, b_ids), (a_starts, b_starts) = zip(*texts, strict=True)
        limit = self._limit
        if self._whole_word:
            a_starts, b_starts = a_starts[:limit], b_starts[:limit]
        return [(a_ids[:limit], b_ids[:limit], a_starts, b_starts)]


class WholePairEncoder(_Encoder):
    """A record of two texts, the second of which answers the first.

    Args:
        tokenizer: RoFormerTokenizer.
        max_length: int, at least 3. Of each text with `[CLS]` and `[SEP]`; pairs of
            which one is longer are left out, for half a text is not answered by a
            whole one.

    Call arguments:
        record: (str, str).

    Returns:
        list of (a_ids, b_ids), int32 `(tokens,)` without specials: one item, or none if
        a text has no token or is too long.

    Raises:
        SourceError: the record has not two fields.
    """

    def __init__(self, tokenizer: RoFormerTokenizer, max_length: int):
        _check_length("max_length", max_length)
        super().__init__(tokenizer, max_length - 2, whole_word=False)

    def __call__(self, record):
        _check_fields(record, "two texts", 2)
        texts = [self._encode(text)[0] for text in record]
        return [tuple(texts)] if all(0 < len(t) <= self._limit for t in texts) else []


class TeacherPairEncoder:
    """A record of two texts, by the model's tokenizer and by the teacher's.

    Args:
        tokenizer: RoFormerTokenizer of the model.
        teacher_tokenizer: that of the teacher.
        max_length: see `PairEncoder`; of either.
        whole_word: see `PairEncoder`; of the model.

    Call arguments:
        record: (str, str).

    Returns:
        list of (a_ids, b_ids, a_starts, b_starts, a_teacher_ids, b_teacher_ids): one
        item, or none if a text has no token.
    """

    def __init__(self, tokenizer, teacher_tokenizer, max_length, whole_word=False):
        self.encoder = PairEncoder(tokenizer, max_length, whole_word)
        self.teacher_encoder = PairEncoder(teacher_tokenizer, max_length)

    def __call__(self, record):
        items, teacher_items = self.encoder(record), self.teacher_encoder(record)
        return [
            (*item, *teacher_item[:2])
            for item, teacher_item in zip(items, teacher_items, strict=True)
        ]


class LabelledPairEncoder(_Encoder):
    """A record of two texts and a number that says how they belong together.

    Args:
        tokenizer: RoFormerTokenizer.
        max_length: see `PairEncoder`.

    Call arguments:
        record: (str, str, str), the last one a number.

    Returns:
        list of (a_ids, b_ids, label), label a float: one item, or none if a text has
        no token.

    Raises:
        SourceError: the record has not three fields, or no number.
    """

    def __init__(self, tokenizer: RoFormerTokenizer, max_length: int):
        _check_length("max_length", max_length)
        super().__init__(tokenizer, max_length - 2, whole_word=False)

    def __call__(self, record):
        _check_fields(record, "two texts and a label", 3)
        a, b, label = record
        try:
            value = float(label)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise SourceError(
                f"the label of a pair must be a number, got {label!r} with {a!r:.60}; "
                "set fields to the two texts and the label"
            )
        ids = [self._encode(text)[0][: self._limit] for text in (a, b)]
        return [(*ids, value)] if all(map(len, ids)) else []


def _check_length(name, length):
    if not is_integer(length) or length < 3:
        raise ConfigurationError(
            f"{name} must be an integer of at least 3, for [CLS], a token and [SEP]; "
            f"got {length!r}"
        )


def _check_fields(record, what, count):
    if len(record) != count:
        raise SourceError(
            f"a record must be {what}, got {len(record)} fields: {record!r:.60}; set "
            "fields of the corpus"
        )


# === Items ===


class Examples:
    """The items of a corpus, for ever, in an order that a seed decides.

    Args:
        corpus: Corpus. It belongs to this object now: what reads it runs ahead.
        encoder: callable from a record to a list of items, that can be pickled where
            there are workers; with `packed_length`, a `DocumentEncoder`.
        packed_length: int, at least 3, or None. Documents are joined, with `[SEP]`
            between them, and cut into items of exactly `packed_length - 2` tokens; the
            rest of one begins the next, also from epoch to epoch. None: the items are
            those of the encoder.
        workers: int. Processes that encode while the caller does something else; 0
            encodes when an item is asked for. They end with this object, and also if
            its process is killed.

    Raises:
        ConfigurationError: an argument breaks its rule.
        SourceError: from `next`: a file or a record cannot be used, or a whole epoch
            gave no item.
    """

    def __init__(
        self,
        corpus: Corpus,
        encoder: Callable,
        *,
        packed_length: int | None = None,
        workers: int = 0,
    ):
        check_integer("workers", workers, minimum=0)
        if packed_length is not None:
            _check_length("packed_length", packed_length)
            if not isinstance(encoder, DocumentEncoder):
                raise ConfigurationError(
                    "packed_length joins documents, so it needs a DocumentEncoder, got "
                    f"{type(encoder).__name__}; leave packed_length out"
                )
            self._separator = encoder.tokenizer.sep_id
        self._corpus = corpus
        self._packed_length = packed_length
        self._encode = (_Stream if packed_length else _Items)(encoder)
        self._workers = workers
        self._pool = _Pool(self._encode, workers) if workers else None
        self._begin(*_NOTHING)

    def __iter__(self) -> "Examples":
        return self

    def __next__(self):
        while True:
            for item in self._items:
                self._given += 1
                return item
            self._next_chunk()

    def once(self) -> Iterator:
        """The items of one pass over the corpus in the order of its files.

        Leaves the state as it is, and encodes in this process. The last packed item
        may be shorter.
        """
        rest = _NOTHING
        records = self._corpus.once()
        while chunk := _take(records):
            items = self._encode(chunk)
            if self._packed_length:
                items, rest = self._pack(rest, items)
            yield from items
        ids, starts = rest
        # The last document is over: nothing follows its [SEP].
        ids = ids[:-1]
        if len(ids):
            yield ids, None if starts is None else starts[:-1]

    def close(self) -> None:
        """Ends the workers and closes the files."""
        if self._pool:
            self._pool.close()
        self._corpus.close()

    # === State ===

    def state(self) -> dict:
        """Where the items stand, in JSON types; states of one chunk share them."""
        return {**self._start, "given": self._given}

    def restore(self, state: dict) -> None:
        """Goes on with the item that followed when the state was taken.

        Raises:
            ConfigurationError: the state is of another corpus or packed length.
        """
        if state.get("packed_length") != self._packed_length:
            raise ConfigurationError(
                "items go on only as they were made: the state has packed_length="
                f"{state.get('packed_length')!r}, this object {self._packed_length!r}"
            )
        self._corpus.restore(state["corpus"])
        starts = state["rest_starts"]
        self._begin(
            np.array(state["rest"], "int32"),
            None if starts is None else np.array(starts, bool),
        )
        for _ in range(state["given"]):
            next(self)

    # === Chunks ===

    def _begin(self, *rest):
        """Stands where the corpus stands, with the tokens left over from before."""
        self._rest = rest
        self._ahead = deque()
        self._items = iter(())
        self._barren_epoch = None
        self._begin_chunk(self._corpus.state())

    def _begin_chunk(self, corpus_state):
        ids, starts = self._rest
        self._start = {
            "corpus": corpus_state,
            "packed_length": self._packed_length,
            "rest": ids.tolist(),
            "rest_starts": None if starts is None else starts.tolist(),
        }
        self._given = 0

    def _next_chunk(self):
        """Goes to the items of the next chunk of records."""
        if self._pool:
            while len(self._ahead) < _CHUNKS_AHEAD * self._workers:
                start = self._corpus.state()
                self._ahead.append((start, self._pool.submit(_take(self._corpus))))
            start, future = self._ahead.popleft()
            items = future.result()
        else:
            start = self._corpus.state()
            items = self._encode(_take(self._corpus))
        self._begin_chunk(start)
        if self._packed_length:
            is_barren = not len(items[0])
            items, self._rest = self._pack(self._rest, items)
        else:
            is_barren = not items
        self._check_yield(start["epoch"], is_barren)
        self._items = iter(items)

    def _check_yield(self, epoch, is_barren):
        """An error if all records of an epoch were seen and none held a token."""
        if not is_barren:
            self._barren_epoch = None
        elif self._barren_epoch is None:
            self._barren_epoch = epoch
        elif epoch > self._barren_epoch + 1:
            raise SourceError(
                f"a corpus must hold tokens, got none in epoch {epoch - 1}; look at "
                "its files and fields"
            )

    def _pack(self, rest, tokens):
        """Items of the size that is wanted, and the tokens that are left over."""
        ids, starts = (
            None if added is None else np.concatenate([before, added])
            for before, added in zip(rest, tokens, strict=True)
        )
        items = []
        start = 0
        while True:
            # At the beginning of an item there is nothing to separate.
            if start < len(ids) and ids[start] == self._separator:
                start += 1
            end = start + self._packed_length - 2
            if end > len(ids):
                return items, _part(ids, starts, start, end)
            items.append(_part(ids, starts, start, end))
            start = end


class SortedExamples:
    """The items of some examples, so many in a row of similar length.

    As many items as make 64 batches are sorted by length and cut into batches, which
    come in an order that the seed decides.

    Args:
        examples: Examples, of items that are tuples of arrays of ids.
        rows: int. Items of a batch.
        seed: sequence of ints.
    """

    def __init__(self, examples: Examples, rows: int, seed):
        self._examples, self._rows, self._seed = examples, rows, list(seed)
        self._window = -1
        self._ahead = deque()

    def __next__(self):
        if not self._ahead:
            self._begin(self._window + 1)
        self._given += 1
        return self._ahead.popleft()

    def close(self) -> None:
        """As of `Examples`."""
        self._examples.close()

    def state(self) -> dict:
        """Where the items stand, in JSON types."""
        return {"window": self._window, "given": self._given, "examples": self._start}

    def restore(self, state: dict) -> None:
        """Goes on with the item that followed when the state was taken."""
        self._examples.restore(state["examples"])
        self._begin(state["window"])
        for _ in range(state["given"]):
            next(self)

    def _begin(self, window):
        self._window, self._given = window, 0
        self._start = self._examples.state()
        items = [next(self._examples) for _ in range(_SORTED_BATCHES * self._rows)]
        items.sort(key=lambda item: sum(map(len, item)))
        order = np.random.default_rng([*self._seed, window]).permutation(
            _SORTED_BATCHES
        )
        for number in order:
            self._ahead += items[number * self._rows : (number + 1) * self._rows]


_NOTHING = (np.zeros(0, "int32"), np.zeros(0, bool))


def _part(ids, starts, start, end):
    return ids[start:end], None if starts is None else starts[start:end]


def _take(records):
    """The next records, as many as make a chunk; none at the end."""
    chunk = []
    characters = 0
    for record in records:
        chunk.append(record)
        characters += sum(map(len, record)) + _RECORD_CHARACTERS
        if characters >= _CHUNK_CHARACTERS:
            break
    return chunk


class _Items:
    """Records to items, one after the other."""

    def __init__(self, encoder):
        self._encoder = encoder

    def __call__(self, records):
        return [item for record in records for item in self._encoder(record)]


class _Stream:
    """Records to the tokens of their documents, each with a `[SEP]` behind it."""

    def __init__(self, encoder):
        self._encoder = encoder
        self._separator = (
            np.array([encoder.tokenizer.sep_id], "int32"),
            np.ones(1, bool),
        )

    def __call__(self, records):
        parts = [_NOTHING]
        for record in records:
            for document in self._encoder.documents(record):
                parts += [document, self._separator]
        ids, starts = zip(*parts, strict=True)
        is_whole_word = all(start is not None for start in starts)
        return np.concatenate(ids), np.concatenate(starts) if is_whole_word else None


# === Worker processes ===


class _Pool:
    """Processes that run one function, each driven by a thread of this process.

    `multiprocessing` is not used: its processes import the main module again, with
    all that a training script imports, and stay behind when this one is killed. These
    read their tasks from a pipe, and end when it ends.
    """

    def __init__(self, function, size):
        function = pickle.dumps(function)
        self._free = queue.SimpleQueue()
        workers = [_Worker(function) for _ in range(size)]
        for worker in workers:
            self._free.put(worker)
        self._executor = ThreadPoolExecutor(size, "examples")
        self.close = weakref.finalize(self, _end, self._executor, workers)

    def submit(self, task):
        return self._executor.submit(_run, self._free, task)


def _run(free, task):
    worker = free.get()
    try:
        return worker.run(task)
    finally:
        free.put(worker)


def _end(executor, workers):
    executor.shutdown(cancel_futures=True)
    for worker in workers:
        worker.close()


class _Worker:
    def __init__(self, function):
        self._first = function
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        # A session of its own, so that Ctrl-C is for this process alone to handle.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import _serve; _serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )

    def run(self, task):
        process = self._process
        try:
            process.stdin.write(self._first)
            self._first = b""
            pickle.dump(task, process.stdin)
            process.stdin.flush()
            error, result = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            raise SourceError(
                "a process that encodes the corpus ended with code "
                f"{process.wait()}; if memory is short, set workers lower"
            ) from None
        if error is not None:
            raise error
        return result

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def _serve():
    """Runs in a worker: a function, then tasks for it, until there are no more."""
    tasks, results = sys.stdin.buffer, sys.stdout.buffer
    # What is printed would be taken for a result.
    sys.stdout = sys.stderr
    with contextlib.suppress(EOFError, BrokenPipeError):
        function = pickle.load(tasks)
        while True:
            task = pickle.load(tasks)
            try:
                reply = (None, function(task))
            except Exception as error:
                reply = (error, None)
            pickle.dump(reply, results)
            results.flush()
