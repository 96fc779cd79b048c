"""Labelled files of a fine-tuning: names of classes, mistakes, and what is held out."""

import numpy as np
import pytest
from common import to_json_lines, write_file
from finetuning_cases import BAD, GOOD, REVIEWS, lines

from roformer_keras.base.errors import ConfigurationError, SourceError
from roformer_keras.tasks.finetuning_settings import FinetuningSettings
from roformer_keras.tasks.labelled_files import Examples, read_files
from roformer_keras.training.finetuning_data import count_leaks, draw_groups, read_data
from roformer_keras.training.results import format_page

CLASSIFY, TAG = "text-classification", "token-classification"


def data_of(folder, content, task=CLASSIFY, name="a.tsv", **changes):
    """The data of a file with this content."""
    train = str(write_file(folder / name, content))
    return read_data(FinetuningSettings(task=task, train=train, **changes))


TEXTS = [f"第{number}个人" for number in range(21)]
SWAPPED = lines(*((n % 2, text) for n, text in enumerate(TEXTS)))


@pytest.mark.parametrize(
    ("task", "name", "content", "message"),
    [
        # A label that no model is needed to refuse.
        (
            "text-regression",
            "a.tsv",
            "你好\t1\n天气\t很多\n",
            r"line 2 of .*a\.tsv: a label must be a finite number, got '很多'",
        ),
        (
            "question-answering",
            "a.tsv",
            "谁\t今天\t我\n",
            r"line 1 of .*: an answer must stand in its text, got '我'",
        ),
        ("triplet-ranking", "a.tsv", "甲\t乙\t丙\tD\n", "must be 0 or B .* got 'D'"),
        (
            "multiple-choice",
            "a.tsv",
            '天气\t今天？\t["好", "不"]\t2\n',
            r"line 1 of .*: a label must be the number of a choice, .* got '2'",
        ),
        (CLASSIFY, "a.tsv", "你好\t1\n天气\t \n", "line 2 .* a label must be a name"),
        # Too few classes, and texts in the column of the classes.
        (CLASSIFY, "a.tsv", "你\t好\n她\t好\n", r"at least 2 names, got \['好'\]"),
        (TAG, "a.bio", "她 O\n", r"at least 1 names, got \[\]"),
        (CLASSIFY, "a.tsv", SWAPPED, r"a\.tsv must .* 21 of 21 rows .* fields="),
    ],
)
def test_labels_that_are_refused(task, name, content, message, tmp_path):
    with pytest.raises(SourceError, match=message):
        data_of(tmp_path, content, task, name)


def test_files_are_read_once(tmp_path):
    """The tables that a command reads first are those of the training."""
    path = str(write_file(tmp_path / "a.tsv", REVIEWS))
    settings = FinetuningSettings(task=CLASSIFY, train=path, valid=path, test=path)
    tables = read_files(settings)
    (tmp_path / "a.tsv").unlink()
    data = read_data(settings, tables)
    parts = data.train, data.valid, data.test
    assert [len(part.texts) for part in parts] == [len(GOOD + BAD)] * 3


def test_names_of_classes(tmp_path):
    assert data_of(tmp_path, SWAPPED, fields=("2", "1")).names == ["0", "1"]
    assert data_of(tmp_path, SWAPPED, options={"classes": TEXTS}).names == TEXTS
    # Of a few rows each may have a different class.
    few = data_of(tmp_path, lines(*enumerate(TEXTS[:20])), header="none")
    assert len(few.names) == 20
    data = data_of(tmp_path, "你好\t1\n天气\t 1 \n今天\t0\n")
    assert (data.names, data.train.labels) == (["0", "1"], ["1", "1", "0"])


def test_names_have_the_type_of_the_labels(tmp_path):
    for labels, names in (
        ("1 0 1", [0, 1]),
        ("1.0 0.0", [0, 1]),
        ("true false", [False, True]),
        ('"1" "0"', ["0", "1"]),
        ('1 "0" "1"', ["0", "1"]),
        ('true "False"', ["false", "true"]),
        ("2 10 1", [1, 2, 10]),
    ):
        rows = [f'{{"text": "甲", "label": {label}}}' for label in labels.split()]
        read_names = data_of(tmp_path, "\n".join(rows), name="a.jsonl").names
        assert read_names == names and set(map(type, read_names)) == {type(names[0])}
    rows = [f'{{"text": "甲", "label": {label}}}' for label in ("1", '"1"', "true")]
    with pytest.raises(SourceError, match="labels of one kind, got numbers and truth"):
        data_of(tmp_path, "\n".join(rows), name="a.jsonl")


def test_rows_with_a_bad_label_are_left_out(tmp_path):
    content = "坏 X-LOC\n的 O\n\n她 O\n在 O\n北 B-LOC\n京 E-LOC\n\n我 S-PER\n在 O\n"
    data = data_of(tmp_path, content, TAG, "a.bio", on_bad_row="skip")
    ((line, reason),) = data.train.skipped
    assert line == 1 and reason.startswith("a tag must be O")
    assert data.names == ["LOC", "PER"] and data.train.lines == [4, 9]


def test_entities_of_cluener(tmp_path):
    rows = (
        {"text": "他在台湾", "label": {"address": {"台湾": [[2, 3]]}}},
        {"text": "王五来了", "label": {"name": {"王五": [[0, 1]]}}},
    )
    data = data_of(tmp_path, to_json_lines(rows), "span-extraction", "a.jsonl")
    assert data.names == ["address", "name"]
    assert data.train.labels == [[(2, 4, "address")], [(0, 2, "name")]]


# === Held-out rows ===


def test_held_out_rows_are_drawn_from_the_seed(tmp_path):
    drawn = [data_of(tmp_path, REVIEWS, holdout=0.25, seed=n) for n in (1, 1, 2)]
    assert drawn[0].valid == drawn[1].valid != drawn[2].valid
    for data in drawn:
        texts = sorted(data.train.texts + data.valid.texts)
        assert texts == sorted((text,) for text in GOOD + BAD)
        assert len(data.valid.texts) == 2
        assert data.names == ["坏", "好"]
    with pytest.raises(ConfigurationError, match="leave rows on both sides"):
        data_of(tmp_path, "你好\t好\n天气\t坏\n", holdout=0.1)


def test_rows_that_share_a_text_are_on_one_side(tmp_path):
    # Each first text is in four rows.
    rows = [(f"句{n % 24}", f"文{n}", "同异"[n // 4 % 2]) for n in range(96)]
    for groups, leaks in ((), 24), (("1", "2"), 0):
        changes = {"pairs": True, "holdout": 0.25, "holdout_by": groups}
        data = data_of(tmp_path, lines(*rows), **changes)
        assert count_leaks(data.train, data.valid) == leaks
        for part in (data.train, data.valid):
            assert [rows[line - 1][:2] for line in part.lines] == part.texts
            assert [rows[line - 1][2] for line in part.lines] == part.labels
    page = format_page({"leaks": {"valid": 24}}, {"valid": {"rows": 24}})
    assert "! 24 of 24 rows of valid have a text that is also in the training" in page
    assert "--holdout-by COLUMN keeps such rows on one side" in page


def test_groups_are_drawn_from_the_seed():
    random = np.random.default_rng(0)
    pairs = random.integers(0, 3000, (1000, 2))
    values = [[(0, f"句{n}") for n in pair] for pair in pairs]
    held_out = draw_groups(values, 0.1, seed=3)
    assert 0.09 <= held_out.mean() <= 0.11
    sides = [
        {n for row, pair in enumerate(pairs) if held_out[row] == side for n in pair}
        for side in (True, False)
    ]
    assert not sides[0] & sides[1]
    assert (held_out == draw_groups(values, 0.1, seed=3)).all()
    assert (held_out != draw_groups(values, 0.1, seed=4)).any()


def test_rows_are_linked_through_others():
    # 1, 2 and 3 are one group through 乙 and 丙; 4 and 5, without a value, are alone.
    values = [[(0, "甲"), (0, "乙")], [(0, "乙"), (0, "丙")], [(0, "丙")], [], []]
    for seed in range(5):
        held_out = draw_groups(values, 0.6, seed)
        assert len({*held_out[:3]}) == 1
        assert held_out.any() and not held_out.all()
    # The same value in another column is another one.
    apart = [[(1, "甲")], [(2, "甲")]]
    assert sum(draw_groups(apart, 0.5, 0)) == 1
    # The smallest group is a little too large, and taken.
    values = [[(1, str(n // 2))] for n in range(10)]
    assert sum(draw_groups(values, 0.1, 0)) == 2
    for sizes, message in (
        ({"甲": 9}, "of its 1 groups of 9 rows the smallest has 9"),
        ({"甲": 10, "乙": 10}, "smallest has 10, and holdout=0.1 is 2"),
    ):
        values = [[(1, text)] for text, size in sizes.items() for _ in range(size)]
        with pytest.raises(ConfigurationError, match=message):
            draw_groups(values, 0.1, 0)


def test_leaks_are_counted():
    def examples(*texts):
        return Examples("a.tsv", [*texts], [0] * len(texts), [*range(len(texts))])

    train = examples(("甲", "乙"), ("丙", "丁"))
    other = examples(("甲", "戊"), ("己", "丙 "), ("庚", "辛"), ("乙", "甲"))
    assert count_leaks(train, other) == 3
