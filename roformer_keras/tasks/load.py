"""The class of a checkpoint, found and loaded."""

import os
from typing import Any

from roformer_keras import models, tasks
from roformer_keras.base.config import ConfigSource
from roformer_keras.base.task_registry import task_of
from roformer_keras.conversion.checkpoint import Checkpoint, model_of
from roformer_keras.models.preset import PresetModel
from roformer_keras.models.preset_files import opened_checkpoint


def load_model(
    source: str | os.PathLike | Checkpoint,
    *,
    config: ConfigSource | None = None,
    **options: Any,
) -> PresetModel:
    """Loads any checkpoint as the model that it holds.

    The class is the one that was saved, or that the catalogue names, or else follows
    from the heads: a source with an MLM head is a `RoFormerMaskedLM`, one without heads
    a `RoFormerBackbone`.

    Args:
        source, config, options: as in `from_preset` of that class.

    Raises:
        RoFormerError: as in `from_preset`.

    Example:
        >>> type(roformer_keras.load_model("roformer-sim-char")).__name__
        'RoFormerSim'
    """
    with opened_checkpoint(source, config) as checkpoint:
        name = model_of(checkpoint)
        room = tasks if task_of(name) else models
        model = getattr(room, name)
        return model.from_preset(checkpoint, config=config, **options)
