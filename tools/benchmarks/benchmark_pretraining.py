"""How much of a training's speed is left when it reads a corpus, logs and saves.

The same compiled training model of base size does updates in turn on one batch that
lies in memory, by `fit` and nothing besides, and as `roformer-keras pretrain mlm` does
them: from files, through shuffling, tokenizing, masking, the loader and the log. Prints
updates a second of both, the ratio of pairs, the share of the time in which no batch
was ready, and the time that saving a state takes. Before each turn as many updates are
done, untimed, as batches can wait, so that none was made in the other's time.

    python -m tools.benchmarks.benchmark_pretraining [--quick] [--dtypes float32 \\
        mixed_bfloat16]
"""

import argparse
import functools
import statistics
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
from tqdm import tqdm

from roformer_keras.training.pretrain import Run
from roformer_keras.training.pretraining_settings import PretrainingSettings

DTYPES = ("float32", "mixed_bfloat16")
BASE = {"num_layers": 12, "num_heads": 12, "hidden_dim": 768}
TINY = {"num_layers": 2, "num_heads": 2, "hidden_dim": 64}
VOCABULARY = 12_000
# More than the loader keeps ready.
UNTIMED = 6


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=12, help="of one turn")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--quick", action="store_true", help="a tiny model, to try it")
    options = parser.parse_args()
    print(
        "| policy | in memory, updates/s | from files, updates/s | ratio | waiting "
        "| saving, s |"
    )
    print("|---|---|---|---|---|---|")
    for dtype in options.dtypes:
        with tempfile.TemporaryDirectory() as folder:
            report(dtype, measure(Path(folder), dtype, options))


def measure(folder, dtype, options):
    write_corpus(folder / "corpus.txt")
    stage = {
        "steps": 10**6,
        "length": options.length,
        "batch_size": options.batch_size,
    }
    settings = PretrainingSettings.from_dict(
        {
            "objective": "mlm",
            "data": [{"files": [str(folder / "corpus.txt")]}],
            "stages": [stage],
            "model": TINY if options.quick else BASE,
            "dtype": dtype,
        }
    )
    run = Run(settings, folder)
    run.prepare()
    found = {"memory": [], "files": [], "waiting": []}
    with run.stage(0, tqdm(disable=True)) as stage:
        batch = keras.tree.map_structure(
            keras.ops.convert_to_tensor, next(iter(stage.loader))
        )

        def same():
            while True:
                yield batch

        sides = {
            "memory": (same, []),
            "files": (lambda: iter(stage.loader), [stage.recorder]),
        }
        for number in range(-1, options.rounds):
            for side, (batches, callbacks) in sides.items():
                run_updates = functools.partial(
                    updates, stage.trainer, batches(), callbacks
                )
                run_updates(UNTIMED)
                waited = stage.loader.waited
                seconds = run_updates(options.updates)
                # The first turns compile.
                if number >= 0:
                    found[side].append(options.updates / seconds)
                    if side == "files":
                        found["waiting"].append(
                            (stage.loader.waited - waited) / seconds
                        )
            print(f"{dtype}: {number + 1}/{options.rounds}", file=sys.stderr)
        start = time.perf_counter()
        stage.save(stage=0, done=1)
        found["saving"] = time.perf_counter() - start
    return found


def updates(trainer, batches, callbacks, count):
    start = time.perf_counter()
    trainer.fit(
        batches, steps_per_epoch=count, callbacks=callbacks, shuffle=False, verbose=0
    )
    return time.perf_counter() - start


def report(dtype, found):
    memory, files = found["memory"], found["files"]
    ratios = sorted(there / here for here, there in zip(memory, files, strict=True))
    print(
        f"| {dtype} | {statistics.median(memory):.3f} | {statistics.median(files):.3f} "
        f"| {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) "
        f"| {statistics.median(found['waiting']):.2%} | {found['saving']:.1f} |",
        flush=True,
    )


def write_corpus(path):
    generator = np.random.default_rng(0)
    # The vocabulary that is built has the specials and the full stop besides.
    known = np.array([chr(0x4E00 + number) for number in range(VOCABULARY - 107)])
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(20_000):
            count = generator.integers(20, 400)
            file.write("".join(generator.choice(known, count)) + "。\n")


if __name__ == "__main__":
    main()
