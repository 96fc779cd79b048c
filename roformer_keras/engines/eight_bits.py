"""Weights in 8 bits."""

import numpy as np


def round_to_8_bits(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest integers of a matrix, with one scale for each row.

    Args:
        matrix: float32 `(outputs, features)`.

    Returns:
        int8 `(outputs, features)`, and float32 `(outputs, 1)`; their product is close
        to the matrix.
    """
    scale = np.abs(matrix).max(axis=1, keepdims=True) / 127
    scale = np.where(scale > 0, scale, 1).astype("float32")
    return np.round(matrix / scale).astype("int8"), scale
