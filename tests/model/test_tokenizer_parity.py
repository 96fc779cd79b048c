"""The tokenizer against the real bert4keras, which runs in a separate process.

Real lines and vocabularies are used where they lie next to the checkout; then the
reference must be there too.
"""

import functools
import itertools

import pytest
from common import ROOT, SHARED, read_json
from hypothesis import given, settings
from hypothesis import strategies as st

from roformer_keras.base.errors import ConfigurationError, ReferenceUnavailable
from roformer_keras.text.tokenizer import RoFormerTokenizer
from tools.benchmarks.texts import read_lines
from tools.reference.bert4keras import reference_worker
from tools.reference.tokenizer import answer_questions

SMALL = ROOT / "tests" / "data" / "tokenizer"
REAL = SHARED / "data"
LEVELS = ("character", "word")
REAL_VOCABULARIES = {"character": "char_12000.txt", "word": "word_50000.txt"}

GOLDEN = read_json(SMALL / "golden.json")

both_levels = pytest.mark.parametrize("level", LEVELS)
needs_real_data = pytest.mark.skipif(
    not SHARED.is_dir(), reason="no real data next to the checkout"
)


@pytest.fixture(scope="module")
def reference():
    try:
        process = reference_worker("tools.reference.tokenizer:Tokenizer")
    except ReferenceUnavailable as error:
        if SHARED.is_dir():
            raise
        pytest.skip(str(error))
    with process:
        yield process


def ask_reference(reference, path, level, method, **arguments):
    return reference.call(method, path, level, **arguments)


def vocabulary(level):
    if SHARED.is_dir():
        return str(REAL / "vocab" / REAL_VOCABULARIES[level])
    return str(SMALL / f"{level}_vocab.txt")


@both_levels
def test_golden_answers_are_those_of_the_reference(reference, level):
    path = str(SMALL / f"{level}_vocab.txt")

    ask = functools.partial(ask_reference, reference, path, level)
    assert answer_questions(GOLDEN[level], ask) == GOLDEN[level]


def real_lines():
    """Distinct lines of the first poems, of all reviews and of the court texts."""
    poems = read_lines(REAL / "poetry" / "tang_poems.jsonl.gz")
    reviews = [
        read_lines(REAL / "sentiment" / f"sentiment.{part}.tsv.gz")
        for part in ("train", "valid", "test")
    ]
    court = read_lines(REAL / "unlicensed" / "cail2019-scm.sample.jsonl.gz")
    poems = itertools.islice(poems, 60_000)
    return list(dict.fromkeys(itertools.chain(poems, *reviews, court)))


@pytest.mark.e2e
@needs_real_data
@both_levels
@pytest.mark.parametrize(
    "step", [20, pytest.param(1, marks=pytest.mark.weekly, id="all")]
)
def test_real_lines(reference, level, step):
    lines = real_lines()
    assert len(lines) >= 50_000
    lines = lines[::step]
    path = vocabulary(level)
    reference.send("encode", path, level, texts=lines)
    tokenizer = RoFormerTokenizer(path)
    assert tokenizer.level == level
    ours = [tokenizer.encode(line) for line in lines]
    theirs = reference.receive()["result"]
    different = [
        line
        for line, (our_ids, _), (their_ids, _) in zip(lines, ours, theirs, strict=True)
        if our_ids != their_ids
    ]
    assert not different, f"{len(different)} lines differ, the first: {different[0]}"

    rows = [ids for ids, _ in ours[::10]]
    decoded = reference.call("decode", path, level, rows=rows)
    assert [tokenizer.decode(ids) for ids in rows] == decoded


@needs_real_data
@both_levels
def test_real_lines_in_truncated_pairs_and_batches(reference, level):
    lines = real_lines()[::100]
    pairs = lines[::-1]
    path = vocabulary(level)
    tokenizer = RoFormerTokenizer(path)
    for truncate_from in ("right", "left"):
        theirs = reference.call(
            "encode",
            path,
            level,
            texts=lines,
            pairs=pairs,
            max_length=40,
            truncate_from=truncate_from,
        )
        batch = tokenizer(lines, pairs, 40, truncate_from=truncate_from)
        for row, (token_ids, segment_ids) in enumerate(theirs):
            padding = [0] * (batch["token_ids"].shape[1] - len(token_ids))
            assert batch["token_ids"][row].tolist() == token_ids + padding
            assert batch["segment_ids"][row].tolist() == segment_ids + padding


@pytest.mark.slow
@needs_real_data
@both_levels
def test_simplified_real_vocabularies(reference, level):
    path = vocabulary(level)
    for names in (GOLDEN["character"]["simplified"][0], ["[PAD]", "a", "[CLS]"]):
        startswith = list(dict.fromkeys([*names, "[UNK]", "[CLS]", "[SEP]"]))
        answer = reference.call("simplify", path, level, startswith=startswith)
        simplified, keep_tokens = RoFormerTokenizer(path).simplified(startswith)
        assert [simplified.vocabulary, keep_tokens] == answer


# Whole Unicode, and more often what a rule is about or a word is made of.
PIECES = st.one_of(
    st.text(st.characters(), max_size=8),
    st.text(
        st.characters(categories=["Cc", "Cf", "Mc", "Mn", "Zs", "Zl", "Zp", "P", "S"]),
        max_size=4,
    ),
    st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), max_size=4),
    st.text(st.sampled_from("abcdeiotABC0123456789+#&._%- "), max_size=8),
    st.sampled_from(GOLDEN["word"]["tokenize"][0]),
    st.sampled_from(["北京", "天气", "有一", "一二三", "研究生命起源", "乒乓球拍卖"]),
)
TEXTS = st.lists(PIECES, max_size=5).map("".join)
against_reference = settings(max_examples=400, deadline=None)


@pytest.fixture(scope="module", params=LEVELS)
def both(request, reference):
    """Our tokenizer, and a function that asks the reference's."""
    path = vocabulary(request.param)

    ask = functools.partial(ask_reference, reference, path, request.param)
    return RoFormerTokenizer(path), ask


@pytest.mark.slow
@against_reference
@given(texts=st.lists(TEXTS, min_size=1, max_size=8))
def test_any_text(both, texts):
    tokenizer, ask = both
    assert [tokenizer.tokenize(text) for text in texts] == ask("tokenize", texts=texts)


@pytest.mark.slow
@against_reference
@given(
    first=TEXTS,
    second=st.none() | TEXTS,
    max_length=st.none() | st.integers(1, 12),
    truncate_from=st.sampled_from(["right", "left"]) | st.integers(-6, 6),
)
def test_any_pair(both, first, second, max_length, truncate_from):
    tokenizer, ask = both
    options = {"max_length": max_length, "truncate_from": truncate_from}
    [expected] = ask("encode", texts=[first], pairs=[second], **options)
    try:
        result = list(tokenizer.encode(first, second, **options))
    except ConfigurationError:
        result = "IndexError"
    assert result == expected


@pytest.mark.slow
@against_reference
@given(data=st.data())
def test_any_ids(both, data):
    tokenizer, ask = both
    frequent = [
        tokenizer.token_to_id(t) for t in [*"a1.'s今。，(=", "##s", "don", "it"]
    ]
    any_id = st.integers(0, tokenizer.vocabulary_size - 1) | st.sampled_from(frequent)
    ids = data.draw(st.lists(any_id, max_size=20))
    assert tokenizer.decode(ids) == ask("decode", rows=[ids])[0]
