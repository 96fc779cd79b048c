"""Runs tables of hostile inputs, and collects the rows that are not refused."""

import re
import shlex

from cli_errors import PATHS
from common import run_main, write_files
from sources import listing


def unrefused(cases, call, error, exact=True):
    """The cases that a function does not refuse, as lines; [] if it refuses all.

    Args:
        cases: pairs of the arguments, a tuple, and words of the message, in which `.*`
            stands for any text.
        call: the function.
        error: class of the expected errors.
        exact: bool. False allows subclasses of `error`.
    """
    wrong = []
    for arguments, message in cases:
        try:
            call(*arguments)
            wrong.append(f"{arguments!r:.200}: no error")
        except Exception as caught:
            text, kind = f"{caught}", type(caught)
            words = ".*".join(map(re.escape, message.split(".*")))
            is_error = kind is error if exact else isinstance(caught, error)
            if not is_error or not re.search(words, text, re.DOTALL):
                wrong.append(f"{arguments!r:.200}: {kind.__name__}: {text:.300}")
    return wrong


def unrefused_rows(rows, tmp_path, monkeypatch, capsys):
    """The rows that are not one line of error with its code, or that write something.

    Each row runs as a command line, in a folder that is made for it.
    """
    wrong = []
    for number, (line, files, code, message) in enumerate(rows):
        folder = tmp_path / str(number)
        folder.mkdir()
        files(folder) if callable(files) else write_files(folder, files)
        monkeypatch.chdir(folder)
        before = listing(folder)
        words = [str(PATHS.get(word, word)) for word in shlex.split(line)]
        exit_code, out, err = run_main(*words, capsys=capsys)
        errors = [text for text in err.splitlines() if "error: " in text]
        is_told = len(errors) == 1 and message in errors[0]
        if (exit_code, out, listing(folder)) != (code, "", before) or not is_told:
            wrong.append(
                f"{number}, {line:.100}: {exit_code} {err:.300}, not {message}"
            )
    return wrong
