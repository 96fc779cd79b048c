"""tools/experiments/evaluate_checkpoints.py: its figures against plain counting, and
whole runs.

Each baseline is held against a reference that follows its definition word by word.
"""

import itertools
import json
import math
import sys
from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
import pytest
from common import CHARACTER, GPT, SIM, tool_module

SIZE, CLS, SEP, MASK = 12, 1, 2, 3


@pytest.fixture(scope="module")
def tool():
    with tool_module("evaluate_checkpoints") as module:
        yield module


def rows_of(*texts):
    return [np.array([CLS, *text, SEP], "int32") for text in texts]


def random_rows(count=60, seed=0):
    """Texts in which some tokens follow others more often; 10 and 11 never come."""
    random = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        text = [int(random.integers(4, 10))]
        while random.random() < 0.85:
            near = 4 + (text[-1] * 2 + int(random.integers(0, 2))) % 6
            text.append(near if random.random() < 0.8 else int(random.integers(4, 10)))
        texts.append(text)
    return rows_of(*texts)


# === N-grams ===


class PlainKneserNey:
    """The definition, a gram at a time, in dictionaries."""

    def __init__(self, rows, order):
        self.order = order
        occurrences = {n: Counter() for n in range(1, order + 1)}
        before = defaultdict(set)
        for row in map(tuple, rows):
            for n in range(1, order + 1):
                for end in range(n, len(row) + 1):
                    gram = row[end - n : end]
                    occurrences[n][gram] += 1
                    if end > n:
                        before[gram].add(row[end - n - 1])
        self.counts = {}
        for n in range(1, order + 1):
            for gram, count in occurrences[n].items():
                if gram == (CLS,):
                    continue
                highest = n == order or gram[0] == CLS
                self.counts[gram] = count if highest else len(before[gram])
        self.discounts = {n: self._discounts(n) for n in range(1, order + 1)}

    def _discounts(self, n):
        counts = [count for gram, count in self.counts.items() if len(gram) == n]
        n1, n2, n3, n4 = (counts.count(k) for k in (1, 2, 3, 4))
        if 0 in (n1, n2, n3, n4):
            return [0, 0.5, 1, 1.5]
        y = n1 / (n1 + 2 * n2)
        found = [0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        return found if min(found[1:]) > 0 else [0, 0.5, 1, 1.5]

    def probability(self, context, token):
        context = context[-(self.order - 1) :] if self.order > 1 else ()
        lower = self.probability(context[1:], token) if context else 1 / SIZE
        followers = {
            gram[-1]: count
            for gram, count in self.counts.items()
            if gram[:-1] == tuple(context)
        }
        if not followers:
            return lower
        discounts = self.discounts[len(context) + 1]
        total = sum(followers.values())
        taken = {w: discounts[min(count, 3)] for w, count in followers.items()}
        own = followers.get(token, 0) - taken.get(token, 0)
        return own / total + sum(taken.values()) / total * lower


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("count", [3, 60, 400])
def test_kneser_ney_is_its_definition(tool, order, count):
    """60 texts have all the counts that discounts are estimated from, 3 have not."""
    train, held_out = random_rows(count), random_rows(20, seed=1)
    held_out += rows_of([10, 11, 4], [4])
    found = tool.KneserNey(tool.Texts(train), order, SIZE).log_probabilities(
        tool.Texts(held_out)
    )
    plain = PlainKneserNey(train, order)
    expected = [
        math.log(plain.probability(tuple(row[:at]), row[at]))
        for row in held_out
        for at in range(1, len(row))
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_kneser_ney_sums_to_one(tool, order):
    model = tool.KneserNey(tool.Texts(random_rows()), order, SIZE)
    for context in ([], [4], [5, 6], [10], [4, 10], [10, 11], [11, 4]):
        rows = [np.array([CLS, *context, token]) for token in range(SIZE)]
        found = [model.log_probabilities(tool.Texts([row]))[-1] for row in rows]
        assert np.exp(found).sum() == pytest.approx(1, abs=1e-12)
        assert np.isfinite(found).all()


def test_perplexity_by_hand(tool):
    """a b and a a, too small to estimate discounts: 1/2, 1, 3/2 are taken."""
    train = tool.Texts(rows_of([4, 5], [4, 4]))
    # a 3 times, b once, the end twice, of 6: 3/2 + 1/2 + 1 are taken, for 12 tokens.
    shared = Fraction(3, 6) / 12
    a, b, end = (
        Fraction(3, 12) + shared,
        Fraction(1, 12) + shared,
        Fraction(1, 6) + shared,
    )
    unigrams = tool.KneserNey(train, 1, SIZE)
    found = unigrams.log_probabilities(tool.Texts(rows_of([5, 4])))
    np.testing.assert_allclose(np.exp(found), [float(b), float(a), float(end)])
    # Before a stand [CLS] and a; before b only a; before the end b and a.
    shared = Fraction(1 * 2 + Fraction(1, 2), 5) / 12
    lower = {4: Fraction(1, 5) + shared, 5: Fraction(1, 10) + shared}
    # [CLS] a twice, of 2; of a b, a a and a [SEP] each once.
    expected = [
        Fraction(1, 2) + Fraction(1, 2) * lower[4],
        Fraction(1, 6) + Fraction(1, 2) * lower[5],
    ]
    bigrams = tool.KneserNey(train, 2, SIZE)
    found = bigrams.log_probabilities(tool.Texts(rows_of([4, 5])))[:2]
    np.testing.assert_allclose(np.exp(found), [float(value) for value in expected])


def test_grams_do_not_cross_texts(tool):
    """One text after the other is as each in a model of its own order."""
    train = random_rows(30)
    model = tool.KneserNey(tool.Texts(train), 3, SIZE)
    held_out = random_rows(5, seed=2)
    together = model.log_probabilities(tool.Texts(held_out))
    alone = [model.log_probabilities(tool.Texts([row])) for row in held_out]
    np.testing.assert_array_equal(together, np.concatenate(alone))


# === Neighbours ===


def plain_neighbours(rows):
    """P(token), P(token | left) and P(token | left, right), a token at a time."""
    triples = [
        tuple(map(int, row[at - 1 : at + 2]))
        for row in rows
        for at in range(1, len(row) - 1)
    ]

    def frequency(token):
        return sum(own == token for _, own, _ in triples) / len(triples)

    def smoothed(seen, token, lower):
        seen = list(seen)
        kinds = len(set(seen))
        return (
            (seen.count(token) + kinds * lower) / (len(seen) + kinds) if seen else lower
        )

    def given_left(left, token):
        return smoothed(
            (c for a, c, _ in triples if a == left), token, frequency(token)
        )

    def right_given(token, right):
        lower = sum(b == right for _, _, b in triples) / len(triples)
        return smoothed((b for _, c, b in triples if c == token), right, lower)

    def given_both(left, right):
        lower = np.array(
            [
                given_left(left, token) * right_given(token, right)
                if frequency(token)
                else 0
                for token in range(SIZE)
            ]
        )
        lower /= lower.sum()
        seen = [c for a, c, b in triples if (a, b) == (left, right)]
        return [smoothed(seen, token, lower[token]) for token in range(SIZE)]

    return frequency, given_left, given_both


def test_neighbours_are_their_definition_and_sum_to_one(tool):
    rows = random_rows(40)
    frequency, given_left, given_both = plain_neighbours(rows)
    model = tool.Neighbours(tool.Texts(rows), SIZE)
    np.testing.assert_allclose(model.frequency, [frequency(t) for t in range(SIZE)])
    for left in (CLS, *range(4, 11)):
        expected = [given_left(left, token) for token in range(SIZE)]
        np.testing.assert_allclose(model.given_left(left), expected)
        for right in (SEP, *range(4, 10)):
            found = model.given_both(left, right)
            np.testing.assert_allclose(found, given_both(left, right))
            assert found.sum() == pytest.approx(1)
    # The first and last token of a text are no answer.
    assert model.frequency[[CLS, SEP]].tolist() == [0, 0]


def test_neighbours_that_are_hidden_or_were_never_seen_tell_nothing(tool):
    model = tool.Neighbours(tool.Texts(random_rows(40)), SIZE)
    np.testing.assert_array_equal(model.given_left(None), model.frequency)
    np.testing.assert_array_equal(model.given_left(10), model.frequency)
    for left in (None, 4):
        expected = model.given_left(left)
        np.testing.assert_array_equal(model.given_both(left, None), expected)
        np.testing.assert_array_equal(model.given_both(left, 10), expected)
    assert model.given_both(None, 5).sum() == pytest.approx(1)
    assert not np.allclose(model.given_both(None, 5), model.frequency)


def test_guesses_see_what_the_model_sees(tool):
    """After 4 comes 5, but 6 is most frequent; between 5 and 8 stands 7."""
    train = rows_of([4, 5, 7, 8], [4, 5, 7, 8], [6, 6, 6], [6, 6])
    neighbours = tool.Neighbours(tool.Texts(train), SIZE)
    text = np.array([CLS, 4, MASK, MASK, 8, SEP])
    left, both = tool.guesses(neighbours, [text], [np.array([2, 3])], MASK)
    # The second has no left neighbour that is seen, but a right one.
    assert left.tolist() == [5, 6]
    assert both.tolist() == [5, 7]


def test_masks(tool):
    texts = random_rows(50)
    hidden, masked = tool.mask(texts, MASK, seed=0)
    for text, at, changed in zip(texts, hidden, masked, strict=True):
        assert len(at) == max(1, round(0.15 * (len(text) - 2)))
        assert set(at) <= set(range(1, len(text) - 1))
        assert (changed == MASK).nonzero()[0].tolist() == at.tolist()
        kept = changed != MASK
        np.testing.assert_array_equal(changed[kept], text[kept])
    other, _ = tool.mask(texts, MASK, seed=1)
    assert not all(map(np.array_equal, hidden, other))


# === Retrieval ===


def test_recall_by_hand(tool):
    scores = np.array([[0.9, 0.1, 0.2], [0.5, 0.4, 0.1], [0.3, 0.3, 0.3]])
    # First; second; one of three equal ones.
    assert tool.recall(scores, 1) == pytest.approx((1 + 0 + 1 / 3) / 3)
    assert tool.recall(scores, 2) == pytest.approx((1 + 1 + 2 / 3) / 3)
    assert tool.recall(scores, 10) == 1


def test_recall_is_what_lots_give(tool):
    random = np.random.default_rng(0)
    scores = random.integers(0, 4, (6, 6)).astype(float)
    drawn = []
    for _ in range(4000):
        lots = np.lexsort((random.random((6, 6)), -scores), axis=1)
        ranks = (lots == np.arange(6)[:, None]).argmax(axis=1)
        drawn.append((ranks < 2).mean())
    assert tool.recall(scores, 2) == pytest.approx(np.mean(drawn), abs=0.01)


def test_common_characters(tool):
    found = tool.jaccard(["春眠不觉", "春春"], ["春天", "不春"])
    np.testing.assert_allclose(found, [[1 / 5, 2 / 4], [1 / 2, 1 / 2]])


def test_tf_idf_by_hand(tool):
    """Two texts share 春, which half of the three texts have, or 天, which all have."""
    pytest.importorskip("sklearn")
    train = ["春天", "天地", "天"]
    found = tool.tf_idf(train, ["春天"], ["春地", "天地"], longest=1)
    spring, sky, earth = (math.log(4 / (1 + n)) + 1 for n in (1, 3, 1))

    def cosine(a, b):
        return (
            sum(x * y for x, y in zip(a, b, strict=True))
            / math.hypot(*a)
            / math.hypot(*b)
        )

    expected = [
        cosine((spring, sky, 0), other)
        for other in ((spring, 0, earth), (0, sky, earth))
    ]
    np.testing.assert_allclose(found, [expected])
    pairs = tool.tf_idf(train, ["春天"], ["天春", "春天"], longest=2)
    assert pairs[0, 0] < pairs[0, 1] == pytest.approx(1)


def test_bleu_is_of_characters(tool):
    pytest.importorskip("sacrebleu")
    assert tool.bleu(["今天天气不错"], ["今天天气不错"]) == pytest.approx(100)
    # 1- to 4-grams of 6 characters, of which the last is another.
    expected = 100 * math.prod((5 / 6, 4 / 5, 3 / 4, 2 / 3)) ** 0.25
    assert tool.bleu(["今天天气不好"], ["今天天气不错"]) == pytest.approx(expected)


# === The whole script ===


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A table of pairs of sentences and their books, and a configuration that reads it.

    Characters are of the tiny vocabularies; 7 in 20 books or so are held out.
    """
    folder = tmp_path_factory.mktemp("corpus")
    random = np.random.default_rng(0)
    characters = np.array(
        list("的一是了我不人在他有这个上们来到时大地为子中你说生国年着")
    )
    lines = []
    for book, _ in itertools.product(range(20), range(6)):
        first, second = (
            "".join(random.choice(characters, random.integers(4, 20))) for _ in range(2)
        )
        lines.append(f"{first}，{second}。\t{second}！\t书{book}\n")
    # Word for word in every book, so in both parts.
    lines += [f"我们来到这个国。\t你说是的。\t书{book}\n" for book in range(20)]
    (folder / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
    return folder


def configuration(folder, objective, fields, holdout=0.35, length=24):
    path = folder / f"{objective}-{holdout}.toml"
    path.write_text(
        f'objective = "{objective}"\n'
        f'[[data]]\nfiles = ["pairs.tsv"]\nfields = {json.dumps(fields)}\n'
        f'group = "3"\nholdout = {holdout}\n'
        f"[[stages]]\nsteps = 1\nlength = {length}\n"
    )
    return path


def run(tool, capsys, *arguments):
    code = tool.main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_mlm(tool, corpus, tmp_path, capsys):
    config, target = configuration(corpus, "mlm", ["1", "2"]), tmp_path / "mlm.json"
    code, printed, errors = run(
        tool, capsys, "mlm", CHARACTER, "--config", config, "--json", target
    )
    assert code == 0, errors
    (table,) = json.loads(target.read_text())["tables"]
    names = list(table["rows"])
    assert names[0] == CHARACTER.stem and len(names) == 5
    assert names[1].startswith("most frequent token (")
    assert names[2].startswith("most frequent character (")
    for figures in table["rows"].values():
        assert all(0 <= figure <= 1 for figure in figures)
    for name, (accuracy, _) in table["rows"].items():
        assert f"| {name} | {accuracy:.1%} |" in printed
    assert "[MASK]" in table["note"]
    # The same figures from the same seed, and others from a few texts of another.
    _, again, _ = run(tool, capsys, "mlm", CHARACTER, "--config", config)
    assert again == printed
    few = "--limit", 5, "--seed", 1
    _, other, _ = run(tool, capsys, "mlm", CHARACTER, "--config", config, *few)
    assert "of 5 held-out texts" in other


def test_lm(tool, corpus, tmp_path, capsys):
    config, target = configuration(corpus, "lm", ["1"]), tmp_path / "lm.json"
    code, printed, errors = run(
        tool, capsys, "lm", GPT, "--config", config, "--json", target
    )
    assert code == 0, errors
    (table,) = json.loads(target.read_text())["tables"]
    rows = table["rows"]
    assert list(rows) == [GPT.stem, "unigrams", "bigrams", "trigrams"]
    for perplexity, bits in rows.values():
        assert perplexity == pytest.approx(2**bits)
    # Random weights know nothing, and random texts have 30 characters.
    assert rows["unigrams"][0] < 60 < rows[GPT.stem][0]
    assert f"| unigrams | {rows['unigrams'][0]:.1f} |" in printed


def test_sim(tool, corpus, tmp_path, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("sacrebleu")
    config, target = configuration(corpus, "simbert", ["1", "2"]), tmp_path / "sim.json"
    arguments = "--config", config, "--json", target, "--limit", 20
    names = "--names", "long", "short"
    code, printed, errors = run(
        tool, capsys, "sim", SIM, *arguments, *names, "--num-beams", 1
    )
    assert code == 0, errors
    retrieval, written = json.loads(target.read_text())["tables"]
    assert list(retrieval["columns"]) == [
        "long → short, recall@1",
        "long → short, recall@10",
        "short → long, recall@1",
        "short → long, recall@10",
    ]
    assert retrieval["rows"]["chance"] == pytest.approx([0.05, 0.5] * 2)
    # The one text is in the other.
    assert min(retrieval["rows"]["TF-IDF of characters"]) > 0.7
    assert retrieval["note"].startswith("Of 20 held-out pairs")
    assert "the input, copied" in written["rows"]
    assert f"{SIM.stem}, greedy" in printed
    assert min(written["rows"]["the input, copied"]) > 5


def test_log_probabilities_are_of_the_model_alone(tool):
    """Batched and padded as each text by itself, and a distribution over tokens."""
    model = tool.load("RoFormerCausalLM", GPT)
    texts = [model.tokenizer.encode(text)[0] for text in ("我们", "你说的是这个", "人")]
    texts = [np.array(text, "int32") for text in texts]
    together = tool.model_log_probabilities(model, texts)
    expected = []
    for text in texts:
        inputs = {"token_ids": text[None], "segment_ids": np.zeros_like(text)[None]}
        logits = np.array(model(inputs))[0].astype("float64")
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
        expected += [probabilities[at - 1, text[at]] for at in range(1, len(text))]
    np.testing.assert_allclose(together, np.log(expected), atol=1e-5)


def test_what_stands_in_both_parts_is_left_out(tool, corpus, capsys):
    config = configuration(corpus, "lm", ["2"])
    _, printed, _ = run(tool, capsys, "lm", GPT, "--config", config)
    # One line of each held-out book.
    held_out = int(printed.split(" held-out")[0].rsplit(maxsplit=1)[-1])
    dropped = int(printed.split(" more were left out")[0].rsplit(maxsplit=1)[-1])
    assert 6 * dropped == held_out > 0


def test_a_text_is_known_that_shares_half_of_its_runs(tool):
    random = np.random.default_rng(0)
    known = [random.integers(0, 1000, 30, dtype="int32") for _ in range(20)]
    seen = tool.Seen(known)
    fresh = random.integers(0, 1000, 30, dtype="int32")
    assert seen.knows(known[3])
    assert seen.knows(np.concatenate([known[3][2:22], fresh[:10]]))  # 15 of 25 runs
    assert not seen.knows(np.concatenate([known[3][2:18], fresh[:14]]))  # 11 of 25
    assert not seen.knows(fresh)
    # What is shorter than a run is known as a whole only.
    assert tool.Seen([fresh[:4], fresh]).knows(fresh[:4])
    assert not seen.knows(known[3][:4])


def test_runs_are_those_of_six_neighbours(tool):
    row = np.array([5, 6, 7, 8, 9, 10, 5, 6, 7, 8, 9, 10, 11], "int32")
    found = tool.runs(row)
    assert len(found) == 8
    assert found[0] == found[6] and len(set(found)) == 7
    assert len(tool.runs(row[:5])) == 0


def test_errors_state_the_rule_and_the_way_out(tool, corpus, capsys, monkeypatch):
    config = configuration(corpus, "lm", ["1"], holdout=0.0)
    code, _, errors = run(tool, capsys, "lm", GPT, "--config", config)
    assert code == 2 and "holdout" in errors
    config = configuration(corpus, "simbert", ["1"])
    for name in ("sklearn", "sacrebleu"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            code, _, errors = run(tool, capsys, "sim", SIM, "--config", config)
            assert code == 2 and f"pip install {tool.PACKAGES[name]}" in errors
    code, _, errors = run(tool, capsys, "lm", GPT, "--config", config, "--limit", 0)
    assert code == 2 and "limit must be at least 1, got 0" in errors
    code, _, errors = run(tool, capsys, "lm", GPT, "--config", config, "--seed", -1)
    assert code == 2 and "seed must be at least 0, got -1" in errors
    nowhere = corpus.parent / "nowhere" / "x.json"
    code, _, errors = run(
        tool, capsys, "lm", GPT, "--config", config, "--json", nowhere
    )
    assert code == 4 and "is not a folder" in errors


def test_sim_needs_two_texts(tool, corpus, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("sacrebleu")
    config = configuration(corpus, "simbert", ["1"])
    code, _, errors = run(tool, capsys, "sim", SIM, "--config", config)
    assert code == 2 and "records of two texts" in errors
