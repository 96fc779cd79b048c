"""The commands of trainings, which are recorded here, and of fine-tuned models."""

import functools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from common import (
    SMALL,
    give_stdin,
    json_lines,
    read_json,
    run_main,
    to_json_lines,
    write_file,
    write_lines,
)
from finetuning_cases import REVIEWS, lines, load_small

from roformer_keras import RoFormerSentenceEncoder, RoFormerTextClassifier
from roformer_keras.base.errors import OutputError
from roformer_keras.cli import evaluate, finetune
from roformer_keras.io.journal import write_record
from roformer_keras.tasks import finetuned
from roformer_keras.tasks.finetuning_settings import FinetuningSettings
from roformer_keras.training import results
from roformer_keras.training.pretraining_settings import PretrainingSettings

TEXTS = ["今天天气不错", "不是我们"]


# === finetune and pretrain ===


@pytest.fixture
def trainings(tmp_path, monkeypatch):
    """Settings and options of the trainings that commands ask for."""
    calls = []

    def finetune_on(settings, folder, tables, **options):
        calls.append((settings, options))
        Path(folder).mkdir(exist_ok=True)
        write_record(Path(folder, "settings.json"), settings.describe())
        write_file(Path(folder) / "report.txt", "accuracy 1\n")

    def finetune_best(runs, folder, tables, **options):
        calls.append((runs, options))
        return Path(folder, min(runs))

    def pretrain(settings, folder, **options):
        calls.append((settings, options))
        is_linear = settings.model.get("attention_type") == "linear"
        return SimpleNamespace(
            config=SimpleNamespace(bert4keras_compatible=not is_linear)
        )

    for function in (finetune_on, finetune_best, pretrain):
        name = function.__name__
        module = name.partition("_")[0]
        monkeypatch.setattr(f"roformer_keras.training.{module}.{name}", function)
    monkeypatch.chdir(tmp_path)
    Path("p").write_bytes(SMALL.read_bytes())
    for name in ("a.tsv", "a.txt"):
        write_file(tmp_path / name, "今\t1\n天\t2\n")
    return calls


FINETUNE = "finetune text-classification --train a.tsv --source p -o run"


def test_finetune_prints_a_report_and_a_preset(trainings, monkeypatch, capsys):
    monkeypatch.setattr(finetune, "shows_progress", lambda quiet: not quiet)
    for flags, expected in (
        ("--test a.tsv", "accuracy 1\n\n"),
        ("--quiet --overwrite --holdout 0.25", ""),
    ):
        shown = run_main(*FINETUNE.split(), *flags.split(), capsys=capsys)
        assert shown == (0, "run/preset\n", expected)
    content = {"task": "text-classification", "train": "a.tsv", "source": "p"}
    assert [settings for settings, _ in trainings] == [
        FinetuningSettings(**content, test="a.tsv"),
        FinetuningSettings(**content, holdout=0.25),
    ]
    for (_, options), is_quiet in zip(trainings, (False, True), strict=True):
        assert (options["verbose"], options["overwrite"]) == (not is_quiet, is_quiet)
        # It ends a training at a signal that a library has lost.
        assert len(options["callbacks"]) == 1
    _, _, err = run_main(*FINETUNE.split(), capsys=capsys)
    assert "roformer-keras: no rows were held out, so nothing tells how good" in err
    line = FINETUNE.replace("--source p", "")
    _, _, err = run_main(*line.split(), capsys=capsys)
    assert err.startswith("roformer-keras: using roformer-char, a small checkpoint")
    write_file(Path() / "c.toml", "learning_rate = [2e-5, 3e-5]\n")
    line = f"{FINETUNE} --config c.toml --valid a.tsv"
    assert run_main(*line.split(), capsys=capsys)[1] == "run/rate-2e-05/preset\n"
    runs, _ = trainings[-1]
    assert {name: one.learning_rate for name, one in runs.items()} == {
        "rate-2e-05": 2e-5,
        "rate-3e-05": 3e-5,
    }


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            KeyboardInterrupt(),
            130,
            "what was saved is kept in run; run the same command again to resume\n"
            "roformer-keras: interrupted\n",
        ),
        (OutputError("run holds another run"), 4, "run holds another run\n"),
    ],
)
@pytest.mark.parametrize("verb", ["finetune", "pretrain"])
def test_what_ends_a_training_is_said(
    verb, error, code, message, trainings, monkeypatch, capsys
):
    def fail(*arguments, **options):
        raise error

    function = {"finetune": "finetune_on"}.get(verb, verb)
    monkeypatch.setattr(f"roformer_keras.training.{verb}.{function}", fail)
    line = FINETUNE if verb == "finetune" else "pretrain mlm a.txt -o run"
    shown = run_main(*line.split(), capsys=capsys)
    assert shown[:2] == (code, "")
    assert shown[2].removeprefix("roformer-keras: ").removeprefix("error: ") == message


def test_pretrain_prints_the_path_of_a_model(trainings, capsys):
    line = "pretrain sim a.tsv --fields 1,2 --source p --steps 3 --name tiny -o run"
    assert run_main(*line.split(), capsys=capsys) == (0, "run/tiny.zip\n", "")
    settings, options = trainings[0]
    assert settings == PretrainingSettings.from_dict(
        {
            "objective": "simbert",
            "name": "tiny",
            "data": [{"files": ["a.tsv"], "fields": ["1", "2"]}],
            "stages": [{"steps": 3, "length": 64}],
            "source": "p",
        }
    )
    assert (options["verbose"], options["overwrite"]) == (False, False)
    # bert4keras could not compute it.
    Path("a.toml").write_text('[model]\nattention_type = "linear"\n')
    line = "pretrain lm a.txt --config a.toml -o run"
    assert run_main(*line.split(), capsys=capsys) == (0, "run/preset\n", "")


# === predict and evaluate ===


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    """The folder of a classifier of reviews."""
    folder = tmp_path_factory.mktemp("reviews") / "preset"
    load_small(RoFormerTextClassifier, classes=["坏", "好"]).save_to_preset(folder)
    return folder


@pytest.fixture(scope="module")
def load_once():
    return functools.cache(finetuned.load_finetuned)


@pytest.fixture
def tuned(preset, load_once, monkeypatch):
    """The classifier as commands load it, which is once."""
    monkeypatch.setattr(finetuned, "load_finetuned", load_once)
    return load_once(str(preset))


def test_predict(tuned, preset, tmp_path, monkeypatch, cli, refused):
    def predicted(*arguments):
        return json_lines(cli("predict", preset, *arguments))

    expected = predicted("--text", TEXTS[0], "--text", TEXTS[1])
    assert [line["text"] for line in expected] == TEXTS
    for line in expected:
        shares = line["probabilities"]
        assert {*shares} == {"好", "坏"}
        assert max(shares, key=shares.get) == line["label"]
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
    # The same texts from other containers; a label is no second text.
    first, second = TEXTS
    for name, content, fields in (
        ("a.txt", f"{first}\n\n{second}\n", None),
        ("a.tsv", f"{first}\t好\n{second}\t\n", None),
        ("a.csv", f"text\n{first}\n{second}\n", None),
        ("b.csv", f"text,label\n{first},好\n{second},坏\n", "text,label"),
        ("a.jsonl", to_json_lines({"text": text} for text in TEXTS), None),
        ("b.tsv", lines(*(("x", text) for text in TEXTS)), "2"),
    ):
        path = write_file(tmp_path / name, content)
        flags = ("--fields", fields) if fields else ()
        assert predicted(path, *flags) == expected, name
    give_stdin(monkeypatch, f"{first}\n{second}\n")
    assert predicted("-") == expected
    target = tmp_path / "out.jsonl"
    assert cli("predict", preset, path, "-o", target) == f"{target}\n"
    assert [row["text"] for row in json_lines(target.read_text("utf-8"))] == ["x", "x"]
    assert "exists" in refused("predict", preset, path, "-o", target, code=4)


def test_predict_refuses(tuned, preset, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    write_file(tmp_path / "a.tsv", REVIEWS)
    write_file(tmp_path / "empty.tsv", "")
    for line, message in (
        ("", "give a file, or - for standard input, or --text TEXT"),
        ("a.tsv --text 天", "give a file, or -"),
        ("none.tsv", "cannot read none.tsv: No such file"),
        ("a.tsv -o out.tsv", "the output must end in .jsonl"),
        ("a.tsv --fields a", "line 1 of a.tsv must name the columns 'a'"),
        ("--text 天 --text 天 气", "as many texts as the first, 1"),
        ("empty.tsv", "empty.tsv has no row"),
    ):
        assert message in refused("predict", preset, *line.split()), line


def test_evaluate(tuned, preset, tmp_path, monkeypatch, capsys, cli, refused):
    path = write_file(tmp_path / "reviews.tsv", REVIEWS)
    report = json.loads(cli("evaluate", preset, path, "--json"))
    assert report["rows"] == 8
    # With a bar on a terminal.
    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "shows_progress", lambda quiet: not quiet)
        for flags in ([], ["--quiet"]):
            code, out, err = run_main("evaluate", preset, path, *flags, capsys=capsys)
            assert code == 0 and "100%" not in out
            assert ("100%" in err) == (not flags)
    target = tmp_path / "report"
    out = cli("evaluate", preset, path, "--output", target)
    assert f"accuracy               {report['accuracy']:.4f}\n" in out
    assert (target / "report.txt").read_text("utf-8") == out
    assert read_json(target / "report.json") == {"evaluation": report}
    assert all((target / name).is_file() for name in results.REPORTS)
    bad = write_file(tmp_path / "bad.tsv", "你好\t好\n天气\t中\n今天\t坏\n")
    out = cli("evaluate", preset, bad, "--on-bad-row", "skip")
    assert "skipped                1\n  line 2: a label must be" in out
    for arguments, code, message in (
        ((path, "--output", target), 4, "exists"),
        ((bad,), 2, f"line 2 of {bad}: a label must be"),
        ((path, "--fields", "1"), 2, "name 1 or 2 texts and a label, got 1"),
    ):
        assert message in refused("evaluate", preset, *arguments, code=code)


# === embed and similarity ===


def test_vectors_and_cosines_of_a_fine_tuned_encoder(tmp_path, cli, refused):
    encoder = load_small(RoFormerSentenceEncoder, pooling="mean", max_length=8)
    source, texts = tmp_path / "encoder", [*TEXTS, "我们在北京大学学习语言模型"]
    encoder.save_to_preset(source)
    path = write_lines(tmp_path / "texts.txt", texts)
    for flags, normalize in (([], True), (["--no-normalize"], False)):
        out = cli("embed", "--source", source, path, *flags)
        vectors = [line["vector"] for line in json_lines(out)]
        expected = encoder.encode(texts, normalize=normalize, verbose=0)
        np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert np.linalg.norm(expected, axis=1).max() > 1.5
    out = cli("similarity", "--source", source, "--pair", *texts[1:])
    (line,) = json_lines(out)
    expected = encoder.similarity(*texts[1:], verbose=0)
    assert line["similarity"] == pytest.approx(expected, abs=1e-6)
    # An empty line has a vector, as by the method; a pair must have two texts.
    path = write_file(tmp_path / "blank.txt", "好\n\n坏\n")
    lines = json_lines(cli("embed", "--source", source, path))
    expected = encoder.encode(["好", "", "坏"], verbose=0)
    np.testing.assert_allclose([line["vector"] for line in lines], expected, atol=1e-6)
    path = write_file(tmp_path / "blank.tsv", "好\t坏\n" * 4099 + "好\t\n")
    err = refused("similarity", "--source", source, path)
    assert f"line 4100 of {path}: a text must be a str that is not empty" in err
