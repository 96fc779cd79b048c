"""Recipes on files with the published layouts of GLUE and CLUE, and invented rows."""

import json
from pathlib import Path

import pytest

from roformer_keras.cli.finetune import read_settings
from roformer_keras.data.choices import BLANK, chid_answers
from roformer_keras.data.files import read_table
from roformer_keras.errors import ConfigurationError
from roformer_keras.training.recipes import (
    LEARNING_RATES,
    RECIPES,
    format_recipe,
    recipe_files,
    recipe_rates,
    recipe_settings,
)


def glue(content, *texts, label):
    """A table whose cells have bars between, its first texts and their label."""
    return content.replace("|", "\t"), [texts], [label]


def clue(keys, *cells, **others):
    """A row of JSON, whose last cell is the label; others are not read."""
    row = dict(zip(keys.split(), cells, strict=True)) | others
    content = f"{json.dumps(row, ensure_ascii=False)}\n"
    return content, [cells[:-1]], [cells[-1]]


NLI = "index|sentence1|sentence2|label\n0|It rains.|It is wet.|entailment\n"
PARSES = "sentence1_binary_parse|sentence2_binary_parse|sentence1_parse|sentence2_parse"
MNLI = f"""\
index|promptID|pairID|genre|{PARSES}|sentence1|sentence2|label1|gold_label
0|1|2|3|4|5|6|7|It rains.|It is wet.|neutral|entailment
"""
STSB = """\
index|genre|filename|year|old_index|source1|source2|sentence1|sentence2|score
0|main|x|2012|1|none|none|A dog.|A cat.|1.25
"""
# A byte order mark before the header, and quotes that are part of the text.
MRPC = """\
\ufeffQuality|#1 ID|#2 ID|#1 String|#2 String
1|10|11|"It rains, he said.|He said: "It rains"
"""
# A row that was broken in two, as some are.
QQP = """\
id|qid1|qid2|question1|question2|is_duplicate
1|2|3|How old is it?|What is its age?|1
4|5|6|What is
that?|Who?|0
"""
PAIR = "sentence1 sentence2 label"
ENTITIES = {"address": {"台湾": [[2, 3]]}}
# Three people have answered each question of the development set.
CMRC_ANSWERS = [
    {"text": "北京", "answer_start": 2},
    {"text": "北京", "answer_start": 2},
    {"text": "在北京", "answer_start": 1},
]
CMRC = {"question": "她在哪里？", "id": "DEV_0_QUERY_0", "answers": CMRC_ANSWERS}
CMRC = {"id": "DEV_0", "context": "她在北京，他在上海。", "qas": [CMRC]}
CMRC = {"title": "北京", "id": "DEV_0", "paragraphs": [CMRC]}
IDIOMS = tuple(f"{first}心{second}意" for first in "一三" for second in "一二三四五")
# A line of several passages; the answers to their blanks are in another file.
CHID = ["他#idiom000378#地学习。", "#idiom000379#！"]
# Dialogues and other texts, in two files.
C3 = {"question": "女的在哪里？", "choice": ["上海", "北京"], "answer": "北京"}
C3 = [["男：你在哪里？", "女：我在北京。"], [C3], "1-8"]
C3_ROW = ("男：你在哪里？\n女：我在北京。", "女的在哪里？", ("上海", "北京"))
# Of each recipe a file, and the texts and the labels in it.
LAYOUTS = {
    "glue/cola": glue("gj04|1||She sings.\n", "She sings.", label="1"),
    "glue/sst-2": glue("sentence|label\na warm film |1\n", "a warm film ", label="1"),
    "glue/mrpc": glue(MRPC, '"It rains, he said.', 'He said: "It rains"', label="1"),
    "glue/sts-b": glue(STSB, "A dog.", "A cat.", label="1.25"),
    "glue/qqp": glue(QQP, "How old is it?", "What is its age?", label="1"),
    "glue/mnli": glue(MNLI, "It rains.", "It is wet.", label="entailment"),
    "glue/qnli": glue(
        "index|question|sentence|label\n0|Where?|Here.|not_entailment\n",
        "Where?",
        "Here.",
        label="not_entailment",
    ),
    "glue/rte": glue(NLI, "It rains.", "It is wet.", label="entailment"),
    "clue/afqmc": clue(PAIR, "怎么还款", "如何还款", "1"),
    "clue/tnews": clue(
        "sentence label", "学校开学", "108", label_desc="news_edu", keywords=""
    ),
    "clue/iflytek": clue("sentence label", "一个应用", "11", label_des="薅羊毛"),
    "clue/cmnli": clue(PAIR, "下雨", "地湿", "entailment"),
    "clue/ocnli": clue(
        PAIR, "下雨", "地湿", "neutral", level="easy", genre="phone", prem_id="0", id=0
    ),
    "clue/csl": (
        '{"id": 1, "abst": "论文摘要", "keyword": ["网络", "语言"], "label": "0"}\n',
        [("论文摘要", "网络、语言")],
        ["0"],
    ),
    "clue/cluener": clue("text label", "他在台湾", ENTITIES),
    "clue/cmrc2018": (
        json.dumps({"version": "v1.0", "data": [CMRC]}),
        [("她在哪里？", "她在北京，他在上海。")],
        [CMRC_ANSWERS],
    ),
    "clue/chid": (
        f"{json.dumps({'content': CHID, 'candidates': IDIOMS})}\n",
        [(f"他{BLANK}地学习。", IDIOMS), (f"{BLANK}！", IDIOMS)],
        [0, 9],
    ),
    "clue/c3": (json.dumps([C3]), [C3_ROW] * 2, [1, 1]),
}
# Names of files whose content is spread over several, and these.
PARTS = {
    "?-train.json": ("d-train.json", "m-train.json"),
    "?-dev.json": ("d-dev.json", "m-dev.json"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_published_layouts(name, tmp_path):
    content, texts, labels = LAYOUTS[name]
    assert RECIPES.keys() == LAYOUTS.keys()
    settings = read_settings(None, recipe=name, data=str(tmp_path))
    assert (settings.epochs, settings.batch_size, settings.max_length) == (3, 32, 512)
    assert recipe_rates(settings) == LEARNING_RATES == (2e-5, 3e-5, 4e-5, 5e-5)
    skipped = []
    has_choices = settings.task == "multiple-choice"
    for path in filter(None, (settings.train, settings.valid, settings.test)):
        for part in PARTS.get(Path(path).name, (path,)):
            (tmp_path / part).write_text(content, encoding="utf-8")
        if settings.format == "chid":
            answers = '{"#idiom000378#": 0, "#idiom000379#": 9}'
            Path(chid_answers(path)).write_text(answers)
        table = read_table(
            path,
            settings.text_count,
            settings.fields,
            format=settings.format,
            skipped=skipped,
            has_choices=has_choices,
        )
        assert (table.texts, table.labels) == (texts, labels)
    assert bool(skipped) == (name == "glue/qqp")


def test_flags_change_a_recipe():
    flags = {"learning_rate": 1e-4, "epochs": 1}
    settings = read_settings(None, None, flags, "glue/rte", "RTE")
    assert (recipe_rates(settings), settings.epochs) == ((1e-4,), 1)


def test_a_configuration_changes_a_recipe(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('holdout = 0.25\n[options]\npooling = "mean"\n')
    settings = read_settings(None, str(path), {}, "clue/cmnli", "CMNLI")
    assert (settings.holdout, settings.valid) == (0.25, None)
    classes = RECIPES["clue/cmnli"].classes
    assert settings.options == {"classes": classes, "pooling": "mean"}


def test_what_is_refused():
    for name, task, message in (
        ("glue/wnli", None, "recipe must be one of 'glue/cola', "),
        ("clue/c3", "text-classification", "is for the task 'multiple-choice'"),
        ("glue/rte", "text-regression", "glue/rte is for the task 'text-class"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            recipe_settings(name, "data", task)
    for recipe, data in (("glue/rte", None), (None, "RTE")):
        with pytest.raises(ConfigurationError, match="give --recipe and --data"):
            read_settings(None, None, {}, recipe, data)
    with pytest.raises(ConfigurationError, match="name the task, or give --recipe"):
        read_settings(None, None, {"train": "a.tsv"})
    for name in ("glue/mrpc", "glue/mnli"):
        settings = read_settings(None, None, {"holdout": 0.0}, name, "DATA")
        with pytest.raises(ConfigurationError, match="best learning rate on dev"):
            recipe_files(RECIPES[name], settings)


MISMATCHED = ["dev_mismatched.tsv", "accuracy"]


@pytest.mark.parametrize(
    ("flags", "head", "paper"),
    [
        ({}, ["dev_matched.tsv", "accuracy", *MISMATCHED], ["80.2", "79.8"]),
        # The paper has no figures for other rows.
        ({"holdout": 0.1}, ["held", "out", "accuracy", *MISMATCHED], ["-", "79.8"]),
        ({"valid": "my.tsv"}, ["my.tsv", "accuracy", *MISMATCHED], ["-", "79.8"]),
        (
            {"test": "x/dev_mismatched.tsv"},
            ["dev_matched.tsv", "accuracy", *MISMATCHED],
            ["80.2", "-"],
        ),
        (
            {"train": "my.tsv"},
            ["dev_matched.tsv", "accuracy", *MISMATCHED],
            ["-", "-"],
        ),
    ],
)
def test_the_paper_stands_next_to_what_was_measured(flags, head, paper):
    settings = read_settings(None, None, flags, "glue/mnli", "MNLI")
    files, figures = recipe_files(RECIPES["glue/mnli"], settings)
    scores = {
        2e-5: {"valid": {"accuracy": 0.5}, "test": {"accuracy": 0.25}},
        3e-5: {"valid": {"accuracy": 0.625}, "test": {"accuracy": 0.5}},
    }
    lines = format_recipe("glue/mnli", scores, 3e-5, files, figures).splitlines()
    assert [line.split() for line in lines[1:]] == [
        head,
        ["rate", "2e-05", "50.0", "25.0"],
        ["rate", "3e-05,", "kept", "62.5", "50.0"],
        ["RoFormer", "in", "the", "paper", *paper],
    ]


def test_a_test_file_of_a_recipe_without_one_has_its_name():
    settings = read_settings(None, None, {"test": "my.tsv"}, "glue/mrpc", "MRPC")
    files, paper = recipe_files(RECIPES["glue/mrpc"], settings)
    assert files == {"valid": "dev.tsv", "test": "my.tsv"}
    assert paper == {"valid": {"f1": 89.5}}
