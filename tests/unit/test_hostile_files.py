"""Hostile checkpoints, configurations, paths and servers; no backend is needed.

How many hostile inputs there are, by command, is counted here too.
"""

from collections import Counter

import pytest
from hostile import (
    answers,
    archives,
    choices,
    configurations,
    hdf5,
    keras_files,
    options,
    paths,
    presets,
    servers,
    tables,
    tensors,
)
from hostile.run import check_row
from web_server import NAME, serving

FILES = [
    pytest.param(row, id=f"{module.__name__}-{number}")
    for module in (archives, hdf5, tensors, presets, configurations, paths)
    for number, row in enumerate(module.CASES)
]


@pytest.mark.parametrize("row", FILES)
def test_a_hostile_file_is_one_line_of_error(row, tmp_path, monkeypatch, capsys):
    check_row(row, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize(("answer", "message"), servers.ANSWERS)
def test_what_a_server_sends_is_judged(answer, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    with serving(answer) as server:
        line = f"download {NAME} --folder . --base-url {server.url}"
        check_row((line, {}, 5, message), tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize(("words", "message"), servers.NAMES)
def test_a_name_to_download(words, message, tmp_path, monkeypatch, capsys):
    check_row((f"download {words}", {}, 2, message), tmp_path, monkeypatch, capsys)


def count_by_command():
    """The number of different hostile inputs of each command."""
    modules = (archives, hdf5, tensors, presets, configurations, paths)
    modules += (choices, options, tables, answers)
    lines = [row[0].split()[0] for module in modules for row in module.CASES]
    lines += ["download"] * (len(servers.ANSWERS) + len(servers.NAMES))
    lines += ["keras.models.load_model"] * len(keras_files.CASES)
    return Counter(lines)


# At least so many of each.
COUNTS = {
    "inspect": 50,
    "convert": 300,
    "tokenize": 50,
    "embed": 20,
    "generate": 50,
    "finetune": 200,
    "predict": 80,
    "evaluate": 25,
    "export": 10,
    "verify": 15,
    "download": 50,
    "keras.models.load_model": 40,
}


def test_there_are_hundreds_of_hostile_inputs_for_the_twelve_commands():
    found = count_by_command()
    # `paraphrase` reads what `generate` does.
    assert found.keys() - {"paraphrase"} == COUNTS.keys()
    assert found >= Counter(COUNTS)
    assert found.total() >= 1000
