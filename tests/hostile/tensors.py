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
    fields_of, at = {}, 0
    for name, value in VALUES.items():
        end = at + value.nbytes
        offsets = [at, end]
        fields_of[name] = {
            "dtype": "F32",
            "shape": value.shape,
            "data_offsets": offsets,
        }
        at = end
    return fields_of


def of_header(header, size=None, data=None):
    """A safetensors file of a header, whose length may be another."""
    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
    if data is None:
        data = b"".join(value.tobytes() for value in VALUES.values())
    return struct.pack("<Q", len(header) if size is None else size) + header + data


def changed(**fields):
    """The small checkpoint, in which the first tensor has other fields."""
    fields_of = entries()
    fields_of[FIRST] |= fields
    return of_header(fields_of)


def metadata(**fields):
    return of_header({"__metadata__": fields, **entries()})


def twice(name):
    text = json.dumps(entries())
    return of_header(
        text.replace("}}", f'}}, "{name}": {{"dtype": "F32", ', 1).encode()
    )


def first_of_eight_bits():
    """The first tensor is of numbers that NumPy does not have."""
    fields_of = entries()
    left = fields_of[FIRST]["data_offsets"][1] - 8
    for fields in fields_of.values():
        fields["data_offsets"] = [max(0, at - left) for at in fields["data_offsets"]]
    fields_of[FIRST] |= {"dtype": "F8_E4M3"}
    data = b"".join(value.tobytes() for value in VALUES.values())
    return of_header(fields_of, data=data[left:])


def first_as(array):
    """The first tensor has other bytes."""
    data = b"".join((VALUES | {FIRST: array})[n].tobytes() for n in VALUES)
    return of_header(entries(), data=data)


DAMAGED = "x.safetensors is damaged"
NO_SOURCE = "is not a checkpoint, or a damaged one"
NO_FLOAT, FINITE = "must be a float tensor", "must hold finite numbers"
NO_MODEL, NO_TOKENS = "model must be one of RoFormerBackbone", "is not a list of tokens"
SHAPED = "bert/embeddings/LayerNorm/beta has shape ("
_SAFETENSORS = [
    *((of_header(entries(), size=n), 2, NO_SOURCE) for n in (2**63, 2**64 - 1)),
    (of_header(entries(), size=10**8, data=b""), 2, NO_SOURCE),
    *((of_header(entries(), size=n), 3, DAMAGED) for n in (0, 1, 100, 6000)),
    *(
        (of_header(header), 3, DAMAGED)
        for header in (
            *(b"{}", b"{" * 10**5, b'{"a":' * 10**5, b'{"\xff": 1}', {"x": 3}),
            {"__metadata__": 3, **entries()},
            *({"__metadata__": {"config": x}, **entries()} for x in ({}, None)),
        )
    ),
    (
        of_header(b"{}", data=b""),
        3,
        "the configuration has 2 layers, but there are only",
    ),
    *((changed(dtype=kind), 3, DAMAGED) for kind in ("F31", "", 32, "F64")),
    *((changed(dtype=kind), 3, NO_FLOAT) for kind in ("I32", "U32")),
    *(
        (changed(dtype=kind, shape=[size]), 3, f"{SHAPED}{size},)")
        for kind, size in (
            *(("F16", 16), ("BOOL", 32), ("F8_E4M3", 32), ("F4", 64), ("C64", 4)),
        )
    ),
    *(
        (changed(shape=shape), 3, DAMAGED)
        for shape in ([2**63, 2], [2**32] * 3, [-8], [8.0], 8)
    ),
    (changed(shape=[1] * 40 + [8]), 3, f"{SHAPED}1, 1, 1,"),
    (changed(shape=[4, 2]), 3, f"{SHAPED}4, 2), expected (8,)"),
    *(
        (changed(data_offsets=offsets), 3, DAMAGED)
        for offsets in ([0, 2**62], [32, 0], [32, 64], [0], [-32, 0])
    ),
    *((first_as(np.full(8, x, "f4")), 3, FINITE) for x in (np.nan, -np.inf)),
    *((first_as(np.zeros(size, "f4")), 3, DAMAGED) for size in (7, 9)),
    (first_of_eight_bits(), 3, "got F8_E4M3 of bert/embeddings/LayerNorm/beta: save"),
    *((metadata(config=x), 2, "config is not valid JSON") for x in ("{", "[" * 10**5)),
    (metadata(config="3"), 2, "config must hold one JSON object, got int"),
    (metadata(config="null"), 2, "config must hold one JSON object, got NoneType"),
    (
        metadata(config='{"num_layers": 2}'),
        2,
        "RoFormerConfig must have vocabulary_siz",
    ),
    *((metadata(vocabulary=x), 2, NO_TOKENS) for x in ("3", "[" * 10**5, "[null]")),
    (metadata(vocabulary='["[PAD]"]'), 2, "the vocabulary has 1 tokens"),
    (metadata(tokenizer="[]"), 2, "tokenizer must hold one JSON object, got list"),
    *(
        (metadata(model=name), 2, NO_MODEL)
        for name in ("os.system", "", "RoFormerSeq2Seq", "RoFormerTextClassifier")
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
    content = bytearray()
    while number > 0x7F:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*content, number])


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
TOO_FEW = "the configuration has 2 layers, but there are only"
TAKES, NO_ARRAY = (
    "float32 of shape ({0},) takes",
    "no array can have its {0}-dimensional",
)
_BUNDLES = [
    *(
        (index(change), UNUSED)
        for change in (
            lambda data: data[:47],
            lambda data: data[-48:],
            lambda data: data[:-8] + b"\0" * 8,
            lambda data: data + b"\0",
            lambda data: b"\xff" * len(data),
            lambda data: data[:FOOTER] + b"\xff" * 40 + data[-8:],
            lambda data: data[:FOOTER] + b"\x80" * 40 + data[-8:],
            lambda data: data[:FOOTER] + bytes(40) + data[-8:],
        )
    ),
    *((index(0xFF, at), UNUSED) for at in (0, FOOTER, FOOTER + 1)),
    (index(0x01, FOOTER - 1), UNUSED),
    (bundle(), TOO_FEW),
    (bundle(header=b""), f"{UNUSED}: it is for 0 data file(s),"),
    (bundle(header=b"\x08\x7f"), f"{UNUSED}: it is for 127 data"),
    (bundle(header=b"\x08" + varint(2**31)), f"{UNUSED}: it is for 2147483648 data"),
    (bundle(header=b"\x08" + b"\xff" * 12), UNUSED),
    (bundle(header=b"\x08\x01\x10\x01\x1a\x02\x08\x01"), f"{UNUSED}: its tensors are"),
    *((bundle(entry(dtype=kind)), TOO_FEW) for kind in (7, 0, 2**40, 101)),
    *(
        (bundle(entry(shape=shape)), NO_ARRAY.format(len(shape)))
        for shape in ((2**62, 2**62), (-8,), (0, 2**62), (1,) * 300)
    ),
    (bundle(entry(shape=(9,))), f"{TAKES.format(9)} 36 bytes, but the index"),
    *(
        (bundle(entry(size=size)), f"{TAKES.format(8)} 32 bytes, but the index")
        for size in (2**62, -1, 0)
    ),
    *(
        (bundle(entry(shard=n)), f"it lies in data file {n}, counted from 0,")
        for n in (7, 2**31)
    ),
    (
        bundle(entry(offset=2**40)),
        "it ends at byte 1099511627808 of data file 0, which",
    ),
    (bundle(entry(offset=-1)), "it ends at byte 18446744073709551647 of data file"),
    (bundle(entry(offset=40)), "it ends at byte 72 of data file 0, which has 64:"),
    (bundle(entry(crc=1)), TOO_FEW),
    (bundle(b"\xff" * 9), "it ends within a number"),
    (bundle(b"\x12\xff\xff\xff\xff\x0f"), "field 2 runs past the end of its message"),
    (bundle(b"\x0a" * 40), "field 1 runs past the end of its message"),
    (bundle(entry(raw=b"\x3a\x02\x0a\x00")), TOO_FEW),
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
