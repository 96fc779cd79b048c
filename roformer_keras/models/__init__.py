"""Functional Keras models: the encoder, and what stands on it."""

from roformer_keras.inference.fast_model import FastModel
from roformer_keras.models.backbone import RoFormerBackbone
from roformer_keras.models.language_models import (
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerSim,
)

__all__ = [
    "FastModel",
    "RoFormerBackbone",
    "RoFormerCausalLM",
    "RoFormerMaskedLM",
    "RoFormerSim",
]
