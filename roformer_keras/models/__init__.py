"""Functional Keras models: the encoder, and what stands on it."""

from roformer_keras.config import Seq2SeqConfig
from roformer_keras.fast_model import FastModel
from roformer_keras.models.backbone import RoFormerBackbone
from roformer_keras.models.language_models import (
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerSim,
)
from roformer_keras.models.seq2seq import RoFormerSeq2Seq

__all__ = [
    "FastModel",
    "RoFormerBackbone",
    "RoFormerCausalLM",
    "RoFormerMaskedLM",
    "RoFormerSeq2Seq",
    "RoFormerSim",
    "Seq2SeqConfig",
]
