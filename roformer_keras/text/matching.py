"""True if a model and a tokenizer belong together."""

from roformer_keras.errors import ConfigurationError


def check_vocabulary(model, tokenizer):
    """Raises ConfigurationError unless the two are of one vocabulary."""
    if model.config.vocabulary_size != tokenizer.vocabulary_size:
        raise ConfigurationError(
            f"model and tokenizer must be of one vocabulary; the model has "
            f"{model.config.vocabulary_size} tokens, the tokenizer "
            f"{tokenizer.vocabulary_size}"
        )


def check_match(model, tokenizer):
    """Raises ConfigurationError unless ids of texts are all that the model takes."""
    check_vocabulary(model, tokenizer)
    check_inputs(model)


def check_inputs(model):
    """Raises ConfigurationError if a model takes more than the ids of texts."""
    others = sorted(set(model.input) - {"token_ids", "segment_ids"})
    if others:
        raise ConfigurationError(
            f"texts give no {' and no '.join(others)}, which this model takes"
        )
