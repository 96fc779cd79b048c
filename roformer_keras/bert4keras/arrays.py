"""Functions of arrays."""

from collections.abc import Sequence

import numpy as np

from roformer_keras.base.errors import refuse
from roformer_keras.base.types import Unchecked


def to_array(*args: Unchecked) -> np.ndarray | list[np.ndarray]:
    """The argument as an array, or a list of as many arrays as there are arguments."""
    arrays = [np.array(one) for one in args]
    return arrays[0] if len(arrays) == 1 else arrays


def sequence_padding(
    inputs: Sequence,
    length: int | Sequence[int] | None = None,
    value: float = 0,
    seq_dims: int = 1,
    mode: str = "post",
) -> np.ndarray:
    """One array of sequences, padded or cut to one length.

    Args:
        inputs: lists or arrays of equal numbers of axes.
        length: int, or one for each of the first `seq_dims` axes; by default that of
            the longest.
        value: what to pad with.
        seq_dims: int. How many axes of each sequence to pad.
        mode: `"post"` or `"pre"`: pads at the end or at the start. Both cut at the end.

    Returns:
        `(len(inputs), *length, ...)`.
    """
    refuse(
        mode not in ("post", "pre"),
        f"mode must be 'post' or 'pre', got {mode!r}",
    )
    if length is None:
        length = np.max([np.shape(one)[:seq_dims] for one in inputs], axis=0)
    sizes = np.atleast_1d(length)[:seq_dims]
    cut = tuple(slice(size) for size in sizes)
    padded = []
    for one in inputs:
        # An empty list has no type.
        has_type = np.size(one) or isinstance(one, np.ndarray)
        array = np.asarray(one, None if has_type else int)[cut]
        missing = [
            size - given for size, given in zip(sizes, array.shape, strict=False)
        ]
        widths = [(0, size) if mode == "post" else (size, 0) for size in missing]
        widths += [(0, 0)] * (array.ndim - len(widths))
        padded.append(np.pad(array, widths, constant_values=value))
    return np.array(padded)
