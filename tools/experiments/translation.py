"""Translation with rotary against sinusoidal positions.

    python -m tools.experiments.translation --output FOLDER --seeds 3 \\
        --config checkpoints/training/translation-multi30k.toml [--data FOLDER]

Table 1 in arXiv:2104.09864, at another size. Two encoder-decoders differ only in
positions; those of a seed start with equal weights and get equal batches. The
configuration is one of `pretrain seq2seq` without data and seed, with one stage and a
table `comparison` (see `Settings`).

Each training is a run of `roformer_keras.pretrain` in KIND-SEED/, which resumes. Its
written.json has the translations. curves.csv has losses, and BLEU of validation texts
by greedy search; runs.csv the figures at the end.
"""

import dataclasses
import random
import statistics
import sys
import time
from pathlib import Path

import keras

from roformer_keras import checks
from roformer_keras.checks import read_toml
from roformer_keras.data.corpus import CorpusSource, read_corpus
from roformer_keras.data.files import read_lines
from roformer_keras.errors import SourceError, errors_at
from roformer_keras.models import RoFormerSeq2Seq, Seq2SeqConfig
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.text.train_vocabulary import (
    build_subword_vocabulary,
    build_vocabulary,
)
from roformer_keras.training.bleu import corpus_bleu, load_sacrebleu, make_metric
from roformer_keras.training.folder import LOG
from roformer_keras.training.log import read_log
from roformer_keras.training.pretrain import fields_of_fresh_model, pretrain
from roformer_keras.training.pretraining_settings import PretrainingSettings
from tools.experiments.harness import Experiment, spread
from tools.tables import markdown, read_rows, write_json, write_rows, write_text

# name -> label, color, line
KINDS = {
    "sinusoidal": ("Transformer, sinusoidal positions", "C1", "-"),
    "rotary": ("RoFormer", "C0", "-"),
}
PARTS = ("train", "valid", "test")
# Fields of the configuration that the experiment reads itself.
OWN_FIELDS = ("subwords", "min_count", "max_vocabulary", "evaluate_every")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(checks.Settings):
    """The texts, and how translations are written and scored.

    Args:
        train, valid, test: each two files whose lines with equal numbers are pairs.
        table, fields, group, holdout: instead of these, as in `CorpusSource`;
            validation and test pairs are drawn from what is held out.
        train_pairs, valid_pairs, test_pairs: ints or None. The first so many.
        folder: of the files, relative to the configuration; `--data` names another.
        tokenize: as in sacrebleu.
        num_beams, length_penalty, max_length: of the translations of the test.
    """

    tokenize: str
    folder: str = ""
    train: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    table: str | None = None
    fields: tuple[str, ...] = ("1", "2")
    group: str | None = None
    holdout: float = 0.0
    train_pairs: int | None = None
    valid_pairs: int | None = None
    test_pairs: int | None = None
    num_beams: int = 4
    length_penalty: float = 0.6
    max_length: int = 64


class Translation(Experiment):
    tables = ("curves.csv", "runs.csv")
    key = "kind"
    names, styles = tuple(KINDS), KINDS
    plots = (
        ("curves.csv", "kind", "update", "valid_loss", "loss (nats a token)"),
        ("curves.csv", "kind", "update", "valid_bleu", "BLEU, greedy search"),
    )
    tick_step = 400

    @classmethod
    def add_arguments(cls, parser):
        super().add_arguments(parser)
        parser.add_argument("--data", type=Path, help="folder of the files")

    def __init__(self, options):
        super().__init__(options)
        self.fields = read_toml(options.config)
        with errors_at(options.config):
            self.texts = Settings.from_dict(self.fields.pop("comparison"))
        make_metric(self.texts.tokenize)
        self.settings = {
            "comparison": dataclasses.asdict(self.texts),
            "training": self.fields,
        }
        self.writers = {}
        data = options.data or options.config.parent / self.texts.folder
        if not all(self.path_of(part).exists() for part in PARTS):
            parts = read_files if self.texts.train else read_table_parts
            self.parts = parts(self.texts, data)

    def path_of(self, part):
        return self.folder / f"{part}.tsv"

    def make_settings(self, kind, seed):
        """The settings of a training; its vocabulary is next to its pairs."""
        fields = {k: v for k, v in self.fields.items() if k not in OWN_FIELDS}
        pairs = [{"files": [str(self.path_of("train"))], "fields": ["1", "2"]}]
        model = {**self.fields.get("model", {}), "position_embedding": kind}
        return PretrainingSettings.from_dict(
            {
                **fields,
                "objective": "seq2seq",
                "data": pairs,
                "vocabulary": str(self.folder / "vocab.txt"),
                "model": model,
                "seed": seed,
            }
        )

    def prepare(self):
        for part in PARTS:
            if not self.path_of(part).exists():
                rows = (
                    "\t".join(" ".join(text.split()) for text in pair)
                    for pair in self.parts[part]
                )
                write_text(self.path_of(part), "".join(f"{row}\n" for row in rows))
        vocabulary = self.folder / "vocab.txt"
        if not vocabulary.exists():
            is_subwords = self.fields.get("subwords", False)
            build = build_subword_vocabulary if is_subwords else build_vocabulary
            lower_case = self.fields.get("lower_case", True)
            tokens, metadata = build(
                self.read_pairs("train"),
                min_count=self.fields.get("min_count", 5),
                max_size=self.fields.get("max_vocabulary"),
                lower_case=lower_case,
            )
            coverage = metadata["coverage"]
            print(f"vocabulary: {len(tokens)} tokens, {coverage:.4%} of characters")
            tokenizer = RoFormerTokenizer(tokens, lower_case=lower_case)
            tokenizer.save_vocabulary(vocabulary)

    def read_pairs(self, part):
        with open(self.path_of(part), encoding="utf-8", newline="\n") as file:
            return [tuple(line.rstrip("\n").split("\t")) for line in file]

    def train(self, kind, seed):
        folder = self.folder / f"{kind}-{seed}"
        settings = self.make_settings(kind, seed)
        if kind not in self.writers:
            # One for all seeds: its programs take longer to compile than to run.
            self.writers[kind] = make_writer(settings)
        writer = self.writers[kind]
        validation = Validation(
            writer, self.read_pairs("valid"), self.texts, settings, folder / "curve.csv"
        )
        validation.every = self.fields.get("evaluate_every", validation.stage.steps)
        start = time.perf_counter()
        model = pretrain(
            settings, folder, callbacks=[validation], verbose=sys.stderr.isatty()
        )
        seconds = time.perf_counter() - start
        sources, references = zip(*self.read_pairs("test"), strict=True)
        copy_weights(model, writer)
        written = writer.generate(
            list(sources),
            method="beam",
            num_beams=self.texts.num_beams,
            length_penalty=self.texts.length_penalty,
            max_length=self.texts.max_length,
            batch_size=128,
            verbose=0,
        )
        rows = list(zip(sources, written, references, strict=True))
        write_json(folder / "written.json", rows)
        speeds = [row["tokens_per_second"] for row in read_log(folder / LOG)]
        run, curve = {"kind": kind, "seed": seed}, read_rows(folder / "curve.csv")
        figures = {
            "parameters": model.count_params(),
            "test_bleu": corpus_bleu(written, references, self.texts.tokenize).score,
            "valid_loss": curve[-1]["valid_loss"],
            "valid_bleu": curve[-1]["valid_bleu"],
            "tokens_per_second": statistics.median(float(x) for x in speeds if x),
            "training_seconds": seconds,
        }
        return [[{**run, **row} for row in curve], [{**run, **figures}]]

    def summarize(self, rows, runs):
        scores = {}
        for kind in KINDS:
            kind_runs = [run for run in runs if run["kind"] == kind]
            scores[kind] = spread([run["test_bleu"] for run in kind_runs])
        return {"runs": runs, "summary": scores}

    def report(self, results):
        runs, summary = results["runs"], results["summary"]
        seeds = [f"seed {seed}" for seed in range(self.options.seeds)]
        table = []
        for kind, (label, *_) in KINDS.items():
            kind_runs = [run for run in runs if run["kind"] == kind]
            scores = [
                *summary[kind]["seeds"],
                summary[kind]["mean"],
                summary[kind]["spread"],
            ]
            loss = statistics.mean(run["valid_loss"] for run in kind_runs)
            speed = statistics.median(run["tokens_per_second"] for run in kind_runs)
            scores = [f"{score:.2f}" for score in scores]
            table.append([label, *scores, f"{loss:.3f}", f"{speed:,.0f}"])
        difference = summary["rotary"]["mean"] - summary["sinusoidal"]["mean"]
        columns = ["positions", *seeds, "mean", "range", "validation loss", "tokens/s"]
        texts = self.texts
        return (
            f"{markdown(columns, table)}\n\n"
            f"BLEU of the test (sacrebleu {load_sacrebleu().__version__}, "
            f'tokenize="{texts.tokenize}"), {texts.num_beams} beams, length penalty '
            f"{texts.length_penalty}, {runs[0]['parameters']:,} parameters. RoFormer "
            f"differs by {difference:+.2f} in the mean."
        )


def make_writer(settings):
    """A model with the structure of a training, which writes with its weights."""
    tokenizer = RoFormerTokenizer(settings.vocabulary, lower_case=settings.lower_case)
    model = RoFormerSeq2Seq(
        Seq2SeqConfig.from_dict(fields_of_fresh_model(settings, tokenizer))
    )
    model.tokenizer = tokenizer
    model.compile()
    return model


def copy_weights(model, writer):
    """Gives a writer the weights of a model."""
    pairs = zip(writer.trainable_variables, model.trainable_variables, strict=True)
    for own, other in pairs:
        if own.path != other.path:
            raise AssertionError(f"{own.path} is not {other.path}")
        own.assign(other)


class Validation(keras.callbacks.Callback):
    """Writes loss, of texts short enough for training, and BLEU to a table."""

    def __init__(self, writer, pairs, texts, settings, path):
        super().__init__()
        self.writer, self.pairs, self.texts, self.path = writer, pairs, texts, path
        (self.stage,) = settings.stages
        self.log_every = settings.log_every
        self.every = self.stage.steps
        encode = writer.tokenizer.encode
        short = [
            pair
            for pair in pairs
            if all(len(encode(text)[0]) <= self.stage.length for text in pair)
        ]
        self.sides = [list(side) for side in zip(*short, strict=True)]

    def on_epoch_end(self, epoch, logs=None):
        update = min((epoch + 1) * self.log_every, self.stage.steps)
        if update % self.every and update < self.stage.steps:
            return
        copy_weights(self.model, self.writer)
        sources, targets = zip(*self.pairs, strict=True)
        written = self.writer.generate(
            list(sources), method="greedy", max_length=self.texts.max_length, verbose=0
        )
        row = {
            "update": update,
            "train_loss": logs["loss"],
            "valid_loss": self.writer.evaluate(
                *self.sides, max_length=self.stage.length, verbose=0
            ),
            "valid_bleu": corpus_bleu(written, targets, self.texts.tokenize).score,
        }
        # A resumed training repeats the updates after its saved state.
        rows = [other for other in read_rows(self.path) if other["update"] < update]
        write_rows(self.path, [*rows, row])


def read_files(texts, folder):
    """Part -> pairs of lines of two files."""
    parts = {}
    for part in PARTS:
        sides = [list(read_lines(str(folder / x))) for x in getattr(texts, part)]
        if len({len(side) for side in sides}) != 1:
            raise SourceError(
                f"the files of {part} must have as many lines each, got "
                f"{', '.join(str(len(side)) for side in sides)}"
            )
        pairs = [(a.strip(), b.strip()) for (_, a), (_, b) in zip(*sides, strict=True)]
        parts[part] = list(filter(all, pairs))[: getattr(texts, f"{part}_pairs")]
    return parts


def read_table_parts(texts, folder):
    """Part -> pairs of a table, whose groups are trained on or held out."""
    source = CorpusSource(
        files=(str(folder / texts.table),),
        fields=texts.fields,
        group=texts.group,
        holdout=texts.holdout,
    )
    train, held_out = (
        [pair for pair in read_corpus(source, part) if all(pair)]
        for part in ("train", "held_out")
    )
    for pairs in (train, held_out):
        random.Random(0).shuffle(pairs)
    count = texts.valid_pairs or len(held_out) // 2
    return {
        "train": train[: texts.train_pairs],
        "valid": held_out[:count],
        "test": held_out[count:][: texts.test_pairs],
    }


if __name__ == "__main__":
    sys.exit(Translation.main())
