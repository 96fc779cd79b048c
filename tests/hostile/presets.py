"""Presets and `.keras` files, as SOURCE: their JSON tells lies."""

import functools
import io
import json
import os
import tempfile
import zipfile
from pathlib import Path

from common import SMALL, read_files, write_files

from roformer_keras import convert


@functools.cache
def files(name, source=SMALL):
    """The content of a small checkpoint in another format, by name of the file."""
    with tempfile.TemporaryDirectory() as folder:
        made = convert(source, Path(folder, name), verbose=0)
        if name == "x.keras":
            with zipfile.ZipFile(made) as archive:
                return {name: archive.read(name) for name in archive.namelist()}
        return read_files(made)


def place(content, keys, value):
    """Puts a value at the place of these keys; `...` deletes it."""
    *path, last = keys
    inner = content
    for key in path:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value


def changed(members, name, *keys, value):
    """Members in which one JSON file has another value."""
    members = dict(members)
    if isinstance(value, bytes):
        members[name] = value
        return members
    content = json.loads(members[name])
    place(content, keys, value)
    members[name] = json.dumps(content).encode()
    return members


def preset(name, *keys, value):
    """A preset `p` with another value in one of its files."""
    members = changed(files("p"), name, *keys, value=value)
    return {f"p/{path}": data for path, data in members.items()}


def keras(name, *keys, value):
    """`x.keras` with another value in one of its files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, data in changed(files("x.keras"), name, *keys, value=value).items():
            archive.writestr(path, data)
    return {"x.keras": buffer.getvalue()}


def nested(depth, opening='{"config":', closing="}"):
    return (opening * depth + "{}" + closing * depth).encode()


def without(*names):
    return {f"p/{name}": data for name, data in files("p").items() if name not in names}


def linked(name, target):
    """A preset of which one file is a symbolic link."""

    def write(folder):
        write_files(folder / "p", files("p"))
        (folder / "p" / name).unlink()
        (folder / "p" / name).symlink_to(target)

    return write


def replaced_by_folder(name):
    def write(folder):
        linked(name, "nowhere")(folder)
        (folder / "p" / name).unlink()
        (folder / "p" / name).mkdir()

    return write


def replaced_by_pipe(name):
    def write(folder):
        linked(name, "nowhere")(folder)
        (folder / "p" / name).unlink()
        os.mkfifo(folder / "p" / name)

    return write


TASK, CONFIG, TOKENIZER = "task.json", "config.json", "tokenizer.json"
BACKBONE = ("config", "backbone", "config")
NO_MODEL = "holds no RoFormer model"
NO_JSON = "is not valid JSON"
ONE_BACKBONE = "config.json and task.json must have the same"
NO_TOKENIZER = "holds no tokenizer"
OTHER_KIND, NO_FILE = "HDF5 weights of another kind of model:", "must be a file: delete"
# File, keys, value, exit code, message.
_JSON = [
    (TASK, ("class_name",), [], 2, NO_MODEL),
    (TASK, ("class_name",), {}, 2, NO_MODEL),
    (TASK, ("class_name",), None, 2, NO_MODEL),
    (TASK, ("class_name",), 3, 2, NO_MODEL),
    (TASK, ("class_name",), "", 2, "of class ''"),
    (TASK, ("class_name",), "RoFormerSim" * 10**5, 2, "of class"),
    (TASK, ("class_name",), "os.system", 2, "of class 'os.system'"),
    (TASK, ("class_name",), "__import__", 2, "of class '__import__'"),
    (TASK, ("class_name",), "Lambda", 2, "of class 'Lambda'"),
    (TASK, ("class_name",), "RoFormerNothing", 2, "of class 'RoFormerNothing',"),
    *(
        (
            TASK,
            ("class_name",),
            name,
            2,
            "class_name and registered_name must be of one",
        )
        for name in ("RoFormerTextClassifier", "RoFormerBackbone")
    ),
    (TASK, ("class_name",), "RoFormerSeq2Seq", 2, "0.2 withdrew RoFormerSeq2Seq: use"),
    (TASK, ("class_name",), ..., 2, NO_MODEL),
    (TASK, ("config",), ..., 2, NO_MODEL),
    (TASK, ("config",), 3, 2, NO_MODEL),
    (TASK, ("config",), [], 2, NO_MODEL),
    (TASK, ("config",), "x", 2, NO_MODEL),
    (TASK, ("config",), {}, 2, "RoFormerConfig must have vocabulary_size,"),
    (TASK, ("config", "backbone"), 3, 2, NO_MODEL),
    (TASK, ("config", "backbone"), [], 2, NO_MODEL),
    (TASK, ("config", "backbone"), {}, 2, NO_MODEL),
    (TASK, ("config", "backbone"), ..., 2, "RoFormerConfig must have vocabulary_size,"),
    (TASK, BACKBONE, 3, 2, NO_MODEL),
    (TASK, BACKBONE, [1], 2, NO_MODEL),
    (TASK, BACKBONE, {}, 2, "RoFormerConfig must have vocabulary_size"),
    (TASK, (*BACKBONE, "colour"), "red", 2, "has no field colour"),
    (TASK, (*BACKBONE, "num_layers"), 10**12, 3, ONE_BACKBONE),
    (TASK, (*BACKBONE, "num_layers"), "2", 2, "num_layers must be an integer"),
    (TASK, (*BACKBONE, "activation"), "lambda x: x", 2, "Keras activation"),
    (TASK, (*BACKBONE, "quantization"), {"x": 3}, 2, "withdrew quantization="),
    (TASK, (), b"", 2, NO_JSON),
    (TASK, (), b"null", 2, "must hold one JSON object, got NoneType"),
    (TASK, (), b"NaN", 2, "is not valid JSON: NaN is no JSON"),
    (TASK, (), b"[" * 10**5, 2, NO_JSON),
    (TASK, (), nested(50_000), 2, NO_JSON),
    (TASK, (), nested(900), 2, "it is nested more than 100 deep"),
    (TASK, (), b"9" * 10**5, 2, NO_JSON),
    (TASK, (), b"\xff\xfe{\0}\0", 2, "p holds no RoFormer model"),
    (TASK, (), b"\x00", 2, NO_JSON),
    (CONFIG, (), b"", 2, "p/config.json is not valid JSON: Expecting"),
    (CONFIG, (), b"\x80", 2, "p/config.json is not valid JSON: 'utf-8' codec"),
    (CONFIG, ("class_name",), [], 2, "p holds no RoFormer model"),
    (CONFIG, ("config", "num_layers"), 3, 3, ONE_BACKBONE),
    (CONFIG, ("config", "hidden_dim"), 80, 3, ONE_BACKBONE),
]
_TOKENIZERS = [
    *((("config",), value, 2, NO_TOKENIZER) for value in (3, [], ...)),
    *((("config", "level"), value, 2, NO_TOKENIZER) for value in (3, ["word"])),
    *((("config", "lower_case"), value, 2, NO_TOKENIZER) for value in ("no", 0, None)),
    (("config", "colour"), "red", 2, NO_TOKENIZER),
    (("config", "level"), "word", 2, "contradicts the vocabulary"),
    (("config", "level"), "syllable", 2, "level must be 'character' or 'word'"),
    ((), b"[" * 10**5, 2, NO_JSON),
    ((), b"3", 2, "must hold one JSON object, got int"),
]
_FOLDERS = [
    (without("model.weights.h5"), 3, OTHER_KIND),
    (without("config.json"), 2, "p holds 2 checkpoints: model.weights.h5,"),
    (without("task.json"), 2, "p has a head (mlm) for which RoFormerBackbone has"),
    (without("task.weights.h5"), 3, "no mlm head: missing"),
    (without(*files("p")) | {"p/config.json": b"{}"}, 2, "no checkpoint in p"),
    (linked(CONFIG, CONFIG), 2, "cannot read p: Too many levels of symbolic links"),
    (linked("model.weights.h5", "/dev/zero"), 3, OTHER_KIND),
    (linked("model.weights.h5", "."), 3, OTHER_KIND),
    (linked("task.json", "/dev/null"), 2, f"p/task.json {NO_FILE}"),
    (replaced_by_folder("task.json"), 2, f"p/task.json {NO_FILE}"),
    (replaced_by_folder("model.weights.h5"), 3, OTHER_KIND),
    (replaced_by_pipe("config.json"), 2, f"p/config.json {NO_FILE}"),
    (replaced_by_pipe("task.weights.h5"), 2, f"p/task.weights.h5 {NO_FILE}"),
]
_KERAS = [
    ("config.json", ("class_name",), [], 2, NO_MODEL),
    ("config.json", ("class_name",), "Functional", 2, "of class 'Functional'"),
    ("config.json", ("class_name",), "Lambda", 2, "of class 'Lambda'"),
    ("config.json", ("config", "backbone"), None, 2, "has no field backbone"),
    (
        "config.json",
        ("config", "backbone", "config", "num_heads"),
        3,
        2,
        "hidden_dim must be a multiple of num_heads, got",
    ),
    (
        "config.json",
        ("config", "backbone", "config", "num_layers"),
        10**9,
        3,
        "the configuration has 1,000,000,000 layers, but",
    ),
    ("config.json", (), nested(50_000), 2, NO_JSON),
    ("config.json", (), b"", 2, NO_JSON),
    ("config.json", (), b"\xff", 2, NO_JSON),
    ("model.weights.h5", (), b"", 3, "is not a whole HDF5 file"),
    ("model.weights.h5", (), b"\x89HDF\r\n\x1a\n", 3, "is not a whole HDF5 file"),
]
SYSTEM = {"module": "os", "class_name": "system", "config": {"command": "touch x"}}
CASES = [
    *(
        ("convert p y", preset(name, *keys, value=value), code, message)
        for name, keys, value, code, message in _JSON
    ),
    *(
        (command, preset(TOKENIZER, *keys, value=value), code, message)
        for keys, value, code, message in _TOKENIZERS
        for command in ("tokenize --source p 今", "inspect p", "convert p y")
    ),
    *(("convert p y", *row) for row in _FOLDERS),
    *(
        ("convert x.keras y", keras(name, *keys, value=value), code, message)
        for name, keys, value, code, message in _KERAS
    ),
]
