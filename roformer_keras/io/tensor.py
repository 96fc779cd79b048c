"""Tensors of a file that are read on request."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from roformer_keras.base.errors import CheckpointError, refuse
from roformer_keras.io.blob import MAX_NAME

# The largest released checkpoint has 600, two thirds of which belong to the optimizer.
MAX_TENSORS = 10_000


@dataclass(frozen=True)
class Tensor:
    """An unread tensor of a source."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]

    def read_weight(self, what: str) -> np.ndarray:
        """The value, which must be finite floats; errors call it `what`."""
        value = self.read()
        refuse(
            value.dtype.kind != "f" and value.dtype.name != "bfloat16",
            f"{what} must be a float tensor to be a weight, got {value.dtype.name}",
            error=CheckpointError,
        )
        # Models are float32, in which larger numbers are infinite.
        with np.errstate(over="ignore"):
            is_finite = np.isfinite(value.astype("float32", copy=False)).all()
        refuse(
            not is_finite,
            f"{what} must hold finite numbers, got NaN, infinity or numbers "
            "beyond float32's 3.40282e+38: the file is "
            "damaged, or a training that diverged was saved",
            error=CheckpointError,
        )
        return value

    def transposed(self) -> "Tensor":
        return Tensor(self.shape[::-1], self.dtype, lambda: self.read().T)

    def with_rows_of_first(self) -> "Tensor":
        """A tensor of the same shape whose rows all equal the first row."""

        def read():
            return np.repeat(self.read()[:1], self.shape[0], axis=0)

        return Tensor(self.shape, self.dtype, read)

    def first_rows(self, count: int) -> "Tensor":
        shape = (count, *self.shape[1:])
        return Tensor(shape, self.dtype, lambda: self.read()[:count])


def check_names(names: Collection[str] | Collection[bytes], label: str) -> None:
    """Checks the names of a file's tensors before they are used."""
    longest = max(map(len, names), default=0)
    refuse(
        len(names) > MAX_TENSORS or longest > MAX_NAME,
        f"{label} must have at most {MAX_TENSORS:,} tensors, with names of at most "
        f"{MAX_NAME:,} characters, got {len(names):,} and {longest:,}: it is no "
        "checkpoint of a RoFormer",
        error=CheckpointError,
    )


def numpy_dtype(name: str) -> np.dtype:
    """The little-endian NumPy type of a name; ml_dtypes has `"bfloat16"`."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name).newbyteorder("<")
