"""Trainings of several processes, on JAX; each process is a command."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from common import CHARACTER, ROOT, write_lines
from safetensors.numpy import load_file

CHARACTERS = "今天气不错她在北京我们学习语言你说的是这个人"
# Seconds in which all processes end after one of them was killed.
PATIENCE = 60
# Seconds in which a process ends that waits for another, which it has never met.
START_PATIENCE = 400


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder with lines of text, and with labelled lines: 37 without the held-out."""
    folder = tmp_path_factory.mktemp("texts")
    generator = np.random.default_rng(0)
    lines = [
        "".join(generator.choice(list(CHARACTERS), generator.integers(3, 14)))
        for _ in range(46)
    ]
    write_lines(folder / "lines.txt", lines)
    labelled = [f"{line}\t{'好坏'[CHARACTERS.index(line[0]) > 9]}" for line in lines]
    write_lines(folder / "labelled.tsv", labelled)
    write_lines(
        folder / "settings.toml",
        [
            "log_every = 4",
            "save_every = 4",
            "min_count = 1",
            "average_checkpoints = 2",
            "[model]",
            "dropout = 0.0",
            "attention_dropout = 0.0",
            "num_layers = 1",
            "num_heads = 2",
            "hidden_dim = 16",
            "[[data]]",
            "files = ['lines.txt']",
            "holdout = 0.2",
            "[[stages]]",
            "steps = 80",
            "length = 16",
            "batch_size = 6",
            "learning_rate = 0.003",
        ],
    )
    return folder


@pytest.fixture
def start(texts):
    """A function that starts a command in the folder of the texts."""
    with starting(texts) as start:
        yield start


@contextlib.contextmanager
def starting(texts):
    started = []

    def start(*command):
        process = subprocess.Popen(
            [sys.executable, "-m", "roformer_keras", *map(str, command)],
            cwd=texts,
            env={**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.communicate()


def start_two(start, *command):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    both = ("--num-processes", 2, "--coordinator", f"localhost:{port}")
    return [start(*command, *both, "--process-id", n) for n in range(2)]


def end(process, code=0, timeout=300):
    """The lines that a process prints, and its report at the end.

    `code` is its exit code; None allows any.
    """
    out, err = process.communicate(timeout=timeout)
    assert code in (None, process.returncode), err[-4000:]
    return out, err


def assert_same_results(one, other):
    for name in ("preset/model.weights.h5", "log.csv"):
        assert (one / name).exists()
        assert (other / name).exists()
    expected, values = (load_file(p / "state.safetensors") for p in (one, other))
    assert expected.keys() == values.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, 0, 1e-6, err_msg=name)


# Every run has the test below, in which two processes begin and one ends a training.
@pytest.mark.weekly
def test_two_processes_finetune_as_one(start, tmp_path):
    # Of 37 rows the last batch has five, which two devices cannot share.
    command = ["finetune", "text-classification", "--train", "labelled.tsv"]
    command += ["--holdout", 0.2, "--epochs", 2, "--batch-size", 8, "--dropout", 0]
    command += ["--source", CHARACTER, "--patience", 1, "--ema", 0.9]
    alone = start(*command, "-o", tmp_path / "one")
    first, second = start_two(start, *command, "-o", tmp_path / "two")
    _, report = end(alone)
    assert "accuracy" in report
    assert end(second)[0] == ""
    preset, again = end(first)
    assert preset == f"{tmp_path / 'two' / 'preset'}\n"
    assert report.splitlines()[-5:] == again.splitlines()[-5:]
    assert_same_results(tmp_path / "one", tmp_path / "two")


def test_after_a_kill_one_process_resumes_what_two_have_begun(start, tmp_path):
    command = ["pretrain", "mlm", "--config", "settings.toml", "-o"]
    alone = start(*command, tmp_path / "one")
    two = start_two(start, *command, tmp_path / "two")
    end(alone)
    state = tmp_path / "two" / "state.safetensors"
    while not state.exists():
        assert two[0].poll() is None, end(two[0])
        time.sleep(0.05)
    # Its worker ends with it.
    two[1].kill()
    _, message = end(two[0], 7, PATIENCE)
    assert "process 0 of 2" in message.splitlines()[-1]
    assert "the same command resumes the last saved state" in message
    end(two[1], -signal.SIGKILL)
    assert not (tmp_path / "two" / "preset").exists()
    end(start(*command, tmp_path / "two"))
    assert_same_results(tmp_path / "one", tmp_path / "two")


# === At any moment ===

# How often each training is disturbed in each way, at another moment each time.
TIMES = int(os.environ.get("ROFORMER_KERAS_FAULTS", "10"))
# Seconds for which a process is stopped that goes on; others take it for dead after 30.
PAUSE = 5
TRAININGS = {
    "pretrain": ["pretrain", "mlm", "--config", "settings.toml"],
    "finetune": [
        *("finetune", "text-classification", "--train", "labelled.tsv"),
        *("--holdout", 0.2, "--epochs", 4, "--batch-size", 8, "--dropout", 0),
        *("--source", CHARACTER, "--ema", 0.9),
    ],
}


@pytest.fixture(scope="module")
def undisturbed(texts, tmp_path_factory):
    """The folder of each training by one process, and the seconds that two take."""
    results = {}
    for name, command in TRAININGS.items():
        folder = tmp_path_factory.mktemp(name)
        with starting(texts) as start:
            end(start(*command, "-o", folder / "one"))
            begin = time.monotonic()
            for process in start_two(start, *command, "-o", folder / "two"):
                end(process)
        assert_same_results(folder / "one", folder / "two")
        results[name] = folder / "one", time.monotonic() - begin
    return results


def disturb(victim, other, way):
    """What is done to one of two processes; both have ended after it."""
    if way == "killed":
        victim.kill()
    else:
        victim.send_signal(signal.SIGSTOP)
        if way == "stopped":
            # The other one takes it for dead.
            other.wait(START_PATIENCE)
            victim.kill()
        else:
            time.sleep(PAUSE)
            victim.send_signal(signal.SIGCONT)
    victim.wait(START_PATIENCE)
    return end(other, None, START_PATIENCE)


@pytest.mark.weekly
@pytest.mark.parametrize("way", ["killed", "stopped"])
@pytest.mark.parametrize("name", TRAININGS)
def test_one_of_two_is_disturbed_at_any_moment(name, way, start, undisturbed, tmp_path):
    """Whatever it was doing: one process ends what two have begun.

    Of those that are stopped, every second one goes on after a moment.
    """
    command, (expected, seconds) = TRAININGS[name], undisturbed[name]
    draw, ends = random.Random(f"{name} {way}"), []
    for time_number in range(TIMES):
        folder = tmp_path / str(time_number)
        two = start_two(start, *command, "-o", folder)
        # Before that they load Keras, and wait for each other for minutes.
        moment, index = draw.uniform(0.2, 1) * seconds, draw.randrange(2)
        time.sleep(moment)
        is_paused = way == "stopped" and time_number % 2
        _, message = disturb(two[index], two[1 - index], "paused" if is_paused else way)
        codes = [process.returncode for process in two]
        ends.append((round(moment, 1), index, *codes))
        assert "Traceback" not in message, (ends[-1], message[-2000:])
        if is_paused:
            assert codes == [0, 0], (ends[-1], message[-2000:])
        else:
            # It may have ended before, or have been killed before both have met.
            assert codes[1 - index] in (0, 7), (ends[-1], message[-2000:])
        end(start(*command, "-o", folder))
        assert_same_results(expected, folder)
    print(f"{name} {way}: second, process, exit codes: {ends}")
