"""What a training is made of, without one: its log, its state, its folder."""

import time
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from tqdm import tqdm

from roformer_keras.errors import ConfigurationError, SourceError
from roformer_keras.pretraining import run
from roformer_keras.pretraining.callbacks import Recorder
from roformer_keras.pretraining.loader import Loader
from roformer_keras.pretraining.settings import Settings
from roformer_keras.training.folder import begins, take_folder
from roformer_keras.training.log import LogFile
from roformer_keras.training.state import load_facts, save_state

# TensorFlow variables do not know NumPy 2's `copy`.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")


# === The log ===


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


def make_recorder(tmp_path, saved):
    def state_after(number):
        return {"examples": {}, "tokens": 100 * (number + 1)}

    recorder = Recorder(
        stage=0,
        before=0,
        done=0,
        steps=4,
        save_every=2,
        parts=1,
        loader=SimpleNamespace(first_tokens=0, waited=0.0, state_after=state_after),
        log=LogFile(tmp_path / "log.csv"),
        events=SimpleNamespace(add_scalar=lambda *_: None, flush=lambda: None),
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


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_ends_a_training_unsaved(loss, tmp_path):
    saved = []
    recorder = make_recorder(tmp_path, saved)
    recorder.on_epoch_begin(0)
    recorder.on_train_batch_end(0, {})
    recorder.on_train_batch_end(1, {})
    with pytest.raises(ConfigurationError, match="before update 2 it became"):
        recorder.on_epoch_end(0, {"loss": loss})
    assert not saved


# === The state ===


def test_weights_that_are_no_numbers_replace_no_state(tmp_path):
    path = tmp_path / "state.safetensors"
    variables = {"model": [keras.Variable(np.ones(3, "float32"), name="kernel")]}
    save_state(path, variables, {"done": 1})
    variables["model"][0].assign([0.0, float("nan"), 0.0])
    with pytest.raises(ConfigurationError, match="kernel is not any more"):
        save_state(path, variables, {"done": 2})
    assert load_facts(path)["done"] == 1


# === The data ===


def test_a_loader_keeps_what_ended_it():
    broken = SourceError("line 7")

    class Examples:
        def __next__(self):
            raise broken

        def close(self):
            pass

    loader = Loader(Examples(), SimpleNamespace(rows_per_item=1), 4, [0])
    assert loader.error is None
    with pytest.raises(SourceError):
        next(iter(loader))
    loader.close()
    assert loader.error is broken


# === The folder ===


def make_settings(folder, **changes):
    content = {
        "objective": "distillation",
        "data": [{"files": [str(folder / "corpus.tsv")], "fields": ["1", "2"]}],
        "stages": [{"steps": 4}],
        "source": str(folder / "source.zip"),
        "teacher": str(folder / "teacher"),
        "vocabulary": str(folder / "vocab.txt"),
    }
    return Settings.from_dict({**content, **changes})


FILES = {
    "corpus": "corpus.tsv",
    "source": "source.zip",
    "teacher": "teacher/assets/vocabulary.txt",
    "vocabulary": "vocab.txt",
}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "teacher" / "assets").mkdir(parents=True)
    for name in FILES.values():
        (tmp_path / name).write_text("a", encoding="utf-8")
    return tmp_path


def begun(folder, settings):
    """A folder in which a training of some settings has saved something."""
    folder.mkdir()
    take_folder(folder, run._facts_of(settings))
    (folder / "state.safetensors").write_bytes(b"")
    return folder


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_changed_is_noticed(kind, files):
    settings = make_settings(files)
    folder = begun(files / "run", settings)
    assert begins(folder, run._facts_of(settings), False) is False
    (files / FILES[kind]).write_text("ab", encoding="utf-8")
    with pytest.raises(OSError, match=f"another training: files of the {kind} differ;"):
        begins(folder, run._facts_of(settings), False)


def test_files_of_a_checkpoint_prefix(files):
    for end in (".index", ".data-00000-of-00001"):
        (files / f"model.ckpt{end}").write_bytes(b"")
    settings = make_settings(files, source=str(files / "model.ckpt"))
    stamps = run._facts_of(settings)["files"]["source"]
    assert len(stamps) == 2


def test_what_changes_no_result_is_no_other_training(files):
    folder = begun(files / "run", make_settings(files))
    again = make_settings(files, workers=3, save_every=50)
    assert begins(folder, run._facts_of(again), False, run._FREE) is False
    other = run._facts_of(make_settings(files, log_every=100))
    with pytest.raises(OSError, match="log_every was 50, now 100"):
        begins(folder, other, False)
    assert begins(folder, other, True) is True
    # Of what has saved nothing there is nothing to lose.
    (folder / "state.safetensors").unlink()
    assert begins(folder, other, False) is True
    (folder / "preset").mkdir()
    with pytest.raises(OSError, match="another training"):
        begins(folder, other, False)
