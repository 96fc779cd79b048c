"""The same small model on longer and longer beginnings of the same texts.

    python -m tools.experiments.lengths --output FOLDER --seeds 3 \\
        --config checkpoints/training/lengths.toml

Table 5 in arXiv:2104.09864, on another task. A `RoFormerTripletRanker` learns which of
two texts is more similar to a third, once for each length. A and B are passages of one
document, C of another; the last fifth of each document is for the test. The baseline
needs no training: the cosine of the characters that two texts of that length share
(TF-IDF).
"""

import dataclasses
import itertools
import statistics
import sys
import time

import keras
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from roformer_keras.base import checks
from roformer_keras.base.checks import columns, file_paths, integer, number, source_path
from roformer_keras.optimizers import make_optimizer
from roformer_keras.tables.corpus import CorpusSource, read_corpus
from roformer_keras.tasks import RoFormerTripletRanker
from roformer_keras.tasks.optimizer_settings import dtype_policy
from tools.experiments.harness import Experiment, count_seeds, linear_schedule, spread
from tools.tables import markdown

TEST_SHARE = 0.2
STYLES = {None: ("RoFormer", "C0", "o-")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(checks.Settings):
    """The model, its training and its texts.

    Args:
        files, fields: as in `CorpusSource`, of the text and its document.
        lengths: ints, ascending. Tokens to which rows are cut; each has a training.
        passage: int. Characters of a passage.
        train, test: ints. Triplets.
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


class Lengths(Experiment):
    tables = ("runs.csv",)
    key = "length"
    plots = (("runs.csv", None, "length", "accuracy", "accuracy on test triplets"),)
    styles, tick_step = STYLES, 256

    def __init__(self, options):
        super().__init__(options)
        self.training = Settings.from_toml(options.config)
        self.names = self.training.lengths
        self.passages = Passages(self.training)
        triplets = {"triplets": self.passages.description}
        self.settings = dataclasses.asdict(self.training) | triplets

    def train(self, length, seed):
        training = self.training
        keras.utils.set_random_seed(seed)
        options = {"pooling": training.pooling, "dtype": training.dtype}
        model = RoFormerTripletRanker.from_preset(
            training.source, max_length=length, **options
        )
        texts, labels = self.passages.draw("train", seed)
        updates = training.epochs * -(-len(texts) // training.batch_size)
        schedule = linear_schedule(updates)
        model.compile(make_optimizer(training.learning_rate, schedule))
        start = time.perf_counter()
        history = model.fit(
            texts,
            labels,
            batch_size=training.batch_size,
            epochs=training.epochs,
            seed=seed,
            verbose=2,
        )
        seconds = time.perf_counter() - start
        texts, labels = self.passages.draw("test", 0)
        run = {
            "length": length,
            "seed": seed,
            "accuracy": accuracy(model.rank(texts, verbose=0), labels),
            "loss": float(history.history["loss"][-1]),
            "seconds": seconds,
        }
        return [[run]]

    def summarize(self, runs):
        lengths = []
        for length in self.names:
            length_runs = [run for run in runs if run["length"] == length]
            lengths.append(
                {
                    "length": length,
                    **spread([run["accuracy"] for run in length_runs]),
                    "baseline": baseline(length, *self.passages.draw("test", 0)),
                    "seconds": statistics.mean(run["seconds"] for run in length_runs),
                }
            )
        counts = {
            part: len(self.passages.draw(part, 0)[0]) for part in ("train", "test")
        }
        return {"triplets": counts, "lengths": lengths}

    def report(self, results):
        settings, counts = results["settings"], results["triplets"]
        rows = [
            [
                f"{row['length']:,}",
                *(f"{row[name]:.1%}" for name in ("mean", "spread", "baseline")),
                *(f"{accuracy:.1%}" for accuracy in row["seeds"]),
                f"{row['seconds']:,.0f}",
            ]
            for row in results["lengths"]
        ]
        mean, seeds = (results["lengths"][-1][name] for name in ("mean", "seeds"))
        columns = ["tokens", "accuracy", "range", "baseline"]
        columns += [f"seed {seed}" for seed in range(len(seeds))]
        return (
            f"{markdown([*columns, 's per training'], rows)}\n\n"
            f"On {counts['test']:,} test triplets ({settings['triplets']}), after "
            f"{settings['epochs']} epochs of {counts['train']:,} from "
            f"{settings['source']}: mean and range of {count_seeds(len(seeds))}. The "
            f"standard error of an accuracy is "
            f"{(mean * (1 - mean) / counts['test']) ** 0.5:.1%}. Baseline: shared "
            "characters."
        )


class Passages:
    """Triplets of passages: two of one document, and one of another."""

    def __init__(self, settings):
        source = CorpusSource(files=settings.files, fields=settings.fields)
        self.settings, self.documents = settings, {"train": [], "test": []}
        size = settings.passage
        records = read_corpus(source)
        for _, group in itertools.groupby(records, key=lambda record: record[1]):
            text = "".join(part for part, _ in group)
            starts = range(0, len(text) - size + 1, size)
            passages = [text[start : start + size] for start in starts]
            first = len(passages) - int(TEST_SHARE * len(passages))
            # A test triplet takes two passages of a document.
            if len(passages) - first >= 2:
                self.documents["train"].append(passages[:first])
                self.documents["test"].append(passages[first:])
        count = len(self.documents["test"])
        self.description = f"passages of {count} documents"

    def draw(self, part, seed):
        """Texts (A, B, C) and labels, `"B"` or `"C"`, as the ranker takes them."""
        generator = np.random.default_rng([part == "test", seed])
        documents, passages = self.documents[part], []
        for _ in range(getattr(self.settings, part)):
            document, other = generator.choice(len(documents), 2, replace=False)
            a, b = generator.choice(len(documents[document]), 2, replace=False)
            c = generator.integers(len(documents[other]))
            passages.append(
                (documents[document][a], documents[document][b], documents[other][c])
            )
        # The label is the one more similar to A.
        swapped = generator.random(len(passages)) < 0.5
        texts = [
            (a, c, b) if is_swapped else (a, b, c)
            for (a, b, c), is_swapped in zip(passages, swapped, strict=True)
        ]
        return texts, ["C" if is_swapped else "B" for is_swapped in swapped]


def accuracy(found, labels):
    pairs = zip(found, labels, strict=True)
    return statistics.mean(one == other for one, other in pairs)


def baseline(length, texts, labels):
    """Accuracy by shared characters, in texts that are cut to half a row."""
    # [CLS] A [SEP] B [SEP]
    cut = [text[: (length - 3) // 2] for row in texts for text in row]
    vectors = TfidfVectorizer(analyzer="char", sublinear_tf=True).fit_transform(cut)
    a, b, c = (vectors[place::3] for place in range(3))
    to_b, to_c = (np.asarray(a.multiply(other).sum(axis=1)).ravel() for other in (b, c))
    return accuracy(["BC"[is_c] for is_c in (to_c > to_b).astype(int)], labels)


if __name__ == "__main__":
    sys.exit(Lengths.main())
