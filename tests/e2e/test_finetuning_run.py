"""Fine-tuning from files to a model that serves, and resumed after an interruption."""

import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import keras
import numpy as np
import pytest
from common import CHARACTER, V2
from finetuning_cases import (
    BAD,
    CHOICES,
    COUPLES,
    GOOD,
    NER,
    NESTED,
    ONE_BLOCK,
    PAIRS,
    QUESTIONS,
    REVIEWS,
    TRIPLETS,
    lines,
    train_eagerly,
    written,
)
from interruptions import InterruptAfter, Interrupted
from matplotlib import font_manager
from sources import assert_same_weights, weights

from roformer_keras import RoFormerBackbone, RoFormerTextClassifier, convert
from roformer_keras.errors import ConfigurationError, OutputError, SourceError
from roformer_keras.tasks.load import load_model
from roformer_keras.training import finetuning_plots as pictures
from roformer_keras.training import results
from roformer_keras.training.finetune import FinetuningRun, finetune
from roformer_keras.training.finetuning_data import read_data
from roformer_keras.training.finetuning_settings import FinetuningSettings
from roformer_keras.training.log import read_log
from roformer_keras.training.results import load_finetuned
from roformer_keras.training.state import load_metadata

CLASSES = "accuracy macro_f1 classes confusion"
SPANS = "precision recall f1 macro_f1 classes"
NUMBERED = lines(*((a, b, n % 2) for n, (a, b) in enumerate(COUPLES)))
SEVERAL = lines(*((t, ",".join("天学" if "天" in t else "")) for t in GOOD))
SAME = lines(*((a, b, "同异"[len(a) % 2]) for a, b in COUPLES))
# Of each: the file, settings, the figures, and the answer for a row.
CASES = {
    "classes": (
        *("text-classification", ("a.tsv", REVIEWS), {}),
        *(CLASSES, "text label probabilities"),
    ),
    "classes-of-pairs": (
        *("text-classification", ("a.tsv", NUMBERED)),
        {"pairs": True, "options": {"pooling": "mean"}},
        *(CLASSES, "first second label probabilities"),
    ),
    "several-classes": (
        *(
            "text-classification",
            ("a.tsv", SEVERAL),
            {"options": {"multi_label": True}},
        ),
        *("accuracy macro_f1 classes", "text labels probabilities"),
    ),
    "numbers": (
        *("text-regression", ("a.tsv", PAIRS), {"pairs": True}),
        *("spearman pearson mean_absolute_error", "first second score"),
    ),
    "cosines": (
        *("sentence-embedding", ("a.tsv", PAIRS), {}),
        *("spearman pearson", "first second similarity"),
    ),
    "sameness": (
        *("sentence-embedding", ("a.tsv", SAME)),
        {"options": {"objective": "classification"}},
        *(CLASSES, "first second similarity"),
    ),
    "contrast": (
        *("sentence-embedding", ("a.tsv", REVIEWS)),
        *({"options": {"objective": "contrastive"}}, "accuracy", "text vector"),
    ),
    "triplets": (
        *("triplet-ranking", ("a.tsv", TRIPLETS), {"max_length": 16}),
        *(CLASSES, "first second third label probabilities"),
    ),
    "tags": (
        *("token-classification", ("a.bio", NER), {"options": {"crf": True}}),
        *(SPANS, "text spans"),
    ),
    "spans": (
        *("span-extraction", ("a.jsonl", NESTED), {"options": {"head_dim": 8}}),
        *(SPANS, "text spans"),
    ),
    "answers": (
        *("question-answering", ("a.jsonl", QUESTIONS)),
        {"fields": ["question", "context", "answer"]},
        *("exact_match f1", "first second answer"),
    ),
    "choices": (
        *("multiple-choice", ("a.csv", CHOICES), {}),
        *("accuracy", "context question choices label choice probabilities"),
    ),
}


class CopyAfter(keras.callbacks.Callback):
    """Copies a folder as it is in the second epoch, which is as a kill leaves it."""

    def __init__(self, folder, copy):
        super().__init__()
        self.folder, self.copy = folder, copy

    def on_train_batch_end(self, batch, logs=None):
        if batch == 0 and (self.folder / "state.safetensors").exists():
            with suppress(FileExistsError):
                shutil.copytree(self.folder, self.copy)


def settings_of(train, task="text-classification", **changes):
    content = {
        "task": task,
        "train": str(train),
        "source": str(CHARACTER),
        "epochs": 2,
        "batch_size": 4,
        "learning_rate": 1e-3,
        "model": {"dropout": 0.1},
    }
    return FinetuningSettings.from_dict({**content, **changes})


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    return written(tmp_path_factory.mktemp("data"), "reviews.tsv", REVIEWS)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A preset of one block, which is traced and computed faster."""
    folder = tmp_path_factory.mktemp("small") / "preset"
    RoFormerBackbone.from_preset(CHARACTER, **ONE_BLOCK).save_to_preset(folder)
    return str(folder)


@pytest.fixture
def eagerly(monkeypatch):
    train_eagerly(monkeypatch)


def train(settings, folder, **options):
    return finetune(settings, folder, verbose=False, **options)


def rows_of(folder):
    rows = read_log(folder / "log.csv")
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


# === A whole fine-tuning ===


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("case", CASES)
def test_a_file_becomes_a_model_that_serves(case, small, tmp_path, capsys):
    task, file, changes, *words = CASES[case]
    figures, answer = (set(own.split()) for own in words)
    path, run = written(tmp_path, *file), tmp_path / "run"
    changes = {"valid": path, "epochs": 1, "batch_size": 8, **changes}
    model = train(settings_of(path, task, source=small, **changes), run)
    (row,) = rows_of(run)
    assert float(row["loss"]) >= 0 <= float(row["val_loss"])
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert report["task"] == task
    added = {"intervals", "baselines", "baselines_from", "remarks", "errors"}
    assert report["valid"].keys() - {"file", "rows"} == figures | added
    assert report["valid"]["baselines_from"] == "the training data"
    assert report["leaks"] == {"valid": report["valid"]["rows"]}
    text = (run / "report.txt").read_text(encoding="utf-8")
    assert all(
        name.replace("_", " ") in text for name in figures - {"classes", "confusion"}
    )
    drawn = {"curves.png", "comparison.png"}
    drawn |= {"confusion.png"} & {f"{name}.png" for name in figures}
    assert {path.name for path in run.glob("*.png")} == drawn
    assert all((run / name).read_bytes().startswith(b"\x89PNG") for name in drawn)

    # From the folder alone.
    tuned = load_finetuned(run)
    assert type(tuned.task) is type(model)
    assert_same_weights(tuned.task, model)
    fields = changes.get("fields", ())[:-1]
    found = [row for _, row, _ in tuned.read_rows(path, fields)]
    answers = tuned.answer(found)
    assert len(answers) == report["valid"]["rows"] == len(found)
    assert {*answers[0]} == answer
    json.dumps(answers)
    capsys.readouterr()
    assert tuned.evaluate(path) == report["valid"]
    assert "100%" not in capsys.readouterr().err
    # The preset in the folder reads files likewise.
    assert load_finetuned(run / "preset").read_rows(path) == tuned.read_rows(path)
    # A copy has no fields, but knows how many texts a row has.
    alone = load_finetuned(shutil.copytree(run / "preset", tmp_path / "copy"))
    assert alone.text_count == tuned.text_count
    fields = changes.get("fields", ())
    assert alone.evaluate(path, fields, verbose=True) == report["valid"]
    assert "100%" in capsys.readouterr().err


@pytest.mark.usefixtures("eagerly")
def test_presets_and_zips_serve_without_the_folder(reviews, tmp_path):
    run = tmp_path / "run"
    model = train(settings_of(reviews, test=reviews, epochs=1), run)
    # Without data to choose by the last weights stay.
    assert "val_loss" not in rows_of(run)[0]
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert "valid" not in report and report["test"]["rows"] == 8
    for source in (run, run / "preset"):
        for load in (load_model, RoFormerTextClassifier.from_preset):
            again = load(source)
            assert type(again) is RoFormerTextClassifier
            assert again.classes == ["坏", "好"]
            assert_same_weights(again, model)
    alone = load_finetuned(run / "preset")
    assert alone.evaluate(reviews) == report["test"]
    convert(run, tmp_path / "back.zip")
    assert_same_weights(
        RoFormerBackbone.from_preset(tmp_path / "back.zip"), model.backbone
    )
    model.backbone.save_to_preset(tmp_path / "bare")
    with pytest.raises(ConfigurationError, match="must be a preset folder that a task"):
        load_finetuned(tmp_path / "bare")


@pytest.mark.parametrize("multi_label", [False, True])
def test_classes_may_have_numbers_for_names(multi_label, tmp_path):
    """As those of a model that was trained from Python."""
    model = RoFormerTextClassifier.from_preset(
        CHARACTER, num_classes=2, multi_label=multi_label
    )
    model.save_to_preset(tmp_path / "preset")
    tuned = load_finetuned(tmp_path / "preset")
    path = written(tmp_path, "a.tsv", lines(*((t, n % 2) for n, t in enumerate(GOOD))))
    report = tuned.evaluate(path)
    assert [own["count"] for own in report["classes"].values()] == [2, 2]
    (answer,) = tuned.answer([("今天",)])
    assert {*answer["probabilities"]} == {"0", "1"}
    path = written(tmp_path, "b.tsv", "今天\t好\n")
    with pytest.raises(
        SourceError, match=r"line 1 of .*b\.tsv: a label must be an int"
    ):
        tuned.evaluate(path)


@pytest.mark.usefixtures("eagerly")
def test_aids_go_together(reviews, tmp_path):
    """Nothing that may be combined stands in another's way."""
    model = train(
        settings_of(
            reviews,
            source=str(V2),
            holdout=0.25,
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
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["valid"]["rows"] == 2


@pytest.mark.usefixtures("eagerly")
def test_the_rate_rises_and_falls_over_all_epochs(reviews, small, tmp_path):
    changes = {"epochs": 4, "warmup_ratio": 0.5, "learning_rate": 0.01}
    train(settings_of(reviews, source=small, **changes), tmp_path / "run")
    # Two updates an epoch.
    rates = [float(row["learning_rate"]) for row in rows_of(tmp_path / "run")]
    assert rates == pytest.approx([0.005, 0.01, 0.005, 0])


def test_rare_classes_weigh_more(tmp_path):
    content = lines(
        *((text, "好") for text in GOOD + BAD[:2]), *((t, "坏") for t in BAD[2:])
    )
    path = written(tmp_path, "a.tsv", content)
    settings = settings_of(path, class_weights="balanced")
    run = FinetuningRun(settings, tmp_path)
    run.prepare()
    weights = dict(
        zip(run.data.train.labels, run.train_rows.weights.tolist(), strict=True)
    )
    assert weights == pytest.approx({"好": 4 / 6, "坏": 2})


@pytest.mark.usefixtures("eagerly")
def test_additions_are_merged(reviews, tmp_path):
    settings = settings_of(
        reviews, valid=reviews, lora_rank=2, lora_alpha=8.0, learning_rate=0.01
    )
    model = train(settings, tmp_path / "run")
    before = weights(RoFormerBackbone.from_preset(CHARACTER))
    after = weights(RoFormerBackbone.from_preset(tmp_path / "run"))
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    assert changed == {
        f"transformer_layer_{n}/attention/{name}/kernel"
        for n in range(2)
        for name in ("query", "value")
    }
    assert_same_weights(load_finetuned(tmp_path / "run").task, model)
    # What is not trained is not saved after each epoch.
    paths = load_metadata(tmp_path / "run" / "state.safetensors")["paths"]["model"]
    assert not any("embedding" in path for path in paths)


# === Interruptions ===


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": {"ema": 0.9}},
        {"accumulation": 2, "batch_size": 6},
        {"lora_rank": 2, "r_drop": 1.0, "patience": 2},
        {"adversarial_epsilon": 1.0, "keep_best": False},
    ],
    ids=["ema", "accumulation", "lora-r-drop", "fgm"],
)
def test_an_interrupted_training_ends_where_it_would_have(
    changes, reviews, small, tmp_path
):
    settings = settings_of(reviews, valid=reviews, source=small, epochs=3, **changes)
    after = CopyAfter(tmp_path / "whole", tmp_path / "run")
    whole = train(settings, tmp_path / "whole", callbacks=[after])
    assert load_metadata(tmp_path / "run" / "state.safetensors")["done"] == 1
    # What was written after the state is no part of it.
    with open(tmp_path / "run" / "log.csv", "a") as log:
        log.write("2,0.1,")
    parts = train(settings, tmp_path / "run")
    assert_same_weights(parts, whole)
    assert rows_of(tmp_path / "run") == rows_of(tmp_path / "whole")
    for name in ("report.json", "report.txt"):
        one, other = ((tmp_path / run / name).read_bytes() for run in ("run", "whole"))
        assert one == other


@pytest.mark.usefixtures("eagerly")
def test_the_best_epoch_is_kept_and_ends_the_training(
    reviews, small, tmp_path, monkeypatch
):
    figures = iter([0.5, None, 0.7, 0.6, 0.7, 0.9])
    evaluated, seen = [], []

    def evaluate(run):
        evaluated.append(next(figures))
        seen.append(weights(run.model))
        return {"loss": 1.0, "accuracy": evaluated[-1], "macro_f1": 0.0}

    monkeypatch.setattr(FinetuningRun, "evaluate", evaluate)
    settings = settings_of(reviews, valid=reviews, source=small, epochs=9, patience=2)
    # After the best epoch, which the state has then.
    with pytest.raises(Interrupted):
        train(settings, tmp_path / "run", callbacks=[InterruptAfter(2 * 4 + 1)])
    model = train(settings, tmp_path / "run")
    assert evaluated == [0.5, None, 0.7, 0.6, 0.7]
    kept = weights(model)
    assert all(np.array_equal(kept[path], seen[2][path]) for path in kept)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["epochs"], report["kept epoch"]) == (5, 3)
    # A training that has ended is not resumed, but its results are written again.
    (tmp_path / "run" / "report.txt").unlink()
    again = train(settings, tmp_path / "run", callbacks=[InterruptAfter(0)])
    assert_same_weights(again, model)
    assert (tmp_path / "run" / "report.txt").is_file()


@pytest.mark.usefixtures("eagerly")
def test_a_lower_loss_is_better(reviews, small, tmp_path, monkeypatch):
    losses = iter([0.5, 0.3, 0.4])

    def evaluate(run):
        return {"loss": next(losses), "accuracy": 0.0, "macro_f1": 0.0}

    monkeypatch.setattr(FinetuningRun, "evaluate", evaluate)
    train(
        settings_of(reviews, valid=reviews, source=small, epochs=3, monitor="loss"),
        tmp_path / "run",
    )
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["kept epoch"] == 2


def test_a_killed_process_resumes_to_the_same_bits(reviews, small, tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    command = [
        *(sys.executable, "-m", "roformer_keras", "finetune", "text-classification"),
        *("--train", reviews, "--valid", reviews, "--source", small, "--epochs", "20"),
        *("--batch-size", "2", "--dropout", "0.1", "--quiet", "--output"),
    ]
    with subprocess.Popen([*command, run], stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not (run / "state.safetensors").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert not (run / "preset").exists()
    for folder in (run, whole):
        subprocess.run([*command, folder], check=True, capture_output=True)
    models = (load_finetuned(folder).task for folder in (run, whole))
    assert_same_weights(*models)
    assert rows_of(run) == rows_of(whole)


# === What goes wrong ===


# Of each task: a file to train on, one with a mistake, and the mistake.
MISTAKES = {
    "text-classification": (
        ("a.tsv", REVIEWS),
        ("v.tsv", "你好\t好\n天气\t中\n"),
        r"line 2 of .*v\.tsv: a label must be .* of \['坏', '好'\], got '中'",
    ),
    "text-regression": (
        ("a.tsv", "你好\t1\n天气\t2\n"),
        ("v.tsv", "你好\t1\n天气\t很多\n"),
        r"line 2 of .*v\.tsv: a label must be a finite number, got '很多'",
    ),
    "token-classification": (
        ("a.bio", NER),
        ("v.bio", "她 O\n\n去 O\n北京 B-国\n"),
        r"line 3 of .*v\.bio: a label must be one of \['人', '地'\], got '国'",
    ),
    "question-answering": (
        ("a.tsv", "谁\t今天\t今\n"),
        ("v.tsv", "谁\t今天\t我\n"),
        r"line 1 of .*v\.tsv: an answer must stand in its text, got '我'",
    ),
    "triplet-ranking": (
        ("a.tsv", TRIPLETS),
        ("v.tsv", "甲\t乙\t丙\tD\n"),
        r"line 1 of .*v\.tsv: a label must be 0 or B .* got 'D'",
    ),
    "multiple-choice": (
        ("a.csv", CHOICES),
        ("v.tsv", '天气\t今天？\t["好", "不"]\t2\n'),
        r"line 1 of .*v\.tsv: a label must be the number of a choice, .* got '2'",
    ),
    "sentence-embedding": (
        ("a.tsv", "甲\t乙\t同\n丙\t丁\t异\n"),
        ("v.tsv", "甲\t乙\t同\n丙\t丁\t似\n"),
        r"line 2 of .*v\.tsv: a label must be .* of \['同', '异'\], got '似'",
    ),
}


@pytest.mark.parametrize("task", MISTAKES)
def test_what_is_wrong_with_data_is_named_with_its_line(task, tmp_path):
    train_file, valid_file, message = MISTAKES[task]
    is_encoder = task == "sentence-embedding"
    options = {"objective": "classification"} if is_encoder else {}
    path, valid = (written(tmp_path, *file) for file in (train_file, valid_file))
    settings = settings_of(path, task, valid=valid, options=options)
    with pytest.raises(SourceError, match=message):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run" / "settings.json").exists()


def test_labels_that_are_too_few(tmp_path):
    path = written(tmp_path, "a.tsv", "你好\t好\n天气\t好\n")
    with pytest.raises(SourceError, match=r"at least 2 names, got \['好'\]"):
        read_data(settings_of(path))
    path = written(tmp_path, "a.bio", "她 O\n")
    with pytest.raises(SourceError, match=r"at least 1 names, got \[\]"):
        read_data(settings_of(path, "token-classification"))
    with pytest.raises(ConfigurationError, match="leave rows on both sides"):
        path = written(tmp_path, "b.tsv", "你好\t好\n天气\t坏\n")
        read_data(settings_of(path, holdout=0.1))


def test_texts_that_are_taken_for_classes(tmp_path):
    texts = [f"第{number}个人" for number in range(21)]
    swapped = lines(*((n % 2, text) for n, text in enumerate(texts)))
    path = written(tmp_path, "a.tsv", swapped)
    with pytest.raises(SourceError, match=r"a\.tsv must .* 21 of 21 rows .* fields="):
        read_data(settings_of(path))
    assert read_data(settings_of(path, fields=["2", "1"])).names == ["0", "1"]
    named = {"classes": texts}
    assert read_data(settings_of(path, options=named)).names == texts
    # Of a few rows each may have its own.
    path = written(tmp_path, "a.tsv", lines(*enumerate(texts[:20])))
    assert len(read_data(settings_of(path)).names) == 20


def test_blanks_beside_a_class_are_none_of_its_name(tmp_path):
    path = written(tmp_path, "a.tsv", "你好\t1\n天气\t 1 \n今天\t0\n")
    data = read_data(settings_of(path))
    assert data.names == ["0", "1"]
    assert data.train.labels == ["1", "1", "0"]
    path = written(tmp_path, "a.tsv", "你好\t1\n天气\t \n")
    with pytest.raises(SourceError, match=r"line 2 .* a label must be a name"):
        read_data(settings_of(path))


def test_what_is_held_out_is_not_trained_on(reviews):
    both = [read_data(settings_of(reviews, holdout=0.25, seed=n)) for n in (1, 1, 2)]
    assert both[0].valid == both[1].valid != both[2].valid
    for data in both:
        assert sorted(data.train.texts + data.valid.texts) == sorted(
            (text,) for text in GOOD + BAD
        )
        assert len(data.valid.texts) == 2
        assert data.names == ["坏", "好"]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"options": {"crf": True}}, ConfigurationError, "has no option crf"),
        ({"monitor": "f2", "holdout": 0.5}, ConfigurationError, "one of loss, accur"),
        ({"batch_size": 64, "accumulation": 8}, ConfigurationError, "8 parts of 8 row"),
        ({"source": "nothing"}, SourceError, "no file or folder nothing"),
        ({"train": "nothing.tsv"}, SourceError, "cannot read nothing.tsv"),
        ({"class_weights": {"中": 2.0}}, ConfigurationError, "of class_weight"),
        ({"model": {"hidden_dim": 15}}, ConfigurationError, "multiple of num_heads"),
    ],
)
def test_settings_that_cannot_be(changes, error, message, reviews, tmp_path):
    with pytest.raises(error, match=message):
        train(settings_of(**{"train": reviews, **changes}), tmp_path / "run")
    assert not (tmp_path / "run" / "settings.json").exists()


@pytest.mark.usefixtures("eagerly")
def test_a_folder_of_another_training_is_refused(reviews, tmp_path):
    run = tmp_path / "run"
    path = written(tmp_path, "a.tsv", REVIEWS)
    train(settings_of(path, valid=reviews, epochs=1), run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    other = settings_of(path, epochs=1, seed=3)
    with pytest.raises(OutputError, match="seed was 0, now 3"):
        train(other, run)
    with pytest.raises(ConfigurationError, match="no option crf"):
        train(settings_of(path, options={"crf": True}), run, overwrite=True)
    assert {path: path.read_bytes() for path in before} == before
    train(other, run, overwrite=True)
    # Files of the other training are deleted.
    assert not any((run / name).exists() for name in results.REPORTS)
    written(tmp_path, "a.tsv", f"{REVIEWS}你好\t好\n")
    with pytest.raises(OutputError, match="input 'train' has changed"):
        train(other, run)


@pytest.mark.usefixtures("eagerly")
def test_a_loss_that_is_no_number_ends_a_training_unsaved(reviews, tmp_path):
    # The weights overflow in the first steps of the first epoch.
    diverging = {"clip_norm": 0.0, "weight_decay": 1e30}
    with pytest.raises(ConfigurationError, match="loss must be finite, in epoch 1"):
        train(
            settings_of(reviews, learning_rate=100, optimizer=diverging),
            tmp_path / "run",
        )
    assert not (tmp_path / "run" / "state.safetensors").exists()


@pytest.mark.parametrize(
    ("prepare", "error", "message"),
    [
        (lambda run: None, SourceError, "must be a folder of a fine-tuning"),
        (lambda run: run.mkdir(), SourceError, "no checkpoint in"),
        (
            lambda run: (run.mkdir(), written(run, "settings.json", "{}")),
            SourceError,
            "has no preset yet",
        ),
        (
            lambda run: (
                *(run.mkdir(), (run / "preset").mkdir()),
                written(run, "settings.json", '{"settings": {"objective": "mlm"}}'),
            ),
            ConfigurationError,
            "must be of a fine-tuning, and is not",
        ),
        (
            lambda run: (
                *(run.mkdir(), (run / "preset").mkdir()),
                written(run, "settings.json", "[" * 100_000),
            ),
            ConfigurationError,
            "must be of a fine-tuning, and is not",
        ),
    ],
)
def test_folders_that_answer_nothing(prepare, error, message, tmp_path):
    prepare(tmp_path / "run")
    with pytest.raises(error, match=message):
        load_finetuned(tmp_path / "run")


# === Pictures ===


def test_classes_without_a_font_are_numbered(tmp_path, monkeypatch):
    assert pictures.draw_confusion(
        [[3, 1], [0, 2]], ["bad", "good"], tmp_path / "a.png"
    )
    latin = [e for e in font_manager.fontManager.ttflist if e.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", latin)
    report = {"classes": {"坏": {}, "好": {}}, "confusion": [[3, 1], [0, 2]]}
    report["classes"] = {
        name: {"precision": 1.0, "recall": 1.0, "f1": 1.0, "count": 2}
        for name in ("坏", "好")
    }
    text = results.write_reports(tmp_path, {}, {"valid": report})
    assert "numbers in confusion.png\n    1  坏\n    2  好\n" in text
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "report.txt").read_text(encoding="utf-8") == text


def test_figures_that_are_undefined_are_left_out(tmp_path):
    """As those of answers that are all equal."""
    report = {"spearman": 0.5, "pearson": 0.25}
    report["intervals"] = {"spearman": [0.25, 0.75], "pearson": None}
    report["baselines"] = {"mean": {"intervals": {}}}
    report["baselines"]["TF-IDF"] = {"spearman": 0.25, "intervals": {"spearman": None}}
    pictures.draw_comparison(report, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    # A file of one row has no figures with intervals.
    results.write_reports(tmp_path, {}, {"test": {"intervals": {}, "baselines": {}}})
    assert not (tmp_path / results.COMPARISON).exists()
