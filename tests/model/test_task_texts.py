"""Texts of any container to rows, and rows to batches: without a model."""

import numpy as np
import pytest
from common import CHARACTER

from roformer_keras import RoFormerTokenizer
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.data.batches import TextBatches
from roformer_keras.tables.texts import as_texts
from roformer_keras.text.rows import Rows

PAIRS = [("甲", "乙"), ("丙", "丁")]


class Series:
    """The interface of pandas' containers."""

    def __init__(self, values):
        self._values = values

    def to_numpy(self):
        return np.array(self._values, object)


def test_texts_in_any_container():
    for texts, expected in (
        (["甲", "乙"], [("甲",), ("乙",)]),
        (("甲", "乙"), [("甲",), ("乙",)]),
        (np.array(["甲", "乙"]), [("甲",), ("乙",)]),
        (Series(["甲", "乙"]), [("甲",), ("乙",)]),
        (Series([["甲"], ["乙"]]), [("甲",), ("乙",)]),
        (PAIRS, PAIRS),
        ([["甲", "乙"], ["丙", "丁"]], PAIRS),
        (np.array(PAIRS), PAIRS),
        (Series(PAIRS), PAIRS),
        ((["甲", "丙"], ["乙", "丁"]), PAIRS),
        ((np.array(["甲", "丙"]), Series(["乙", "丁"]).to_numpy()), PAIRS),
        ((text for text in ["甲"]), [("甲",)]),
    ):
        assert as_texts(texts) == expected
    assert as_texts([("甲", "乙", "丙")], (3,)) == [("甲", "乙", "丙")]


def test_what_is_no_text_is_named():
    for texts, message in (
        ("甲", "must be a list of str, got one"),
        ([], "at least one text, got none"),
        ({"text": ["甲"]}, "got a dict of 'text'"),
        (["甲", ""], "that is not empty, got '' in row 1"),
        (["甲", " \n"], "in row 1: leave it out"),
        (["甲", None], "that is not empty, got None in row 1"),
        (["甲", float("nan")], "that is not empty, got nan in row 1"),
        ([1, 2], "that is not empty, got 1 in row 0"),
        (["甲", ("乙", "丙")], "as many texts as the first, 1; row 1 has 2"),
        ([("甲", "乙", "丙")], "must have 1 or 2 texts, got 3"),
        ([("甲", 3)], "that is not empty, got 3 in row 0"),
        ((["甲"], ["乙", "丙"]), "lists of one length, got 1, 2"),
        (None, "must be a list or another container, got None"),
        ((None,), "must be of str, or of lists of one length, got None"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            as_texts(texts)
    # A task says how many texts a row has.
    with pytest.raises(ConfigurationError, match="must have 1 text, got 2"):
        as_texts(PAIRS, (1,))


@pytest.mark.parametrize("pairs", [False, True])
def test_rows_are_what_the_tokenizer_gives(pairs):
    tokenizer = RoFormerTokenizer.from_preset(CHARACTER)
    first = ["今天天气不错", "你", "我们在北京学习语言", "她在上海"]
    second = ["天气真好", "他们", "不", "我也在上海工作"] if pairs else None
    texts = as_texts((first, second) if pairs else first)
    rows = Rows(tokenizer, texts, max_length=9)
    assert len(rows) == 4
    assert list(rows.lengths) == [
        len(tokenizer.encode(*row, max_length=9)[0]) for row in texts
    ]
    numbers = np.array([2, 0, 2])
    batch = rows.batch(numbers)
    expected = tokenizer(
        [first[n] for n in numbers],
        [second[n] for n in numbers] if pairs else None,
        max_length=9,
    )
    for name in ("token_ids", "segment_ids"):
        np.testing.assert_array_equal(batch[name], expected[name])
        assert batch[name].dtype == "int32"
    np.testing.assert_array_equal(rows.ids(1), tokenizer.encode(*texts[1])[0])


LENGTHS = np.random.default_rng(0).integers(3, 200, 1000)


def batches(**options):
    return TextBatches(LENGTHS, lambda numbers: numbers, 16, **options)


def test_each_row_comes_once_an_epoch_beside_others_of_its_length():
    shuffled = batches(shuffle=True, seed=3)
    assert len(shuffled) == 63
    rows = [shuffled[number] for number in range(len(shuffled))]
    assert sorted(np.concatenate(rows)) == list(range(1000))
    np.testing.assert_array_equal(shuffled.order, np.concatenate(rows))
    padded = sum(len(row) * LENGTHS[row].max() for row in rows)
    assert padded < 1.2 * LENGTHS.sum()
    # Short and long batches are mixed.
    means = [LENGTHS[row].mean() for row in rows]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.5


def test_epochs_differ_and_follow_from_the_seed():
    shuffled, again, other = (batches(shuffle=True, seed=seed) for seed in (3, 3, 4))
    first = shuffled.order
    np.testing.assert_array_equal(first, again.order)
    assert not np.array_equal(first, other.order)
    shuffled.on_epoch_end()
    assert not np.array_equal(first, shuffled.order)
    # Resumed at a later epoch, the order equals the one of an uninterrupted run.
    np.testing.assert_array_equal(
        shuffled.order, batches(shuffle=True, seed=3, epoch=1).order
    )
    # Neighbours of one epoch are not neighbours of the next.
    together = {frozenset(again[number]) for number in range(len(again))}
    assert not together & {
        frozenset(shuffled[number]) for number in range(len(shuffled))
    }


def test_without_shuffling_rows_come_by_length():
    in_order = batches()
    assert list(LENGTHS[in_order.order]) == sorted(LENGTHS)
    before = in_order.order
    in_order.on_epoch_end()
    np.testing.assert_array_equal(before, in_order.order)
