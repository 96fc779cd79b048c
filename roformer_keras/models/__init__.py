"""Functional Keras models: the encoder, and what stands on it."""

from roformer_keras.models.backbone import RoFormerBackbone
from roformer_keras.models.causal_lm import RoFormerCausalLM
from roformer_keras.models.masked_lm import RoFormerMaskedLM
from roformer_keras.models.sim import RoFormerSim

__all__ = [
    "RoFormerBackbone",
    "RoFormerCausalLM",
    "RoFormerMaskedLM",
    "RoFormerSim",
]
