"""Where a training stands, in one file that is replaced in one step."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import keras
import numpy as np
import safetensors
import safetensors.numpy

from roformer_keras.conversion.outputs import replacing
from roformer_keras.errors import CheckpointError, ConfigurationError

__all__ = ["DIVERGED", "assign", "load_facts", "save_state", "variables_of"]

# What to do about a training whose numbers are none.
DIVERGED = (
    "what was saved before is kept; begin in another folder, with a lower learning "
    "rate or a longer rise to it"
)

# Beside the numbers, the rest as the bytes of its JSON.
_FACTS = "facts"


def variables_of(trainer: keras.Model, frozen=()) -> dict[str, list]:
    """The variables that a state holds, in groups; `frozen` ones are not among them."""
    left_out = {id(variable) for variable in frozen}
    return {
        "model": [v for v in trainer.variables if id(v) not in left_out],
        "optimizer": list(trainer.optimizer.variables),
    }


def save_state(path: Path, variables: Mapping[str, Sequence], facts: Mapping) -> None:
    """Writes variables and facts, whole or not at all.

    Args:
        path: of the file.
        variables: groups of Keras variables.
        facts: JSON values.

    Raises:
        ConfigurationError: a weight of the model is no finite number.
        OutputError: it cannot be written; in either case what was there stays.
    """
    arrays = {
        f"{group}/{number}": np.asarray(variable.numpy())
        for group, members in variables.items()
        for number, variable in enumerate(members)
    }
    for number, variable in enumerate(variables["model"]):
        if not np.isfinite(arrays[f"model/{number}"]).all():
            raise ConfigurationError(
                f"weights must be finite, {variable.path} is not any more: {DIVERGED}"
            )
    paths = {group: _names(members) for group, members in variables.items()}
    text = json.dumps({**facts, "paths": paths}, ensure_ascii=False)
    arrays[_FACTS] = np.frombuffer(text.encode(), "uint8")
    with replacing(path, overwrite=True) as partial:
        safetensors.numpy.save_file(arrays, partial)


def load_facts(path: Path) -> dict:
    """The facts that `save_state` wrote, without the numbers.

    Raises:
        CheckpointError: the file is damaged.
    """
    with _opened(path) as file:
        return json.loads(file.get_tensor(_FACTS).tobytes())


def assign(path: Path, variables: Mapping[str, Sequence]) -> None:
    """Gives variables the numbers of a state, one after the other.

    Raises:
        CheckpointError: the file is damaged, or of other variables.
    """
    paths = load_facts(path)["paths"]
    with _opened(path) as file:
        for group, members in variables.items():
            if _names(members) != paths.get(group):
                raise CheckpointError(
                    f"the saved state must be of the same {group}; another version of "
                    "a package names its variables differently: begin again, with the "
                    "last preset as source"
                )
            for number, variable in enumerate(members):
                variable.assign(file.get_tensor(f"{group}/{number}"))


@contextmanager
def _opened(path):
    try:
        with safetensors.safe_open(path, "numpy") as file:
            yield file
    except (
        OSError,
        json.JSONDecodeError,
        UnicodeDecodeError,
        safetensors.SafetensorError,
    ) as error:
        raise CheckpointError(
            f"{path} must be a saved state of a training, and is damaged: {error}; "
            "remove it to begin again"
        ) from error


def _names(variables):
    """Paths without the numbers that Keras gives to all generators of a process."""
    return [re.sub(r"seed_generator_\d+", "seed_generator", v.path) for v in variables]
