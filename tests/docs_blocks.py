"""Runs the blocks of pages in their order, in one process.

    python tests/docs_blocks.py PAGE [CHECKPOINTS]

A page runs in the current folder. Lines of shell blocks are commands of this package,
in the process too; `pip` is passed over. Repositories of `owner` are those of
`hub_server`. If there is a folder of checkpoints, those that come with the package are
read from there, see `one_layer.py`.
"""

import re
import shlex
import sys
import time
from pathlib import Path

from hub_server import OWNER
from one_layer import read_shipped_from

from roformer_keras.cli import main

# What is added to a command that has this word so that it is short.
SHORT = {
    "--recipe": ["--epochs", "1", "--learning-rate", "1e-3", "--max-length", "32"],
    "--save-reference": ["--lengths", "1,9"],
    "lm": ["--num-layers", "1", "--hidden-dim", "32"],
    "seq2seq": ["--num-layers", "1", "--hidden-dim", "32"],
}
# What a Python block has in place of what.
SHORT_CODE = {"num_layers=2,": "num_layers=1,"}


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
    for word, more in SHORT.items():
        arguments = [*arguments, *(more if word in arguments else ())]
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
        start = time.process_time()
        if language == "shell":
            for arguments in commands_of(content):
                run_command(arguments)
        else:
            for before, after in SHORT_CODE.items():
                content = content.replace(before, after)
            # Lines of errors are those of the page.
            code = compile("\n" * (line - 1) + content, str(path), "exec")
            exec(code, names)
        print(f"--- {time.process_time() - start:.1f} CPU seconds", flush=True)
    print("=== done")


if __name__ == "__main__":
    page, *checkpoints = sys.argv[1:]
    for folder in checkpoints:
        read_shipped_from(folder)
    run_page(Path(page))
