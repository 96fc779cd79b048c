"""Translation with rotary against sinusoidal positions.

    python -m tools.experiments.translation --output FOLDER --seeds 3 \\
        --config checkpoints/training/translation-multi30k.toml [--data FOLDER]

Table 1 in arXiv:2104.09864, at another size. Two encoder-decoders differ only in
positions; those of a seed start with equal weights and get equal batches. The
configuration is described by `Settings`.

KIND-SEED/ has the written.json of a training, with its translations. curves.csv has
losses, and BLEU of validation texts by greedy search; runs.csv the figures at the end.
BLEU needs sacrebleu.
"""

import dataclasses
import importlib.util
import random
import statistics
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
from tqdm import tqdm

from roformer_keras.base import checks
from roformer_keras.base.checks import read_toml
from roformer_keras.base.errors import ConfigurationError, SourceError, errors_at
from roformer_keras.tables.corpus import CorpusSource, read_corpus
from roformer_keras.tables.opening import File
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.text.train_vocabulary import (
    build_subword_vocabulary,
    build_vocabulary,
)
from roformer_keras.training.averaging import LastCheckpoints
from tools.experiments.harness import Experiment, spread
from tools.experiments.translation.learning import (
    InverseSquareRoot,
    LabelSmoothing,
    Pairs,
)
from tools.experiments.translation.model import Translator
from tools.experiments.translation.writing import Writer
from tools.tables import markdown, write_json, write_text

# name -> label, color, line
KINDS = {
    "sinusoidal": ("Transformer, sinusoidal positions", "C1", "-"),
    "rotary": ("RoFormer", "C0", "-"),
}
PARTS = ("train", "valid", "test")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts(checks.Settings):
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(checks.Settings):
    """A configuration.

    Args:
        texts: fields of `Texts`.
        model: sizes of a `Translator`.
        subwords, lower_case, min_count, max_vocabulary: of the vocabulary.
        steps, batch_size: updates, and pairs of each.
        length: tokens of a text; pairs with a longer one are left out.
        learning_rate, warmup: of `InverseSquareRoot`.
        label_smoothing: share of `LabelSmoothing`.
        evaluate_every: updates from one evaluation to the next.
        save_every, average_checkpoints: the final weights are the mean of this many
            checkpoints, the last ones.
    """

    texts: dict
    model: dict
    steps: int
    batch_size: int
    length: int
    learning_rate: float
    warmup: int = 400
    label_smoothing: float = 0.1
    subwords: bool = False
    lower_case: bool = True
    min_count: int = 5
    max_vocabulary: int | None = None
    evaluate_every: int = 400
    save_every: int = 100
    average_checkpoints: int = 5


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
        if importlib.util.find_spec("sacrebleu") is None:
            raise ConfigurationError("BLEU needs sacrebleu; run: pip install sacrebleu")
        self.settings = read_toml(options.config)
        with errors_at(options.config):
            self.training = Settings.from_dict(self.settings)
            self.texts = Texts.from_dict(self.training.texts)
        data = options.data or options.config.parent / self.texts.folder
        if not all(self.path_of(part).exists() for part in PARTS):
            parts = read_files if self.texts.train else read_table_parts
            self.parts = parts(self.texts, data)

    def path_of(self, part):
        return self.folder / f"{part}.tsv"

    def prepare(self):
        for part in PARTS:
            if not self.path_of(part).exists():
                rows = (
                    "\t".join(" ".join(text.split()) for text in pair)
                    for pair in self.parts[part]
                )
                write_text(self.path_of(part), "".join(f"{row}\n" for row in rows))
        vocabulary, training = self.folder / "vocab.txt", self.training
        if not vocabulary.exists():
            build = build_subword_vocabulary if training.subwords else build_vocabulary
            tokens, _ = build(
                self.read_pairs("train"),
                min_count=training.min_count,
                max_size=training.max_vocabulary,
                lower_case=training.lower_case,
            )
            tokenizer = RoFormerTokenizer(tokens, lower_case=training.lower_case)
            tokenizer.save_vocabulary(vocabulary)

    def read_pairs(self, part):
        with open(self.path_of(part), encoding="utf-8", newline="\n") as file:
            return [tuple(line.rstrip("\n").split("\t")) for line in file]

    def train(self, kind, seed):
        tokenizer = RoFormerTokenizer(
            self.folder / "vocab.txt", lower_case=self.training.lower_case
        )
        model = make_model(tokenizer, kind, self.training, seed)
        writer, start = Writer(model), time.perf_counter()
        curve = self.fit(model, writer, f"{kind}, seed {seed}", seed)
        seconds = time.perf_counter() - start
        sources, references = zip(*self.read_pairs("test"), strict=True)
        written = writer.write(
            sources,
            num_beams=self.texts.num_beams,
            length_penalty=self.texts.length_penalty,
            max_length=self.texts.max_length,
        )
        folder = self.folder / f"{kind}-{seed}"
        folder.mkdir(exist_ok=True)
        rows = list(zip(sources, written, references, strict=True))
        write_json(folder / "written.json", rows)
        run = {"kind": kind, "seed": seed}
        figures = {
            "parameters": model.count_params(),
            "test_bleu": self.bleu(written, references),
            "valid_loss": curve[-1]["valid_loss"],
            "valid_bleu": curve[-1]["valid_bleu"],
            "tokens_per_second": statistics.median(
                row.pop("tokens_per_second") for row in curve
            ),
            "training_seconds": seconds,
        }
        return [[{**run, **row} for row in curve], [{**run, **figures}]]

    def fit(self, model, writer, title, seed):
        """Trains to the mean of the last checkpoints; rows of losses and BLEU."""
        training = self.training
        pairs = Pairs(model.tokenizer, self.read_pairs("train"), training.length)
        batches = pairs.endless(training.batch_size, seed)
        curve, tokens, seconds = [], 0, 0.0
        with tempfile.TemporaryDirectory() as folder:
            checkpoints = LastCheckpoints(Path(folder), training.average_checkpoints)
            for update in tqdm(range(1, training.steps + 1), title, unit=" updates"):
                batch, start = next(batches), time.perf_counter()
                loss = model.train_on_batch(*batch)
                seconds += time.perf_counter() - start
                tokens += sum(np.count_nonzero(ids) for ids in batch[0].values())
                is_last = update == training.steps
                if update % training.save_every == 0 or is_last:
                    checkpoints.add(update, model.trainable_variables)
                if update % training.evaluate_every == 0 or is_last:
                    row = {"update": update, "train_loss": float(loss)}
                    curve.append({**row, **self.evaluate(model, writer)})
                    curve[-1]["tokens_per_second"] = tokens / seconds
                    tokens, seconds = 0, 0.0
            checkpoints.assign_mean(model.trainable_variables)
        return curve

    def evaluate(self, model, writer):
        """Loss of validation texts that are short enough for training, and BLEU."""
        texts, training = self.read_pairs("valid"), self.training
        model.reset_metrics()
        batches = Pairs(model.tokenizer, texts, training.length).batches(
            training.batch_size
        )
        for number in range(len(batches)):
            loss = model.test_on_batch(*batches[number])
        model.reset_metrics()
        sources, targets = zip(*texts, strict=True)
        written = writer.write(sources, max_length=self.texts.max_length)
        return {"valid_loss": float(loss), "valid_bleu": self.bleu(written, targets)}

    def bleu(self, written, expected):
        import sacrebleu

        return sacrebleu.corpus_bleu(
            written, [expected], tokenize=self.texts.tokenize
        ).score

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
        return (
            f"{markdown(columns, table)}\n\n"
            f'BLEU of the test (sacrebleu, tokenize="{self.texts.tokenize}"), '
            f"{self.texts.num_beams} beams, length penalty "
            f"{self.texts.length_penalty}, {runs[0]['parameters']:,} parameters. "
            f"RoFormer differs by {difference:+.2f} in the mean."
        )


def make_model(tokenizer, kind, training, seed):
    """A compiled `Translator`; kinds of a seed start with equal weights."""
    keras.utils.set_random_seed(seed)
    model = Translator(tokenizer, kind, **training.model)
    rate = InverseSquareRoot(training.learning_rate, training.warmup)
    model.compile(
        keras.optimizers.Adam(rate, beta_2=0.98, epsilon=1e-9),
        LabelSmoothing(training.label_smoothing),
        jit_compile=False,
    )
    return model


def read_files(texts, folder):
    """Part -> pairs of lines of two files."""
    parts = {}
    for part in PARTS:
        sides = [list(File(str(folder / x)).lines()) for x in getattr(texts, part)]
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
