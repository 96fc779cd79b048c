"""Sources in every shape, hostile archives, and outputs that are whole or absent.

No tensor is read here, so members are made-up bytes.
"""

import io
import os
import random
import shutil
import socket
import stat
import struct
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from common import limited_file_size, run, write_files

from roformer_keras.base.errors import (
    CheckpointError,
    OutputError,
    RoFormerError,
    SourceError,
)
from roformer_keras.io.atomic import replacing
from roformer_keras.io.blob import Blob
from roformer_keras.io.sources import open_source, verify_archive

# Nothing may be left in the temporary folder.
pytestmark = pytest.mark.usefixtures("scratch")

SHARD = "data-00000-of-00001"
HDF5 = b"\x89HDF\r\n\x1a\n" + b"h" * 100
SAFETENSORS = struct.pack("<Q", 2) + b"{}" + b"s" * 8
MEMBERS = {
    "bert_config.json": b'{"vocab_size": 3}',
    "vocab.txt": "[PAD]\n今\n天\n".encode(),
    "checkpoint": b'model_checkpoint_path: "/another/machine/bert_model.ckpt"\n',
    "bert_model.ckpt.index": b"index" * 20,
    "bert_model.ckpt.meta": b"graph",
    f"bert_model.ckpt.{SHARD}": random.Random(1).randbytes(300_000),
}
ROLES = {
    "bert_config": "bert_config.json",
    "vocabulary": "vocab.txt",
    "index": "bert_model.ckpt.index",
    SHARD: f"bert_model.ckpt.{SHARD}",
}
KERAS_FILE = {
    "metadata.json": b"{}",
    "config.json": b'{"class_name": "Functional"}',
    "model.weights.h5": HDF5,
}
PRESET = {
    **KERAS_FILE,
    "tokenizer.json": b"{}",
    "task.json": b"{}",
    "task.weights.h5": HDF5 + b"task",
    "assets/tokenizer/vocabulary.txt": "今\n".encode(),
}


def write_zip(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def wrapped(members, folder="chinese_roformer"):
    return {f"{folder}/{name}": data for name, data in members.items()}


def contents(source):
    """Format and parts of a source, each part read both ways."""
    with open_source(source) as found:
        parts = {}
        for role, blob in found.parts.items():
            parts[role] = blob.read()
            assert b"".join(blob.chunks(1000)) == parts[role]
        return found.format, parts


def expected(roles, members):
    return {role: members[name] for role, name in roles.items()}


BUNDLE = ("tensor_bundle", expected(ROLES, MEMBERS))


# === Sources that work ===


STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
KERAS_PARTS = {"config": KERAS_FILE["config.json"], "weights": HDF5, "metadata": b"{}"}
BARE = {"config": KERAS_PARTS["config"], "weights": HDF5}
PRESET_CONTENTS = (
    "preset",
    {
        **KERAS_PARTS,
        "task": b"{}",
        "task_weights": PRESET["task.weights.h5"],
        "tokenizer": b"{}",
        "vocabulary": PRESET["assets/tokenizer/vocabulary.txt"],
    },
)
STRANGERS = {
    "__MACOSX/chinese_roformer/._bert_model.ckpt.index": b"apple",
    "__MACOSX/._vocab.txt": b"apple",
    ".DS_Store": b"apple",
    "._bert_model.ckpt.index": b"apple",
    "other/readme.txt": b"",
}


@pytest.mark.parametrize(
    ("members", "found"), [(MEMBERS, BUNDLE), (PRESET, PRESET_CONTENTS)]
)
@pytest.mark.parametrize("method", [STORED, DEFLATED])
@pytest.mark.parametrize("folder", ["chinese_roformer", "任意/深的", ""])
def test_a_zip_of_either_kind_in_any_folder_with_strangers_inside(
    tmp_path, method, folder, members, found
):
    members = wrapped(members, folder) if folder else members
    path = write_zip(tmp_path / "x.zip", {**STRANGERS, **members}, method)
    assert contents(path) == found
    verify_archive(path)


def test_stored_members_are_read_in_place_and_deflated_ones_are_unpacked(
    tmp_path, scratch
):
    stored = write_zip(tmp_path / "x.zip", wrapped(MEMBERS))
    with open_source(stored) as found:
        assert {blob.path for blob in found.parts.values()} == {stored}
        assert os.listdir(scratch) == []
        assert found.parts["index"].label == "x.zip: chinese_roformer/" + ROLES["index"]
        assert found.label == str(stored)
    deflated = write_zip(tmp_path / "y.zip", MEMBERS, DEFLATED)
    with pytest.raises(PermissionError, match="mine"), open_source(deflated) as found:
        assert all(scratch in blob.path.parents for blob in found.parts.values())
        assert found.parts["index"].label == "y.zip: " + ROLES["index"]
        raise PermissionError("mine")
    assert os.listdir(scratch) == []
    with zipfile.ZipFile(tmp_path / "mixed.zip", "w") as archive:
        for name, data in MEMBERS.items():
            archive.writestr(name, data, DEFLATED if len(data) < 1000 else None)
    assert contents(tmp_path / "mixed.zip") == BUNDLE


COMPANIONS = {"vocab.txt": b"v", "bert_config.json": b"{}"}
OTHER = {"other.index": b"i", f"other.{SHARD}": b"d"}
OLDER = wrapped({**MEMBERS, "vocab.txt": b"older"}, "older")
KERAS_ZIP = write_zip(io.BytesIO(), KERAS_FILE).getvalue()
SHARDS = {f"m.data-0000{i}-of-00003": bytes([i]) for i in range(3)}
STALE = {"m.data-00001-of-00002": b"stale", f"m.{SHARD}.tempstate7": b"partial"}
WEIGHTS = ("hdf5", {"bert_config": b"{}", "vocabulary": b"v", "weights": HDF5})
# Files of a folder; what of it is given, "" for the folder; what is found.
SOURCES = [
    (wrapped(MEMBERS, "in") | {"__MACOSX/a": b"", ".a/b": b""}, ["", "in"], BUNDLE),
    ({**MEMBERS, **OLDER}, [""], BUNDLE),
    ({**MEMBERS, **OTHER}, ["bert_model.ckpt", "bert_model.ckpt.index"], BUNDLE),
    # What `save_weights` writes.
    (
        {"checkpoint": b"", "w.weights.index": b"i", f"w.weights.{SHARD}": b"d"},
        ["w.weights", ""],
        ("tensor_bundle", {"index": b"i", SHARD: b"d"}),
    ),
    (
        {"m.index": b"index", **SHARDS, **STALE},
        ["", "m"],
        ("tensor_bundle", {"index": b"index"} | {k[2:]: v for k, v in SHARDS.items()}),
    ),
    *(
        ({name: HDF5, **COMPANIONS}, [name, ""], WEIGHTS)
        for name in ("w.h5", "w.hdf5", "best_model.weights", "w", "w.zip")
    ),
    (
        {"model.safetensors": SAFETENSORS, "vocab.txt": b"v"},
        ["model.safetensors", ""],
        ("safetensors", {"vocabulary": b"v", "weights": SAFETENSORS}),
    ),
    *(
        (
            {name: KERAS_ZIP, "vocab.txt": b"v"},
            [name, ""],
            ("keras", {**KERAS_PARTS, "vocabulary": b"v"}),
        )
        for name in ("model.keras", "renamed")
    ),
    ({**PRESET, "vocab.txt": b"no part of a preset"}, [""], PRESET_CONTENTS),
    # The three names of a .keras file; unzipped, they are a preset.
    (KERAS_FILE, [""], ("preset", KERAS_PARTS)),
    (
        {k: v for k, v in KERAS_FILE.items() if k != "metadata.json"},
        [""],
        ("preset", BARE),
    ),
]


@pytest.mark.parametrize(("members", "given", "found"), SOURCES)
def test_folders_files_and_prefixes(tmp_path, monkeypatch, members, given, found):
    write_files(tmp_path / "f", members)
    for name in given:
        assert contents(tmp_path / "f" / name) == found
    monkeypatch.chdir(tmp_path / "f")
    assert (
        contents(given[-1] or ".") == contents(os.fsencode(given[-1] or ".")) == found
    )


def test_a_symbolic_link_of_the_users_own_is_followed(tmp_path):
    real = write_files(tmp_path / "blobs", MEMBERS)
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for name in MEMBERS:
        (linked / name).symlink_to(real / name)
    assert contents(linked) == BUNDLE


# === Blobs ===


def test_a_blob_reads_any_offset_and_size(tmp_path):
    data = random.Random(2).randbytes(40_000)
    path = tmp_path / "data"
    path.write_bytes(data)
    for offset, size in [(0, 40_000), (1, 10), (4096, 4096), (5000, 30_000), (7, 0)]:
        blob = Blob(path, offset, size, "x")
        part = data[offset : offset + size]
        assert blob.read() == b"".join(blob.chunks(4096)) == part
        assert len(blob) == size
        assert blob[3:9] == part[3:9]
        assert blob[size - 2 : size + 5] == part[size - 2 : size + 5]


def test_a_blob_whose_file_shrank_or_went(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"123")
    with pytest.raises(SourceError, match=r"x\.zip: m has become shorter than its 4"):
        Blob(path, 0, 4, "x.zip: m").read()
    path.unlink()
    with pytest.raises(SourceError, match=r"cannot read x\.zip: m: No such file"):
        Blob(path, 0, 4, "x.zip: m").read()


# === Sources that are refused ===


def refuse(source, message, error=SourceError):
    """The error's text, after checking that it is one line that says `message`."""
    with pytest.raises(error, match=message) as caught, open_source(source):
        pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_absent_source_names_what_is_close(tmp_path):
    (tmp_path / "chinese_roformer.zip").touch()
    refuse(tmp_path / "chinese_rofomer.zip", "did you mean chinese_roformer.zip")
    refuse(tmp_path / "chinese_roformer.zip" / "x", "does not exist")
    text = refuse(tmp_path / "no" / "such" / "place", "does not exist")
    assert text.endswith(f"{tmp_path} has no no")


def test_what_is_no_path():
    for source in ("", "a\0b"):
        refuse(source, "a source must be a path, got")


HTML = "is a web page, not a checkpoint"
LFS = b"version https://git-lfs.github.com/spec/v1"
TORN = struct.pack("<Q", 5000) + b"{"
FILES = [
    *((name, b"", f"{name} is empty") for name in ("x.zip", "x.h5", "x.index")),
    ("x.zip", b"<!DOCTYPE html><p>404", HTML),
    ("x.zip", b"\n <html>no", HTML),
    ("x.zip", b'<?xml version="1.0"?><Error>', HTML),
    ("x", b"\x1f\x8b\x08....", "is a gzip archive: unpack it"),
    ("x", b"7z\xbc\xaf\x27\x1c....", "is a 7z archive: unpack it"),
    ("x", b"Rar!\x1a....", "is a rar archive: unpack it"),
    ("x", b"BZh9....", "is a bzip2 archive: unpack it"),
    ("x.h5", LFS, "it begins with b'version https://'"),
    ("x.safetensors", TORN, "is not a checkpoint, or a damaged one"),
    (f"a.ckpt.{SHARD}", b"d", "give its prefix, .*/a.ckpt$"),
    ("a.ckpt.meta", b"m", "give its prefix, .*/a.ckpt$"),
    *(
        (name, b"x", "holds no weights: give its folder, .*/f$")
        for name in ("vocab.txt", "bert_config.json", "checkpoint")
    ),
]


def test_files_that_are_no_checkpoint(tmp_path):
    for number, (name, content, message) in enumerate(FILES):
        folder = tmp_path / str(number) / "f"
        path = write_files(folder, {name: content}) / name
        refuse(path, message)
        if message == HTML:
            with pytest.raises(SourceError, match=message):
                verify_archive(path)


def test_neither_file_nor_folder(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refuse(tmp_path / "pipe", "pipe must be a file, and is a pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "s"))
        refuse(tmp_path / "s", "s must be a file, and is a device or a socket")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refuse(tmp_path / "loop", "cannot read .*loop")


def test_a_missing_shard_or_index_is_named(tmp_path):
    write_files(tmp_path, MEMBERS)
    (tmp_path / "m.data-00000-of-00002").write_bytes(b"d")
    refuse(tmp_path / "m", r"m\.index is missing")
    (tmp_path / "m.index").write_bytes(b"i")
    refuse(tmp_path / "m", r": m\.data-00001-of-00002 is missing next to m\.index")
    (tmp_path / f"bert_model.ckpt.{SHARD}").unlink()
    refuse(tmp_path / "bert_model.ckpt", f"bert_model.ckpt.{SHARD} is missing")
    partly = {k: v for k, v in wrapped(MEMBERS).items() if SHARD not in k}
    refuse(write_zip(tmp_path / "x.zip", partly), f"bert_model.ckpt.{SHARD} is missing")


def test_a_shard_count_out_of_all_proportion_gives_a_short_message(tmp_path):
    write_files(tmp_path, {"m.index": b"i", "m.data-00000-of-99999": b"d"})
    assert len(refuse(tmp_path, "and 99,988 more is missing")) < 1000


def test_two_checkpoints_are_ambiguous(tmp_path):
    write_files(tmp_path, {**MEMBERS, "best.h5": HDF5})
    text = refuse(tmp_path, "holds 2 checkpoints: bert_model.ckpt, best.h5")
    assert "give the path of the one you mean" in text
    both = {**wrapped(MEMBERS, "a"), **wrapped(MEMBERS, "b")}
    text = refuse(write_zip(tmp_path / "x.zip", both), "holds 2 checkpoints: a/bert")
    assert "unpack it" in text
    write_files(tmp_path / "two", {"a/w.h5": HDF5, "b/w.h5": HDF5})
    refuse(tmp_path / "two", "holds 2 checkpoints: a/w.h5, b/w.h5")
    write_files(tmp_path / "p", {**PRESET, "model.safetensors": SAFETENSORS})
    refuse(tmp_path / "p", "holds 2 checkpoints: ., model.safetensors")


def test_a_folder_without_a_checkpoint_lists_what_it_holds(tmp_path):
    refuse(tmp_path, "it holds nothing; a checkpoint is")
    for i in range(12):
        (tmp_path / f"{i:02}.txt").write_bytes(b"x")
    refuse(tmp_path, "it holds 00.txt, .*, 09.txt and 2 more")
    write_zip(tmp_path / "released.zip", MEMBERS)
    refuse(tmp_path, "it holds released.zip; give the path of the one")


@contextmanager
def without_privileges():
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_no_permission():
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = write_files(Path(name) / "f", {**MEMBERS, "w.h5": HDF5})
        archive = write_zip(folder / "x.zip", MEMBERS)
        os.chmod(name, 0o755)
        (folder / "w.h5").chmod(0)
        archive.chmod(0)
        with without_privileges():
            refuse(folder / "w.h5", "no permission to read .*w.h5")
            refuse(archive, "no permission to read .*x.zip")
            with pytest.raises(SourceError, match="no permission to read"):
                verify_archive(archive)
        folder.chmod(0)
        with without_privileges():
            refuse(folder, "no permission to read .*f$")
            refuse(folder / "w.h5", "no permission to read")
        folder.chmod(0o755)
        with (
            without_privileges(),
            pytest.raises(OutputError, match=r"could not write .*Permission denied"),
            replacing(folder / "new"),
        ):
            pass


# === Hostile and damaged archives ===


def rename(path, old, new):
    """Puts a name of the same length in place of a member's, in both headers."""
    data = path.read_bytes()
    assert data.count(old) == 2 and len(old) == len(new)
    path.write_bytes(data.replace(old, new))


def patch(path, name, field, value):
    """Overwrites one field of a member's entry in the central directory."""
    offset, form = {
        "flags": (8, "<H"),
        "method": (10, "<H"),
        "crc": (16, "<I"),
        "compress_size": (20, "<I"),
        "size": (24, "<I"),
        "header_offset": (42, "<I"),
    }[field]
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02")
    while data[entry + 46 : entry + 46 + len(name)] != name.encode():
        entry = data.index(b"PK\x01\x02", entry + 1)
    struct.pack_into(form, data, entry + offset, value)
    path.write_bytes(data)


def refuse_zip(path, message, error=SourceError):
    """As `refuse`, by both ways in, with nothing written on the way."""
    before = set(path.parent.iterdir())
    with pytest.raises(error, match=message):
        verify_archive(path)
    text = refuse(path, message, error)
    assert set(path.parent.iterdir()) == before
    return text


@pytest.fixture
def bundle(tmp_path):
    return write_zip(tmp_path / "x.zip", MEMBERS, zipfile.ZIP_DEFLATED)


def renamed(name):
    """A maker of a zip with a member of this name."""

    def make(path):
        stand_in = "~" * len(name)
        write_zip(path, {stand_in: b"evil"})
        rename(path, stand_in.encode(), name.encode())

    return make


def special(kind):
    def make(path):
        link = zipfile.ZipInfo("vocab.txt")
        link.create_system = 3
        link.external_attr = (kind | 0o777) << 16
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(link, "/etc/passwd")

    return make


def patched(name, method=STORED, more=None, **fields):
    """A maker of a zip whose directory has other fields for a member."""

    def make(path):
        write_zip(path, {**(more or {}), **MEMBERS}, method)
        for field, value in fields.items():
            patch(path, name, field, value)

    return make


def zipped(members, method=STORED):
    return lambda path: write_zip(path, members, method)


def duplicate(path):
    write_zip(path, {**MEMBERS, "vocab.txX": b"other"})
    rename(path, b"vocab.txX", b"vocab.txt")


def contradiction(path):
    data = write_zip(path, MEMBERS, DEFLATED).read_bytes()
    path.write_bytes(data.replace(b"vocab.txt", b"vocab.tXt", 1))


SIZE = len(MEMBERS["vocab.txt"])
START = MEMBERS["vocab.txt"][:11]
NESTED = write_zip(io.BytesIO(), MEMBERS).getvalue()
NAMES = {
    "points outside the archive": ("../evil.txt", "a/../../ev.txt", ".."),
    "has an absolute path": ("/etc/evil", "C:evil.txt", "c:/evil.txt"),
    "has a name with a backslash": ("..\\evil.txt", "\\\\host\\evil"),
    "has a name with a backslash or a NUL": ("vocab.txt\0.png",),
}
HOSTILE = [
    *((renamed(name), text) for text, names in NAMES.items() for name in names),
    (duplicate, "'vocab.txt' occurs twice"),
    (zipped({"vocab/": b"", "vocab": b"other"}), "'vocab' occurs twice"),
    # Kinds that no checkpoint has.
    *(
        (special(kind), "'vocab.txt' is a link or a device")
        for kind in (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR)
    ),
    *(
        (patched("vocab.txt", flags=flag), "'vocab.txt' is encrypted")
        for flag in (0x1, 0x40, 0x2000)
    ),
    (zipped(MEMBERS, zipfile.ZIP_LZMA), "is neither stored nor deflated"),
    # Many entries with one run of data, as the densest zip bombs have.
    (
        patched("b", more={"a": b"same", "b": b"same"}, header_offset=0),
        "overlaps another member",
    ),
    # A member that swallows the next, or reaches into the directory.
    (
        patched("a", more={"a": b"1234"}, size=200, compress_size=200),
        # Python 3.13 finds it by itself.
        "bert_config.json overlaps another member|Overlapped entries",
    ),
    (
        patched(f"bert_model.ckpt.{SHARD}", size=300_001, compress_size=300_001),
        f"{SHARD} reaches beyond the members",
    ),
    (
        patched("vocab.txt", header_offset=7),
        "vocab.txt has no header where|Overlapped entries",
    ),
    (contradiction, "is damaged .File name in directory 'vocab.txt'"),
    # Sizes.
    (
        zipped({"m.index": b"i", f"m.{SHARD}": bytes(3 * 2**20)}, DEFLATED),
        f"{SHARD}' declares a compression above 100:1",
    ),
    (patched("vocab.txt", DEFLATED, size=SIZE + 1), "vocab.txt is shorter than the"),
    # zipfile itself is content with a checksum of the declared bytes alone.
    (
        patched("vocab.txt", DEFLATED, size=10, crc=zipfile.crc32(START)),
        "vocab.txt is longer than the 10 bytes it declares",
    ),
    (patched("vocab.txt", size=5), "is stored, but declares two different sizes"),
    (zipped({f"{i}": b"" for i in range(10_001)}), "10,001 members, more than 10,000"),
    # No checkpoint.
    (zipped({"a/chinese.zip": NESTED, "readme": b"hi"}), "it holds a/chinese.zip; unp"),
    (zipped({"a.txt": b"1", "b/c.txt": b"2", ".x": b""}), "no checkpoint in .*: it ho"),
    (zipped({}), "it holds nothing"),
]
CORRUPT = [
    (
        patched("vocab.txt", DEFLATED, size=10, crc=zipfile.crc32(START[:10])),
        "vocab.txt is corrupt .Bad CRC-32",
    ),
    *(
        (patched(name, method, crc=1), rf"x\.zip: {name} is corrupt .Bad CRC-32")
        for name in ("vocab.txt", "bert_model.ckpt.index")
        for method in (STORED, DEFLATED)
    ),
]


def test_hostile_archives_are_refused(tmp_path):
    for number, (make, message) in enumerate(HOSTILE):
        (tmp_path / str(number)).mkdir()
        make(tmp_path / str(number) / "x.zip")
        refuse_zip(tmp_path / str(number) / "x.zip", message)


def test_corrupt_members_are_named(tmp_path):
    for make, message in CORRUPT:
        make(tmp_path / "x.zip")
        refuse_zip(tmp_path / "x.zip", message, CheckpointError)


def test_absurd_sizes_in_total(tmp_path, monkeypatch):
    path = write_zip(
        tmp_path / "x.zip",
        {f"{i}.bin": os.urandom(3) for i in range(5)},
        zipfile.ZIP_DEFLATED,
    )
    for i in range(5):
        patch(path, f"{i}.bin", "size", 2**32 - 2)
    # The ratio would refuse each of them first.
    monkeypatch.setattr("roformer_keras.io.archive.MAX_RATIO", 2**40)
    refuse_zip(path, "declares 21,474,836,470 bytes, more than the 17,179,869,184")


def test_a_truncated_zip(bundle):
    data = bundle.read_bytes()
    for share in (0.1, 0.5, 0.9, 0.999):
        bundle.write_bytes(data[: int(len(data) * share)])
        refuse_zip(bundle, "x.zip is a damaged or truncated zip .*: download it again")


def test_a_corrupt_deflated_shard_leaves_nothing_behind(bundle):
    data = bytearray(bundle.read_bytes())
    data[len(data) // 2] ^= 0xFF
    bundle.write_bytes(data)
    refuse_zip(bundle, rf"bert_model.ckpt.{SHARD} is corrupt", CheckpointError)


def test_a_corrupt_stored_shard_is_left_to_the_checksums_of_its_tensors(tmp_path):
    path = write_zip(tmp_path / "x.zip", MEMBERS)
    patch(path, f"bert_model.ckpt.{SHARD}", "crc", 1)
    assert contents(path) == BUNDLE
    with pytest.raises(CheckpointError, match=f"{SHARD} is corrupt"):
        verify_archive(path)


def test_corrupt_stored_weights_without_checksums_of_their_own(tmp_path):
    path = write_zip(tmp_path / "model.keras", KERAS_FILE)
    patch(path, "model.weights.h5", "crc", 1)
    refuse(path, "model.weights.h5 is corrupt", CheckpointError)


def test_too_little_free_space(bundle, monkeypatch, scratch):
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 5, 5)
    )
    text = refuse(bundle, "unpacking .*x.zip takes 300,")
    assert f"{scratch} has 5 free" in text and "TMPDIR" in text


def test_no_byte_of_the_directory_hides_a_member(tmp_path):
    small = {"vocab.txt": b"[PAD]", "m.index": b"index", f"m.{SHARD}": b"data"}
    path = write_zip(tmp_path / "x.zip", small)
    with zipfile.ZipFile(path) as archive:
        start = archive.start_dir
    data, wanted = path.read_bytes(), contents(path)
    for at in range(start, len(data)):
        for value in (data[at] ^ 0x86, data[at] ^ 1, 0, 255):
            damaged = bytearray(data)
            damaged[at] = value
            path.write_bytes(damaged)
            try:
                members = contents(path)
                verify_archive(path)
            except RoFormerError:
                continue
            assert members == wanted, (at, value)


def test_a_large_zip_counts_its_members_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 3)
    path = write_zip(tmp_path / "x.zip", MEMBERS)
    # The record before the last then holds the number, and the last one 0xFFFF.
    data = bytearray(path.read_bytes())
    assert b"PK\x06\x06" in data
    at = data.rindex(b"PK\x05\x06")
    data[at + 8 : at + 12] = b"\xff" * 4
    path.write_bytes(data)
    assert contents(path) == ("tensor_bundle", expected(ROLES, MEMBERS))


def test_progress_counts_every_byte(bundle):
    steps = []
    verify_archive(bundle, steps.append)
    assert sum(steps) == sum(map(len, MEMBERS.values()))


def test_a_file_size_limit_while_unpacking(tmp_path, bundle):
    code = """
        import sys
        from roformer_keras.io.sources import open_source
        from roformer_keras.base.errors import SourceError
        try:
            with open_source(sys.argv[1]):
                pass
        except SourceError as error:
            print(error)
    """
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = run(
        code,
        bundle,
        preexec_fn=limited_file_size,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    output, errors = process.communicate(timeout=60)
    assert output.startswith(f"could not unpack x.zip: bert_model.ckpt.{SHARD}"), errors
    assert f"into {scratch} (File too large)" in output
    assert os.listdir(scratch) == []
