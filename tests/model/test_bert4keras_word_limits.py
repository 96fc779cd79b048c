"""Long words and truncation of pairs, as bert4keras's `Tokenizer` has them."""

import pytest

from roformer_keras.bert4keras.tokenizers import Tokenizer
from roformer_keras.errors import ConfigurationError

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##a", "b", "c", "d", "e"]
IDS = {token: place for place, token in enumerate(TOKENS)}


@pytest.mark.parametrize(
    ("word_maxlen", "count"), [(200, 1), (299, 1), (300, 300), (500, 300)]
)
def test_words_up_to_word_maxlen_are_split(word_maxlen, count):
    tokens = Tokenizer(IDS, word_maxlen=word_maxlen).tokenize("a" * 300)
    assert len(tokens) == count + 2


@pytest.mark.parametrize("kind", [list, tuple])
def test_each_text_has_its_own_index_of_truncation(kind):
    indices = kind([1, -2])
    ids, segments = Tokenizer(IDS).encode(
        "a b c", "c d e", maxlen=7, truncate_from=indices
    )
    assert Tokenizer(IDS).ids_to_tokens(ids) == [
        *("[CLS]", "b", "c", "[SEP]"),
        *("c", "d", "[SEP]"),
    ]
    assert segments == [0] * 4 + [1] * 3


def test_unknown_truncation_is_refused():
    with pytest.raises(ConfigurationError, match="truncate_from must be 'right'"):
        Tokenizer(IDS).encode("a b c", maxlen=3, truncate_from="middle")
