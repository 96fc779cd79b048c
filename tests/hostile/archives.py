"""Zips, as SOURCE: damaged, contradictory, and packed to harm."""

import io
import struct
import zipfile

from common import SMALL

ZIP = SMALL.read_bytes()
NAMES = zipfile.ZipFile(SMALL).namelist()
LOCAL, ENTRY, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
# Offsets and formats of fields of each record.
FIELDS = {
    (LOCAL, "name"): (26, "<H"),
    (LOCAL, "extra"): (28, "<H"),
    (ENTRY, "flags"): (8, "<H"),
    (ENTRY, "method"): (10, "<H"),
    (ENTRY, "packed"): (20, "<I"),
    (ENTRY, "size"): (24, "<I"),
    (ENTRY, "name"): (28, "<H"),
    (ENTRY, "comment"): (32, "<H"),
    (ENTRY, "mode"): (38, "<I"),
    (ENTRY, "offset"): (42, "<I"),
    (END, "count"): (10, "<H"),
    (END, "length"): (12, "<I"),
    (END, "offset"): (16, "<I"),
}


def field(record, name, value, number=0):
    """The small zip with another value in the `number`-th record of a kind."""
    data, start = bytearray(ZIP), -1
    for _ in range(number + 1):
        start = data.index(record, start + 1)
    offset, form = FIELDS[record, name]
    struct.pack_into(form, data, start + offset, value)
    return bytes(data)


def cut(record, after):
    """The small zip up to so many bytes after the beginning of a record."""
    return ZIP[: ZIP.index(record) + after]


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
    locator_record = struct.pack("<4sIQI", b"PK\x06\x07", 0, locator or end, 1)
    last = struct.pack("<4sHHHHIIH", END, 0, 0, *[0xFFFF] * 2, *[2**32 - 1] * 2, 0)
    return ZIP[:end] + record + locator_record + last


TWO_SIZES = "is stored, but declares two different sizes"
DAMAGED = "is a damaged or truncated zip"
NO_ZIP = "is not a checkpoint, or a damaged one"
BOMB = {"bert_config.json": b" " * 3 * 2**20}
_ZIPS = [
    # Cut off within each structure.
    (cut(LOCAL, 3), NO_ZIP),
    *(
        (cut(record, size), DAMAGED)
        for record, size in ((LOCAL, 29), (LOCAL, 40), (ENTRY, 45), (END, 0), (END, 21))
    ),
    # Lies in the end record.
    *((field(END, "count", value), DAMAGED) for value in (0, 3, 0xFFFF)),
    *((field(END, "length", value), DAMAGED) for value in (0, 2**32 - 1, 50)),
    (field(END, "offset", 2**32 - 1), "overlaps another"),
    (field(END, "offset", 0), "has no header where"),
    # Lies in the directory.
    (field(ENTRY, "flags", 0x20), "compressed patched data"),
    *(
        (field(ENTRY, "method", value, number), "neither stored nor deflated")
        for value, number in ((1, 0), (9, 1), (12, 2), (93, 0), (99, 0))
    ),
    (field(ENTRY, "size", 2**31), TWO_SIZES),
    (field(ENTRY, "packed", 2**31), TWO_SIZES),
    *(
        (field(ENTRY, *lie), DAMAGED)
        for lie in (("name", 0), ("name", 0xFFFF), ("comment", 600, 2))
    ),
    (field(ENTRY, "offset", 2**31), "has no header where"),
    (field(ENTRY, "offset", 0, 1), "overlaps"),
    *(
        (field(ENTRY, "mode", mode << 16, number), "is a link or a device")
        for number, mode in enumerate((0o120777, 0o010777, 0o140777, 0o060777))
    ),
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
    (
        with_members({"a" * 5000: b"\x89HDF\r\n\x1a\n"}),
        "has a name of more than 1,000 ch",
    ),
    (packed({"./../x": b""}), "points outside the archive"),
    (packed({"a/..": b""}), "points outside the archive"),
    (packed({"//x": b""}), "absolute path"),
    (packed({"\r\n": b""}), "it holds"),
    (packed({"\x1b[31m": b""}), r"it holds \x1b[31m;"),
    (packed({}, comment=END * 200), DAMAGED),
    (packed({"x": b""}, comment=ZIP[-200:]), DAMAGED),
    (packed({"con.zip": ZIP}), "it holds con.zip; unpack"),
    # What is no zip, or has one in it.
    (ZIP + b"\0" * 70_000, DAMAGED),
    (b"Rar!" + ZIP[4:], "has no header where"),
]
VERBS = ("inspect x", "convert x y", "tokenize --source x 今")
CASES = [
    (VERBS[n % 3], {"x": data}, 2, message) for n, (data, message) in enumerate(_ZIPS)
]
