"""Parts of heads."""

import keras

from roformer_keras.layers.norms import activation_from_name
from roformer_keras.models.initializers import initializer

# Below every score, and small enough for a sum of two in float32.
EXCLUDED = -1e9


def sequence_of(backbone, inputs=None):
    """The vectors of a backbone's tokens: `(batch, length, hidden_dim)`."""
    hidden = backbone(backbone.input if inputs is None else inputs)
    return hidden["sequence_output"] if isinstance(hidden, dict) else hidden


def dense_head(
    backbone, units: int, name: str, activation: str | None = None
) -> keras.layers.Dense:
    """A new float32 dense layer."""
    return keras.layers.Dense(
        units,
        activation=activation_from_name(activation),
        kernel_initializer=initializer(backbone.config),
        # bfloat16 would round logits to three digits.
        dtype=keras.DTypePolicy("float32"),
        name=name,
    )
