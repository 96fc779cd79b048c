"""`vocab.txt` as bert4keras reads it, and back."""

import pytest
from common import CHECKPOINTS, SHARED, zipped
from hypothesis import given
from hypothesis import strategies as st

from roformer_keras.base.errors import VocabularyError
from roformer_keras.io.vocabulary import read_vocabulary, write_vocabulary


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("[PAD]\n今\n天", ["[PAD]", "今", "天"]),
        ("[PAD]\r\n今\r\n", ["[PAD]", "今"]),
        ("今 12\n天\t3\n", ["今", "天"]),
        ("  今\n\n天\n", ["今", "", "天"]),
        ("今\n　\n", ["今", ""]),
        ("##a\n\u2581b\n", ["##a", "\u2581b"]),
    ],
)
def test_a_token_is_the_first_field_of_its_line(text, tokens):
    assert read_vocabulary(text.encode(), "x") == tokens


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("今天".encode("gb18030"), "must be a UTF-8 text, x.txt is not"),
        (b"", "must hold tokens, x.txt is empty"),
    ],
)
def test_what_is_no_vocabulary(data, message):
    with pytest.raises(VocabularyError, match=message):
        read_vocabulary(data, "x.txt")


@given(st.lists(st.text().map(lambda t: "".join(t.split())), min_size=1))
def test_what_is_written_is_read_back(tokens):
    assert read_vocabulary(write_vocabulary(tokens), "x") == tokens


def test_those_of_the_checkpoints_are_written_byte_for_byte():
    archives = sorted(CHECKPOINTS.glob("*.zip"))
    assert archives
    for archive in archives:
        data = zipped(archive, "vocab.txt")
        assert write_vocabulary(read_vocabulary(data, archive.name)) == data


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared")
def test_the_real_ones():
    for name, size in (("char_12000.txt", 12_000), ("word_50000.txt", 50_000)):
        data = (SHARED / "data" / "vocab" / name).read_bytes()
        tokens = read_vocabulary(data, name)
        assert len(tokens) == len(set(tokens)) == size
        specials = [tokens[i] for i in (0, 100, 101, 102, 103, 104, 105)]
        assert specials == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<S>", "<T>"]
        assert read_vocabulary(write_vocabulary(tokens), name) == tokens
