"""Every reader refuses a pipe, a device and a folder at once where it needs a file."""

import os
import threading
from pathlib import Path

import pytest

from roformer_keras import RoFormerTokenizer
from roformer_keras.base.checks import read_toml
from roformer_keras.base.errors import RoFormerError
from roformer_keras.bert4keras import models, tokenizers, weight_files
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.io.blob import Blob
from roformer_keras.io.export_file import readable_network
from roformer_keras.io.journal import AppendedFile
from roformer_keras.models.lora import _read_adapter
from roformer_keras.search.index import _read_vectors
from roformer_keras.tables.files import FORMATS, read_records, read_table
from roformer_keras.training.log import read_log
from roformer_keras.training.state import _open as open_state


def opened(context):
    """A reader that enters a context manager of a path."""

    def read(path):
        with context(path):
            pass

    return read


def table(format):
    count = 2 if format == "squad" else 1
    return lambda path: read_table(path, count, format=format)


# Name of the file, and what reads it.
READERS = {
    **{f"table.{format}": table(format) for format in FORMATS},
    "table.csv.gz": lambda path: read_table(path, 1),
    "table.tsv.xz": lambda path: read_table(path, 1, encoding="auto"),
    "corpus.txt": lambda path: list(read_records(str(path))),
    "corpus.parquet": lambda path: list(read_records(str(path), ("text",))),
    "settings.toml": read_toml,
    "settings.json": Blob.of_file,
    "adapter.safetensors": _read_adapter,
    "vectors.npy": _read_vectors,
    "model.onnx": opened(readable_network),
    "model.xml": opened(readable_network),
    "vocab.txt": RoFormerTokenizer,
    "dict.txt": tokenizers.load_vocab,
    "bert_config.json": models.build_transformer_model,
    "model.weights.h5": weight_files.is_of_keras_3,
    "model.zip": opened(open_checkpoint),
    "model.h5": opened(open_checkpoint),
    "model.safetensors": opened(open_checkpoint),
    "state.safetensors": opened(open_state),
    "log.csv": read_log,
    "vectors.npy.partial": AppendedFile,
}
# A source may be a folder, and the error for that of an adapter speaks of PEFT.
MAY_BE_FOLDERS = ("model.zip", "model.h5", "model.safetensors", "adapter.safetensors")


def error_of(read, path):
    """The error of a reader that ends within 10 seconds."""
    errors = []

    def run():
        try:
            read(path)
        except RoFormerError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    return errors[0] if errors else f"alive: {thread.is_alive()}"


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_refused_at_once(name, tmp_path):
    makers = {
        "a pipe": os.mkfifo,
        "a device": lambda path: path.symlink_to("/dev/zero"),
        "a folder": Path.mkdir,
    }
    if name in MAY_BE_FOLDERS:
        del makers["a folder"]
    wrong = {}
    for kind, make in makers.items():
        (tmp_path / kind).mkdir()
        make(tmp_path / kind / name)
        error = error_of(READERS[name], tmp_path / kind / name)
        if f"{name} must be a file, and is {kind}" not in error:
            wrong[kind] = error
    assert wrong == {}


def test_a_pipe_of_a_shell_is_read(tmp_path):
    reading, writing = os.pipe()
    os.write(writing, b"text\tlabel\nx\ty\n")
    os.close(writing)
    path = f"/dev/fd/{reading}"
    assert read_table(path, 1, format="tsv").texts == [("x",)]
    os.close(reading)
