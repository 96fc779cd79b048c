"""Trainings that are killed, or whose disk is full, at each step of writing.

Every one ends as the undisturbed when the same call is made again.
"""

import re
import shutil
from collections import Counter

import numpy as np
import pytest
from common import CHARACTER, read_files, write_lines
from disk_steps import Disk, disk_states, watching
from one_layer import write_lowest_layer
from safetensors.numpy import load_file

from roformer_keras.base.errors import OutputError
from roformer_keras.tasks.finetuning_settings import FinetuningSettings
from roformer_keras.training.finetune import finetune
from roformer_keras.training.log import read_log
from roformer_keras.training.pretrain import pretrain
from roformer_keras.training.pretraining_settings import PretrainingSettings

pytestmark = [
    pytest.mark.weekly,
    pytest.mark.usefixtures("eagerly"),
    # `tf.data` traces its functions in eager tests too, and warns of it.
    pytest.mark.filterwarnings("ignore:Even though the `tf.config"),
]
# Steps that every training has, in which a fault must have been tried.
STEPS = {
    ("mkdir", ".partial.state.safetensors"),
    ("write", ".partial.state.safetensors"),
    ("fsync", ".partial.state.safetensors"),
    ("replace", ".partial.state.safetensors"),
    ("open", "log.csv"),
    ("append", "log.csv"),
    ("fsync", "log.csv"),
    ("fsync", ""),
    ("open", ".partial.settings.json"),
    ("replace", ".partial.settings.json"),
    ("write", ".partial.preset/model.weights.h5"),
    ("fsync", ".partial.preset/model.weights.h5"),
    ("replace", ".partial.preset"),
}

# Columns of a log that no two trainings share.
TIMES = re.compile("second|waiting")


def pretraining(inputs):
    lines = ["天地玄黄宇宙洪荒日月盈昃"[n % 7 :] for n in range(60)]
    content = {
        "objective": "lm",
        "name": "tiny",
        "data": [{"files": [str(write_lines(inputs / "a.txt", lines))]}],
        "stages": [{"steps": 4, "length": 16, "batch_size": 8, "learning_rate": 0.01}],
        "model": {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "dropout": 0.1},
        "min_count": 1,
        "log_every": 2,
        "save_every": 2,
        "average_checkpoints": 2,
    }
    settings = PretrainingSettings.from_dict(content)
    return lambda folder: pretrain(settings, folder, verbose=False)


def finetuning(inputs):
    lines = [f"今天{'好坏'[n % 2]}{n}\t{'好坏'[n % 2]}" for n in range(24)]
    write_lowest_layer(CHARACTER, inputs / "small.zip")
    content = {
        "task": "text-classification",
        "train": str(write_lines(inputs / "a.tsv", lines)),
        "holdout": 0.25,
        "source": str(inputs / "small.zip"),
        "epochs": 2,
        "batch_size": 8,
        "learning_rate": 1e-3,
        "model": {"dropout": 0.1},
    }
    settings = FinetuningSettings.from_dict(content)
    return lambda folder: finetune(settings, folder, verbose=False)


@pytest.fixture(params=[pretraining, finetuning], ids=lambda kind: kind.__name__)
def train(request, tmp_path):
    (tmp_path / "inputs").mkdir()
    return request.param(tmp_path / "inputs")


@pytest.fixture
def whole(train, tmp_path):
    """The folder of a training that nothing disturbs."""
    train(tmp_path / "whole")
    return tmp_path / "whole"


def check_equal(folder, whole):
    """Checks that files, figures and weights are those of the undisturbed training."""
    names, expected = read_files(folder).keys(), read_files(whole).keys()
    events = "tensorboard/"
    assert {n for n in names if not n.startswith(events)} == {
        n for n in expected if not n.startswith(events)
    }
    hidden = [path.name for path in folder.rglob(".*") if path.name != ".lock"]
    assert hidden == []
    values, others = (load_file(x / "state.safetensors") for x in (folder, whole))
    assert values.keys() == others.keys()
    for name, value in others.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)
    rows, others = (
        [
            {k: v for k, v in row.items() if not TIMES.search(k)}
            for row in read_log(path)
        ]
        for path in (folder / "log.csv", whole / "log.csv")
    )
    assert rows == others


def test_a_kill_at_each_step(train, whole, tmp_path):
    folder = tmp_path / "run"
    states = disk_states(lambda: train(folder), folder, tmp_path / "states")
    assert len(states) > 15
    for state in states:
        train(state)
        check_equal(state, whole)
        shutil.rmtree(state)
    print(f"{len(states)} states of a folder after a kill, each resumed")


def test_a_full_disk_at_each_step(train, whole, tmp_path):
    disk = Disk(tmp_path / "counted")
    with watching(disk):
        train(tmp_path / "counted")
    check_equal(tmp_path / "counted", whole)
    assert {*disk.steps} >= STEPS, {*disk.steps} - STEPS
    outcomes: Counter = Counter()
    # The first and the last step of each kind: they leave the most different folders.
    first = {step: number for number, step in reversed([*enumerate(disk.steps)])}
    last = {step: number for number, step in enumerate(disk.steps)}
    for number in sorted({*first.values(), *last.values()}):
        folder = tmp_path / str(number)
        step = disk.steps[number]
        try:
            with watching(Disk(folder, number)):
                train(folder)
            # What is only an aid may be left out.
            outcomes["trained"] += 1
        except OutputError as error:
            outcomes["refused"] += 1
            assert "no space left" in str(error), (step, str(error))
        partials = [path for path in folder.rglob(".partial*")]
        assert partials == [], step
        train(folder)
        check_equal(folder, whole)
        shutil.rmtree(folder)
    print(f"{len(disk.steps)} steps of {len(last)} kinds; a full disk: {outcomes}")
