"""Token ids from records: encoders, packing, worker processes, and going on."""

import importlib
import itertools
import json
import os
import pickle
import random
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from common import run
from hypothesis import given
from hypothesis import strategies as st

import roformer_keras.data.encoders as examples_module
from roformer_keras.data.corpus import Corpus, CorpusSource
from roformer_keras.data.encoders import (
    DocumentEncoder,
    Examples,
    LabelledPairEncoder,
    PairEncoder,
    split_sentences,
)
from roformer_keras.errors import ConfigurationError, SourceError
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
    """Texts of one to some hundred characters, each with its number."""
    draw = random.Random(seed)
    return [
        f"第{number}句：" + "".join(draw.choices(CHARACTERS, k=draw.randrange(200)))
        for number in range(count)
    ]


def corpus_of(tmp_path, texts=None, **options):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(texts or documents()), encoding="utf-8")
    return Corpus(CorpusSource(files=(str(path),)), **{"buffer_size": 10, **options})


def take(items, count):
    return list(itertools.islice(items, count))


def plain(items):
    """Items as they can be compared, with the types of their arrays."""
    return [
        [
            (str(part.dtype), part.tolist()) if isinstance(part, np.ndarray) else part
            for part in item
        ]
        for item in items
    ]


def spelled(items):
    return ["".join(map(TOKENIZER.id_to_token, item[0])) for item in items]


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
    encode = DocumentEncoder(TOKENIZER, 8)
    record = ("今天天气不错。我们去玩吧！", "", "北京")
    items = encode(record)
    assert spelled(items) == ["今天天气不错", "。", "我们去玩吧！", "北京"]
    assert all(ids.dtype == "int32" and starts is None for ids, starts in items)
    assert spelled(encode.documents(record)) == ["今天天气不错。我们去玩吧！", "北京"]


@pytest.mark.parametrize("whole_word", [False, True])
def test_items_are_no_longer_than_asked(whole_word):
    """Also where a character becomes three tokens."""
    items = DocumentEncoder(TOKENIZER, 7, whole_word)(("한今" * 6 + "今天气" * 5,))
    lengths = [len(ids) for ids, _ in items]
    assert lengths[:2] == [5, 5]
    assert max(lengths) == 5
    assert sum(lengths) == 39
    if whole_word:
        assert lengths == [len(starts) for _, starts in items]


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
    ((ids, starts),) = DocumentEncoder(TOKENIZER, 99, whole_word=True)((text,))
    assert starts.dtype == bool
    assert starts.shape == ids.shape
    found = []
    for index, is_start in zip(ids, starts, strict=True):
        if is_start:
            found.append("")
        found[-1] += TOKENIZER.id_to_token(index)
    assert found == words


@given(st.text(st.sampled_from(f"{CHARACTERS} \n"), min_size=1, max_size=20))
def test_word_starts_of_plain_text_are_those_of_any(text):
    """The quick way for characters and spaces gives what the general way does."""
    encode = DocumentEncoder(TOKENIZER, 99, whole_word=True).documents
    quick = [starts.tolist() for _, starts in encode((text,))]
    ((_, general),) = encode((f"{text} AA",))
    assert general.tolist() == [*itertools.chain.from_iterable(quick), True, False]


def test_pair_encoder():
    record = ("今天天气不错", "北京")
    assert plain(PairEncoder(TOKENIZER, 6)(record)) == plain(
        [(np.int32([5, 6, 6, 7]), np.int32([12 + 1, 14]), None, None)]
    )
    ((a, b, a_starts, b_starts),) = PairEncoder(TOKENIZER, 7, whole_word=True)(record)
    assert len(a) == 5
    assert a_starts.tolist() == [True, False, False, False, True]
    assert (len(b), b_starts.tolist()) == (2, [True, False])
    assert PairEncoder(TOKENIZER, 7, whole_word=True)(("今天", "")) == []
    assert PairEncoder(TOKENIZER, 7)(("\u200b", "今天")) == []


def test_labelled_pair_encoder():
    encode = LabelledPairEncoder(TOKENIZER, 5)
    ((a, b, label),) = encode(("今天天气", "北京", "4.5"))
    assert (len(a), len(b), label) == (3, 2, 4.5)
    assert encode(("今天", "", "1")) == []


@pytest.mark.parametrize(
    ("encoder", "record", "message"),
    [
        (PairEncoder, ("一",), "a record must be two texts, got 1 fields"),
        (PairEncoder, ("一", "二", "三"), "a record must be two texts, got 3 fields"),
        (LabelledPairEncoder, ("一", "二"), "must be two texts and a label, got 2"),
        (
            LabelledPairEncoder,
            ("一", "二", "三"),
            "must be a number, got '三' with '一'",
        ),
        (LabelledPairEncoder, ("一", "二", "nan"), "must be a number, got 'nan'"),
    ],
)
def test_records_that_do_not_fit(encoder, record, message):
    with pytest.raises(SourceError, match=message):
        encoder(TOKENIZER, 9)(record)


@pytest.mark.parametrize(
    "encoder",
    [DocumentEncoder, PairEncoder, LabelledPairEncoder],
    ids=lambda e: e.__name__,
)
def test_encoders_are_pickled_and_check_their_length(encoder):
    encode = encoder(TOKENIZER, 9)
    record = ("今天天气不错。我们", "北京", "1")[: 2 + (encoder is LabelledPairEncoder)]
    again = pickle.loads(pickle.dumps(encode))
    assert plain(again(record)) == plain(encode(record))
    for length in (2, 9.0, True):
        with pytest.raises(ConfigurationError, match="length must be an integer of at"):
            encoder(TOKENIZER, length)


# === Items ===


def test_items_are_those_of_the_records(tmp_path):
    corpus, again = (corpus_of(tmp_path) for _ in range(2))
    encode = DocumentEncoder(TOKENIZER, 66)
    items = take(Examples(corpus, encode), 200)
    expected = take(itertools.chain.from_iterable(map(encode, again)), 200)
    assert plain(items) == plain(expected)


@pytest.mark.parametrize("length", [3, 7, 66, 5000])
def test_packed_items(tmp_path, length):
    """Every token of the documents, in order, with [SEP] between any two of them."""
    corpus, again = (corpus_of(tmp_path) for _ in range(2))
    examples = Examples(corpus, DocumentEncoder(TOKENIZER, 9), packed_length=length)
    items = take(examples, 40_000 // length)
    assert {len(ids) for ids, _ in items} == {length - 2}
    assert all(ids[0] != SEP for ids, _ in items)
    packed = np.concatenate([ids for ids, _ in items]).tolist()
    expected = []
    for (text,) in again:
        # A [SEP] that would begin an item is left out.
        if expected and len(expected) % (length - 2):
            expected.append(SEP)
        expected += TOKENIZER.encode(text)[0][1:-1]
        if len(expected) >= len(packed):
            break
    assert packed == expected[: len(packed)]


def test_packed_words(tmp_path):
    examples = Examples(
        corpus_of(tmp_path, ["今天不错，我们", "北京2024"], buffer_size=1),
        DocumentEncoder(TOKENIZER, 9, whole_word=True),
        packed_length=19,
    )
    ids, starts = next(examples)
    tokens = [TOKENIZER.id_to_token(index) for index in ids]
    pairs = zip(tokens, starts, strict=True)
    shown = " ".join(token if start else f"~{token}" for token, start in pairs)
    first, second = "今 ~天 不 ~错 ， 我 ~们", "北 ~京 2 ~##0 ~##2 ~##4"
    assert shown.startswith(
        (f"{first} [SEP] {second} [SEP]", f"{second} [SEP] {first} [SEP]")
    )


def test_once(tmp_path):
    corpus = corpus_of(tmp_path)
    encode = DocumentEncoder(TOKENIZER, 66)
    examples = Examples(corpus, encode)
    take(examples, 50)
    state = examples.state()
    expected = [item for record in corpus.once() for item in encode(record)]
    assert plain(examples.once()) == plain(expected)
    assert examples.state() == state
    packed = Examples(corpus, encode, packed_length=66)
    items = list(packed.once())
    assert {len(ids) for ids, _ in items[:-1]} == {64}
    assert items[-1][0][-1] != SEP
    texts = "".join(spelled(items)).replace("[SEP]", "").replace("##", "")
    assert texts == "".join(documents())


def test_a_document_without_tokens_is_none(tmp_path):
    texts = ["今天", "\u200b", "北京"]
    examples = Examples(
        corpus_of(tmp_path, texts), DocumentEncoder(TOKENIZER, 9), packed_length=12
    )
    assert spelled(examples.once()) == ["今天[SEP]北京"]


@pytest.mark.parametrize("packed_length", [None, 2000])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_corpus_without_tokens_is_an_error(tmp_path, packed_length, workers):
    corpus = corpus_of(tmp_path, ["\u200b\u200b"])
    encode = DocumentEncoder(TOKENIZER, 9)
    examples = Examples(corpus, encode, packed_length=packed_length, workers=workers)
    with pytest.raises(SourceError, match="a corpus must hold tokens, got none in epo"):
        next(examples)
    examples.close()


def test_an_item_may_need_many_epochs(tmp_path):
    """Long words are one token each, so that a chunk of them fills no item."""
    corpus = corpus_of(tmp_path, ["x" * 199])
    examples = Examples(corpus, DocumentEncoder(TOKENIZER, 9), packed_length=2000)
    assert len(next(examples)[0]) == 1998


# === Going on ===


@pytest.fixture
def small_chunks(monkeypatch):
    """So that a few items come of several chunks of records."""
    monkeypatch.setattr(examples_module, "_CHUNK_CHARACTERS", 3000)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("whole_word", [False, True])
@pytest.mark.parametrize("packed_length", [None, 40])
def test_goes_on_with_the_same_items(tmp_path, packed_length, whole_word):
    texts = documents(200)

    def examples():
        return Examples(
            corpus_of(tmp_path, texts, buffer_size=90),
            DocumentEncoder(TOKENIZER, 40, whole_word),
            packed_length=packed_length,
        )

    first = examples()
    items, states = [], []
    for _ in range(1300):
        states.append(json.dumps(first.state()))
        items.append(next(first))
    assert len({json.dumps(json.loads(state)["corpus"]) for state in states}) > 10
    used = examples()
    for index in [0, 1, *range(100, 1240, 97)]:
        for again in (examples(), used):
            again.restore(json.loads(states[index]))
            assert json.dumps(again.state()) == states[index]
            assert plain(take(again, 60)) == plain(items[index : index + 60])


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("packed_length", "whole_word", "counts"),
    [(None, False, (1, 2)), (40, False, (1, 2, 3)), (40, True, (1,))],
)
def test_workers_change_nothing(tmp_path, packed_length, whole_word, counts):
    """Neither the items nor the states, and a state goes from any number to any."""
    texts = documents(200)

    def examples(workers):
        return Examples(
            corpus_of(tmp_path, texts, buffer_size=90),
            DocumentEncoder(TOKENIZER, 40, whole_word),
            packed_length=packed_length,
            workers=workers,
        )

    alone, *others = (examples(workers) for workers in (0, *counts))
    items, states = [], []
    for _ in range(1300):
        states.append(alone.state())
        items.append(next(alone))
    for other in others:
        for index in (0, 350, 700):
            other.restore(states[index])
            assert plain(take(other, 500)) == plain(items[index : index + 500])
            assert other.state() == states[index + 500]
        alone.restore(other.state())
        assert plain(take(alone, 100)) == plain(items[1200:1300])
        other.close()


def test_a_state_is_of_one_length(tmp_path):
    encode = DocumentEncoder(TOKENIZER, 40)
    state = Examples(corpus_of(tmp_path), encode, packed_length=40).state()
    for packed_length in (None, 41):
        again = Examples(corpus_of(tmp_path), encode, packed_length=packed_length)
        with pytest.raises(ConfigurationError, match="the state has packed_length=40"):
            again.restore(state)


def test_bad_arguments(tmp_path):
    corpus = corpus_of(tmp_path)
    encode = DocumentEncoder(TOKENIZER, 40)
    for message, options in (
        ("workers must be an integer of at least 0, got -1", {"workers": -1}),
        ("workers must be an integer of at least 0, got True", {"workers": True}),
        ("packed_length must be an integer of at least 3", {"packed_length": 2}),
    ):
        with pytest.raises(ConfigurationError, match=message):
            Examples(corpus, encode, **options)
    with pytest.raises(ConfigurationError, match="needs a DocumentEncoder, got Pair"):
        Examples(corpus, PairEncoder(TOKENIZER, 9), packed_length=9)


# === Worker processes ===

ENCODERS = """
    import os, sys

    def of_worker(record):
        return [(os.getpid(), "keras" in sys.modules, "tensorflow" in sys.modules)]

    def printing(record):
        print(record)
        return [record]

    def dying(record):
        os._exit(7)
"""


@pytest.fixture
def encoders(tmp_path, monkeypatch):
    """A module that a worker can import too."""
    (tmp_path / "own_encoders.py").write_text(textwrap.dedent(ENCODERS))
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("own_encoders")
    del sys.modules["own_encoders"]


def test_an_error_in_a_worker_is_raised_as_itself(tmp_path):
    encode = PairEncoder(TOKENIZER, 9)
    with (
        closing(Examples(corpus_of(tmp_path, ["一"]), encode, workers=2)) as examples,
        pytest.raises(SourceError, match="a record must be two texts, got 1"),
    ):
        next(examples)


def test_workers_are_small_and_end(tmp_path, encoders):
    """They import no Keras, several share the work, and none is left behind."""
    corpus = corpus_of(tmp_path, documents(2000))
    examples = Examples(corpus, encoders.of_worker, workers=2)
    seen = {next(examples) for _ in range(8000)}
    numbers = {number for number, *_ in seen}
    assert len(numbers) == 2
    assert os.getpid() not in numbers
    assert {imported for _, *imported in map(tuple, seen) for imported in imported} == {
        False
    }
    examples.close()
    assert not any(map(is_running, numbers))


def test_workers_end_with_the_examples(tmp_path, encoders):
    examples = Examples(corpus_of(tmp_path), encoders.of_worker, workers=1)
    number, *_ = next(examples)
    assert is_running(number)
    del examples
    assert not is_running(number)


def test_a_worker_may_print(tmp_path, encoders, capfd):
    examples = Examples(corpus_of(tmp_path, ["今天"]), encoders.printing, workers=1)
    assert next(examples) == ("今天",)
    examples.close()
    assert "今天" in capfd.readouterr().err


def test_a_worker_that_is_killed_is_an_error(tmp_path, encoders):
    with (
        closing(Examples(corpus_of(tmp_path), encoders.dying, workers=1)) as examples,
        pytest.raises(SourceError, match="ended with code 7; if memory is short"),
    ):
        next(examples)


def test_workers_end_when_their_parent_is_killed(tmp_path, encoders):
    """And a script needs no `if __name__ == "__main__"` to have workers."""
    corpus_of(tmp_path)
    process = run(
        """
        import sys, time
        sys.path.insert(0, sys.argv[1])
        import own_encoders
        from roformer_keras.data.corpus import Corpus, CorpusSource
        from roformer_keras.data.encoders import Examples
        corpus = Corpus(CorpusSource(files=(f"{sys.argv[1]}/corpus.txt",)))
        examples = Examples(corpus, own_encoders.of_worker, workers=1)
        print(next(examples)[0], flush=True)
        time.sleep(60)
        """,
        tmp_path,
    )
    number = int(process.stdout.readline())
    assert is_running(number)
    process.kill()
    process.communicate()
    limit = time.monotonic() + 10
    while is_running(number):
        assert time.monotonic() < limit
        time.sleep(0.02)


def is_running(number):
    """Whether a process exists, other than as an entry that nobody has waited for."""
    try:
        status = Path(f"/proc/{number}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
