"""Models of the class that a source was saved for."""

from collections.abc import Callable

from roformer_keras.errors import ConfigurationError


def load_tokenizer(source, vocabulary=None):
    from roformer_keras.text.tokenizer import RoFormerTokenizer

    return RoFormerTokenizer.from_preset(source, vocabulary=vocabulary)


def set_vocabulary(model, source, vocabulary):
    """The model, with the tokenizer of another vocabulary if one is given."""
    if vocabulary is not None:
        model.tokenizer = load_tokenizer(source, vocabulary)
    return model


def load_sim(source, config=None, vocabulary=None):
    """A `RoFormerSim`."""
    from roformer_keras.models import RoFormerSim

    model = RoFormerSim.from_preset(source, config=config)
    return set_vocabulary(model, source, vocabulary)


def load_paraphraser(source, config=None, vocabulary=None):
    """A `RoFormerSim`, or what was exported of one."""
    from roformer_keras.generation.served import ServedGenerator, is_served_generator

    if is_served_generator(source):
        check_no_files(source, config, vocabulary)
        return ServedGenerator(source)
    return load_sim(source, config, vocabulary)


def load_encoder(source, config=None, dtype=None):
    """A `RoFormerBackbone`, with the pooler if the source has one."""
    from roformer_keras.conversion.convert import pooler_activation_of
    from roformer_keras.models import RoFormerBackbone
    from roformer_keras.models.preset import opened_checkpoint

    with opened_checkpoint(source, config) as checkpoint:
        has_pooler = "pooler" in checkpoint.heads
        pooler = pooler_activation_of(checkpoint) if has_pooler else None
        return RoFormerBackbone.from_preset(
            checkpoint, config=config, pooler_activation=pooler, dtype=dtype
        )


def load_sentence_encoder(source, max_length, config, vocabulary, dtype=None):
    """A fine-tuned `RoFormerSentenceEncoder`, or None for another model."""
    from roformer_keras.models.preset import opened_checkpoint
    from roformer_keras.tasks.load import load_model, model_class

    with opened_checkpoint(source, config) as checkpoint:
        if model_class(checkpoint) != "RoFormerSentenceEncoder":
            return None
        check_no_files(source, config, vocabulary)
        return load_model(checkpoint, max_length=max_length, dtype=dtype)


def check_no_files(source, config, vocabulary) -> None:
    """Raises ConfigurationError if files are given for a preset that has its own."""
    if config is not None or vocabulary is not None:
        raise ConfigurationError(
            f"{source} is a model that holds its configuration and its vocabulary",
            hint="leave out config= and vocabulary=",
        )


def load_writer(
    source,
    name=None,
    unilm=False,
    config=None,
    vocabulary=None,
    remark: Callable[[str], object] | None = None,
):
    """A model that writes, of the class that its source was saved for.

    Args:
        source: as `from_preset` takes it.
        name: class to load, or None.
        unilm: bool. Whether attention is UniLM's.
        config, vocabulary: files that the source lacks, or None.
        remark: called with a sentence if the class is a guess.
    """
    from roformer_keras import models
    from roformer_keras.generation.served import ServedGenerator, is_served_generator
    from roformer_keras.tasks.load import model_class

    if is_served_generator(source):
        check_no_files(source, config, vocabulary)
        if name is not None or unilm:
            raise ConfigurationError(
                f"{source} is an exported model", hint="leave out model= and unilm="
            )
        return ServedGenerator(source)
    found = model_class(source, config)
    if found == "RoFormerSeq2Seq":
        check_no_files(source, config, vocabulary)
        if name is not None or unilm:
            raise ConfigurationError(
                f"{source} is an encoder-decoder", hint="leave out model= and unilm="
            )
        return models.RoFormerSeq2Seq.from_preset(source)
    if name is None:
        name = "RoFormerSim" if found == "RoFormerSim" else "RoFormerCausalLM"
        is_guess = found not in ("RoFormerSim", "RoFormerCausalLM") and not unilm
        if is_guess and remark is not None:
            remark(
                f"{source} does not say that it was trained to write; taking it for a "
                "RoFormerCausalLM (change it with --model or --unilm)"
            )
    changes = {"attention": "unilm"} if unilm and name == "RoFormerCausalLM" else {}
    model = getattr(models, name).from_preset(source, config=config, **changes)
    return set_vocabulary(model, source, vocabulary)
