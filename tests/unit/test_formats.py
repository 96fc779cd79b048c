"""A format that is registered once is read wherever files are."""

import gzip
import lzma

import fsspec
import pyarrow
import pytest
from common import run_main, write_file

from roformer_keras import FinetuningSettings
from roformer_keras.base.errors import ConfigurationError, SourceError
from roformer_keras.base.task_registry import TASKS
from roformer_keras.cli.texts import read_lines
from roformer_keras.distributed.files import _rows_of
from roformer_keras.tables import formats
from roformer_keras.tables.corpus import CorpusSource, read_corpus
from roformer_keras.tables.files import read_table
from roformer_keras.tasks.labelled_files import (
    read_files,
    read_labelled,
    read_unlabelled,
)

TEXTS, LABELS = [("今天",), ("明天",)], ["好", "坏"]
TASK = TASKS["text-classification"]


def read_arrows(file, keys):
    """Lines of `text -> label`."""
    for number, line in file.lines():
        text, arrow, label = line.strip().partition(" -> ")
        error = SourceError(f"{file.place(number)} must have an arrow")
        yield number, {"text": text, "label": label} if arrow else error


@pytest.fixture(params=[".arrows", ".arrows.gz", ""])
def path(request, tmp_path, monkeypatch):
    """A file of the new format, by its ending or by `format`."""
    monkeypatch.setattr(formats, "FORMATS", formats.FORMATS)
    monkeypatch.setitem(formats.FORMATS, "arrows", None)
    formats.register(
        formats.Format(name="arrows", read=read_arrows, endings=(".arrows",))
    )
    content = "今天 -> 好\n明天 -> 坏\n".encode()
    is_packed = request.param.endswith(".gz")
    name = tmp_path / f"x{request.param}"
    return write_file(name, gzip.compress(content) if is_packed else content)


def test_a_new_format_is_read_everywhere(path):
    layout = {} if ".arrows" in str(path) else {"format": "arrows"}
    path = str(path)
    settings = FinetuningSettings(task="text-classification", train=path, **layout)
    trained = read_files(settings)["train"]
    measured = read_labelled(path, TASK, 1, (), **layout)
    for table in (trained, measured, read_table(path, 1, **layout)):
        assert (table.texts, table.labels, table.lines) == (TEXTS, LABELS, [1, 2])
    assert [row for _, row in read_unlabelled(path, TASK, 1, (), **layout)] == TEXTS
    assert list(read_corpus(CorpusSource(files=(path,), **layout))) == TEXTS
    if not layout:
        assert read_lines(path) == [text for (text,) in TEXTS]
    item = {"file": path, "at": 0}
    rows = _rows_of(item, ("text",), layout, "report")
    assert [(row["text"],) for row in rows] == TEXTS


def test_commands_know_a_new_format(path, tmp_path, monkeypatch, capsys):
    write_file(path, "今天 -> 好\n今天\n") if path.suffix != ".gz" else None
    layout = [] if ".arrows" in path.name else ["--format", "arrows"]
    for line in (
        ["finetune", "text-classification", "--train", str(path), "-o", "run"],
        ["embed", str(path), "-o", "x.npy"],
        ["index", str(path), "-o", "x"],
    ):
        monkeypatch.chdir(tmp_path)
        if path.suffix != ".gz":
            code, _, err = run_main(*line, *layout, capsys=capsys)
            assert (code, f"line 2 of {path} must have an arrow" in err) == (2, True)
        assert "arrows" in run_main(line[0], "--help", capsys=capsys)[1]
    with pytest.raises(SourceError, match=r"\.arrow or \.arrows, or text .* arrows un"):
        read_table("x.doc", 1)
    with pytest.raises(ConfigurationError, match="'squad', 'arrows', got 'x'"):
        CorpusSource(files=("x",), format="x")


PACKERS = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("ending", [*PACKERS, ".ZST"])
def test_packed_files_and_uris(ending, tmp_path):
    content = "今天\t好\n明天\t坏\n".encode()
    packed = PACKERS[ending.lower()](content)
    path = write_file(tmp_path / f"x.tsv{ending}", packed)
    assert read_table(path, 1).texts == TEXTS
    unnamed = write_file(tmp_path / f"x.train{ending}", packed)
    assert read_table(unnamed, 1, format="tsv").texts == TEXTS
    for bad in (packed[:-5], b"no archive\n" * 9):
        write_file(path, bad)
        with pytest.raises(SourceError, match=r"cannot read .*x\.tsv"):
            read_table(path, 1)
    memory = fsspec.filesystem("memory")
    for name, data in (("x.tsv", content), (f"x.tsv{ending}", packed)):
        memory.pipe(f"/{name}", data)
        uri = f"memory://{name}"
        assert read_table(uri, 1).labels == LABELS
        settings = FinetuningSettings(task="text-classification", train=uri)
        before = settings.describe()
        assert before == settings.describe()
        assert list(read_corpus(CorpusSource(files=(uri,)))) == TEXTS
        memory.pipe(f"/{name}", data + b"x")
        assert before != settings.describe()
    with pytest.raises(SourceError, match=r"cannot read memory://none\.tsv"):
        read_table("memory://none.tsv", 1)


def test_the_extras_are_named(tmp_path, monkeypatch):
    modules = __import__("sys").modules
    path = write_file(tmp_path / "x.tsv.zst", b"x")
    for module, name, extra in (
        ("pyarrow", str(path), "data"),
        ("fsspec", "s3://x/x.tsv", "hub"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(modules, module, None)
            with pytest.raises(ValueError, match=rf"roformer-keras\[{extra}\]"):
                read_table(name, 1)
