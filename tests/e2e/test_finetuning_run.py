"""Fine-tuning from files to a model that serves, and resumed after an interruption."""

import json
import shutil
from contextlib import suppress
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from common import (
    CHARACTER,
    V2,
    interruptible,
    read_json,
    run,
    to_json_lines,
    write_file,
    write_lines,
)
from finetuning_cases import (
    BAD,
    CHOICES,
    COUPLES,
    GOOD,
    NER,
    NESTED,
    PAIRS,
    QUESTIONS,
    RELATIONS,
    REVIEWS,
    SPEECH,
    TRIPLETS,
    lines,
)
from interruptions import InterruptAfter, Interrupted
from matplotlib import font_manager
from one_layer import write_lowest_layer
from sources import assert_same, assert_same_weights, weights

from roformer_keras import RoFormerBackbone, RoFormerTextClassifier, convert
from roformer_keras.base.errors import ConfigurationError, OutputError, SourceError
from roformer_keras.tasks.finetuned import load_finetuned
from roformer_keras.tasks.finetuning_settings import FinetuningSettings
from roformer_keras.tasks.load import load_model
from roformer_keras.training import finetuning_plots as pictures
from roformer_keras.training import results
from roformer_keras.training.finetune import FinetuningRun, _AfterEpoch, finetune
from roformer_keras.training.log import read_log
from roformer_keras.training.state import load_metadata

# `tf.data` traces its functions in eager tests too, and warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:Even though the `tf.config")

SEVERAL = lines(*((t, ",".join("天学" if "天" in t else "")) for t in GOOD))
SAME = lines(*((a, b, "同异"[len(a) % 2]) for a, b in COUPLES))
CLASSES = "accuracy macro_f1 classes confusion"
SPANS = "precision recall f1 macro_f1 classes"
CHOSEN = "context question choices label choice probabilities"
# A file for a task, the names of its figures, and of the parts of an answer.
CASES = {
    "classes": ("text-classification", "a.tsv", REVIEWS),
    "several-classes": ("text-classification", "a.tsv", SEVERAL),
    "numbers": ("text-regression", "a.tsv", PAIRS),
    "cosines": ("sentence-embedding", "a.tsv", PAIRS),
    "sameness": ("sentence-embedding", "a.tsv", SAME),
    "contrast": ("sentence-embedding", "a.tsv", REVIEWS),
    "triplets": ("triplet-ranking", "a.tsv", TRIPLETS),
    "tags": ("token-classification", "a.bio", NER),
    "plain-tags": ("token-classification", "a.conll", SPEECH),
    "spans": ("span-extraction", "a.jsonl", NESTED),
    "relations": ("relation-extraction", "a.jsonl", RELATIONS),
    "answers": ("question-answering", "a.jsonl", QUESTIONS),
    "choices": ("multiple-choice", "a.csv", CHOICES),
}
SHOWN = {
    "classes": (CLASSES, "text label probabilities"),
    "several-classes": ("accuracy macro_f1 classes", "text labels probabilities"),
    "numbers": ("spearman pearson mean_absolute_error", "first second score"),
    "cosines": ("spearman pearson", "first second similarity"),
    "sameness": (CLASSES, "first second similarity"),
    "contrast": ("accuracy", "text vector"),
    "triplets": (CLASSES, "first second third label probabilities"),
    "tags": (SPANS, "text spans"),
    "plain-tags": (SPANS, "text spans"),
    "spans": (SPANS, "text spans"),
    "relations": (SPANS, "text relations"),
    "answers": ("exact_match f1", "first second answer"),
    "choices": ("accuracy", CHOSEN),
}
CHANGES = {
    "several-classes": {"options": {"multi_label": True}},
    "numbers": {"pairs": True},
    "sameness": {"options": {"objective": "classification"}},
    "contrast": {"options": {"objective": "contrastive"}},
    "triplets": {"max_length": 16},
    "tags": {"options": {"crf": True}},
    "plain-tags": {"options": {"tags": ["ns", "v", "r", "n"]}},
    "spans": {"options": {"head_dim": 8}},
    "relations": {"options": {"head_dim": 8}, "fields": ["text", "spo_list"]},
    "answers": {"fields": ["question", "context", "answer"]},
}
# One has a picture of each kind, and the others need not draw theirs.
DRAWN = "classes"


class CopyAfter(keras.callbacks.Callback):
    """Copies a folder as it is in the second epoch, which is as a kill leaves it."""

    def __init__(self, folder, copy):
        super().__init__()
        self.folder, self.copy = folder, copy

    def on_train_batch_end(self, batch, logs=None):
        if batch == 0 and (self.folder / "state.safetensors").exists():
            with suppress(FileExistsError):
                shutil.copytree(self.folder, self.copy)


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    return str(write_file(tmp_path_factory.mktemp("data") / "reviews.tsv", REVIEWS))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A checkpoint of one block, which is traced and computed faster."""
    path = tmp_path_factory.mktemp("small") / "small.zip"
    write_lowest_layer(CHARACTER, path)
    return str(path)


@pytest.fixture
def settings_of(small):
    """A function that makes settings from a file and what differs."""

    def make(train, task="text-classification", **changes):
        content = {
            "task": task,
            "train": str(train),
            "source": small,
            "epochs": 2,
            "batch_size": 4,
            "learning_rate": 1e-3,
            "model": {"dropout": 0.1},
        }
        return FinetuningSettings.from_dict({**content, **changes})

    return make


def train(settings, folder, **options):
    return finetune(settings, folder, verbose=False, **options)


def rows_of(folder):
    rows = read_log(folder / "log.csv")
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def read_report(folder):
    return read_json(folder / "report.json")


def is_picture(path):
    return path.read_bytes().startswith(b"\x89PNG")


# === A whole fine-tuning ===


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("name", CASES)
def test_a_file_becomes_a_model_that_serves(
    name, settings_of, tmp_path, monkeypatch, capsys
):
    (task, *file), run = CASES[name], tmp_path / "run"
    figures, answer = (set(words.split()) for words in SHOWN[name])
    path = str(write_file(tmp_path / file[0], file[1]))
    changes = {"valid": path, "epochs": 1, "batch_size": 8, **CHANGES.get(name, {})}
    if name != DRAWN:
        monkeypatch.setattr(results, "draw_comparison", lambda *_: None)
        monkeypatch.setattr(results, "draw_confusion", lambda *_: True)
        monkeypatch.setattr(
            "roformer_keras.training.finetune.draw_curves", lambda *_: None
        )
    model = train(settings_of(path, task, **changes), run)
    (row,) = rows_of(run)
    assert float(row["loss"]) >= 0 <= float(row["val_loss"])
    report = read_report(run)
    assert report["task"] == task
    added = {"intervals", "baselines", "baselines_from", "remarks", "errors"}
    assert report["valid"].keys() - {"file", "rows"} == figures | added
    assert report["valid"]["baselines_from"] == "the training data"
    assert report["leaks"] == {"valid": report["valid"]["rows"]}
    text = (run / "report.txt").read_text(encoding="utf-8")
    shown = figures - {"classes", "confusion"}
    assert all(name.replace("_", " ") in text for name in shown)
    if name == DRAWN:
        drawn = sorted(run.glob("*.png"))
        names = ["comparison.png", "confusion.png", "curves.png"]
        assert [path.name for path in drawn] == names
        assert all(map(is_picture, drawn))

    # From the folder alone.
    tuned = load_finetuned(run)
    assert type(tuned.task) is type(model)
    assert_same_weights(tuned.task, model)
    fields = changes.get("fields", ())
    rows = tuned.read_rows(path, fields[:-1])
    answers = tuned.answer([row for _, row in rows])
    assert len(answers) == report["valid"]["rows"] == len(rows)
    assert {*answers[0]} == answer
    json.dumps(answers)
    capsys.readouterr()
    assert tuned.evaluate(path) == report["valid"]
    assert "100%" not in capsys.readouterr().err
    # A copy of the preset has no fields, but knows how many texts a row has.
    alone = load_finetuned(shutil.copytree(run / "preset", tmp_path / "copy"))
    assert (alone.text_count, alone.fields) == (tuned.text_count, ())
    if fields:
        assert alone.evaluate(path, fields, verbose=True) == report["valid"]
        assert "100%" in capsys.readouterr().err
        # The preset in the folder reads files as the training did.
        assert load_finetuned(run / "preset").read_rows(path) == rows


@pytest.mark.usefixtures("eagerly")
def test_presets_and_zips_serve_without_the_folder(reviews, settings_of, tmp_path):
    run = tmp_path / "run"
    model = train(settings_of(reviews, test=reviews, epochs=1), run)
    # Without data to choose by the last weights stay.
    assert "val_loss" not in rows_of(run)[0]
    report = read_report(run)
    assert "valid" not in report and report["test"]["rows"] == 8
    for source, load in (
        (run, load_model),
        (run / "preset", RoFormerTextClassifier.from_preset),
    ):
        again = load(source)
        assert type(again) is RoFormerTextClassifier
        assert again.classes == ["坏", "好"]
        assert_same_weights(again, model)
    convert(run, tmp_path / "back.zip")
    assert_same_weights(
        RoFormerBackbone.from_preset(tmp_path / "back.zip"), model.backbone
    )
    # On another file baselines are still those of the training data.
    path = str(write_lines(tmp_path / "b.tsv", [f"{text}\t坏" for text in BAD]))
    report = load_finetuned(run).evaluate(path)
    assert report["baselines_from"] == "the training data"
    baselines = run / "preset" / "baselines.json"
    baselines.unlink()
    assert load_finetuned(run).evaluate(path)["baselines_from"] == "this file"
    baselines.write_text("{")
    with pytest.raises(SourceError, match="must be what finetune wrote"):
        load_finetuned(run)
    model.backbone.save_to_preset(tmp_path / "bare")
    with pytest.raises(ConfigurationError, match="must be a preset folder that a task"):
        load_finetuned(tmp_path / "bare")


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("multi_label", [False, True])
def test_classes_may_have_numbers_for_names(multi_label, small, tmp_path):
    """As those of a model that was trained from Python."""
    model = RoFormerTextClassifier.from_preset(
        small, num_classes=2, multi_label=multi_label
    )
    model.save_to_preset(tmp_path / "preset")
    tuned = load_finetuned(tmp_path / "preset")
    rows = ((text, n % 2) for n, text in enumerate(GOOD))
    path = str(write_file(tmp_path / "a.tsv", lines(*rows)))
    report = tuned.evaluate(path)
    assert [row["count"] for row in report["classes"].values()] == [2, 2]
    (answer,) = tuned.answer([("今天",)])
    assert {*answer["probabilities"]} == {"0", "1"}
    path = str(write_file(tmp_path / "b.tsv", "今天\t好\n"))
    with pytest.raises(
        SourceError, match=r"line 1 of .*b\.tsv: a label must be an int"
    ):
        tuned.evaluate(path)


@pytest.mark.usefixtures("eagerly")
def test_answers_have_the_type_of_the_labels_and_bad_rows_are_listed(
    settings_of, tmp_path
):
    rows = [{"text": text, "label": n % 2 > 0} for n, text in enumerate(GOOD)]
    content = to_json_lines([*rows, {"text": "今天"}])
    path = str(write_file(tmp_path / "a.jsonl", content))
    settings = settings_of(path, on_bad_row="skip", epochs=1)
    train(settings, tmp_path / "run")
    tuned = load_finetuned(tmp_path / "run")
    (answer,) = tuned.answer([("今天",)])
    assert answer["label"] in (True, False)
    assert {*answer["probabilities"]} == {"true", "false"}
    path = str(write_file(tmp_path / "b.csv", "今天,TRUE\n"))
    assert tuned.evaluate(path)["rows"] == 1
    text = read_report(tmp_path / "run")["left out of train"]
    assert text.startswith("1 row; line 5: ") and "must have 'text', 'label'" in text


@pytest.mark.usefixtures("eagerly")
def test_aids_go_together(reviews, settings_of, tmp_path):
    """Nothing that may be combined stands in another's way."""
    model = train(
        settings_of(
            reviews,
            source=str(V2),
            epochs=1,
            holdout=0.25,
            holdout_by=["1"],
            batch_size=4,
            accumulation=2,
            optimizer={"ema": 0.5, "weight_decay": 0.1, "clip_norm": 0.5},
            layer_decay=0.5,
            freeze_layers=1,
            adversarial_epsilon=0.5,
            r_drop=1.0,
            class_weights="balanced",
            dtype="mixed_bfloat16",
            gradient_checkpointing=True,
            schedule="constant",
            monitor="loss",
        ),
        tmp_path / "run",
    )
    assert model.dtype_policy.name == "mixed_bfloat16"
    before = weights(RoFormerBackbone.from_preset(V2))
    after = weights(model.backbone)
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    assert any("token_embedding" in path for path in changed)
    assert any("transformer_layer_1/" in path for path in changed)
    assert not any("transformer_layer_0/" in path for path in changed)
    report = read_report(tmp_path / "run")
    assert report["valid"]["rows"] == 2
    assert report["held out"] == "2 of 8 rows; holdout asks for 2"
    assert report["leaks"] == {"valid": 0}


def test_rates_and_weights_are_those_of_the_settings(settings_of, tmp_path):
    """Rates rise and fall over all epochs, and rare classes weigh more."""
    rows = [(t, "好") for t in GOOD + BAD[:2]] + [(t, "坏") for t in BAD[2:]]
    path = str(write_file(tmp_path / "a.tsv", lines(*rows)))
    changes = {"epochs": 4, "warmup_ratio": 0.5, "learning_rate": 0.01}
    settings = settings_of(path, class_weights="balanced", **changes)
    training = FinetuningRun(settings, tmp_path)
    training.prepare()
    labels = training.data.train.labels
    row_weights = dict(
        zip(labels, training.train_rows.class_weights.tolist(), strict=True)
    )
    assert row_weights == pytest.approx({"好": 4 / 6, "坏": 2})
    # Two updates an epoch.
    rate = training.trained.optimizer._learning_rate
    rates = [float(rate(updates)) for updates in (2, 4, 6, 8)]
    assert rates == pytest.approx([0.005, 0.01, 0.005, 0], abs=1e-8)


# === Interruptions ===


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": {"ema": 0.9}, "adversarial_epsilon": 1.0, "keep_best": False},
        {"accumulation": 2, "lora_rank": 2, "r_drop": 1.0, "patience": 2},
    ],
    ids=["ema-adversarial", "accumulation-lora-r-drop"],
)
def test_an_interrupted_training_ends_where_it_would_have(
    changes, reviews, small, settings_of, tmp_path
):
    settings = settings_of(reviews, valid=reviews, epochs=3, **changes)
    folder, other = tmp_path / "run", tmp_path / "whole"
    whole = train(settings, other, callbacks=[CopyAfter(other, folder)])
    state = load_metadata(folder / "state.safetensors")
    assert state["done"] == 1
    # What was written after the state is no part of it.
    with open(folder / "log.csv", "a") as log:
        log.write("2,0.1,")
    resumed = train(settings, folder)
    assert_same_weights(resumed, whole)
    assert rows_of(folder) == rows_of(other)
    for name in ("report.json", "report.txt"):
        assert (folder / name).read_bytes() == (other / name).read_bytes()
    if settings.lora_rank:
        # LoRA is merged into the weights, and untrained layers are not saved.
        before, after = (
            weights(RoFormerBackbone.from_preset(source)) for source in (small, folder)
        )
        changed = {n for n in before if not np.array_equal(before[n], after[n])}
        attention = "transformer_layer_0/attention"
        assert changed == {f"{attention}/{name}/kernel" for name in ("query", "value")}
        assert not any("embedding" in path for path in state["paths"]["model"])
    # Another training is refused, and an impossible one replaces nothing.
    with pytest.raises(OutputError, match="seed was 0, now 3"):
        train(settings_of(reviews, valid=reviews, epochs=3, seed=3, **changes), folder)
    with pytest.raises(ConfigurationError, match="no option crf"):
        train(settings_of(reviews, options={"crf": True}), folder, overwrite=True)
    # A training that has ended is not repeated, but its results are written again.
    (folder / "report.txt").unlink()
    again = train(settings, folder, callbacks=[InterruptAfter(0)])
    assert_same_weights(again, whole)
    assert (folder / "report.txt").is_file()


INTERRUPTED = """
import os, signal, sys
from roformer_keras.cli import main

replace = os.replace

def interrupting(source, target):
    replace(source, target)
    if str(target).endswith("state.safetensors"):
        os.kill(os.getpid(), signal.SIGINT)

os.replace = interrupting
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_ends_a_process_whose_training_can_be_resumed(
    reviews, settings_of, tmp_path
):
    """The signal comes when the first state is saved; another process goes on."""
    folder = tmp_path / "run"
    settings = settings_of(reviews, valid=reviews, epochs=3)
    process = run(
        INTERRUPTED,
        *("finetune", settings.task, "--train", reviews, "--valid", reviews),
        *("--source", settings.source, "--epochs", 3, "--batch-size", 4),
        *("--learning-rate", 1e-3, "--dropout", 0.1, "--output", folder),
        preexec_fn=interruptible,
    )
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (130, ""), err
    assert err.endswith(
        f"roformer-keras: what was saved is kept in {folder}; run the same command "
        "again to resume\nroformer-keras: interrupted\n"
    )
    assert load_metadata(folder / "state.safetensors")["done"] == 1
    assert not (folder / "preset").exists()
    resumed, whole = (train(settings, path) for path in (folder, tmp_path / "whole"))
    assert_same_weights(resumed, whole)
    assert rows_of(folder) == rows_of(tmp_path / "whole")


@pytest.mark.usefixtures("eagerly")
def test_the_best_epoch_is_kept_and_ends_the_training(
    reviews, settings_of, tmp_path, monkeypatch
):
    figures = iter([0.5, None, 0.7, 0.6, 0.7, 0.9])
    evaluated, seen = [], []

    def evaluate(run):
        evaluated.append(next(figures))
        seen.append(weights(run.model))
        return {"loss": 1.0, "accuracy": evaluated[-1], "macro_f1": 0.0}

    monkeypatch.setattr(FinetuningRun, "evaluate", evaluate)
    settings = settings_of(reviews, valid=reviews, epochs=9, patience=2)
    # After the best epoch, which the state has then.
    with pytest.raises(Interrupted):
        train(settings, tmp_path / "run", callbacks=[InterruptAfter(2 * 4 + 1)])
    model = train(settings, tmp_path / "run")
    assert evaluated == [0.5, None, 0.7, 0.6, 0.7]
    assert_same(weights(model), seen[2])
    report = read_report(tmp_path / "run")
    assert (report["epochs"], report["kept epoch"]) == (5, 3)


def test_the_best_epoch_goes_by_what_is_monitored():
    nan = float("nan")
    for monitor, values, best in (
        ("accuracy", [0.5, 0.7, 0.7, 0.6], 2),
        ("accuracy", [None, nan, 0.1], 3),
        ("loss", [0.5, 0.3, 0.4], 2),
        ("mean_absolute_error", [2.0, 1.0, nan], 2),
    ):
        settings = SimpleNamespace(keep_best=False)
        run = SimpleNamespace(
            monitor=monitor, progress={"best": None}, settings=settings
        )
        for epoch, value in enumerate(values, 1):
            run.progress["best"] = FinetuningRun.compare(run, value, epoch)
        assert run.progress["best"] == {"epoch": best, "value": values[best - 1]}


def test_a_loss_that_is_no_number_ends_a_training_unsaved():
    # Nothing else of the run is used.
    callback = _AfterEpoch(SimpleNamespace())
    with pytest.raises(ConfigurationError, match="loss must be finite, in epoch 1"):
        callback.on_epoch_end(0, {"loss": float("nan")})


# === What goes wrong ===

# Of each task: a file to train on, one with a mistake, and the mistake.
MISTAKES = {
    "text-classification": (
        ("a.tsv", REVIEWS),
        ("v.tsv", "你好\t好\n天气\t中\n"),
        r"line 2 of .*v\.tsv: a label must be .* of \['坏', '好'\], got '中'",
    ),
    "token-classification": (
        ("a.bio", NER),
        ("v.bio", "她 O\n\n去 O\n北京 B-国\n"),
        r"line 3 of .*v\.bio: a label must be one of \['人', '地'\], got '国'",
    ),
    "sentence-embedding": (
        ("a.tsv", "甲\t乙\t同\n丙\t丁\t异\n"),
        ("v.tsv", "甲\t乙\t同\n丙\t丁\t似\n"),
        r"line 2 of .*v\.tsv: a label must be .* of \['同', '异'\], got '似'",
    ),
}


def test_what_no_model_can_learn_is_named_with_its_line(settings_of, tmp_path):
    for task, (train_file, valid_file, message) in MISTAKES.items():
        is_encoder = task == "sentence-embedding"
        options = {"objective": "classification"} if is_encoder else {}
        path, valid = (
            str(write_file(tmp_path / name, content))
            for name, content in (train_file, valid_file)
        )
        settings = settings_of(path, task, valid=valid, options=options)
        with pytest.raises(SourceError, match=message):
            FinetuningRun(settings, tmp_path / "run").prepare()


def test_settings_that_cannot_be(reviews, settings_of, tmp_path):
    three = str(write_file(tmp_path / "three.tsv", "甲\t1\n乙\t2\n丙\t3\n"))
    for changes, error, message in (
        ({"options": {"crf": True}}, ConfigurationError, "has no option crf"),
        ({"monitor": "f2", "holdout": 0.5}, ConfigurationError, "one of loss, accur"),
        (
            {"train": three, "valid": three, "monitor": "f1"},
            ConfigurationError,
            "macro_f1, matthews, got 'f1'",
        ),
        ({"batch_size": 64, "accumulation": 8}, ConfigurationError, "8 parts of 8 row"),
        ({"source": "nothing"}, SourceError, "no file or folder nothing"),
        ({"train": "nothing.tsv"}, SourceError, "cannot read nothing.tsv"),
        ({"class_weights": {"中": 2.0}}, ConfigurationError, "of class_weight"),
        ({"model": {"hidden_dim": 15}}, ConfigurationError, "multiple of num_heads"),
    ):
        settings = settings_of(**{"train": reviews, **changes})
        with pytest.raises(error, match=message):
            train(settings, tmp_path / "run")
        assert not (tmp_path / "run" / "settings.json").exists()


def test_folders_that_answer_nothing(tmp_path):
    run = tmp_path / "run"
    message = "must be of a fine-tuning, and is not"
    with pytest.raises(SourceError, match="must be a folder of a fine-tuning"):
        load_finetuned(run)
    run.mkdir()
    with pytest.raises(SourceError, match="no checkpoint in"):
        load_finetuned(run)
    write_file(run / "settings.json", "{}")
    with pytest.raises(SourceError, match="has no preset yet"):
        load_finetuned(run)
    (run / "preset").mkdir()
    for content in ('{"settings": {"objective": "mlm"}}', "[" * 100_000):
        write_file(run / "settings.json", content)
        with pytest.raises(ConfigurationError, match=message):
            load_finetuned(run)


# === Pictures ===


def test_classes_without_a_font_are_numbered(tmp_path, monkeypatch):
    assert pictures.draw_confusion(
        [[3, 1], [0, 2]], ["bad", "good"], tmp_path / "a.png"
    )
    latin = [e for e in font_manager.fontManager.ttflist if e.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", latin)
    figures = {"precision": 1.0, "recall": 1.0, "f1": 1.0, "count": 2}
    report = {"classes": dict.fromkeys("坏好", figures), "confusion": [[3, 1], [0, 2]]}
    text = results.write_reports(tmp_path, {}, {"valid": report})
    assert "numbers in confusion.png\n    1  坏\n    2  好\n" in text
    assert is_picture(tmp_path / "confusion.png")
    assert (tmp_path / "report.txt").read_text(encoding="utf-8") == text


def test_figures_that_are_undefined_are_left_out(tmp_path):
    """As those of answers that are all equal."""
    report = {"spearman": 0.5, "pearson": 0.25}
    report["intervals"] = {"spearman": [0.25, 0.75], "pearson": None}
    report["baselines"] = {"mean": {"intervals": {}}}
    report["baselines"]["TF-IDF"] = {"spearman": 0.25, "intervals": {"spearman": None}}
    pictures.draw_comparison(report, tmp_path / "a.png")
    assert is_picture(tmp_path / "a.png")
    # A file of one row has no figures with intervals.
    results.write_reports(tmp_path, {}, {"test": {"intervals": {}, "baselines": {}}})
    assert not (tmp_path / results.COMPARISON).exists()


@pytest.mark.parametrize(
    "names", ["", "accuracy", "val_loss,val_f1", "accuracy,val_f1"]
)
@pytest.mark.parametrize("best", [None, 1])
def test_curves_of_any_figures_are_drawn_without_a_warning(names, best, tmp_path):
    """Without held-out data nothing but the loss is known of some tasks."""
    columns = ["epoch", "loss", *filter(None, names.split(","))]
    rows = [columns, *([str(n)] + ["0.5"] * (len(columns) - 1) for n in (1, 2))]
    log = write_lines(tmp_path / "log.csv", map(",".join, rows))
    for metric in (None, "accuracy"):
        pictures.draw_curves(log, tmp_path / "a.png", "f1", metric, best)
        assert is_picture(tmp_path / "a.png")
