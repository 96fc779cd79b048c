"""RoFormer against the Transformer with sinusoidal positions, as they translate.

    python -m tools.experiments.compare_translation --output FOLDER \\
        --config checkpoints/training/translation-multi30k.toml --seeds 3

The encoder-decoder of this package, with positions either way and nothing else that
differs: `rotary` turns queries and keys of self-attention, `sinusoidal` adds the table
of Vaswani et al. to the embeddings. A seed decides the fresh weights, the order of the
data and the dropout; the two of a seed begin with the same weights and get the same
batches. Both are scored by sacrebleu on texts that were not trained on. (The first
experiment of arXiv:2104.09864, table 1, at another size.)

The configuration is one of `pretrain seq2seq` without data and seed, and with a table
`comparison` beside:

train, valid, test   each two files, of which a line of the one and the same line of the
                     other are a pair; or else:
table, fields        a table of pairs and its two columns, of which those whose column
group, holdout       `group` falls into the share `holdout` are not trained on, but are
                     what is validated and tested on, drawn by lot
train_pairs, valid_pairs, test_pairs
                     how many of each, the first of all or as many as are drawn;
                     all if not given
tokenize             how sacrebleu cuts texts: "13a" at spaces and marks, "char"
folder               of the files, beside the configuration; --data names another
num_beams, length_penalty, max_length
                     of the test; while it trains, texts are written greedily

Each training is one of `roformer_keras.pretrain`: interrupted, the same command goes
on with it from its last saved state, and with the trainings that are missing; more
`--seeds` add to those that are there. In the folder:

settings.json             what is compared
train.tsv, valid.tsv, test.tsv, vocab.txt
KIND-SEED/                a training; its curve.csv has loss and BLEU of valid.tsv, and
                          result.json what was found at the end, by the mean of the last
                          checkpoints
curves.csv, runs.csv      of all trainings, without any text
results.json, table.md, curves.png
"""

import argparse
import dataclasses
import gzip
import itertools
import json
import random
import statistics
import sys
import time
from pathlib import Path

import keras
import numpy as np

from roformer_keras.checks import check_fields, from_fields, read_toml
from roformer_keras.data.corpus import Corpus, CorpusSource
from roformer_keras.errors import (
    ConfigurationError,
    RoFormerError,
    SourceError,
    errors_at,
)
from roformer_keras.io.atomic import replacing
from roformer_keras.models import RoFormerSeq2Seq, Seq2SeqConfig
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.text.train_vocabulary import (
    build_subword_vocabulary,
    build_vocabulary,
)
from roformer_keras.training.bleu import corpus_bleu, load_sacrebleu, make_metric
from roformer_keras.training.folder import LOG
from roformer_keras.training.log import read_log
from roformer_keras.training.plots import new_figure, save_figure
from roformer_keras.training.pretrain import fields_of_fresh_model, pretrain
from roformer_keras.training.pretraining_settings import PretrainingSettings
from tools.experiments.comparisons import read_rows, reset_run, write_json, write_rows

# name -> how it is called, and drawn
KINDS = {
    "sinusoidal": ("Transformer, sinusoidal positions", "C1"),
    "rotary": ("RoFormer", "C0"),
}
PARTS = ("train", "valid", "test")
COLUMNS = {
    "update": int,
    "train_loss": float,
    "valid_loss": float,
    "valid_bleu": float,
}
RUN_COLUMNS = {
    "kind": str,
    "seed": int,
    "parameters": int,
    "test_bleu": float,
    "valid_loss": float,
    "valid_bleu": float,
    "tokens_per_second": float,
    "training_seconds": float,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What the configuration says beside a training; see above."""

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

    def __post_init__(self):
        check_fields(self)
        files = [len(getattr(self, part)) for part in PARTS]
        if files != ([0] * 3 if self.table is not None else [2] * 3):
            raise ConfigurationError(
                "a comparison has a table, or else two files each for train, valid and "
                f"test; got table={self.table!r} and {files} files"
            )


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True, help="a folder")
    parser.add_argument("--data", type=Path, help="folder of the files")
    parser.add_argument("--seeds", type=int, default=3, help="0, 1, 2, ...")
    options = parser.parse_args(arguments)
    try:
        if options.seeds < 1:
            raise ConfigurationError(f"seeds must be at least 1, got {options.seeds}")
        comparison, training = load(options.config)
        make_metric(comparison.tokenize)
        folder = options.output
        data = options.data or options.config.parent / comparison.folder
        reset_run(
            folder,
            {"comparison": dataclasses.asdict(comparison), "training": training},
        )
        prepare(folder, comparison, training, data)
        writers = {}
        runs = [
            run(folder, comparison, training, kind, seed, writers)
            for seed in range(options.seeds)
            for kind in KINDS
        ]
        write_tables(runs, folder)
        draw(runs, folder / "curves.png")
        table = report(runs, comparison)
        write_json(folder / "results.json", {"runs": runs, "summary": summary(runs)})
        with replacing(folder / "table.md", overwrite=True) as partial:
            partial.write_text(f"{table}\n", encoding="utf-8")
    except RoFormerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"\n{table}")
    return 0


def load(path):
    """The comparison, and the plain fields of its trainings."""
    training = read_toml(path)
    with errors_at(path):
        fields = training.pop("comparison", None)
        if not isinstance(fields, dict):
            raise ConfigurationError("a configuration must have a table [comparison]")
        comparison = from_fields(Comparison, fields, "comparison")
        needless = [
            name
            for name in ("data", "seed", "vocabulary", "source")
            if name in training
        ]
        if needless or "position_embedding" in training.get("model", {}):
            raise ConfigurationError(
                "data, seed, vocabulary, source and position_embedding are the "
                f"comparison's to say, got {needless or 'position_embedding'}"
            )
        # What is wrong is known before anything is done.
        settings = settings_of(training, Path("train.tsv"), "rotary", 0)
        if len(settings.stages) != 1:
            raise ConfigurationError(
                f"a comparison has one stage, got {len(settings.stages)}"
            )
    return comparison, training


def settings_of(training, pairs, kind, seed):
    """Of one training; a vocabulary lies beside the pairs."""
    fields = {
        name: value
        for name, value in training.items()
        if name not in ("subwords", "min_count", "max_vocabulary")
    }
    return PretrainingSettings.from_dict(
        {
            **fields,
            "objective": "seq2seq",
            "data": [{"files": [str(pairs)], "fields": ["1", "2"]}],
            "vocabulary": str(pairs.with_name("vocab.txt")),
            "model": {**training.get("model", {}), "position_embedding": kind},
            "seed": seed,
        }
    )


# === The data ===


def prepare(folder, comparison, training, data):
    """Pairs and vocabulary, where they are not there yet."""
    if not all((folder / f"{part}.tsv").exists() for part in PARTS):
        parts = (
            parallel(comparison, data) if comparison.train else drawn(comparison, data)
        )
        for part, pairs in zip(PARTS, parts, strict=True):
            with (
                replacing(folder / f"{part}.tsv", overwrite=True) as partial,
                open(partial, "w", encoding="utf-8", newline="") as file,
            ):
                for pair in pairs:
                    file.write("\t".join(" ".join(text.split()) for text in pair))
                    file.write("\n")
    if not (folder / "vocab.txt").exists():
        is_subwords = training.get("subwords", False)
        build = build_subword_vocabulary if is_subwords else build_vocabulary
        lower_case = training.get("lower_case", True)
        tokens, facts = build(
            read_pairs(folder / "train.tsv"),
            min_count=training.get("min_count", 5),
            max_size=training.get("max_vocabulary"),
            lower_case=lower_case,
        )
        print(
            f"vocabulary: {len(tokens)} tokens, {facts['coverage']:.4%} of characters"
        )
        tokenizer = RoFormerTokenizer(tokens, lower_case=lower_case)
        tokenizer.save_vocabulary(folder / "vocab.txt")


def parallel(comparison, folder):
    """Pairs of lines of two files, for each part."""
    for part in PARTS:
        sides = [lines(folder / name) for name in getattr(comparison, part)]
        if len({len(side) for side in sides}) != 1:
            raise SourceError(
                f"the files of {part} must have as many lines each, got "
                f"{', '.join(str(len(side)) for side in sides)}"
            )
        pairs = [pair for pair in zip(*sides, strict=True) if all(map(str.strip, pair))]
        yield pairs[: getattr(comparison, f"{part}_pairs")]


def lines(path):
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror or error}") from error


def drawn(comparison, folder):
    """Pairs of a table: of the groups that are trained on, and of the others."""
    source = CorpusSource(
        files=(str(folder / comparison.table),),
        fields=comparison.fields,
        group=comparison.group,
        holdout=comparison.holdout,
    )
    found = {}
    for part in ("train", "held_out"):
        pairs = [pair for pair in Corpus(source, part=part).once() if all(pair)]
        random.Random(0).shuffle(pairs)
        found[part] = pairs
    first = comparison.valid_pairs or len(found["held_out"]) // 2
    tests = found["held_out"][first:]
    yield found["train"][: comparison.train_pairs]
    yield found["held_out"][:first]
    yield tests[: comparison.test_pairs]


def read_pairs(path):
    """Pairs of a table that `prepare` wrote."""
    with open(path, encoding="utf-8", newline="\n") as file:
        return [tuple(line.rstrip("\n").split("\t")) for line in file]


# === Training ===


def run(folder, comparison, training, kind, seed, writers):
    """What was found for one training, which is trained if it is not there yet.

    Args:
        writers: dict of kind to a model that writes with the weights of another. One
            serves all seeds, for its programs take longer to compile than to run.
    """
    own = folder / f"{kind}-{seed}"
    result = own / "result.json"
    if result.exists():
        return json.loads(result.read_text(encoding="utf-8"))
    print(f"{kind}, seed {seed}", flush=True)
    settings = settings_of(training, folder / "train.tsv", kind, seed)
    if kind not in writers:
        writers[kind] = writer_of(settings)
    pairs = read_pairs(folder / "valid.tsv")
    writer = writers[kind]
    valid = Validation(writer, pairs, comparison, settings, own / "curve.csv")
    begin = time.perf_counter()
    model = pretrain(settings, own, callbacks=[valid], verbose=sys.stderr.isatty())
    seconds = time.perf_counter() - begin
    curve = read_rows(valid.path, COLUMNS)
    sources, references = zip(*read_pairs(folder / "test.tsv"), strict=True)
    take_weights(writer, model)
    begin = time.perf_counter()
    written = writer.generate(
        list(sources),
        method="beam",
        num_beams=comparison.num_beams,
        length_penalty=comparison.length_penalty,
        max_length=comparison.max_length,
        batch_size=128,
        progress=False,
    )
    log = [row for row in read_log(own / LOG) if row["tokens_per_second"]]
    found = {
        "kind": kind,
        "seed": seed,
        "parameters": model.count_params(),
        "test_bleu": corpus_bleu(written, references, comparison.tokenize).score,
        "valid_loss": curve[-1]["valid_loss"],
        "valid_bleu": curve[-1]["valid_bleu"],
        "tokens_per_second": statistics.median(
            float(row["tokens_per_second"]) for row in log
        ),
        "training_seconds": seconds,
        "test_seconds": time.perf_counter() - begin,
        "examples": [
            {"source": source, "written": text, "reference": reference}
            for source, text, reference in itertools.islice(
                zip(sources, written, references, strict=True), 5
            )
        ],
        "curve": curve,
    }
    write_json(result, found)
    return found


def writer_of(settings):
    """A model like that of a training."""
    tokenizer = RoFormerTokenizer(settings.vocabulary, lower_case=settings.lower_case)
    model = RoFormerSeq2Seq(
        Seq2SeqConfig.from_dict(fields_of_fresh_model(settings, tokenizer))
    )
    model.tokenizer = tokenizer
    model.compile()
    return model


def take_weights(writer, model):
    """Gives a model the weights of another of the same layers."""
    pairs = zip(writer.trainable_variables, model.trainable_variables, strict=True)
    for own, other in pairs:
        if own.path != other.path:
            raise AssertionError(f"{own.path} is not {other.path}")
        own.assign(other)


class Validation(keras.callbacks.Callback):
    """Loss and BLEU of texts that are not trained on, as often as settings evaluate.

    Args:
        writer: model that takes the weights as they are.
        pairs: what it is validated on; the loss is of those that are short enough to
            be trained on.
        comparison, settings: of this training.
        path: of a table with a row each time.
    """

    def __init__(self, writer, pairs, comparison, settings, path):
        super().__init__()
        self.writer, self.pairs = writer, pairs
        self.comparison, self.path = comparison, path
        (self.stage,) = settings.stages
        self.log_every = settings.log_every
        self.every = settings.evaluate_every or self.stage.steps
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
        take_weights(self.writer, self.model)
        sources, targets = zip(*self.pairs, strict=True)
        written = self.writer.generate(
            list(sources),
            method="greedy",
            max_length=self.comparison.max_length,
            progress=False,
        )
        found = {
            "update": update,
            "train_loss": logs["loss"],
            "valid_loss": self.writer.evaluate(
                *self.sides, max_length=self.stage.length, verbose=0
            ),
            "valid_bleu": corpus_bleu(written, targets, self.comparison.tokenize).score,
        }
        # What came behind a saved state comes again.
        before = [
            row for row in read_rows(self.path, COLUMNS) if row["update"] < update
        ]
        write_rows(self.path, COLUMNS, [*before, found])


# === Results ===


def summary(runs):
    """Mean and spread of each kind, from the worst to the best seed."""
    found = {}
    for kind in KINDS:
        scores = [run["test_bleu"] for run in runs if run["kind"] == kind]
        found[kind] = {
            "test_bleu": statistics.mean(scores),
            "spread": max(scores) - min(scores),
        }
    return found


def write_tables(runs, folder):
    """What was measured, without the texts: those may not be given away."""
    write_rows(
        folder / "runs.csv",
        RUN_COLUMNS,
        [{name: run[name] for name in RUN_COLUMNS} for run in runs],
    )
    write_rows(
        folder / "curves.csv",
        {"kind": str, "seed": int, **COLUMNS},
        [
            {"kind": run["kind"], "seed": run["seed"], **row}
            for run in runs
            for row in run["curve"]
        ],
    )


def report(runs, comparison):
    """A table in Markdown, and what it is of."""
    seeds = sorted({run["seed"] for run in runs})
    lines = [
        f"| | {' | '.join(f'seed {seed}' for seed in seeds)} | mean | spread "
        "| loss, valid | tokens/s |",
        f"|{'---|' * (len(seeds) + 5)}",
    ]
    found = summary(runs)
    for kind, (label, _) in KINDS.items():
        own = [run for run in runs if run["kind"] == kind]
        scores = " | ".join(f"{run['test_bleu']:.2f}" for run in own)
        loss = statistics.mean(run["valid_loss"] for run in own)
        speed = statistics.median(run["tokens_per_second"] for run in own)
        lines.append(
            f"| {label} | {scores} | {found[kind]['test_bleu']:.2f} | "
            f"{found[kind]['spread']:.2f} | {loss:.3f} | {speed:,.0f} |"
        )
    difference = found["rotary"]["test_bleu"] - found["sinusoidal"]["test_bleu"]
    lines += [
        "",
        f"BLEU of the test (sacrebleu {load_sacrebleu().__version__}, "
        f'tokenize="{comparison.tokenize}"), {comparison.num_beams} beams, length '
        f"penalty {comparison.length_penalty}, {runs[0]['parameters']:,} parameters. "
        f"RoFormer differs by {difference:+.2f} in the mean.",
    ]
    return "\n".join(lines)


def draw(runs, path):
    """Losses and BLEU of both kinds by updates: the mean of the seeds, and all."""
    figure = new_figure(11, 4.5)
    left, right = figure.subplots(1, 2)
    for kind, (label, colour) in KINDS.items():
        curves = [run["curve"] for run in runs if run["kind"] == kind]
        updates = [row["update"] for row in curves[0]]
        for axes, column, style, name in (
            (left, "train_loss", "--", f"{label}, training"),
            (left, "valid_loss", "-", f"{label}, held out"),
            (right, "valid_bleu", "-", label),
        ):
            values = np.array([[row[column] for row in curve] for curve in curves])
            axes.plot(updates, values.mean(0), style, color=colour, label=name)
            axes.fill_between(
                *(updates, values.min(0), values.max(0)),
                color=colour,
                alpha=0.2,
                linewidth=0,
            )
    seeds = len({run["seed"] for run in runs})
    figure.suptitle(f"Mean and range of {seeds} seed{'s' if seeds > 1 else ''}")
    left.set(xlabel="updates", ylabel="loss (nats a token, label smoothing 0.1)")
    right.set(xlabel="updates", ylabel="BLEU of held-out texts, written greedily")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    save_figure(figure, path)


if __name__ == "__main__":
    sys.exit(main())
