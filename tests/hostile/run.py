"""Runs a row of a table of hostile inputs."""

import io
import shlex

from cli_errors import PATHS
from common import run_main
from sources import listing


def make(files, folder):
    """Writes the files of a row."""
    if callable(files):
        files(folder)
        return
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        else:
            path.write_bytes(content)


def run_row(line, folder, capsys):
    """Exit code, output, errors, and the paths that the command has added."""
    before = listing(folder)
    words = [str(PATHS.get(word, word)) for word in shlex.split(line)]
    code, out, err = run_main(*words, capsys=capsys)
    return code, out, err, sorted(set(listing(folder)) ^ set(before))


def check_row(row, folder, monkeypatch, capsys):
    """A hostile input gives one line of error and its code, and writes nothing."""
    # Standard input is empty, whatever the tests run in.
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    line, files, code, message = row
    make(files, folder)
    monkeypatch.chdir(folder)
    found, out, err, changed = run_row(line, folder, capsys)
    assert (found, out, changed) == (code, "", []), err
    errors = [text for text in err.splitlines() if "error: " in text]
    assert len(errors) == 1 and message in errors[0], err
