"""The same small model on longer and longer beginnings of the same texts.

    python -m tools.experiments.compare_lengths --output FOLDER \\
        --config checkpoints/training/lengths.toml --seeds 3
    python -m tools.experiments.compare_lengths --output FOLDER \\
        --config checkpoints/training/lengths.toml --triplets cail2019-scm.jsonl.gz

RoFormer's authors let a model tell which of two court cases a third resembles, and it
does so better when it reads 1,024 tokens instead of 512 (arXiv:2104.09864, table 5).
Here a `RoFormerTripletRanker` learns such a task from the same triplets once for each
length, everything else equal: two texts share a row, so that each is cut to about half
of it. What is compared is the share of test triplets that it gets right.

By default triplets are drawn from the documents of the configuration, whose text is cut
into passages: A and B are passages of one document, C is one of another, and B and C
change places by chance. Each document is as likely as any other, long or short. The
last fifth of each is tested on, the rest trained on.

With `--triplets` they are those of a file of JSON lines with A, B and C, in which A is
always nearer to B, as in the training data of CAIL2019-SCM; B and C change places by
chance. A fifth of the texts A is tested on with all their triplets. The other texts of
those may be trained on in other triplets.

Beside the model stands what needs no training: the cosine of the characters that two
texts of that length share, by how rare they are (TF-IDF); of a file it is asked of all
triplets.

The configuration (TOML, see `Settings`) says how the model is trained. A seed decides
the triplets that are trained on, their order, the head's weights and the dropout; the
same triplets are tested with all seeds. In the folder:

settings.json   what is compared
runs.csv        a row for each training, written when it is done
results.json    accuracies of the lengths: mean, spread, and the baseline's
lengths.png

Interrupted, the same command goes on with the trainings that are missing; with more
`--seeds` it adds to those that are there.
"""

import argparse
import dataclasses
import gzip
import itertools
import json
import statistics
import sys
import time
from pathlib import Path

import keras
import numpy as np

from roformer_keras import checks
from roformer_keras.checks import (
    check_integer,
    columns,
    file_paths,
    integer,
    number,
    source_path,
)
from roformer_keras.data.corpus import Corpus, CorpusSource
from roformer_keras.errors import ConfigurationError, RoFormerError, SourceError
from roformer_keras.optimizers import make_optimizer
from roformer_keras.tasks import RoFormerTripletRanker
from roformer_keras.training.optimizer_settings import dtype_policy
from roformer_keras.training.plots import new_figure, save_figure
from tools.experiments.comparisons import read_rows, reset_run, write_json, write_rows

TEST_SHARE = 0.2
COLUMNS = {
    "length": int,
    "seed": int,
    "accuracy": float,
    "loss": float,
    "seconds": float,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(checks.Settings):
    """How the model is trained, and on what.

    Args:
        source: str. The checkpoint to begin from.
        files: of the corpus, as of `CorpusSource`.
        fields: of its records: the text, and the document that it is of. Texts of one
            document that follow each other are joined.
        lengths: tokens to which rows are cut; each is a training of its own.
        passage: int. Characters of a passage.
        train, test: ints. Triplets.
        epochs, batch_size: ints; a batch is of triplets.
        learning_rate: float. It rises over the first tenth of the updates and falls to
            0 then.
        pooling: as of `RoFormerTripletRanker`.
        dtype: Keras dtype policy.
    """

    source: str = source_path()
    files: tuple[str, ...] = file_paths()
    fields: tuple[str, ...] = columns()
    lengths: tuple[int, ...]
    passage: int = integer(minimum=1)
    train: int = integer(minimum=1)
    test: int = integer(minimum=1)
    epochs: int = integer(1, minimum=1)
    batch_size: int = integer(4, minimum=1)
    learning_rate: float = number(3e-4, minimum=0)
    pooling: str = "mean"
    dtype: str = dtype_policy()

    def _check_together(self):
        if len(self.fields) != 2:
            raise ConfigurationError(
                f"fields must be two, a text and its document, got {list(self.fields)}"
            )
        if list(self.lengths) != sorted(set(self.lengths)) or not self.lengths:
            raise ConfigurationError(
                f"lengths must ascend, at least one, got {list(self.lengths)}"
            )

    def to_dict(self):
        return json.loads(json.dumps(dataclasses.asdict(self)))


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="TOML; see above")
    parser.add_argument("--output", type=Path, required=True, help="a folder")
    parser.add_argument("--triplets", type=Path, help="JSON lines, .gz or not")
    parser.add_argument("--seeds", type=int, default=3, help="0, 1, 2, ...")
    options = parser.parse_args(arguments)
    try:
        settings = Settings.from_toml(options.config)
        check_integer("seeds", options.seeds, minimum=1)
        triplets = (
            Passages(settings) if options.triplets is None else Read(options.triplets)
        )
        reset_run(
            options.output, {**settings.to_dict(), "triplets": triplets.description}
        )
        runs = train_missing(options.output, settings, triplets, range(options.seeds))
        results = results_of(runs, settings, triplets)
        write_json(options.output / "results.json", results)
        draw(results, options.output / "lengths.png")
    except RoFormerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"\n{report(results)}")
    return 0


# === Triplets ===


class Passages:
    """Triplets of passages: two of one document, and one of another.

    Args:
        settings: `Settings`.

    Attributes:
        description: str.
    """

    def __init__(self, settings):
        source = CorpusSource(files=settings.files, fields=settings.fields)
        self.documents = {"train": [], "test": []}
        records = Corpus(source).once()
        for _, group in itertools.groupby(records, key=lambda record: record[1]):
            text = "".join(part for part, _ in group)
            passages = [
                text[start : start + settings.passage]
                for start in range(
                    0, len(text) - settings.passage + 1, settings.passage
                )
            ]
            first = len(passages) - int(TEST_SHARE * len(passages))
            # Two are of one document, also in the smaller part.
            if len(passages) - first >= 2:
                self.documents["train"].append(passages[:first])
                self.documents["test"].append(passages[first:])
        count = len(self.documents["test"])
        if count < 2:
            raise ConfigurationError(
                f"triplets need two documents of {2 / TEST_SHARE:.0f} passages of "
                f"{settings.passage} characters at least, got {count}: shorten passage"
            )
        self.settings = settings
        self.description = f"passages of {count} documents"

    def draw(self, part, seed):
        """Texts (A, B, C) and labels, `"B"` or `"C"`, as the ranker takes them."""
        generator = np.random.default_rng([part == "test", seed])
        documents, found = self.documents[part], []
        for _ in range(getattr(self.settings, part)):
            own, other = generator.choice(len(documents), 2, replace=False)
            a, b = generator.choice(len(documents[own]), 2, replace=False)
            c = generator.integers(len(documents[other]))
            found.append((documents[own][a], documents[own][b], documents[other][c]))
        return with_labels(found, generator)

    def untrained(self):
        """What the baseline is asked."""
        return self.draw("test", 0)


class Read:
    """Triplets of a file, in which A is always nearer to B.

    Args:
        path: of JSON lines with A, B and C.

    Attributes:
        description: str.
    """

    def __init__(self, path):
        try:
            with (gzip.open if path.suffix == ".gz" else open)(
                path, "rt", encoding="utf-8"
            ) as file:
                rows = [json.loads(line) for line in file]
                triplets = [tuple(row[name] for name in "ABC") for row in rows]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SourceError(
                f"{path} must be JSON lines with A, B and C: {error!r}"
            ) from error
        firsts = sorted({a for a, _, _ in triplets})
        generator = np.random.default_rng(0)
        count = max(1, round(TEST_SHARE * len(firsts)))
        tested = set(generator.permutation(firsts)[:count].tolist())
        self.parts = {"train": [], "test": []}
        for triplet in triplets:
            self.parts["test" if triplet[0] in tested else "train"].append(triplet)
        if not self.parts["train"]:
            raise SourceError(
                f"{path} must hold triplets of two texts A at least, got {len(firsts)}"
            )
        self.description = f"{path.name}, {len(triplets)}"

    def draw(self, part, seed):
        generator = np.random.default_rng([part == "test", seed])
        return with_labels(self.parts[part], generator)

    def untrained(self):
        """What the baseline is asked: all, for nothing is trained on."""
        (texts, labels), (more, theirs) = (self.draw(part, 0) for part in self.parts)
        return texts + more, labels + theirs


def with_labels(triplets, generator):
    """B and C change places by chance, and the label says where the nearer one is."""
    texts, labels = [], []
    for (a, b, c), is_second in zip(
        triplets, generator.random(len(triplets)) < 0.5, strict=True
    ):
        texts.append((a, c, b) if is_second else (a, b, c))
        labels.append("C" if is_second else "B")
    return texts, labels


# === Training ===


def train_missing(folder, settings, triplets, seeds):
    """All runs; each is in `runs.csv` as soon as it is done."""
    path = folder / "runs.csv"
    runs = read_rows(path, COLUMNS)
    done = {(run["length"], run["seed"]) for run in runs}
    for seed, length in itertools.product(seeds, settings.lengths):
        if (length, seed) not in done:
            print(f"{length} tokens, seed {seed}", flush=True)
            run = train(length, seed, settings, triplets)
            runs.append({"length": length, "seed": seed, **run})
            write_rows(path, COLUMNS, runs)
    return [run for run in runs if run["seed"] in seeds]


def train(length, seed, settings, triplets):
    """Accuracy on what is tested, loss of the last epoch and seconds of a training."""
    keras.utils.set_random_seed(seed)
    model = RoFormerTripletRanker.from_preset(
        settings.source,
        max_length=length,
        pooling=settings.pooling,
        dtype=settings.dtype,
    )
    texts, labels = triplets.draw("train", seed)
    updates = settings.epochs * -(-len(texts) // settings.batch_size)
    schedule = [(max(1, updates // 10), 1.0), (max(2, updates), 0.0)]
    model.compile(make_optimizer(settings.learning_rate, schedule))
    start = time.perf_counter()
    history = model.fit(
        texts,
        labels,
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        seed=seed,
        verbose=2,
    )
    seconds = time.perf_counter() - start
    texts, labels = triplets.draw("test", 0)
    return {
        "accuracy": accuracy(model.rank(texts, verbose=0), labels),
        "loss": float(history.history["loss"][-1]),
        "seconds": seconds,
    }


def accuracy(found, labels):
    return statistics.mean(
        one == other for one, other in zip(found, labels, strict=True)
    )


def baseline(length, triplets):
    """Accuracy of shared characters, in texts that are cut to half of a row."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts, labels = triplets.untrained()
    # [CLS] A [SEP] B [SEP]
    cut = [text[: (length - 3) // 2] for row in texts for text in row]
    vectors = TfidfVectorizer(analyzer="char", sublinear_tf=True).fit_transform(cut)
    a, b, c = (vectors[place::3] for place in range(3))
    to_b, to_c = (np.asarray(a.multiply(other).sum(axis=1)).ravel() for other in (b, c))
    return accuracy(["BC"[nearer] for nearer in (to_c > to_b).astype(int)], labels)


# === Results ===


def results_of(runs, settings, triplets):
    """Plain types."""
    lengths = []
    for length in settings.lengths:
        own = [run for run in runs if run["length"] == length]
        found = [run["accuracy"] for run in own]
        lengths.append(
            {
                "length": length,
                "mean": statistics.mean(found),
                "spread": max(found) - min(found),
                "accuracies": found,
                "baseline": baseline(length, triplets),
                "seconds": statistics.mean(run["seconds"] for run in own),
            }
        )
    counts = {part: len(triplets.draw(part, 0)[0]) for part in ("train", "test")}
    counts["untrained"] = len(triplets.untrained()[0])
    return {
        "settings": {**settings.to_dict(), "triplets": triplets.description},
        "triplets": counts,
        "lengths": lengths,
    }


def standard_error(share, count):
    """Of a share that was counted among so many."""
    return (share * (1 - share) / count) ** 0.5


def report(results):
    """A table in Markdown, and what it is of."""
    settings, counts = results["settings"], results["triplets"]
    table = [
        f"| {row['length']:,} | {row['mean']:.1%} | {row['spread']:.1%} | "
        f"{row['baseline']:.1%} | {row['seconds']:,.0f} |"
        for row in results["lengths"]
    ]
    last = results["lengths"][-1]
    error = standard_error(last["mean"], counts["test"])
    return "\n".join(
        [
            "| tokens | right | spread | shared characters | s a training |",
            "|---|---|---|---|---|",
            *table,
            "",
            f"Of {counts['test']:,} test triplets ({settings['triplets']}), after "
            f"{settings['epochs']} epoch{'s' if settings['epochs'] > 1 else ''} of "
            f"{counts['train']:,} from {settings['source']}: the mean of "
            f"{len(last['accuracies'])} seeds, and how far they are apart. The "
            f"standard error of a share of so many triplets is {error:.1%}. Shared "
            f"characters: of {counts['untrained']:,} triplets.",
        ]
    )


def draw(results, path):
    """The share that is right by length: of every seed, their mean, the baseline."""
    figure = new_figure(6, 4)
    axes = figure.add_subplot()
    rows = results["lengths"]
    lengths = [row["length"] for row in rows]
    means = np.array([row["mean"] for row in rows])
    errors = [standard_error(mean, results["triplets"]["test"]) for mean in means]
    axes.errorbar(
        lengths,
        100 * means,
        yerr=100 * np.array(errors),
        color="C0",
        marker="o",
        capsize=3,
        label="RoFormer, mean of the seeds",
    )
    for row in rows:
        shares = 100 * np.array(row["accuracies"])
        axes.plot([row["length"]] * len(shares), shares, ".", color="C0", alpha=0.5)
    axes.plot(
        lengths,
        [100 * row["baseline"] for row in rows],
        color="C1",
        marker="s",
        linestyle="--",
        label="shared characters, untrained",
    )
    axes.axhline(50, color="0.6", linewidth=0.8)
    axes.annotate(
        "chance",
        (1, 50),
        xycoords=("axes fraction", "data"),
        xytext=(-4, 4),
        textcoords="offset points",
        ha="right",
        color="0.4",
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    axes.set(
        xlabel="tokens of a row of two texts",
        ylabel="triplets that are right (%)",
        title=results["settings"]["triplets"],
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2)
    save_figure(figure, path)


if __name__ == "__main__":
    sys.exit(main())
