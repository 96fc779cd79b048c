"""Functional Keras models: the encoder, and what stands on it."""

from roformer_keras.config import Seq2SeqConfig
from roformer_keras.models.backbone import RoFormerBackbone
from roformer_keras.models.causal_lm import RoFormerCausalLM
from roformer_keras.models.masked_lm import RoFormerMaskedLM
from roformer_keras.models.seq2seq import RoFormerSeq2Seq
from roformer_keras.models.sim import RoFormerSim

__all__ = [
    "RoFormerBackbone",
    "RoFormerCausalLM",
    "RoFormerMaskedLM",
    "RoFormerSeq2Seq",
    "RoFormerSim",
    "Seq2SeqConfig",
]
