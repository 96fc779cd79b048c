"""The command line of fine-tuning, from a file to answers."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from common import CHARACTER, ROOT, give_stdin, interruptible, json_lines, run_main
from finetuning_cases import REVIEWS, lines, train_eagerly, written

from roformer_keras import RoFormerBackbone, RoFormerSentenceEncoder
from roformer_keras.cli import evaluate, finetune
from roformer_keras.training import results
from roformer_keras.training.finetuning_settings import FinetuningSettings


@pytest.fixture(autouse=True)
def eagerly(monkeypatch):
    train_eagerly(monkeypatch)


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """A folder with a file of reviews and what was fine-tuned on it."""
    folder = tmp_path_factory.mktemp("reviews")
    path = written(folder, "reviews.tsv", REVIEWS)
    settings = FinetuningSettings(
        task="text-classification",
        train=path,
        valid=path,
        source=str(CHARACTER),
        epochs=1,
    )
    from roformer_keras.training.finetune import finetune as train

    with pytest.MonkeyPatch.context() as patch:
        train_eagerly(patch)
        train(settings, folder / "run", verbose=False)
    return folder


# === finetune ===


def test_finetune(tmp_path, capsys, monkeypatch):
    path = written(tmp_path, "a.tsv", REVIEWS)
    arguments = [
        *("finetune", "text-classification", "--train", path, "--holdout", "0.25"),
        *("--source", CHARACTER, "--output", tmp_path / "run", "--epochs", "1"),
    ]
    monkeypatch.setattr(finetune, "shows_progress", lambda quiet: not quiet)
    code, out, err = run_main(*arguments, capsys=capsys)
    assert (code, out) == (0, f"{tmp_path / 'run' / 'preset'}\n")
    # Keras's bar, with the figures of what is held out, and the report.
    assert "val_macro_f1: " in err
    assert "task                   text-classification\n" in err
    code, out, err = run_main(*arguments, "--quiet", capsys=capsys)
    assert (code, out, err) == (0, f"{tmp_path / 'run' / 'preset'}\n", "")
    code, _, err = run_main(*arguments, "--seed", "4", capsys=capsys)
    assert code == 4
    assert "holds another run: seed was 0, now 4" in err
    # The backbone goes back with one command.
    code, out, _ = run_main(
        "convert", tmp_path / "run", tmp_path / "back.zip", capsys=capsys
    )
    assert (code, out) == (0, f"{tmp_path / 'back.zip'}\n")
    assert RoFormerBackbone.from_preset(tmp_path / "back.zip").config.num_layers == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("text-regression --train a.tsv", "using roformer-char, a small"),
        ("text-regression --train a.tsv --source P", "line 1 of a.tsv: a label"),
        (
            "text-classification --train a.tsv --source P --lora-rank 4 "
            "--adversarial-epsilon 1",
            "adversarial_epsilon moves embeddings, which lora_rank freezes",
        ),
    ],
)
def test_finetune_refuses(line, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "a.tsv", REVIEWS)
    words = [str(CHARACTER) if word == "P" else word for word in line.split()]
    code, out, err = run_main("finetune", *words, "-o", "run", capsys=capsys)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_an_interruption_says_what_is_kept(tmp_path, monkeypatch, capsys):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("roformer_keras.training.finetune.finetune", interrupt)
    code, out, err = run_main(
        *("finetune", "text-classification", "--train", "a.tsv", "--source", "p"),
        *("--output", "run"),
        capsys=capsys,
    )
    assert (code, out) == (130, "")
    assert err == (
        "roformer-keras: what was saved is kept in run; run the same command again to "
        "resume\nroformer-keras: interrupted\n"
    )


def test_a_report_shows_that_jaccard_beats_the_model(tmp_path, capsys):
    """Any comparison of characters tells these pairs apart, and a new model cannot."""
    random = np.random.default_rng(0)
    letters = [chr(code) for code in range(0x4E00, 0x4E00 + 200)]
    texts = ["".join(random.choice(letters, 8, replace=False)) for _ in range(24)]
    rows = []
    for number in range(96):
        # Each first text is in four rows.
        first, other = texts[number % 24], random.choice(letters, 8, replace=False)
        is_same = number % 48 < 24
        second = first[:6] if is_same else "".join(sorted({*other} - {*first}))
        rows.append((first, second, "同" if is_same else "异"))
    path = written(tmp_path, "pairs.tsv", lines(*rows))
    train = ("finetune", "text-classification", "--train", path, "--pairs")
    train += ("--source", CHARACTER, "--epochs", "1", "--holdout", "0.25", "-o")
    code, _, err = run_main(*train, tmp_path / "leaky", capsys=capsys)
    assert code == 0, err
    page = (tmp_path / "leaky" / "report.txt").read_text("utf-8")
    assert (
        "! the model is not better than 'Jaccard of characters': its accuracy" in page
    )
    assert "! 24 of 24 rows of valid have a text that is also in the training" in page
    assert "--holdout-by COLUMN keeps such rows on one side" in page

    train += (tmp_path / "run", "--holdout-by", "1,2")
    code, _, err = run_main(*train, capsys=capsys)
    assert code == 0, err
    report = json.loads((tmp_path / "run" / "report.json").read_text("utf-8"))
    assert report["leaks"] == {"valid": 0}
    assert report["held out"] == "24 of 96 rows; holdout asks for 24"
    found = report["valid"]
    assert found["rows"] == 24
    baseline = found["baselines"]["Jaccard of characters"]
    assert baseline["accuracy"] == 1 > found["intervals"]["accuracy"][1]
    assert baseline["intervals"]["accuracy"] == pytest.approx([0.8620, 1], abs=1e-4)
    assert any("not better than 'Jaccard" in remark for remark in found["remarks"])
    wrong = round((1 - found["accuracy"]) * 24)
    assert len(found["errors"]) == min(wrong, 20) > 0
    for error in found["errors"]:
        line = rows[error["line"] - 1]
        assert line == (error["first"], error["second"], error["expected"])
        assert error["predicted"] != error["expected"] and error["confidence"] >= 0.5
    page = (tmp_path / "run" / "report.txt").read_text("utf-8")
    assert "have a text that is also" not in page

    # On another file, baselines are still those of the training data.
    other = written(tmp_path, "other.tsv", lines(*(row for row in rows if "异" in row)))
    for source in ("run", "run/preset"):
        code, out, err = run_main(
            *("evaluate", tmp_path / source, other, "--fields", "1,2,3", "--json"),
            capsys=capsys,
        )
        assert code == 0, err
        again = json.loads(out)
        assert again["baselines_from"] == "the training data"
        own = again["baselines"]["Jaccard of characters"]
        assert own["threshold"] == baseline["threshold"]
        assert own["accuracy"] == 1
    (tmp_path / "run" / "preset" / "baselines.json").unlink()
    code, out, _ = run_main("evaluate", tmp_path / "run", other, capsys=capsys)
    assert code == 0 and "baselines from         this file\n" in out
    written(tmp_path / "run" / "preset", "baselines.json", "{")
    code, _, err = run_main("evaluate", tmp_path / "run", other, capsys=capsys)
    assert code == 2 and "baselines.json must be what finetune wrote" in err


# === predict ===


def test_predict(reviews, tmp_path, monkeypatch, capsys):
    run = reviews / "run"
    texts = ["今天天气不错", "不是我们"]
    code, out, err = run_main(
        *("predict", run, "--text", texts[0], "--text", texts[1]), capsys=capsys
    )
    assert (code, err) == (0, "")
    expected = json_lines(out)
    assert [line["text"] for line in expected] == texts
    for line in expected:
        assert {*line["probabilities"]} == {"好", "坏"}
        assert (
            max(line["probabilities"], key=line["probabilities"].get) == (line["label"])
        )
        assert sum(line["probabilities"].values()) == pytest.approx(1, abs=1e-5)

    # The same texts in whatever way they come.
    files = {
        "a.txt": f"{texts[0]}\n\n{texts[1]}\n",
        "a.tsv": f"{texts[0]}\t好\n{texts[1]}\t\n",
        "a.csv": f"text\n{texts[0]}\n{texts[1]}\n",
        "a.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in texts),
    }
    for name, content in files.items():
        path = written(tmp_path, name, content)
        code, out, err = run_main("predict", run, path, capsys=capsys)
        assert (code, err) == (0, ""), name
        assert json_lines(out) == expected, name
    give_stdin(monkeypatch, files["a.txt"])
    assert (
        json_lines(run_main("predict", run / "preset", "-", capsys=capsys)[1])
        == expected
    )
    path = written(tmp_path, "b.tsv", lines(*(("x", text) for text in texts)))
    _, out, _ = run_main("predict", run, path, "--fields", "2", capsys=capsys)
    assert json_lines(out) == expected
    # A label is no second text.
    both = written(tmp_path, "c.csv", f"text,label\n{texts[0]},好\n{texts[1]},坏\n")
    _, out, _ = run_main("predict", run, both, "--fields", "text,label", capsys=capsys)
    assert json_lines(out) == expected

    target = tmp_path / "out.jsonl"
    code, out, _ = run_main("predict", run, path, "-o", target, capsys=capsys)
    assert (code, out) == (0, f"{target}\n")
    assert [line["text"] for line in json_lines(target.read_text("utf-8"))] == [
        "x",
        "x",
    ]
    code, _, err = run_main("predict", run, path, "-o", target, capsys=capsys)
    assert code == 4 and "exists" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a file of texts, or - for standard input, or --text TEXT"),
        (["a.tsv", "--text", "天"], "give a file of texts, or -"),
        (["none.tsv"], "cannot read none.tsv: No such file"),
        (["a.tsv", "-o", "out.tsv"], "the output must end in .jsonl"),
        (["a.tsv", "--fields", "a"], "line 1 of a.tsv must name the columns 'a'"),
        (["--text", ""], "a text must not be empty"),
        (["--text", "天", "--text", "天", "气"], "as many texts as the first, 1"),
        (["empty.tsv"], "empty.tsv has no row"),
    ],
)
def test_predict_refuses(arguments, message, reviews, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "a.tsv", REVIEWS)
    written(tmp_path, "empty.tsv", "")
    code, out, err = run_main("predict", reviews / "run", *arguments, capsys=capsys)
    assert (code, out) == (2, "")
    assert message in err


def test_a_reader_that_has_enough_ends_it_quietly(reviews, tmp_path):
    path = written(tmp_path, "a.txt", "今天天气不错\n" * 3000)
    with subprocess.Popen(
        [sys.executable, "-m", "roformer_keras", "predict", reviews / "run", path],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert json.loads(process.stdout.readline())["text"] == "今天天气不错"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_ctrl_c_ends_a_training_that_can_be_resumed(reviews, tmp_path):
    path, run = reviews / "reviews.tsv", tmp_path / "run"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "roformer_keras", "finetune"),
            *("text-classification", "--train", path, "--source", CHARACTER),
            *("--output", run, "--epochs", "100000", "--batch-size", "2"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=interruptible,
        text=True,
    )
    while not (run / "state.safetensors").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.endswith(
        f"roformer-keras: what was saved is kept in {run}; run the same command again "
        "to resume\nroformer-keras: interrupted\n"
    )


def test_embed_gives_the_vectors_of_a_fine_tuned_encoder(tmp_path, capsys):
    encoder = RoFormerSentenceEncoder.from_preset(
        CHARACTER, pooling="mean", max_length=8
    )
    encoder.save_to_preset(tmp_path / "encoder")
    texts = ["今天天气不错", "我们在北京大学学习语言模型"]
    written(tmp_path, "texts.txt", "".join(f"{text}\n" for text in texts))
    for flags, expected in (
        ([], encoder.encode(texts, verbose=0)),
        (["--no-normalize"], encoder.encode(texts, normalize=False, verbose=0)),
    ):
        code, out, _ = run_main(
            *("embed", "--source", tmp_path / "encoder"),
            *(tmp_path / "texts.txt", *flags),
            capsys=capsys,
        )
        assert code == 0
        found = [line["vector"] for line in json_lines(out)]
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.linalg.norm(expected, axis=1).max() > 1.5
    # Found before the work, wherever it stands.
    path = written(tmp_path, "blank.txt", "好\n" * 4099 + "\n坏\n")
    code, out, err = run_main(
        *("embed", "--source", tmp_path / "encoder", path), capsys=capsys
    )
    assert (code, out) == (2, "")
    assert f"line 4100 of {path}: a text must not be empty" in err


def test_similarity_by_a_fine_tuned_encoder(tmp_path, capsys):
    encoder = RoFormerSentenceEncoder.from_preset(
        CHARACTER, pooling="mean", max_length=8
    )
    encoder.save_to_preset(tmp_path / "encoder")
    pairs = [("今天天气不错", "天气不错"), ("你好", "我们在北京大学学习语言模型")]
    flags = [flag for pair in pairs for flag in ("--pair", *pair)]
    code, out, _ = run_main(
        "similarity", "--source", tmp_path / "encoder", *flags, capsys=capsys
    )
    assert code == 0
    found = [line["similarity"] for line in json_lines(out)]
    expected = encoder.similarity(*zip(*pairs, strict=True), verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-6)


# === evaluate ===


def test_evaluate(reviews, tmp_path, monkeypatch, capsys):
    run, path = reviews / "run", str(reviews / "reviews.tsv")
    report = json.loads((run / "report.json").read_text("utf-8"))["valid"]
    code, out, err = run_main("evaluate", run, path, "--json", capsys=capsys)
    assert (code, err) == (0, "")
    assert json.loads(out) == report
    # With a bar on a terminal.
    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "shows_progress", lambda quiet: not quiet)
        for flags in ([], ["--quiet"]):
            code, out, err = run_main("evaluate", run, path, *flags, capsys=capsys)
            assert code == 0 and "100%" not in out
            assert ("100%" in err) == (not flags)
    target = tmp_path / "report"
    code, out, _ = run_main("evaluate", run, path, "--output", target, capsys=capsys)
    assert code == 0
    assert f"accuracy               {report['accuracy']:.4f}\n" in out
    assert (target / "report.txt").read_text("utf-8") == out
    assert json.loads((target / "report.json").read_text("utf-8")) == {
        "evaluation": report
    }
    assert all((target / name).is_file() for name in results.REPORTS)
    code, _, err = run_main("evaluate", run, path, "--output", target, capsys=capsys)
    assert code == 4 and "exists" in err
    bad = written(tmp_path, "bad.tsv", "你好\t好\n天气\t中\n")
    code, out, err = run_main("evaluate", run, bad, capsys=capsys)
    assert (code, out) == (2, "")
    assert f"line 2 of {bad}: a label must be" in err
    code, _, err = run_main("evaluate", run, path, "--fields", "1", capsys=capsys)
    assert code == 2
    assert "fields must name 1 or 2 texts and a label, got 1" in err


def test_bad_rows_are_left_out_and_listed(tmp_path, capsys):
    good = "她 O\n在 O\n北 B-LOC\n京 E-LOC\n\n我 S-PER\n在 O\n"
    bad = "坏 X-LOC\n的 O\n\n"
    path = written(tmp_path, "a.bio", f"{bad}{good}")
    train = ("finetune", "token-classification", "--train", path, "--test", path)
    train += ("--source", CHARACTER, "--epochs", "1", "-o")
    code, _, err = run_main(*train, tmp_path / "strict", capsys=capsys)
    assert code == 2
    assert "line 1 of" in err and "a tag must be O" in err
    skip = ("--on-bad-row", "skip")
    code, out, err = run_main(*train, tmp_path / "run", *skip, capsys=capsys)
    assert code == 0, err
    report = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    assert report["test"]["rows"] == 2
    assert [row["line"] for row in report["test"]["skipped"]] == [1]
    assert report["left out of train"].startswith("line 1: a tag must be O")
    code, out, err = run_main("evaluate", tmp_path / "run", path, *skip, capsys=capsys)
    assert code == 0, err
    assert "skipped                1\n  line 1: a tag must be" in out
    code, out, err = run_main("evaluate", tmp_path / "run", path, capsys=capsys)
    assert code == 2 and "line 1 of" in err
