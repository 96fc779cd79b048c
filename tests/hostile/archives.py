"""Zips, as SOURCE: damaged, contradictory, and packed to harm."""

import io
import struct
import zipfile

from common import SMALL

ZIP = SMALL.read_bytes()
NAMES = zipfile.ZipFile(SMALL).namelist()
LOCAL, ENTRY, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
# Offsets and formats of the fields of each record.
FIELDS = {
    LOCAL: {
        "version": (4, "<H"),
        "flags": (6, "<H"),
        "method": (8, "<H"),
        "crc": (14, "<I"),
        "packed": (18, "<I"),
        "size": (22, "<I"),
        "name": (26, "<H"),
        "extra": (28, "<H"),
    },
    ENTRY: {
        "system": (5, "<B"),
        "version": (6, "<H"),
        "flags": (8, "<H"),
        "method": (10, "<H"),
        "crc": (16, "<I"),
        "packed": (20, "<I"),
        "size": (24, "<I"),
        "name": (28, "<H"),
        "extra": (30, "<H"),
        "comment": (32, "<H"),
        "disk": (34, "<H"),
        "mode": (38, "<I"),
        "offset": (42, "<I"),
    },
    END: {
        "disk": (4, "<H"),
        "start disk": (6, "<H"),
        "here": (8, "<H"),
        "count": (10, "<H"),
        "length": (12, "<I"),
        "offset": (16, "<I"),
        "comment": (20, "<H"),
    },
}


def field(record, name, value, number=0):
    """The small zip with another value in the `number`-th record of a kind."""
    data, place = bytearray(ZIP), -1
    for _ in range(number + 1):
        place = data.index(record, place + 1)
    offset, form = FIELDS[record][name]
    struct.pack_into(form, data, place + offset, value)
    return bytes(data)


def cut(record, after, number=0):
    """The small zip up to so many bytes after the beginning of a record."""
    place = -1
    for _ in range(number + 1):
        place = ZIP.index(record, place + 1)
    return ZIP[: place + after]


def packed(members, method=zipfile.ZIP_STORED, comment=b""):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.comment = comment
    return buffer.getvalue()


def with_members(more, method=zipfile.ZIP_STORED):
    """The small zip with more members, or others (None: without them)."""
    with zipfile.ZipFile(SMALL) as archive:
        members = {name: archive.read(name) for name in NAMES}
    members |= {f"{NAMES[0].split('/')[0]}/{name}": d for name, d in more.items()}
    return packed({n: d for n, d in members.items() if d is not None}, method)


def with_extra(extra):
    """An extra field in the first entry of the directory."""
    data = bytearray(ZIP)
    at = data.index(ENTRY)
    size = struct.unpack_from("<H", data, at + 28)[0]
    struct.pack_into("<H", data, at + 30, len(extra))
    data[at + 46 + size : at + 46 + size] = extra
    end = data.index(END)
    length = struct.unpack_from("<I", data, end + 12)[0]
    struct.pack_into("<I", data, end + 12, length + len(extra))
    return bytes(data)


def zip64(count=None, offset=None, locator=None):
    """The small zip with the end records of a large one, with these lies in them."""
    end = ZIP.index(END)
    entries, length, start = struct.unpack_from("<HII", ZIP, end + 10)
    record = struct.pack(
        "<4sQHHIIQQQQ",
        *(b"PK\x06\x06", 44, 45, 45, 0, 0, entries),
        *(entries if count is None else count, length),
        start if offset is None else offset,
    )
    found = struct.pack("<4sIQI", b"PK\x06\x07", 0, locator or end, 1)
    last = struct.pack("<4sHHHHIIH", END, 0, 0, *[0xFFFF] * 2, *[2**32 - 1] * 2, 0)
    return ZIP[:end] + record + found + last


TWO_SIZES = "is stored, but declares two different sizes"
DAMAGED = "is a damaged or truncated zip"
NO_ZIP = "is not a checkpoint, or a damaged one"
BOMB = {"bert_config.json": b" " * 3 * 2**20}
_ZIPS = [
    # Cut off within each structure.
    (cut(LOCAL, 3), NO_ZIP),
    (cut(LOCAL, 29), DAMAGED),
    (cut(LOCAL, 40), DAMAGED),
    (cut(LOCAL, 0, 1), DAMAGED),
    (cut(LOCAL, 30, 3), DAMAGED),
    (cut(ENTRY, 0), DAMAGED),
    (cut(ENTRY, 45), DAMAGED),
    (cut(ENTRY, 20, 3), DAMAGED),
    (cut(END, 0), DAMAGED),
    (cut(END, 4), DAMAGED),
    (cut(END, 21), DAMAGED),
    # Lies in the end record.
    (field(END, "count", 0), DAMAGED),
    (field(END, "count", 3), DAMAGED),
    (field(END, "count", 0xFFFF), DAMAGED),
    (field(END, "length", 0), DAMAGED),
    (field(END, "length", 2**32 - 1), DAMAGED),
    (field(END, "length", 50), DAMAGED),
    (field(END, "offset", 2**32 - 1), "overlaps another"),
    (field(END, "offset", 0), "has no header where"),
    # Lies in the directory.
    (field(ENTRY, "flags", 0x20), "compressed patched data"),
    (field(ENTRY, "method", 1), "neither stored nor deflated"),
    (field(ENTRY, "method", 9, 1), "neither stored nor deflated"),
    (field(ENTRY, "method", 12, 2), "neither stored nor deflated"),
    (field(ENTRY, "method", 93), "neither stored nor deflated"),
    (field(ENTRY, "method", 99), "neither stored nor deflated"),
    (field(ENTRY, "version", 99), DAMAGED),
    (field(ENTRY, "size", 2**31), TWO_SIZES),
    (field(ENTRY, "packed", 2**31), TWO_SIZES),
    (field(ENTRY, "name", 0), DAMAGED),
    (field(ENTRY, "name", 0xFFFF), DAMAGED),
    (field(ENTRY, "extra", 30), DAMAGED),
    (field(ENTRY, "comment", 600, 2), DAMAGED),
    (field(ENTRY, "offset", 2**31), "has no header where"),
    (field(ENTRY, "offset", 0, 1), "overlaps"),
    (field(ENTRY, "mode", 0o120777 << 16), "is a link or a device"),
    (field(ENTRY, "mode", 0o010777 << 16, 1), "is a link or a device"),
    (field(ENTRY, "mode", 0o140777 << 16, 2), "is a link or a device"),
    (field(ENTRY, "mode", 0o060777 << 16, 3), "is a link or a device"),
    # Lies in a local header.
    (field(LOCAL, "name", 3, 1), "in directory"),
    (field(LOCAL, "name", 60_000, 1), "reaches beyond"),
    (field(LOCAL, "extra", 60_000, 1), "reaches beyond"),
    # Extra fields, of which one gives the sizes of large members.
    (with_extra(b"\x01\x00\x08\x00" + b"\xff" * 2), DAMAGED),
    (zip64(count=0), DAMAGED),
    (zip64(count=2**63), DAMAGED),
    (zip64(offset=2**63), "overlaps another"),
    # Members.
    (with_members(BOMB, zipfile.ZIP_DEFLATED), "declares a compression above 100:1"),
    (with_members({"bert_model.ckpt.index": None}), "no checkpoint in x"),
    (with_members({"bert_config.json": b"\x1f\x8b"}), "is not valid JSON"),
    (with_members({"second.h5": b"\x89HDF\r\n\x1a\n"}), "holds 2 checkpoints"),
    (with_members({"a" * 5000: b"\x89HDF\r\n\x1a\n"}), "holds 2 checkpoints"),
    (packed({"./../x": b""}), "points outside the archive"),
    (packed({"a/..": b""}), "points outside the archive"),
    (packed({"//x": b""}), "absolute path"),
    (packed({"\r\n": b""}), "it holds"),
    (packed({"\x1b[31m": b""}), r"it holds \x1b[31m;"),
    (packed({}, comment=END * 200), DAMAGED),
    (packed({"x": b""}, comment=ZIP[-200:]), DAMAGED),
    (packed({"con.zip": ZIP}), "it holds con.zip; unpack"),
    (packed({f"{n}/": b"" for n in range(10_001)}), "10,001 members"),
    # What is no zip, or has one in it.
    (ZIP + b"\0" * 70_000, DAMAGED),
    (b"Rar!" + ZIP[4:], "has no header where"),
]
VERBS = ("inspect x", "convert x y", "tokenize --source x 今")
CASES = [
    (VERBS[n % 3], {"x": data}, 2, message) for n, (data, message) in enumerate(_ZIPS)
]
