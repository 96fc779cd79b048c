"""The files of a checkpoint, wherever they are; no tensor is read here.

A source is whatever a user has: the released zip, an unpacked folder, a checkpoint
prefix, a file of weights, a preset folder. `open_source` finds out which by content,
refuses what is unsafe, and hands on runs of bytes by role.
"""

import copy
import difflib
import os
import re
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from roformer_keras.errors import (
    CheckpointError,
    RoFormerError,
    SourceError,
)

__all__ = [
    "MAX_MEMBERS",
    "MAX_RATIO",
    "MAX_TOTAL_SIZE",
    "PRESET_NAMES",
    "RATIO_EXEMPT_SIZE",
    "Blob",
    "SourceFiles",
    "list_files",
    "open_source",
    "verify_archive",
]

# An archive beyond any of these is taken for an attack. The largest released zip holds
# about 1.3 GB in five members; weights hardly compress at all.
MAX_MEMBERS = 10_000
MAX_TOTAL_SIZE = 16 * 2**30
MAX_RATIO = 100
RATIO_EXEMPT_SIZE = 2**20

_CHUNK = 2**20
_HEAD_SIZE = 512
# The end record of a zip, its longest comment, and the two records of a large zip.
_MAX_TAIL = 22 + 0xFFFF + 20 + 56
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")

_PRESET_PARTS = {
    "config": "config.json",
    "weights": "model.weights.h5",
    "task": "task.json",
    "task_weights": "task.weights.h5",
    "tokenizer": "tokenizer.json",
    "vocabulary": "assets/tokenizer/vocabulary.txt",
    "metadata": "metadata.json",
}
# Every name that a preset folder may hold at its top.
PRESET_NAMES = frozenset(name.split("/")[0] for name in _PRESET_PARTS.values())
_KERAS_PARTS = {
    "config": "config.json",
    "weights": "model.weights.h5",
    "metadata": "metadata.json",
}
_COMPANIONS = {"bert_config": "bert_config.json", "vocabulary": "vocab.txt"}
_WANTED = (
    "a checkpoint is bert_model.ckpt.index with its .data file, HDF5 weights, "
    ".safetensors, .keras, or a preset's config.json with model.weights.h5"
)
_SHARD = re.compile(r"(?P<prefix>.+)\.data-(?P<number>\d{5})-of-(?P<count>\d{5})")
_OTHER_ARCHIVES = {
    b"\x1f\x8b": "gzip",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!": "rar",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
}


@dataclass(frozen=True)
class Blob:
    """A run of bytes on disk: a file, or a stored member inside a zip.

    `len` and slices read it piece by piece.

    Args:
        path: Path of the file that holds the bytes.
        offset: int. First byte.
        size: int. Number of bytes.
        label: str. What error messages call it, such as
            `"x.zip: name/bert_model.ckpt.index"`.
    """

    path: Path
    offset: int
    size: int
    label: str

    @classmethod
    def of_file(cls, path: Path) -> "Blob":
        """A whole file; raises FileNotFoundError if there is none."""
        return cls(path, 0, path.stat().st_size, str(path))

    def read(self, start: int = 0, size: int | None = None) -> bytes:
        """All of it, or `size` bytes from `start` on, as far as it goes.

        Read rather than mapped: mapped pages would count as memory of the process,
        and touching them ends it if someone cuts the file short.

        Raises:
            SourceError: the file cannot be read, or has become shorter.
        """
        size = min(self.size - start, self.size if size is None else size)
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset + start)
                data = file.read(max(0, size))
        except OSError as error:
            raise _unreadable(self.label, error) from error
        if len(data) < size:
            raise self._shrunk()
        return data

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, piece: slice) -> bytes:
        start, stop, _ = piece.indices(self.size)
        return self.read(start, stop - start)

    def chunks(self, size: int = _CHUNK) -> Iterator[bytes]:
        """All of it, piece by piece; raises as `read` does."""
        for start in range(0, self.size, size):
            yield self.read(start, size)

    def _shrunk(self) -> SourceError:
        return SourceError(
            f"{self.label} has become shorter than its {self.size:,} bytes since it "
            "was opened; leave the file alone while it is in use"
        )


@dataclass(frozen=True)
class SourceFiles:
    """The files of one checkpoint, by role.

    Args:
        label: str. How messages name the source.
        format: `"tensor_bundle"`, `"hdf5"`, `"safetensors"`, `"keras"` or `"preset"`.
        parts: Mapping of role to `Blob`. `"bert_config"` and `"vocabulary"` where they
            lie beside the weights; then, by format: tensor_bundle `"index"` and every
            `"data-00000-of-00001"`; hdf5 and safetensors `"weights"`; keras `"config"`,
            `"weights"`, `"metadata"`; preset `"config"`, `"weights"`, and, where there,
            `"task"`, `"task_weights"`, `"tokenizer"`, `"vocabulary"`, `"metadata"`.
    """

    label: str
    format: str
    parts: Mapping[str, Blob]


@dataclass(frozen=True)
class _Candidate:
    """A checkpoint found in a tree: role -> name inside the tree."""

    format: str
    name: str
    parts: Mapping[str, str]


@contextmanager
def open_source(source: str | os.PathLike) -> Iterator[SourceFiles]:
    """Finds the one checkpoint in `source`, whatever it is, and its companions.

    Args:
        source: a zip, a folder (a wrapping folder may lie in between), a TensorFlow
            checkpoint prefix or its `.index`, an HDF5, safetensors or `.keras` file,
            or a preset folder. Formats are told by content, not by extension.

    Returns:
        A context manager that yields `SourceFiles`. What had to be unpacked lies in a
        temporary folder that goes when the block ends.

    Raises:
        SourceError: there is no such file, it holds no checkpoint or several, a part
            is missing, or an archive is unsafe; nothing has been written then.
        CheckpointError: a member of an archive is corrupt; names it.
    """
    path = _as_path(source)
    with ExitStack() as stack:
        try:
            files = _locate(path, stack)
        except RoFormerError:
            raise
        except OSError as error:
            raise _unreadable(str(path), error) from error
        yield files


def list_files(source: str | os.PathLike) -> list[Path]:
    """The files on disk that `open_source` would read: of a zip, the zip.

    Raises:
        SourceError: there is no such file, or it holds no checkpoint or several.
    """
    path = _as_path(source)
    try:
        if path.is_dir():
            folder, candidate = path, _choose(_FolderTree(path))
        else:
            folder, tree = path.parent, _FolderTree(path.parent)
            if not path.exists():
                _from_prefix(path)
            name = path.name if path.exists() else f"{path.name}.index"
            candidate = _candidate(tree, "", name)
    except OSError as error:
        if isinstance(error, RoFormerError):
            raise
        raise _unreadable(str(path), error) from error
    if candidate is None:
        return [path]
    return [folder / name for name in candidate.parts.values()]


def verify_archive(
    path: str | os.PathLike, progress: Callable[[int], object] | None = None
) -> None:
    """Reads every member of a zip once: safe, whole, and holding one checkpoint.

    Args:
        path: the zip.
        progress: called with the number of bytes of each step.

    Raises:
        SourceError: not a zip, truncated, unsafe, or without one checkpoint.
        CheckpointError: a member is corrupt; names it.
    """
    path = _as_path(path)
    try:
        if path.stat().st_size == 0 or not _is_zip(path):
            raise _unknown_content(path)
        with ExitStack() as stack:
            tree = _ZipTree(path, stack)
            _choose(tree)
            for name in tree.members:
                for chunk in tree.chunks(name):
                    if progress is not None:
                        progress(len(chunk))
    except RoFormerError:
        raise
    except OSError as error:
        raise _unreadable(str(path), error) from error


# === From a path to the one checkpoint it means ===


def _as_path(source) -> Path:
    text = os.fsdecode(source)
    if not text or "\0" in text:
        raise SourceError(f"a source must be a path, got {text!r}")
    return Path(text)


def _locate(path: Path, stack: ExitStack) -> SourceFiles:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return _from_prefix(path)
    if stat.S_ISDIR(mode):
        return _from_folder(path, stack)
    if not stat.S_ISREG(mode):
        raise SourceError(f"{path} is neither a file nor a folder")
    return _from_file(path, stack)


def _from_folder(path: Path, stack: ExitStack) -> SourceFiles:
    tree = _FolderTree(path)
    candidate = _choose(tree)
    if candidate.format == "keras":
        return _from_file(path / candidate.name, stack)
    return _source_files(str(path), tree, candidate)


def _from_file(path: Path, stack: ExitStack) -> SourceFiles:
    if path.stat().st_size == 0:
        raise SourceError(f"{path} is empty: download or save it again")
    beside = _FolderTree(path.parent)
    candidate = _candidate(beside, "", path.name)
    if candidate is not None and candidate.format != "keras":
        return _source_files(str(path), beside, candidate)
    if not _is_zip(path):
        raise _unknown_content(path)
    tree = _ZipTree(path, stack)
    files = _source_files(str(path), tree, _choose(tree))
    if files.format != "keras":
        return files
    companions = beside.blobs(_companions(beside, ""))
    return replace(files, parts={**companions, **files.parts})


def _from_prefix(path: Path) -> SourceFiles:
    """`bert_model.ckpt`, which is no file itself: only its .index and .data are."""
    if not path.parent.is_dir():
        raise _absent(path)
    tree = _FolderTree(path.parent)
    names = tree.files("")
    if f"{path.name}.index" in names:
        candidate = _candidate(tree, "", f"{path.name}.index")
        return _source_files(str(path), tree, candidate)
    if any((m := _SHARD.fullmatch(n)) and m["prefix"] == path.name for n in names):
        raise SourceError(
            f"{path}.index is missing: a TensorFlow checkpoint is its .data files and "
            "its .index together"
        )
    raise _absent(path)


def _source_files(label: str, tree, candidate: _Candidate) -> SourceFiles:
    return SourceFiles(label, candidate.format, tree.blobs(candidate.parts))


def _choose(tree) -> _Candidate:
    for folders in tree.levels():
        found = [c for folder in folders for c in _candidates(tree, folder)]
        if len(found) > 1:
            names = ", ".join(sorted(c.name or "." for c in found))
            raise SourceError(
                f"{tree.label} holds {len(found)} checkpoints: {names}; {tree.advice}"
            )
        if found:
            return found[0]
    raise SourceError(f"no checkpoint in {tree.label}: {tree.inventory()}; {_WANTED}")


def _candidates(tree, folder: str) -> list[_Candidate]:
    names = [name for name in tree.files(folder) if not _is_stranger(name)]
    found = []
    if {_PRESET_PARTS["config"], _PRESET_PARTS["weights"]} <= set(names):
        found.append(_preset(tree, folder))
        of_preset = set(_PRESET_PARTS.values())
        names = [name for name in names if name not in of_preset]
    for name in names:
        candidate = _candidate(tree, folder, name)
        if candidate is not None:
            found.append(candidate)
    return found


def _preset(tree, folder: str) -> _Candidate:
    parts = {
        role: _join(folder, name)
        for role, name in _PRESET_PARTS.items()
        if tree.has(_join(folder, name))
    }
    # A .keras file is a zip of the same three names; only a preset has more.
    if folder == "" and tree.is_archive and set(parts) == set(_KERAS_PARTS):
        return _Candidate("keras", "", parts)
    return _Candidate("preset", folder, parts)


def _candidate(tree, folder: str, name: str) -> _Candidate | None:
    """The checkpoint that one file is, or is the index of; None if it is neither."""
    full = _join(folder, name)
    if name.endswith(".index"):
        prefix = name.removesuffix(".index")
        parts = {"index": full, **_shards(tree, folder, prefix)}
        kind, full = "tensor_bundle", _join(folder, prefix)
    else:
        kind = _kind(tree, full)
        parts = {"weights": full}
    if kind is None:
        return None
    return _Candidate(kind, full, {**_companions(tree, folder), **parts})


def _kind(tree, name: str) -> str | None:
    head, size = tree.head(name)
    if head.startswith(b"\x89HDF\r\n\x1a\n"):
        return "hdf5"
    # Safetensors: the length of a JSON header in 8 bytes, then that header.
    header_size = int.from_bytes(head[:8], "little")
    if head[8:9] == b"{" and header_size <= size - 8:
        return "safetensors"
    if not tree.is_archive and _looks_like_zip(head) and _is_keras(tree.path / name):
        return "keras"
    return None


def _shards(tree, folder: str, prefix: str) -> dict[str, str]:
    found: dict[int, dict[int, str]] = {}
    for name in tree.files(folder):
        match = _SHARD.fullmatch(name)
        if match and match["prefix"] == prefix:
            shards = found.setdefault(int(match["count"]), {})
            shards[int(match["number"])] = name
    # Shards of an earlier, differently split save may lie about: any whole set serves,
    # and the index says which of them it means.
    whole = [s for count, s in found.items() if set(s) == set(range(count))]
    if not whole:
        count = max(found, default=1)
        missing = set(range(count)) - set(found.get(count, ()))
        names = [f"{prefix}.data-{i:05}-of-{count:05}" for i in sorted(missing)]
        raise SourceError(
            f"{tree.label}: {_some(names)} is missing beside "
            f"{_join(folder, prefix)}.index; a TensorFlow checkpoint is its .index and "
            "all its .data files together"
        )
    return {
        name.removeprefix(f"{prefix}."): _join(folder, name)
        for shards in whole
        for name in shards.values()
    }


def _companions(tree, folder: str) -> dict[str, str]:
    return {
        role: _join(folder, name)
        for role, name in _COMPANIONS.items()
        if tree.has(_join(folder, name))
    }


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _is_stranger(name: str) -> bool:
    """Whether a file is what systems leave behind: .DS_Store, ._x, __MACOSX/."""
    return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))


# === A folder on disk, and a zip, seen alike ===


class _FolderTree:
    """Files of a folder and of the folders in it."""

    is_archive = False
    advice = "give the path of the one you mean"

    def __init__(self, path: Path):
        self.path = path
        self.label = str(path)

    def levels(self) -> Iterator[list[str]]:
        yield [""]
        with os.scandir(self.path) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
        yield sorted(name for name in names if not _is_stranger(name))

    def files(self, folder: str) -> list[str]:
        with os.scandir(self.path / folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_file())

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def head(self, name: str) -> tuple[bytes, int]:
        with open(self.path / name, "rb") as file:
            return file.read(_HEAD_SIZE), os.fstat(file.fileno()).st_size

    def blobs(self, parts: Mapping[str, str]) -> dict[str, Blob]:
        return {role: Blob.of_file(self.path / name) for role, name in parts.items()}

    def inventory(self) -> str:
        names = self.files("")
        zips = [name for name in names if _is_zip(self.path / name)]
        if zips:
            return f"it holds {_some(zips)}; give the path of the zip itself"
        return f"it holds {_some(names)}"


class _ZipTree:
    """Members of a zip, after every check that needs no decompression.

    Raises:
        SourceError: the archive is damaged or unsafe.
    """

    is_archive = True
    advice = "unpack it and give the path of the one you mean"

    def __init__(self, path: Path, stack: ExitStack):
        self.path = path
        self.label = str(path)
        self._stack = stack
        try:
            self._zip = stack.enter_context(zipfile.ZipFile(path))
            _check_count(path, len(self._zip.filelist))
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            raise SourceError(
                f"{path} is a damaged or truncated zip ({error}): download it again"
            ) from error
        _check_members(self.label, self._zip)
        infos = [info for info in self._zip.infolist() if not info.is_dir()]
        self.members = {info.filename: info for info in infos}
        self._names_by_folder: dict[str, list[str]] = {}
        for member in sorted(self.members):
            folder, _, name = member.rpartition("/")
            self._names_by_folder.setdefault(folder, []).append(name)
        self._data_offsets = self._check_layout()

    def levels(self) -> Iterator[list[str]]:
        yield [folder for folder in self._names_by_folder if not _is_stranger(folder)]

    def files(self, folder: str) -> list[str]:
        return self._names_by_folder[folder]

    def has(self, name: str) -> bool:
        return name in self.members

    def head(self, name: str) -> tuple[bytes, int]:
        return next(self.chunks(name, _HEAD_SIZE), b""), self.members[name].file_size

    def inventory(self) -> str:
        names = [name for name in self.members if not _is_stranger(name)]
        zips = [name for name in names if _looks_like_zip(self.head(name)[0])]
        if zips:
            return f"it holds {_some(zips)}; unpack it and give the path of that zip"
        return f"it holds {_some(names)}"

    def blobs(self, parts: Mapping[str, str]) -> dict[str, Blob]:
        deflated = [
            name
            for name in parts.values()
            if self.members[name].compress_type != zipfile.ZIP_STORED
        ]
        folder = self._scratch(deflated) if deflated else None
        blobs = {}
        for role, name in parts.items():
            if name in deflated:
                blobs[role] = self._unpack(name, folder / str(len(blobs)))
            else:
                # Every tensor in a data shard carries a checksum that the reader
                # compares, and no other stored part has one but the zip's.
                if not role.startswith("data-"):
                    for _ in self.chunks(name):
                        pass
                size = self.members[name].file_size
                offset = self._data_offsets[name]
                blobs[role] = Blob(self.path, offset, size, self._name(name))
        return blobs

    def chunks(self, name: str, size: int = _CHUNK) -> Iterator[bytes]:
        """Content of a member, its length and its CRC checked by the end."""
        info = self.members[name]
        # One byte more than declared is asked for, because zipfile would cut a longer
        # stream off at the declared size in silence.
        probe = copy.copy(info)
        probe.file_size += 1
        seen = 0
        try:
            with self._zip.open(probe) as stream:
                while chunk := stream.read(size):
                    seen += len(chunk)
                    if seen > info.file_size:
                        break
                    yield chunk
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
            raise CheckpointError(
                f"{self._name(name)} is corrupt ({error}): download the archive again"
            ) from error
        if seen != info.file_size:
            relation = "longer" if seen > info.file_size else "shorter"
            raise SourceError(
                f"{self._name(name)} is {relation} than the {info.file_size:,} bytes "
                "it declares: the archive is damaged or hostile, download it again"
            )

    def _name(self, name: str) -> str:
        return f"{self.path.name}: {name}"

    def _check_layout(self) -> dict[str, int]:
        """Where each member's data begins, checked to lie apart from all others."""
        offsets = {}
        end = 0
        with open(self.path, "rb") as file:
            for info in sorted(self._zip.infolist(), key=lambda i: i.header_offset):
                file.seek(max(info.header_offset, 0))
                header = file.read(_LOCAL_HEADER.size)
                if len(header) < _LOCAL_HEADER.size or header[:4] != b"PK\x03\x04":
                    raise SourceError(
                        f"{self._name(info.filename)} has no header where the "
                        "directory of the zip says: download it again"
                    )
                name_size, extra_size = _LOCAL_HEADER.unpack(header)[-2:]
                if info.header_offset < end:
                    raise SourceError(
                        f"{self._name(info.filename)} overlaps another member: the "
                        "archive is hostile, it is not read"
                    )
                offset = info.header_offset + len(header) + name_size + extra_size
                end = offset + info.compress_size
                if end > self._zip.start_dir:
                    raise SourceError(
                        f"{self._name(info.filename)} reaches beyond the members of "
                        "the zip: download it again"
                    )
                self._check_header(info)
                offsets[info.filename] = offset
        return offsets

    def _check_header(self, info: zipfile.ZipInfo):
        """Lets zipfile compare the local header with the directory."""
        try:
            self._zip.open(info).close()
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            raise SourceError(
                f"{self._name(info.filename)} is damaged ({error}): download the "
                "archive again"
            ) from error

    def _scratch(self, names: list[str]) -> Path:
        needed = sum(self.members[name].file_size for name in names)
        free = shutil.disk_usage(tempfile.gettempdir()).free
        if needed > free:
            raise SourceError(
                f"unpacking {self.label} takes {needed:,} bytes and "
                f"{tempfile.gettempdir()} has {free:,} free: free some, or set TMPDIR "
                "to a folder on another disk"
            )
        temporary = tempfile.TemporaryDirectory(prefix="roformer_keras-")
        return Path(self._stack.enter_context(temporary))

    def _unpack(self, name: str, path: Path) -> Blob:
        try:
            with open(path, "xb") as file:
                for chunk in self.chunks(name):
                    file.write(chunk)
        except RoFormerError:
            raise
        except OSError as error:
            raise SourceError(
                f"could not unpack {self._name(name)} into {path.parent.parent} "
                f"({error.strerror}): free some space there, or set TMPDIR to a folder "
                "on another disk"
            ) from error
        return Blob(path, 0, path.stat().st_size, self._name(name))


def _check_members(label: str, archive: zipfile.ZipFile):
    """Refuses what no released checkpoint has; all of it is declared, not read."""
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise SourceError(
            f"{label} has {len(infos):,} members, more than {MAX_MEMBERS:,}: it is not "
            "a checkpoint"
        )
    seen = set()
    for info in infos:
        problem = _member_problem(info)
        name = info.orig_filename.rstrip("/")
        if problem is None and name in seen:
            problem = "occurs twice"
        if problem is not None:
            raise SourceError(
                f"{label}: member {info.orig_filename!r} {problem}; the archive is not "
                "read, get it from its publisher or pack it again"
            )
        seen.add(name)
    total = sum(info.file_size for info in infos)
    if total > MAX_TOTAL_SIZE:
        raise SourceError(
            f"{label} declares {total:,} bytes, more than the {MAX_TOTAL_SIZE:,} that "
            "are unpacked at most"
        )


def _check_count(path: Path, found: int):
    """Compares the members that zipfile found with the number the zip declares.

    A damaged length in the directory makes zipfile skip the members after it.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _MAX_TAIL))
        tail = file.read()
    (declared,) = struct.unpack_from("<H", tail, tail.rindex(b"PK\x05\x06") + 10)
    zip64 = tail.rfind(b"PK\x06\x06")
    if declared == 0xFFFF and zip64 >= 0:
        (declared,) = struct.unpack_from("<Q", tail, zip64 + 32)
    if declared != found:
        raise zipfile.BadZipFile(
            f"it declares {declared:,} members and {found:,} can be found"
        )


def _member_problem(info: zipfile.ZipInfo) -> str | None:
    name = info.orig_filename
    # The upper half holds the Unix mode; 0 where the archiver wrote none.
    kind = stat.S_IFMT(info.external_attr >> 16)
    if not name or "\0" in name or "\\" in name:
        return "has a name with a backslash or a NUL, or none"
    if name.startswith("/") or re.match("[A-Za-z]:", name):
        return "has an absolute path"
    if ".." in name.split("/"):
        return "points outside the archive"
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or a device, not a file"
    if info.flag_bits & 0x2041:
        return "is encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is neither stored nor deflated"
    if info.compress_type == zipfile.ZIP_STORED:
        if info.compress_size != info.file_size:
            return "is stored, but declares two different sizes"
    elif info.file_size > max(RATIO_EXEMPT_SIZE, MAX_RATIO * info.compress_size):
        return f"declares a compression above {MAX_RATIO}:1"
    return None


def _looks_like_zip(head: bytes) -> bool:
    return head.startswith((b"PK\x03\x04", b"PK\x05\x06"))


def _is_zip(path: Path) -> bool:
    with open(path, "rb") as file:
        return _looks_like_zip(file.read(4)) or zipfile.is_zipfile(file)


def _is_keras(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        return False
    return set(_KERAS_PARTS.values()) <= names


# === What to say ===


def _some(names: list[str]) -> str:
    if not names:
        return "nothing"
    rest = f" and {len(names) - 10:,} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + rest


def _unreadable(label: str, error: OSError) -> SourceError:
    if isinstance(error, PermissionError):
        return SourceError(f"no permission to read {error.filename or label}")
    return SourceError(f"cannot read {label}: {error.strerror or error}")


def _absent(path: Path) -> SourceError:
    place = path.absolute().parent
    wanted = path.name
    while not place.is_dir():
        place, wanted = place.parent, place.name
    close = difflib.get_close_matches(wanted, os.listdir(place), n=3)
    hint = f"did you mean {' or '.join(close)}" if close else f"{place} has no {wanted}"
    return SourceError(f"{path} does not exist; {hint}")


def _unknown_content(path: Path) -> SourceError:
    with open(path, "rb") as file:
        head = file.read(_HEAD_SIZE)
    if not head:
        return SourceError(f"{path} is empty: download or save it again")
    if head.lstrip().lower().startswith((b"<!doctype html", b"<html", b"<?xml")):
        return SourceError(
            f"{path} is a web page, not a checkpoint: what was saved is probably an "
            "error page, download it again"
        )
    for magic, kind in _OTHER_ARCHIVES.items():
        if head.startswith(magic):
            return SourceError(
                f"{path} is a {kind} archive: unpack it and give the path of the folder"
            )
    prefix = re.sub(r"\.(meta|data-\d{5}-of-\d{5})$", "", path.name)
    if prefix != path.name:
        return SourceError(
            f"{path} is one part of a TensorFlow checkpoint: give its prefix, "
            f"{path.with_name(prefix)}"
        )
    if path.name in (*_COMPANIONS.values(), "config.json", "checkpoint"):
        return SourceError(f"{path} holds no weights: give its folder, {path.parent}")
    return SourceError(
        f"{path} is not a checkpoint, or a damaged one: it begins with {head[:16]!r}; "
        f"{_WANTED}"
    )
