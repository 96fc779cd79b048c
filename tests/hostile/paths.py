"""Operands that are no usable file: SOURCE, inputs, and outputs of commands."""

import os
import pickle
import zipfile

from common import SMALL, write_file


def in_folder(name):
    return {f"{name}/file": ""}


def links(*names):
    """Symbolic links in a ring."""

    def make(folder):
        for name, target in zip(names, (*names[1:], names[0]), strict=True):
            (folder / name).symlink_to(target)

    return make


def pipe(folder):
    os.mkfifo(folder / "x")


def dangling(folder):
    (folder / "x").symlink_to("nowhere")


def deep(folder):
    """A checkpoint below two folders, where it is not looked for."""
    (folder / "x" / "y" / "z").mkdir(parents=True)
    (folder / "x" / "y" / "z" / "small.zip").write_bytes(SMALL.read_bytes())


def saved_model(folder):
    (folder / "x" / "variables").mkdir(parents=True)
    (folder / "x" / "saved_model.pb").write_bytes(b"\x08\x01\x12\x00")
    (folder / "x" / "variables" / "variables.index").write_bytes(b"")


def hugging_face(folder):
    (folder / "x").mkdir()
    (folder / "x" / "config.json").write_text('{"model_type": "roformer"}')
    (folder / "x" / "pytorch_model.bin").write_bytes(b"PK\3\4")


class Touch:
    """Unpickles as a call of the shell."""

    def __reduce__(self):
        return os.system, ("touch x/touched",)


def shards(data, name="pytorch_model-00001-of-00001.bin", place="."):
    """A `pytorch_model.bin` in shards: its index, and the only one with this pickle."""

    def make(folder):
        checkpoint = folder / "x"
        checkpoint.mkdir()
        (checkpoint / "config.json").write_text('{"model_type": "roformer"}')
        index = {"weight_map": {"embeddings.word_embeddings.weight": name}}
        write_file(checkpoint / "pytorch_model.bin.index.json", index)
        (checkpoint / place).mkdir(exist_ok=True)
        path = checkpoint / place / "pytorch_model-00001-of-00001.bin"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x/data.pkl", data)

    return make


def many(folder):
    (folder / "x").mkdir()
    for number in range(300):
        (folder / "x" / f"{number}.h5").write_bytes(b"\x89HDF\r\n\x1a\n")


_OF_OTHERS = {
    "x.pt": b"\x80\x02}q\x00.",
    "x.pkl": b"\x80\x04\x95cos\nsystem\n",
    "x.tar": b"x" * 257 + b"ustar\x0000",
}
LONG, DEEP = "x" * 5000, "x/" * 5000
NO_FILE = "must be a file, and is a"
# SOURCE, files, message. More of them are in tests/unit/test_sources.py.
_SOURCES = [
    ("''", {}, "a source must be a path or a name, got ''"),
    ("' '", {}, "no file or folder here, and ' ' is not in the"),
    (".", {}, "it holds nothing"),
    *((f"/dev/{name}", {}, NO_FILE) for name in ("null", "zero", "full", "stdin")),
    ("/proc/self/mem", {}, "cannot read /proc/self/mem: Input/output error"),
    ("/etc/passwd", {}, "is not a checkpoint"),
    ("x", pipe, NO_FILE),
    ("x", dangling, "no file or folder x here, and 'x' is not in the"),
    ("x", links("x", "y"), "no file or folder x here"),
    ("x/y", links("x"), "cannot read x/y: Too many levels of symbolic links"),
    ("x", deep, "no checkpoint in x"),
    ("x", saved_model, "variables.data-00000-of-00001 is missing next to"),
    ("x", hugging_face, "x/pytorch_model.bin is a damaged or truncated zip"),
    ("x", many, "holds 300 checkpoints"),
    ("x/y", {"x": ""}, "x/y does not exist; did you mean x"),
    ("x", {"x.index": ""}, ".: x.data-00000-of-00001 is missing next to"),
    ("x", {"x.data-00000-of-00001": ""}, "no file or folder x here, and 'x' is not in"),
    ("x", {"x.index": "", "x.data-00007-of-00002": ""}, ".: x.data-00000-of-00002, x."),
    *(("x", {"x": data}, "is not a checkpoint") for data in ("\0", b"\0" * 2**20)),
    *((name, {name: data}, "is not a checkpoint") for name, data in _OF_OTHERS.items()),
    ("x.npz", {"x.npz": b"PK\5\6" + bytes(18)}, "no checkpoint in x.npz"),
    (LONG, {}, "got 5,000 characters"),
    *((path, {}, "characters") for path in (f"./{LONG}", f"{LONG}/x", DEEP)),
    (f"{'x' * 300}/y", {}, "cannot read"),
    *((name, {}, "is not in the catalogue") for name in ("roformer", "ROFORMER-CHAR")),
    *((name, {}, "does not exist") for name in ("../roformer-char", "~/x")),
    ("http://127.0.0.1/x.zip", {}, "x.zip does not exist"),
    ("file:///etc/passwd", {}, "file:/etc/passwd does not exist"),
    *((name, {}, f"no file or folder {name} here, and") for name in ("-", "$HOME")),
    ("x;id", {}, "is not in the catalogue"),
    ("\x1b[2J", {}, r"\x1b[2J"),
    ("\u202excod.zip", {}, "\\u202excod.zip"),
]
VERBS = ("inspect {}", "convert {} y", "tokenize --source {} 今")
SHARD = "pytorch_model-00001-of-00001.bin"
# PyTorch's weights in shards: the index, and what it names.
_SHARDS = [
    ("inspect x", shards(b"", "pytorch_model-00002-of-00002.bin"), 2, "such shard"),
    ("convert x y", shards(b"", "../config.json"), 2, "no such shard: download"),
    ("inspect x", shards(b"", f"../{SHARD}", place=".."), 2, "no such shard: download"),
    ("inspect x", shards(b"", f"/etc/{SHARD}"), 2, "no such shard: download"),
    ("inspect x", shards(b"", "config"), 2, "no such shard: download"),
    ("inspect x", shards(pickle.dumps({"x": Touch()})), 3, "asks for posix.system"),
    ("convert x y", shards(pickle.dumps(Touch(), 2)), 3, "asks for posix.system"),
    ("inspect x", shards(pickle.dumps([Touch()], 0)), 3, "asks for posix.system"),
    ("inspect x", shards(b"\x80\x02" + b"(" * 100_000), 3, "a damaged pickle"),
    ("inspect x", shards(pickle.dumps({})), 3, "is in the index only: download both"),
]
# Whole lines about outputs.
EXISTS = "exists: choose another name, or pass --overwrite"
A_FOLDER = "is a folder: give the name of a file"
A_FILE = "is a file: give the name of a folder"
_OUTPUTS = [
    ("convert SMALL /dev/full", {}, 4, "/dev/full is a file: give the name of a folde"),
    ("convert SMALL /dev/null", {}, 4, "/dev/null is a file: give the name of a folde"),
    ("convert SMALL /proc/x", {}, 4, "could not write /proc/x (No such file or"),
    ("convert SMALL /", {}, 4, "holds files that are no part"),
    ("convert SMALL .", {}, 4, EXISTS),
    ("convert SMALL ''", {}, 4, "must have a name, got ''"),
    ("convert SMALL '' --overwrite", {}, 4, "must have a name, got ''"),
    ("convert SMALL x", in_folder("x"), 4, "x holds files that are no part of a prese"),
    ("convert SMALL x --overwrite", in_folder("x"), 4, "holds files that are no part"),
    ("convert SMALL x.keras", in_folder("x.keras"), 4, A_FOLDER),
    ("convert SMALL x.keras --overwrite", in_folder("x.keras"), 4, A_FOLDER),
    ("convert SMALL x", pipe, 4, A_FILE),
    ("convert SMALL x --overwrite", links("x", "y"), 4, "could not write x (Not a dir"),
    ("convert SMALL x/y", {}, 4, "x is not a folder"),
    ("convert SMALL x/y", {"x": ""}, 4, "x is not a folder"),
    (f"convert SMALL {'y' * 256}", {}, 4, "File name too long"),
    (f"convert SMALL {'中' * 100}", {}, 4, "File name too long"),
    (f"convert SMALL {'y' * 250}.keras", {}, 4, "File name too long"),
    (f"convert SMALL {'y/' * 3000}", {}, 4, "cannot write to"),
    ("convert x x", {"x": SMALL.read_bytes()}, 4, A_FILE),
    ("convert x.zip x.zip", {"x.zip": SMALL.read_bytes()}, 4, EXISTS),
    ("convert SMALL x.onnx", {}, 2, "no format goes with '.onnx'"),
    ("convert SMALL x.pkl", {}, 2, "no format goes with '.pkl'"),
    ("convert SMALL y --model ''", {}, 2, "model must be one of"),
    ("convert SMALL y --model RoFormerSeq2Seq", {}, 2, "model must be one of"),
    (
        "convert SMALL y --model RoFormerTextClassifier",
        {},
        2,
        "model must be one of 'RoFormerBackbone',",
    ),
    ("convert SMALL y --model __class__", {}, 2, "model must be one of"),
    ("convert SMALL y --ignore", {}, 2, "expected one argument"),
]
CASES = [
    *(
        (VERBS[number % 3].format(source), files, 2, message)
        for number, (source, files, message) in enumerate(_SOURCES)
    ),
    *((line, files, code, message) for line, files, code, message in _SHARDS),
    *_OUTPUTS,
]
