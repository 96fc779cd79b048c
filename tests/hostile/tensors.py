"""safetensors files and TensorFlow checkpoints, as SOURCE: headers that lie."""

import json
import struct

import numpy as np
from common import SMALL, zipped
from sources import SHARD, tensors_of

from roformer_keras.io import tensor_bundle

CONFIG = zipped(SMALL, "bert_config.json")

# === safetensors ===

VALUES = {n: np.ascontiguousarray(v) for n, v in sorted(tensors_of(SMALL).items())}
FIRST = "bert/embeddings/LayerNorm/beta"


def entries():
    found, at = {}, 0
    for name, value in VALUES.items():
        end = at + value.nbytes
        offsets = [at, end]
        found[name] = {"dtype": "F32", "shape": value.shape, "data_offsets": offsets}
        at = end
    return found


def of_header(header, size=None, data=None):
    """A safetensors file of a header, whose length may be another."""
    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
    if data is None:
        data = b"".join(value.tobytes() for value in VALUES.values())
    return struct.pack("<Q", len(header) if size is None else size) + header + data


def changed(**fields):
    """The small checkpoint, in which the first tensor has other fields."""
    found = entries()
    found[FIRST] |= fields
    return of_header(found)


def metadata(**fields):
    return of_header({"__metadata__": fields, **entries()})


def twice(name):
    text = json.dumps(entries())
    return of_header(
        text.replace("}}", f'}}, "{name}": {{"dtype": "F32", ', 1).encode()
    )


def first_of_eight_bits():
    """The first tensor is of numbers that NumPy does not have."""
    found = entries()
    left = found[FIRST]["data_offsets"][1] - 8
    for fields in found.values():
        fields["data_offsets"] = [max(0, at - left) for at in fields["data_offsets"]]
    found[FIRST] |= {"dtype": "F8_E4M3"}
    data = b"".join(value.tobytes() for value in VALUES.values())
    return of_header(found, data=data[left:])


def first_as(array):
    """The first tensor has other bytes."""
    data = b"".join((VALUES | {FIRST: array})[n].tobytes() for n in VALUES)
    return of_header(entries(), data=data)


DAMAGED = "x.safetensors is damaged"
NO_SOURCE = "is not a checkpoint, or a damaged one"
_SAFETENSORS = [
    (of_header(entries(), size=2**63), 2, NO_SOURCE),
    (of_header(entries(), size=2**64 - 1), 2, NO_SOURCE),
    (of_header(entries(), size=10**8, data=b""), 2, NO_SOURCE),
    (of_header(entries(), size=0), 3, DAMAGED),
    (of_header(entries(), size=1), 3, DAMAGED),
    (of_header(entries(), size=100), 3, DAMAGED),
    (of_header(entries(), size=6000), 3, DAMAGED),
    (of_header(b"{}"), 3, DAMAGED),
    (
        of_header(b"{}", data=b""),
        3,
        "the configuration has 2 layers, but there are only",
    ),
    (of_header(b"{" * 10**5), 3, DAMAGED),
    (of_header(b'{"a":' * 10**5), 3, DAMAGED),
    (of_header(b'{"\xff": 1}'), 3, DAMAGED),
    (of_header({"x": 3}), 3, DAMAGED),
    (of_header({"__metadata__": 3, **entries()}), 3, DAMAGED),
    (of_header({"__metadata__": {"config": {}}, **entries()}), 3, DAMAGED),
    (of_header({"__metadata__": {"config": None}, **entries()}), 3, DAMAGED),
    (changed(dtype="F31"), 3, DAMAGED),
    (changed(dtype=""), 3, DAMAGED),
    (changed(dtype=32), 3, DAMAGED),
    (changed(dtype="F64"), 3, DAMAGED),
    (changed(dtype="I32"), 3, "must be a float tensor"),
    (changed(dtype="U32"), 3, "must be a float tensor"),
    (changed(dtype="F16", shape=[16]), 3, "has shape (16,), expected (8,)"),
    (
        changed(dtype="BOOL", shape=[32]),
        3,
        "bert/embeddings/LayerNorm/beta has shape (32,),",
    ),
    (
        changed(dtype="F8_E4M3", shape=[32]),
        3,
        "bert/embeddings/LayerNorm/beta has shape (32,),",
    ),
    (
        changed(dtype="F4", shape=[64]),
        3,
        "bert/embeddings/LayerNorm/beta has shape (64,),",
    ),
    (
        changed(dtype="C64", shape=[4]),
        3,
        "bert/embeddings/LayerNorm/beta has shape (4,),",
    ),
    (changed(shape=[2**63, 2]), 3, DAMAGED),
    (changed(shape=[2**32, 2**32, 2**32]), 3, DAMAGED),
    (changed(shape=[-8]), 3, DAMAGED),
    (changed(shape=[8.0]), 3, DAMAGED),
    (changed(shape=8), 3, DAMAGED),
    (
        changed(shape=[1] * 40 + [8]),
        3,
        "bert/embeddings/LayerNorm/beta has shape (1, 1, 1,",
    ),
    (changed(shape=[4, 2]), 3, "has shape (4, 2), expected (8,)"),
    (changed(data_offsets=[0, 2**62]), 3, DAMAGED),
    (changed(data_offsets=[32, 0]), 3, DAMAGED),
    (changed(data_offsets=[32, 64]), 3, DAMAGED),
    (changed(data_offsets=[0]), 3, DAMAGED),
    (changed(data_offsets=[-32, 0]), 3, DAMAGED),
    (first_as(np.full(8, np.nan, "f4")), 3, "must hold finite numbers"),
    (first_as(np.full(8, -np.inf, "f4")), 3, "must hold finite numbers"),
    (first_as(np.zeros(7, "f4")), 3, DAMAGED),
    (first_of_eight_bits(), 3, "got F8_E4M3 of bert/embeddings/LayerNorm/beta: save"),
    (first_as(np.zeros(9, "f4")), 3, DAMAGED),
    (metadata(config="{"), 2, "config is not valid JSON"),
    (metadata(config="3"), 2, "config must hold one JSON object, got int"),
    (metadata(config="[" * 10**5), 2, "config is not valid JSON"),
    (
        metadata(config='{"num_layers": 10000000000}'),
        2,
        "RoFormerConfig must have vocabulary_size,",
    ),
    (metadata(config="null"), 2, "config must hold one JSON object, got NoneType"),
    (metadata(vocabulary="3"), 2, "its vocabulary is not a list of tokens"),
    (metadata(vocabulary="[" * 10**5), 2, "its vocabulary is not a list of tokens"),
    (metadata(vocabulary="[null]"), 2, "its vocabulary is not a list of tokens"),
    (metadata(vocabulary='["[PAD]"]'), 2, "the vocabulary has 1 tokens"),
    (metadata(tokenizer="[]"), 2, "tokenizer must hold one JSON object, got list"),
    (metadata(model="os.system"), 2, "model must be one of RoFormerBackbone"),
    (metadata(model=""), 2, "model must be one of RoFormerBackbone"),
    (metadata(model="RoFormerSeq2Seq"), 2, "model must be one of RoFormerBackbone"),
    (
        metadata(model="RoFormerTextClassifier"),
        2,
        "model must be one of RoFormerBackbone",
    ),
    (
        metadata(model="RoFormerMaskedLM", model_options='{"a": 1}'),
        2,
        "x.safetensors has a head (pooler) for which",
    ),
    (metadata(crc32c="[]"), 2, "crc32c must hold one JSON object, got list"),
    (metadata(crc32c='{"x": 3}'), 3, "must be an object of checksums"),
    (metadata(crc32c='{"x": "00000000"}'), 3, "and the metadata says None"),
]

# === TensorFlow checkpoints ===


def varint(number):
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def entry(dtype=1, shape=(8,), shard=0, offset=0, size=32, crc=0, raw=b""):
    """A `BundleEntryProto`."""
    dims = b"".join(
        b"\x12" + varint(len(dim)) + dim
        for dim in (b"\x08" + varint(side % 2**64) for side in shape)
    )
    parts = [b"\x08" + varint(dtype), b"\x12" + varint(len(dims)) + dims]
    parts += [b"\x18" + varint(shard), b"\x20" + varint(offset % 2**64)]
    parts += [b"\x28" + varint(size % 2**64), b"\x35" + struct.pack("<I", crc), raw]
    return b"".join(parts)


def bundle(*entries, header=b"\x08\x01\x1a\x02\x08\x01", index=None, data=b"\0" * 64):
    """A checkpoint of some entries, next to the small configuration."""
    named = [(f"bert/{n}".encode(), one) for n, one in enumerate(entries)]
    if index is None:
        index = tensor_bundle._encode_table([(b"", header), *named])
    return {
        "x.index": index,
        f"x.{SHARD.split('.')[-1]}": data,
        "bert_config.json": CONFIG,
    }


INDEX = zipped(SMALL, "bert_model.ckpt.index")
REAL = zipped(SMALL, SHARD)


def index(change, at=None):
    """The small checkpoint with another index."""
    data = bytearray(INDEX)
    if at is None:
        return bundle(index=change(INDEX), data=REAL)
    data[at] ^= change
    return bundle(index=bytes(data), data=REAL)


UNUSED = "the index cannot be used"
FOOTER = len(INDEX) - 48
_BUNDLES = [
    (index(lambda data: data[:47]), UNUSED),
    (index(lambda data: data[-48:]), UNUSED),
    (index(lambda data: data[:-8] + b"\0" * 8), UNUSED),
    (index(lambda data: data + b"\0"), UNUSED),
    (index(lambda data: b"\xff" * len(data)), UNUSED),
    (index(lambda data: data[:FOOTER] + b"\xff" * 40 + data[-8:]), UNUSED),
    (index(lambda data: data[:FOOTER] + b"\x80" * 40 + data[-8:]), UNUSED),
    (index(lambda data: data[:FOOTER] + bytes(40) + data[-8:]), UNUSED),
    (index(0xFF, 0), UNUSED),
    (index(0xFF, FOOTER), UNUSED),
    (index(0xFF, FOOTER + 1), UNUSED),
    (index(0x01, FOOTER - 1), UNUSED),
    (bundle(), "the configuration has 2 layers, but there are only"),
    (bundle(header=b""), "the index cannot be used: it is for 0 data file(s),"),
    (bundle(header=b"\x08\x7f"), "the index cannot be used: it is for 127 data"),
    (bundle(header=b"\x08" + b"\xff" * 12), UNUSED),
    (
        bundle(header=b"\x08\x01\x10\x01\x1a\x02\x08\x01"),
        "the index cannot be used: its tensors are",
    ),
    (
        bundle(header=b"\x08" + varint(2**31)),
        "the index cannot be used: it is for 2147483648 data",
    ),
    (bundle(entry(dtype=7)), "the configuration has 2 layers, but there are only"),
    (bundle(entry(dtype=0)), "the configuration has 2 layers, but there are only"),
    (bundle(entry(dtype=2**40)), "the configuration has 2 layers, but there are only"),
    (bundle(entry(dtype=101)), "the configuration has 2 layers, but there are only"),
    (bundle(entry(shape=(2**62, 2**62))), "no array can have its 2-dimensional shape"),
    (bundle(entry(shape=(-8,))), "no array can have its 1-dimensional shape"),
    (bundle(entry(shape=(0, 2**62))), "no array can have its 2-dimensional shape"),
    (bundle(entry(shape=(1,) * 300)), "no array can have its 300-dimensional shape"),
    (bundle(entry(shape=(9,))), "float32 of shape (9,) takes 36 bytes, but the index"),
    (bundle(entry(shard=7)), "it lies in data file 7, counted from 0, but there"),
    (bundle(entry(shard=2**31)), "it lies in data file 2147483648, counted from 0,"),
    (
        bundle(entry(offset=2**40)),
        "it ends at byte 1099511627808 of data file 0, which",
    ),
    (bundle(entry(offset=-1)), "it ends at byte 18446744073709551647 of data file"),
    (bundle(entry(offset=40)), "it ends at byte 72 of data file 0, which has 64:"),
    (bundle(entry(size=2**62)), "float32 of shape (8,) takes 32 bytes, but the index"),
    (bundle(entry(size=-1)), "float32 of shape (8,) takes 32 bytes, but the index"),
    (bundle(entry(size=0)), "float32 of shape (8,) takes 32 bytes, but the index"),
    (bundle(entry(crc=1)), "the configuration has 2 layers, but there are only"),
    (bundle(b"\xff" * 9), "it ends within a number"),
    (bundle(b"\x12\xff\xff\xff\xff\x0f"), "field 2 runs past the end of its message"),
    (bundle(b"\x0a" * 40), "field 1 runs past the end of its message"),
    (
        bundle(entry(raw=b"\x3a\x02\x0a\x00")),
        "the configuration has 2 layers, but there are only",
    ),
    (bundle(entry(), entry(offset=8)), "unexpected bert/0 (8,) unexpected bert/1 (8,)"),
]
CASES = [
    *(
        (
            "convert x.safetensors y",
            {"x.safetensors": data, "bert_config.json": CONFIG},
            c,
            m,
        )
        for data, c, m in _SAFETENSORS
    ),
    *(("convert x y", files, 3, message) for files, message in _BUNDLES),
]
