"""Loading and encoding, against the real bert4keras in the same run.

    python tools/benchmark.py                      # the base model, 12x768
    python tools/benchmark.py --layers 6 --hidden 384 --rounds 3

The real bert4keras writes a checkpoint of random weights first. Then both sides work in
turn, each in a process of its own: loads in fresh processes, encodes in one that stays.
Figures are medians; the ratio is the median of the ratios of neighbouring runs. The
limit is the time of the model's matrix products alone, on the same threads.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from full_size_checkpoint import write_checkpoint
from workers import Worker, serve

SIDES = ("roformer_keras", "bert4keras")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=12000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    with tempfile.TemporaryDirectory() as scratch:
        options.folder = Path(scratch)
        write_checkpoint(
            options.folder,
            "roformer",
            options.layers,
            options.hidden,
            options.vocabulary,
        )
        loads = measure_loads(options)
        encodes, limits = measure_encodes(options)
    report(options, loads, encodes, limits)


# === The side that measures ===


def measure_loads(options):
    loads = {side: [] for side in SIDES}
    for number in range(options.rounds):
        for side in SIDES:
            with worker_of(options, side) as worker:
                loads[side].append(worker.ask("load"))
        progress("load", number, options)
    return loads


def measure_encodes(options):
    encodes, limits = {side: [] for side in SIDES}, []
    with (
        worker_of(options, "roformer_keras") as ours,
        worker_of(options, "bert4keras") as theirs,
    ):
        workers = dict(zip(SIDES, (ours, theirs), strict=True))
        for worker in workers.values():
            worker.ask("load")
            worker.ask("encode")
        ours.ask("limit")
        for number in range(options.rounds):
            limits.append(ours.ask("limit")["seconds"])
            for side, worker in workers.items():
                encodes[side].append(worker.ask("encode"))
            progress("encode", number, options)
    return encodes, limits


def worker_of(options, side):
    names = ("batch", "length", "layers", "hidden", "vocabulary", "folder")
    return Worker(__file__, side, {name: getattr(options, name) for name in names})


def progress(what, number, options):
    print(f"\r{what} {number + 1}/{options.rounds} ", end="", file=sys.stderr)


def report(options, loads, encodes, limits):
    tokens = options.batch * options.length
    rows = [
        ("load, s", median(loads, "seconds"), ratios(loads)),
        ("load, peak MB", median(loads, "peak_mb"), None),
        (
            f"encode {options.batch}x{options.length}, tokens/s",
            {s: tokens / t for s, t in median(encodes, "seconds").items()},
            ratios(encodes),
        ),
    ]
    limit = tokens / statistics.median(limits)
    print(f"\n\n{'work':<28} {'roformer_keras':>15} {'bert4keras':>12}  ratio of pairs")
    for name, values, times in rows:
        shown = ""
        if times:
            low, high = min(times), max(times)
            shown = f"{statistics.median(times):.2f}x ({low:.2f} to {high:.2f})"
        ours, theirs = (f"{values[side]:,.5g}" for side in SIDES)
        print(f"{name:<28} {ours:>15} {theirs:>12}  {shown}")
    share = rows[-1][1]["roformer_keras"] / limit
    print(f"matrix products alone: {limit:,.0f} tokens/s; we reach {share:.0%} of it")
    if options.json:
        figures = {
            "rows": [
                {"work": name, **values, "ratios": times}
                for name, values, times in rows
            ],
            "limit_tokens_per_second": limit,
            "rounds": options.rounds,
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def median(runs, figure):
    return {
        side: statistics.median(run[figure] for run in runs[side]) for side in SIDES
    }


def ratios(runs):
    """How many times faster we are, pair by pair."""
    ours, theirs = ([run["seconds"] for run in runs[side]] for side in SIDES)
    return [t / o for o, t in zip(ours, theirs, strict=True)]


# === The sides that work ===


def work(options):
    load, encode, limit = SETTINGS[options.worker](options)
    serve({"load": load, "encode": encode, "limit": limit})


def batch_of(options):
    import numpy as np

    random = np.random.default_rng(0)
    shape = (options.batch, options.length)
    token_ids = random.integers(1, options.vocabulary, shape, dtype="int32")
    token_ids[::2, options.length * 3 // 4 :] = 0
    return token_ids, np.zeros_like(token_ids)


def our_side(options):
    import tensorflow as tf

    from roformer_keras import RoFormerBackbone

    token_ids, segment_ids = batch_of(options)
    inputs = {"token_ids": token_ids, "segment_ids": segment_ids}
    kept = {}

    def load():
        kept["model"] = RoFormerBackbone.from_preset(options.folder)

    def encode():
        kept["model"].predict(inputs, batch_size=options.batch, verbose=0)

    @tf.function
    def products():
        x = rows
        for _ in range(options.layers):
            for _ in range(4):
                x = tf.matmul(x, square)
            x = tf.matmul(tf.matmul(x, up), down)
        return x

    hidden = options.hidden
    rows = tf.random.normal((token_ids.size, hidden))
    square = tf.random.normal((hidden, hidden)) / hidden
    up = tf.random.normal((hidden, 4 * hidden)) / hidden
    down = tf.random.normal((4 * hidden, hidden)) / hidden

    def limit():
        products().numpy()

    return load, encode, limit


def their_side(options):
    from bert4keras.models import build_transformer_model

    inputs = list(batch_of(options))
    kept = {}

    def load():
        kept["model"] = build_transformer_model(
            str(options.folder / "bert_config.json"),
            str(options.folder / "bert_model.ckpt"),
            model="roformer",
        )

    def encode():
        kept["model"].predict(inputs, batch_size=options.batch, verbose=0)

    return load, encode, None


SETTINGS = {"roformer_keras": our_side, "bert4keras": their_side}


if __name__ == "__main__":
    main()
