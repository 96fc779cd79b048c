"""Keras layers that a RoFormer is made of; they take plain numbers, never a config."""

from roformer_keras.layers.attention import RoPEAttention
from roformer_keras.layers.block import (
    FeedForward,
    LayerNorm,
    RMSNorm,
    RoFormerBlock,
    erf_gelu,
)
from roformer_keras.layers.heads import MaskedLMHead, Pooler
from roformer_keras.layers.masks import (
    AttentionMask,
    causal_mask,
    padding_mask,
    unilm_mask,
)
from roformer_keras.layers.position import (
    SinusoidalPositionEmbedding,
    apply_rotary,
    rotary_table,
)

__all__ = [
    "AttentionMask",
    "FeedForward",
    "LayerNorm",
    "MaskedLMHead",
    "Pooler",
    "RMSNorm",
    "RoFormerBlock",
    "RoPEAttention",
    "SinusoidalPositionEmbedding",
    "apply_rotary",
    "causal_mask",
    "erf_gelu",
    "padding_mask",
    "rotary_table",
    "unilm_mask",
]
