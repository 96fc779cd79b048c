"""Fine-tuning by this package against the real bert4keras, from the same weights.

    python tools/compare_finetuning.py --output FOLDER \\
        --train sentiment.train.tsv.gz --test sentiment.test.tsv.gz \\
        --source checkpoints/roformer-char-small.zip --epochs 3 --seeds 3

Both train a text classifier on a file of labelled texts (a line is text, tab, label;
plain or .gz), and are scored on another. It prints the accuracy of each seed, the mean
and the spread. bert4keras 0.11.5 runs in a process of its own, from
`.reference/bert4keras-0.11.5` or ROFORMER_KERAS_REFERENCE.

A seed decides the weights of the head, without `--source` those of the encoder too, the
order of the data and the dropout. For a seed the two begin with the same weights and
get the same batches of the same ids, which is checked; only what is dropped differs.
Both have the dropout of the checkpoint, or 0.1, and AdamW with a decay of 0.01 that
spares biases and norms, gradients clipped to a norm of 1, and a rate that rises over
the first tenth of the steps and then falls linearly to 0. Batches are of texts of
similar length, as `fit` of this package makes them, for both. All is float32.

Without `--source` the encoder is fresh, of `--layers`, `--hidden` and `--heads`, with
the vocabulary of `--vocabulary` or one of all characters of the training texts that
occur twice. In the folder:

settings.json   what is compared
runs.csv        a row for each training, written when it is done
results.json    settings, runs, and mean and spread of both

Interrupted, the same command goes on with the trainings that are missing; with more
`--seeds` it adds to those that are there.
"""

import argparse
import gzip
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from bert4keras_classifier import hash_of_ids
from comparisons import read_rows, take_folder, write_json, write_rows
from full_size_checkpoint import BERT4KERAS, bert4keras_environment
from keras import ops

from roformer_keras.config import RoFormerConfig
from roformer_keras.conversion.convert import convert
from roformer_keras.errors import (
    ConfigurationError,
    ReferenceUnavailable,
    RoFormerError,
    SourceError,
)
from roformer_keras.models import RoFormerBackbone
from roformer_keras.pretraining.vocabulary import build_vocabulary
from roformer_keras.tasks import RoFormerTextClassifier
from roformer_keras.tasks.texts import TextBatches
from roformer_keras.tokenizer import RoFormerTokenizer
from roformer_keras.training.optimizers import make_optimizer

SCRIPT = Path(__file__).with_name("bert4keras_classifier.py")
MODELS = ("roformer_keras", "bert4keras")
# That of bert4keras 0.11.5.
LAYER_NORM_EPSILON = 1e-7
WEIGHT_DECAY, CLIP_NORM = 0.01, 1.0
COLUMNS = {
    "model": str,
    "seed": int,
    "accuracy": float,
    "loss": float,
    "seconds": float,
}


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", type=Path, required=True, help="labelled texts")
    parser.add_argument("--test", type=Path, required=True, help="labelled texts")
    parser.add_argument("--output", type=Path, required=True, help="a folder")
    parser.add_argument("--source", help="a checkpoint; fresh weights without")
    parser.add_argument("--vocabulary", type=Path, help="vocab.txt of fresh weights")
    parser.add_argument("--layers", type=int, default=3, help="of fresh weights")
    parser.add_argument("--hidden", type=int, default=128, help="of fresh weights")
    parser.add_argument("--heads", type=int, default=4, help="of fresh weights")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--limit", type=int, help="most texts of each file, drawn")
    parser.add_argument("--seeds", type=int, default=3, help="0, 1, 2, ...")
    options = parser.parse_args(arguments)
    try:
        check(options)
        records = {
            part: read_records(getattr(options, part), options.limit)
            for part in ("train", "test")
        }
        settings = settings_of(options, records)
        take_folder(options.output, settings)
        runs = train_missing(options, records)
    except RoFormerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    summary = summary_of(runs)
    write_json(
        options.output / "results.json",
        {"settings": settings, "runs": runs, "summary": summary},
    )
    print(f"\n{report(runs, summary, settings)}")
    return 0


def check(options):
    for name in ("epochs", "batch_size", "seeds", "limit"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigurationError(f"{name} must be at least 1, got {value}")
    if not (BERT4KERAS / "bert4keras").is_dir():
        raise ReferenceUnavailable(
            f"bert4keras is not in {BERT4KERAS}; run `python3 tools/dev.py setup`, or "
            "set ROFORMER_KERAS_REFERENCE"
        )


def settings_of(options, records):
    """What must be equal for runs to be of one comparison."""
    fresh = ("vocabulary", "layers", "hidden", "heads") if not options.source else ()
    names = (
        *fresh,
        "source",
        "epochs",
        "batch_size",
        "learning_rate",
        "max_length",
        "limit",
    )
    settings = {name: getattr(options, name) for name in names}
    if settings.get("vocabulary"):
        settings["vocabulary"] = str(options.vocabulary)
    classes = sorted({label for _, label in records["train"]})
    strangers = {label for _, label in records["test"]} - set(classes)
    if len(classes) < 2 or strangers:
        raise ConfigurationError(
            "the training texts must be of at least two classes, and of all that are "
            f"tested, got {', '.join(map(repr, classes))}, and in the test "
            f"{', '.join(map(repr, sorted(strangers))) or 'no others'}"
        )
    data = {
        part: {
            "name": getattr(options, part).name,
            "texts": len(found),
            "sha256": hashlib.sha256(json.dumps(found).encode()).hexdigest(),
        }
        for part, found in records.items()
    }
    return {**settings, "classes": classes, "data": data}


# === The data ===


def read_records(path, limit=None):
    """Lists [text, label] of the lines of a file, or of so many that are drawn."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            lines = [line.rstrip("\r\n") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != 2 or not all(cells):
            raise SourceError(
                f"a line must be text, tab, label, got {line!r:.60} in line {number} "
                f"of {path}"
            )
        records.append(cells)
    if limit is not None and limit < len(records):
        order = np.random.default_rng(0).permutation(len(records))[:limit]
        records = [records[number] for number in np.sort(order)]
    if not records:
        raise SourceError(f"{path} must hold a labelled text, and holds none")
    return records


# === The weights that both begin with ===


def make_preset(options, records, seed, folder):
    """The encoder of a seed, as a preset folder."""
    if options.source:
        backbone = RoFormerBackbone.from_preset(
            options.source, layer_norm_epsilon=LAYER_NORM_EPSILON
        )
        tokenizer = backbone.text_tokenizer()
    else:
        if options.vocabulary:
            tokenizer = RoFormerTokenizer(options.vocabulary)
        else:
            texts = ((text,) for text, _ in records["train"])
            tokenizer = RoFormerTokenizer(build_vocabulary(texts, min_count=2)[0])
        keras.utils.set_random_seed(seed)
        backbone = RoFormerBackbone.from_roformer_config(
            RoFormerConfig(
                vocabulary_size=tokenizer.vocabulary_size,
                num_layers=options.layers,
                num_heads=options.heads,
                hidden_dim=options.hidden,
                intermediate_dim=4 * options.hidden,
                layer_norm_epsilon=LAYER_NORM_EPSILON,
            )
        )
    if tokenizer.level != "character":
        raise ConfigurationError(
            "bert4keras is run with vocabularies of characters, got one of level "
            f"{tokenizer.level!r}: choose another source"
        )
    backbone.save_to_preset(folder, tokenizer)


def make_classifier(preset, options, num_classes, seed):
    keras.utils.set_random_seed(seed)
    return RoFormerTextClassifier.from_preset(
        preset, num_classes=num_classes, max_length=options.max_length
    )


def schedule_of(steps):
    """Up over the first tenth, down to 0."""
    return [(max(1, steps // 10), 1.0), (max(2, steps), 0.0)]


def batches_of(lengths, options, seed):
    """Numbers of the rows of each batch of all epochs, of texts of similar length."""
    batches = TextBatches(
        lengths,
        lambda numbers, more: numbers,
        options.batch_size,
        shuffle=True,
        seed=seed,
    )
    found = []
    for _ in range(options.epochs):
        found += [batches[number] for number in range(len(batches))]
        batches.on_epoch_end()
    return found


# === Training ===


def train_missing(options, records):
    """All runs; each is in `runs.csv` as soon as it is done."""
    path = options.output / "runs.csv"
    runs = read_rows(path, COLUMNS)
    for seed in range(options.seeds):
        for model in MODELS:
            if any((run["model"], run["seed"]) == (model, seed) for run in runs):
                continue
            print(f"{model}, seed {seed}", flush=True)
            run = train(model, seed, options, records)
            runs.append({"model": model, "seed": seed, **run})
            write_rows(path, COLUMNS, runs)
    return [run for run in runs if run["seed"] < options.seeds]


def train(model, seed, options, records):
    """Accuracy, loss of the last epoch and seconds of one training."""
    classes = sorted({label for _, label in records["train"]})
    numbered = {
        part: [[text, classes.index(label)] for text, label in found]
        for part, found in records.items()
    }
    with tempfile.TemporaryDirectory() as temporary:
        preset = Path(temporary, "preset")
        make_preset(options, records, seed, preset)
        classifier = make_classifier(preset, options, len(classes), seed)
        rows = {
            part: classifier.make_rows([(text,) for text, _ in found])
            for part, found in numbered.items()
        }
        batches = batches_of(rows["train"].lengths, options, seed)
        if model == "roformer_keras":
            return train_ours(classifier, numbered, rows["train"], batches, options)
        ids = hash_of_ids(
            [part.ids(number) for part in rows.values() for number in range(len(part))]
        )
        return train_theirs(
            classifier, numbered, batches, ids, options, seed, Path(temporary)
        )


def train_ours(classifier, records, rows, batches, options):
    classifier.compile(
        make_optimizer(
            options.learning_rate,
            schedule_of(len(batches)),
            weight_decay=WEIGHT_DECAY,
            clip_norm=CLIP_NORM,
        )
    )
    labels = np.array([label for _, label in records["train"]])

    def generate():
        for numbers in batches:
            yield rows.batch(numbers), labels[numbers]

    ids = tf.TensorSpec((None, None), "int32")
    dataset = tf.data.Dataset.from_generator(
        generate,
        output_signature=(
            {"token_ids": ids, "segment_ids": ids},
            tf.TensorSpec((None,), "int32"),
        ),
    )
    start = time.perf_counter()
    history = classifier.fit(
        dataset.prefetch(2),
        # It is shuffled.
        shuffle=False,
        steps_per_epoch=len(batches) // options.epochs,
        epochs=options.epochs,
        verbose=2,
    )
    seconds = time.perf_counter() - start
    texts, labels = zip(*records["test"], strict=True)
    found = classifier.predict(list(texts), verbose=0).argmax(axis=1)
    return {
        "accuracy": float((found == np.array(labels)).mean()),
        "loss": float(history.history["loss"][-1]),
        "seconds": seconds,
    }


def train_theirs(classifier, records, batches, ids, options, seed, scratch):
    """The same by bert4keras, in its own process."""
    archive = convert(scratch / "preset", scratch / "encoder.zip", progress=False)
    with zipfile.ZipFile(archive) as file:
        file.extractall(scratch / "encoder")
    (config,) = (scratch / "encoder").rglob("bert_config.json")
    for part, found in records.items():
        (scratch / f"{part}.json").write_text(json.dumps(found), encoding="utf-8")
    head = {
        f"head/{variable.path.split('/')[-1]}": ops.convert_to_numpy(variable)
        for variable in classifier.head_variables()
    }
    rows = {f"batch/{number}": batch for number, batch in enumerate(batches)}
    np.savez(scratch / "arrays.npz", **head, **rows)
    job = {
        "folder": str(config.parent),
        "model": classifier.config.model_type,
        **{part: str(scratch / f"{part}.json") for part in records},
        "arrays": str(scratch / "arrays.npz"),
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "max_length": options.max_length,
        "learning_rate": options.learning_rate,
        "weight_decay": WEIGHT_DECAY,
        "clip_norm": CLIP_NORM,
        "schedule": schedule_of(len(batches)),
        "seed": seed,
        "output": str(scratch / "answer.json"),
    }
    (scratch / "job.json").write_text(json.dumps(job), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, SCRIPT, scratch / "job.json"],
        env=bert4keras_environment(),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ReferenceUnavailable(f"bert4keras failed:\n{done.stderr[-2000:]}")
    answer = json.loads((scratch / "answer.json").read_text(encoding="utf-8"))
    if answer.pop("ids") != ids:
        raise AssertionError("bert4keras made other ids of the same texts")
    return answer


# === Results ===


def accuracies(runs, model):
    """Seed -> accuracy."""
    return {run["seed"]: run["accuracy"] for run in runs if run["model"] == model}


def summary_of(runs):
    """Model -> mean accuracy, its spread from the worst to the best, mean seconds."""
    summary = {}
    for model in MODELS:
        found = list(accuracies(runs, model).values())
        seconds = [run["seconds"] for run in runs if run["model"] == model]
        summary[model] = {
            "mean": statistics.mean(found),
            "spread": max(found) - min(found),
            "seconds": statistics.mean(seconds),
        }
    return summary


def report(runs, summary, settings):
    """A table in Markdown, and what it is of."""
    ours, theirs = (accuracies(runs, model) for model in MODELS)
    lines = [(seed, ours[seed], theirs[seed]) for seed in sorted(ours)]
    lines.append(("mean", *(summary[model]["mean"] for model in MODELS)))
    table = [f"| {name} | {a:.4f} | {b:.4f} | {a - b:+.4f} |" for name, a, b in lines]
    spreads = [summary[model]["spread"] for model in MODELS]
    table.append(f"| spread | {spreads[0]:.4f} | {spreads[1]:.4f} | |")
    seconds = [summary[model]["seconds"] for model in MODELS]
    data = settings["data"]
    better = summary["bert4keras"]["mean"] - summary["roformer_keras"]["mean"]
    verdict = "bert4keras is not better."
    if better > 0:
        reach = "within" if better <= max(spreads) else "beyond"
        verdict = f"bert4keras is better by {better:.4f}, {reach} the larger spread."
    return "\n".join(
        [
            f"| seed | {' | '.join(MODELS)} | difference |",
            "|---|---|---|---|",
            *table,
            "",
            f"Accuracy on {data['test']['texts']:,} texts after {settings['epochs']} "
            f"epochs of {data['train']['texts']:,}, from "
            f"{settings['source'] or 'fresh weights'}. The spread is from the worst "
            f"seed to the best. By the means, {verdict}",
            f"A training took {seconds[0]:,.0f} s here and {seconds[1]:,.0f} s with "
            "bert4keras, on the same batches.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
