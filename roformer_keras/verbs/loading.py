"""The class in a source, and a model of it; for all verbs."""

import dataclasses
import os
from typing import Any

from roformer_keras.base.errors import ConfigurationError, Hint
from roformer_keras.base.task_registry import task_of
from roformer_keras.hub.catalog import resolve

Path = str | os.PathLike  # type: ignore[type-arg]  # Fields are checked by it.
GENERATOR = "ServedGenerator"


@dataclasses.dataclass(frozen=True)
class LoadedSource:
    """A model of a source.

    Attributes:
        name: str. Its class.
        model: the model.
        tokenizer: of its texts.
        tuned: `FinetunedTask` of a task, else None.
        is_guess: bool. True if the source does not say that it is of this class.
        kept: dict. What verbs have opened for it.
    """

    name: str
    model: Any
    tokenizer: Any
    tuned: Any = None
    is_guess: bool = False
    kept: dict[object, Any] = dataclasses.field(default_factory=dict, compare=False)


def class_of(source: Path, config: Path | None = None) -> str:
    """The name of the class that a source was saved for; loads no weights.

    Raises:
        RoFormerError: the source cannot be read.
    """
    from roformer_keras.conversion.checkpoint import model_of
    from roformer_keras.conversion.reader import open_checkpoint
    from roformer_keras.generation.served import is_served_generator

    if is_served_generator(source):
        return GENERATOR
    with open_checkpoint(resolve(source), config) as checkpoint:
        return model_of(checkpoint)


def load_source(
    source: Path,
    takes: tuple[str, ...] | None = None,
    otherwise: str = "RoFormerBackbone",
    *,
    name: str | None = None,
    config: Path | None = None,
    vocabulary: Path | None = None,
    unilm: bool = False,
    max_length: int | None = None,
    dtype: str | None = None,
) -> LoadedSource:
    """Loads a model of the class that its source was saved for, or of another.

    Args:
        source: as `from_preset` takes it, a folder of `finetune`, or what
            `export_generator` wrote.
        takes: classes that are loaded as such; None for all.
        otherwise: class as which the others are loaded.
        name: class to load a model as, or None.
        config, vocabulary: files that the source lacks, or None.
        unilm: bool. True if attention is UniLM's.
        max_length: int or None. Tokens to which a task cuts texts.
        dtype: of `from_preset`, or None.

    Raises:
        ConfigurationError: files or a class are given for a source that has its own.
        RoFormerError: the source cannot be loaded.
    """
    # Where all sources are loaded as one class, theirs need not be found.
    stored_class = otherwise if takes == () else class_of(source, config)
    takes_it = takes is None or stored_class in takes
    options: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    if takes_it and stored_class == GENERATOR:
        check_no_files(source, config, vocabulary)
        if name is not None or unilm:
            raise ConfigurationError(
                f"{source} is an exported model",
                hint=Hint("leave out {model} and {unilm}"),
            )
    kind = name or (stored_class if takes_it else otherwise)
    if task_of(stored_class) and kind not in (stored_class, "RoFormerBackbone"):
        kinds = (*(takes or ()), kind) if name is None else (kind,)
        names = ("an exported model" if one == GENERATOR else one for one in kinds)
        needed = ", ".join(dict.fromkeys(names))
        raise ConfigurationError(
            f"{source} must hold one of {needed}, got a {stored_class}",
            hint="ask it by roformer-keras predict, or by its own methods",
        )
    if kind == GENERATOR:
        from roformer_keras.generation.served import ServedGenerator

        generator = ServedGenerator(source)
        return LoadedSource(kind, generator, generator.tokenizer)
    if kind == stored_class and task_of(kind):
        check_no_files(source, config, vocabulary)
        if max_length is not None:
            options["max_length"] = max_length
        return load_task(source, **options)
    from roformer_keras import models

    if kind in ("RoFormerBackbone", "RoFormerMaskedLM"):
        tokenizer = load_tokenizer(source, vocabulary)
        if kind == "RoFormerBackbone":
            return LoadedSource(
                kind, load_encoder(source, config, **options), tokenizer
            )
        model = models.RoFormerMaskedLM.from_preset(
            source, config=config, output_activation=None, **options
        )
        return LoadedSource(kind, model, tokenizer)
    if unilm and kind == "RoFormerCausalLM":
        options["attention"] = "unilm"
    model = getattr(models, kind).from_preset(source, config=config, **options)
    if vocabulary is not None:
        model.tokenizer = load_tokenizer(source, vocabulary)
    is_guess = kind != stored_class and name is None and not unilm
    return LoadedSource(kind, model, model.text_tokenizer(), is_guess=is_guess)


def load_task(source: Path, **options: Any) -> LoadedSource:
    """A fine-tuned model; `options` are of `from_preset`."""
    from roformer_keras.tasks.finetuned import load_finetuned

    tuned = load_finetuned(source, **options)
    task = tuned.task
    return LoadedSource(type(task).__name__, task, task.text_tokenizer(), tuned)


def load_tokenizer(source: Path, vocabulary: Path | None = None) -> Any:
    from roformer_keras.text.tokenizer import RoFormerTokenizer

    return RoFormerTokenizer.from_preset(source, vocabulary=vocabulary)


def load_encoder(source: Path, config: Path | None = None, **options: Any) -> Any:
    """A `RoFormerBackbone`, with the pooler if the source has one."""
    from roformer_keras.conversion.convert import pooler_activation_of
    from roformer_keras.models import RoFormerBackbone
    from roformer_keras.models.preset_files import opened_checkpoint

    with opened_checkpoint(source, config) as checkpoint:
        has_pooler = "pooler" in checkpoint.heads
        pooler = pooler_activation_of(checkpoint) if has_pooler else None
        return RoFormerBackbone.from_preset(
            checkpoint, config=config, pooler_activation=pooler, **options
        )


def check_no_files(source: Path, config: Any, vocabulary: Any) -> None:
    """Raises ConfigurationError if files are given for a source that has its own."""
    if config is not None or vocabulary is not None:
        raise ConfigurationError(
            f"{source} is a model that holds its configuration and its vocabulary",
            hint=Hint("leave out {config} and {vocabulary}"),
        )
