"""Token ids from records: sentences, encoders, and the order of tokenized corpora."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_keras.base.errors import ConfigurationError, SourceError
from roformer_keras.data.loader import Loader, batch_maker, sorted_batches
from roformer_keras.text.encoders import DocumentEncoder, PairEncoder, split_sentences
from roformer_keras.text.examples import EpochItems, tokenize_corpus
from roformer_keras.text.tokenizer import RoFormerTokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHARACTERS = "今天气不错我们去北京玩吧第句，。！？；："
DIGITS = "0123456789"
PARTS = ["a", "##a", "caf", "##e", "\u1112", "##\u1161", "##\u11ab"]
TOKENIZER = RoFormerTokenizer(
    [*SPECIALS, *CHARACTERS, *DIGITS, *(f"##{digit}" for digit in DIGITS), *PARTS]
)
SEP = TOKENIZER.sep_id


def documents(count=60, seed=0):
    """Records of texts of one to some hundred characters, each with its number."""
    draw = random.Random(seed)
    return [
        (f"第{number}句：" + "".join(draw.choices(CHARACTERS, k=draw.randrange(200))),)
        for number in range(count)
    ]


def spell(ids):
    return "".join(map(TOKENIZER.id_to_token, ids))


def spelled(items):
    return [spell(item.ids[0]) for item in items]


# === Sentences ===


@pytest.mark.parametrize(
    ("text", "longest", "pieces"),
    [
        ("今天。天气！", 9, ["今天。天气！"]),
        ("今天。天气！不错？我们", 6, ["今天。天气！", "不错？我们"]),
        ("今天。天气！不错？我们", 5, ["今天。", "天气！", "不错？我们"]),
        ("今天。\n天气", 4, ["今天。", "天气"]),
        ("他说：“今天。”我", 8, ["他说：“今天。”", "我"]),
        ("今天！！？天", 5, ["今天！！？", "天"]),
        ("今天，天气；不错", 4, ["今天，", "天气；", "不错"]),
        ("今天，天气；不错。我，你", 6, ["今天，天气；", "不错。我，你"]),
        ("good day now", 8, ["good", "day now"]),
        ("今天天气不错", 4, ["今天天气", "不错"]),
        ("我。今天天气不错。吧", 4, ["我。", "今天天气", "不错。吧"]),
        ("", 4, []),
        (" \n　", 1, []),
        ("\n。今", 2, ["。", "今"]),
    ],
)
def test_split_sentences(text, longest, pieces):
    assert split_sentences(text, longest) == pieces


@given(
    st.text(st.one_of(st.sampled_from("今天ab，;。！”」\n　"), st.characters())),
    st.integers(1, 12),
)
def test_pieces_are_the_text(text, longest):
    pieces = split_sentences(text, longest)
    assert all(0 < len(piece) <= longest for piece in pieces)
    assert all(piece == piece.strip() for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


@given(
    st.lists(st.text("今天气不错", min_size=1, max_size=7), min_size=1),
    st.integers(8, 30),
)
def test_sentences_that_fit_stay_whole_and_together(sentences, longest):
    text = "".join(f"{sentence}。" for sentence in sentences)
    pieces = split_sentences(text, longest)
    assert all(piece.endswith("。") for piece in pieces)
    for piece, following in itertools.pairwise(pieces):
        first = following[: following.index("。") + 1]
        assert len(piece) + len(first) > longest


# === Encoders ===


def test_document_encoder():
    record = ("今天天气不错。我们去玩吧！", "", "北京")
    items = DocumentEncoder(TOKENIZER, 8)(record)
    assert spelled(items) == ["今天天气不错", "。", "我们去玩吧！", "北京"]
    assert all(i.ids[0].dtype == "int32" and i.starts is i.label is None for i in items)
    whole = DocumentEncoder(TOKENIZER, None)(record)
    assert spelled(whole) == ["今天天气不错。我们去玩吧！", "北京"]


@pytest.mark.parametrize("whole_word", [False, True])
def test_items_are_no_longer_than_asked(whole_word):
    """Also where a character becomes three tokens."""
    items = DocumentEncoder(TOKENIZER, 7, whole_word)(("한今" * 6 + "今天气" * 5,))
    lengths = [len(item.ids[0]) for item in items]
    assert lengths[:2] == [5, 5]
    assert max(lengths) == 5
    assert sum(lengths) == 39
    if whole_word:
        assert lengths == [len(item.starts[0]) for item in items]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "今天天气不错，我们去北京。",
            ["今天天气", "不错", "，", "我们", "去", "北京", "。"],
        ),
        ("今天 天气", ["今天", "天气"]),
        ("北京2024 12", ["北京", "2##0##2##4", "1##2"]),
        ("今天\u200b天气", ["今天", "天气"]),
        ("AA今天", ["a##a", "今天"]),
        ("café去", ["caf##e", "去"]),
        ("한去", ["\u1112##\u1161##\u11ab", "去"]),
        ("吧", ["吧"]),
    ],
)
def test_where_words_begin(text, words):
    (((ids,), (starts,), _),) = DocumentEncoder(TOKENIZER, 99, whole_word=True)((text,))
    assert starts.dtype == bool
    assert starts.shape == ids.shape
    spelled_words = []
    for index, is_start in zip(ids, starts, strict=True):
        if is_start:
            spelled_words.append("")
        spelled_words[-1] += TOKENIZER.id_to_token(index)
    assert spelled_words == words


@given(st.text(st.sampled_from(f"{CHARACTERS} \n"), min_size=1, max_size=20))
def test_word_starts_of_plain_text_are_those_of_any(text):
    """The quick way for characters and spaces gives what the general way does."""
    encode = DocumentEncoder(TOKENIZER, None, whole_word=True)
    quick = [item.starts[0].tolist() for item in encode((text,))]
    (general,) = (item.starts[0] for item in encode((f"{text} AA",)))
    assert general.tolist() == [*itertools.chain.from_iterable(quick), True, False]


def test_pair_encoder():
    record = ("今天天气不错", "北京")
    (item,) = PairEncoder(TOKENIZER, 6)(record)
    assert [spell(ids) for ids in item.ids] == ["今天天气", "北京"]
    assert item.starts is item.label is None
    (item,) = PairEncoder(TOKENIZER, 7, whole_word=True)(record)
    assert item.starts[0].tolist() == [True, False, False, False, True]
    assert item.starts[1].tolist() == [True, False]
    for empty in (("今天", ""), ("\u200b", "今天")):
        assert PairEncoder(TOKENIZER, 7, whole_word=True)(empty) == []


def test_labels_and_texts_of_a_teacher():
    (item,) = PairEncoder(TOKENIZER, 5, labels=())(("今天天气", "北京", "4.5"))
    assert ([len(ids) for ids in item.ids], item.label) == ([3, 2], 4.5)
    assert PairEncoder(TOKENIZER, 5, labels=())(("今天", "", "1")) == []
    teacher = RoFormerTokenizer([*SPECIALS, *CHARACTERS[::-1]])
    encode = PairEncoder(TOKENIZER, 5, whole_word=True, teacher_tokenizer=teacher)
    (item,) = encode(("今天天气", "北京"))
    assert [spell(ids) for ids in item.ids[:2]] == ["今天天", "北京"]
    assert [teacher.decode(ids) for ids in item.ids[2:]] == ["今天天", "北京"]


@pytest.mark.parametrize(
    ("labels", "record", "message"),
    [
        (None, ("一",), "a record must be two texts, got 1 fields"),
        (None, ("一", "二", "三"), "a record must be two texts, got 3 fields"),
        ((), ("一", "二"), "must be two texts and a label, got 2"),
        ((), ("今", "天", "三"), "must be a number, got '三' with '今'"),
        ((), ("今", "天", "nan"), "must be a number, got 'nan'"),
    ],
)
def test_records_that_do_not_fit(labels, record, message):
    with pytest.raises(SourceError, match=message):
        PairEncoder(TOKENIZER, 9, labels=labels)(record)


@pytest.mark.parametrize("encoder", [DocumentEncoder, PairEncoder])
def test_encoders_check_their_length(encoder):
    for length in (2, 9.0, True):
        with pytest.raises(ConfigurationError, match="length must be an integer of at"):
            encoder(TOKENIZER, length)


# === Tokenized corpora ===


def tokenize(folder, records, encode=None, identity=None):
    encode = encode or DocumentEncoder(TOKENIZER, 66)
    return tokenize_corpus(folder / "tokens", identity, records, encode)


def assert_same_items(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        for a, b in zip(one.ids, other.ids, strict=True):
            np.testing.assert_array_equal(a, b)
        assert (one.starts is None) == (other.starts is None)
        for a, b in zip(one.starts or (), other.starts or (), strict=True):
            np.testing.assert_array_equal(a, b)
        assert one.label == other.label


@pytest.mark.parametrize(
    ("encode", "records"),
    [
        (DocumentEncoder(TOKENIZER, 40), documents()),
        (DocumentEncoder(TOKENIZER, 40, whole_word=True), documents()),
        (PairEncoder(TOKENIZER, 20, labels=()), [("今天", "我们去", "0.5")] * 3),
        (
            PairEncoder(TOKENIZER, 9, whole_word=True, teacher_tokenizer=TOKENIZER),
            [("今天天气", "我们"), ("去", "北京玩吧"), ("", "今")],
        ),
    ],
)
def test_items_survive_the_file(tmp_path, encode, records):
    expected = [item for record in records for item in encode(record)]
    corpus = tokenize(tmp_path, records, encode)
    assert_same_items(corpus, expected)
    assert corpus.lengths.tolist() == [sum(map(len, item.ids)) for item in expected]
    assert all(ids.dtype == "int32" for ids in corpus[0].ids)
    assert corpus.ids.dtype == "uint16"


def test_large_vocabularies_take_four_bytes(tmp_path):
    large = RoFormerTokenizer([*SPECIALS, *map(str, range(70_000))])
    corpus = tokenize(tmp_path, [("69999",)], DocumentEncoder(large, 9))
    assert large.decode(corpus[0].ids[0]) == "69999"


def test_a_corpus_is_tokenized_once(tmp_path):
    def unread():
        raise AssertionError
        yield

    first = tokenize(tmp_path, documents(), identity=["a"])
    assert_same_items(tokenize(tmp_path, unread(), identity=["a"]), first)
    smaller = RoFormerTokenizer(TOKENIZER.vocabulary[:-1])
    others = [
        {"identity": ["b"]},
        {"encode": DocumentEncoder(TOKENIZER, 50)},
        {"encode": DocumentEncoder(TOKENIZER, 50, True)},
        {"encode": DocumentEncoder(smaller, 50)},
    ]
    for changes in others:
        with pytest.raises(AssertionError):
            tokenize(tmp_path, unread(), **{"identity": ["a"], **changes})
        # What was there is still there, until another is complete.
        assert len(tokenize(tmp_path, documents(9), **changes)) < len(first)
        assert_same_items(tokenize(tmp_path, documents(), identity=["a"]), first)


@pytest.mark.parametrize("records", [[], [("\u200b\u200b",)]])
def test_a_corpus_without_tokens_is_an_error(tmp_path, records):
    with pytest.raises(SourceError, match="a corpus must hold tokens, got none"):
        tokenize(tmp_path, records)
    assert not list(tmp_path.iterdir())


# === The order of examples ===


@pytest.mark.parametrize("size", [1, 7, 200])
def test_every_item_comes_once_an_epoch(tmp_path, size):
    corpus = tokenize(tmp_path, documents())
    examples = EpochItems(corpus, [3])
    count = len(corpus)
    assert len(examples) == count
    items = [i for n in range(-(-3 * count // size)) for i in examples.batch(n, size)]
    epochs = [spelled(items[n * count : (n + 1) * count]) for n in range(3)]
    assert all(sorted(epoch) == sorted(spelled(corpus)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3
    other = spelled(EpochItems(corpus, [4]).batch(0, count))
    assert other not in epochs and sorted(other) == sorted(epochs[0])
    assert spelled(EpochItems(corpus).batch(0, count)) == spelled(corpus)


@pytest.mark.parametrize("options", [{}, {"packed": 31, "separator": SEP}])
def test_a_batch_follows_from_its_number(tmp_path, options):
    """So any batch can be the first of a resumed training."""
    corpus = tokenize(tmp_path, documents(), DocumentEncoder(TOKENIZER, 40, True))
    whole = EpochItems(corpus, [1], **options)
    batches = [whole.batch(number, 8) for number in range(90)]
    for number in (0, 89, 17, 40):
        again = EpochItems(corpus, [1], **options)
        assert_same_items(again.batch(number, 8), batches[number])


@pytest.mark.parametrize("packed", [1, 5, 64, 4998])
@pytest.mark.parametrize("whole_word", [False, True])
def test_packed_items_are_the_documents_joined(tmp_path, packed, whole_word):
    encode = DocumentEncoder(TOKENIZER, None, whole_word)
    corpus = tokenize(tmp_path, documents(), encode)
    examples = EpochItems(corpus, [2], packed=packed, separator=SEP)
    items = examples.batch(0, len(examples))
    assert {len(item.ids[0]) for item in items} == {packed}
    ids = np.concatenate([item.ids[0] for item in items])
    starts = whole_word and np.concatenate([item.starts[0] for item in items])
    order = EpochItems(corpus, [2]).batch(0, len(corpus))
    expected = np.concatenate([np.append(item.ids[0], SEP) for item in order])
    np.testing.assert_array_equal(ids, expected[: len(ids)])
    assert 0 <= len(expected) - len(ids) < packed
    if whole_word:
        expected = np.concatenate([np.append(item.starts[0], True) for item in order])
        np.testing.assert_array_equal(starts, expected[: len(starts)])
    following = examples.batch(1, len(examples))
    assert spelled(following) != spelled(items)


def test_documents_that_fill_no_item_are_one(tmp_path):
    corpus = tokenize(
        tmp_path, [("今天",), ("北京",)], DocumentEncoder(TOKENIZER, None)
    )
    examples = EpochItems(corpus, packed=100, separator=SEP)
    assert len(examples) == 1
    assert spelled(examples.batch(0, 2)) == ["今天[SEP]北京[SEP]"] * 2


def test_sorted_batches_are_all_rows():
    lengths = np.random.default_rng(0).integers(1, 99, 50)
    batches = sorted_batches(lengths, 8, np.random.default_rng(1))
    assert sorted(map(len, batches)) == [2, *[8] * 6]
    assert sorted(np.concatenate(batches)) == list(range(50))


# === Batches ===


class Sums:
    """An objective whose batches are the lengths of their items and a random number."""

    rows_per_item = 2

    def batch(self, items, rng, number=0):
        lengths = np.array([len(item.ids[0]) for item in items])
        return {"token_ids": lengths}, number, rng.random()


def test_a_loader_makes_the_same_batches_from_any_on(tmp_path):
    corpus = tokenize(tmp_path, documents())
    make = batch_maker(EpochItems(corpus, [1]), Sums(), 8, [7])
    batches = [make(number) for number in range(30)]
    assert all(len(inputs["token_ids"]) == 4 for inputs, *_ in batches)
    for first in (0, 11):
        loader = Loader(make, first, tokens=100)
        loaded = list(itertools.islice(loader, 19))
        for one, other in zip(loaded, batches[first:], strict=False):
            np.testing.assert_array_equal(one[0]["token_ids"], other[0]["token_ids"])
            assert one[1:] == other[1:]
        # Of any batch so far, and of none that was asked for before.
        assert loader.tokens_before(first + 3) == 100 + 3 * 4
        assert loader.tokens_before(first + 19) == 100 + 19 * 4
        loader.close()


def test_a_loader_keeps_what_ended_it():
    broken = SourceError("line 7")

    def make(number):
        raise broken

    loader = Loader(make)
    assert loader.error is None
    with pytest.raises(SourceError):
        next(iter(loader))
    loader.close()
    assert loader.error is broken
