"""The saved state of a training: one file, which is replaced in one step."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import keras
import numpy as np
import safetensors
import safetensors.numpy

from roformer_keras.base.checks import check_file
from roformer_keras.base.errors import CheckpointError, ConfigurationError
from roformer_keras.io.atomic import replacing

# Advice for a loss or a weight that is no longer finite.
DIVERGED = (
    "what was saved before is kept; start again in another folder, with a lower "
    "learning rate or a longer warmup"
)

_DAMAGE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    RecursionError,
    safetensors.SafetensorError,
)


def state_variables(trainer: keras.Model, frozen: Sequence = ()) -> dict[str, list]:
    """The variables that a state holds, in groups, without those in `frozen`."""
    left_out = {id(variable) for variable in frozen}
    return {
        "model": [v for v in trainer.variables if id(v) not in left_out],
        "optimizer": list(trainer.optimizer.variables),
    }


def save_state(
    path: Path, variables: Mapping[str, Sequence], metadata: Mapping
) -> None:
    """Replaces a state, in one step."""
    arrays = {
        f"{group}/{number}": np.asarray(variable.numpy())
        for group, members in variables.items()
        for number, variable in enumerate(members)
    }
    for number, variable in enumerate(variables["model"]):
        if not np.isfinite(arrays[f"model/{number}"]).all():
            raise ConfigurationError(
                f"weights must be finite, {variable.path} is not: {DIVERGED}"
            )
    paths = {group: _paths(members) for group, members in variables.items()}
    text = json.dumps({**metadata, "paths": paths}, ensure_ascii=False)
    with replacing(path, overwrite=True) as partial:
        safetensors.numpy.save_file(arrays, partial, {"metadata": text})


def load_metadata(path: Path) -> dict:
    """A state's metadata, with the paths of its variables by group as `"paths"`."""
    with _open(path) as file:
        metadata = json.loads(file.metadata()["metadata"])
        if not isinstance(metadata["paths"], dict):
            raise ValueError("paths must be an object")
        return metadata


def load_variables(path: Path, variables: Mapping[str, Sequence]) -> None:
    """Assigns the values of a state to variables."""
    paths = load_metadata(path)["paths"]
    with _open(path) as file:
        for group, members in variables.items():
            if _paths(members) != paths.get(group):
                raise CheckpointError(
                    f"{path} must hold the variables of this {group}, but holds "
                    "other variables. Another version of a package names variables "
                    "differently: start again, with the last preset as source"
                )
            for number, variable in enumerate(members):
                variable.assign(file.get_tensor(f"{group}/{number}"))


@contextmanager
def _open(path):
    check_file(path)
    try:
        with safetensors.safe_open(path, "numpy") as file:
            yield file
    except CheckpointError:
        raise
    except _DAMAGE as error:
        raise CheckpointError(
            f"{path} must be the saved state of a training, and is damaged: {error}; "
            "remove it to start again"
        ) from error


def _paths(variables):
    """Paths without the numbers that Keras gives to all generators of a process."""
    return [re.sub(r"seed_generator_\d+", "seed_generator", v.path) for v in variables]
