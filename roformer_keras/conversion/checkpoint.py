"""What a source holds, and what of it a model takes: strictly."""

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from roformer_keras.config import RoFormerConfig
from roformer_keras.conversion.mapping import (
    HEADS,
    SEGMENT_EMBEDDINGS,
    Weight,
    head_of,
    weight_table,
)
from roformer_keras.errors import CheckpointError, VocabularyError

__all__ = ["Checkpoint", "Tensor", "weights_to_read"]


@dataclass(frozen=True)
class Tensor:
    """One tensor of a source, not read yet.

    Args:
        shape: tuple of int.
        dtype: str, NumPy's name, or `"bfloat16"`.
        read: reads it, verifying the checksum where the format has one.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]

    def transposed(self) -> "Tensor":
        return Tensor(self.shape[::-1], self.dtype, lambda: self.read().T)


@dataclass(frozen=True)
class Checkpoint:
    """What a source holds.

    Args:
        label: str. How messages name the source.
        format: str. `"bert4keras"`, `"tf_object"`, `"hdf5"`, `"keras_weights"`,
            `"keras"`, `"preset"`, `"safetensors"` or `"model"`.
        config: `RoFormerConfig` of the stored tensors.
        tensors: dict of checkpoint name to `Tensor`.
        vocabulary: tuple of str, or None where the source has none.
        model: str or None. The class that was saved, where the source says.
        model_options: dict. Arguments of that class beside the backbone.
        tokenizer: dict. Arguments of the tokenizer that was saved.
        bert_config: dict or None. `bert_config.json` as it was found.
        unexpected: names that belong to no RoFormer with this configuration.
        training_state: names that belong to an optimizer or a counter.
    """

    label: str
    format: str
    config: RoFormerConfig
    tensors: Mapping[str, Tensor]
    vocabulary: tuple[str, ...] | None = None
    model: str | None = None
    model_options: Mapping = field(default_factory=dict)
    tokenizer: Mapping = field(default_factory=dict)
    bert_config: Mapping | None = None
    unexpected: tuple[str, ...] = ()
    training_state: tuple[str, ...] = ()

    @property
    def heads(self) -> tuple[str, ...]:
        """Heads of which the source has at least one tensor."""
        found = {head_of(name) for name in self.tensors}
        return tuple(head for head in HEADS if head in found)

    def weight(self, name: str) -> np.ndarray:
        """The value of a tensor that must be a weight.

        Raises:
            CheckpointError: it is not of a float type, or cannot be read.
        """
        value = self.tensors[name].read()
        if value.dtype.kind != "f" and value.dtype.name != "bfloat16":
            raise CheckpointError(
                f"{self.label}: {name} must be a float tensor to be a weight, got "
                f"{value.dtype.name}"
            )
        return value


def weights_to_read(
    checkpoint: Checkpoint,
    config: RoFormerConfig,
    heads: Iterable[str],
    ignore: Iterable[str] = (),
    initialize_heads: bool = False,
) -> tuple[Weight, ...]:
    """The rows of the weight table that a model takes from a checkpoint; strict.

    Args:
        checkpoint: `Checkpoint`.
        config: of the model, with the vocabulary size of the checkpoint.
        heads: the model's heads. Heads that only the checkpoint has are no error, and
            neither is the segment embedding of a model that shares the tokens'.
        ignore: patterns of unexpected names to pass over, such as `"dense_*"`; one
            str is one pattern.
        initialize_heads: bool. Whether heads that the checkpoint lacks stay fresh.

    Raises:
        CheckpointError: a tensor is missing, unexpected or mis-shaped; names each
            with what was expected.
        VocabularyError: vocabulary and embedding differ in size.
    """
    label, tensors = checkpoint.label, checkpoint.tensors
    found_type = checkpoint.config.model_type
    if config.model_type != found_type:
        raise CheckpointError(
            f"{label} holds {found_type} weights, which do not fit a "
            f"{config.model_type} model: leave model_type out, or take the checkpoint "
            "that you mean"
        )
    rows = weight_table(config, heads)
    ignore = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    known = {row.name for row in rows}
    if config.shared_segment_embeddings:
        known.add(SEGMENT_EMBEDDINGS)
    unexpected = [
        name
        for name in tensors
        if name not in known
        and (name in checkpoint.unexpected or head_of(name) is None)
        and not any(fnmatch.fnmatchcase(name, pattern) for pattern in ignore)
    ]
    problems = [f"unexpected {name} {tensors[name].shape}" for name in unexpected]
    if unexpected:
        problems[-1] += (
            "; if these are layers of your own, name them in ignore=, for example "
            f"ignore=({unexpected[0]!r},)"
        )
    taken, absent_heads = [], {}
    for row in rows:
        if row.name in tensors:
            taken.append(row)
            if tensors[row.name].shape != row.checkpoint_shape:
                problems.append(
                    f"{row.name} has shape {tensors[row.name].shape}, expected "
                    f"{row.checkpoint_shape}"
                )
        elif row.head is not None and row.head not in checkpoint.heads:
            if not row.optional:
                absent_heads.setdefault(row.head, []).append(row)
        elif not row.optional:
            problems.append(f"missing {row.name} {row.checkpoint_shape}")
    for head, absent in absent_heads.items() if not initialize_heads else ():
        problems.append(
            f"no {head} head: missing "
            + ", ".join(f"{row.name} {row.checkpoint_shape}" for row in absent)
            + "; initialize_heads=True begins it afresh"
        )
    if problems:
        shown = "\n  ".join(problems[:12])
        more = f"\n  and {len(problems) - 12} more" if len(problems) > 12 else ""
        raise CheckpointError(
            f"{label} does not fit {config.model_type} with {config.num_layers} "
            f"layers, hidden size {config.hidden_dim} and vocabulary "
            f"{config.vocabulary_size}:\n  {shown}{more}"
        )
    if (
        checkpoint.vocabulary is not None
        and len(checkpoint.vocabulary) != config.vocabulary_size
    ):
        raise VocabularyError(
            f"{label}: the vocabulary has {len(checkpoint.vocabulary)} tokens but the "
            f"embedding {config.vocabulary_size} rows; they must be of one model "
            "(characters 12,000, words 50,000 in the released ones)"
        )
    return tuple(taken)
