"""One table: every weight of a RoFormer, by each of the names it is known under.

A weight has a checkpoint name (`bert/encoder/layer_0/...`, which is what every reader
gives and every writer takes), a Keras variable path in our models, and a place in one
of bert4keras's layers, for files that bert4keras's users saved themselves. The table
is computed from a configuration alone; no model is built for it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from roformer_keras.config import RoFormerConfig

__all__ = [
    "HEADS",
    "KERAS_BACKBONE",
    "OUTPUT_BIAS",
    "SEGMENT_EMBEDDINGS",
    "WORD_EMBEDDINGS",
    "Weight",
    "detect_model_type",
    "head_of",
    "is_training_state",
    "keras_key",
    "model_heads",
    "weight_table",
]

WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"
SEGMENT_EMBEDDINGS = "bert/embeddings/token_type_embeddings"
OUTPUT_BIAS = "cls/predictions/output_bias"

HEADS = ("pooler", "nsp", "mlm")


@dataclass(frozen=True)
class Weight:
    """One row of the table.

    Attributes:
        name: checkpoint name.
        path: `variable.path` in a Keras model of this package.
        shape: of the Keras variable.
        layer: name of bert4keras's layer that holds it.
        index: place among that layer's weights.
        attribute: where that layer keeps it, as object checkpoints name it.
        head: `"pooler"`, `"nsp"`, `"mlm"`, or None in the encoder.
        transposed: whether the checkpoint holds the transpose.
        optional: whether it may be absent from a file, because bert4keras's
            checkpoints never hold it and its first value changes nothing.
    """

    name: str
    path: str
    shape: tuple[int, ...]
    layer: str
    index: int
    attribute: str
    head: str | None = None
    transposed: bool = False
    optional: bool = False

    @property
    def checkpoint_shape(self) -> tuple[int, ...]:
        return self.shape[::-1] if self.transposed else self.shape


def weight_table(
    config: RoFormerConfig, heads: Iterable[str] = HEADS
) -> tuple[Weight, ...]:
    """Every weight that a model with this configuration and these heads has.

    Args:
        config: `RoFormerConfig`.
        heads: any of `"pooler"`, `"nsp"`, `"mlm"`.

    Returns:
        tuple of `Weight`, in the order of computation.
    """
    hidden, embedded = config.hidden_dim, config.input_dim
    rows = [
        Weight(
            WORD_EMBEDDINGS,
            "token_embedding/embeddings",
            (config.vocabulary_size, embedded),
            "Embedding-Token",
            0,
            "embeddings",
        )
    ]
    if not config.shared_segment_embeddings:
        rows.append(
            Weight(
                SEGMENT_EMBEDDINGS,
                "segment_embedding/embeddings",
                (config.num_segments, embedded),
                "Embedding-Segment",
                0,
                "embeddings",
            )
        )
    rows += _norm(
        config,
        embedded,
        "bert/embeddings/LayerNorm",
        "embedding_norm",
        "Embedding-Norm",
    )
    if embedded != hidden:
        rows += _dense(
            config,
            (embedded, hidden),
            "bert/encoder/embedding_hidden_mapping_in",
            "embedding_mapping",
            "Embedding-Mapping",
        )
    for i in range(config.num_layers):
        rows += _block(config, i)
    if "pooler" in heads:
        rows += _dense(
            config,
            (hidden, hidden),
            "bert/pooler/dense",
            "pooler/dense",
            "Pooler-Dense",
            head="pooler",
        )
    if "nsp" in heads:
        rows += [
            Weight(
                "cls/seq_relationship/output_weights",
                "nsp/kernel",
                (hidden, 2),
                "NSP-Proba",
                0,
                "kernel",
                head="nsp",
                transposed=True,
            ),
            Weight(
                "cls/seq_relationship/output_bias",
                "nsp/bias",
                (2,),
                "NSP-Proba",
                1,
                "bias",
                head="nsp",
            ),
        ]
    if "mlm" in heads:
        rows += _mlm_head(config)
    return tuple(rows)


def _dense(config, shape, name, path, layer, index=0, attribute="", head=None):
    rows = [
        Weight(
            f"{name}/kernel",
            f"{path}/kernel",
            shape,
            layer,
            index,
            f"{attribute}kernel",
            head=head,
        )
    ]
    if config.use_bias:
        rows.append(
            Weight(
                f"{name}/bias",
                f"{path}/bias",
                shape[1:],
                layer,
                index + 1,
                f"{attribute}bias",
                head=head,
            )
        )
    return rows


def _norm(config, dim, name, path, layer, head=None):
    if not config.use_bias:
        return []
    rows = [
        Weight(
            f"{name}/{part}", f"{path}/{part}", (dim,), layer, index, part, head=head
        )
        for index, part in enumerate(("beta", "gamma"))
    ]
    if config.layer_norm_cond_size:
        # bert4keras keeps these in its own files only, never in a checkpoint.
        source = config.layer_norm_cond_size
        parts = []
        if config.layer_norm_cond_hidden_size:
            parts.append(("hidden_dense", (source, config.layer_norm_cond_hidden_size)))
            source = config.layer_norm_cond_hidden_size
        parts += [("beta_dense", (source, dim)), ("gamma_dense", (source, dim))]
        rows += [
            Weight(
                f"{name}/{part}/kernel",
                f"{path}/{part}/kernel",
                shape,
                layer,
                index,
                f"{part}/kernel",
                head=head,
                optional=True,
            )
            for index, (part, shape) in enumerate(parts, start=2)
        ]
    return rows


def _block(config, i):
    hidden = config.hidden_dim
    key = config.num_heads * config.key_dim
    value = config.num_heads * config.head_dim
    inner = config.intermediate_dim
    name, path = f"bert/encoder/layer_{i}", f"transformer_layer_{i}"
    attention = f"Transformer-{i}-MultiHeadSelfAttention"
    feed_forward = f"Transformer-{i}-FeedForward"
    step = 2 if config.use_bias else 1
    rows = []
    for index, (theirs, ours, attribute, shape) in enumerate(
        (
            ("self/query", "query", "q_dense/", (hidden, key)),
            ("self/key", "key", "k_dense/", (hidden, key)),
            ("self/value", "value", "v_dense/", (hidden, value)),
            ("output/dense", "output_dense", "o_dense/", (value, hidden)),
        )
    ):
        rows += _dense(
            config,
            shape,
            f"{name}/attention/{theirs}",
            f"{path}/attention/{ours}",
            attention,
            index * step,
            attribute,
        )
    rows += _norm(
        config,
        hidden,
        f"{name}/attention/output/LayerNorm",
        f"{path}/attention_norm",
        f"{attention}-Norm",
    )
    for index, (theirs, ours, attribute, shape) in enumerate(
        (
            ("intermediate/dense", "intermediate_dense", "i0_dense/", (hidden, inner)),
            ("output/dense", "output_dense", "o_dense/", (inner, hidden)),
        )
    ):
        rows += _dense(
            config,
            shape,
            f"{name}/{theirs}",
            f"{path}/feed_forward/{ours}",
            feed_forward,
            index * step,
            attribute,
        )
    rows += _norm(
        config,
        hidden,
        f"{name}/output/LayerNorm",
        f"{path}/feed_forward_norm",
        f"{feed_forward}-Norm",
    )
    return rows


def _mlm_head(config):
    if not config.use_bias:
        if config.input_dim == config.hidden_dim:
            return []
        # In bert4keras's own files only: its checkpoints do not carry it.
        return _dense(
            config,
            (config.hidden_dim, config.input_dim),
            "cls/predictions/output_mapping",
            "mlm_head/dense",
            "Output-Mapping",
            head="mlm",
        )
    return [
        *_dense(
            config,
            (config.hidden_dim, config.input_dim),
            "cls/predictions/transform/dense",
            "mlm_head/dense",
            "MLM-Dense",
            head="mlm",
        ),
        *_norm(
            config,
            config.input_dim,
            "cls/predictions/transform/LayerNorm",
            "mlm_head/norm",
            "MLM-Norm",
            head="mlm",
        ),
        Weight(
            OUTPUT_BIAS,
            "mlm_head/bias",
            (config.vocabulary_size,),
            "MLM-Bias",
            0,
            "beta",
            head="mlm",
        ),
    ]


def model_heads(model: str, config: RoFormerConfig) -> tuple[str, ...]:
    """The heads of a model class with this configuration."""
    heads = {
        "pooler": config.pooler_activation is not None,
        "nsp": config.with_nsp,
        "mlm": model != "RoFormerBackbone",
    }
    return tuple(head for head in HEADS if heads[head])


_HEAD_PREFIXES = {
    "bert/pooler/": "pooler",
    "cls/seq_relationship/": "nsp",
    "cls/predictions/": "mlm",
}


def head_of(name: str) -> str | None:
    """The head that a checkpoint name belongs to, or None."""
    for prefix, head in _HEAD_PREFIXES.items():
        if name.startswith(prefix):
            return head
    return None


# What TF1 optimizers, loss scaling and averaging leave beside the weights.
_TRAINING_STATE = re.compile(
    r"(^|/)\.?(global_step|beta1_power|beta2_power|learning_rate|loss_scale"
    r"|good_steps|current_loss_scale|save_counter|iterations?|training|optimizer"
    r"|Adam\w*|LAMB\w*|lamb\w*|adam_[mv]|vhat|momentum|Momentum|slow"
    r"|Adafactor\w*|ExponentialMovingAverage|OPTIMIZER_SLOT)(_\d+)?(/|$)",
    re.ASCII,
)


def is_training_state(name: str) -> bool:
    """Whether a tensor belongs to an optimizer or a counter, not to the model."""
    return _TRAINING_STATE.search(name) is not None


def detect_model_type(names: Iterable[str]) -> str:
    """`"roformer"` if the encoder has biases or norm parameters, else v2."""
    for name in names:
        if name.startswith(("bert/embeddings/LayerNorm/", "bert/encoder/")) and (
            name.endswith(("/bias", "/beta", "/gamma"))
        ):
            return "roformer"
    return "roformer_v2"


# Where a Keras model keeps each layer when it saves itself, next to the layer's name.
# Keras goes by class there, and numbers layers of one class in the order of the model.
_KERAS_LAYERS = {
    "token_embedding": "reversible_embedding",
    "segment_embedding": "embedding",
    "pooler": "pooler",
    "mlm_head": "masked_lm_head",
}
_KERAS_INDEX = {"embeddings": 0, "kernel": 0, "bias": 1, "gamma": 0, "beta": 1}
KERAS_BACKBONE = "layers/ro_former_backbone/"


def keras_key(weight: Weight, config: RoFormerConfig) -> str:
    """The dataset of a weight in a `.weights.h5` file of `RoFormerBackbone`.

    In the file of a model with a head, the encoder's keys have `KERAS_BACKBONE`
    before them, and those of the head have not.
    """
    layer, *inner, variable = weight.path.split("/")
    if layer.startswith("transformer_layer_"):
        number = layer.removeprefix("transformer_layer_")
        stored = "ro_former_block" + (f"_{number}" if number != "0" else "")
    elif layer == "embedding_norm":
        stored = "layer_norm"
    elif layer == "embedding_mapping":
        stored = "dense"
    elif layer == "nsp":
        stored = "dense_1" if config.input_dim != config.hidden_dim else "dense"
    else:
        stored = _KERAS_LAYERS[layer]
    # The head's bias is the only weight that it keeps itself.
    index = 0 if weight.name == OUTPUT_BIAS else _KERAS_INDEX[variable]
    return "/".join(["layers", stored, *inner, "vars", str(index)])
