"""A vocabulary of characters: which are in it, in which order, and what it covers."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_keras.base.errors import ConfigurationError, SourceError
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.text.train_vocabulary import (
    build_subword_vocabulary,
    build_vocabulary,
)


def characters_of(*records, **options):
    """The tokens after the special ones."""
    tokens, _ = build_vocabulary(records, **options)
    return tokens[106:]


def test_special_tokens_have_the_released_ids():
    tokens, _ = build_vocabulary([("今",)])
    assert len(tokens) == 107
    assert tokens[:2] + tokens[99:103] == [
        *("[PAD]", "[unused1]", "[unused99]", "[UNK]", "[CLS]", "[SEP]")
    ]
    assert tokens[103:] == ["[MASK]", "<S>", "<T>", "今"]


def test_characters_by_falling_count_then_by_code_point():
    assert characters_of(("天今，", "今气"), ("天今一",)) == [*"今天一气，"]


def test_texts_are_normalised():
    """Lower case, without accents, spaces and control characters."""
    assert characters_of(("É\u200b \t\n今\u3000\x00",)) == ["e", "##e", "今"]


def test_what_is_part_of_words_has_two_forms():
    assert " ".join(characters_of(("b 1 か $。",))) == "$ 1 ##1 b ##b 。 か ##か"


def test_the_rare_are_left_out():
    record = ("今今今天天气ab",)
    assert characters_of(record, min_count=2) == ["今", "天"]
    tokens, facts = build_vocabulary([record], max_size=109)
    # A letter needs two places, and what is rarer does not overtake it.
    assert tokens[106:] == ["今", "天"]
    assert facts == {"characters": 5, "kept": 2, "coverage": 5 / 8}
    assert len(build_vocabulary([record], max_size=110)[0]) == 110
    assert build_vocabulary([record])[1] == {
        "characters": 5,
        "kept": 5,
        "coverage": 1.0,
    }


@given(st.lists(st.tuples(st.text(max_size=50), st.text(max_size=9)), min_size=1))
def test_every_character_of_the_corpus_is_known(records):
    records.append(("今",))
    tokens, facts = build_vocabulary(records)
    assert facts["coverage"] == 1
    tokenizer = RoFormerTokenizer(tokens)
    assert tokenizer.level == "character"
    for record in records:
        for text in record:
            assert tokenizer.unk_id not in tokenizer.encode(text)[0]


def test_errors():
    for options, message in (
        ({"min_count": 0}, "min_count must be an integer of at least 1, got 0"),
        ({"min_count": 1.5}, "min_count must be an integer of at least 1, got 1.5"),
        ({"max_size": 106}, "max_size must be an integer of at least 107, got 106"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            build_vocabulary([("今",)], **options)
    for records in ([], [("", " \u200b")]):
        with pytest.raises(SourceError, match="got 0 characters, the most frequent 0"):
            build_vocabulary(records)
    with pytest.raises(SourceError, match="occurs 3 times, got 2 characters, the most"):
        build_vocabulary([("今今天",)], min_count=3)


# === Parts of words ===


def test_a_vocabulary_of_parts_of_words():
    texts = [("lower lower lowest",), ("newer newer wider Über",), ("new Q.",)]
    tokens, facts = build_subword_vocabulary(
        texts, max_size=140, min_count=1, lower_case=False
    )
    assert len(tokens) == len(set(tokens)) <= 140
    assert facts["coverage"] == 1
    # "e" and "r" come together six times, and then "w" before them four times: nothing
    # does more often.
    start = tokens.index("##er")
    assert tokens[start + 1] == "##wer"
    assert {"lower", "newer"} <= set(tokens[start:])
    tokenizer = RoFormerTokenizer(tokens, lower_case=False)
    assert tokenizer.tokenize("lower wider")[1] == "lower"
    text = "newest Über Qow."
    assert tokenizer.unk_id not in tokenizer.encode(text)[0]
    assert tokenizer.decode(tokenizer.encode(text)[0]) == text
    # The order of the texts makes no difference.
    again, _ = build_subword_vocabulary(
        texts[::-1], max_size=140, min_count=1, lower_case=False
    )
    assert again == tokens
    lower, _ = build_subword_vocabulary(texts, max_size=140)
    assert "Ü" not in lower and "u" in lower
    # What is too rare is left out, and the words that have it.
    rare, _ = build_subword_vocabulary(texts, max_size=140, min_count=2)
    assert "q" not in rare


def test_merges_are_those_of_a_plain_count():
    """Against counting all pairs anew for each merge."""
    generator = np.random.default_rng(0)
    words = {
        "".join(generator.choice(list("abc"), generator.integers(1, 7))): int(count)
        for count in generator.integers(1, 20, 60)
    }
    text = " ".join(word for word, count in words.items() for _ in range(count))
    tokens, _ = build_subword_vocabulary([(text,)], max_size=150)
    spelt = {w: [w[0], *(f"##{c}" for c in w[1:])] for w in words}
    expected = []
    while len(expected) < 150 - 106 - 6:
        counts = {}
        for word, parts in spelt.items():
            for pair in itertools.pairwise(parts):
                counts[pair] = counts.get(pair, 0) + words[word]
        best = min(counts, key=lambda pair: (-counts[pair], pair), default=None)
        if best is None or counts[best] < 2:
            break
        merged = best[0] + best[1][2:]
        for word, parts in spelt.items():
            joined = []
            for part in parts:
                joined.append(part)
                is_free = len(joined) > 1 and tuple(joined[-2:]) == best
                if is_free:
                    joined[-2:] = [merged]
            spelt[word] = joined
        if merged not in expected:
            expected.append(merged)
    assert tokens[106 + 6 :] == expected
