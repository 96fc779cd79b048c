"""The head of a model in an adapter: what is trained next to LoRA."""

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from roformer_keras.conversion.peft import BACKBONE, Adapter
from roformer_keras.conversion.weights import (
    PYTORCH_BIAS,
    PYTORCH_DECODER,
    PYTORCH_DECODER_BIAS,
    Weight,
)
from roformer_keras.errors import CheckpointError, ConfigurationError, Hint
from roformer_keras.models.paths import weights_by_path
from roformer_keras.models.preset_files import checkpoint_of


def head_fields(model: Any) -> dict[str, Any]:
    """Fields of an `Adapter` about the head of a model; empty if it has none."""
    rows = {name: row for name, (row, _) in _rows(model).items()}
    if not rows:
        return {}
    checkpoint = checkpoint_of(model, rows.values())
    head = {
        name: _turned(row, checkpoint.weight(row.name)) for name, row in rows.items()
    }
    if PYTORCH_DECODER in head and PYTORCH_BIAS in head:
        head[PYTORCH_DECODER_BIAS] = head[PYTORCH_BIAS]
    return {
        "head": head,
        "model": checkpoint.model,
        "model_options": checkpoint.model_options,
    }


def matched_head(
    model: Any, adapter: Adapter, label: str, labels: Sequence[str] | None = None
) -> list[tuple[keras.Variable, np.ndarray]]:
    """Pairs of a variable of a model's head and its value in an adapter.

    Args:
        labels: names of the outputs in the adapter's order, of an adapter without them.

    Returns:
        An empty list if the adapter has no head, or that of another kind of model,
        after a warning.

    Raises:
        CheckpointError: a weight is missing, unexpected or mis-shaped.
        ConfigurationError: the head was trained with other labels.
    """
    rows, head = _rows(model), dict(adapter.head)
    added = {
        f"{name}.weight": adapter.alpha / adapter.rank * (up @ down)
        for name, (down, up) in adapter.factors.items()
        if not name.startswith(BACKBONE)
    }
    if rows.keys().isdisjoint({**head, **added}):
        if head or added:
            warnings.warn(
                f"{label}: the head of {adapter.model or 'the adapter'} is left out, "
                f"{min({**head, **added})} among it, because {type(model).__name__} "
                "has another or none; the additions are whole",
                stacklevel=3,
            )
        return []
    if PYTORCH_DECODER_BIAS in head:
        # PEFT saves it twice, and Transformers adds this one.
        head[PYTORCH_BIAS] = head.pop(PYTORCH_DECODER_BIAS)
    if PYTORCH_DECODER in head and PYTORCH_DECODER not in rows:
        words = weights_by_path(model)["token_embedding/embeddings"]
        if not np.array_equal(head.pop(PYTORCH_DECODER), words):
            raise CheckpointError(
                f"{label}: {PYTORCH_DECODER} must equal the word embeddings, to which "
                "the output of this model is tied, and modules_to_save=['cls'] has "
                "trained it apart",
                hint="load the model with tie_word_embeddings=False, then the adapter",
            )
    for values in (head, added):
        # PEFT may train a part of a head.
        is_whole = values is head and adapter.model is not None
        for name in {**rows, **values} if is_whole else values:
            expected = _shape(rows[name][0]) if name in rows else None
            shape = values[name].shape if name in values else None
            if shape != expected:
                raise CheckpointError(
                    f"{label}: {name[:80]} must have the shape {expected} in the head "
                    f"of this model, got {shape}: load the model that the adapter was "
                    "trained on"
                )
    if adapter.model == type(model).__name__:
        model.check_saved_options(adapter.model_options, label)
    else:
        _order_outputs(model, rows, (head, added), label, labels)
    for name, value in added.items():
        row, variable = rows[name]
        if name not in head:
            kernel = keras.ops.convert_to_numpy(variable)
            head[name] = _turned(row, kernel.T if row.transposed else kernel)
        head[name] = head[name] + value
    return [
        (variable, value.T if row.transposed else value)
        for name, (row, variable) in rows.items()
        if name in head
        for value in [_turned(row, head[name])]
    ]


def _order_outputs(model, rows, parts, label, labels):
    """Puts the outputs of a head in the order of the model's labels."""
    names = getattr(model, "tags", None) or getattr(model, "classes", None)
    if not names or list(names) == [f"LABEL_{n}" for n in range(len(names))]:
        return
    names = list(map(str, names))
    if labels is None or sorted(labels) != sorted(names):
        raise ConfigurationError(
            f"{label} does not say in which order the labels of its head are"
            if labels is None
            else f"labels must be those of this model, {names}, got {labels!r:.80}",
            hint=Hint("give those of the model that it was trained on by {labels}"),
        )
    order = [list(labels).index(name) for name in names]
    for values in parts:
        for name in values.keys() & rows.keys():
            if rows[name][0].path.startswith(("tags/", "out_proj/", "classes/")):
                values[name] = values[name][order]


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
