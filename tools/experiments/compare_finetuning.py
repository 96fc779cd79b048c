"""Fine-tuning by this package against the real bert4keras, from the same weights.

    python -m tools.experiments.compare_finetuning --output FOLDER \\
        --train sentiment.train.tsv.gz --test sentiment.test.tsv.gz \\
        --source chinese_roformer-char_L-4_H-192_A-6.zip --epochs 3 --seeds 3
    python -m tools.experiments.compare_finetuning --output FOLDER --task similarity \\
        --train sts-b-zh.train.txt.gz --test sts-b-zh.test.txt.gz ...
    python -m tools.experiments.compare_finetuning --output FOLDER --task entities \\
        --train msra-ner.test.bio.gz ...

Both learn from a file of labelled texts, of any kind that `read_table` reads, and are
scored on another; without `--test` on the last fifth of the rows of `--train`, which
are not trained on then. What is learned and scored depends on `--task`:

classification  a text and its class: softmax of a dense layer on the vector of [CLS];
                accuracy
similarity      two texts and a number: CoSENT on the cosine of their vectors of [CLS];
                Spearman's correlation of numbers and cosines
entities        a text and its tags of BIO: a dense layer and a conditional random
                field, whose transitions learn `--crf-rate` times as fast; F1 of
                entities as `seqeval` counts them, of which those lack that
                `--max-length` cut off

It prints the score of each seed, the mean and the spread. bert4keras 0.11.5 runs in a
process of its own, from `.reference/bert4keras-0.11.5` or ROFORMER_KERAS_REFERENCE.

A seed decides the weights of the head, without `--source` those of the encoder too, the
order of the data and the dropout. For a seed the two begin with the same weights and
so the same loss, to 1e-4 or 1e-5 of it, and get the same batches of the same ids. Both
is checked; only what is dropped differs. Both have the dropout of the checkpoint, or
0.1, and AdamW with a decay of 0.01 that spares biases and norms, gradients clipped to a
norm of 1 (those of `entities` are not: nearly all of that norm would be of the
transitions, whose gradients are `--crf-rate` times as large), and a rate that rises
over the first tenth of the steps and then falls linearly to 0. Batches are of texts of
similar length, as `fit` of this package makes them, for both. All is float32.

Without `--source` the encoder is fresh, of `--layers`, `--hidden` and `--heads`, with
the vocabulary of `--vocabulary` or one of all characters of the training texts that
occur twice. In the folder:

settings.json   what is compared
runs.csv        a row for each training, written when it is done
results.json    settings, runs, mean and spread of both, and the verdict

Interrupted, the same command goes on with the trainings that are missing; with more
`--seeds` it adds to those that are there.
"""

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from roformer_keras.config import RoFormerConfig
from roformer_keras.conversion.convert import convert
from roformer_keras.data.batches import TextBatches
from roformer_keras.data.files import read_table
from roformer_keras.data.texts import as_numbers
from roformer_keras.errors import (
    ConfigurationError,
    ReferenceUnavailable,
    RoFormerError,
)
from roformer_keras.models import RoFormerBackbone
from roformer_keras.optimizers import make_optimizer
from roformer_keras.tasks import (
    RoFormerSentenceEncoder,
    RoFormerTextClassifier,
    RoFormerTokenClassifier,
)
from roformer_keras.tasks.reports import (
    classification_report,
    correlation_report,
    span_report,
)
from roformer_keras.tasks.spans import spans_of_tags
from roformer_keras.tasks.task import TextTask
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.text.train_vocabulary import build_vocabulary
from tools.experiments.comparisons import read_rows, reset_run, write_json, write_rows
from tools.reference.bert4keras import reference_worker, require_bert4keras
from tools.reference.training import hash_ids
from tools.workers import WorkerFailed

MODELS = ("roformer_keras", "bert4keras")
# That of bert4keras 0.11.5.
LAYER_NORM_EPSILON = 1e-7
WEIGHT_DECAY = 0.01
COLUMNS = {
    "model": str,
    "seed": int,
    "score": float,
    "first_loss": float,
    "loss": float,
    "seconds": float,
}


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=TASKS, default="classification")
    parser.add_argument("--train", type=Path, required=True, help="labelled texts")
    parser.add_argument("--test", type=Path, help="labelled texts; see above")
    parser.add_argument("--output", type=Path, required=True, help="a folder")
    parser.add_argument("--source", help="a checkpoint; fresh weights without")
    parser.add_argument("--vocabulary", type=Path, help="vocab.txt of fresh weights")
    parser.add_argument("--layers", type=int, default=3, help="of fresh weights")
    parser.add_argument("--hidden", type=int, default=128, help="of fresh weights")
    parser.add_argument("--heads", type=int, default=4, help="of fresh weights")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument(
        "--crf-rate",
        type=float,
        default=1000.0,
        help="of entities; bert4keras's example has 1000 and a learning rate of 2e-5",
    )
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--limit", type=int, help="most rows of each part, drawn")
    parser.add_argument("--seeds", type=int, default=3, help="0, 1, 2, ...")
    options = parser.parse_args(arguments)
    try:
        check(options)
        records = read_parts(options)
        settings = settings_of(options, records)
        reset_run(options.output, settings)
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
    require_bert4keras()


def settings_of(options, records):
    """What must be equal for runs to be of one comparison."""
    names = (
        "task",
        *(("vocabulary", "layers", "hidden", "heads") if not options.source else ()),
        *(("crf_rate",) if options.task == "entities" else ()),
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
    names = {"train": options.train.name, "test": f"{options.train.name}, last fifth"}
    if options.test:
        names["test"] = options.test.name
    data = {
        part: {
            "name": names[part],
            "texts": len(found),
            "sha256": hashlib.sha256(json.dumps(found).encode()).hexdigest(),
        }
        for part, found in records.items()
    }
    classes = TASKS[options.task](options, records).classes
    return {**settings, "classes": classes, "data": data}


# === The data ===


def read_parts(options):
    """Part -> its records; see `read_records`."""
    count = TASKS[options.task].texts
    train = read_records(options.train, count=count)
    if options.test:
        test = read_records(options.test, count=count)
    else:
        cut = len(train) - len(train) // 5
        train, test = train[:cut], train[cut:]
        if not test:
            raise ConfigurationError(
                f"{options.train} must have at least 5 rows for the last fifth to be "
                f"tested on, got {len(train)}: name another file by --test"
            )
    parts = {"train": train, "test": test}
    return {part: drawn(found, options.limit) for part, found in parts.items()}


def read_records(path, limit=None, count=1):
    """Lists [text, ..., label] of the rows of a file, or of so many that are drawn."""
    table = read_table(path, count)
    pairs = zip(table.texts, table.labels, strict=True)
    return drawn([[*texts, label] for texts, label in pairs], limit)


def drawn(records, limit):
    """All records, or so many, the same each time; in their order."""
    if limit is None or limit >= len(records):
        return records
    order = np.random.default_rng(0).permutation(len(records))[:limit]
    return [records[number] for number in np.sort(order)]


def texts_of(records):
    return [tuple(texts) for *texts, _ in records]


def labels_of(records):
    return [label for *_, label in records]


# === The tasks ===


class Task:
    """What is learned, and how good answers are.

    Args:
        options: of the command line.
        records: part -> records; checked.

    Attributes:
        texts: int. Of a row.
        measure: str. What the score is.
        clip_norm: float, 0 for none.
        least: int. Classes there must be.
        classes: names that labels have, or None where labels are no names.
    """

    texts, clip_norm, least = 1, 1.0, 2
    measure: str

    def __init__(self, options, records):
        self.options, self.classes = options, None
        labels = {part: labels_of(found) for part, found in records.items()}
        self.check(**labels)

    def check(self, train, test):
        """Checks the labels of both parts, and keeps their names."""
        classes, tested = (set(self.names_of(labels)) for labels in (train, test))
        if len(classes) < self.least or tested - classes:
            raise ConfigurationError(
                f"the training texts must have at least {self.least} classes, and all "
                f"that are tested, got {_listed(classes) or 'none'}, and in the test "
                f"{_listed(tested - classes) or 'no others'}"
            )
        self.classes = sorted(classes)

    def names_of(self, labels):
        """The names in labels, each as often as it comes."""
        return labels

    def make(self, preset):
        """The model of this package, its head fresh."""
        raise NotImplementedError

    def ours(self, model, texts):
        """Answers of this package, as `score` takes them."""
        return model.predict(texts, verbose=0)

    def theirs(self, model, rows, answers):
        """What bert4keras answered, as `score` takes it; `model` is still ours."""
        return answers

    def score(self, labels, answers):
        """How good answers are; the higher, the better."""
        raise NotImplementedError


class Classification(Task):
    measure = "Accuracy"

    def make(self, preset):
        return RoFormerTextClassifier.from_preset(
            preset, classes=self.classes, max_length=self.options.max_length
        )

    def ours(self, model, texts):
        return super().ours(model, texts).argmax(axis=1)

    def score(self, labels, answers):
        numbers = [self.classes.index(label) for label in labels]
        return classification_report(numbers, answers, self.classes)["accuracy"]


class Similarity(Task):
    texts, measure = 2, "Spearman's correlation"

    def check(self, train, test):
        as_numbers([*train, *test])

    def make(self, preset):
        return RoFormerSentenceEncoder.from_preset(
            preset,
            objective="cosent",
            pooling="first",
            max_length=self.options.max_length,
        )

    def score(self, labels, answers):
        # There is no correlation where nothing is told apart.
        return correlation_report(as_numbers(labels), answers)["spearman"] or 0.0


class Entities(Task):
    measure, clip_norm, least = "F1 of entities", 0.0, 1

    def names_of(self, labels):
        return [
            name
            for row, tags in enumerate(labels)
            for _, _, name in spans_of_tags(tags, row)
        ]

    def make(self, preset):
        return RoFormerTokenClassifier.from_preset(
            preset,
            labels=self.classes,
            crf=True,
            crf_rate=self.options.crf_rate,
            max_length=self.options.max_length,
        )

    def ours(self, model, texts):
        return model.extract(texts, verbose=0)

    def theirs(self, model, rows, answers):
        found = []
        for number, tags in enumerate(answers):
            # `[CLS]` and `[SEP]` have none.
            names = ["O", *(model.tags[tag] for tag in tags), "O"]
            spans = spans_of_tags(names)
            found.append(
                [rows.span(number, a, b - 1, label, score=1.0) for a, b, label in spans]
            )
        return found

    def score(self, labels, answers):
        return span_report([spans_of_tags(tags) for tags in labels], answers)["f1"]


TASKS = {
    "classification": Classification,
    "similarity": Similarity,
    "entities": Entities,
}


def _listed(names):
    return ", ".join(map(repr, sorted(names)))


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
            texts = texts_of(records["train"])
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


def make_model(task, preset, seed):
    keras.utils.set_random_seed(seed)
    return task.make(preset)


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


@dataclass
class Training:
    """What both sides learn from, and begin with.

    Attributes:
        model: of this package, compiled.
        records: part -> records.
        rows: part -> tokenized rows.
        targets: of the training rows.
        batches: numbers of the rows of each batch of all epochs.
    """

    model: TextTask
    records: dict
    rows: dict
    targets: object
    batches: list

    def batch(self, numbers):
        """Inputs and targets of training rows."""
        inputs = self.rows["train"].batch(numbers)
        return inputs, self.model.batch_targets(self.targets, numbers, inputs)

    def first_loss(self):
        """Of the first batch, before any update and without dropout."""
        found = self.model.test_on_batch(*self.batch(self.batches[0]), return_dict=True)
        return float(found["loss"])

    def ids(self):
        """Hash of the token ids of all batches, and of the test rows."""
        train, test = self.rows["train"], self.rows["test"]
        every = [train.batch(numbers) for numbers in self.batches]
        every += [test.batch([number]) for number in range(len(test))]
        return hash_ids([inputs["token_ids"].ravel() for inputs in every])


def train(name, seed, options, records):
    """Score, loss of the first batch and of the last epoch, seconds of one training."""
    task = TASKS[options.task](options, records)
    with tempfile.TemporaryDirectory() as temporary:
        preset = Path(temporary, "preset")
        make_preset(options, records, seed, preset)
        model = make_model(task, preset, seed)
        rows = {part: model.make_rows(texts_of(records[part])) for part in records}
        targets = model.make_targets(labels_of(records["train"]), rows["train"])
        batches = batches_of(rows["train"].lengths, options, seed)
        optimizer = make_optimizer(
            options.learning_rate,
            schedule_of(len(batches)),
            weight_decay=WEIGHT_DECAY,
            clip_norm=task.clip_norm,
        )
        # bert4keras computes none either.
        model.compile(optimizer, metrics=[])
        training = Training(model, records, rows, targets, batches)
        run = {"first_loss": training.first_loss()}
        print(f"first loss {run['first_loss']:.6f}", flush=True)
        if name == "roformer_keras":
            run.update(train_ours(training, options))
            answers = task.ours(model, texts_of(records["test"]))
        else:
            first_loss = run["first_loss"]
            run.update(
                train_theirs(training, first_loss, options, seed, Path(temporary))
            )
            answers = task.theirs(model, rows["test"], run.pop("answers"))
    return {"score": task.score(labels_of(records["test"]), answers), **run}


def train_ours(training, options):
    inputs, targets = training.batch(training.batches[0])
    ids = tf.TensorSpec((None, None), "int32")
    dataset = tf.data.Dataset.from_generator(
        lambda: map(training.batch, training.batches),
        output_signature=(
            dict.fromkeys(inputs, ids),
            tf.TensorSpec((None,) * targets.ndim, targets.dtype),
        ),
    )
    start = time.perf_counter()
    history = training.model.fit(
        dataset.prefetch(2),
        # It is shuffled.
        shuffle=False,
        steps_per_epoch=len(training.batches) // options.epochs,
        epochs=options.epochs,
        verbose=2,
    )
    seconds = time.perf_counter() - start
    return {"loss": float(history.history["loss"][-1]), "seconds": seconds}


def train_theirs(training, first_loss, options, seed, scratch):
    """The same by bert4keras, in its own process."""
    archive = convert(scratch / "preset", scratch / "encoder.zip", verbose=0)
    with zipfile.ZipFile(archive) as file:
        file.extractall(scratch / "encoder")
    (config,) = (scratch / "encoder").rglob("bert_config.json")
    for part, found in training.records.items():
        (scratch / f"{part}.json").write_text(
            json.dumps(texts_of(found)), encoding="utf-8"
        )
    arrays = {f"batch/{number}": batch for number, batch in enumerate(training.batches)}
    for variable in training.model.head_variables():
        layer, name = variable.path.split("/")[-2:]
        name = f"{'crf' if layer == 'crf' else 'head'}/{name}"
        arrays[name] = ops.convert_to_numpy(variable)
    arrays["targets"] = training.targets
    if isinstance(training.targets, list):
        # Tags of all rows, one behind the other.
        arrays["targets"] = np.concatenate(training.targets)
    np.savez(scratch / "arrays.npz", **arrays)
    job = {
        "task": options.task,
        "folder": str(config.parent),
        "model": training.model.config.model_type,
        **{part: str(scratch / f"{part}.json") for part in training.records},
        "arrays": str(scratch / "arrays.npz"),
        "ids": training.ids(),
        "first_loss": first_loss,
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "max_length": options.max_length,
        "learning_rate": options.learning_rate,
        "weight_decay": WEIGHT_DECAY,
        "clip_norm": TASKS[options.task].clip_norm,
        "crf_rate": options.crf_rate,
        "schedule": schedule_of(len(training.batches)),
        "seed": seed,
    }
    try:
        worker = reference_worker("tools.reference.training:Trainer", {"job": job})
        with worker:
            return worker.call("train")
    except WorkerFailed as error:
        raise ReferenceUnavailable(str(error)) from error


# === Results ===


def scores(runs, model):
    """Seed -> score."""
    return {run["seed"]: run["score"] for run in runs if run["model"] == model}


def summary_of(runs):
    """Model -> mean score, its spread from the worst to the best, mean seconds.

    And `verdict`: by how much bert4keras is better by the means, the larger spread, and
    whether the one is above the other; None for one seed, which has no spread.
    """
    summary = {}
    for model in MODELS:
        found = list(scores(runs, model).values())
        seconds = [run["seconds"] for run in runs if run["model"] == model]
        summary[model] = {
            "mean": statistics.mean(found),
            "spread": max(found) - min(found),
            "seconds": statistics.mean(seconds),
        }
    ours, theirs = (summary[model] for model in MODELS)
    better = theirs["mean"] - ours["mean"]
    spread = max(ours["spread"], theirs["spread"])
    summary["verdict"] = {
        "bert4keras_better_by": better,
        "spread": spread,
        "beyond_spread": better > spread if len(found) > 1 else None,
    }
    return summary


def report(runs, summary, settings):
    """A table in Markdown, and what it is of."""
    ours, theirs = (scores(runs, model) for model in MODELS)
    lines = [(seed, ours[seed], theirs[seed]) for seed in sorted(ours)]
    lines.append(("mean", *(summary[model]["mean"] for model in MODELS)))
    table = [f"| {name} | {a:.4f} | {b:.4f} | {a - b:+.4f} |" for name, a, b in lines]
    spreads = [summary[model]["spread"] for model in MODELS]
    table.append(f"| spread | {spreads[0]:.4f} | {spreads[1]:.4f} | |")
    seconds = [summary[model]["seconds"] for model in MODELS]
    data, verdict = settings["data"], summary["verdict"]
    beyond = {True: "yes", False: "no", None: "one seed does not tell"}
    return "\n".join(
        [
            f"| seed | {' | '.join(MODELS)} | difference |",
            "|---|---|---|---|",
            *table,
            "",
            f"{TASKS[settings['task']].measure} on {data['test']['texts']:,} rows of "
            f"{data['test']['name']} after {settings['epochs']} epochs of "
            f"{data['train']['texts']:,}, from {settings['source'] or 'fresh weights'}."
            " The spread is from the worst seed to the best.",
            "bert4keras is better by more than the spread of the seeds: "
            f"{beyond[verdict['beyond_spread']]} (by the means "
            f"{verdict['bert4keras_better_by']:+.4f}, the larger spread "
            f"{verdict['spread']:.4f}).",
            f"A training took {seconds[0]:,.0f} s here and {seconds[1]:,.0f} s with "
            "bert4keras, on the same batches.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
