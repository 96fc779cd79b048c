"""The operations that a network is written with, for any runtime."""

import abc
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Generic, TypeAlias, TypeVar

import numpy as np

from roformer_keras.base.types import Shape, TensorLike

# What stands for a tensor in the graph of a runtime.
Tensor = TypeVar("Tensor")
# An argument that becomes a constant of the graph.
Constant: TypeAlias = np.ndarray | np.generic
# An end that is after the last element of every axis.
_END = 2**31 - 1


class Graph(abc.ABC, Generic[Tensor]):
    """Writes one model.

    Tensors are of shape `(rows, length, features)` where nothing else is said.
    """

    # The types of tensors.
    tensors: tuple[type, ...]
    # By their names in Keras: functions of the graph and a tensor.
    activations: ClassVar[Mapping[str, Callable[..., TensorLike]]]
    # Names of the operations on elements -> those of the runtime.
    names: ClassVar[Mapping[str, str]]

    @abc.abstractmethod
    def finish(self) -> TensorLike:
        """The model, as the runtime takes it."""

    @abc.abstractmethod
    def save(self, path: Path) -> None:
        """Writes the model to a file."""

    # === Inputs and outputs ===

    @abc.abstractmethod
    def input(self, name: str, dtype: str, shape: Shape) -> Tensor:
        """An input; None is an axis of any size."""

    @abc.abstractmethod
    def output(self, name: str, x: Tensor, shape: Shape) -> None:
        """A float32 output of such a shape."""

    # === Operations on elements ===

    @abc.abstractmethod
    def node(self, kind: str, *inputs: Tensor | Constant) -> Tensor:
        """An operation of the runtime."""

    def _elements(self, name: str, *inputs: Tensor | Constant) -> Tensor:
        return self.node(self.names[name], *inputs)

    add = functools.partialmethod(_elements, "add")
    multiply = functools.partialmethod(_elements, "multiply")
    divide = functools.partialmethod(_elements, "divide")
    subtract = functools.partialmethod(_elements, "subtract")
    absolute = functools.partialmethod(_elements, "absolute")
    maximum = functools.partialmethod(_elements, "maximum")
    root = functools.partialmethod(_elements, "root")
    cosine = functools.partialmethod(_elements, "cosine")
    sine = functools.partialmethod(_elements, "sine")
    equal = functools.partialmethod(_elements, "equal")
    less_equal = functools.partialmethod(_elements, "less_equal")
    logical_and = functools.partialmethod(_elements, "logical_and")
    logical_or = functools.partialmethod(_elements, "logical_or")
    logical_not = functools.partialmethod(_elements, "logical_not")
    where = functools.partialmethod(_elements, "where")

    # === Weights ===

    @abc.abstractmethod
    def table(self, embeddings: np.ndarray) -> Tensor:
        """Embeddings `(tokens, features)`, for `take` and `score`."""

    @abc.abstractmethod
    def take(self, table: Tensor, ids: Tensor) -> Tensor:
        """Rows of a `table` by their numbers."""

    @abc.abstractmethod
    def score(self, x: Tensor, table: Tensor) -> Tensor:
        """`x` times the transposed `table`."""

    @abc.abstractmethod
    def linear(
        self, x: Tensor, kernel: np.ndarray, bias: np.ndarray | None = None
    ) -> Tensor:
        """`x` times a kernel `(features, outputs)`, plus a bias."""

    @abc.abstractmethod
    def layer_norm(
        self, x: Tensor, gamma: np.ndarray, beta: np.ndarray, epsilon: float
    ) -> Tensor:
        """Layer normalisation over the last axis."""

    # === Axes ===

    @abc.abstractmethod
    def positions(self, x: Tensor) -> Tensor:
        """0, 1, 2, ... along the second axis: float32 `(1, length)`."""

    @abc.abstractmethod
    def reduced(self, kind: str, x: Tensor, axis: int) -> Tensor:
        """A sum, maximum or mean over an axis, which stays with the size 1."""

    @abc.abstractmethod
    def cumsum(self, x: Tensor, axis: int) -> Tensor:
        """The sum up to each element of an axis."""

    @abc.abstractmethod
    def softmax(self, x: Tensor) -> Tensor:
        """Over the last axis."""

    @abc.abstractmethod
    def product(self, x: Tensor, y: Tensor, transposed: bool = False) -> Tensor:
        """The product of two computed tensors; of `y` transposed, if asked for."""

    @abc.abstractmethod
    def as_float(self, x: Tensor) -> Tensor:
        """Numbers of another type in float32."""

    @abc.abstractmethod
    def expand_dims(self, x: Tensor, axis: int | tuple[int, ...]) -> Tensor:
        """With new axes of size 1, where they are in the result."""

    @abc.abstractmethod
    def reshaped(self, x: Tensor, *sizes: int) -> Tensor:
        """With other sizes: 0 keeps a size, and -1 takes all remaining elements."""

    @abc.abstractmethod
    def concatenated(self, *xs: Tensor, axis: int = -1) -> Tensor:
        """One after the other, along an axis."""

    @abc.abstractmethod
    def joined_axes(self, x: Tensor) -> Tensor:
        """`(groups, rows, length)` to `(groups * rows, length)`."""

    @abc.abstractmethod
    def split_axis(self, x: Tensor, groups: Tensor) -> Tensor:
        """`(groups * rows, 1)` to the first two sizes of `groups`."""

    @abc.abstractmethod
    def moved(self, x: Tensor, *axes: int) -> Tensor:
        """With the axes in another order."""

    @abc.abstractmethod
    def reordered(self, x: Tensor, order: Constant, axis: int) -> Tensor:
        """The elements of an axis in another order; an axis is gone with a number."""

    @abc.abstractmethod
    def sliced(
        self, x: Tensor, start: int, end: int, axis: int, step: int = 1
    ) -> Tensor:
        """The elements of an axis from a start to an end."""

    # === Keys and values, which only OpenVINO keeps ===

    def cached(
        self, name: str, new: Tensor, heads: int, dim: int, rows: Tensor
    ) -> Tensor:
        """Keys or values of all tokens so far: those of before, and the new ones."""
        raise NotImplementedError

    def attention(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Softmax attention to keys and values that are kept.

        The mask is added to the scores. The query is already divided.
        """
        raise NotImplementedError

    # === The same for all runtimes ===

    def total(self, x: Tensor, axis: int) -> Tensor:
        """The sum over an axis, which stays with the size 1."""
        return self.reduced("sum", x, axis)

    def largest(self, x: Tensor, axis: int) -> Tensor:
        """The maximum over an axis, which stays with the size 1."""
        return self.reduced("max", x, axis)

    def rms_norm(self, x: Tensor, epsilon: float) -> Tensor:
        """`x`, divided by the root of its mean square over the last axis."""
        square = self.reduced("mean", self.multiply(x, x), -1)
        return self.divide(x, self.root(self.add(square, np.float32(epsilon))))

    def rotated(self, x: Tensor, angles: tuple[Tensor, Tensor], dim: int) -> Tensor:
        """Rotates pairs of features (i, i + dim / 2): `(rows, heads, length, dim)`."""
        # In this form OpenVINO computes it as one operation.
        first, second = (
            self.sliced(x, 0, dim // 2, 3),
            self.sliced(x, dim // 2, _END, 3),
        )
        minus = np.full((1, 1, 1, 1), -1, "float32")
        turned = self.concatenated(self.multiply(second, minus), first)
        cos, sin = (self.expand_dims(table, 1) for table in angles)
        return self.add(self.multiply(x, cos), self.multiply(turned, sin))

    def angles(
        self, positions: Tensor, frequencies: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        """Cosines and sines of `(rows, length)` times frequencies, on a last axis."""
        angles = self.multiply(self.expand_dims(positions, 2), frequencies)
        return self.cosine(angles), self.sine(angles)

    def item(self, x: Tensor, number: int, axis: int) -> Tensor:
        """One element of an axis, which is gone."""
        return self.reordered(x, np.int64(number), axis)

    def token(self, x: Tensor, at: int) -> Tensor:
        """One token of each row, `(rows, features)`: the first is 0, the last -1."""
        return self.item(x, at, 1)

    def neighbours(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Every second row of `(rows, features)`: from the first; from the second."""
        return self.sliced(x, 0, _END, 0, 2), self.sliced(x, 1, _END, 0, 2)

    def shifted(self, x: Tensor) -> Tensor:
        """The elements of the second axis one place earlier, and 0 at the end."""
        zero = self.multiply(self.sliced(x, 0, 1, 1), np.float32(0))
        return self.concatenated(self.sliced(x, 1, _END, 1), zero, axis=1)

    def heads(self, x: Tensor, heads: int) -> Tensor:
        """`(rows, length, heads * dim)` to `(rows, heads, length, dim)`."""
        return self.moved(self.reshaped(x, 0, 0, heads, -1), 0, 2, 1, 3)

    def joined(self, x: Tensor, width: int) -> Tensor:
        """`(rows, heads, length, dim)` to `(rows, length, width)`."""
        return self.reshaped(self.moved(x, 0, 2, 1, 3), 0, 0, width)
