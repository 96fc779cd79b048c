"""Zips of checkpoints, which may be damaged or hostile.

Nothing is unpacked before every member passes the rules of `_find_problem`. Reading
compares the content with its declared length and CRC.
"""

import copy
import os
import re
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from roformer_keras.base.errors import (
    CheckpointError,
    RoFormerError,
    SourceError,
    refuse,
)
from roformer_keras.io.blob import CHUNK, HEAD_SIZE, MAX_NAME, Blob

# An archive above any of these limits is treated as an attack. The largest released zip
# holds about 1.3 GB in five members; weights hardly compress.
MAX_MEMBERS = 10_000
MAX_TOTAL_SIZE = 16 * 2**30
MAX_RATIO = 100
RATIO_EXEMPT_SIZE = 2**20

# Sizes of a zip's end record, its longest comment, and two records of a large zip.
_MAX_TAIL = 22 + 0xFFFF + 20 + 56
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
# Errors that zipfile raises for a damaged zip.
_DAMAGE = (zipfile.BadZipFile, NotImplementedError, ValueError, zlib.error, EOFError)


class ZipTree:
    """The members of a zip, with the interface of a folder in `io.sources`."""

    is_archive = True
    advice = "unpack it and give the path of the one you mean"

    def __init__(self, path: Path, stack: ExitStack):
        self.path, self.label = path, str(path)
        self._stack = stack
        try:
            self._zip = stack.enter_context(zipfile.ZipFile(path))
            self._check_count()
        except _DAMAGE as error:
            raise SourceError(
                f"{path} is a damaged or truncated zip ({error}): download it again"
            ) from error
        self._check_members()
        self._data_offsets = self._check_layout()
        self.members = {
            info.filename: info for info in self._zip.infolist() if not info.is_dir()
        }
        self._names_by_folder: dict[str, list[str]] = {}
        for member in sorted(self.members):
            folder, _, name = member.rpartition("/")
            self._names_by_folder.setdefault(folder, []).append(name)

    # --- The interface of a folder ---

    def levels(self) -> Iterator[list[str]]:
        yield list(self._names_by_folder)

    def files(self, folder: str) -> list[str]:
        return self._names_by_folder[folder]

    def has(self, name: str) -> bool:
        return name in self.members

    def head(self, name: str) -> tuple[bytes, int]:
        return next(self.chunks(name, HEAD_SIZE), b""), self.members[name].file_size

    def inventory(self) -> tuple[list[str], list[str]]:
        """Names of the members, and of the zips among them."""
        zips = [n for n in self.members if looks_like_zip(self.head(n)[0])]
        return list(self.members), zips

    def blobs(self, parts: Mapping[str, str]) -> dict[str, Blob]:
        """Blobs of the members; only compressed members are unpacked."""
        deflated = [
            name
            for name in parts.values()
            if self.members[name].compress_type != zipfile.ZIP_STORED
        ]
        folder = self._scratch(deflated) if deflated else None
        blobs: dict[str, Blob] = {}
        for role, name in parts.items():
            label, size = self._name(name), self.members[name].file_size
            if folder is not None and name in deflated:
                path = folder / str(len(blobs))
                self._unpack(name, path)
                blobs[role] = Blob(path, 0, size, label)
                continue
            # A tensor in a data shard has its own checksum, which its reader compares.
            # Other stored members have only the zip's checksum.
            if not role.startswith("data-"):
                for _ in self.chunks(name):
                    pass
            blobs[role] = Blob(self.path, self._data_offsets[name], size, label)
        return blobs

    def chunks(self, name: str, size: int = CHUNK) -> Iterator[bytes]:
        """Content of a member; its length and its CRC are checked by the end."""
        info = self.members[name]
        # It requests one byte more than declared, because zipfile silently cuts a
        # longer stream off at the declared size.
        probe = copy.copy(info)
        probe.file_size += 1
        bytes_read = 0
        try:
            with self._zip.open(probe) as stream:
                while chunk := stream.read(size):
                    bytes_read += len(chunk)
                    if bytes_read > info.file_size:
                        break
                    yield chunk
        except _DAMAGE as error:
            raise CheckpointError(
                f"{self._name(name)} is corrupt ({error}): download the archive again"
            ) from error
        if bytes_read != info.file_size:
            relation = "longer" if bytes_read > info.file_size else "shorter"
            raise SourceError(
                f"{self._name(name)} is {relation} than the {info.file_size:,} bytes "
                "it declares: the archive is damaged or hostile, download it again"
            )

    def _name(self, name: str) -> str:
        return f"{self.path.name}: {name}"

    # --- Checks, before any content is read ---

    def _check_count(self):
        """Compares the number of members that zipfile lists with the declared number.

        A damaged length in the directory makes zipfile skip the members after it.
        """
        with open(self.path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MAX_TAIL))
            tail = file.read()
        (declared,) = struct.unpack_from("<H", tail, tail.rindex(b"PK\x05\x06") + 10)
        zip64 = tail.rfind(b"PK\x06\x06")
        if declared == 0xFFFF and zip64 >= 0:
            (declared,) = struct.unpack_from("<Q", tail, zip64 + 32)
        count = len(self._zip.filelist)
        if declared != count:
            raise zipfile.BadZipFile(
                f"it declares {declared:,} members and {count:,} can be found"
            )

    def _check_members(self):
        infos, seen = self._zip.infolist(), set()
        refuse(
            len(infos) > MAX_MEMBERS,
            f"{self.label} has {len(infos):,} members, more than {MAX_MEMBERS:,}: "
            "it is not a checkpoint",
            error=SourceError,
        )
        for info in infos:
            name = info.orig_filename.rstrip("/")
            problem = _find_problem(info) or (name in seen and "occurs twice")
            if problem:
                raise SourceError(
                    f"{self.label}: member {info.orig_filename[:200]!r} {problem}; the "
                    "archive is not read, get it from its publisher or pack it again"
                )
            seen.add(name)
        total = sum(info.file_size for info in infos)
        refuse(
            total > MAX_TOTAL_SIZE,
            f"{self.label} declares {total:,} bytes, more than the "
            f"{MAX_TOTAL_SIZE:,} that are unpacked at most",
            error=SourceError,
        )

    def _check_layout(self) -> dict[str, int]:
        """Offsets of the members' data, after a check that no members overlap."""
        offsets, end = {}, 0
        with open(self.path, "rb") as file:
            for info in sorted(self._zip.infolist(), key=lambda i: i.header_offset):
                file.seek(max(info.header_offset, 0))
                header = file.read(_LOCAL_HEADER.size).ljust(_LOCAL_HEADER.size)
                magic, *_, name_size, extra_size = _LOCAL_HEADER.unpack(header)
                offset = info.header_offset + len(header) + name_size + extra_size
                problem = None
                if magic != b"PK\x03\x04":
                    problem = "has no header where the directory of the zip says"
                elif info.header_offset < end:
                    problem = "overlaps another member"
                elif offset + info.compress_size > self._zip.start_dir:
                    problem = "reaches beyond the members of the zip"
                else:
                    # zipfile compares the header with the directory.
                    try:
                        self._zip.open(info).close()
                    except _DAMAGE as error:
                        problem = f"is damaged ({error})"
                if problem is not None:
                    raise SourceError(
                        f"{self._name(info.filename)} {problem}: the archive is "
                        "damaged or hostile, download it again"
                    )
                offsets[info.filename] = offset
                end = offset + info.compress_size
        return offsets

    # --- Unpacking ---

    def _scratch(self, names: list[str]) -> Path:
        needed = sum(self.members[name].file_size for name in names)
        folder = tempfile.gettempdir()
        free = shutil.disk_usage(folder).free
        refuse(
            needed > free,
            f"unpacking {self.label} takes {needed:,} bytes and {folder} has "
            f"{free:,} free: free some, or set TMPDIR to a folder on another disk",
            error=SourceError,
        )
        return self._stack.enter_context(scratch_folder())

    def _unpack(self, name: str, path: Path):
        """Writes a member to a file."""
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


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder that is deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="roformer_keras-") as folder:
        yield Path(folder)


def _find_problem(info: zipfile.ZipInfo) -> str | None:
    """The fault in a member's entry in the directory, or None."""
    name, method = info.orig_filename, info.compress_type
    stored, sizes = method == zipfile.ZIP_STORED, (info.compress_size, info.file_size)
    # The upper half holds the Unix mode, or 0 if the archiver wrote none.
    kind = stat.S_IFMT(info.external_attr >> 16)
    is_special = kind not in (0, stat.S_IFREG, stat.S_IFDIR)
    rules = {
        "has a name with a backslash or a NUL, or none": re.search(r"[\\\0]|^$", name),
        f"has a name of more than {MAX_NAME:,} characters": len(name) > MAX_NAME,
        "has an absolute path": re.match("/|[A-Za-z]:", name),
        "points outside the archive": ".." in name.split("/"),
        "is a link or a device, not a file": is_special,
        "is encrypted": info.flag_bits & 0x2041,
        "is neither stored nor deflated": not stored and method != zipfile.ZIP_DEFLATED,
        "is stored, but declares two different sizes": stored and sizes[0] != sizes[1],
        f"declares a compression above {MAX_RATIO}:1": (
            sizes[1] > max(RATIO_EXEMPT_SIZE, MAX_RATIO * sizes[0])
        ),
    }
    return next((problem for problem, broken in rules.items() if broken), None)


def looks_like_zip(head: bytes) -> bool:
    return head.startswith((b"PK\x03\x04", b"PK\x05\x06"))


def is_zip(path: Path) -> bool:
    with open(path, "rb") as file:
        return looks_like_zip(file.read(4)) or zipfile.is_zipfile(file)
