"""Types that many signatures share."""

from typing import Any, Literal, TypeAlias, get_args

# A tensor of the backend, a symbolic tensor or an array; Keras has no common type.
TensorLike: TypeAlias = Any

# An argument of a user, before its check.
Unchecked: TypeAlias = object

# None is an unknown length.
Shape: TypeAlias = tuple[int | None, ...]

# Texts or labels in any container: lists, arrays, pandas, tf.data, Keras's datasets.
Texts: TypeAlias = Any

# 0 for no progress bar, 1 for one, "auto" for one on a terminal.
Verbose: TypeAlias = int | str

# One process of this machine, or the processes of a Ray cluster.
RunsOn = Literal["keras", "ray"]

# Engines for the steps of a generation; the first one is the default. With `int8`,
# weights are stored in 8 bits.
Engine = Literal["auto", "keras", "openvino", "openvino-int8"]
ENGINES = get_args(Engine)
EngineOrRay = Literal[Engine, "ray"]

# Whether the first row of a table names its columns.
FileHeader = Literal["first", "none"]
# Encodings of text files; `auto` finds a byte-order mark, or tries UTF-8 and GB18030.
FileEncoding = Literal["utf-8", "gbk", "gb18030", "big5", "utf-16", "auto"]
