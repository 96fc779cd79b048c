"""The content that the opener of a format returns."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from roformer_keras.conversion.weights import Weight
from roformer_keras.io.tensor import Tensor


@dataclass(frozen=True)
class SourceContent:
    """The tensors of a source, and what its files state about the model."""

    format: str
    tensors: Mapping[str, tuple[Hashable, Tensor]]
    key_of: Callable[[Weight], Hashable]
    is_turned: Callable[[Weight], bool] = lambda row: row.transposed
    task: Mapping[str, Tensor] = field(default_factory=dict)
    saved: Mapping = field(default_factory=dict)
