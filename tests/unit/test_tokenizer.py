"""The tokenizer by itself: golden answers of bert4keras, offsets, batches, errors."""

import functools
import json
import pathlib
import pickle
import sys
import unicodedata

import numpy as np
import pytest
from common import read_json
from hypothesis import given, settings
from hypothesis import strategies as st

from roformer_keras.base.errors import (
    ConfigurationError,
    OutputError,
    SourceError,
    VocabularyError,
)
from roformer_keras.io.vocabulary import vocabulary_level
from roformer_keras.text import characters
from roformer_keras.text import words as segmentation
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.text.truncation import join
from tools.reference.tokenizer import answer_questions

DATA = pathlib.Path(__file__).parents[1] / "data" / "tokenizer"
GOLDEN = read_json(DATA / "golden.json")
LEVELS = ("character", "word")
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENIZERS = {level: RoFormerTokenizer(DATA / f"{level}_vocab.txt") for level in LEVELS}

both_levels = pytest.mark.parametrize("level", LEVELS)
# Whole Unicode, with what the rules are about more often.
TEXTS = st.text(
    st.one_of(
        st.characters(),
        st.characters(categories=["Cc", "Cf", "Mc", "Mn", "Zs", "Zl", "Zp", "P", "S"]),
        st.sampled_from("今天北京不错aAbB1９ İΣςが한々〇￥#.'\x0b\u200b\u0301\ufffd"),
    ),
    max_size=30,
)
# Words of several tokens, of which one or more are unknown together with what follows.
RUNS = st.one_of(
    st.text(st.sampled_from("bbssBΣ\u0301"), min_size=6, max_size=16),
    st.sampled_from([" ", "，", "。", "\n", "今天", "北京", ""]),
)


# === bert4keras's answers ===


def answer(level, method, texts=(), pairs=None, rows=(), startswith=(), **options):
    """Our answer to a question of `tools.reference.tokenizer`."""
    tokenizer = TOKENIZERS[level]
    if method == "tokenize":
        return [tokenizer.tokenize(text) for text in texts]
    if method == "decode":
        return [tokenizer.decode(ids) for ids in rows]
    if method == "simplify":
        simplified, kept_ids = tokenizer.simplified(startswith)
        assert simplified.level == "character"
        return simplified.vocabulary, kept_ids
    answers = []
    for first, second in zip(texts, pairs or [None] * len(texts), strict=True):
        try:
            answers.append(list(tokenizer.encode(first, second, **options)))
        except ConfigurationError as error:
            assert "cannot truncate" in str(error)
            answers.append("IndexError")
    return answers


@both_levels
def test_answers_are_bert4keras_s(level):
    golden = GOLDEN[level]
    assert answer_questions(golden, functools.partial(answer, level)) == golden


def test_a_list_of_tokens_is_left_as_it_was():
    tokens = ["[CLS]", "今", "天", "[SEP]"]
    TOKENIZERS["character"].encode(tokens, tokens, max_length=3)
    assert tokens == ["[CLS]", "今", "天", "[SEP]"]


def test_the_shortcuts_hold_in_this_version_of_unicode():
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if unicodedata.category(char) == "Mn":
            assert characters._MAYBE_MARKS.fullmatch(char), hex(code)
        if characters.PLAIN.fullmatch(char):
            assert characters.normalise(char) == char, hex(code)
        if characters.PLAIN.fullmatch(char) or characters.ALONE.fullmatch(char):
            assert characters.SPACING[code] == f" {char} ", hex(code)


# === Offsets ===


@both_levels
def test_offsets_count_characters_of_the_original(level):
    for text, token, span in [
        ("İstanbul今", "今", (8, 9)),
        ("İstanbul今", "is", (0, 2)),
        ("e\u0301\u0327今", "今", (3, 4)),
        ("が今", "か", (0, 1)),
        ("한国", "国", (1, 2)),
        ("\u200b\u200b大学 生", "生", (5, 6)),
        ("hello999 今", "hello999", (0, 8)),
        ("İ" * 9 + "今", "今", (9, 10)),
        ("好\r\n的", "的", (3, 4)),
        ("𠀀今", "今", (1, 2)),
    ]:
        tokens = TOKENIZERS[level].tokenize(text)
        assert TOKENIZERS[level].offsets(text)[tokens.index(token)] == span, text


@both_levels
@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_a_token_is_its_span_normalised(level, text):
    tokens = TOKENIZERS[level].tokenize(text)
    spans = TOKENIZERS[level].offsets(text)
    assert len(spans) == len(tokens)
    assert spans[0] == spans[-1] == (0, 0)
    inner = spans[1:-1]
    assert inner == sorted(inner)
    for token, (start, end) in zip(tokens[1:-1], inner, strict=True):
        assert 0 <= start < end <= len(text)
        # Lowered as part of the text: a final sigma is one only there.
        shown = "".join(
            char
            for char in characters.normalise(text[start:end]).replace("ς", "σ")
            if characters.SPACING[ord(char)] not in (None, " ")
        )
        stem = token.removeprefix("##").replace("ς", "σ")
        # Several tokens may come from one character, or from the marks on it.
        assert stem == shown or (inner.count((start, end)) > 1 and stem in shown)


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_origins_spell_the_normal_form(text):
    normal, origins = characters.normalise_with_origins(text)
    assert normal == characters.normalise(text)
    assert len(origins) == len(normal)


# === [MASK] in a text ===


@both_levels
def test_mask_is_kept_on_request(level):
    text = "今天[MASK]气[MASK][MASK]很好[mask]"
    encoder = TOKENIZERS[level]
    tokens = encoder.tokenize(text, keep_mask=True)
    middle = ["[MASK]", "气", "[MASK]", "[MASK]", "很", "好", "[", "mask", "]"]
    assert tokens == ["[CLS]", "今", "天", *middle, "[SEP]"]
    spans = encoder.offsets(text, keep_mask=True)
    assert len(spans) == len(tokens)
    for token, (start, end) in zip(tokens[1:-1], spans[1:-1], strict=True):
        assert text[start:end] == token
    token_ids, _ = encoder.encode(text, keep_mask=True)
    assert token_ids.count(encoder.mask_id) == 3
    batch = encoder([text], keep_mask=True, return_offsets=True)
    assert batch["token_ids"][0].tolist() == token_ids
    assert batch["offsets"][0].tolist() == [list(span) for span in spans]


def test_a_vocabulary_without_mask_says_so_when_it_is_needed():
    encoder = RoFormerTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "今"])
    assert encoder.tokenize("[MASK]")[1:-1] == ["[", "mask", "]"]
    for needs_mask in (
        lambda: encoder.mask_id,
        lambda: encoder.tokenize("[MASK]", keep_mask=True),
    ):
        with pytest.raises(VocabularyError, match=r"no \[MASK\]"):
            needs_mask()


# === Batches ===


@pytest.mark.parametrize(
    ("level", "with_pairs", "max_length", "padding"),
    [
        ("character", False, None, "longest"),
        ("word", True, 4, "longest"),
        ("word", False, 4, "max_length"),
        ("character", True, 40, "max_length"),
    ],
)
def test_a_batch_holds_what_encode_gives(level, with_pairs, max_length, padding):
    encoder = TOKENIZERS[level]
    texts = ["今天天气不错", "", "hello, 北京", "İstanbul今"]
    pairs = ["我", "北京天安门很好", "", "a"] if with_pairs else None
    batch = encoder(texts, pairs, max_length, padding, return_offsets=True)
    rows = [
        encoder.encode(text, pair, max_length)
        for text, pair in zip(texts, pairs or [None] * 4, strict=True)
    ]
    length = max(len(ids) for ids, _ in rows)
    length = max_length if padding == "max_length" else length
    assert {name: array.dtype for name, array in batch.items()} == {
        "token_ids": np.int32,
        "segment_ids": np.int32,
        "offsets": np.int32,
    }
    assert batch["offsets"].shape == (4, length, 2)
    for row, (token_ids, segment_ids) in enumerate(rows):
        pads = [0] * (length - len(token_ids))
        assert batch["token_ids"][row].tolist() == token_ids + pads
        assert batch["segment_ids"][row].tolist() == segment_ids + pads
        assert encoder.decode(batch["token_ids"][row]) == encoder.decode(token_ids)
        assert not batch["offsets"][row, len(token_ids) :].any()


def test_offsets_of_pairs_are_truncated_as_their_tokens():
    batch = TOKENIZERS["character"](
        ["今天天气"], ["我爱北京"], max_length=7, return_offsets=True
    )
    # [CLS] 今 天 天 -> 今 天 [SEP] 我 爱 [SEP], with its spans.
    assert batch["offsets"][0, :, 0].tolist() == [0, 0, 1, 0, 0, 1, 0]
    assert batch["offsets"][0, :, 1].tolist() == [0, 1, 2, 0, 1, 2, 0]


@both_levels
@settings(max_examples=100)
@given(st.lists(RUNS, min_size=8, max_size=20), st.integers(1, 9), st.booleans())
def test_a_long_text_is_read_only_as_far_as_needed(level, parts, most, has_pair):
    encoder, text = TOKENIZERS[level], "".join(parts) * 3
    pair = text[::-1] if has_pair else None
    whole = [encoder.tokenize(one) for one in (text, pair) if one is not None]
    spans = [encoder.offsets(one) for one in (text, pair) if one is not None]
    # Lists of tokens are not shortened before they are joined.
    try:
        expected = encoder.encode(*whole, max_length=most)
    except ConfigurationError:
        return
    assert encoder.encode(text, pair, max_length=most) == expected
    batch = encoder(
        [text], pair and [pair], max_length=most, return_offsets=True, padding="longest"
    )
    assert batch["token_ids"][0].tolist() == expected[0]
    first, second = join(spans[0], spans[1] if has_pair else None, most, "right")
    assert batch["offsets"][0].tolist() == [list(span) for span in first + second]


@both_levels
def test_the_end_of_a_long_text_is_not_read(level, monkeypatch):
    encoder, lengths = TOKENIZERS[level], []
    whole = encoder.tokenize

    def tokenize(text, **options):
        lengths.append(len(text))
        return whole(text, **options)

    monkeypatch.setattr(encoder, "tokenize", tokenize)
    for text in ("今天，" * 100_000, "ab " * 100_000):
        assert len(encoder.encode(text, max_length=64)[0]) == 64
    # Where a text has no place to cut it, it is read whole.
    encoder.encode("a" * 10_000, max_length=64)
    assert all(length < 600 for length in lengths[:-1]), lengths
    assert lengths[-1] == 10_000


def test_an_empty_batch_is_empty():
    assert TOKENIZERS["character"]([])["token_ids"].shape == (0, 0)
    batch = TOKENIZERS["character"](iter([]), max_length=5, padding="max_length")
    assert batch["token_ids"].shape == (0, 5)


# === Vocabularies ===


def test_vocabulary_from_a_path_a_list_and_a_dict():
    path = DATA / "word_vocab.txt"
    by_path = RoFormerTokenizer(str(path))
    by_list = RoFormerTokenizer(by_path.vocabulary)
    ids = {token: index for index, token in enumerate(by_path.vocabulary)}
    by_dict = RoFormerTokenizer(dict(reversed(ids.items())))
    assert by_path.vocabulary == by_list.vocabulary == by_dict.vocabulary
    assert by_path.vocabulary_size == len(ids)
    for name in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(by_dict, f"{name}_id") == ids[f"[{name.upper()}]"]
    assert by_path.token_to_id("北京") == ids["北京"]
    assert by_path.token_to_id("not there") == by_path.unk_id
    assert by_path.id_to_token(np.int64(ids["北京"])) == "北京"


def test_save_vocabulary_and_load_it_again(tmp_path):
    encoder = TOKENIZERS["word"]
    path = tmp_path / "vocab.txt"
    path.write_text("old")
    encoder.save_vocabulary(path)
    again = RoFormerTokenizer(path, **json.loads(json.dumps(encoder.to_dict())))
    assert again.vocabulary == encoder.vocabulary
    assert again.level == "word"
    (tmp_path / "folder").mkdir()
    for target, message in (
        ("absent/vocab.txt", "is not a folder: make it first"),
        ("folder", "folder"),
    ):
        with pytest.raises(OutputError, match=message):
            encoder.save_vocabulary(tmp_path / target)
    assert {path.name for path in tmp_path.iterdir()} == {"vocab.txt", "folder"}


@both_levels
def test_level_is_told_from_the_vocabulary_and_pickled(level):
    copy = pickle.loads(pickle.dumps(TOKENIZERS[level]))
    assert copy.encode("今天北京") == TOKENIZERS[level].encode("今天北京")
    assert copy.level == TOKENIZERS[level].level == level
    assert vocabulary_level(TOKENIZERS[level].vocabulary) == level
    other = LEVELS[1 - LEVELS.index(level)]
    with pytest.raises(VocabularyError, match=f"level='{other}' contradicts"):
        RoFormerTokenizer(DATA / f"{level}_vocab.txt", other)


def test_a_level_that_cannot_be_told_must_be_given():
    tokens = [*SPECIALS, *map(chr, range(0x4E00, 0x4E00 + 500)), "北京"]
    with pytest.raises(VocabularyError, match="does not show its level"):
        RoFormerTokenizer(tokens)
    for level in LEVELS:
        assert RoFormerTokenizer(tokens, level).level == level


def test_subset_keeps_the_specials_wherever_they_were():
    encoder = TOKENIZERS["word"]
    names = ["[PAD]", "[MASK]", "北京", "[SEP]", "今", "[UNK]", "[CLS]"]
    subset = encoder.subset(np.array([encoder.token_to_id(name) for name in names]))
    assert subset.vocabulary == names
    assert subset.level == "word"
    assert (subset.cls_id, subset.mask_id) == (6, 1)
    assert subset.encode("北京今天")[0] == [6, 2, 4, 5, 3]
    words_dropped = encoder.subset(
        [i for i, name in enumerate(encoder.vocabulary) if name not in ("北京", "天气")]
    )
    assert words_dropped.level == "word"


def test_simplified_keeps_the_specials_by_default():
    simplified, keep_tokens = TOKENIZERS["word"].simplified()
    assert simplified.vocabulary[:5] == SPECIALS
    original = TOKENIZERS["word"].vocabulary
    assert [original[i] for i in keep_tokens] == simplified.vocabulary
    assert not {"北京", "[unused1]"} & set(simplified.vocabulary)


# === Segmentation ===


def test_segmenter_weighs_a_word_against_its_characters():
    for entries, words in [
        # log(1/16) equals log(4/16) + log(4/16): on a tie the longer word wins.
        ([("上下", 1), ("上", 4), ("下", 4), ("左", 7)], ["上下"]),
        ([("上下", 2), ("上", 4), ("下", 4), ("左", 6)], ["上下"]),
        ([("上下", 0), ("上", 4), ("下", 4), ("左", 8)], ["上", "下"]),
        ([("上下", 1), ("上", 60), ("下", 60)], ["上", "下"]),
    ]:
        assert segmentation.Segmenter(entries).cut("上下") == words
    # The last entry wins, and prefixes are no words.
    segmenter = segmentation.Segmenter([("上下左右", 5), ("上下", 9), ("上下", 0)])
    assert segmenter.cut("上下") == ["上", "下"]
    assert segmenter.cut("上下左右上") == ["上下左右", "上"]
    assert segmenter.cut("上下左") == ["上", "下", "左"]


def test_segmenter_items_spell_the_text():
    text = "ab1 中文\r\n#c++—𠀀\ud800x-y"
    assert "".join(segmentation.default_segmenter().cut(text)) == text


# === Errors ===


def test_non_text_and_other_bad_arguments():
    encoder = TOKENIZERS["character"]
    for call, message in [
        (lambda: encoder.tokenize(None), "must be a str, got NoneType"),
        (lambda: encoder.tokenize(b"abc"), "must be a str, got bytes"),
        (lambda: encoder.offsets(["a"]), "must be a str, got list"),
        (lambda: encoder.encode(3), "a str or a list of tokens, got int"),
        (lambda: encoder.encode(["a", 3]), "a str or a list of tokens, got list"),
        (lambda: encoder.encode("a", 3.5), "a str or a list of tokens, got float"),
        (lambda: encoder.encode("a", max_length=0), "max_length must be"),
        (lambda: encoder.encode("a", max_length=2.0), "max_length must be"),
        (lambda: encoder.encode("a", max_length=True), "max_length must be"),
        (lambda: encoder.encode("abc", max_length=2, truncate_from="top"), "'top'"),
        (lambda: encoder.encode("今天", max_length=2, truncate_from=9), "cannot trunc"),
        (lambda: encoder("abc"), "texts must be a batch"),
        (lambda: encoder(["abc"], "abc"), "pairs must be a batch"),
        (lambda: encoder(["abc"], ["a", "b"]), "1 texts and 2 pairs"),
        (lambda: encoder([None]), "got NoneType"),
        (lambda: encoder(["abc"], padding="left"), "padding must be"),
        (lambda: encoder(["abc"], padding="max_length"), "needs max_length"),
        (lambda: encoder.id_to_token(1.0), "must be an integer"),
        (lambda: encoder.decode(["1"]), "must be an integer"),
        (lambda: encoder.id_to_token(True), "must be an integer"),
        (lambda: RoFormerTokenizer(SPECIALS, "char"), "level must be"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            call()


def test_unusable_vocabularies_and_ids(tmp_path):
    path = tmp_path / "vocab.txt"
    encoder = TOKENIZERS["character"]
    for token_id in (-1, 10**6, np.int32(-5)):
        with pytest.raises(VocabularyError, match=f"got {token_id}"):
            encoder.decode([token_id])
    for vocabulary, message in [
        ([], "is empty"),
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "a"], "'a' with the ids 4 and"),
        (["[UNK]", "[CLS]", "[SEP]", "[PAD]"], r"\[PAD\] must be the first"),
        (["[PAD]", "[UNK]", "a"], r"lacks \[CLS\], \[SEP\]"),
        ([*SPECIALS, 7], "got 7 with id 5"),
        ([*SPECIALS, "a b"], "'a b' with id 5"),
        ({"[PAD]": 0, "[UNK]": 2}, "must be 0, 1, 2"),
        ({"[PAD]": 0, "[UNK]": 0}, "must be 0, 1, 2"),
        (None, "must be a path, a list"),
        (12000, "must be a path, a list"),
        ("[PAD]\n今\n".encode("gbk"), "UTF-8"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n\n\na", "'' with the ids 4 and 5"),
    ]:
        if isinstance(vocabulary, bytes):
            path.write_bytes(vocabulary)
            vocabulary = path
        with pytest.raises(VocabularyError, match=message):
            RoFormerTokenizer(vocabulary)
    for absent in (tmp_path / "absent.txt", tmp_path):
        with pytest.raises(SourceError, match="cannot read"):
            RoFormerTokenizer(absent)
    for method, argument, message in [
        ("subset", [0, 99999], "got 99999"),
        ("subset", [0, 1, 1], "once"),
        ("subset", [0, 10], "lacks"),
        ("simplified", ["[PAD]", "absent"], "'absent'"),
        ("simplified", [], "must be the first"),
    ]:
        with pytest.raises(VocabularyError, match=message):
            getattr(encoder, method)(argument)
