"""safetensors files, as SOURCE: headers that lie.

Those of TensorFlow checkpoints are in `tests/unit/test_tensor_bundle.py`.
"""

import json
import struct

import numpy as np
from common import SMALL, zipped
from sources import tensors_of

CONFIG = zipped(SMALL, "bert_config.json")

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
]

CASES = [
    (
        "convert x.safetensors y",
        {"x.safetensors": data, "bert_config.json": CONFIG},
        code,
        message,
    )
    for data, code, message in _SAFETENSORS
]
