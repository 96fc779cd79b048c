"""Whole fine-tunings by recipe, on a few invented rows."""

import json

import pytest
from common import CHARACTER, run_main

from roformer_keras.cli.finetune import read_settings
from roformer_keras.errors import ConfigurationError, OutputError, SourceError
from roformer_keras.training import finetune as finetune_module
from roformer_keras.training import recipes
from roformer_keras.training.log import read_log
from roformer_keras.training.recipes import RECIPES, finetune_recipe, recipe_figures
from roformer_keras.training.results import load_finetuned

pytestmark = pytest.mark.slow

TINY = {"source": str(CHARACTER), "model.num_layers": 1}
FLAGS = {**TINY, "epochs": 1, "batch_size": 4, "learning_rate": 1e-3}


def test_the_best_rate_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "LEARNING_RATES", (2e-5, 1e-2))
    rows = ["x\t1\t\tgood one\n", "x\t0\t*\tbad the\n"] * 4
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("".join(rows))
    flags = {**TINY, "epochs": 1, "batch_size": 4}
    settings = read_settings(None, None, flags, "glue/cola", str(tmp_path))
    out = tmp_path / "out"
    preset = finetune_recipe("glue/cola", settings, out, verbose=False)
    found = json.loads((out / "recipe.json").read_text())
    figures = {
        rate: split["valid"]["matthews"] for rate, split in found["rates"].items()
    }
    assert list(figures) == ["2e-05", "0.01"]
    assert len(set(figures.values())) == 2
    best = found["best_rate"]
    assert figures[f"{best:g}"] == max(figures.values())
    assert preset == out / f"rate-{best:g}" / "preset"
    assert (preset / "metadata.json").is_file()
    assert "RoFormer in the paper" in (out / "recipe.txt").read_text()


def test_no_rate_is_tried_without_a_development_set(tmp_path):
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("x\t1\t\tgood one\n" * 4)
    flags = {**FLAGS, "holdout": 0.0}
    settings = read_settings(None, None, flags, "glue/cola", str(tmp_path))
    with pytest.raises(ConfigurationError, match="leave holdout out"):
        finetune_recipe("glue/cola", settings, tmp_path / "out", verbose=False)
    assert not (tmp_path / "out").exists()


def test_rows_without_a_class_are_left_out(tmp_path):
    for name in ("train.50k.json", "dev.json"):
        labels = ("entailment", "neutral", "contradiction", "-")
        lines = [
            json.dumps({"sentence1": "下雨", "sentence2": label, "label": label})
            for label in labels
        ]
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    settings = read_settings(None, None, FLAGS, "clue/ocnli", str(tmp_path))
    finetune_recipe("clue/ocnli", settings, tmp_path / "out", verbose=False)
    report = json.loads((tmp_path / "out/rate-0.001/report.json").read_text())
    assert report["valid"]["rows"] == 3
    assert [one["line"] for one in report["valid"]["skipped"]] == [4]


def test_entities_of_cluener(tmp_path):
    line = {"text": "他在台湾", "label": {"address": {"台湾": [[2, 3]]}}}
    other = {"text": "王五来了", "label": {"name": {"王五": [[0, 1]]}}}
    content = "".join(f"{json.dumps(one)}\n" for one in (line, other))
    for name in ("train.json", "dev.json"):
        (tmp_path / name).write_text(content)
    settings = read_settings(None, None, FLAGS, "clue/cluener", str(tmp_path))
    finetune_recipe("clue/cluener", settings, tmp_path / "out", verbose=False)
    report = json.loads((tmp_path / "out/rate-0.001/report.json").read_text())
    classes = report["valid"]["classes"]
    assert {name: one["count"] for name, one in classes.items()} == {
        "address": 1,
        "name": 1,
    }


@pytest.mark.parametrize(
    ("recipe", "flags", "monitored"),
    [
        ("glue/cola", {}, "matthews"),
        ("glue/cola", {"monitor": "f1"}, "f1"),
        ("glue/cola", {"monitor": "accuracy"}, "accuracy"),
    ],
)
def test_the_best_epoch_is_that_of_the_metric(
    recipe, flags, monitored, tmp_path, monkeypatch
):
    asked, values = [], iter([0.25, 0.75, 0.5])

    def figure(report, name):
        asked.append(name)
        return next(values)

    monkeypatch.setattr(finetune_module, "class_figure", figure)
    rows = ["x\t1\t\tgood one\n", "x\t0\t*\tbad the\n"] * 2
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("".join(rows))
    flags = {**FLAGS, "epochs": 3, "learning_rate": 0.0, **flags}
    settings = read_settings(None, None, flags, recipe, str(tmp_path))
    finetune_recipe(recipe, settings, tmp_path / "out", verbose=False)
    own = tmp_path / "out" / "rate-0"
    log, report = read_log(own / "log.csv"), (own / "report.json").read_text()
    if monitored == "accuracy":
        # All epochs are alike at this rate: the first is kept.
        assert (asked, json.loads(report)["kept epoch"]) == ([], 1)
    else:
        assert asked == [monitored] * 3
        logged = [float(row[f"val_{monitored}"]) for row in log]
        assert logged == [0.25, 0.75, 0.5]
        assert json.loads(report)["kept epoch"] == 2


def test_an_f1_of_three_classes_is_no_metric(tmp_path):
    for name in ("train.50k.json", "dev.json"):
        lines = [
            json.dumps({"sentence1": "下雨", "sentence2": label, "label": label})
            for label in ("entailment", "neutral", "contradiction")
        ]
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    flags = {**FLAGS, "monitor": "f1"}
    settings = read_settings(None, None, flags, "clue/ocnli", str(tmp_path))
    with pytest.raises(ConfigurationError, match="macro_f1, matthews, got 'f1'"):
        finetune_recipe("clue/ocnli", settings, tmp_path / "out", verbose=False)


def test_questions_of_cmrc(tmp_path):
    text = "她在北京工作，他在上海学习。"

    def question(name, *answers):
        own = [{"text": one, "answer_start": text.find(one)} for one in answers]
        return {"question": f"{name}在哪里？", "id": name, "answers": own}

    # The last answer does not stand in its text.
    asked = [
        question("她", "北京", "在北京"),
        question("他", "上海"),
        question("你", "天"),
    ]
    paragraphs = [{"id": "0", "context": text, "qas": asked}]
    content = {"version": "v1.0", "data": [{"id": "0", "paragraphs": paragraphs}]}
    for name in ("train.json", "dev.json"):
        (tmp_path / name).write_text(json.dumps(content))
    flags = {**FLAGS, "epochs": 2}
    settings = read_settings(None, None, flags, "clue/cmrc2018", str(tmp_path))
    out = tmp_path / "out"
    finetune_recipe("clue/cmrc2018", settings, out, verbose=False)
    report = json.loads((out / "rate-0.001/report.json").read_text())["valid"]
    assert report["rows"] == 2
    (skipped,) = report["skipped"]
    assert skipped["row"] == 3
    assert "an answer must stand in its text, got '天'" in skipped["reason"]
    assert all(error["row"] in (1, 2) for error in report["errors"])
    page = (out / "rate-0.001/report.txt").read_text()
    assert "row 3: an answer must stand" in page
    assert "line 3" not in page
    shown = (out / "recipe.txt").read_text()
    assert "dev.json f1  dev.json exact_match" in shown
    assert {"val_f1", "val_exact_match"} <= set(read_log(out / "rate-0.001/log.csv")[0])


def test_blanks_of_chid(tmp_path, capsys):
    idioms = [f"{first}心{second}意" for first in "一三" for second in "一二三四五"]
    contexts = ["他#idiom000001#地学，不#idiom000002#。", "天气#idiom000003#。"]
    line = json.dumps({"content": contexts, "candidates": idioms})
    # One has no answer, and one has that of no choice.
    answers = {"#idiom000001#": 0, "#idiom000002#": 10}
    for name in ("train", "dev"):
        (tmp_path / f"{name}.json").write_text(f"{line}\n{line}\n")
        (tmp_path / f"{name}_answer.json").write_text(json.dumps(answers))
    flags = {**FLAGS, "accumulation": 1}
    settings = read_settings(None, None, flags, "clue/chid", str(tmp_path))
    out = tmp_path / "out"
    finetune_recipe("clue/chid", settings, out, verbose=False)
    report = json.loads((out / "rate-0.001/report.json").read_text())
    own = report["valid"]
    assert own["rows"] == 2
    skipped = {one["line"]: one["reason"] for one in own["skipped"]}
    assert skipped.keys() == {1, 2} and len(own["skipped"]) == 4
    assert "from 0 to 9, or its text, got 10" in str(own["skipped"])
    assert "the blank #idiom000003# must have an answer in" in str(own["skipped"])
    assert own["baselines"]["most frequent place"]["accuracy"] == 1
    assert report["leaks"] == {"valid": 2}
    for error in own["errors"]:
        assert error["choices"] == idioms and "[MASK]" in error["context"]
    assert "dev.json accuracy" in (out / "recipe.txt").read_text()
    # Every blank is answered under its name.
    words = ("predict", out / "rate-0.001", tmp_path / "dev.json", "--format", "chid")
    code, shown, err = run_main(*map(str, words), capsys=capsys)
    assert code == 0, err
    answered = list(map(json.loads, shown.splitlines()))
    assert [one["blank"] for one in answered] == 2 * [
        f"#idiom00000{number}#" for number in (1, 2, 3)
    ]
    for one in answered:
        assert one["choices"][one["label"]] == one["choice"]
    # The answers are inputs of the training, too.
    (tmp_path / "train_answer.json").write_text(json.dumps({**answers, "x": 1}))
    with pytest.raises(OutputError, match="input 'train' has changed"):
        finetune_recipe("clue/chid", settings, out, verbose=False)


def test_questions_of_c3(tmp_path):
    def document(sentence, *questions):
        own = [
            {"question": text, "choice": choices, "answer": answer}
            for text, choices, answer in questions
        ]
        return [[sentence, "是。"], own, "1"]

    cities = ["北京", "上海", "天安门"]
    dialogues = [
        document("她在北京工作。", ("她在哪里？", cities, "北京")),
        document(
            "他在上海。", ("他在哪里？", cities[:2], "上海"), ("谁？", cities, "他")
        ),
    ]
    others = [document("今天天气不错。", ("天气？", ["不好", "不错"], "不错"))]
    for split in ("train", "dev"):
        for part, content in (("d", dialogues), ("m", others)):
            (tmp_path / f"{part}-{split}.json").write_text(json.dumps(content))
    flags = {**FLAGS, "accumulation": 2, "epochs": 2}
    settings = read_settings(None, None, flags, "clue/c3", str(tmp_path))
    out = tmp_path / "out"
    preset = finetune_recipe("clue/c3", settings, out, verbose=False)
    report = json.loads((out / "rate-0.001/report.json").read_text())["valid"]
    assert report["rows"] == 3
    (skipped,) = report["skipped"]
    assert skipped["row"] == 3 and "or its text, got '他'" in skipped["reason"]
    similar = report["baselines"]["Jaccard of characters"]
    assert similar["accuracy"] == 1
    page = (out / "rate-0.001/report.txt").read_text()
    assert "row 3: a label must be the number of a choice" in page
    assert "?-dev.json accuracy" in (out / "recipe.txt").read_text()
    # Files of the same and of other formats are answered and measured.
    tuned = load_finetuned(out / "rate-0.001")
    files = [(str(tmp_path / "?-dev.json"), "c3"), (str(tmp_path / "x.csv"), None)]
    header = "context,question,choice1,choice2,choice3,label\n"
    row = "她在北京工作。,她在哪里？,北京,上海,,北京\n"
    (tmp_path / "x.csv").write_text(header + row)
    for path, format in files:
        found = tuned.evaluate(path, on_bad_row="skip", format=format)
        rows = tuned.read_rows(path, format=format)
        answers = tuned.answer([row for _, row, _ in rows])
        names = ("context", "question", "choices", "label", "choice", "probabilities")
        for answer in answers:
            assert tuple(answer) == names
            assert answer["choices"][answer["label"]] == answer["choice"]
            assert len(answer["probabilities"]) == len(answer["choices"])
        assert len(rows) == found["rows"] + len(found.get("skipped", ()))
    assert found["rows"] == 1
    bare = load_finetuned(preset)
    assert bare.read_rows(path) == rows
    row = bare.read_row(["她在北京。", "她在哪里？", '["北京", "上海"]'])
    bare.check_rows([row])
    assert bare.answer([row])[0]["choices"] == ("北京", "上海")
    with pytest.raises(ConfigurationError, match="choices in one cell must be a JSON"):
        bare.read_row(["她在北京。", "她在哪里？", "北京"])


def test_a_damaged_file_of_questions(tmp_path):
    (tmp_path / "train.json").write_text('{"data": [{"paragraphs": 1}]}')
    settings = read_settings(None, None, FLAGS, "clue/cmrc2018", str(tmp_path))
    with pytest.raises(SourceError, match="must have 'paragraphs', a list, got 1"):
        finetune_recipe("clue/cmrc2018", settings, tmp_path / "out", verbose=False)
    assert not (tmp_path / "out").exists()


def test_figures_of_the_benchmarks():
    report = {
        "accuracy": 0.7,
        "classes": {"0": {"f1": 0.5}, "1": {"f1": 0.8}},
        "confusion": [[30, 20], [10, 40]],
    }
    found = recipe_figures(RECIPES["glue/mrpc"], report)
    assert found == {"f1": 0.8, "accuracy": 0.7}
    found = recipe_figures(RECIPES["glue/cola"], report)
    # (40 * 30 - 10 * 20) / sqrt(60 * 50 * 50 * 40)
    assert found["matthews"] == pytest.approx(1000 / 6_000_000**0.5)
