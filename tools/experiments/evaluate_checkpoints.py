"""What a trained checkpoint reaches on held-out texts, beside honest baselines.

    python -m tools.experiments.evaluate_checkpoints mlm roformer-char.zip --config \\
        mlm.toml
    python -m tools.experiments.evaluate_checkpoints lm roformer-gpt-char.zip \\
        --config lm.toml
    python -m tools.experiments.evaluate_checkpoints sim roformer-sim-char.zip \\
        --config sim.toml \\
        --names classical modern

The configuration is the one of the training: its `data` tell which records were held
out, its last stage the length of a text. All rows of a table are computed here, on the
same texts; baselines learn from the part that was trained on. Held-out texts that also
stand there, whole or with half of their runs of six characters, are left out, for books
quote each other. It prints tables for a model card.

mlm  Accuracy at masked positions: of each text alone, 15 % of the tokens, drawn from
     the seed, and all of them replaced by [MASK] (in training some are not). Against
     the most frequent token, and the most frequent that is no punctuation; a bigram
     model of the left neighbour, and a model of both neighbours: the trigram through
     the middle, which backs off to the product of two bigrams. They see what the model
     sees: behind a masked neighbour they know nothing. Witten-Bell smoothing.
lm   Perplexity of a token, which in Chinese is a character: over [SEP] at the end too,
     and of texts longer than the training's over their beginning. Against unigrams,
     bigrams and trigrams, which back off by interpolated modified Kneser-Ney. The
     vocabulary is one, so [UNK] is a token like others, for all alike.
sim  Recall@1 and @10 of the counterpart among 1,000 texts, by cosine, each text of the
     pair looking for the other; against chance, the share of common characters
     (Jaccard) and TF-IDF of characters, also with pairs of them. Equal scores count as
     drawn by lot. And the character-level BLEU (sacrebleu, tokenize="char") of the
     counterparts that the model writes for 500 of them, against copying the input.
     Needs scikit-learn and sacrebleu.
"""

import argparse
import dataclasses
import importlib
import json
import math
import sys
import unicodedata
from pathlib import Path

import numpy as np
from tqdm import tqdm

from roformer_keras.errors import ConfigurationError, RoFormerError
from roformer_keras.io.atomic import check_target, replacing

MASKED_SHARE = 0.15
CANDIDATES = 1000
WRITTEN = 500
POSITIONS_PER_BATCH = 2048
WRITTEN_TOGETHER = 256
# Of so many tokens is a run, and with so many of its runs known a text is no news.
RUN, KNOWN_SHARE = 6, 0.5
PACKAGES = {"sklearn": "scikit-learn", "sacrebleu": "sacrebleu"}


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("checkpoint", help="zip, or another source of from_preset")
    parser.add_argument("--config", required=True, help="TOML file of the training")
    parser.add_argument(
        "--limit", type=int, help="most held-out texts, or pairs; drawn from the seed"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--names",
        nargs=2,
        default=("first", "second"),
        metavar="NAME",
        help="sim: what the two texts of a pair are called",
    )
    parser.add_argument(
        "--num-beams", type=int, default=4, help="sim: of the writing; 1 is greedy"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    try:
        if options.limit is not None and options.limit < 1:
            raise ConfigurationError(
                f"limit must be at least 1, got {options.limit}; leave it out for all"
            )
        if options.seed < 0:
            raise ConfigurationError(f"seed must be at least 0, got {options.seed}")
        if options.json:
            # Not found out after all the work.
            check_target(options.json, overwrite=True, folder=False)
        tables = []
        for table in TASKS[options.task](options):
            print(f"\n{table.markdown()}", flush=True)
            tables.append(table)
    except RoFormerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if options.json:
        figures = {
            "task": options.task,
            "checkpoint": Path(options.checkpoint).name,
            "seed": options.seed,
            "tables": [dataclasses.asdict(table) for table in tables],
        }
        text = json.dumps(figures, indent=2, ensure_ascii=False)
        with replacing(options.json, overwrite=True) as partial:
            partial.write_text(f"{text}\n", encoding="utf-8")
    return 0


@dataclasses.dataclass
class Table:
    """Figures of several models.

    Args:
        columns: name -> how its figures are printed, a format specification.
        rows: name of a model -> as many figures.
        note: what they were computed on.
    """

    columns: dict[str, str]
    rows: dict[str, list[float]]
    note: str

    def markdown(self) -> str:
        lines = [["model", *self.columns], ["---"] * (1 + len(self.columns))]
        for name, figures in self.rows.items():
            shown = zip(figures, self.columns.values(), strict=True)
            lines.append([name, *(format(figure, spec) for figure, spec in shown)])
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{table}\n\n{self.note}"


# === The three tasks: each yields its tables ===


def evaluate_mlm(options):
    from roformer_keras.data.encoders import DocumentEncoder

    model = load("RoFormerMaskedLM", options.checkpoint)
    tokenizer = model.tokenizer
    settings = read_settings(options.config)
    encode = DocumentEncoder(tokenizer, settings.stages[-1].length)

    def rows_of(record):
        for ids, _ in encode(record):
            yield np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], "int32")

    train, texts, dropped = token_rows(settings, rows_of, options)
    hidden, masked = mask(texts, tokenizer.mask_id, options.seed)
    targets = np.concatenate([text[at] for text, at in zip(texts, hidden, strict=True)])
    neighbours = Neighbours(Texts(train), tokenizer.vocabulary_size)
    marks = np.array([is_punctuation(token) for token in tokenizer.vocabulary])
    most_frequent = int(neighbours.frequency.argmax())
    no_mark = int(np.where(marks, -1, neighbours.frequency).argmax())
    left, both = guesses(neighbours, masked, hidden, tokenizer.mask_id)
    predictions = {
        model_name(options): model_guesses(model, masked, hidden),
        f"most frequent token ({tokenizer.id_to_token(most_frequent)})": most_frequent,
        f"most frequent character ({tokenizer.id_to_token(no_mark)})": no_mark,
        "bigrams, left neighbour": left,
        "trigrams, both neighbours": both,
    }
    is_character = ~marks[targets]
    rows = {
        name: [float(hits.mean()), float(hits[is_character].mean())]
        for name, hits in ((n, found == targets) for n, found in predictions.items())
    }
    note = (
        f"Accuracy at {len(targets):,} masked positions ({MASKED_SHARE:.0%} of each "
        f"text, all replaced by [MASK]) of {len(texts):,} held-out texts of at most "
        f"{settings.stages[-1].length} tokens, each alone; {left_out(dropped)}. "
        f"{is_character.mean():.1%} of the "
        "targets are not punctuation; "
        f"{share_of(targets, tokenizer.unk_id)} are [UNK], a token like others here. "
        f"The baselines learned from {sum(map(len, train)):,} tokens."
    )
    columns = {"accuracy": ".1%", "without punctuation": ".1%"}
    yield Table(columns, rows, note)


def evaluate_lm(options):
    model = load("RoFormerCausalLM", options.checkpoint)
    tokenizer = model.tokenizer
    settings = read_settings(options.config)
    length = settings.stages[-1].length

    def rows_of(record):
        for text in record:
            yield np.array(tokenizer.encode(text)[0], "int32")

    train, whole, dropped = token_rows(settings, rows_of, options)
    texts = [text[:length] for text in whole]
    targets = np.concatenate([text[1:] for text in texts])
    found = {model_name(options): model_log_probabilities(model, texts)}
    corpus, held_out = Texts(train), Texts(texts)
    for order, name in enumerate(("unigrams", "bigrams", "trigrams"), start=1):
        ngrams = KneserNey(corpus, order, tokenizer.vocabulary_size)
        found[name] = ngrams.log_probabilities(held_out)
    cut = np.mean([len(text) > length for text in whole])
    rows = {}
    for name, log_probabilities in found.items():
        mean = -float(log_probabilities.mean())
        rows[name] = [math.exp(mean), mean / math.log(2)]
    note = (
        f"Over {len(targets):,} tokens, [SEP] included, of {len(texts):,} held-out "
        f"texts; {left_out(dropped)}. Of texts longer than {length} tokens, {cut:.1%}, "
        "the beginning counts. "
        f"{share_of(targets, tokenizer.unk_id)} of the targets are [UNK], a token like "
        "others here. N-grams: interpolated modified Kneser-Ney, from "
        f"{corpus.tokens.size:,} tokens, over the same vocabulary of "
        f"{tokenizer.vocabulary_size:,}."
    )
    yield Table({"perplexity": ".1f", "bits a token": ".2f"}, rows, note)


def evaluate_sim(options):
    for name in PACKAGES:
        library(name)
    settings = read_settings(options.config)
    length = settings.stages[-1].length
    pairs, train, dropped = held_out_pairs(settings, options)
    model = load("RoFormerSim", options.checkpoint)
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    there, back = arrows(options.names)
    scores = {
        model_name(options): model.encode(first, max_length=length)
        @ model.encode(second, max_length=length).T,
        "chance": np.zeros((len(pairs), len(pairs))),
        "common characters (Jaccard)": jaccard(first, second),
        "TF-IDF of characters": tf_idf(train, first, second, longest=1),
        "TF-IDF of characters and their pairs": tf_idf(train, first, second, longest=2),
    }
    recalls = {
        name: [recall(m, k) for m in (matrix, matrix.T) for k in (1, 10)]
        for name, matrix in scores.items()
    }
    yield Table(
        {f"{way}, recall@{k}": ".1%" for way in (there, back) for k in (1, 10)},
        recalls,
        f"Of {len(pairs):,} held-out pairs, each text among the {len(pairs):,} of the "
        f"other side; {left_out(dropped)}, or of which a text is in another pair. IDF "
        f"from {len(train):,} texts of the train part.",
    )
    first, second = first[:WRITTEN], second[:WRITTEN]
    writes = model_name(options) + (
        ", greedy" if options.num_beams == 1 else f", {options.num_beams} beams"
    )
    yield Table(
        {f"{way}, BLEU": ".1f" for way in (there, back)},
        {
            writes: [
                bleu(counterparts(model, first, length, options.num_beams), second),
                bleu(counterparts(model, second, length, options.num_beams), first),
            ],
            "the input, copied": [bleu(first, second), bleu(second, first)],
        },
        f"{len(first):,} of these pairs; sacrebleu {library('sacrebleu').__version__}, "
        'tokenize="char".',
    )


TASKS = {"mlm": evaluate_mlm, "lm": evaluate_lm, "sim": evaluate_sim}


# === Data ===


def read_settings(path):
    from roformer_keras.training.pretraining_settings import load_settings

    return load_settings(path)


def records(settings, part):
    """One pass over a part, with a bar."""
    from roformer_keras.data.corpus import Corpus

    found = Corpus(settings.data, part=part).once()
    return tqdm(found, desc=f"{part} part", unit="record")


def token_rows(settings, rows_of, options):
    """Rows of ids of the train part and of what is held out.

    Args:
        rows_of: from a record to its rows.

    Returns:
        train: list of int arrays.
        held_out: likewise; as many as `--limit` says, and none that is in `train`.
        dropped: int. How many were left out for that.
    """
    # What is held out first: without any, it is known at once.
    found, train = (
        [row for record in records(settings, part) for row in rows_of(record)]
        for part in ("held_out", "train")
    )
    # [CLS] and [SEP] alone are no text.
    found = [row for row in found if len(row) > 2]
    seen = Seen(row[1:-1] for row in train)
    fresh = [row for row in found if not seen.knows(row[1:-1])]
    check_held_out(fresh, options.config)
    return train, drawn(fresh, options), len(found) - len(fresh)


def held_out_pairs(settings, options):
    """Pairs of which no text comes twice, and the texts of the train part."""
    found = [pair for pair in records(settings, "held_out") if all(pair)]
    if any(len(pair) != 2 for pair in found):
        raise ConfigurationError(
            "sim needs records of two texts; name two fields for all data of "
            f"{options.config}"
        )
    train = [text for record in records(settings, "train") for text in record]
    seen, once = Seen(map(codes, train)), set()
    pairs = []
    for pair in found:
        if once.isdisjoint(pair) and not any(seen.knows(codes(text)) for text in pair):
            pairs.append(pair)
        once.update(pair)
    check_held_out(pairs, options.config)
    return drawn(pairs, options, CANDIDATES), train, len(found) - len(pairs)


class Seen:
    """What of a text stands in other texts.

    Args:
        rows: of int arrays; rows are told apart by 64 bits of a product sum.
    """

    def __init__(self, rows):
        rows = list(rows)
        self._whole = {hash(row.tobytes()) for row in rows}
        self._runs = np.unique(np.concatenate([runs(row) for row in rows]))

    def knows(self, row) -> bool:
        """Whether the row is there, or `KNOWN_SHARE` of its runs are."""
        if hash(row.tobytes()) in self._whole:
            return True
        own = runs(row)
        if not len(own):
            return False
        places = np.searchsorted(self._runs, own).clip(max=len(self._runs) - 1)
        return bool(np.mean(self._runs[places] == own) >= KNOWN_SHARE)


def runs(row):
    """A number for each `RUN` of neighbours: uint64 `(len(row) - RUN + 1,)`."""
    count = max(0, len(row) - RUN + 1)
    found = np.zeros(count, "uint64")
    for offset in range(RUN):
        found = found * np.uint64(6364136223846793005) + row[
            offset : offset + count
        ].astype("uint64")
    return found


def codes(text):
    return np.frombuffer(text.encode("utf-32-le"), "uint32")


def left_out(dropped):
    return (
        f"{dropped:,} more were left out that stand in the train part, whole or with "
        f"{KNOWN_SHARE:.0%} of their runs of {RUN} characters"
    )


def check_held_out(found, config):
    if not found:
        raise ConfigurationError(
            "a text must be held out that does not also stand in the train part, got "
            f"none; raise holdout in {config}, or name a group"
        )


def drawn(items, options, most=None):
    """At most `most` items, or `--limit`, in an order drawn from the seed."""
    order = np.random.default_rng(options.seed).permutation(len(items))
    limits = [limit for limit in (most, options.limit) if limit is not None]
    return [items[i] for i in order[: min(limits, default=None)]]


def library(name):
    """A module that only this tool needs, or the command that installs it."""
    package = PACKAGES[name.partition(".")[0]]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            f"sim needs {package}, which is not installed: pip install {package}"
        ) from error


def load(name, checkpoint):
    import roformer_keras

    return getattr(roformer_keras, name).from_preset(checkpoint, output_activation=None)


def model_name(options):
    return Path(options.checkpoint).stem


def arrows(names):
    first, second = names
    return f"{first} → {second}", f"{second} → {first}"


def is_punctuation(token):
    return len(token) == 1 and unicodedata.category(token)[0] in "PSZ"


def share_of(targets, token_id):
    return f"{np.mean(targets == token_id):.2%}"


# === The model ===


def mask(texts, mask_id, seed):
    """Replaces `MASKED_SHARE` of the tokens of each text, but never its first and last.

    Returns:
        hidden: list of ascending positions, at least one a text.
        masked: list of the texts with `mask_id` there.
    """
    hidden, masked = [], []
    for number, text in enumerate(texts):
        random = np.random.default_rng([seed, number])
        count = max(1, round(MASKED_SHARE * (len(text) - 2)))
        at = np.sort(random.choice(len(text) - 2, count, replace=False)) + 1
        changed = text.copy()
        changed[at] = mask_id
        hidden.append(at)
        masked.append(changed)
    return hidden, masked


def logits_of(model, texts):
    """Yields the number of each text and its logits, `(length, vocabulary_size)`."""
    lengths = np.array([len(text) for text in texts])
    order = np.argsort(-lengths, kind="stable")
    start = 0
    with tqdm(total=len(texts), desc="model", unit="text") as bar:
        while start < len(order):
            longest = lengths[order[start]]
            batch = order[start : start + max(1, POSITIONS_PER_BATCH // longest)]
            token_ids = np.zeros((len(batch), longest), "int32")
            for row, number in enumerate(batch):
                token_ids[row, : lengths[number]] = texts[number]
            outputs = model.predict_on_batch(
                {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
            )
            logits = outputs["logits"] if isinstance(outputs, dict) else outputs
            for row, number in enumerate(batch):
                yield number, logits[row, : lengths[number]]
            start += len(batch)
            bar.update(len(batch))


def model_guesses(model, masked, hidden):
    """The likeliest ids at the hidden positions, text after text."""
    found = [None] * len(masked)
    for number, logits in logits_of(model, masked):
        found[number] = logits[hidden[number]].argmax(axis=-1)
    return np.concatenate(found)


def model_log_probabilities(model, texts):
    """Natural logarithms, of each token but the first of each text."""
    found = [None] * len(texts)
    for number, logits in logits_of(model, texts):
        logits, targets = logits[:-1], texts[number][1:]
        logits = logits - logits.max(axis=-1, keepdims=True)
        own = logits[np.arange(len(targets)), targets].astype("float64")
        found[number] = own - np.log(np.exp(logits).sum(axis=-1, dtype="float64"))
    return np.concatenate(found)


def counterparts(model, texts, length, num_beams):
    """What the model writes for each text."""
    tokenizer = model.tokenizer
    options = (
        {"method": "greedy"}
        if num_beams == 1
        else {"method": "beam", "num_beams": num_beams}
    )
    # As ids, which unlike a text may be cut.
    prompts = [tokenizer.encode(text, max_length=length)[0] for text in texts]
    written = model.generate(
        prompts, max_length=length, batch_size=WRITTEN_TOGETHER, **options
    )
    return [tokenizer.decode(ids) for ids in written]


# === N-grams ===


class Texts:
    """Rows of ids, of which each begins with [CLS], as one array.

    Attributes:
        tokens: int64 `(total,)`.
        depths: int64 `(total,)`. How many tokens of its row stand before each.
    """

    def __init__(self, rows):
        lengths = np.array([len(row) for row in rows])
        self.tokens = np.concatenate(rows).astype("int64")
        starts = np.cumsum(lengths) - lengths
        self.depths = np.arange(len(self.tokens)) - np.repeat(starts, lengths)


class KneserNey:
    """An n-gram model with interpolated modified Kneser-Ney smoothing.

    A gram of the highest order counts as often as it occurs, a lower one as often as
    different tokens stand before it, or at the beginning of a text, where none does, as
    often as it occurs. What is taken from the counts goes to the next lower order, from
    unigrams to all tokens alike. Grams do not cross from text to text.

    Args:
        texts: `Texts`.
        order: int, at least 1. Tokens of the longest gram.
        size: int. Tokens of the vocabulary.

    Source: Chen and Goodman 1999, section 3; the beginnings of texts, and the discounts
    of a corpus too small to estimate them, as in KenLM (Heafield et al. 2013).
    """

    def __init__(self, texts, order, size):
        self._size = size
        self._levels = []
        grams, counts = np.unique(self._grams(texts, order), return_counts=True)
        self._levels.insert(0, _Level(grams, counts, size))
        for n in range(order - 1, 0, -1):
            openings = self._grams(texts, n)[texts.depths[_ends(texts, n)] == n - 1]
            grams, counts = np.unique(
                np.concatenate([grams % size**n, openings]), return_counts=True
            )
            self._levels.insert(0, _Level(grams, counts, size))

    def log_probabilities(self, texts) -> np.ndarray:
        """Natural logarithms, of each token but the first of each text."""
        found = np.full(len(texts.tokens), 1 / self._size)
        for n, level in enumerate(self._levels, start=1):
            ends = _ends(texts, n)
            found[ends] = level.interpolated(self._grams(texts, n), found[ends])
        return np.log(found[texts.depths > 0])

    def _grams(self, texts, n):
        """Each gram of n tokens that lies in one text, as one number."""
        ends = _ends(texts, n)
        grams = np.zeros(len(ends), "int64")
        for back in range(n - 1, -1, -1):
            grams = grams * self._size + texts.tokens[ends - back]
        return grams


class _Level:
    """Discounted probabilities of the grams of one order.

    Args:
        grams: int64 `(grams,)`, ascending; the last digit is the token that is scored.
        counts: int64 `(grams,)`.
        size: int. Base of the digits.
    """

    def __init__(self, grams, counts, size):
        discounts = _discounts(counts)[np.minimum(counts, 3)]
        self._size, self._grams = size, grams
        self._contexts, starts, owners = np.unique(
            grams // size, return_index=True, return_inverse=True
        )
        totals = np.add.reduceat(counts, starts)
        self._shares = (counts - discounts) / totals[owners]
        self._left_over = np.add.reduceat(discounts, starts) / totals

    def interpolated(self, grams, lower):
        """Probabilities of grams, from those of the next lower order."""
        shares, _ = _looked_up(self._grams, self._shares, grams)
        left_over, known = _looked_up(
            self._contexts, self._left_over, grams // self._size
        )
        return np.where(known, shares + left_over * lower, lower)


def _ends(texts, n):
    """Where the grams of n tokens end; [CLS] is never scored."""
    return np.flatnonzero(texts.depths >= max(n - 1, 1))


def _looked_up(keys, values, wanted):
    """The values of ascending keys, 0 where there is none, and where there is one."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    known = keys[at] == wanted
    return np.where(known, values[at], 0.0), known


def _discounts(counts):
    """What is taken from counts of 0, 1, 2 and more."""
    ones, twos, threes, fours = (np.count_nonzero(counts == n) for n in (1, 2, 3, 4))
    if min(ones, twos, threes, fours):
        y = ones / (ones + 2 * twos)
        found = np.array(
            [
                0,
                1 - 2 * y * twos / ones,
                2 - 3 * y * threes / twos,
                3 - 4 * y * fours / threes,
            ]
        )
        if (found[1:] > 0).all():
            return found
    return np.array([0, 0.5, 1, 1.5])


class Neighbours:
    """How likely a token is between its two neighbours, with Witten-Bell smoothing.

    The first and the last token of a text are neighbours only.

    Args:
        texts: `Texts`.
        size: int. Tokens of the vocabulary.

    Attributes:
        frequency: float64 `(size,)`. Of each token, whatever its neighbours.
    """

    def __init__(self, texts, size):
        is_last = np.append(texts.depths[1:] == 0, True)
        at = np.flatnonzero((texts.depths > 0) & ~is_last)
        left, own, right = (texts.tokens[at + shift] for shift in (-1, 0, 1))
        self._size = size
        self._after = _Followers(left, own, size)
        self._before = _Followers(right, own, size)
        self._between = _Followers(left * size + right, own, size)
        counts = np.bincount(own, minlength=size)
        self.frequency = counts / len(own)
        self._right_frequency = np.bincount(right, minlength=size) / len(right)
        # Of each token, how many others are seen to its right.
        self._kinds = np.bincount(np.unique(own * size + right) // size, minlength=size)
        self._totals = np.maximum(counts + self._kinds, 1)

    def given_left(self, left):
        """float64 `(size,)`: P(token | left); None is a neighbour that is not seen."""
        if left is None:
            return self.frequency
        return self._after.smoothed(left, self.frequency)

    def given_both(self, left, right):
        """float64 `(size,)`: P(token | left, right); either may be None.

        The next lower order is proportional to P(token | left) P(right | token).
        """
        found = self.given_left(left)
        if right is None or not self._right_frequency[right]:
            return found
        found = found * self._right_given_token(right)
        found /= found.sum()
        if left is None:
            return found
        return self._between.smoothed(left * self._size + right, found)

    def _right_given_token(self, right):
        counts = self._kinds * self._right_frequency[right]
        tokens, seen = self._before.of(right)
        counts[tokens] += seen
        return counts / self._totals


class _Followers:
    """Which tokens occur in a context, and how often."""

    def __init__(self, contexts, tokens, size):
        self._size = size
        self._keys, self._counts = np.unique(
            contexts * size + tokens, return_counts=True
        )

    def of(self, context):
        bounds = np.array([context, context + 1]) * self._size
        start, stop = np.searchsorted(self._keys, bounds)
        return self._keys[start:stop] % self._size, self._counts[start:stop]

    def smoothed(self, context, lower):
        """Witten-Bell: as many new events as different tokens were seen."""
        tokens, counts = self.of(context)
        if not len(tokens):
            return lower
        found = len(tokens) * lower
        found[tokens] += counts
        return found / (counts.sum() + len(tokens))


def guesses(neighbours, masked, hidden, mask_id):
    """The likeliest ids at the hidden positions: by the left, by both neighbours."""
    pairs = [
        tuple(
            None if token == mask_id else int(token) for token in text[[at - 1, at + 1]]
        )
        for text, positions in zip(masked, hidden, strict=True)
        for at in positions
    ]
    left = {pair[0]: None for pair in pairs}
    for token in left:
        left[token] = neighbours.given_left(token).argmax()
    both = dict.fromkeys(pairs)
    for pair in tqdm(both, desc="neighbours", unit="pair"):
        both[pair] = neighbours.given_both(*pair).argmax()
    return np.array([left[pair[0]] for pair in pairs]), np.array(
        [both[pair] for pair in pairs]
    )


# === Retrieval and translation ===


def jaccard(first, second):
    """Of the sets of characters of each two texts: common ones by all of them."""
    first, second = ([set(text) for text in texts] for texts in (first, second))
    return np.array([[len(a & b) / len(a | b) for b in second] for a in first])


def tf_idf(train, first, second, longest):
    """Cosines of each two texts, by their runs of up to `longest` characters."""
    sklearn = library("sklearn.feature_extraction.text")
    runs = {"analyzer": "char", "ngram_range": (1, longest)}
    # Other runs need not be counted; these count also where the train part lacks them.
    vocabulary = sklearn.CountVectorizer(**runs).fit(first + second).vocabulary_
    vectorizer = sklearn.TfidfVectorizer(
        **runs, vocabulary=vocabulary, sublinear_tf=True
    )
    vectorizer.fit(tqdm(train, desc=f"TF-IDF to {longest}", unit="text"))
    return (vectorizer.transform(first) @ vectorizer.transform(second).T).toarray()


def recall(scores, k):
    """How often a row's own column, of the same number, is among its k best."""
    own = np.diag(scores)[:, None]
    better, equal = (scores > own).sum(axis=1), (scores == own).sum(axis=1)
    return float(np.clip((k - better) / equal, 0, 1).mean())


def bleu(written, expected):
    return library("sacrebleu").corpus_bleu(written, [expected], tokenize="char").score


if __name__ == "__main__":
    sys.exit(main())
