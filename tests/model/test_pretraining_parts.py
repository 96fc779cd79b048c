"""Parts of a training by themselves: its log, its state, its folder."""

import time
from types import SimpleNamespace

import pytest
from tqdm import tqdm

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.training.log import LogFile
from roformer_keras.training.pretraining_settings import PretrainingSettings
from roformer_keras.training.recorder import Recorder


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


def make_recorder(tmp_path, saved):
    recorder = Recorder(
        stage=0,
        before=0,
        done=0,
        steps=4,
        save_every=2,
        parts=1,
        loader=SimpleNamespace(waited=0.0, tokens_before=lambda number: 100 * number),
        log=LogFile(tmp_path / "log.csv"),
        events=SimpleNamespace(write=lambda figures: None),
        evaluates=True,
        bar=tqdm(disable=True),
        save=lambda **facts: saved.append(facts),
    )
    recorder.set_model(
        SimpleNamespace(optimizer=SimpleNamespace(learning_rate=0.1), trainable=True)
    )
    return recorder


def test_evaluating_is_not_counted_as_training(tmp_path, clock):
    saved = []
    recorder = make_recorder(tmp_path, saved)
    for epoch, seconds in enumerate((1000, 0)):
        recorder.on_epoch_begin(epoch)
        for batch in range(2):
            clock.now += 5
            recorder._loader.waited += 1
            recorder.on_train_batch_end(batch, {})
        if seconds:
            recorder.on_test_begin()
            clock.now += seconds
            recorder._loader.waited += seconds
        recorder.on_epoch_end(epoch, {"loss": 1.0})
    header, *rows = (tmp_path / "log.csv").read_text().splitlines()
    for row in rows:
        figures = dict(zip(header.split(","), row.split(","), strict=True))
        assert figures["tokens_per_second"] == "20"
        assert figures["waiting"] == "0.2"
    assert [facts["done"] for facts in saved] == [2]


def test_a_loss_that_is_no_number_ends_a_training_unsaved(tmp_path):
    for loss in (float("nan"), float("inf")):
        saved = []
        recorder = make_recorder(tmp_path, saved)
        recorder.on_epoch_begin(0)
        recorder.on_train_batch_end(0, {})
        recorder.on_train_batch_end(1, {})
        with pytest.raises(ConfigurationError, match="before update 2 it became"):
            recorder.on_epoch_end(0, {"loss": loss})
        assert not saved


def make_settings(folder, **changes):
    content = {
        "objective": "distillation",
        "data": [{"files": [str(folder / "corpus.tsv")], "fields": ["1", "2"]}],
        "stages": [{"steps": 4}],
        "source": str(folder / "source" / "model.ckpt"),
        "teacher": str(folder / "teacher"),
        "vocabulary": str(folder / "vocab.txt"),
    }
    return PretrainingSettings.from_dict({**content, **changes})


def describe(folder, **changes):
    return make_settings(folder, **changes).describe()


FILES = {
    "corpus": "corpus.tsv",
    "source": "source/model.ckpt.data-00000-of-00001",
    "teacher": "teacher/assets/tokenizer/vocabulary.txt",
    "vocabulary": "vocab.txt",
}
OTHER_FILES = (
    "source/model.ckpt.index",
    "teacher/config.json",
    "teacher/model.weights.h5",
)


@pytest.fixture
def files(tmp_path):
    for name in (*FILES.values(), *OTHER_FILES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a", encoding="utf-8")
    return tmp_path


def test_a_file_that_changes_is_noticed(files):
    for name, path in FILES.items():
        before = describe(files)
        assert describe(files) == before
        (files / path).write_text("ab", encoding="utf-8")
        inputs = describe(files)["inputs"]
        assert [key for key in inputs if inputs[key] != before["inputs"][key]] == [name]


def test_settings_that_change_no_result_are_free(files):
    before, after = (
        describe(files, **changes)["settings"] for changes in ({}, {"save_every": 50})
    )
    changed = {name for name in before if before[name] != after[name]}
    assert changed == set(make_settings(files).free)
