"""tools.experiments.baselines and evaluate_checkpoints, against plain counting."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from tools.experiments import baselines
from tools.experiments import evaluate_checkpoints as tool

SIZE, CLS, SEP, MASK = 12, 1, 2, 3


def rows_of(*texts):
    return [np.array([CLS, *text, SEP], "int32") for text in texts]


def random_rows(count=60, seed=0):
    """Texts in which some tokens follow others more often; 10 and 11 never occur."""
    random = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        text = [int(random.integers(4, 10))]
        while random.random() < 0.85:
            near = 4 + (text[-1] * 2 + int(random.integers(0, 2))) % 6
            text.append(near if random.random() < 0.8 else int(random.integers(4, 10)))
        texts.append(text)
    return rows_of(*texts)


class PlainKneserNey:
    """The definition, one gram at a time, in dictionaries."""

    def __init__(self, rows, order):
        self.order, self.counts = order, {}
        occurrences, before = Counter(), defaultdict(set)
        for row in map(tuple, rows):
            for n in range(1, order + 1):
                for end in range(n, len(row) + 1):
                    gram = row[end - n : end]
                    occurrences[gram] += 1
                    if end > n:
                        before[gram].add(row[end - n - 1])
        for gram, count in occurrences.items():
            if gram != (CLS,):
                highest = len(gram) == order or gram[0] == CLS
                self.counts[gram] = count if highest else len(before[gram])
        self.discounts = {n: self._discounts(n) for n in range(1, order + 1)}

    def _discounts(self, n):
        counts = [count for gram, count in self.counts.items() if len(gram) == n]
        n1, n2, n3, n4 = (counts.count(k) for k in (1, 2, 3, 4))
        if 0 in (n1, n2, n3, n4):
            return [0, 0.5, 1, 1.5]
        y = n1 / (n1 + 2 * n2)
        discounts = [0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        return discounts if min(discounts[1:]) > 0 else [0, 0.5, 1, 1.5]

    def probability(self, context, token):
        context = context[-(self.order - 1) :] if self.order > 1 else ()
        lower = self.probability(context[1:], token) if context else 1 / SIZE
        followers = {g[-1]: n for g, n in self.counts.items() if g[:-1] == context}
        if not followers:
            return lower
        discounts = self.discounts[len(context) + 1]
        total = sum(followers.values())
        removed = {w: discounts[min(count, 3)] for w, count in followers.items()}
        discounted = followers.get(token, 0) - removed.get(token, 0)
        return discounted / total + sum(removed.values()) / total * lower


@pytest.mark.parametrize(("order", "count"), [(1, 60), (2, 3), (3, 60), (3, 400)])
def test_kneser_ney_is_its_definition(order, count):
    """60 texts have all the counts that the discounts need, 3 have not."""
    train, held_out = random_rows(count), random_rows(20, seed=1)
    held_out += rows_of([10, 11, 4], [4])
    model = baselines.KneserNey(baselines.Texts(train), order, SIZE)
    log_probabilities = model.log_probabilities(baselines.Texts(held_out))
    plain = PlainKneserNey(train, order)
    expected = [
        math.log(plain.probability(tuple(row[:at]), row[at]))
        for row in held_out
        for at in range(1, len(row))
    ]
    np.testing.assert_allclose(log_probabilities, expected, rtol=1e-12)
    for context in ([], [4], [5, 6], [10], [4, 10], [11, 4]):
        rows = [np.array([CLS, *context, token]) for token in range(SIZE)]
        log_probabilities = [
            model.log_probabilities(baselines.Texts([row]))[-1] for row in rows
        ]
        assert np.exp(log_probabilities).sum() == pytest.approx(1, abs=1e-12)


def plain_given_both(rows, left, right):
    """P(token | left, right) by Witten-Bell smoothing, one token at a time."""
    triples = [
        tuple(map(int, row[at - 1 : at + 2]))
        for row in rows
        for at in range(1, len(row) - 1)
    ]

    def smoothed(seen, token, lower):
        seen = list(seen)
        kinds = len(set(seen))
        return (seen.count(token) + kinds * lower) / (len(seen) + kinds or 1) or lower

    def product(token):
        frequency = sum(own == token for _, own, _ in triples) / len(triples)
        if not frequency:
            return 0
        lower = sum(b == right for _, _, b in triples) / len(triples)
        return smoothed((c for a, c, _ in triples if a == left), token, frequency) * (
            smoothed((b for _, c, b in triples if c == token), right, lower)
        )

    lower = np.array([product(token) for token in range(SIZE)])
    lower /= lower.sum()
    seen = [c for a, c, b in triples if (a, b) == (left, right)]
    return [smoothed(seen, token, lower[token]) for token in range(SIZE)]


def test_neighbours_are_their_definition():
    rows = random_rows(40)
    model = baselines.Neighbours(baselines.Texts(rows), SIZE)
    for left in (CLS, *range(4, 10)):
        for right in (SEP, *range(4, 10)):
            expected = plain_given_both(rows, left, right)
            np.testing.assert_allclose(model.given_both(left, right), expected)
    # The first and last token of a text are never hidden.
    assert model.frequency[[CLS, SEP]].tolist() == [0, 0]
    # Neighbours that are hidden or unseen say nothing.
    np.testing.assert_array_equal(model.given_left(None), model.frequency)
    np.testing.assert_array_equal(model.given_left(10), model.frequency)
    np.testing.assert_array_equal(model.given_both(4, 10), model.given_left(4))
    assert not np.allclose(model.given_both(None, 5), model.frequency)


def test_guesses_see_what_the_model_sees():
    """5 follows 4, but 6 is most frequent; 7 is between 5 and 8."""
    train = rows_of([4, 5, 7, 8], [4, 5, 7, 8], [6, 6, 6], [6, 6])
    neighbours = baselines.Neighbours(baselines.Texts(train), SIZE)
    text = np.array([CLS, 4, MASK, MASK, 8, SEP])
    left, both = baselines.guess(neighbours, [text], [np.array([2, 3])], MASK)
    assert left.tolist() == [5, 6] and both.tolist() == [5, 7]


def test_masks():
    texts = random_rows(50)
    for text, at, changed in zip(texts, *tool.mask(texts, MASK), strict=True):
        assert len(at) == max(1, round(0.15 * (len(text) - 2)))
        assert set(at) <= set(range(1, len(text) - 1))
        expected = text.copy()
        expected[at] = MASK
        np.testing.assert_array_equal(changed, expected)


def test_recall_and_shared_characters():
    scores = np.array([[0.9, 0.1, 0.2], [0.5, 0.4, 0.1], [0.3, 0.3, 0.3]])
    # First; second; one of three equal ones.
    assert tool.recall(scores, 1) == pytest.approx((1 + 0 + 1 / 3) / 3)
    assert tool.recall(scores, 2) == pytest.approx((1 + 1 + 2 / 3) / 3)
    similarities = baselines.jaccard(["春眠不觉", "春春"], ["春天", "不春"])
    np.testing.assert_allclose(similarities, [[1 / 5, 2 / 4], [1 / 2, 1 / 2]])
    pytest.importorskip("sklearn")
    similarities = baselines.tf_idf(
        ["春天", "天地", "天"], ["春天"], ["天春", "春天"], max_run=2
    )
    assert similarities[0, 0] < similarities[0, 1] == pytest.approx(1)
    pytest.importorskip("sacrebleu")
    expected = 100 * math.prod((5 / 6, 4 / 5, 3 / 4, 2 / 3)) ** 0.25
    assert tool.bleu(["今天天气不好"], ["今天天气不错"]) == pytest.approx(expected)


def test_a_text_is_known_if_it_shares_half_of_its_runs():
    random = np.random.default_rng(0)
    known = [random.integers(0, 1000, 30, dtype="int32") for _ in range(20)]
    seen, fresh = baselines.Seen(known), random.integers(0, 1000, 30, dtype="int32")
    assert seen.knows(known[3])
    assert seen.knows(np.concatenate([known[3][2:22], fresh[:10]]))  # 15 of 25 runs
    assert not seen.knows(np.concatenate([known[3][2:18], fresh[:14]]))  # 11 of 25
    # A text shorter than a run is known only as a whole.
    assert baselines.Seen([fresh[:4], fresh]).knows(fresh[:4])
    assert not seen.knows(known[3][:4])
