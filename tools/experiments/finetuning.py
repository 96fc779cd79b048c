"""Fine-tuning by this package and by the real bert4keras, from equal weights.

    python -m tools.experiments.finetuning --output FOLDER --epochs 3 --seeds 3 \\
        --train sentiment.train.tsv.gz --test sentiment.test.tsv.gz \\
        --source chinese_roformer-char_L-4_H-192_A-6.zip

Both learn from a file of labelled texts and are scored on another, without `--test` on
the last fifth of `--train`. The tasks:

classification  a text and its class: a dense layer with softmax on the vector of [CLS]
similarity      two texts and a number: CoSENT on the cosine of their vectors of [CLS]
entities        a text and its BIO tags: a dense layer and a conditional random field

Both models of a seed start with equal weights and get equal batches; that they have the
same loss is checked. Only dropout differs. Both use AdamW and gradients clipped to a
norm of 1, except `entities`, where transitions, whose gradients are `--crf-rate` times
larger, would dominate the norm.
"""

import json
import statistics
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import keras
import numpy as np
from keras import ops

from roformer_keras import tasks
from roformer_keras.base.config import RoFormerConfig
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.conversion.convert import convert
from roformer_keras.data.batches import TextBatches
from roformer_keras.io.journal import digest
from roformer_keras.models import RoFormerBackbone
from roformer_keras.optimizers import make_optimizer
from roformer_keras.tables.files import read_table
from roformer_keras.tables.texts import as_numbers
from roformer_keras.tasks.measures import NumberMeasure, SpanMeasure
from roformer_keras.tasks.span_labels import spans_of_tags
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.text.train_vocabulary import build_vocabulary
from tools.experiments.harness import Experiment, linear_schedule, spread
from tools.reference.bert4keras import reference_worker, require_bert4keras
from tools.reference.training import hash_ids
from tools.tables import markdown

MODELS = ("roformer_keras", "bert4keras")
WEIGHT_DECAY, BATCH_SIZE = 0.01, 32
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
        add("--source", help="a checkpoint; default: random weights of width 128")
        add("--layers", type=int, default=3, help="with random weights")
        add("--epochs", type=int, default=3)
        add("--learning-rate", type=float, default=1e-4)
        add("--crf-rate", type=float, default=1000.0, help="of entities")
        add("--max-length", type=int, default=256)
        add("--limit", type=int, help="rows drawn from each part; default: all")

    def __init__(self, options):
        super().__init__(options)
        require_bert4keras()
        self.task = TASKS[options.task]
        self.texts, self.labels, data = {}, {}, {}
        for part, table in read_parts(options, self.task.texts).items():
            texts, labels = self.texts[part], self.labels[part] = table
            data[part] = {"texts": len(texts), "sha256": digest([texts, labels])}
        self.settings = {
            name: value.name if isinstance(value, Path) else value
            for name, value in vars(options).items()
            if name not in ("output", "seeds")
        } | {"data": data}

    def train(self, name, seed):
        options, task = self.options, self.task
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            make_preset(options, self.texts["train"], seed, folder / "preset")
            keras.utils.set_random_seed(seed)
            model = task.make(folder / "preset", self.labels["train"], options)
            rows = {part: model.make_rows(texts) for part, texts in self.texts.items()}
            targets = model.make_targets(self.labels["train"], rows["train"])
            batches = make_batches(rows["train"].lengths, options.epochs, seed)
            optimizer = make_optimizer(
                options.learning_rate,
                linear_schedule(len(batches)),
                weight_decay=WEIGHT_DECAY,
                clip_norm=task.clip_norm,
            )
            # bert4keras computes no metrics either.
            model.compile(optimizer, metrics=[])

            def make_batch(numbers):
                inputs = rows["train"].batch(numbers)
                return inputs, model.batch_targets(targets, numbers, inputs)

            # Before any update, without dropout.
            first = model.test_on_batch(*make_batch(batches[0]), return_dict=True)
            run = {"model": name, "seed": seed, "first_loss": float(first["loss"])}
            print(f"first loss {run['first_loss']:.6f}", flush=True)
            if name == "roformer_keras":
                figures = train_here(model, make_batch, batches, options.epochs)
                answers = task.answer(model, self.texts["test"])
            else:
                job = self.make_job(model, rows, targets, batches, folder)
                job |= {"first_loss": run["first_loss"], "seed": seed}
                trainer = "tools.reference.training:Trainer"
                with reference_worker(trainer, {"job": job}) as worker:
                    figures = worker.call("train")
                answers = task.decode(model, rows["test"], figures.pop("answers"))
        run["score"] = task.score(model, self.labels["test"], answers)
        return [[run | figures]]

    def make_job(self, model, rows, targets, batches, folder):
        """The same training for `tools.reference.training`."""
        archive = convert(folder / "preset", folder / "encoder.zip", verbose=0)
        with zipfile.ZipFile(archive) as file:
            file.extractall(folder / "encoder")
        (config,) = (folder / "encoder").rglob("bert_config.json")
        for part, texts in self.texts.items():
            (folder / f"{part}.json").write_text(json.dumps(texts), encoding="utf-8")
        arrays = {f"batch/{number}": batch for number, batch in enumerate(batches)}
        for variable in model.head_variables():
            layer, name = variable.path.split("/")[-2:]
            name = f"{'crf' if layer == 'crf' else 'head'}/{name}"
            arrays[name] = ops.convert_to_numpy(variable)
        # The tags of all rows are concatenated.
        is_list = isinstance(targets, list)
        arrays["targets"] = np.concatenate(targets) if is_list else targets
        np.savez(folder / "arrays.npz", **arrays)
        every = [rows["train"].batch(numbers) for numbers in batches]
        every += [rows["test"].batch([n]) for n in range(len(rows["test"]))]
        return {
            **self.settings,
            "folder": str(config.parent),
            "model": model.config.model_type,
            **{part: str(folder / f"{part}.json") for part in self.texts},
            "arrays": str(folder / "arrays.npz"),
            "ids": hash_ids([inputs["token_ids"].ravel() for inputs in every]),
            "weight_decay": WEIGHT_DECAY,
            "clip_norm": self.task.clip_norm,
            "schedule": linear_schedule(len(batches)),
        }

    def summarize(self, runs):
        summary = {}
        for model in MODELS:
            model_runs = [run for run in runs if run["model"] == model]
            seconds = statistics.mean(run["seconds"] for run in model_runs)
            summary[model] = {
                **spread([r["score"] for r in model_runs]),
                "seconds": seconds,
            }
        return {"runs": runs, "summary": summary}

    def report(self, results):
        settings, summary = results["settings"], results["summary"]
        ours, theirs = (summary[model] for model in MODELS)
        lines = list(enumerate(zip(ours["seeds"], theirs["seeds"], strict=True)))
        lines.append(("mean", (ours["mean"], theirs["mean"])))
        rows = [[x, f"{a:.4f}", f"{b:.4f}", f"{a - b:+.4f}"] for x, (a, b) in lines]
        spreads = [f"{model['spread']:.4f}" for model in (ours, theirs)]
        data, columns = settings["data"], ["seed", *MODELS, "difference"]
        return (
            f"{markdown(columns, [*rows, ['range', *spreads, '']])}\n\n"
            f"{self.task.measure} on {data['test']['texts']:,} rows after "
            f"{settings['epochs']} epochs of {data['train']['texts']:,} of "
            f"{settings['train']}, from {settings['source'] or 'random weights'}.\n"
            f"A training took {ours['seconds']:,.0f} s here and "
            f"{theirs['seconds']:,.0f} s with bert4keras, on equal batches."
        )


def read_parts(options, count):
    """Part -> texts and labels."""
    train = read_table(options.train, count)
    test, size = train, len(train.texts)
    cut = size - size // 5
    rows = {"train": np.arange(cut), "test": np.arange(cut, size)}
    if options.test:
        test = read_table(options.test, count)
        rows = {"train": np.arange(size), "test": np.arange(len(test.texts))}
    parts = {}
    for part, table in (("train", train), ("test", test)):
        # The same rows each time, in their order.
        order = np.random.default_rng(0).permutation(len(rows[part]))
        chosen = rows[part][np.sort(order[: options.limit])]
        texts, labels = table.texts, table.labels
        parts[part] = [texts[n] for n in chosen], [labels[n] for n in chosen]
    return parts


class Classification:
    """A model with a head; `texts` per row, and the name of its score."""

    texts, clip_norm, measure = 1, 1.0, "Accuracy"

    def make(self, preset, labels, options):
        """This package's model with a new head."""
        return tasks.RoFormerTextClassifier.from_preset(
            preset, classes=sorted(set(labels)), max_length=options.max_length
        )

    def answer(self, model, texts):
        """This package's answers, as `score` takes them."""
        return model.predict(texts, verbose=0).argmax(axis=1)

    def decode(self, model, rows, answers):
        """bert4keras's answers, as `score` takes them; `model` is this package's."""
        return answers

    def score(self, model, labels, answers):
        return float(np.mean(model.make_targets(labels) == np.array(answers)))


class Similarity(Classification):
    texts, measure = 2, "Spearman's correlation"

    def make(self, preset, labels, options):
        return tasks.RoFormerSentenceEncoder.from_preset(
            preset, objective="cosent", pooling="first", max_length=options.max_length
        )

    def answer(self, model, texts):
        return model.predict(texts, verbose=0)

    def score(self, model, labels, answers):
        # Equal answers have no correlation.
        report = NumberMeasure().report(as_numbers(labels), answers)
        return report["spearman"] or 0.0


class Entities(Classification):
    measure, clip_norm = "F1 of entities", 0.0

    def make(self, preset, labels, options):
        names = {name for tags in labels for _, _, name in spans_of_tags(tags)}
        return tasks.RoFormerTokenClassifier.from_preset(
            preset,
            labels=sorted(names),
            crf=True,
            crf_rate=options.crf_rate,
            max_length=options.max_length,
        )

    def answer(self, model, texts):
        return model.extract(texts, verbose=0)

    def decode(self, model, rows, answers):
        entities = []
        for number, tags in enumerate(answers):
            # `[CLS]` and `[SEP]` have no tag.
            names = ["O", *(model.tags[tag] for tag in tags), "O"]
            spans = [
                rows.span(number, start, end - 1, label, score=1.0)
                for start, end, label in spans_of_tags(names)
            ]
            entities.append(spans)
        return entities

    def score(self, model, labels, answers):
        spans = [spans_of_tags(tags) for tags in labels]
        return SpanMeasure().report(spans, answers)["f1"]


TASKS = {
    "classification": Classification(),
    "similarity": Similarity(),
    "entities": Entities(),
}


def make_preset(options, texts, seed, folder):
    """Writes the encoder of a seed as a preset folder."""
    epsilon = {"layer_norm_epsilon": LAYER_NORM_EPSILON}
    if options.source:
        backbone = RoFormerBackbone.from_preset(options.source, **epsilon)
        tokenizer = backbone.text_tokenizer()
    else:
        vocabulary, _ = build_vocabulary(texts, min_count=2)
        tokenizer = RoFormerTokenizer(vocabulary)
        keras.utils.set_random_seed(seed)
        config = RoFormerConfig(
            vocabulary_size=tokenizer.vocabulary_size,
            num_layers=options.layers,
            num_heads=4,
            hidden_dim=128,
            intermediate_dim=512,
            **epsilon,
        )
        backbone = RoFormerBackbone.from_roformer_config(config)
    if tokenizer.level != "character":
        raise ConfigurationError(
            "bert4keras is run with vocabularies of characters, got one of level "
            f"{tokenizer.level!r}: choose another source"
        )
    backbone.save_to_preset(folder, tokenizer)


def make_batches(lengths, epochs, seed):
    """Numbers of the rows of each batch of all epochs, as `fit` makes them."""
    batches = TextBatches(
        lengths, lambda numbers, more: numbers, BATCH_SIZE, shuffle=True, seed=seed
    )
    all_batches = []
    for _ in range(epochs):
        all_batches += [batches[number] for number in range(len(batches))]
        batches.on_epoch_end()
    return all_batches


def train_here(model, make_batch, batches, epochs):
    start, losses = time.perf_counter(), []
    for rows in batches:
        logs = model.train_on_batch(*make_batch(rows), return_dict=True)
        losses.append(float(logs["loss"]))
    seconds, last = time.perf_counter() - start, -(len(batches) // epochs)
    loss = np.average(losses[last:], weights=[len(rows) for rows in batches[last:]])
    return {"loss": float(loss), "seconds": seconds}


if __name__ == "__main__":
    sys.exit(Finetuning.main())
