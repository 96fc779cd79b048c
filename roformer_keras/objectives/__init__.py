"""Objectives of language models: items to batches, and the model for them.

A batch is NumPy, `(inputs, targets, weights)` as `model.fit` takes it. Its content
depends on the items and on the generator alone, so a training can be repeated; its
shapes on the number of items and on `length`, so nothing is compiled twice. The
training model shares the layers of the model that it is made from.
"""

from collections.abc import Mapping

from roformer_keras.objectives.base import Objective, TakePositions
from roformer_keras.objectives.language import CausalLM, MaskedLM
from roformer_keras.objectives.pairs import (
    CoSENT,
    Distillation,
    PairClassification,
    SimBERT,
)
from roformer_keras.objectives.text_to_text import UniLM

__all__ = [
    "OBJECTIVES",
    "CausalLM",
    "CoSENT",
    "Distillation",
    "MaskedLM",
    "Objective",
    "PairClassification",
    "SimBERT",
    "TakePositions",
    "UniLM",
]

OBJECTIVES: Mapping[str, type] = {
    kind.name: kind
    for kind in (
        MaskedLM,
        CausalLM,
        UniLM,
        SimBERT,
        Distillation,
        PairClassification,
        CoSENT,
    )
}
"""The classes of objectives by name, as `PretrainingSettings` has them.

Example:
    >>> objectives.OBJECTIVES["mlm"].__name__
    'MaskedLM'
"""
