"""Fine-tuning by this package and by the real bert4keras, from equal weights.

    python -m tools.experiments.finetuning --output FOLDER --epochs 3 --seeds 3 \\
        --train sentiment.train.tsv.gz --test sentiment.test.tsv.gz \\
        --source chinese_roformer-char_L-4_H-192_A-6.zip
    python -m tools.experiments.finetuning --output FOLDER --task similarity \\
        --train sts-b-zh.train.txt.gz --test sts-b-zh.test.txt.gz ...
    python -m tools.experiments.finetuning --output FOLDER --task entities \\
        --train msra-ner.test.bio.gz ...

Both learn from a file of labelled texts, as `read_table` reads it, and are scored on
another; without `--test` on the last fifth of `--train`, which is then left out of
training. The tasks:

classification  a text and its class: a dense layer with softmax on the vector of [CLS];
                accuracy
similarity      two texts and a number: CoSENT on the cosine of their vectors of [CLS];
                Spearman's correlation
entities        a text and its BIO tags: a dense layer and a conditional random field,
                whose transitions learn `--crf-rate` times faster; F1 of entities as in
                `seqeval`; those that `--max-length` cuts off count as missed

bert4keras 0.11.5 runs in its own process, from `.reference/bert4keras-0.11.5` or
ROFORMER_KERAS_REFERENCE.

A seed decides the weights of the head (without `--source` also of the encoder), the
order of the data and the dropout. Both models start with equal weights and therefore
the same loss, to 1e-4 or a share of 1e-5, and get equal batches; both is checked. Only
dropout differs: its rates are those of the checkpoint, or 0.1. Both use AdamW with a
weight decay of 0.01 except on biases and norms, and gradients clipped to a norm of 1.
(Those of `entities` are not clipped: the transitions, whose gradients are `--crf-rate`
times larger, would dominate the norm.) The rate rises over the first tenth of the steps
and then falls linearly to 0. Batches have texts of similar length. All is float32.

Without `--source` the encoder starts from random weights, with `--layers`, `--hidden`,
`--heads` and the vocabulary of `--vocabulary`, or else of all characters that occur
twice in the training texts.
"""

import json
import statistics
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roformer_keras.checks import check_integer
from roformer_keras.config import RoFormerConfig
from roformer_keras.data.files import read_table
from roformer_keras.errors import ConfigurationError, ReferenceUnavailable
from roformer_keras.io.journal import digest
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.text.train_vocabulary import build_vocabulary
from tools.experiments.harness import Experiment, linear_schedule, spread
from tools.reference.bert4keras import reference_worker, require_bert4keras
from tools.reference.training import hash_ids
from tools.tables import markdown
from tools.workers import WorkerFailed

MODELS = ("roformer_keras", "bert4keras")
WEIGHT_DECAY = 0.01
# That of bert4keras 0.11.5.
LAYER_NORM_EPSILON = 1e-7


class Finetuning(Experiment):
    names = MODELS
    tables = ("runs.csv",)

    @classmethod
    def add_arguments(cls, parser):
        add = parser.add_argument
        add("--task", choices=TASKS, default="classification")
        add("--train", type=Path, required=True, help="labelled texts")
        add("--test", type=Path, help="labelled texts; default: the last fifth")
        add("--source", help="a checkpoint; default: random weights")
        add("--vocabulary", type=Path, help="vocab.txt for random weights")
        add("--layers", type=int, default=3, help="with random weights")
        add("--hidden", type=int, default=128, help="with random weights")
        add("--heads", type=int, default=4, help="with random weights")
        add("--epochs", type=int, default=3)
        add("--batch-size", type=int, default=32)
        add("--learning-rate", type=float, default=1e-4)
        add(
            "--crf-rate",
            type=float,
            default=1000.0,
            help="of entities; as in bert4keras's example, with a rate of 2e-5",
        )
        add("--max-length", type=int, default=256)
        add("--limit", type=int, help="rows drawn from each part; default: all")

    def __init__(self, options):
        super().__init__(options)
        for name in ("epochs", "batch_size"):
            check_integer(name, getattr(options, name), 1)
        if options.limit is not None:
            check_integer("limit", options.limit, 1)
        require_bert4keras()
        self.records = read_parts(options)
        self.task = TASKS[options.task](options, **self.records)
        self.settings = self.make_settings()

    def make_settings(self):
        options = self.options
        names = ["task", "source", "epochs", "batch_size", "learning_rate"]
        names += ["max_length", "limit"]
        if not options.source:
            names += ["vocabulary", "layers", "hidden", "heads"]
        if options.task == "entities":
            names.append("crf_rate")
        settings = {name: getattr(options, name) for name in names}
        if settings.get("vocabulary"):
            settings["vocabulary"] = str(options.vocabulary)
        train = options.train.name
        test = options.test.name if options.test else f"{train}, last fifth"
        data = {
            part: {"name": name, "texts": len(found), "sha256": digest(found)}
            for (part, found), name in zip(
                self.records.items(), (train, test), strict=True
            )
        }
        return {**settings, "classes": self.task.classes, "data": data}

    def train(self, name, seed):
        from roformer_keras.optimizers import make_optimizer

        options, task = self.options, self.task
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            make_preset(options, self.records, seed, folder / "preset")
            model = make_model(task, folder / "preset", seed)
            texts = {part: texts_of(found) for part, found in self.records.items()}
            rows = {part: model.make_rows(found) for part, found in texts.items()}
            labels = {part: labels_of(found) for part, found in self.records.items()}
            targets = model.make_targets(labels["train"], rows["train"])
            batches = make_batches(
                rows["train"].lengths, options.batch_size, options.epochs, seed
            )
            optimizer = make_optimizer(
                options.learning_rate,
                linear_schedule(len(batches)),
                weight_decay=WEIGHT_DECAY,
                clip_norm=task.clip_norm,
            )
            # bert4keras computes no metrics either.
            model.compile(optimizer, metrics=[])
            training = Training(model, texts, rows, targets, batches)
            first_loss = training.first_loss()
            print(f"first loss {first_loss:.6f}", flush=True)
            if name == "roformer_keras":
                found = train_here(training, options)
                answers = task.predict(model, texts["test"])
            else:
                found = train_there(training, first_loss, options, seed, folder)
                answers = task.decode(model, rows["test"], found.pop("answers"))
        run = {"model": name, "seed": seed}
        run["score"] = task.score(labels["test"], answers)
        return [[{**run, "first_loss": first_loss, **found}]]

    def summarize(self, runs):
        summary = {}
        for model in MODELS:
            own = [run for run in runs if run["model"] == model]
            seconds = statistics.mean(run["seconds"] for run in own)
            summary[model] = {**spread([r["score"] for r in own]), "seconds": seconds}
        ours, theirs = (summary[model] for model in MODELS)
        difference = theirs["mean"] - ours["mean"]
        largest = max(ours["spread"], theirs["spread"])
        summary["verdict"] = {
            "bert4keras_better_by": difference,
            "spread": largest,
            # One seed has no spread.
            "beyond_spread": difference > largest if len(ours["seeds"]) > 1 else None,
        }
        return {"runs": runs, "summary": summary}

    def report(self, results):
        settings, summary = results["settings"], results["summary"]
        ours, theirs = (summary[model] for model in MODELS)
        lines = list(enumerate(zip(ours["seeds"], theirs["seeds"], strict=True)))
        lines.append(("mean", (ours["mean"], theirs["mean"])))
        rows = [[x, f"{a:.4f}", f"{b:.4f}", f"{a - b:+.4f}"] for x, (a, b) in lines]
        spreads = [f"{model['spread']:.4f}" for model in (ours, theirs)]
        data, verdict = settings["data"], summary["verdict"]
        beyond = {True: "yes", False: "no", None: "unknown from one seed"}
        return "\n".join(
            [
                markdown(
                    ["seed", *MODELS, "difference"], [*rows, ["range", *spreads, ""]]
                ),
                "",
                f"{self.task.measure} on {data['test']['texts']:,} rows of "
                f"{data['test']['name']} after {settings['epochs']} epochs of "
                f"{data['train']['texts']:,}, from "
                f"{settings['source'] or 'random weights'}.",
                "bert4keras is better by more than the range of the seeds: "
                f"{beyond[verdict['beyond_spread']]} (means differ by "
                f"{verdict['bert4keras_better_by']:+.4f}, the larger range is "
                f"{verdict['spread']:.4f}).",
                f"A training took {ours['seconds']:,.0f} s here and "
                f"{theirs['seconds']:,.0f} s with bert4keras, on equal batches.",
            ]
        )


# === Texts ===


def read_parts(options):
    """Part -> its records, lists [text, ..., label]."""
    count = TASKS[options.task].texts
    train = read_records(options.train, count)
    if options.test:
        test = read_records(options.test, count)
    else:
        cut = len(train) - len(train) // 5
        train, test = train[:cut], train[cut:]
        if not test:
            raise ConfigurationError(
                f"{options.train} must have at least 5 rows to test on the last fifth, "
                f"got {len(train)}: name another file by --test"
            )
    parts = {"train": train, "test": test}
    return {part: draw_records(found, options.limit) for part, found in parts.items()}


def read_records(path, count):
    table = read_table(path, count)
    pairs = zip(table.texts, table.labels, strict=True)
    return [[*texts, label] for texts, label in pairs]


def draw_records(records, limit):
    """All records, or `limit` of them in their order, the same each time."""
    if limit is None or limit >= len(records):
        return records
    order = np.random.default_rng(0).permutation(len(records))[:limit]
    return [records[number] for number in np.sort(order)]


def texts_of(records):
    return [tuple(texts) for *texts, _ in records]


def labels_of(records):
    return [label for *_, label in records]


# === Tasks ===


class Task:
    """A model with a head, and its score.

    Args:
        options: of the command line.
        train, test: records.

    Attributes:
        texts: int. Texts per row.
        measure: str. The name of the score; higher is better.
        clip_norm: float, 0 for none.
        min_classes: int. How many classes the training texts must have.
        classes: names of the labels, or None for numbers.
    """

    texts, clip_norm, min_classes = 1, 1.0, 2
    measure: str

    def __init__(self, options, train, test):
        self.options = options
        self.classes = self.find_classes(labels_of(train), labels_of(test))

    def find_classes(self, train, test):
        known, tested = (set(self.names_of(labels)) for labels in (train, test))
        if len(known) < self.min_classes or tested - known:
            raise ConfigurationError(
                f"the training texts must have at least {self.min_classes} classes, "
                f"and all classes of the test, got {sorted(known)}, and in the test "
                f"also {sorted(tested - known)}"
            )
        return sorted(known)

    def names_of(self, labels):
        return labels

    def make(self, preset):
        """This package's model with a new head."""
        raise NotImplementedError

    def predict(self, model, texts):
        """Answers of this package's model, as `score` takes them."""
        return model.predict(texts, verbose=0)

    def decode(self, model, rows, answers):
        """Answers of bert4keras, as `score` takes them; `model` is this package's."""
        return answers

    def score(self, labels, answers):
        raise NotImplementedError


class Classification(Task):
    measure = "Accuracy"

    def make(self, preset):
        from roformer_keras.tasks import RoFormerTextClassifier

        return RoFormerTextClassifier.from_preset(
            preset, classes=self.classes, max_length=self.options.max_length
        )

    def predict(self, model, texts):
        return super().predict(model, texts).argmax(axis=1)

    def score(self, labels, answers):
        from roformer_keras.tasks.reports import classification_report

        numbers = [self.classes.index(label) for label in labels]
        return classification_report(numbers, answers, self.classes)["accuracy"]


class Similarity(Task):
    texts, measure = 2, "Spearman's correlation"

    def find_classes(self, train, test):
        from roformer_keras.data.texts import as_numbers

        as_numbers([*train, *test])

    def make(self, preset):
        from roformer_keras.tasks import RoFormerSentenceEncoder

        return RoFormerSentenceEncoder.from_preset(
            preset,
            objective="cosent",
            pooling="first",
            max_length=self.options.max_length,
        )

    def score(self, labels, answers):
        from roformer_keras.data.texts import as_numbers
        from roformer_keras.tasks.reports import correlation_report

        # Equal answers have no correlation.
        return correlation_report(as_numbers(labels), answers)["spearman"] or 0.0


class Entities(Task):
    measure, clip_norm, min_classes = "F1 of entities", 0.0, 1

    def names_of(self, labels):
        from roformer_keras.tasks.spans import spans_of_tags

        return [
            name
            for row, tags in enumerate(labels)
            for _, _, name in spans_of_tags(tags, row)
        ]

    def make(self, preset):
        from roformer_keras.tasks import RoFormerTokenClassifier

        return RoFormerTokenClassifier.from_preset(
            preset,
            labels=self.classes,
            crf=True,
            crf_rate=self.options.crf_rate,
            max_length=self.options.max_length,
        )

    def predict(self, model, texts):
        return model.extract(texts, verbose=0)

    def decode(self, model, rows, answers):
        from roformer_keras.tasks.spans import spans_of_tags

        found = []
        for number, tags in enumerate(answers):
            # `[CLS]` and `[SEP]` have no tag.
            names = ["O", *(model.tags[tag] for tag in tags), "O"]
            found.append(
                [
                    rows.span(number, start, end - 1, label, score=1.0)
                    for start, end, label in spans_of_tags(names)
                ]
            )
        return found

    def score(self, labels, answers):
        from roformer_keras.tasks.reports import span_report
        from roformer_keras.tasks.spans import spans_of_tags

        return span_report([spans_of_tags(tags) for tags in labels], answers)["f1"]


TASKS = {
    "classification": Classification,
    "similarity": Similarity,
    "entities": Entities,
}


# === Training ===


def make_preset(options, records, seed, folder):
    """Writes the encoder of a seed as a preset folder."""
    import keras

    from roformer_keras.models import RoFormerBackbone

    if options.source:
        backbone = RoFormerBackbone.from_preset(
            options.source, layer_norm_epsilon=LAYER_NORM_EPSILON
        )
        tokenizer = backbone.text_tokenizer()
    else:
        vocabulary = options.vocabulary
        if vocabulary is None:
            texts = texts_of(records["train"])
            vocabulary, _ = build_vocabulary(texts, min_count=2)
        tokenizer = RoFormerTokenizer(vocabulary)
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
    import keras

    keras.utils.set_random_seed(seed)
    return task.make(preset)


def make_batches(lengths, batch_size, epochs, seed):
    """Numbers of the rows of each batch of all epochs, as `fit` makes them."""
    from roformer_keras.data.batches import TextBatches

    batches = TextBatches(
        lengths, lambda numbers, more: numbers, batch_size, shuffle=True, seed=seed
    )
    found = []
    for _ in range(epochs):
        found += [batches[number] for number in range(len(batches))]
        batches.on_epoch_end()
    return found


@dataclass
class Training:
    """What both sides start with and learn from.

    Attributes:
        model: of this package, compiled.
        texts: part -> texts.
        rows: part -> tokenized rows.
        targets: of the training rows.
        batches: numbers of the rows of each batch of all epochs.
    """

    model: object
    texts: dict
    rows: dict
    targets: object
    batches: list

    def batch(self, numbers):
        """Inputs and targets of training rows."""
        inputs = self.rows["train"].batch(numbers)
        return inputs, self.model.batch_targets(self.targets, numbers, inputs)

    def first_loss(self):
        """The loss of the first batch before any update, without dropout."""
        found = self.model.test_on_batch(*self.batch(self.batches[0]), return_dict=True)
        return float(found["loss"])

    def hash_ids(self):
        """A hash of the token ids of all batches and of the test rows."""
        train, test = self.rows["train"], self.rows["test"]
        every = [train.batch(numbers) for numbers in self.batches]
        every += [test.batch([number]) for number in range(len(test))]
        return hash_ids([inputs["token_ids"].ravel() for inputs in every])


def train_here(training, options):
    import tensorflow as tf

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
        # The batches are shuffled already.
        shuffle=False,
        steps_per_epoch=len(training.batches) // options.epochs,
        epochs=options.epochs,
        verbose=2,
    )
    seconds = time.perf_counter() - start
    return {"loss": float(history.history["loss"][-1]), "seconds": seconds}


def train_there(training, first_loss, options, seed, folder):
    """The same training by bert4keras, in its own process."""
    from keras import ops

    from roformer_keras.conversion.convert import convert

    archive = convert(folder / "preset", folder / "encoder.zip", verbose=0)
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder / "encoder")
    (config,) = (folder / "encoder").rglob("bert_config.json")
    for part, texts in training.texts.items():
        (folder / f"{part}.json").write_text(json.dumps(texts), encoding="utf-8")
    arrays = {f"batch/{number}": batch for number, batch in enumerate(training.batches)}
    for variable in training.model.head_variables():
        layer, name = variable.path.split("/")[-2:]
        name = f"{'crf' if layer == 'crf' else 'head'}/{name}"
        arrays[name] = ops.convert_to_numpy(variable)
    targets = training.targets
    # The tags of all rows are concatenated.
    is_list = isinstance(targets, list)
    arrays["targets"] = np.concatenate(targets) if is_list else targets
    np.savez(folder / "arrays.npz", **arrays)
    job = {
        "task": options.task,
        "folder": str(config.parent),
        "model": training.model.config.model_type,
        **{part: str(folder / f"{part}.json") for part in training.texts},
        "arrays": str(folder / "arrays.npz"),
        "ids": training.hash_ids(),
        "first_loss": first_loss,
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "max_length": options.max_length,
        "learning_rate": options.learning_rate,
        "weight_decay": WEIGHT_DECAY,
        "clip_norm": TASKS[options.task].clip_norm,
        "crf_rate": options.crf_rate,
        "schedule": linear_schedule(len(training.batches)),
        "seed": seed,
    }
    try:
        worker = reference_worker("tools.reference.training:Trainer", {"job": job})
        with worker:
            return worker.call("train")
    except WorkerFailed as error:
        raise ReferenceUnavailable(str(error)) from error


if __name__ == "__main__":
    sys.exit(Finetuning.main())
