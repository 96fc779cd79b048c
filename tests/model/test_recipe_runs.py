"""A whole fine-tuning by recipe, and reports of the formats of CLUE, on a few rows."""

import dataclasses
import json
import shutil

import pytest
from common import CHARACTER, ROOT, read_json, write_file

from roformer_keras.base.errors import ConfigurationError, SourceError
from roformer_keras.cli.finetune import read_settings
from roformer_keras.tasks.evaluation import fit_baselines
from roformer_keras.tasks.finetuned import FinetunedTask, report_on
from roformer_keras.training.finetune import FinetuningRun, finetune_best
from roformer_keras.training.log import read_log
from roformer_keras.training.results import format_page
from tools.clue_choices import read_c3

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("eagerly"),
    pytest.mark.filterwarnings("ignore:Even though the `tf.config"),
]

RECIPES = ROOT / "docs" / "fine-tuning" / "recipes"
FLAGS = {"source": str(CHARACTER), "model.num_layers": 1}


def settings_of(name, folder, **flags):
    """The settings of a recipe next to the files of its task."""
    recipe = RECIPES / f"{name.replace('/', '-')}.toml"
    config = shutil.copy(recipe, folder / "recipe.toml")
    return read_settings(None, str(config), {**FLAGS, "learning_rate": 2e-5, **flags})


def test_the_best_rate_is_kept(tmp_path):
    rows = ["x\t1\t\tgood one\n", "x\t0\t*\tbad the\n"] * 4
    for name in ("train.tsv", "dev.tsv"):
        # The last row is of no class of the recipe.
        (tmp_path / name).write_text("".join([*rows, "x\t2\t\tnone\n"]))
    settings = settings_of("glue/cola", tmp_path, epochs=1, batch_size=4)
    runs = {
        f"rate-{rate:g}": dataclasses.replace(settings, learning_rate=rate)
        for rate in (2e-5, 1e-2)
    }
    out = tmp_path / "out"
    folder = finetune_best(runs, out, verbose=False)
    content = read_json(out / "runs.json")
    values = {name: row["value"] for name, row in content["runs"].items()}
    assert [*values] == [*runs] and len({*values.values()}) == 2
    assert values[content["best"]] == max(values.values())
    assert folder == out / content["best"]
    assert (folder / "preset" / "metadata.json").is_file()
    # Epochs are compared by the figure of the recipe.
    (row,) = read_log(folder / "log.csv")
    assert float(row["val_matthews"]) == pytest.approx(max(values.values()), abs=1e-5)
    report = read_json(folder / "report.json")
    assert report["valid"]["rows"] == 8
    assert [row["line"] for row in report["valid"]["skipped"]] == [9]
    bare = {"x": dataclasses.replace(settings, valid=None, monitor=None)}
    with pytest.raises(ConfigurationError, match="chosen on held-out data"):
        finetune_best(bare, tmp_path / "bare")


# === Formats, by a model that is not trained ===


def prepared(name, folder):
    """A training that is about to begin, its report, and its model as it is served."""
    settings = settings_of(name, folder, epochs=1, batch_size=4, accumulation=1)
    run = FinetuningRun(settings, folder / "run")
    run.prepare()
    learned = fit_baselines(run.model, run.data.train.texts, run.data.train.labels)
    report = report_on(run.model, run.data.valid, learned)
    tuned = FinetunedTask(run.model, folder, settings.text_count, settings.fields)
    return run, report, tuned


def test_questions_of_cmrc(tmp_path):
    text = "她在北京工作，他在上海学习。"

    def question(name, *answers):
        spans = [{"text": one, "answer_start": text.find(one)} for one in answers]
        return {"question": f"{name}在哪里？", "id": name, "answers": spans}

    # The last answer does not stand in its text.
    answers = {"她": ["北京", "在北京"], "他": ["上海"], "你": ["天"]}
    asked = [question(name, *texts) for name, texts in answers.items()]
    paragraphs = [{"id": "0", "context": text, "qas": asked}]
    content = {"version": "v1.0", "data": [{"id": "0", "paragraphs": paragraphs}]}
    for name in ("train.json", "dev.json"):
        write_file(tmp_path / name, content)
    run, report, _ = prepared("clue/cmrc2018", tmp_path)
    assert run.metrics == ("f1", "exact_match") and report["rows"] == 2
    (skipped,) = report["skipped"]
    assert skipped["row"] == 3
    assert "an answer must stand in its text, got '天'" in skipped["reason"]
    assert all(error["row"] in (1, 2) for error in report["errors"])
    page = format_page({}, {"valid": report})
    assert "row 3: an answer must stand" in page and "line 3" not in page
    (tmp_path / "train.json").write_text('{"data": [{"paragraphs": 1}]}')
    with pytest.raises(SourceError, match="must have 'paragraphs', a list, got 1"):
        prepared("clue/cmrc2018", tmp_path)


def test_questions_of_c3(tmp_path):
    def document(sentence, *questions):
        names = ("question", "choice", "answer")
        rows = [dict(zip(names, question, strict=True)) for question in questions]
        return [[sentence, "是。"], rows, "1"]

    cities = ["北京", "上海", "天安门"]
    dialogues = [
        document("她在北京工作。", ("她在哪里？", cities, "北京")),
        document(
            "他在上海。", ("他在哪里？", cities[:2], "上海"), ("谁？", cities, "他")
        ),
    ]
    others = [document("今天天气不错。", ("天气？", ["不好", "不错"], "不错"))]
    rows = [row for part in (dialogues, others) for row in read_c3(json.dumps(part))]
    for split in ("train", "dev"):
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (tmp_path / f"{split}.jsonl").write_text(lines)
    _, report, tuned = prepared("clue/c3", tmp_path)
    assert report["rows"] == 3
    (skipped,) = report["skipped"]
    assert skipped["line"] == 3 and "or its text, got '他'" in skipped["reason"]
    assert report["baselines"]["Jaccard of characters"]["accuracy"] == 1
    page = format_page({}, {"valid": report})
    assert "line 3: a label must be the number of a choice" in page
    # A file of another format is answered and measured.
    path = tmp_path / "x.csv"
    path.write_text(
        "context,question,choice1,choice2,choice3,label\n"
        "她在北京工作。,她在哪里？,北京,上海,,北京\n"
    )
    assert tuned.evaluate(str(path))["rows"] == 1
    (answer,) = tuned.answer([row for _, row in tuned.read_rows(str(path))])
    assert answer["choices"][answer["label"]] == answer["choice"]
    assert len(answer["probabilities"]) == 2
    row = tuned.read_row(["她在北京。", "她在哪里？", '["北京", "上海"]'])
    tuned.check_rows([row])
    assert tuned.answer([row])[0]["choices"] == ("北京", "上海")
    with pytest.raises(ConfigurationError, match="choices in one cell must be a JSON"):
        tuned.read_row(["她在北京。", "她在哪里？", "北京"])
