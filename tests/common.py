"""Paths, models and helpers that several tests need."""

import argparse
import contextlib
import gzip
import importlib.util
import io
import json
import lzma
import os
import resource
import signal
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

from roformer_keras.cli import main
from roformer_keras.cli.flags import add_flags
from roformer_keras.cli.main import find_commands

ROOT = Path(__file__).parents[1]
CHECKPOINTS = Path(__file__).parent / "checkpoints"
SAVED = CHECKPOINTS / "saved"
SHARED = ROOT.parent / "shared"

CHARACTER = CHECKPOINTS / "chinese_roformer-char_L-2_H-32_A-4.zip"
WORD = CHECKPOINTS / "chinese_roformer_L-2_H-32_A-4.zip"
GPT = CHECKPOINTS / "chinese_roformer-gpt-char_L-2_H-32_A-4.zip"
SIM = CHECKPOINTS / "chinese_roformer-sim-char_L-2_H-32_A-4.zip"
V2 = CHECKPOINTS / "chinese_roformer-v2-char_L-2_H-32_A-4.zip"
SMALL = CHECKPOINTS / "roformer-small_L-2_H-8_A-2.zip"
NSP = CHECKPOINTS / "roformer-nsp_L-2_H-24_A-4.zip"
EMBEDDING_SIZE = CHECKPOINTS / "roformer-embedding-size_L-2_H-24_A-4.zip"
V2_EMBEDDING_SIZE = CHECKPOINTS / "roformer-v2-embedding-size_L-3_H-24_A-4.zip"


def wrong_cells(check, cells):
    """The messages of a check about cells of a table, each with its cell."""
    messages = ((cell, check(*cell)) for cell in cells)
    return [
        f"{'/'.join(map(str, cell))}: {message:.150}"
        for cell, message in messages
        if message
    ]


def zipped_json(path, name="bert_config.json"):
    """The content of a JSON file in a checkpoint zip."""
    return json.loads(zipped(path, name))


def zipped(path, name):
    """The bytes of a member of a checkpoint zip, in whichever folder it is."""
    with zipfile.ZipFile(path) as archive:
        (member,) = (n for n in archive.namelist() if n.split("/")[-1] == name)
        return archive.read(member)


def config_of_saved(name):
    """The bert_config of a file in `saved/`, read from the zip that it came from."""
    return zipped_json(V2_EMBEDDING_SIZE if name.startswith("v2-") else SMALL)


def reference_folder(version="0.11.5"):
    """The folder of the real bert4keras, or None."""
    named = os.environ.get("ROFORMER_KERAS_REFERENCE")
    folder = Path(named) if named else ROOT / ".reference" / f"bert4keras-{version}"
    if named and version != "0.11.5":
        folder = folder.with_name(f"bert4keras-{version}")
    return folder if (folder / "bert4keras").is_dir() else None


def run(code, *arguments, **options):
    """Starts a separate Python process."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        **options,
    )


def output_of(*words, python=sys.executable, cwd=None, timeout=600, **variables):
    """Standard output of a Python process, which must succeed.

    Args:
        words: of the command, after Python: a script, or -c and code, and arguments.
        variables: of the environment, besides those of this process.
    """
    done = subprocess.run(
        [python, *map(str, words)],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def random_lm(class_name="RoFormerCausalLM", num_layers=1, **fields):
    """A tiny language model whose weights are large enough to distinguish tokens."""
    import numpy as np

    import roformer_keras

    sizes = {"num_heads": 2, "hidden_dim": 16, "intermediate_dim": 24}
    fields = {"attention": "causal", "vocabulary_size": 260, **sizes, **fields}
    config = roformer_keras.RoFormerConfig(num_layers=num_layers, **fields)
    model = getattr(roformer_keras, class_name).from_roformer_config(config)
    generator = np.random.default_rng(3)
    for weight in model.weights:
        value = generator.normal(size=weight.shape, scale=0.4)
        weight.assign(value + 1 if weight.name == "gamma" else value)
    return model


def write_changed(path, text, changes):
    """A file of a text in which some of it is in other words; returns its path."""
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    path.write_text(text, encoding="utf-8")
    return path


def write_file(path, content):
    """Writes bytes, text or a JSON value; returns the path.

    Text and JSON are packed if the name ends in .gz or .xz; bytes stay as they are.
    """
    if not isinstance(content, bytes):
        if not isinstance(content, str):
            content = json.dumps(content, ensure_ascii=False)
        pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
        content = pack(content.encode())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def write_files(folder, files):
    """Writes files by name; returns the folder. A function makes its file itself."""
    for name, content in files.items():
        if callable(content):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            content(folder / name)
        else:
            write_file(folder / name, content)
    return folder


def write_lines(path, lines):
    """Writes a text file of these lines; returns its path."""
    return write_file(path, "".join(f"{line}\n" for line in lines))


def read_files(folder):
    """The bytes of all files by name, without hidden ones."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def read_json(path):
    """The content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def change_json(path, **fields):
    """Gives fields of a JSON file other values."""
    write_file(path, {**read_json(path), **fields})


def load_golden(path):
    """The arrays of a golden file, and its metadata."""
    import numpy as np

    with np.load(path) as file:
        arrays = dict(file)
    return arrays, json.loads(str(arrays.pop("metadata")))


def json_lines(text):
    """The objects of lines of JSON."""
    return [json.loads(line) for line in text.splitlines()]


def to_json_lines(rows):
    """Lines of JSON, one for each object."""
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def run_main(*arguments, capsys):
    """Exit code, standard output and standard error of the command line."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as exit:
        code = exit.code
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def parser_of(command):
    """The parser of a command's operands and flags."""
    parser = argparse.ArgumentParser(prog=command)
    add_flags(parser, find_commands(command)[command])
    return parser


def give_stdin(monkeypatch, data):
    text = data if isinstance(data, bytes) else data.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def limited_file_size():
    """Every write beyond 100 kB fails, as it does on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def interruptible():
    """Signals reach the process, also where a shell in the background ignores them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def transformers_python():
    """An interpreter that can run Transformers, or None."""
    interpreter = os.environ.get("ROFORMER_KERAS_TRANSFORMERS_PYTHON")
    if interpreter is None and importlib.util.find_spec("transformers") is not None:
        interpreter = sys.executable
    return interpreter


def is_tuned(dataset):
    """True if a thread of TensorFlow tunes a dataset; its deletion waits for that."""
    return dataset.options().autotune.enabled is not False


def pids_of(mark, title=b""):
    """Processes with a variable of this value whose command line holds a title.

    A pid may be that of another process by now; a variable is inherited.
    """
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_own = mark.encode() in (folder / "environ").read_bytes()
            if is_own and title in (folder / "cmdline").read_bytes():
                pids.append(int(folder.name))
    return pids
