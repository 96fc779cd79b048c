"""Batches a second of this package's loader, and of Grain's with threads and processes.

    KERAS_BACKEND=jax python -m tools.benchmarks.loaders

They make the same batches of `pretrain mlm`, and nothing is trained on them meanwhile.
They work in turn; medians of the turns are shown, with the smallest and largest, and
the seconds until the first batch. It needs `pip install grain`.
"""

import contextlib
import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tools.commands import Parser, command

LENGTH, ROWS, BATCHES, TURNS = 128, 32, 300, 5
CHARACTERS = [chr(0x4E00 + number) for number in range(5000)]


class Batches:
    """A function from the number of a batch to the batch, made once in each process."""

    def __init__(self, folder):
        self.folder, self.make = folder, None

    def __reduce__(self):
        return Batches, (self.folder,)

    def __call__(self, number):
        self.make = self.make or make_batches(self.folder)
        return self.make(number)


def make_batches(folder):
    from roformer_keras import RoFormerTokenizer
    from roformer_keras.data.examples import EpochItems, tokenize_corpus
    from roformer_keras.data.loader import batch_maker
    from roformer_keras.objectives import OBJECTIVES

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    objective = OBJECTIVES["mlm"](RoFormerTokenizer([*special, *CHARACTERS]), LENGTH)
    random = np.random.default_rng(0)
    records = [
        ("".join(random.choice(CHARACTERS, random.integers(40, 400))),)
        for _ in range(5000)
    ]
    encoder = objective.encoder(objective.rows.tokenizer, LENGTH)
    corpus = tokenize_corpus(Path(folder, "tokens"), [], records, encoder)
    return batch_maker(EpochItems(corpus, [0, 0]), objective, ROWS, [0, 0])


@contextlib.contextmanager
def own(make):
    from roformer_keras.data.loader import Loader

    loader = Loader(make)
    yield iter(loader)
    loader.close()


@contextlib.contextmanager
def grain(make, threads=0, workers=0):
    from absl import flags
    from grain import MapDataset, MultiprocessingOptions, ReadOptions

    # Grain reads flags, which a program must have parsed.
    flags.FLAGS.mark_as_parsed()
    options = ReadOptions(num_threads=threads, prefetch_buffer_size=max(4, threads))
    data = MapDataset.range(10**9).map(make).to_iter_dataset(options)
    if workers:
        data = data.mp_prefetch(MultiprocessingOptions(workers, 4))
    iterator = iter(data)
    yield iterator
    if workers:
        iterator.close()


@command
def main(arguments=None):
    Parser(__doc__).parse_args(arguments)
    sides = {"Loader": own}
    for count in (1, 2, 4):
        sides[f"Grain, {count} threads"] = lambda make, n=count: grain(make, n)
    for count in (1, 2):
        sides[f"Grain, {count} processes"] = lambda make, n=count: grain(make, 1, n)
    with tempfile.TemporaryDirectory() as folder:
        make = Batches(folder)
        make(0)
        speeds, starts = ({name: [] for name in sides} for _ in range(2))
        for _ in range(TURNS):
            for name, side in sides.items():
                start = time.perf_counter()
                with side(make) as batches:
                    first = next(batches)
                    starts[name].append(time.perf_counter() - start)
                    start = time.perf_counter()
                    found = [first, *itertools.islice(batches, BATCHES)]
                    speeds[name].append(BATCHES / (time.perf_counter() - start))
                for number in (0, 1, BATCHES):
                    inputs, *more = make(number)
                    same, *rest = found[number]
                    assert inputs.keys() == same.keys()
                    assert all(np.array_equal(inputs[k], same[k]) for k in inputs)
                    assert all(map(np.array_equal, more, rest)), (name, number)
    for name, values in speeds.items():
        low, high = min(values), max(values)
        speed, wait = map(statistics.median, (values, starts[name]))
        print(f"{name:20} {speed:6.0f} ({low:.0f} to {high:.0f}) {wait:8.2f} s")


if __name__ == "__main__":
    sys.exit(main())
