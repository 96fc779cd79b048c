"""Parts of heads."""

import keras

from roformer_keras.models.initializers import initializer


def sequence_of(backbone):
    """The vectors of a backbone's tokens: `(batch, length, hidden_dim)`."""
    hidden = backbone(backbone.input)
    return hidden["sequence_output"] if isinstance(hidden, dict) else hidden


def dense_head(backbone, units: int, name: str) -> keras.layers.Dense:
    """A new float32 dense layer."""
    return keras.layers.Dense(
        units,
        kernel_initializer=initializer(backbone.config),
        # bfloat16 would round logits to three digits.
        dtype=keras.DTypePolicy("float32"),
        name=name,
    )
