"""Types that many signatures share."""

from typing import Any, TypeAlias

# A tensor of the backend, a symbolic one or an array: Keras has no type for them all.
TensorLike: TypeAlias = Any

# None is a length that is not known.
Shape: TypeAlias = tuple[int | None, ...]

# Texts or labels in any container: lists, arrays, pandas, tf.data, or what Keras takes.
Texts: TypeAlias = Any

# 0 for no progress bar, 1 for one, "auto" for one on a terminal.
Verbose: TypeAlias = int | str
