"""The files of a checkpoint, wherever they are; no tensor is read here.

A source is a released zip, an unpacked folder, a checkpoint prefix, a file of weights
or a preset folder. `open_source` recognizes it by content, refuses unsafe sources, and
returns runs of bytes by role.
"""

import difflib
import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from roformer_keras.base.checks import check_file
from roformer_keras.base.errors import RoFormerError, SourceError, refuse
from roformer_keras.io.archive import ZipTree, is_zip, looks_like_zip
from roformer_keras.io.blob import HDF5_MAGIC, HEAD_SIZE, Blob, unreadable

_KERAS_PARTS = {
    "config": "config.json",
    "weights": "model.weights.h5",
    "metadata": "metadata.json",
}
_PRESET_PARTS = {
    **_KERAS_PARTS,
    "task": "task.json",
    "task_weights": "task.weights.h5",
    "tokenizer": "tokenizer.json",
    "vocabulary": "assets/tokenizer/vocabulary.txt",
}
# The head of a task in the `assets` of a Keras file.
TASK_WEIGHTS = "task.weights.h5"
_KERAS_HEAD = {"head": f"assets/{TASK_WEIGHTS}"}
PRESET_FILES = tuple(_PRESET_PARTS.values())
# Files that `finetune` adds to a preset; they do not belong to the model.
PRESET_BASELINES = "baselines.json"
# Every file that a preset folder may hold.
PRESET_PATHS = frozenset((*PRESET_FILES, PRESET_BASELINES))
# Files that describe an exported model.
EXPORT = "export.json"
# Files of a Hugging Face folder, and its weights in the order of preference, in one
# file
# or in shards that an index lists.
HUGGINGFACE_PARTS = {
    "config": "config.json",
    "vocabulary": "vocab.txt",
    "tokenizer_config": "tokenizer_config.json",
    "tokenizer_file": "tokenizer.json",
    "special_tokens": "special_tokens_map.json",
    "added_tokens": "added_tokens.json",
}
# Files that sentence-transformers adds to it.
SENTENCE_PARTS = {
    "modules": "modules.json",
    "sentence_config": "sentence_bert_config.json",
    "sentence_settings": "config_sentence_transformers.json",
    "pooling": "1_Pooling/config.json",
    "dense": "2_Dense/config.json",
    "dense_weights": "2_Dense/model.safetensors",
    "dense_pickle": "2_Dense/pytorch_model.bin",
    "second_dense": "3_Dense/config.json",
    "second_dense_weights": "3_Dense/model.safetensors",
    "second_dense_pickle": "3_Dense/pytorch_model.bin",
}
_HUGGINGFACE_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "tf_model.h5")
# Every file that this package or sentence-transformers writes into such a folder.
HUGGINGFACE_PATHS = frozenset(
    (
        *(HUGGINGFACE_PARTS | SENTENCE_PARTS).values(),
        "model.safetensors",
        "README.md",
    )
)
# Modules of sentence-transformers without settings; their folders are nearly empty.
SENTENCE_FOLDERS = frozenset(("2_Normalize", "3_Normalize", "4_Normalize"))
_ADAPTER = "adapter_config.json"
_HUGGINGFACE_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}(\.\w+)")
_COMPANIONS = {"bert_config": "bert_config.json", "vocabulary": "vocab.txt"}
_WANTED = (
    "a checkpoint is bert_model.ckpt.index with its .data file, HDF5 weights, "
    ".safetensors, .keras, a preset's config.json with model.weights.h5, or a Hugging "
    f"Face config.json with {', '.join(_HUGGINGFACE_WEIGHTS)}"
)
_SHARD = re.compile(r"(?P<prefix>.+)\.data-(?P<number>\d{5})-of-(?P<count>\d{5})")
_NO_WEIGHTS = (*_COMPANIONS.values(), "config.json", "checkpoint")
_WEB_PAGES = (b"<!doctype html", b"<html", b"<?xml")
_OTHER_ARCHIVES = {
    b"\x1f\x8b": "gzip",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!": "rar",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
}


@dataclass(frozen=True)
class SourceFiles:
    """The files of one checkpoint, by role."""

    label: str
    format: str
    parts: Mapping[str, Blob]


@contextmanager
def open_source(source: str | os.PathLike) -> Iterator[SourceFiles]:
    """Finds the one checkpoint in a source, and its companions."""
    path = _as_path(source)
    with ExitStack() as stack:
        with _readable(path):
            files = _open(path, stack)
        yield files


def list_files(source: str | os.PathLike) -> list[Path]:
    """The files on disk that `open_source` would read.

    For a zip this is the zip, and for an export all files of its folder.
    """
    path = _as_path(source)
    with _readable(path):
        if (path / EXPORT).is_file():
            return sorted(file for file in path.rglob("*") if file.is_file())
        tree, candidate = _find(path)
    return [tree.path / name for name in candidate.parts.values()]


def verify_archive(
    path: str | os.PathLike, progress: Callable[[int], object] | None = None
) -> None:
    """Reads every member of a zip, which must be safe, whole and one checkpoint."""
    path = _as_path(path)
    with _readable(path), ExitStack() as stack:
        if path.stat().st_size == 0 or not is_zip(path):
            raise _unknown_content(path)
        tree = ZipTree(path, stack)
        _choose(tree)
        for name in tree.members:
            for chunk in tree.chunks(name):
                if progress is not None:
                    progress(len(chunk))


# === From a path to its checkpoint ===


@dataclass(frozen=True)
class _Candidate:
    """A checkpoint in a tree: role -> name inside the tree."""

    format: str
    name: str
    parts: Mapping[str, str]


def _as_path(source) -> Path:
    text = os.fsdecode(source)
    refuse(
        not text or "\0" in text,
        f"a source must be a path, got {text!r}",
        error=SourceError,
    )
    return Path(text)


@contextmanager
def _readable(path):
    try:
        yield
    except RoFormerError:
        raise
    except OSError as error:
        raise unreadable(str(path), error) from error


def _open(path: Path, stack: ExitStack) -> SourceFiles:
    tree, candidate = _find(path)
    if candidate.format not in ("zip", "keras"):
        return SourceFiles(str(path), candidate.format, tree.blobs(candidate.parts))
    archive = ZipTree(tree.path / candidate.name, stack)
    inside = _choose(archive)
    parts = archive.blobs(inside.parts)
    if inside.format == "keras":
        companions = {k: v for k, v in candidate.parts.items() if k in _COMPANIONS}
        parts = {**tree.blobs(companions), **parts}
    return SourceFiles(archive.label, inside.format, parts)


def _find(path: Path) -> tuple["_FolderTree", _Candidate]:
    """The checkpoint in a folder, or a zip, whose members are not examined."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return _find_prefix(path)
    if stat.S_ISDIR(status.st_mode):
        tree = _FolderTree(path)
        return tree, _choose(tree)
    check_file(path)
    if status.st_size == 0:
        raise _unknown_content(path)
    tree = _FolderTree(path.parent)
    candidate = _huggingface(tree, "", path.name) or _candidate(tree, "", path.name)
    if candidate is None:
        if not is_zip(path):
            raise _unknown_content(path)
        candidate = _Candidate("zip", path.name, {"zip": path.name})
    return tree, candidate


def _find_prefix(path: Path) -> tuple["_FolderTree", _Candidate]:
    """`bert_model.ckpt` itself is no file; its .index and .data are."""
    if not os.path.isdir(path.parent):
        raise _absent(path)
    tree = _FolderTree(path.parent)
    names = tree.files("")
    if f"{path.name}.index" in names:
        candidate = _candidate(tree, "", f"{path.name}.index")
        assert candidate is not None
        return tree, candidate
    refuse(
        any((m := _SHARD.fullmatch(n)) and m["prefix"] == path.name for n in names),
        f"{path}.index is missing: a TensorFlow checkpoint is its .data files and "
        "its .index together",
        error=SourceError,
    )
    raise _absent(path)


def _choose(tree) -> _Candidate:
    for folders in tree.levels():
        matching = [
            candidate
            for folder in folders
            if not _is_stranger(folder)
            for candidate in _candidates(tree, folder)
        ]
        # A Dense of sentence-transformers, or a head, belongs to the model next to it.
        modules = {
            name
            for candidate in matching
            for role, name in candidate.parts.items()
            if role in SENTENCE_PARTS or role in _KERAS_HEAD
        }
        matching = [
            candidate for candidate in matching if candidate.name not in modules
        ]
        if len(matching) > 1:
            shown = _some(sorted(c.name or "." for c in matching))
            raise SourceError(
                f"{tree.label} holds {len(matching)} checkpoints: {shown}; "
                f"{tree.advice}"
            )
        if matching:
            return matching[0]
    names, zips = (
        [name for name in names if not _is_stranger(name)] for names in tree.inventory()
    )
    refuse(
        EXPORT in names,
        f"{tree.label} holds an export, which is no checkpoint: give the model "
        "from which it was made, or run it by ServedEncoder, ServedGenerator or "
        "load_exported of roformer_keras.export; generate and serve also take an "
        "export of export --generator",
        error=SourceError,
    )
    refuse(
        _ADAPTER in names,
        f"{tree.label} holds an adapter of PEFT, which is no checkpoint",
        hint="merge it by PEFT's merge_and_unload, then convert the merged model",
        error=SourceError,
    )
    held = f"{_some(zips)}; {tree.advice}" if zips else _some(names)
    raise SourceError(f"no checkpoint in {tree.label}: it holds {held}; {_WANTED}")


def _candidates(tree, folder: str) -> list[_Candidate]:
    names = [name for name in tree.files(folder) if not _is_stranger(name)]
    candidates = []
    if {_PRESET_PARTS["config"], _PRESET_PARTS["weights"]} <= set(names):
        candidates.append(_preset(tree, folder))
        names = [name for name in names if name not in _PRESET_PARTS.values()]
    elif huggingface := _huggingface(tree, folder):
        # Such folders hold the same weights in several formats.
        return [huggingface]
    return candidates + [c for name in names if (c := _candidate(tree, folder, name))]


def _huggingface(tree, folder: str, wanted: str | None = None) -> _Candidate | None:
    """The model of a Hugging Face folder, or its model in a named file."""
    parts = _present(tree, folder, HUGGINGFACE_PARTS)
    if "config" not in parts:
        return None
    if tree.has(_join(folder, SENTENCE_PARTS["modules"])):
        parts |= _present(tree, folder, SENTENCE_PARTS)
    for name in _HUGGINGFACE_WEIGHTS:
        full, index = _join(folder, name), _join(folder, f"{name}.index.json")
        if wanted not in (None, name, f"{name}.index.json"):
            continue
        if tree.has(full):
            return _Candidate("huggingface", full, {**parts, "weights": full})
        if tree.has(index):
            stem, extension = name.split(".")
            shards = {
                file: _join(folder, file)
                for file in tree.files(folder)
                if (match := _HUGGINGFACE_SHARD.fullmatch(file))
                and match.groups() == (stem, f".{extension}")
            }
            return _Candidate("huggingface", full, {**parts, "index": index, **shards})
    return None


def _preset(tree, folder: str) -> _Candidate:
    parts = _present(tree, folder, _PRESET_PARTS)
    # A .keras file is a zip of the same three names; only a preset has more files.
    is_keras = set(parts) == set(_KERAS_PARTS)
    if is_keras:
        parts |= _present(tree, folder, _KERAS_HEAD)
    if folder == "" and tree.is_archive and is_keras:
        return _Candidate("keras", "", parts)
    return _Candidate("preset", folder, parts)


def _candidate(tree, folder: str, name: str) -> _Candidate | None:
    """The checkpoint in, or indexed by, one file, or None."""
    full = _join(folder, name)
    if name.endswith(".index"):
        prefix = name.removesuffix(".index")
        parts = {"index": full, **_shards(tree, folder, prefix)}
        kind: str | None = "tensor_bundle"
        full = _join(folder, prefix)
    else:
        kind = _kind(tree, full)
        parts = {"weights": full}
    if kind is None:
        return None
    parts = {**_present(tree, folder, _COMPANIONS), **parts}
    outer, _, inner = folder.rpartition("/")
    if inner == "variables" and tree.has(_join(outer, "saved_model.pb")):
        # The files next to a SavedModel are one folder up.
        parts = {**_present(tree, outer, _COMPANIONS), **parts}
    return _Candidate(kind, full, parts)


def _kind(tree, name: str) -> str | None:
    head, size = tree.head(name)
    if head.startswith(HDF5_MAGIC):
        return "hdf5"
    # A safetensors file begins with the length of its JSON header in 8 bytes.
    header_size = int.from_bytes(head[:8], "little")
    if head[8:9] == b"{" and header_size <= size - 8:
        return "safetensors"
    if not tree.is_archive and looks_like_zip(head) and _is_keras(tree.path / name):
        return "keras"
    return None


def _shards(tree, folder: str, prefix: str) -> dict[str, str]:
    shards_by_count: dict[int, dict[int, str]] = {}
    for name in tree.files(folder):
        match = _SHARD.fullmatch(name)
        if match and match["prefix"] == prefix:
            shards = shards_by_count.setdefault(int(match["count"]), {})
            shards[int(match["number"])] = name
    # An earlier save may have left shards of another count: use every complete set; the
    # index states which of them it means.
    complete = [
        s for count, s in shards_by_count.items() if set(s) == set(range(count))
    ]
    if not complete:
        count = max(shards_by_count, default=1)
        missing = set(range(count)) - set(shards_by_count.get(count, ()))
        names = [f"{prefix}.data-{i:05}-of-{count:05}" for i in sorted(missing)]
        raise SourceError(
            f"{tree.label}: {_some(names)} is missing next to "
            f"{_join(folder, prefix)}.index; a TensorFlow checkpoint is its .index and "
            "all its .data files together"
        )
    return {
        name.removeprefix(f"{prefix}."): _join(folder, name)
        for shards in complete
        for name in shards.values()
    }


def _present(tree, folder: str, parts: Mapping[str, str]) -> dict[str, str]:
    """The roles whose files a folder has, with their names."""
    paths = {role: _join(folder, name) for role, name in parts.items()}
    return {role: path for role, path in paths.items() if tree.has(path)}


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _is_stranger(name: str) -> bool:
    """True if a file was added by an operating system: .DS_Store, ._x, __MACOSX/."""
    return any(item.startswith(".") or item == "__MACOSX" for item in name.split("/"))


class _FolderTree:
    """Files of a folder and of the folders in it."""

    is_archive = False
    advice = "give the path of the one you mean"

    def __init__(self, path: Path):
        self.path, self.label = path, str(path)

    def levels(self) -> Iterator[list[str]]:
        yield [""]
        with os.scandir(self.path) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
        yield sorted(names)

    def files(self, folder: str) -> list[str]:
        with os.scandir(self.path / folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_file())

    def has(self, name: str) -> bool:
        path = self.path / name
        if not path.is_file() and os.path.lexists(path):
            # Skipping it in silence would change the model.
            raise SourceError(f"{path} must be a file: delete it, or copy it again")
        return path.is_file()

    def head(self, name: str) -> tuple[bytes, int]:
        with open(self.path / name, "rb") as file:
            return file.read(HEAD_SIZE), os.fstat(file.fileno()).st_size

    def blobs(self, parts: Mapping[str, str]) -> dict[str, Blob]:
        return {role: Blob.of_file(self.path / name) for role, name in parts.items()}

    def inventory(self) -> tuple[list[str], list[str]]:
        """Names of the files, and of the zips among them."""
        names = self.files("")
        return names, [name for name in names if is_zip(self.path / name)]


def _is_keras(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        return False
    return set(_KERAS_PARTS.values()) <= names


# === Messages ===


def _some(names: list[str]) -> str:
    if not names:
        return "nothing"
    omitted = f" and {len(names) - 10:,} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + omitted


def _absent(path: Path) -> SourceError:
    folder = path.absolute().parent
    wanted = path.name
    while not os.path.isdir(folder):
        folder, wanted = folder.parent, folder.name
    close = difflib.get_close_matches(wanted, os.listdir(folder), n=3)
    hint = (
        f"did you mean {' or '.join(close)}" if close else f"{folder} has no {wanted}"
    )
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", str(path)):
        hint += f"; a model of the Hub is hf://{path.as_posix()}"
    return SourceError(f"{path} does not exist; {hint}")


def _unknown_content(path: Path) -> SourceError:
    with open(path, "rb") as file:
        head = file.read(HEAD_SIZE)
    kinds = [kind for magic, kind in _OTHER_ARCHIVES.items() if head.startswith(magic)]
    prefix = re.sub(r"\.(meta|data-\d{5}-of-\d{5})$", "", path.name)
    problems = {
        "is empty: download or save it again": not head,
        "is a web page, not a checkpoint: it is probably an error page, "
        "download it again": head.lstrip().lower().startswith(_WEB_PAGES),
        f"is a {''.join(kinds)} archive: unpack it and give the path of the folder": (
            kinds
        ),
        "is one part of a TensorFlow checkpoint: give its prefix, "
        f"{path.parent / prefix}": prefix != path.name,
        f"holds no weights: give its folder, {path.parent}": path.name in _NO_WEIGHTS,
        "is not a checkpoint, or a damaged one: it begins with "
        f"{head[:16]!r}; {_WANTED}": True,
    }
    problem = next(text for text, is_so in problems.items() if is_so)
    return SourceError(f"{path} {problem}")
