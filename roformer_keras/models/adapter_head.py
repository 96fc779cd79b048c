"""The head of a model in an adapter: what is trained next to LoRA."""

import warnings
from typing import Any

import keras
import numpy as np

from roformer_keras.conversion.peft import Adapter
from roformer_keras.conversion.weights import Weight
from roformer_keras.errors import CheckpointError, ConfigurationError
from roformer_keras.models.paths import weights_by_path
from roformer_keras.models.preset_files import checkpoint_of

# What PEFT saves once more, though it is one with another weight here.
_TIED = "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"


def head_fields(model: Any) -> dict[str, Any]:
    """Fields of an `Adapter` about the head of a model; empty if it has none."""
    rows = {name: row for name, (row, _) in _rows(model).items()}
    if not rows:
        return {}
    checkpoint = checkpoint_of(model, rows.values())
    return {
        "head": {
            name: _turned(row, checkpoint.weight(row.name))
            for name, row in rows.items()
        },
        "model": checkpoint.model,
        "model_options": checkpoint.model_options,
    }


def matched_head(
    model: Any, adapter: Adapter, label: str
) -> list[tuple[keras.Variable, np.ndarray]]:
    """Pairs of a variable of a model's head and its value in an adapter.

    Returns:
        An empty list if the adapter has no head, or that of another kind of model,
        after a warning.

    Raises:
        CheckpointError: a weight is missing, unexpected or mis-shaped.
        ConfigurationError: the head was trained with other labels.
    """
    rows, head = _rows(model), dict(adapter.head)
    if rows.keys().isdisjoint(head):
        if head:
            warnings.warn(
                f"{label}: the head of {adapter.model or 'the adapter'} is left out, "
                f"{min(head)} among it, because {type(model).__name__} has another or "
                "none; the additions are whole",
                stacklevel=3,
            )
        return []
    words = weights_by_path(model)["token_embedding/embeddings"]
    for name, tied in zip(
        _TIED, (words, head.get("cls.predictions.bias")), strict=True
    ):
        if name in head and not np.array_equal(head.pop(name), tied):
            raise CheckpointError(
                f"{label}: {name} must be tied, as it is here, and was trained by "
                "itself: merge the adapter into the model by PEFT's merge_and_unload"
            )
    for name in {**rows, **head}:
        row = rows[name][0] if name in rows else None
        expected = None if row is None else _shape(row)
        shape = head[name].shape if name in head else None
        if shape != expected:
            raise CheckpointError(
                f"{label}: {name[:80]} must have the shape {expected} in the head of "
                f"this model, got {shape}: load the model that the adapter was trained "
                "on"
            )
    kind, options = type(model).__name__, model.preset_options()
    if adapter.model == kind:
        model.check_saved_options(adapter.model_options, label)
    elif options.get("labels") or options.get("classes"):
        raise ConfigurationError(
            f"{label} does not say in which order the labels of its head are: load the "
            f"adapter of a {kind} that save_lora wrote, or merge it into the model by "
            "PEFT's merge_and_unload, then convert it"
        )
    return [
        (variable, value.T if row.transposed else value)
        for name, (row, variable) in rows.items()
        for value in [_turned(row, head[name])]
    ]


def _rows(model) -> dict[str, tuple[Weight, keras.Variable]]:
    """Row and variable of each weight in the head, by name in Transformers."""
    variables = weights_by_path(model)
    return {
        row.huggingface: (row, variables[row.path])
        for row in model._weight_rows()
        # What is quantized is not trained.
        if row.head in ("mlm", "task") and "int" not in variables[row.path].dtype
    }


def _turned(row, value):
    """Between the shape in a checkpoint and in PyTorch."""
    return value.T if row.huggingface_transposed else value


def _shape(row):
    shape = row.checkpoint_shape
    return shape[::-1] if row.huggingface_transposed else shape
