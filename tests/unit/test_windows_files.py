"""Files and paths as Windows writes them: CRLF, byte-order marks, backslashes."""

import subprocess
import sys

import numpy as np
import pytest
from common import CHARACTER, ROOT, SIM
from sources import unpacked

from roformer_keras import FinetuningSettings, RoFormerTokenizer
from roformer_keras.base.checks import read_fields
from roformer_keras.io import atomic


def crlf(path, text):
    path.write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    return path


def test_settings_with_crlf(tmp_path):
    path = crlf(tmp_path / "a.toml", 'task = "text-classification"\nepochs = 3\n')
    assert read_fields(FinetuningSettings, path)["epochs"] == 3


def test_a_vocabulary_with_crlf(tmp_path):
    folder = unpacked(CHARACTER, tmp_path)
    before = RoFormerTokenizer.from_preset(folder)
    path = folder / "vocab.txt"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert RoFormerTokenizer.from_preset(folder).vocabulary == before.vocabulary


@pytest.mark.parametrize(
    "path",
    [
        r"C:\models\roformer.zip",
        r"models\roformer.zip",
        "C:roformer.zip",
        r"\\server\share\roformer.zip",
    ],
)
def test_paths_of_windows_are_no_names_of_the_catalogue(path, refused):
    assert "no file or folder" in refused("inspect", path)


def test_a_console_that_is_not_utf_8():
    done = subprocess.run(
        [sys.executable, "-m", "roformer_keras", "tokenize", "你好𠀀", "--source", SIM],
        cwd=ROOT,
        env={"PYTHONIOENCODING": "cp936", "PATH": ""},
        capture_output=True,
        check=True,
    )
    assert done.stderr == b""
    assert len(np.fromstring(done.stdout.decode(), sep=" ")) == 5


def test_folders_are_not_synced_where_they_cannot_be_opened(tmp_path, monkeypatch):
    open_file = atomic.os.open

    def open_as_windows(path, flags):
        if path.is_dir():
            raise PermissionError(13, "Permission denied", str(path))
        assert flags & atomic.os.O_RDWR, "fsync needs a file that is open for writing"
        return open_file(path, flags)

    monkeypatch.setattr(atomic, "_IS_WINDOWS", True)
    monkeypatch.setattr(atomic.os, "open", open_as_windows)
    with atomic.replacing(tmp_path / "a", folder=True) as partial:
        (partial / "b").write_text("c")
    assert (tmp_path / "a" / "b").read_text() == "c"
