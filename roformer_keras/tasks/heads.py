"""What heads are made of."""

import keras

from roformer_keras.models.initializers import initializer

__all__ = ["dense_head", "sequence_of"]


def sequence_of(backbone):
    """The vectors of a backbone's tokens: `(batch, length, hidden_dim)`."""
    hidden = backbone(backbone.input)
    return hidden["sequence_output"] if isinstance(hidden, dict) else hidden


def dense_head(backbone, units: int, name: str) -> keras.layers.Dense:
    """A fresh dense layer, whose outputs are told by."""
    return keras.layers.Dense(
        units,
        kernel_initializer=initializer(backbone.config),
        # What is told of a bfloat16 sum would be rounded to three digits.
        dtype=keras.DTypePolicy("float32"),
        name=name,
    )
