"""The content of a source, and the strict check before a model loads it.

Loading a model takes five steps; nothing is built before the checkpoint fits.

    with open_checkpoint(source) as checkpoint:
        config = checkpoint.config_for("RoFormerMaskedLM")
        rows = weights_to_read(checkpoint, config, model_heads(name, config))
        model = RoFormerMaskedLM.from_roformer_config(config)
        for row in rows:
            value = checkpoint.weight(row.name)
            variables[row.path].assign(value.T if row.transposed else value)

A task loads its backbone in this way, and then its head, whose shapes only the built
model knows: `weights_to_read(checkpoint, config, task_shapes={path: shape, ...})`.
To save a model, make a `Checkpoint` of its variables, by the rows of `weight_table` and
`task_rows`, and pass it to `convert.save`.
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roformer_keras.base.checks import as_names
from roformer_keras.base.config import (
    MODEL_FIELDS,
    RoFormerConfig,
    config_for_model,
)
from roformer_keras.base.errors import CheckpointError, Hint, VocabularyError, refuse
from roformer_keras.conversion.weights import (
    HEADS,
    OUTPUT_EMBEDDINGS,
    POSITION_EMBEDDINGS,
    SEGMENT_EMBEDDINGS,
    TASK_PREFIX,
    WORD_EMBEDDINGS,
    Weight,
    head_of,
    task_rows,
    weight_table,
)
from roformer_keras.hub.catalog import CATALOG
from roformer_keras.io.tensor import Tensor
from roformer_keras.io.vocabulary import check_tokens, resolve_level

# The command for a class that is no task.
_COMMANDS = {
    "RoFormerBackbone": "embed",
    "RoFormerCausalLM": "generate",
    "RoFormerMaskedLM": "fill-mask",
    "RoFormerSim": "paraphrase",
}


class KerasFile(NamedTuple):
    """A model that Keras saved."""

    serialized: dict[str, Any]
    weights: Any

    @property
    def backbone(self) -> dict[str, Any]:
        """The configuration of the backbone."""
        config = self.serialized["config"]
        return config["backbone"]["config"] if "backbone" in config else config


@dataclass(frozen=True)
class Checkpoint:
    """The content of a source."""

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
    left_out: tuple[str, ...] = ()
    keras_file: KerasFile | None = None

    @property
    def heads(self) -> tuple[str, ...]:
        """The members of `HEADS` that have at least one tensor here."""
        heads = {head_of(name) for name in self.tensors}
        return tuple(head for head in HEADS if head in heads)

    @property
    def rows(self) -> dict[str, Weight]:
        """The rows of the weight table that have a tensor here, by name."""
        task = {
            name.removeprefix(TASK_PREFIX): tensor.shape
            for name, tensor in self.tensors.items()
            if name.startswith(TASK_PREFIX)
        }
        table = (*weight_table(self.config), *task_rows(task))
        return {row.name: row for row in table if row.name in self.tensors}

    @property
    def is_task(self) -> bool:
        """True if a task was saved: a head other than MLM on a backbone."""
        return self.model is not None and self.model not in MODEL_FIELDS

    def config_for(self, model: str, **changes) -> RoFormerConfig:
        """The configuration with which a model class loads these weights.

        Without a saved model, attention and pooler have the defaults of the class.
        """
        stored_as = "RoFormerBackbone" if self.is_task else self.model
        return config_for_model(model, self.config, stored_as, **changes)

    def weight(self, name: str) -> np.ndarray:
        """The value of a float tensor."""
        return self.tensors[name].read_weight(f"{self.label}: {name}")


def with_own_output(checkpoint: Checkpoint, config: RoFormerConfig) -> Checkpoint:
    """The checkpoint, with a copy of the embedding for an output that is not tied."""
    tensors = checkpoint.tensors
    # The embedding is the whole head of RoFormerV2.
    has_head = "mlm" in checkpoint.heads or config.model_type == "roformer_v2"
    is_new = OUTPUT_EMBEDDINGS not in tensors and WORD_EMBEDDINGS in tensors
    if config.tie_word_embeddings or not (has_head and is_new):
        return checkpoint
    copy = {OUTPUT_EMBEDDINGS: tensors[WORD_EMBEDDINGS]}
    return replace(checkpoint, tensors={**tensors, **copy})


def weights_to_read(
    checkpoint: Checkpoint,
    config: RoFormerConfig,
    heads: Iterable[str] = (),
    ignore: Iterable[str] = (),
    initialize_heads: bool = False,
    task_shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> tuple[Weight, ...]:
    """The rows of the weight table that a model loads from a checkpoint; strict.

    It compares only names and shapes, so it can run before a model is built.
    """
    label, tensors = checkpoint.label, checkpoint.tensors
    kind, found_kind = config.model_type, checkpoint.config.model_type
    refuse(
        kind != found_kind,
        f"{label} holds {found_kind} weights, which do not fit a {kind} model: "
        "leave model_type out, or give another checkpoint",
        error=CheckpointError,
    )
    if config.num_layers > len(tensors):
        # A table of so many layers would be endless.
        raise CheckpointError(
            f"{label}: the configuration has {config.num_layers:,} layers, but there "
            f"are only {len(tensors)} tensors"
        )
    rows = weight_table(config, heads) + task_rows(task_shapes or {})
    known_names = {row.name for row in rows}
    if config.shared_segment_embeddings:
        known_names.add(SEGMENT_EMBEDDINGS)
    strict_heads = (None,) if task_shapes is None else (None, "task")
    ignore = as_names("ignore", ignore)
    unexpected = [
        name
        for name in tensors
        if name not in known_names
        and (
            name in checkpoint.unexpected
            or head_of(name) in strict_heads
            or (name == OUTPUT_EMBEDDINGS and "mlm" in heads)
        )
        and not any(fnmatch.fnmatchcase(name, pattern) for pattern in ignore)
    ]
    problems = [f"unexpected {name:.100} {tensors[name].shape}" for name in unexpected]
    hints = _hints_of(checkpoint, unexpected)
    has_positions = POSITION_EMBEDDINGS in unexpected
    foreign = POSITION_EMBEDDINGS if has_positions else next(iter(unexpected), None)
    rows_to_read = []
    absent_heads: dict[str, list[str]] = {}
    for row in rows:
        if row.name in tensors:
            rows_to_read.append(row)
            problems += _other_shape(row, tensors[row.name])
        elif not row.optional:
            missing = f"missing {row.name} {row.checkpoint_shape}"
            if row.head in HEADS and row.head not in checkpoint.heads:
                absent_heads.setdefault(row.head, []).append(missing)
            else:
                problems.append(missing)
    if absent_heads and not initialize_heads:
        for head, tensors_of in absent_heads.items():
            problems.append(f"no {head} head: {', '.join(tensors_of)}")
        name = model_of(checkpoint)
        hints.append(
            f"it holds a {name}, for `roformer-keras {_COMMANDS.get(name, 'predict')}`"
        )
        hints.append("pass {initialize_heads:True} to start with a new head")
    hint = Hint("; ".join(hints), ignore=foreign) if hints else None
    _check_fit(label, config, problems, hint)
    check_size(checkpoint, config)
    return tuple(rows_to_read)


def _hints_of(checkpoint, unexpected):
    """Hints for unexpected tensors."""
    if POSITION_EMBEDDINGS in unexpected:
        return [
            "these are weights of a BERT, and RoFormer has no table of positions: to "
            "start from the other weights, pass {ignore}"
        ]
    if OUTPUT_EMBEDDINGS in unexpected and not checkpoint.config.tie_word_embeddings:
        return [
            "its output is not tied to the embedding: pass "
            "{tie_word_embeddings:False}, or leave the argument out"
        ]
    hints = []
    if unexpected and checkpoint.format == "keras_weights":
        hints.append("the head of a task is read by load_weights of the built task")
    if unexpected:
        hints.append("if these are your own layers, leave them out, as with {ignore}")
    return hints


def check_shapes(checkpoint: Checkpoint) -> None:
    """Checks that the tensors have the shapes of the checkpoint's own configuration."""
    problems: list[str] = []
    for name, row in checkpoint.rows.items():
        problems += _other_shape(row, checkpoint.tensors[name])
    _check_fit(checkpoint.label, checkpoint.config, problems)


def _other_shape(row, tensor):
    if tensor.shape == row.checkpoint_shape:
        return []
    return [f"{row.name} has shape {tensor.shape}, expected {row.checkpoint_shape}"]


def _check_fit(label, config, problems, hint=None):
    if not problems:
        return
    shown = "\n  ".join(problems[:12])
    omitted = f"\n  and {len(problems) - 12} more" if len(problems) > 12 else ""
    raise CheckpointError(
        f"{label} does not fit {config.model_type} with {config.num_layers} layers, "
        f"hidden size {config.hidden_dim} and vocabulary {config.vocabulary_size}:\n"
        f"  {shown}{omitted}",
        hint=hint,
    )


def check_size(checkpoint: Checkpoint, config: RoFormerConfig) -> None:
    """Raises VocabularyError unless the embedding has a row for each token."""
    tokens = checkpoint.vocabulary
    if tokens is not None and len(tokens) != config.vocabulary_size:
        raise VocabularyError(
            f"{checkpoint.label}: the vocabulary has {len(tokens)} tokens but the "
            f"embedding {config.vocabulary_size} rows; there must be as many, or, in a "
            "folder of Hugging Face, rows padded to a multiple of 8 to 128: use the "
            "vocabulary that the model was trained with"
        )


def check_saved_tokenizer(checkpoint: Checkpoint) -> None:
    """Checks that the vocabulary and the saved options make a tokenizer."""
    if checkpoint.vocabulary is None:
        return
    check_tokens(checkpoint.vocabulary, f"the vocabulary of {checkpoint.label}")
    if (level := checkpoint.tokenizer.get("level")) is not None:
        resolve_level(checkpoint.vocabulary, level)


def model_of(checkpoint: Checkpoint) -> str:
    """The saved class, or else the class inferred from the name and the heads."""
    if checkpoint.model is not None:
        return checkpoint.model
    # Only the name of a released zip, or of a prefix's folder, distinguishes GPT from
    # an encoder.
    path = Path(checkpoint.label)
    unnamed = path.name.startswith("bert_model.ckpt")
    name = path.parent.name if unnamed else path.name
    for entry in CATALOG:
        if name.removesuffix(".zip") == entry.name:
            return entry.model_class
    if "mlm" in checkpoint.heads and re.search(r"(?<![a-z])gpt(?![a-z])", name):
        return "RoFormerCausalLM"
    if checkpoint.heads == ("pooler", "mlm"):
        return "RoFormerSim"
    # Every file has the token embedding, which is the head of RoFormerV2.
    tied = not any(row.head for row in weight_table(checkpoint.config, ("mlm",)))
    if "mlm" in checkpoint.heads or tied:
        return "RoFormerMaskedLM"
    return "RoFormerBackbone"
