"""Commands that end with an error: files for them, and how such an end is checked."""

import shlex

import numpy as np
from common import (
    CHARACTER,
    GPT,
    ROOT,
    SAVED,
    SIM,
    SMALL,
    V2_EMBEDDING_SIZE,
    run_main,
    write_lines,
)
from sources import listing

# Words of the tables below that are paths.
PATHS = {
    "GPT": GPT,
    "SIM": SIM,
    "SMALL": SMALL,
    "V2": V2_EMBEDDING_SIZE,
    "CHARACTER": CHARACTER,
    "LM": SAVED / "lm.h5",
    "TOML": ROOT / "pyproject.toml",
}
# Files of the folder in which the commands run.
FILES = {
    "texts": ["今天"],
    "good": ["今天", "我"],
    "blank": ["今天", "", "我"],
    "strange": ["今天", "我", "\U0001f44d\U0001f44d"],
    "long": ["今天", "我" * 300],
    "one.tsv": ["今天"],
    "half.tsv": ["今\t"],
    "bad.jsonl": ['{"first": "今", "second": "天"}', "今"],
    "one.jsonl": ['{"first": "今", "third": "天"}'],
    "old.tsv": ["old"],
    "empty": [],
}


def fill_folder(folder):
    """Writes files that commands can read, and others that they cannot."""
    for name, lines in FILES.items():
        write_lines(folder / name, lines)
    (folder / "gbk").write_bytes("今天\n".encode("gbk"))
    (folder / "d.tsv").mkdir()
    np.save(folder / "old.npy", np.zeros(1))
    damaged = bytearray(SIM.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (folder / "bad").write_bytes(damaged)
    return folder


def check_error(line, code, message, folder, monkeypatch, capsys):
    """Runs a line in a folder: it is one line of error, and writes nothing."""
    monkeypatch.chdir(folder)
    before = listing(folder)
    words = [str(PATHS.get(word, word)) for word in shlex.split(line)]
    found, out, err = run_main(*words, capsys=capsys)
    assert (found, out) == (code, "")
    lines = err.splitlines()
    assert lines[0].startswith("roformer-keras: error: ")
    assert message in lines[0]
    # Advice may follow an empty line; nothing else may follow.
    assert len(lines) == 1 or lines[1] == ""
    assert listing(folder) == before
