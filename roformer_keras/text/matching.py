"""Whether model, configuration and tokenizer belong together."""

from roformer_keras.errors import ConfigurationError

__all__ = ["check_match", "check_vocabulary", "config_from"]


def config_from(cls, config, fields):
    """The configuration that a model is given, whole or by its fields.

    Args:
        cls: class of the configuration.
        config: one of that class, or None.
        fields: dict of its fields; empty with a `config`.

    Raises:
        ConfigurationError: both are given, or a field breaks its rule.
    """
    if config is None:
        return cls.from_dict(fields)
    if fields:
        raise ConfigurationError(
            "give a config or its fields as keyword arguments, got both a config and "
            f"{next(iter(fields))}: use config.replace(...)"
        )
    return config


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
    others = sorted(set(model.input) - {"token_ids", "segment_ids"})
    if others:
        raise ConfigurationError(
            f"texts give no {' and no '.join(others)}, which this model takes"
        )
