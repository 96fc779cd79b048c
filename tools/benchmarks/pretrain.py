"""Speed of pre-training from files, compared with updates on a batch in memory.

    python -m tools.benchmarks.pretrain

The same compiled model updates in turn on one batch in memory, by `fit` alone, and as
`roformer-keras pretrain mlm` does: from files, with shuffling, masking, loader and log.
Prints updates a second, the share of the time in which no batch was ready, and the
seconds of saving a state. Before each turn, untimed updates use up waiting batches.
"""

import itertools
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

from tools.benchmarks.harness import MODEL_SIZES, make_parser, medians, print_runs
from tools.commands import command
from tools.tables import write_json

VOCABULARY = 12_000
# More than the loader keeps ready.
UNTIMED = 6
SIZES = {
    "rounds": (3, 1, "turns of each side"),
    "updates": (12, 2, "updates of a turn"),
    "batch-size": (8, 8, "rows of a batch"),
    "length": (128, 16, "tokens of a row"),
    "lines": (20_000, 200, "lines of the corpus"),
    **MODEL_SIZES,
}


@command
def main(arguments=None):
    options, figures = make_parser(__doc__, SIZES).parse_args(arguments), {}
    for dtype in ("float32",) if options.quick else ("float32", "mixed_bfloat16"):
        with tempfile.TemporaryDirectory() as folder:
            turns, saving = measure(Path(folder), dtype, options)
        figures[dtype] = medians(turns, options.updates)
        print_runs(dtype, "updates/s", figures[dtype], theirs="in memory")
        print(f"saving a state: {saving:.1f} s")
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

    write_corpus(folder / "corpus.txt", options.lines)
    stage = {"steps": 10**6, "length": options.length, "batch_size": options.batch_size}
    settings = {
        "objective": "mlm",
        "data": [{"files": [str(folder / "corpus.txt")]}],
        "stages": [stage],
        "model": {
            "num_layers": options.layers,
            "num_heads": options.hidden // 64,
            "hidden_dim": options.hidden,
        },
        "dtype": dtype,
    }
    run = Comparison(
        PretrainingSettings.from_dict(settings), folder / "run", verbose=False
    )
    run.execute()
    return run.turns, run.saving


def take_turns(stage, options):
    import keras

    batch = keras.tree.map_structure(
        keras.ops.convert_to_tensor, next(iter(stage.loader))
    )
    sides = {
        "in memory": (lambda: (batch for _ in itertools.count()), []),
        "from files": (lambda: iter(stage.loader), [stage.recorder]),
    }
    turns = {side: [] for side in sides}
    # The first turns compile.
    for number in range(-1, options.rounds):
        for side, (batches, callbacks) in sides.items():
            batches = batches()
            update(stage.trainer, batches, callbacks, UNTIMED)
            waited = stage.loader.waited
            seconds = update(stage.trainer, batches, callbacks, options.updates)
            if number >= 0:
                waiting = (stage.loader.waited - waited) / seconds
                turns[side].append({"seconds": seconds, "waiting": waiting})
    return turns


def update(trainer, batches, callbacks, count):
    """Seconds of so many updates."""
    start = time.perf_counter()
    trainer.fit(
        batches, steps_per_epoch=count, callbacks=callbacks, shuffle=False, verbose=0
    )
    return time.perf_counter() - start


def write_corpus(path, lines):
    generator = np.random.default_rng(0)
    # The vocabulary that is built also has the special tokens and the full stop.
    known = np.array([chr(0x4E00 + number) for number in range(VOCABULARY - 107)])
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(lines):
            count = generator.integers(20, 400)
            file.write("".join(generator.choice(known, count)) + "。\n")


if __name__ == "__main__":
    sys.exit(main())
