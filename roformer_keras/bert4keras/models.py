"""`bert4keras.models`: `build_transformer_model`, and the classes that it builds."""

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roformer_keras.base.checks import check_file
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.types import Unchecked
from roformer_keras.bert4keras import layers as _layers
from roformer_keras.bert4keras.backend import get_available_gpus, keras
from roformer_keras.bert4keras.bert import (
    BERT,
    LM_Mask,
    RoFormer,
    RoFormerV2,
    UniLM_Mask,
)
from roformer_keras.bert4keras.keras2 import replace_names
from roformer_keras.bert4keras.keras2_models import Model
from roformer_keras.bert4keras.transformer import Transformer
from roformer_keras.models.initializers import weights_to_be_loaded

__all__ = [
    "BERT",
    "LM_Mask",
    "Model",
    "RoFormer",
    "RoFormerV2",
    "Transformer",
    "UniLM_Mask",
    "build_transformer_model",
    "data_parallel",
    "extend_with_language_model",
    "extend_with_unified_language_model",
    "keras",
]

_NOT_COVERED = (
    "ALBERT",
    "ALBERT_Unshared",
    "ELECTRA",
    "GPT",
    "GPT2",
    "GPT2_ML",
    "NEZHA",
    "T5",
    "T5_Base",
    "T5_Decoder",
    "T5_Encoder",
)


def __getattr__(name: str) -> Unchecked:
    if name in _NOT_COVERED:
        raise _not_covered(name)
    return getattr(_layers, name)


def _not_covered(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"roformer_keras.bert4keras has no {name}: it covers the models "
        f"{', '.join(MODELS)}. Run the script with bert4keras and tf-keras, or load "
        "such a model with Keras-Hub or Transformers"
    )


MODELS: dict[str, type[Transformer]] = {
    "bert": BERT,
    "roberta": BERT,
    "roformer": RoFormer,
    "roformer_v2": RoFormerV2,
}


class _Writer:
    """A mixin of models that predict tokens, whatever their arguments say."""

    with_mlm: bool | str

    def __init__(self, *args: Unchecked, **kwargs: Unchecked):
        super().__init__(*args, **kwargs)
        self.with_mlm = self.with_mlm or True


def extend_with_language_model(BaseModel: type[Transformer]) -> type[Transformer]:
    """A class of models that see only what stands before, and predict what is next."""

    class LanguageModel(_Writer, LM_Mask, BaseModel):  # type: ignore[misc, valid-type]
        """A model that predicts the next token."""

    return LanguageModel


def extend_with_unified_language_model(
    BaseModel: type[Transformer],
) -> type[Transformer]:
    """A class of models that see a first segment, and write a second after it."""

    class UnifiedLanguageModel(_Writer, UniLM_Mask, BaseModel):  # type: ignore[misc, valid-type]
        """A model that predicts the next token of a second segment."""

    return UnifiedLanguageModel


_APPLICATIONS = {
    "encoder": lambda model: model,
    "lm": extend_with_language_model,
    "unilm": extend_with_unified_language_model,
}


def build_transformer_model(
    config_path: str | os.PathLike | None = None,
    checkpoint_path: str | os.PathLike | None = None,
    model: str | type[Transformer] = "bert",
    application: str = "encoder",
    return_keras_model: bool = True,
    **kwargs: Unchecked,
) -> Any:
    """Builds a model, and loads a checkpoint into it.

    Args:
        config_path: path of a `bert_config.json`.
        checkpoint_path: prefix of a checkpoint of TensorFlow, such as
            `bert_model.ckpt`; the zip or the folder that holds one is taken as well.
        model: `"roformer"`, `"roformer_v2"`, `"bert"` or `"roberta"`, or a subclass of
            `Transformer`.
        application: `"encoder"`, `"lm"` or `"unilm"`.
        return_keras_model: bool. False returns the `Transformer`, whose `model` it is.
        kwargs: fields in place of those of the file, and arguments of the class, such
            as `with_pool`, `with_mlm`, `keep_tokens`, `layer_norm_cond`.

    Returns:
        `keras.Model`, whose inputs are a list: token ids and segment ids
        `(batch, length)`. Its output is float `(batch, length, hidden_size)`; with a
        pool `(batch, hidden_size)`, with MLM `(batch, length, vocab_size)`, with both
        a list of them.

    Raises:
        ConfigurationError: a model or an option is not covered.
        CheckpointError: the checkpoint does not fit.
    """
    # From now on the script's names of Keras's models mean the subclasses here.
    replace_names(sys._getframe(1).f_globals)
    fields: dict[str, Any] = {}
    if config_path is not None:
        check_file(config_path)
        fields.update(json.loads(Path(config_path).read_text(encoding="utf-8")))
    fields.update(kwargs)
    for name, theirs, default in (
        ("max_position", "max_position_embeddings", 512),
        ("dropout_rate", "hidden_dropout_prob", None),
        ("attention_dropout_rate", "attention_probs_dropout_prob", None),
        ("segment_vocab_size", "type_vocab_size", 2),
    ):
        fields.setdefault(name, fields.get(theirs, default))
    kind = MODELS.get(model.lower()) if isinstance(model, str) else model
    if kind is None:
        raise _not_covered(f"model {model!r}")
    refuse(
        application.lower() not in _APPLICATIONS,
        f"application must be one of {', '.join(_APPLICATIONS)}, got {application!r}",
    )
    transformer = _APPLICATIONS[application.lower()](kind)(**fields)
    # Other classes and conditions have weights that no checkpoint holds.
    others = ("ignore_invalid_weights", "layer_norm_cond")
    replaced = (
        checkpoint_path is not None
        and kind in (BERT, RoFormer)
        and all(fields.get(name) is None or fields[name] is False for name in others)
    )
    with weights_to_be_loaded() if replaced else contextlib.nullcontext():
        transformer.build(**fields)
    if checkpoint_path is not None:
        transformer.load_weights_from_checkpoint(checkpoint_path)
    return transformer.model if return_keras_model else transformer


def data_parallel(
    model: Model, devices: int | Sequence | None = None, parts: Unchecked = None
) -> Model:
    """`model`, where there are not several GPUs.

    Raises:
        ConfigurationError: there are: Keras 3 divides batches by itself.
    """
    count = len(get_available_gpus()) if devices is None else devices
    refuse(
        (count if isinstance(count, int) else len(count)) > 1,
        "data_parallel is not covered with several devices: build the model in the "
        "scope of tf.distribute.MirroredStrategy(), or after "
        "keras.distribution.set_distribution(keras.distribution.DataParallel())",
    )
    return model
