"""Content that the opener of a format finds."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from roformer_keras.conversion.weights import Weight
from roformer_keras.io.tensor import Tensor


@dataclass(frozen=True)
class Found:
    """The tensors of a source, and what it says about its model.

    Args:
        format: str, as in `Checkpoint`.
        tensors: dict of the source's name to a pair of key and `Tensor`.
        key_of: function of a `Weight` that returns its key in this format.
        is_turned: function of a `Weight`: whether this format holds the transpose of
            the tensor in a checkpoint; by default, tensors lie as in Keras.
        task: dict of variable path to `Tensor`: the head of a task.
        saved: fields of `Checkpoint` that the source gives.
    """

    format: str
    tensors: Mapping[str, tuple[Hashable, Tensor]]
    key_of: Callable[[Weight], Hashable]
    is_turned: Callable[[Weight], bool] = lambda row: row.transposed
    task: Mapping[str, Tensor] = field(default_factory=dict)
    saved: Mapping = field(default_factory=dict)
