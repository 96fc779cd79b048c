"""Models of a few weights, and a batch of ids for them."""

import numpy as np

from roformer_keras import RoFormerBackbone, RoFormerConfig, RoFormerTokenizer

SIZES = {
    "vocabulary_size": 60,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 24,
}
TOKENIZER = RoFormerTokenizer(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(chr, range(0x4E00, 0x4E00 + 56))]
)
UNILM = {"attention": "unilm", "pooler_activation": "linear"}


def backbone(**fields):
    return RoFormerBackbone(RoFormerConfig(**{**SIZES, **fields}))


def draw_weights(model):
    random = np.random.default_rng(3)
    for weight in model.weights:
        value = random.normal(size=weight.shape, scale=0.3)
        weight.assign(value + 1 if weight.name == "gamma" else value)


def ids(rows=3, length=9):
    """Rows of ids below 50, of which the first is half padding."""
    token_ids = np.random.default_rng(0).integers(1, 50, (rows, length), "int32")
    token_ids[0, length // 2 :] = 0
    return {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}


def batch():
    """Rows of 9, 5, 2 and 1 tokens, with a second text and an id of padding inside."""
    ids = np.random.default_rng(4).integers(1, 60, (4, 9)).astype("int32")
    segments = np.zeros_like(ids)
    segments[:, 4:] = 1
    ids[0, 3] = 0
    for row, length in enumerate((9, 5, 2, 1)):
        ids[row, length:] = segments[row, length:] = 0
    return {"token_ids": ids, "segment_ids": segments}
