"""`roformer_keras.bert4keras.tokenizers` with the answers of bert4keras's."""

import pickle

import pytest
from common import ROOT, read_json

from roformer_keras.base.errors import ConfigurationError, SourceError, VocabularyError
from roformer_keras.bert4keras import tokenizers
from tools.reference.snippets import (
    TOKENIZERS,
    VOCABULARY,
    arguments,
    of_tokenizer,
    of_tokenizers,
    plain,
)

GOLDEN = read_json(ROOT / "tests/data/bert4keras/snippets.json")
GOLDEN = GOLDEN["tokenizers"]


def test_answers():
    for options, expected in zip(TOKENIZERS, GOLDEN["each"], strict=True):
        tokenizer = tokenizers.Tokenizer(str(VOCABULARY), **arguments(options))
        assert plain(of_tokenizer(tokenizer)) == expected, options


def test_simplified_vocabulary():
    results = of_tokenizers("roformer_keras.bert4keras")
    assert plain(results["simplified"]) == GOLDEN["simplified"]
    with pytest.raises(VocabularyError, match="startswith must name tokens"):
        tokenizers.load_vocab(VOCABULARY, simplified=True, startswith=["[NO]"])


def test_vocabulary_files(tmp_path):
    path = tmp_path / "vocab.txt"
    tokens = {"[UNK]": 1, "[PAD]": 0, "天": 2}
    tokenizers.save_vocab(path, tokens, encoding="gbk")
    assert tokenizers.load_vocab(path, encoding="gbk") == tokens
    with pytest.raises(VocabularyError, match="must be in utf-8"):
        tokenizers.load_vocab(path)
    # A repeated token has the id of the later line, and so has the next one.
    path.write_text("a\nb x\na\nc\n")
    assert tokenizers.load_vocab(path) == {"a": 2, "b": 1, "c": 2}
    with pytest.raises(SourceError, match="cannot read"):
        tokenizers.load_vocab(tmp_path / "none.txt")


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.Tokenizer(str(VOCABULARY), do_lower_case=True)


def test_places_of_tokens(tokenizer):
    # bert4keras puts the last one at 9, and raises for a token that is absent.
    text = "İstanbul今"
    mapping = tokenizer.rematch(text, tokenizer.tokenize(text))
    assert mapping[-2:] == [[8], []]
    assert [place for some in mapping for place in some] == list(range(9))
    assert tokenizer.rematch("今天", ["[CLS]", "不", "天"]) == [[], [], [1]]
    translated = tokenizers.Tokenizer(
        str(VOCABULARY), do_lower_case=True, token_translate={"天": "地"}
    )
    tokens = translated.tokenize("今天")
    assert tokens == ["[CLS]", "今", "地", "[SEP]"]
    assert translated.rematch("今天", tokens) == [[], [0], [1], []]


def test_ids_and_tokens(tokenizer):
    ids = tokenizer.tokens_to_ids(["[CLS]", "天", "no such token"])
    assert ids[0] == tokenizer._token_start_id
    assert ids[2] == tokenizer._token_unk_id
    assert tokenizer.ids_to_tokens(ids) == ["[CLS]", "天", "[UNK]"]
    assert tokenizer._token_dict["天"] == ids[1]
    assert tokenizer._token_dict_inv[ids[1]] == "天"
    copied = pickle.loads(pickle.dumps(tokenizer))
    assert copied.encode("今天 hello") == tokenizer.encode("今天 hello")


def test_any_dict_is_a_vocabulary():
    tokenizer = tokenizers.Tokenizer({"<s>": 7, "a": 3}, token_start="<s>")
    assert tokenizer._token_start_id == 7
    assert not hasattr(tokenizer, "_token_end_id")
    assert tokenizer.token_to_id("a") == 3
    assert tokenizer.tokenize("a") == ["<s>", "a", "[SEP]"]


def test_kinds_of_characters():
    kind = tokenizers.Tokenizer
    assert kind._is_space("\u3000")
    assert not kind._is_space("a")
    assert kind._is_punctuation("￥") is False
    assert kind._is_punctuation("。")
    assert kind._is_cjk_character("天")
    assert not kind._is_cjk_character("々")
    assert kind._is_control("\u200b")
    assert kind._is_special("[MASK]")
    assert not kind._is_special("[")
    assert kind._is_redundant("##天")
    assert not kind._is_redundant("天")


def test_base_class_is_for_subclasses():
    base = tokenizers.TokenizerBase()
    for call in (
        lambda: base.tokenize("a"),
        lambda: base.token_to_id("a"),
        lambda: base.id_to_token(1),
        lambda: base.decode([1]),
    ):
        with pytest.raises(NotImplementedError):
            call()


# === Long words, and truncation of pairs ===

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##a", "b", "c", "d", "e"]
IDS = {token: number for number, token in enumerate(TOKENS)}


def test_words_up_to_word_maxlen_are_split():
    for word_maxlen, count in ((200, 1), (299, 1), (300, 300), (500, 300)):
        tokenizer = tokenizers.Tokenizer(IDS, word_maxlen=word_maxlen)
        assert len(tokenizer.tokenize("a" * 300)) == count + 2


def test_each_text_has_its_own_index_of_truncation():
    tokenizer = tokenizers.Tokenizer(IDS)
    for indices in ([1, -2], (1, -2)):
        ids, segments = tokenizer.encode(
            "a b c", "c d e", maxlen=7, truncate_from=indices
        )
        tokens = " ".join(tokenizer.ids_to_tokens(ids))
        assert tokens == "[CLS] b c [SEP] c d [SEP]"
        assert segments == [0] * 4 + [1] * 3
    with pytest.raises(ConfigurationError, match="truncate_from must be 'right'"):
        tokenizer.encode("a b c", maxlen=3, truncate_from="middle")
