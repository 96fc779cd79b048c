"""The Keras layers of a RoFormer; they take numbers and layers, never a config."""

from roformer_keras.layers.attention import RoPEAttention
from roformer_keras.layers.block import FeedForward, RoFormerBlock
from roformer_keras.layers.crf import ConditionalRandomField, TagAccuracy
from roformer_keras.layers.heads import MaskedLMHead, Pooler
from roformer_keras.layers.linear_attention import LinearRoPEAttention
from roformer_keras.layers.masks import (
    AttentionMask,
    causal_mask,
    padding_mask,
    unilm_mask,
)
from roformer_keras.layers.norms import LayerNorm, RMSNorm, erf_gelu, tanh_gelu
from roformer_keras.layers.pointer import (
    EfficientGlobalPointer,
    GlobalPointer,
    SpanCrossentropy,
    SpanF1,
    find_spans,
    multilabel_categorical_crossentropy,
    sparse_multilabel_categorical_crossentropy,
)
from roformer_keras.layers.position import (
    SinusoidalPositionEmbedding,
    apply_rotary,
    rotary_table,
)

__all__ = [
    "AttentionMask",
    "ConditionalRandomField",
    "EfficientGlobalPointer",
    "FeedForward",
    "GlobalPointer",
    "LayerNorm",
    "LinearRoPEAttention",
    "MaskedLMHead",
    "Pooler",
    "RMSNorm",
    "RoFormerBlock",
    "RoPEAttention",
    "SinusoidalPositionEmbedding",
    "SpanCrossentropy",
    "SpanF1",
    "TagAccuracy",
    "apply_rotary",
    "causal_mask",
    "erf_gelu",
    "find_spans",
    "multilabel_categorical_crossentropy",
    "padding_mask",
    "rotary_table",
    "sparse_multilabel_categorical_crossentropy",
    "tanh_gelu",
    "unilm_mask",
]
