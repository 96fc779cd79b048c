"""Texts or ids in, texts or ids out, with a decoder of NumPy: nothing is compiled."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
from common import GPT
from plain_decoding import FakeDecoder

from roformer_keras import RoFormerTokenizer
from roformer_keras.base.errors import ConfigurationError, VocabularyError
from roformer_keras.generation import generate as writing
from roformer_keras.generation.generate import Scored
from roformer_keras.generation.prompts import DefaultLengths, as_prompt

SHORT, LONG = (2, 7, 9), (2, 30, 8, 0, 11, 200, 41)
TOKENIZER = RoFormerTokenizer.from_preset(GPT)


class Writer:
    """A model without layers: causal, or of two segments as RoFormer-Sim."""

    generate = writing.generate
    stream = writing.stream
    default_lengths = DefaultLengths()

    def __init__(self, attention="causal", tokenizer=TOKENIZER):
        self.is_continuation = attention == "causal"
        self.config = SimpleNamespace(
            attention=attention, vocabulary_size=TOKENIZER.vocabulary_size
        )
        self.tokenizer = tokenizer
        self.decoder = FakeDecoder(vocabulary_size=TOKENIZER.vocabulary_size)

    def text_tokenizer(self):
        if self.tokenizer is None:
            raise VocabularyError("set model.tokenizer")
        return self.tokenizer

    def _decoder(self, engine="keras"):
        return self.decoder


GPT_LIKE, SIM_LIKE = Writer(), Writer("unilm")


def test_what_is_returned():
    options = {"max_length": 20, "seed": 0}
    text = GPT_LIKE.generate("今天", **options)
    assert isinstance(text, str)
    assert GPT_LIKE.generate(["今天"], **options) == [text]
    assert GPT_LIKE.generate("今天", num_return_sequences=1, **options) == [text]
    assert GPT_LIKE.generate(["今天"], num_return_sequences=1, **options) == [[text]]
    assert GPT_LIKE.generate([], **options) == []
    assert GPT_LIKE.generate([], num_return_sequences=3, method="beam") == []
    ids = GPT_LIKE.generate(list(SHORT), **options)
    assert all(type(i) is int for i in ids)
    for prompts in (SHORT, np.array(SHORT), np.array(SHORT, "uint16"), iter(SHORT)):
        assert GPT_LIKE.generate(prompts, **options) == ids
    for prompts in ([SHORT], np.array([SHORT]), [np.array(SHORT)]):
        assert GPT_LIKE.generate(prompts, **options) == [ids]
    scored = GPT_LIKE.generate(SHORT, return_scores=True, **options)
    assert isinstance(scored, Scored)
    assert scored.output == ids
    assert type(scored.score) is float
    options.update(num_return_sequences=2, return_scores=True)
    pair = GPT_LIKE.generate("今天", **options)
    assert [type(one) for one in pair] == [Scored, Scored]


def test_seeds():
    options = {"max_length": 20, "num_return_sequences": 2}
    first = GPT_LIKE.generate(SHORT, seed=1, **options)
    assert GPT_LIKE.generate(SHORT, seed=1, **options) == first
    assert GPT_LIKE.generate(SHORT, seed=np.int64(1), **options) == first
    assert GPT_LIKE.generate(SHORT, seed=2, **options) != first
    # Without one, each call draws its own.
    assert GPT_LIKE.generate(SHORT, **options) != GPT_LIKE.generate(SHORT, **options)
    # Texts that follow do not change those before, nor does the size of a batch.
    prompts = [SHORT, LONG, SHORT]
    both = GPT_LIKE.generate(prompts, seed=1, **options)
    assert both[0] == first
    assert both[2] != first
    assert GPT_LIKE.generate(prompts, seed=1, batch_size=1, **options) == both
    second = GPT_LIKE.generate(prompts[1:], seed=1, first_number=1, **options)
    assert second == both[1:]


@pytest.mark.parametrize("method", ["sample", "greedy", "beam"])
def test_an_error_of_on_step_ends_the_work(method):
    options = {"max_length": 60, "method": method, "stop_tokens": ()}
    options |= {"num_beams": 2} if method == "beam" else {}
    steps, limit = [], 10**6

    def on_step():
        steps.append(len(steps))
        if len(steps) == limit:
            raise KeyError

    GPT_LIKE.generate(SHORT, on_step=on_step, **options)
    assert len(steps) > 2
    steps, limit = [], 2
    with pytest.raises(KeyError):
        GPT_LIKE.generate(SHORT, on_step=on_step, **options)
    assert len(steps) == 2


def test_lengths():
    """`max_length` counts the prompt, `max_new_tokens` does not."""
    options = {"stop_tokens": (), "seed": 0}
    for model in (GPT_LIKE, SIM_LIKE):
        texts = model.generate([SHORT, (2,)], max_length=20, **options)
        assert [len(text) for text in texts] == [17, 19]
        texts = model.generate([SHORT, (2,)], max_new_tokens=20, **options)
        assert [len(text) for text in texts] == [20, 20]
    prompt = functools.partial(as_prompt, GPT_LIKE)
    assert prompt(SHORT).max_new_tokens == 253
    assert prompt(SHORT, 20, 10).min_new_tokens == 7
    assert prompt(SHORT, 20, 2).min_new_tokens == 0
    assert prompt(SHORT, 20, min_new_tokens=10).min_new_tokens == 10
    pieces = GPT_LIKE.stream("今天", max_new_tokens=20, **options)
    assert "".join(pieces) == GPT_LIKE.generate("今天", max_new_tokens=20, **options)


def test_a_text_is_its_ids():
    """Without [SEP] where it is continued."""
    options = {"max_length": 20, "seed": 0}
    for model, count in ((GPT_LIKE, 5), (SIM_LIKE, 6)):
        ids = TOKENIZER.encode("今天天气")[0][:count]
        expected = TOKENIZER.decode(model.generate(ids, **options))
        assert model.generate("今天天气", **options) == expected


def test_before_min_length_sep_is_not_written():
    options = {"num_return_sequences": 8, "max_length": 60, "seed": 2}
    sep = TOKENIZER.sep_id
    free = GPT_LIKE.generate(SHORT, stop_tokens=[sep, *range(20, 120)], **options)
    texts = GPT_LIKE.generate(
        SHORT, stop_tokens=[sep, *range(20, 120)], min_length=3 + 12, **options
    )
    assert min(map(len, free)) < 12 <= min(map(len, texts))
    assert all(sep not in text[:11] for text in texts)


def test_stop_tokens_by_name_and_by_id():
    options = {"num_return_sequences": 4, "max_length": 40, "seed": 0}
    names = ["的", "。", "[SEP]"]
    ids = [TOKENIZER.token_to_id(name) for name in names]
    expected = GPT_LIKE.generate(SHORT, stop_tokens=names, **options)
    assert GPT_LIKE.generate(SHORT, stop_tokens=ids, **options) == expected
    assert GPT_LIKE.generate(SHORT, stop_tokens=np.array(ids), **options) == expected
    # A stop token by name adds [SEP]; ids are used as they are.
    by_name = GPT_LIKE.generate(SHORT, stop_tokens="。", **options)
    assert by_name == GPT_LIKE.generate(SHORT, stop_tokens=["。"], **options)
    assert by_name == GPT_LIKE.generate(SHORT, stop_tokens=ids[1:], **options)
    for text in expected:
        assert set(text[:-1]).isdisjoint(ids)
        assert len(text) == 37 or text[-1] in ids
    many = GPT_LIKE.generate(SHORT, stop_tokens=range(300), **options)
    assert all(text[-1] < 300 for text in many)


@pytest.mark.parametrize("method", ["sample", "greedy"])
@pytest.mark.parametrize("model", [GPT_LIKE, SIM_LIKE])
def test_a_stream_is_what_generate_returns(model, method):
    options = {"method": method, "max_length": 26, "stop_tokens": ["。"], "seed": 6}
    pieces = list(model.stream("今天天气", min_length=8, **options))
    assert "".join(pieces) == model.generate("今天天气", min_length=8, **options)
    assert len(pieces) > 3


def test_a_stream_says_at_once_what_is_wrong():
    with pytest.raises(ConfigurationError, match="must hold text"):
        GPT_LIKE.stream("")
    with pytest.raises(ConfigurationError, match="'beam' is not known before its end"):
        GPT_LIKE.stream("今天", method="beam")
    with pytest.raises(ConfigurationError, match="must be a str, got \\["):
        GPT_LIKE.stream([2, 3])


def test_progress_counts_texts(capsys):
    options = {"num_return_sequences": 2, "max_length": 26}
    for verbose in (0, "auto"):
        GPT_LIKE.generate([SHORT, LONG], verbose=verbose, **options)
    assert capsys.readouterr() == ("", "")
    GPT_LIKE.generate([SHORT, LONG], verbose=1, **options)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "4/4" in shown.err
    GPT_LIKE.generate([SHORT, LONG], method="beam", verbose=1, **options)
    assert "8/8" in capsys.readouterr().err


def test_ids_need_no_tokenizer_and_texts_say_so():
    model = Writer(tokenizer=None)
    assert len(model.generate([2, 3], max_length=3, stop_tokens=(), seed=0)) == 1
    assert len(model.generate([2, 3], max_length=3, stop_tokens=[259], seed=0)) == 1
    for call in (
        lambda: model.generate("今天"),
        lambda: model.generate([2, 3]),
        lambda: model.generate([2, 3], stop_tokens="。"),
        lambda: model.stream("今天"),
    ):
        with pytest.raises(VocabularyError, match=r"set model\.tokenizer"):
            call()


REFUSED = [
    ("", {}, "must hold text, got ''"),
    (" \n", {}, "must hold text"),
    (["今天", ""], {}, "must hold text"),
    ("☃☃", {}, "must have tokens of the vocabulary"),
    ("今天" * 8, {"max_length": 17}, "shorter than max_length=17 .* got 17"),
    ([2] * 5, {"max_length": 5}, "shorter than max_length=5 .* got 5"),
    ([[]], {}, "at least one id"),
    ([2, 669], {}, "from 0 to 668, got 669"),
    ([[2, -1]], {}, "from 0 to 668, got -1"),
    ([[2, True]], {}, "from 0 to 668, got True"),
    ([[2, 1.5]], {}, "from 0 to 668, got 1.5"),
    (["今天", [2, 3]], {}, "not some of both"),
    (["今天", 2], {}, "not some of both"),
    ([2, [3]], {}, "not some of both"),
    ([1.5, 2.0], {}, "must be texts or lists of ids"),
    (None, {}, "must be texts or ids, got None"),
    ([None], {}, r"lists of ids, .* got \[None\]"),
    (5, {}, "must be texts or ids, got 5"),
    (b"ab", {}, "must be texts or ids"),
    ([b"ab"], {}, "must be texts or lists of ids"),
    ("今", {"first_number": -1}, "first_number must .* got -1"),
    ("今", {"first_number": [0, 1]}, "one for each of 1 prompts, got 2"),
    ("今", {"batch_size": 0}, "batch_size must .* got 0"),
    ("今", {"max_length": 0}, "max_length must .* got 0"),
    ("今", {"max_length": 9.5}, "max_length must .* got 9.5"),
    ("今", {"min_length": -1}, "min_length must .* got -1"),
    ("今", {"min_length": 9, "max_length": 8}, "from 0 to 8, got 9"),
    ("今", {"max_new_tokens": 0}, "max_new_tokens must .* got 0"),
    ("今", {"min_new_tokens": 9, "max_new_tokens": 8}, "from 0 to 8, got 9"),
    ("今", {"min_new_tokens": 9, "max_length": 8}, "9 new tokens do not fit in 6"),
    ("今", {"min_length": 300}, "298 new tokens do not fit in 254"),
    ("今", {"max_new_tokens": 8, "max_length": 8}, "got both"),
    ("今", {"stop_tokens": [669]}, "from 0 to 668, got 669"),
    ("今", {"stop_tokens": "今天"}, "in the vocabulary, got '今天'"),
    ("今", {"stop_tokens": 5.0}, "token ids must be integers .* got 5.0"),
    ("今", {"stop_tokens": [[1]]}, r"token ids must be integers .* got \[1\]"),
    ("今", {"stop_tokens": True}, "token ids must be integers .* got True"),
    ("今", {"min_length": True}, "min_length must be an integer .* got True"),
    ({"今": 1}, {}, "prompts must be texts or ids, got a dict"),
]


def test_what_is_refused():
    for prompts, options, message in REFUSED:
        with pytest.raises((ConfigurationError, VocabularyError), match=message):
            GPT_LIKE.generate(prompts, **options)
