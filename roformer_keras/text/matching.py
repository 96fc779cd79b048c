"""Checks that a model fits a tokenizer and ids."""

import numpy as np

from roformer_keras.base.config import RoFormerConfig
from roformer_keras.base.errors import ConfigurationError


def check_vocabulary(model, tokenizer):
    """Raises ConfigurationError unless model and tokenizer have the same vocabulary."""
    if model.config.vocabulary_size != tokenizer.vocabulary_size:
        raise ConfigurationError(
            f"model and tokenizer must be of one vocabulary; the model has "
            f"{model.config.vocabulary_size} tokens, the tokenizer "
            f"{tokenizer.vocabulary_size}"
        )


def check_match(model, tokenizer):
    """Raises ConfigurationError unless the ids of texts suffice for the model."""
    check_vocabulary(model, tokenizer)
    check_inputs(model)


def check_inputs(model):
    """Raises ConfigurationError if a model needs more inputs than ids of texts."""
    others = sorted(set(model.input) - {"token_ids", "segment_ids"})
    if others:
        raise ConfigurationError(
            f"texts give no {' and no '.join(others)}, which this model takes"
        )


def check_ids(inputs: dict, config: RoFormerConfig) -> None:
    """Raises ConfigurationError unless arrays hold ids of the model's vocabulary."""
    segments = config.num_segments
    if config.shared_segment_embeddings:
        segments = config.vocabulary_size
    for name, array in inputs.items():
        is_ids = name.endswith(("token_ids", "segment_ids"))
        if not is_ids or not isinstance(array, np.ndarray):
            continue
        if not len(array):
            raise ConfigurationError(f"{name} must have at least one row, got none")
        is_segment = name.endswith("segment_ids")
        highest = (segments if is_segment else config.vocabulary_size) - 1
        is_wrong = (array < 0) | (array > highest) | (array != np.floor(array))
        if is_wrong.any():
            raise ConfigurationError(
                f"{name} must be integers from 0 to {highest}, got {array[is_wrong][0]}"
            )
