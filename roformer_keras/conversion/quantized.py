"""Layers that Keras quantized to int8 or int4: how files hold them.

A preset or `.keras` file of a quantized model holds integers and their scales. Readers
see float weights in their place, so every format can be written; `from_preset` gives a
model the integers again.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from roformer_keras.errors import CheckpointError
from roformer_keras.io.tensor import Tensor

MODES = ("int8", "int4")


@dataclasses.dataclass(frozen=True)
class QuantizedLayer:
    """One quantized layer.

    Args:
        mode: `"int8"` or `"int4"`.
        config: dict or None. What Keras serializes of the `QuantizationConfig`.
        variables: names of the layer's variables, in the order of Keras's files.
        tensors: dict of these names to their stored `Tensor`.
    """

    mode: str
    config: Mapping[str, Any] | None
    variables: tuple[str, ...]
    tensors: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_dict(cls, fields: Any, what: str) -> "QuantizedLayer":
        """The layer that `to_dict` wrote; errors call it `what`."""
        if isinstance(fields, dict) and fields.keys() == {"mode", "config", "names"}:
            mode, config, names = (fields[key] for key in ("mode", "config", "names"))
            if (
                mode in MODES
                and (config is None or isinstance(config, dict))
                and isinstance(names, list)
                and all(isinstance(name, str) for name in names)
                and names[:1] in (["kernel"], ["embeddings"])
                and len(set(names)) == len(names)
            ):
                return cls(mode, config, tuple(names))
        raise CheckpointError(
            f"{what} must be a layer quantized to {' or '.join(MODES)}, got "
            f"{str(fields)[:80]}: save the model again"
        )

    def to_dict(self) -> dict[str, Any]:
        config = None if self.config is None else dict(self.config)
        return {"mode": self.mode, "config": config, "names": list(self.variables)}

    @property
    def weight_name(self) -> str:
        """The name of the quantized variable."""
        return self.variables[0]

    @property
    def added(self) -> tuple[str, ...]:
        """Names of the variables that the layer has only since it is quantized."""
        return tuple(name for name in self.variables[1:] if name != "bias")

    def datasets(self, path: str, dataset: str) -> dict[str, str]:
        """Names of the variables in a file, by name of the variable.

        Args:
            path: str. The layer's.
            dataset: str. Name of the weight, as `Weight` has it.
        """
        if not dataset.endswith("/0"):
            return {name: f"{path}/{name}" for name in self.variables}
        first = dataset.removesuffix("0")
        return {name: f"{first}{i}" for i, name in enumerate(self.variables)}

    def weight(self, what: str, shape: tuple[int, int] | None = None) -> Tensor:
        """The float weight, as Keras computes it from integers and scales.

        Args:
            what: str. What errors call it.
            shape: of the weight. If not given, it is inferred from integers and scales,
                and one column too many for an int4 embedding of an odd width.
        """
        stored, scale = (self._tensor(i, what) for i in (0, self._index_of_scale()))
        if shape is None:
            shape = (stored.shape[0], self._columns(stored, scale))
        is_packed = self.mode == "int4"
        expected = (shape[0], (shape[1] + 1) // 2) if is_packed else shape
        if stored.shape != expected or stored.dtype != "int8":
            raise CheckpointError(
                f"{what} must be int8 {expected}, got {stored.dtype} {stored.shape}"
            )

        def read():
            try:
                return self._dequantized(shape)
            except (KeyError, ValueError, IndexError, TypeError) as error:
                raise CheckpointError(
                    f"{what}: its scales do not fit {shape} ({error}): save the model "
                    "again"
                ) from error

        return Tensor(shape, self.mode, read)

    def _columns(self, stored, scale):
        """Columns of the weight, as far as integers and scales say."""
        if self.mode == "int8":
            return stored.shape[-1]
        if self.weight_name == "kernel":
            return scale.shape[-1]
        # An embedding has a scale for each row.
        groups = self.tensors.get("g_idx")
        return 2 * stored.shape[-1] if groups is None else groups.shape[0]

    def _tensor(self, index, what):
        try:
            return self.tensors[self.variables[index]]
        except (KeyError, IndexError) as error:
            raise CheckpointError(
                f"{what} is quantized, but lacks its integers or scales: save the "
                "model again"
            ) from error

    def _index_of_scale(self):
        name = f"{self.weight_name}_scale"
        return self.variables.index(name) if name in self.variables else -1

    def _dequantized(self, shape):
        name = self.weight_name
        values = {key: tensor.read() for key, tensor in self.tensors.items()}
        integers, scale = values[name], values[f"{name}_scale"].astype("float32")
        if self.mode == "int4":
            integers = _unpacked(integers, shape[1])
        integers = integers.astype("float32")
        if "g_idx" not in values:
            # Keras multiplies by the scale to get integers.
            return integers / (scale if name == "kernel" else scale[:, None])
        # Groups lie along the inputs of a kernel, and along a token's vector.
        axis = 0 if name == "kernel" else 1
        groups = values["g_idx"].astype("int64")
        zero = values[f"{name}_zero"].astype("float32")
        return (integers - zero.take(groups, axis)) * scale.take(groups, axis)


def _unpacked(packed: np.ndarray, columns: int) -> np.ndarray:
    """Two integers from -8 to 7 of each byte, the lower half first."""
    low, high = (packed << 4) >> 4, packed >> 4
    return np.stack([low, high], axis=-1).reshape(len(packed), -1)[:, :columns]
