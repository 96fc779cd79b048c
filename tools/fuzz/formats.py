"""Changes of files that keep their structure and checksums right.

Plain damage of a zip, of TensorFlow's files or of safetensors ends at a checksum or a
length. These changes go further: they change what is inside, and seal it again.
"""

import contextlib
import io
import itertools
import json
import math
import pickletools
import random
import struct
import zipfile
from collections.abc import Mapping
from pathlib import PurePosixPath

import h5py
import numpy as np

from roformer_keras.io import protobuf, tensor_bundle
from tools.fuzz.mutate import (
    INTEGERS,
    damage,
    mutate_bytes,
    mutate_json,
    mutate_text_bytes,
    mutate_toml,
)

# The files of a run, by path in its folder.
Files = Mapping[str, bytes]


def mutate_files(draw: random.Random, files: Files) -> Files:
    """Files of which one or two are changed, each in the manner of its format."""
    files = dict(files)
    for _ in range(draw.choice((1, 1, 1, 2))):
        name = draw.choice(sorted(files))
        how = draw.random()
        if how < 0.03 and len(files) > 1:
            del files[name]
        elif how < 0.06:
            files[name] = files[draw.choice(sorted(files))]
        elif name.endswith(".index") and how < 0.5:
            files.update(_change_tensor(draw, name, files))
        else:
            files[name] = mutate_file(draw, name, files[name])
    return files


def damage_files(draw: random.Random, files: Files) -> Files:
    """Files of which one is damaged in one place, checksums left as they are."""
    name = draw.choice(sorted(files))
    return {**files, name: damage(draw, files[name])}


def mutate_file(draw: random.Random, name: str, data: bytes) -> bytes:
    """A file changed in the manner of its format, by the extension."""
    change = _CHANGES.get(PurePosixPath(name).suffix, mutate_bytes)
    if change is mutate_bytes or draw.random() < 0.15:
        return mutate_bytes(draw, data)
    # What was changed before may have lost its format.
    with contextlib.suppress(Exception):
        return change(draw, data)
    return mutate_bytes(draw, data)


# === Zips ===


def mutate_zip(draw: random.Random, data: bytes) -> bytes:
    """A zip with another member, name or header; its CRCs are right."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    number = draw.randrange(len(members))
    info, content = members[number]
    how = draw.random()
    if how < 0.75:
        inside = {i.filename: c for i, c in members}
        if info.filename.endswith(".index") and how < 0.4:
            inside.update(_change_tensor(draw, info.filename, inside))
        else:
            inside[info.filename] = mutate_file(draw, info.filename, content)
        members = [(i, inside[i.filename]) for i, _ in members]
    elif how < 0.8:
        members.pop(number)
    elif how < 0.85:
        other = zipfile.ZipInfo(draw.choice(("x", "a/b", "vocab.txt", "../x", "é/")))
        members.append((other, content))
    elif how < 0.92:
        suffix = draw.choice(("", "x", "/", "\0", "\\", "/../y", ".index"))
        info.filename = draw.choice((info.filename, "x/y", "/x")) + suffix
    else:
        info.external_attr = draw.choice((0xA1FF0000, 0x41ED0000, 0x11FF0000, 0))
    target = io.BytesIO()
    method = draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(target, "w") as archive:
        for info, content in members:
            info.compress_type = method
            archive.writestr(info, content)
    return target.getvalue()


# === TensorFlow's index ===


def mutate_index(draw: random.Random, data: bytes) -> bytes:
    """An index with another key, entry or block; the checksums of blocks are right."""
    if draw.random() < 0.5:
        table = list(tensor_bundle._table_entries(data))
        number = draw.randrange(len(table))
        key, value = table[number]
        if draw.random() < 0.3:
            key = mutate_bytes(draw, key)
        else:
            value = mutate_bytes(draw, value)
        table[number] = key, value
        if draw.random() < 0.7:
            table.sort()
        return tensor_bundle._encode_table(table)
    content = bytearray(data)
    blocks = list(_blocks(data))
    start, end = draw.choice(blocks)
    for _ in range(draw.choice((1, 2, 4))):
        value = draw.choice((*INTEGERS, draw.randrange(256))) % 256
        content[draw.randrange(start, end + 1)] = value
    for start, end in blocks:
        crc = tensor_bundle._masked_crc32c(bytes(content[start : end + 1]))
        content[end + 1 : end + 5] = crc.to_bytes(4, "little")
    return bytes(content)


def _blocks(data):
    """The positions of the blocks of an index; the last is the index of the others."""
    at = len(data) - tensor_bundle._FOOTER_SIZE
    start, size, at = tensor_bundle._read_handle(data, at)
    yield start, start + size
    start, size, _ = tensor_bundle._read_handle(data, at)
    block = tensor_bundle._read_block(data, start, size, "")
    for _, handle in tensor_bundle._block_entries(block):
        first, length, _ = tensor_bundle._read_handle(handle, 0)
        yield first, first + length
    yield start, start + size


def _change_tensor(draw, name, files):
    """Another content of a tensor, with the checksum that it needs in the index."""
    shards = [n for n in files if n.startswith(name.removesuffix(".index") + ".data-")]
    with contextlib.suppress(Exception):
        table = dict(tensor_bundle._table_entries(files[name]))
        graph = tensor_bundle.OBJECT_GRAPH.encode()
        keys = sorted(table.keys() - {b""})
        key = graph if graph in table and draw.random() < 0.7 else draw.choice(keys)
        entry = tensor_bundle._read_entry(table[key])
        shard, start, end = files[shards[0]], entry.offset, entry.offset + entry.size
        if key == graph:
            length, at = protobuf.read_varint(shard[start:end], 0)
            text = shard[start + at + 4 : end]
            offset = draw.randrange(length)
            text = text[:offset] + draw.randbytes(1) + text[offset + 1 :]
            number = length.to_bytes(4, "little")
            length_crc = tensor_bundle._masked_crc32c(number).to_bytes(4, "little")
            part = shard[start : start + at] + length_crc + text
            crc = tensor_bundle._masked_crc32c(number + length_crc + text)
        else:
            part = damage(draw, shard[start:end])[: end - start]
            part = part.ljust(end - start, b"\0")
            crc = tensor_bundle._masked_crc32c(part)
        old, new = (struct.pack("<BI", 0x35, c) for c in (entry.checksum, crc))
        table[key] = table[key].replace(old, new)
        index = tensor_bundle._encode_table(sorted(table.items()))
        return {name: index, shards[0]: shard[:start] + part + shard[end:]}
    return {name: mutate_bytes(draw, files[name])}


# === safetensors ===


def mutate_safetensors(draw: random.Random, data: bytes) -> bytes:
    """A file with another header, whose length is right."""
    size = int.from_bytes(data[:8], "little")
    header, values = data[8 : 8 + size], data[8 + size :]
    content = json.loads(header)
    metadata = content.get("__metadata__", {})
    if metadata and draw.random() < 0.5:
        # The metadata are JSON in JSON.
        key = draw.choice(sorted(metadata))
        changed = mutate_json(draw, metadata[key].encode("utf-8", "surrogatepass"))
        metadata = {**metadata, key: changed.decode("utf-8", "replace")}
        header = json.dumps({**content, "__metadata__": metadata}).encode()
    else:
        header = mutate_json(draw, header)
    return len(header).to_bytes(8, "little") + header + values


# === Pickles ===

# Operations of which every one is allowed; the first doubles a tuple in the memo.
_OPERATIONS = (
    *(b"h\0h\0\x86q\0", b")q\0", b"h\0", b"h\1", b"q\0", b"r\xff\xff\0\0", b"\x94"),
    *(b"(", b")", b"]", b"}", b"N", b"\x88", b"t", b"\x85", b"\x86", b"\x87", b"l"),
    *(b"d", b"a", b"e", b"s", b"u", b"R", b"b", b"Q", b".", b"1", b"0"),
    *(b"K\1", b"J\xff\xff\xff\xff", b"\x8a\x08" + b"\xff" * 8, b"L1L\n", b"F1\n"),
    *(b"Vx\n", b"X\1\0\0\0x", b"C\1x", b"ctorch._utils\n_rebuild_tensor_v2\n"),
    *(b"ccollections\nOrderedDict\n", b"ctorch\nHalfStorage\n"),
)


def mutate_pickle(draw: random.Random, data: bytes) -> bytes:
    """Pickles, one after the other, with other operations or arguments."""
    parts, rest = _split_pickles(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        start, other = (draw.randrange(len(parts) + 1) for _ in range(2))
        end = start + draw.choice((0, 0, 1, 1, 2, 8))
        new = b"".join(parts[other : other + draw.choice((1, 4, 32))])
        changes = (
            b"",
            draw.choice(_OPERATIONS) * draw.choice((1, 1, 2, 40)),
            draw.choice(_OPERATIONS) + draw.choice(_OPERATIONS),
            new * draw.choice((1, 1, 2, 1000)) if len(new) < 40 else new,
            mutate_bytes(draw, b"".join(parts[start:end])),
        )
        parts[start:end] = [draw.choice(changes)]
    return b"".join(parts) + (rest if draw.random() < 0.9 else damage(draw, rest))


def _split_pickles(data):
    """The operations of pickles that follow each other, and what comes after them."""
    stream, starts = io.BytesIO(data), []
    with contextlib.suppress(Exception):
        while stream.tell() < len(data):
            starts += [at for _, _, at in pickletools.genops(stream)]
    end = stream.tell() if starts else 0
    pieces = itertools.pairwise([*starts, end])
    return [data[start:stop] for start, stop in pieces], data[end:]


def mutate_torch(draw: random.Random, data: bytes) -> bytes:
    """A file of PyTorch: a zip since version 1.6, before that pickles and numbers."""
    if not data.startswith(b"PK"):
        return mutate_pickle(draw, data)
    if draw.random() < 0.3:
        return mutate_zip(draw, data)
    target = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as archive,
        zipfile.ZipFile(target, "w") as other,
    ):
        for name in archive.namelist():
            content = archive.read(name)
            is_pickle = name.endswith(".pkl")
            other.writestr(name, mutate_pickle(draw, content) if is_pickle else content)
    return target.getvalue()


# === HDF5 ===


def mutate_hdf5(draw: random.Random, data: bytes) -> bytes:
    """A file with another dataset, link or attribute."""
    content = io.BytesIO(data)
    with h5py.File(content, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        for _ in range(draw.choice((1, 1, 2))):
            change = draw.choice((_change_attribute, _change_link, _change_dataset))
            change(draw, file, names)
    return content.getvalue()


def _change_attribute(draw, file, names):
    # Those of the file and its groups say which layers there are.
    holders = [n for n in ["/", *names] if len(file[n].attrs)]
    attributes = file[draw.choice(holders or ["/"])].attrs
    key = draw.choice([*attributes, "layer_names", "weight_names"])
    values = list(np.ravel(attributes.get(key, b"x")))
    odd = (0, -1.5, "x", b"\xff", h5py.Empty("f"), [], [""], ["."], [1, 2], "/", "..")
    names = (b"", b".", b"/", *[n.encode() for n in names], b"x" * 99)
    changes = (
        draw.choice(odd),
        values[:-1] or [b""],
        [*values, *values[:1]],
        [draw.choice(names), *values[1:]],
        [*values[:-1], draw.choice(names)],
    )
    if draw.random() < 0.2:
        attributes.pop(key, None)
    else:
        attributes[key] = draw.choice(changes)


def _change_link(draw, file, names):
    name, other = (draw.choice([*names, "x", "no/such"]) for _ in range(2))
    path = draw.choice(("/dev/zero", "/proc/self/mem", "other.h5", ".", ""))
    links = [h5py.SoftLink(other), h5py.ExternalLink(path, other), None]
    # Its own group too, which then holds itself.
    groups = (other, name.rpartition("/")[0] or "/")
    links += [file[one] for one in groups if one in file]
    if name in file:
        del file[name]
    if (link := draw.choice(links)) is not None:
        file[name] = link


def _change_dataset(draw, file, names):
    name = draw.choice([n for n in names if isinstance(file.get(n), h5py.Dataset)])
    value = file[name][()]
    shape = value.shape
    del file[name]
    kinds = ("f2", "f8", ">f4", "i4", "u1", "?", "c8", "S3", "f4,i4", "(2,)f4")
    shapes = (shape[::-1], (), (0,), (1, *shape), (*shape, 0), (math.prod(shape),))
    sizes = tuple(draw.choice((10**4, 10**7, 2**31, 2**40)) for _ in range(2))
    options = (
        {"shape": shape, "dtype": draw.choice(kinds)},
        {"shape": draw.choice(shapes), "dtype": "f4"},
        {"shape": sizes, "dtype": "f4", "chunks": (100, 100)},
        {"data": h5py.Empty("f4")},
        {"data": np.full(shape, draw.choice(("x", b"x", 3)), object)},
        {"data": np.full(shape, draw.choice((np.nan, np.inf, 1e38, 0)), "f8")},
        {"data": value, "chunks": True, "compression": "gzip"},
    )
    file.create_dataset(name, **draw.choice(options))


_CHANGES = {
    ".json": mutate_json,
    ".toml": mutate_toml,
    ".zip": mutate_zip,
    ".keras": mutate_zip,
    ".bin": mutate_torch,
    ".pkl": mutate_pickle,
    ".index": mutate_index,
    ".safetensors": mutate_safetensors,
    ".h5": mutate_hdf5,
    **dict.fromkeys(
        (".txt", ".tsv", ".csv", ".jsonl", ".bio", ".conll"), mutate_text_bytes
    ),
}
