"""Losses of language models on texts longer than those that they were trained on.

    python -m tools.experiments.measure_extrapolation --output FOLDER \\
        --config checkpoints/training/extrapolation.toml --seeds 3

Each seed trains two causal language models on rows of one length, which differ in their
positions alone (as in tools/experiments/compare_positions.py): one turns queries and
keys, one has
a learned table of absolute positions. Then both read longer texts that were held out,
and the loss of each next token is told by its position:

rotary        as it was trained
cut           the same, but the text is cut into rows of the length of training, each
              read by itself: what can be had without reading anything longer
interpolated  positions divided by s, how many times as long the texts are, so that none
              is beyond those of training (Chen et al. 2023, arXiv:2306.15595)
ntk           the base times s ** (d / (d - 2)), d features a head, so that the slowest
              pair turns as with interpolation and the fastest as it was
absolute      the learned table, which ends where training did: beyond, all positions
              take its last row

Interpolation was meant for models that are trained on a little with it. So two more
are, on long rows, from the same weights: one with divided positions, and, to compare,
one without (`interpolated+`, `rotary+`).

The configuration is one of `pretrain lm` from fresh weights with two stages: the
training, and the training on with long rows, whose length is evaluated. The fields of
its data are the text, and the document that it is of: texts of one document that stand
in the file one after the other are joined. `group` and `holdout` say which documents
are held out. Rows begin anywhere in a document, without special tokens; a seed decides
the fresh weights, the rows and the dropout, and the models of a seed get the same rows.
All is float32. In the folder:

settings.json, vocab.txt   what is compared
losses.csv                 mean losses of each 32 positions, in nats a token
runs.csv                   seconds and last losses of the trainings
results.json, losses.png   losses by doubled lengths, all curves

Interrupted, the same command goes on with the trainings that are missing; with more
`--seeds` it adds to those that are there.
"""

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path

import keras
import numpy as np
from keras import ops
from tqdm import tqdm

from roformer_keras.config import RoFormerConfig
from roformer_keras.errors import ConfigurationError, RoFormerError
from roformer_keras.models import RoFormerCausalLM
from roformer_keras.training.plots import new_figure, save_figure
from roformer_keras.training.pretrain import optimizer_of
from roformer_keras.training.pretraining_settings import load_settings
from tools.experiments.compare_positions import make_corpus, make_models, make_tokenizer
from tools.experiments.comparisons import read_rows, reset_run, write_json, write_rows

# Of a model, what is told of it: method -> how it is called, its colour and line.
METHODS = {
    "roformer": {
        "rotary": ("rotary", "C0", "-"),
        "cut": ("rotary, each row by itself", "C7", "-"),
        "interpolated": ("interpolated", "C1", "-"),
        "ntk": ("NTK-aware base", "C2", "-"),
        "rotary+": ("rotary, trained on", "C0", "--"),
        "interpolated+": ("interpolated, trained on", "C1", "--"),
    },
    "absolute": {"absolute": ("learned table, then its last row", "C3", ":")},
}
# Positions of which a mean loss is kept.
BIN = 32
WINDOWS = 128
TOKENS_PER_BATCH = 4096
LOSS_COLUMNS = {"method": str, "seed": int, "position": int, "loss": float}
RUN_COLUMNS = {
    "model": str,
    "seed": int,
    "training": str,
    "seconds": float,
    "tokens_per_second": float,
    "loss": float,
}


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="of `pretrain lm`; see above")
    parser.add_argument("--output", type=Path, required=True, help="a folder")
    parser.add_argument("--seeds", type=int, default=3, help="0, 1, 2, ...")
    options = parser.parse_args(arguments)
    try:
        settings = load_settings(options.config)
        check(settings, options.seeds)
        reset_run(options.output, settings.to_dict())
        losses, runs = train_missing(options.output, settings, range(options.seeds))
        results = results_of(losses, runs, settings)
        write_json(options.output / "results.json", results)
        draw(losses, settings, options.output / "losses.png")
    except RoFormerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"\n{report(results, settings)}")
    return 0


def check(settings, seeds):
    if seeds < 1:
        raise ConfigurationError(f"a measurement takes at least 1 seed, got {seeds}")
    if settings.objective != "lm" or settings.source is not None:
        raise ConfigurationError(
            "extrapolation is measured with a configuration of lm from fresh weights, "
            f"got objective={settings.objective!r}, source={settings.source!r}"
        )
    lengths = [stage.length for stage in settings.stages]
    if len(lengths) != 2 or lengths[1] % lengths[0] or lengths[0] % BIN:
        raise ConfigurationError(
            f"two stages are needed, the first of a length that is a multiple of {BIN} "
            f"and the second of a multiple of the first, got lengths {lengths}"
        )
    if lengths[0] == lengths[1]:
        raise ConfigurationError(
            f"the second stage must be longer than the first, got lengths {lengths}"
        )
    check_documents(settings)


# === The data ===


def check_documents(settings):
    """Raises ConfigurationError unless `make_documents` can make both parts."""
    for data in settings.data:
        if len(data.fields) != 2 or not data.holdout:
            raise ConfigurationError(
                "data must have two fields, a text and its document, and a holdout "
                f"above 0, got fields={list(data.fields)}, holdout={data.holdout}"
            )


class Documents:
    """Long texts as token ids, and rows of them that are whole: int32 `(rows, tokens)`.

    Args:
        records: pairs of a text and the document that it is of. Texts of one document
            stand one after the other.
        tokenizer: `RoFormerTokenizer`.
    """

    def __init__(self, records, tokenizer):
        documents = []
        for _, group in itertools.groupby(records, key=lambda record: record[1]):
            # Without [CLS] and [SEP].
            ids = [tokenizer.encode(text)[0][1:-1] for text, _ in group]
            documents.append(np.concatenate(ids).astype("int32"))
        self._ids = np.concatenate(documents)
        self._lengths = np.array([len(ids) for ids in documents])
        self._begins = np.cumsum(self._lengths) - self._lengths

    def rows(self, generator, count, tokens):
        """From anywhere, each place as likely as any other."""
        places = self._lengths - tokens + 1
        return self._take(generator, count, tokens, places, step=1)

    def windows(self, generator, most, tokens):
        """That share nothing: `most` of them, or as many as there are."""
        places = self._lengths // tokens
        count = min(most, max(0, places.sum()))
        return self._take(generator, count, tokens, places, step=tokens, replace=False)

    def _take(self, generator, count, tokens, places, step, **options):
        """Rows at some of the places of each document, `step` tokens apart."""
        ends = np.cumsum(np.maximum(places, 0))
        if not ends[-1]:
            raise ConfigurationError(
                f"a row takes {tokens} tokens, and the longest document has "
                f"{self._lengths.max()}: shorten the stages"
            )
        chosen = generator.choice(ends[-1], count, **options)
        document = np.searchsorted(ends, chosen, side="right")
        before = ends[document] - np.maximum(places, 0)[document]
        starts = self._begins[document] + (chosen - before) * step
        return self._ids[starts[:, None] + np.arange(tokens)]


def make_documents(settings, tokenizer, part):
    records = make_corpus(settings, 0, part).once()
    return Documents(tqdm(records, desc=f"{part} texts", unit=" texts"), tokenizer)


# === The models ===


def inputs_of(name, token_ids, length, divisor=1):
    """What a model takes to read rows.

    Args:
        name: as `make_models` has it.
        token_ids: int `(rows, tokens)`.
        length: int. Rows of the table of absolute positions.
        divisor: float. What rotary positions are divided by.
    """
    none, places = np.zeros_like(token_ids), np.arange(token_ids.shape[1])
    if name == "absolute":
        # A table of segments stands for the table, and nothing is turned.
        table_rows = none + np.minimum(places, length - 1).astype("int32")
        positions = none.astype("float32")
    else:
        table_rows = none
        positions = none + (places / divisor).astype("float32")
    return {
        "token_ids": token_ids,
        "segment_ids": table_rows,
        "position_ids": positions,
    }


def ntk_base(base, features, scale):
    """The base with which the slowest pair turns `scale` times slower.

    Args:
        base: float. That of training.
        features: int above 2, even. Of a head.
        scale: float. How many times as long texts are.
    """
    return base * scale ** (features / (features - 2))


def copy_of(model, **changes):
    """A model of the same weights, whose configuration differs."""
    other = RoFormerCausalLM.from_roformer_config(model.config.replace(**changes))
    other.set_weights(model.get_weights())
    return other


def fit(model, name, documents, settings, stage, seed, divisor=1):
    """Trains on rows that follow from the seed alone; returns how it went."""
    length = settings.stages[0].length

    def batches():
        for step in itertools.count():
            generator = np.random.default_rng([seed, stage.length, step])
            rows = documents.rows(generator, stage.batch_size, stage.length + 1)
            yield inputs_of(name, rows[:, :-1], length, divisor), rows[:, 1:]

    model.compile(
        optimizer_of(settings, stage),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    # The mean of the last tenth of the steps is told.
    last = max(1, stage.steps // 10)
    recorder = Recorder(stage.steps, f"{name}, seed {seed}, {stage.length} tokens")
    start = time.perf_counter()
    history = model.fit(
        batches(),
        steps_per_epoch=last,
        epochs=-(-stage.steps // last),
        shuffle=False,
        callbacks=[recorder],
        verbose=0,
    )
    seconds = time.perf_counter() - start
    recorder.bar.close()
    tokens = recorder.step * stage.batch_size * stage.length
    return {
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "loss": float(history.history["loss"][-1]),
    }


class Recorder(keras.callbacks.Callback):
    """Shows how far a training is, and ends it."""

    def __init__(self, steps, title):
        super().__init__()
        self.steps, self.step = steps, 0
        self.bar = tqdm(total=steps, desc=title, unit=" steps", dynamic_ncols=True)

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        self.bar.update(1)
        if self.step == self.steps:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        self.bar.set_postfix(loss=f"{logs['loss']:.4g}")


def losses_of(model, name, token_ids, targets, length, divisor=1):
    """Cross-entropies of the targets, one behind each token: float `(rows, tokens)`."""
    expected = keras.Input((None,), dtype="int32", name="targets")
    scorer = keras.Model(
        {**model.input, "targets": expected},
        ops.sparse_categorical_crossentropy(expected, model.output, from_logits=True),
    )
    inputs = inputs_of(name, token_ids, length, divisor)
    return scorer.predict(
        {**inputs, "targets": targets},
        batch_size=max(1, TOKENS_PER_BATCH // token_ids.shape[1]),
        verbose=0,
    ).astype("float64")


# === All of it ===


def train_missing(folder, settings, seeds):
    """Rows of losses and of runs; those of a model are kept as soon as it is done."""
    tables = {"losses.csv": LOSS_COLUMNS, "runs.csv": RUN_COLUMNS}
    rows = {name: read_rows(folder / name, kinds) for name, kinds in tables.items()}
    done = {(row["model"], row["seed"]) for row in rows["runs.csv"]}
    missing = [
        (name, seed) for seed in seeds for name in METHODS if (name, seed) not in done
    ]
    # Those of a training that was interrupted between the two tables.
    rows["losses.csv"] = [
        row
        for row in rows["losses.csv"]
        if any(
            row["method"] in METHODS[name] and row["seed"] == seed
            for name, seed in done
        )
    ]
    if missing:
        tokenizer = make_tokenizer(folder, settings)
        documents = make_documents(settings, tokenizer, "train")
        windows = make_documents(settings, tokenizer, "held_out").windows(
            np.random.default_rng(settings.seed),
            WINDOWS,
            settings.stages[-1].length + 1,
        )
        for name, seed in missing:
            losses, runs = measure(name, seed, settings, tokenizer, documents, windows)
            rows["losses.csv"] += losses
            rows["runs.csv"] += runs
            for table, kinds in tables.items():
                write_rows(folder / table, kinds, rows[table])
    return tuple(
        [row for row in rows[table] if row["seed"] in seeds] for table in tables
    )


def measure(name, seed, settings, tokenizer, documents, windows):
    """Rows of losses and of runs of one model, trained here."""
    training, training_on = settings.stages
    length, scale = training.length, training_on.length / training.length
    config = RoFormerConfig.from_dict(
        {
            **settings.model,
            "attention": "causal",
            "vocabulary_size": tokenizer.vocabulary_size,
            # Positions are divided later on.
            "custom_position_ids": True,
        }
    )
    model = make_models(config, length, seed, RoFormerCausalLM)[name]
    losses, runs = [], []

    def trained(which, model, stage, divisor=1):
        found = fit(model, name, documents, settings, stage, seed, divisor)
        runs.append({"model": name, "seed": seed, "training": which, **found})

    def told(method, model, divisor=1):
        token_ids, targets = windows[:, :-1], windows[:, 1:]
        if method == "cut":
            token_ids, targets = (
                rows.reshape(-1, length) for rows in (token_ids, targets)
            )
        found = losses_of(model, name, token_ids, targets, length, divisor)
        found = found.reshape(len(windows), -1, BIN).mean(axis=(0, 2))
        for number, loss in enumerate(found):
            row = {"position": number * BIN, "loss": float(loss)}
            losses.append({"method": method, "seed": seed, **row})

    trained("training", model, training)
    if name == "absolute":
        told("absolute", model)
        return losses, runs
    told("rotary", model)
    told("cut", model)
    told("interpolated", model, scale)
    base = ntk_base(config.rotary_base, config.key_dim, scale)
    told("ntk", copy_of(model, rotary_base=base))
    for method, divisor in (("rotary+", 1), ("interpolated+", scale)):
        longer = copy_of(model)
        trained(method, longer, training_on, divisor)
        told(method, longer, divisor)
    return losses, runs


# === Results ===


def bands_of(settings):
    """(first, end) of the positions of training, and of each doubled length."""
    short, long = (stage.length for stage in settings.stages)
    ends = [short]
    while ends[-1] < long:
        ends.append(min(2 * ends[-1], long))
    return list(itertools.pairwise([0, *ends]))


def curves(losses, method):
    """First positions of the bins, and losses of every seed: `(seeds, bins)`."""
    by_seed = {}
    for row in losses:
        if row["method"] == method:
            by_seed.setdefault(row["seed"], {})[row["position"]] = row["loss"]
    positions = np.array(list(next(iter(by_seed.values()))))
    return positions, np.array([list(curve.values()) for curve in by_seed.values()])


def results_of(losses, runs, settings):
    """Plain types: mean and spread of the losses by band, and of the trainings."""
    bands, found = bands_of(settings), {}
    for method in itertools.chain.from_iterable(METHODS.values()):
        positions, values = curves(losses, method)
        found[method] = []
        for first, end in bands:
            inside = (positions >= first) & (positions < end)
            by_seed = values[:, inside].mean(axis=1).tolist()
            found[method].append(
                {
                    "from": first,
                    "to": end,
                    "mean": statistics.mean(by_seed),
                    "spread": max(by_seed) - min(by_seed),
                    "seeds": by_seed,
                }
            )
    return {"settings": settings.to_dict(), "losses": found, "runs": runs}


def report(results, settings):
    """A table in Markdown, and what it is of."""
    bands, training = bands_of(settings), settings.stages[0]
    names = dict(itertools.chain.from_iterable(map(dict.items, METHODS.values())))
    table = [
        " | ".join(
            [
                f"| {names[method][0]}",
                *(f"{band['mean']:.3f} ({band['spread']:.3f})" for band in found),
            ]
        )
        + " |"
        for method, found in results["losses"].items()
    ]
    model, training_on = settings.model, settings.stages[1]
    runs = results["runs"]
    speed = statistics.median(run["tokens_per_second"] for run in runs)
    seeds = len({run["seed"] for run in runs})
    return "\n".join(
        [
            f"| positions | {' | '.join(f'{a + 1} to {b}' for a, b in bands)} |",
            f"|{'---|' * (len(bands) + 1)}",
            *table,
            "",
            "Nats a token: the mean of the seeds, and how far they are apart "
            f"({seeds} seed{'s' if seeds > 1 else ''}). {training.steps} steps of "
            f"{training.batch_size} rows of {training.length} tokens; trained on: "
            f"{training_on.steps} steps of {training_on.batch_size} rows of "
            f"{training_on.length}. {model['num_layers']} layers, "
            f"{model['num_heads']} heads, width {model['hidden_dim']}. "
            f"Trainings took {sum(run['seconds'] for run in runs):,.0f} s "
            f"(median {speed:,.0f} tokens/s).",
        ]
    )


def draw(losses, settings, path):
    """Losses by position: the mean of the seeds, and all between them."""
    figure = new_figure(8, 5)
    axes = figure.add_subplot()
    length, longest = (stage.length for stage in settings.stages)
    for methods in METHODS.values():
        for method, (label, colour, line) in methods.items():
            positions, values = curves(losses, method)
            middles = positions + BIN / 2
            mean = values.mean(axis=0)
            if method == "absolute":
                # The table ends here.
                inside = middles < length
                axes.plot(middles[inside], mean[inside], colour)
            axes.plot(middles, mean, colour, linestyle=line, label=label)
            axes.fill_between(
                middles,
                values.min(axis=0),
                values.max(axis=0),
                color=colour,
                alpha=0.15,
                linewidth=0,
            )
    axes.axvline(length, color="0.6", linewidth=0.8)
    axes.annotate(
        f"trained to {length}",
        (length, 1),
        xycoords=("data", "axes fraction"),
        xytext=(4, -12),
        textcoords="offset points",
        color="0.4",
    )
    seeds = len({row["seed"] for row in losses})
    axes.set(
        xlim=(0, longest),
        xlabel="position (tokens)",
        ylabel="loss (nats a token)",
        title=f"Mean and range of {seeds} seed{'s' if seeds > 1 else ''}",
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3)
    save_figure(figure, path)


if __name__ == "__main__":
    sys.exit(main())
