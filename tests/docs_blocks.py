"""Runs the blocks of pages in their order, in one process.

    python tests/docs_blocks.py PAGE [FOLDER] [PAGE FOLDER ...]

A page runs in its folder, by default the one where this starts. Lines of shell blocks
are commands of this package, in the process too; `pip` is passed over. Repositories of
`owner` are those of `hub_server`.
"""

import contextlib
import re
import shlex
import sys
from pathlib import Path

from hub_server import OWNER

from roformer_keras.cli import main

# What is added to a command so that it is short.
SHORT = {"--recipe": ["--epochs", "1", "--learning-rate", "1e-3", "--max-length", "32"]}


def blocks_of(text):
    """Line, language and content of each block of a page."""
    for match in re.finditer(r"^```(shell|python)\n(.*?)^```", text, re.S | re.M):
        yield text.count("\n", 0, match.start()) + 2, match[1], match[2]


def commands_of(content):
    """The arguments of each command of this package in a shell block."""
    for line in content.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:2] == ["pip", "install"] or not words:
            continue
        command, *arguments = words
        assert command == "roformer-keras", line
        yield arguments


def run_command(arguments):
    for flag, more in SHORT.items():
        arguments = [*arguments, *(more if flag in arguments else ())]
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    assert code == 0, arguments


def run_page(path):
    text = path.read_text(encoding="utf-8").replace("owner/", f"{OWNER}/")
    names: dict = {"__name__": "page"}
    for line, language, content in blocks_of(text):
        print(f"=== {path.name}:{line}", flush=True)
        if language == "shell":
            for arguments in commands_of(content):
                run_command(arguments)
        else:
            # Lines of errors are those of the page.
            code = compile("\n" * (line - 1) + content, str(path), "exec")
            exec(code, names)
    print("=== done")


if __name__ == "__main__":
    words = sys.argv[1:] if len(sys.argv) > 2 else [sys.argv[1], "."]
    for page, folder in zip(words[::2], words[1::2], strict=True):
        with contextlib.chdir(folder):
            run_page(Path(page))
