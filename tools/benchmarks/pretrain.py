"""Speed of pre-training from files, compared with updates on a batch in memory.

    python -m tools.benchmarks.pretrain [--quick] [--dtypes float32 mixed_bfloat16]

The same compiled training model updates in turn on one batch in memory, by `fit` alone,
and as `roformer-keras pretrain mlm` does: from files, with shuffling, tokenizing,
masking, the loader and the log. Prints updates a second, their ratio, the share of the
time in which no batch was ready, and the seconds that saving a state takes. Before each
turn come as many untimed updates as batches can wait, so that none of them was made
during the other's turn.
"""

import functools
import itertools
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

from tools.benchmarks.harness import (
    exit_with_error,
    make_parser,
    medians,
    print_table,
    ratios,
    show_ratios,
)
from tools.tables import write_json

DTYPES = ("float32", "mixed_bfloat16")
BASE = {"num_layers": 12, "num_heads": 12, "hidden_dim": 768}
TINY = {"num_layers": 2, "num_heads": 2, "hidden_dim": 64}
VOCABULARY = 12_000
# More than the loader keeps ready.
UNTIMED = 6
SIZES = {
    "rounds": (3, "turns of each side"),
    "updates": (12, "updates of a turn"),
    "batch-size": (8, "rows of a batch"),
    "length": (128, "tokens of a row"),
}


def main(arguments=None):
    parser = make_parser(__doc__, SIZES)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--quick", action="store_true", help="a tiny model, to try it")
    options = parser.parse_args(arguments)
    figures, rows = {}, []
    for dtype in options.dtypes:
        with tempfile.TemporaryDirectory() as folder:
            turns, saving = measure(Path(folder), dtype, options)
        found = figures[dtype] = medians(turns, options.updates)
        found["files"]["saving"] = saving
        files = found["files"]
        rows.append(
            (
                dtype,
                f"{found['memory']['rate']:.3f}",
                f"{files['rate']:.3f}",
                show_ratios(ratios(found, "files", "memory")),
                f"{files['waiting']:.2%}",
                f"{saving:.1f}",
            )
        )
    columns = ("in memory", "from files", "ratio", "waiting", "saving, s")
    print_table("updates/s", columns, rows)
    if options.json:
        write_json(options.json, figures)


def measure(folder, dtype, options):
    """Figures of the turns of each side, and the seconds of saving a state."""
    from roformer_keras.training.pretrain import PretrainingRun
    from roformer_keras.training.pretraining_settings import PretrainingSettings

    class Comparison(PretrainingRun):
        def train(self):
            with self.stage(0, tqdm(disable=True)) as stage:
                self.turns = take_turns(stage, options)
                start = time.perf_counter()
                stage.save(stage=0, done=1, tokens=0)
                self.saving = time.perf_counter() - start

        def write_results(self):
            """Nothing is kept."""

    write_corpus(folder / "corpus.txt")
    stage = {"steps": 10**6, "length": options.length, "batch_size": options.batch_size}
    settings = {
        "objective": "mlm",
        "data": [{"files": [str(folder / "corpus.txt")]}],
        "stages": [stage],
        "model": TINY if options.quick else BASE,
        "dtype": dtype,
    }
    settings = PretrainingSettings.from_dict(settings)
    run = Comparison(settings, folder / "run", verbose=False)
    run.execute()
    return run.turns, run.saving


def take_turns(stage, options):
    import keras

    batch = keras.tree.map_structure(
        keras.ops.convert_to_tensor, next(iter(stage.loader))
    )
    sides = {
        "memory": (lambda: (batch for _ in itertools.count()), []),
        "files": (lambda: iter(stage.loader), [stage.recorder]),
    }
    turns = {side: [] for side in sides}
    # The first turns compile.
    for number in range(-1, options.rounds):
        for side, (batches, callbacks) in sides.items():
            run = functools.partial(updates, stage.trainer, batches(), callbacks)
            run(UNTIMED)
            waited = stage.loader.waited
            seconds = run(options.updates)
            if number >= 0:
                waiting = (stage.loader.waited - waited) / seconds
                turns[side].append({"seconds": seconds, "waiting": waiting})
    return turns


def updates(trainer, batches, callbacks, count):
    start = time.perf_counter()
    trainer.fit(
        batches, steps_per_epoch=count, callbacks=callbacks, shuffle=False, verbose=0
    )
    return time.perf_counter() - start


def write_corpus(path):
    generator = np.random.default_rng(0)
    # The vocabulary that is built also has the special tokens and the full stop.
    known = np.array([chr(0x4E00 + number) for number in range(VOCABULARY - 107)])
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(20_000):
            count = generator.integers(20, 400)
            file.write("".join(generator.choice(known, count)) + "。\n")


if __name__ == "__main__":
    sys.exit(exit_with_error(main))
