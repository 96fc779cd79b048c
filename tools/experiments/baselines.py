"""Baselines for held-out texts: n-grams, neighbours and shared characters."""

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from tqdm import tqdm

# A text is known if this share of its runs of this many tokens is known.
RUN, KNOWN_SHARE = 6, 0.5


class Seen:
    """Finds texts that repeat the texts of `rows`, as a whole or in large parts."""

    def __init__(self, rows):
        rows = list(rows)
        self._whole = {hash(row.tobytes()) for row in rows}
        self._runs = np.unique(np.concatenate([_hash_runs(row) for row in rows]))

    def knows(self, row) -> bool:
        if hash(row.tobytes()) in self._whole:
            return True
        runs = _hash_runs(row)
        if not len(runs):
            return False
        positions = np.searchsorted(self._runs, runs).clip(max=len(self._runs) - 1)
        return bool(np.mean(self._runs[positions] == runs) >= KNOWN_SHARE)


def _hash_runs(row):
    """A number for each `RUN` consecutive tokens: uint64 `(len(row) - RUN + 1,)`."""
    count = max(0, len(row) - RUN + 1)
    hashes = np.zeros(count, "uint64")
    for offset in range(RUN):
        tokens = row[offset : offset + count].astype("uint64")
        hashes = hashes * np.uint64(6364136223846793005) + tokens
    return hashes


def char_codes(text):
    return np.frombuffer(text.encode("utf-32-le"), "uint32")


class Texts:
    """Rows of ids, each starting with [CLS], as one array `tokens`.

    `depths` are the places of the tokens in their rows.
    """

    def __init__(self, rows):
        lengths = np.array([len(row) for row in rows])
        self.tokens = np.concatenate(rows).astype("int64")
        starts = np.cumsum(lengths) - lengths
        self.depths = np.arange(len(self.tokens)) - np.repeat(starts, lengths)

    def ends(self, n):
        """The places where grams of n tokens end; [CLS] is never scored."""
        return np.flatnonzero(self.depths >= max(n - 1, 1))

    def grams(self, n, size):
        """Each gram of n tokens of one row, as a number with digits of base `size`."""
        ends = self.ends(n)
        grams = np.zeros(len(ends), "int64")
        for back in range(n - 1, -1, -1):
            grams = grams * size + self.tokens[ends - back]
        return grams


class KneserNey:
    """An n-gram model with interpolated modified Kneser-Ney smoothing.

    A gram of a lower order counts how many different tokens are before it, or at the
    start of a text how often it occurs.

    Source: Chen and Goodman 1999, section 3; starts of texts, and the discounts of a
    corpus too small to estimate them, as in KenLM (Heafield et al. 2013).
    """

    def __init__(self, texts, order, size):
        self._size = size
        grams, counts = np.unique(texts.grams(order, size), return_counts=True)
        self._levels = [_Level(grams, counts, size)]
        for n in range(order - 1, 0, -1):
            starts = texts.grams(n, size)[texts.depths[texts.ends(n)] == n - 1]
            grams = np.concatenate([grams % size**n, starts])
            grams, counts = np.unique(grams, return_counts=True)
            self._levels.insert(0, _Level(grams, counts, size))

    def log_probabilities(self, texts) -> np.ndarray:
        """Natural logarithms, of each token except the first of each text."""
        probabilities = np.full(len(texts.tokens), 1 / self._size)
        for n, level in enumerate(self._levels, start=1):
            ends = texts.ends(n)
            probabilities[ends] = level.interpolate(
                texts.grams(n, self._size), probabilities[ends]
            )
        return np.log(probabilities[texts.depths > 0])


class _Level:
    """Discounted probabilities of the ascending grams of one order."""

    def __init__(self, grams, counts, size):
        discounts = _discounts(counts)[np.minimum(counts, 3)]
        self._size, self._grams = size, grams
        self._contexts, starts, owners = np.unique(
            grams // size, return_index=True, return_inverse=True
        )
        totals = np.add.reduceat(counts, starts)
        self._shares = (counts - discounts) / totals[owners]
        self._left_over = np.add.reduceat(discounts, starts) / totals

    def interpolate(self, grams, lower):
        """Probabilities of grams, from those of the next lower order."""
        shares, _ = _look_up(self._grams, self._shares, grams)
        left_over, known = _look_up(
            self._contexts, self._left_over, grams // self._size
        )
        return np.where(known, shares + left_over * lower, lower)


def _look_up(keys, values, wanted):
    """The values of ascending keys, 0 for unknown ones, and which are known."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    known = keys[at] == wanted
    return np.where(known, values[at], 0.0), known


def _discounts(counts):
    """The discounts of counts of 0, 1, 2 and more."""
    n1, n2, n3, n4 = (np.count_nonzero(counts == n) for n in (1, 2, 3, 4))
    if min(n1, n2, n3, n4):
        y = n1 / (n1 + 2 * n2)
        discounts = [0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        if min(discounts[1:]) > 0:
            return np.array(discounts)
    return np.array([0, 0.5, 1, 1.5])


class Neighbours:
    """Probabilities of a token between two neighbours, with Witten-Bell smoothing.

    The first and last tokens of a text are neighbours only. `frequency` is the share of
    each of the `size` tokens of the vocabulary.
    """

    def __init__(self, texts, size):
        is_last = np.append(texts.depths[1:] == 0, True)
        at = np.flatnonzero((texts.depths > 0) & ~is_last)
        left, tokens, right = (texts.tokens[at + shift] for shift in (-1, 0, 1))
        self._size = size
        self._after = _Followers(left, tokens, size)
        self._before = _Followers(right, tokens, size)
        self._between = _Followers(left * size + right, tokens, size)
        counts = np.bincount(tokens, minlength=size)
        self.frequency = counts / len(tokens)
        self._right_frequency = np.bincount(right, minlength=size) / len(right)
        # How many different tokens are to the right of each token.
        self._kinds = np.bincount(
            np.unique(tokens * size + right) // size, minlength=size
        )
        self._totals = np.maximum(counts + self._kinds, 1)

    def given_left(self, left):
        """P(token | left): float64 `(size,)`; None is a hidden neighbour."""
        if left is None:
            return self.frequency
        return self._after.smooth(left, self.frequency)

    def given_both(self, left, right):
        """P(token | left, right): float64 `(size,)`; None is a hidden neighbour.

        The lower order is proportional to P(token | left) P(right | token).
        """
        probabilities = self.given_left(left)
        if right is None or not self._right_frequency[right]:
            return probabilities
        counts = self._kinds * self._right_frequency[right]
        tokens, seen = self._before.find(right)
        counts[tokens] += seen
        probabilities = probabilities * counts / self._totals
        probabilities /= probabilities.sum()
        if left is None:
            return probabilities
        return self._between.smooth(left * self._size + right, probabilities)


class _Followers:
    """The tokens that occur in a context, and how often."""

    def __init__(self, contexts, tokens, size):
        self._size = size
        self._keys, self._counts = np.unique(
            contexts * size + tokens, return_counts=True
        )

    def find(self, context):
        bounds = np.array([context, context + 1]) * self._size
        start, stop = np.searchsorted(self._keys, bounds)
        return self._keys[start:stop] % self._size, self._counts[start:stop]

    def smooth(self, context, lower):
        """Witten-Bell: as many new events as different tokens were seen."""
        tokens, counts = self.find(context)
        if not len(tokens):
            return lower
        weights = len(tokens) * lower
        weights[tokens] += counts
        return weights / (counts.sum() + len(tokens))


def guess(neighbours, masked, hidden, mask_id):
    """The most probable ids at hidden positions: by the left, by both neighbours."""
    pairs = [
        tuple(
            None if token == mask_id else int(token) for token in text[[at - 1, at + 1]]
        )
        for text, positions in zip(masked, hidden, strict=True)
        for at in positions
    ]
    left = {
        token: neighbours.given_left(token).argmax()
        for token in dict.fromkeys(first for first, _ in pairs)
    }
    both = {
        pair: neighbours.given_both(*pair).argmax()
        for pair in tqdm(dict.fromkeys(pairs), desc="neighbours", unit="pair")
    }
    return (
        np.array([left[first] for first, _ in pairs]),
        np.array([both[pair] for pair in pairs]),
    )


def jaccard(first, second):
    """Shared characters divided by all characters of each two texts."""
    first, second = ([set(text) for text in texts] for texts in (first, second))
    return np.array([[len(a & b) / len(a | b) for b in second] for a in first])


def tf_idf(train, first, second, max_run):
    """Cosines of each two texts, by their runs of up to `max_run` characters."""
    runs = {"analyzer": "char", "ngram_range": (1, max_run)}
    # Only runs of these texts matter, whether training texts have them or not.
    vocabulary = CountVectorizer(**runs).fit(first + second).vocabulary_
    vectorizer = TfidfVectorizer(**runs, vocabulary=vocabulary, sublinear_tf=True)
    vectorizer.fit(tqdm(train, desc=f"TF-IDF to {max_run}", unit="text"))
    return (vectorizer.transform(first) @ vectorizer.transform(second).T).toarray()
