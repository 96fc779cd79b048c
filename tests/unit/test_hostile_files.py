"""Hostile checkpoints, configurations, paths and servers; no backend is needed."""

import io

import pytest
from common import write_files
from hostile import (
    archives,
    configurations,
    hdf5,
    paths,
    presets,
    servers,
    tasks,
    tensors,
)
from hostile.run import unrefused, unrefused_rows
from web_server import NAME, serving

from roformer_keras.base.errors import ConfigurationError, RoFormerError, SourceError
from roformer_keras.io.export_file import check_types, parse_export
from roformer_keras.io.json_file import parse_json

MODULES = (archives, hdf5, tensors, presets, configurations, paths)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    # Standard input is empty, whatever the tests run in.
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_a_hostile_file_is_one_line_of_error(module, tmp_path, monkeypatch, capsys):
    assert unrefused_rows(module.CASES, tmp_path, monkeypatch, capsys) == []


def test_answers_of_a_server_are_judged(tmp_path, monkeypatch, capsys):
    def answer(handler):
        # A row has its own folder on the server.
        servers.ANSWERS[int(handler.path.split("/")[1])][0](handler)

    with serving(answer) as server:
        rows = [
            (f"download {NAME} --folder . --base-url {server.url}/{n}", {}, 5, message)
            for n, (_, message) in enumerate(servers.ANSWERS)
        ]
        assert unrefused_rows(rows, tmp_path, monkeypatch, capsys) == []


def test_names_to_download(tmp_path, monkeypatch, capsys):
    rows = [(f"download {words}", {}, 2, message) for words, message in servers.NAMES]
    assert unrefused_rows(rows, tmp_path, monkeypatch, capsys) == []


def test_presets_of_tasks(tmp_path):
    wrong = []
    files = tasks.files(tmp_path / "p" / "task")
    tasks.read(write_files(tmp_path / "task", files))
    for number, (edit, code, message) in enumerate(tasks.CASES):
        folder = write_files(tmp_path / str(number), files)
        edit(folder)
        try:
            tasks.read(folder)
            wrong.append(f"{message}: no error")
        except RoFormerError as error:
            if error.exit_code != code or message not in str(error):
                wrong.append(f"{message}: {error.exit_code} {error}")
    assert wrong == []


def test_json_of_a_checkpoint_is_bounded():
    """It is refused before it is parsed; data may become any size."""
    text = f"[{'[],' * 2**20}[]]"
    with pytest.raises(SourceError, match="x must take at most 24 times its size"):
        parse_json(text, "x", kind=list)
    assert len(parse_json(text, "x", kind=list, trusted=True)) == 2**20 + 1


def test_descriptions_of_exports(tmp_path):
    def read(content):
        (tmp_path / "export.json").write_text(content)
        check_types(parse_export(tmp_path), {"model": str}, "export.json")

    cases = [
        (("5",), "export.json must hold one JSON object, got int"),
        (('{"generator": {}}',), "must have the field 'model' of type str, got None"),
        (('{"model": true}',), "must have the field 'model' of type str, got True"),
        (('{"generator": ',), "export.json is not valid JSON"),
    ]
    assert unrefused(cases, read, ConfigurationError) == []
    with pytest.raises(SourceError, match="there is no"):
        parse_export(tmp_path / "nowhere")
