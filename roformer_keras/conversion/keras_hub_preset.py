"""Presets of Keras-Hub's own RoFormerV2, and of its classifier on our backbone."""

import re
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from roformer_keras.config import RoFormerConfig
from roformer_keras.errors import CheckpointError, ConfigurationError, Hint, errors_at
from roformer_keras.io.tensor import Tensor

BACKBONE = "keras_hub>RoformerV2Backbone"
# Of `roformer_keras.keras_hub`, which Keras-Hub saves.
CLASSIFIER = "roformer_keras>KerasHubTextClassifier"
KERAS_HUB_TOKENIZER = "keras_hub>RoformerV2Tokenizer"
# Names of datasets there -> here, one after another.
_NAMES = (
    (r"^layers/roformer_v2_encoder", "layers/ro_former_block"),
    (r"/attention_layer/q_dense/", "/attention/query/"),
    (r"/attention_layer/k_dense/", "/attention/key/"),
    (r"/attention_layer/v_dense/", "/attention/value/"),
    (r"/attention_layer/o_dense/", "/attention/output_dense/"),
    (r"/feedforward_(intermediate|output)_dense/", r"/feed_forward/\1_dense/"),
)
_SCALE = re.compile(r"layers/([\w/]+_)?norm/vars/0")
# Fields of its configuration -> of `RoFormerConfig`.
_SAME = (
    *("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim"),
    *("num_segments", "activation", "dropout"),
)
_FIELDS = {**{name: name for name in _SAME}, "max_wavelength": "rotary_base"}
# Datasets of the classifier's dense layer -> weights of ours, and activations that give
# the same probabilities.
_HEAD = {
    "layers/dense/vars/0": "classes/kernel",
    "layers/dense/vars/1": "classes/bias",
}
_ACTIVATIONS = ("linear", "softmax")
# The default of Keras, which its norms take.
_EPSILON = 1e-7


def open_keras_hub(
    content: Mapping[str, Any], tensors: Mapping[str, Tensor], label: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Fields of a `Checkpoint`, and its tensors by the names in our presets.

    Args:
        content: of its `config.json`.
        tensors: dict of the names in its `model.weights.h5` to `Tensor`.
        label: str. What errors call the preset.

    Raises:
        CheckpointError: a norm has weights that RoFormerV2 has no place for.
        ConfigurationError: a field breaks its rule, or has a value that this package
            lacks.
    """
    with errors_at(label):
        config = _read_config(content)
    saved = {"model": "RoFormerBackbone", "model_options": {}, "config": config}
    return saved, _own_tensors(tensors, label)


def own_classifier(
    content: Mapping[str, Any], head: Mapping[str, Tensor], label: str
) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """The `task.json` and head of a preset here, from a classifier of Keras-Hub.

    `KerasHubTextClassifier` with logits is a `RoFormerTextClassifier`; one with a
    softmax gives its probabilities, where ours has logits.

    Args:
        content: of its `task.json`.
        head: dict of the names in its `task.weights.h5` to `Tensor`.
        label: str. What errors call the preset.

    Returns:
        None and an empty dict, after a warning, if the head is another function.
    """
    fields = content.get("config")
    fields = fields if isinstance(fields, dict) else {}
    classifier = {ours: head[name] for name, ours in _HEAD.items() if name in head}
    activation = fields.get("activation")
    if activation not in _ACTIVATIONS or len(classifier) < len(_HEAD):
        warn_of_head(label, content.get("class_name"))
        return None, {}
    options = {"num_classes": fields.get("num_classes"), "pooling": "first"}
    options["head_dropout"] = fields.get("dropout", 0.1)
    preprocessor = fields.get("preprocessor")
    inner = preprocessor.get("config") if isinstance(preprocessor, dict) else None
    if isinstance(inner, dict) and "sequence_length" in inner:
        options["max_length"] = inner["sequence_length"]
    name = "RoFormerTextClassifier"
    task = {
        "class_name": name,
        "registered_name": f"roformer_keras>{name}",
        "config": {"backbone": fields.get("backbone"), **options},
    }
    return task, classifier


def warn_of_head(label: str, name: Any) -> None:
    """Warns that a head of Keras-Hub's is not read."""
    warnings.warn(
        f"{label}: the head of Keras-Hub's {name!r:.60} is left out, because no class "
        "of this package has that head; the backbone is whole",
        stacklevel=2,
    )


def tokenizer_of_keras_hub(fields: Any, label: str) -> dict[str, Any]:
    """The arguments of a tokenizer here, from the `config` of one of Keras-Hub.

    Raises:
        ConfigurationError: it splits texts in another way.
    """
    fields = fields if isinstance(fields, dict) else {}
    is_lower = fields.get("lowercase", False)
    for name, needed in (("split", True), ("suffix_indicator", "##")):
        if fields.get(name, needed) != needed:
            raise ConfigurationError(
                f"{label}: {name} must be {needed!r}, got {fields[name]!r:.80}",
                hint=Hint("give the vocabulary by {vocabulary}"),
            )
    return {"level": "character", "lower_case": is_lower}


def _read_config(content):
    fields = content.get("config")
    if not isinstance(fields, dict):
        raise ConfigurationError("config must be an object in config.json")
    fields_here = {
        ours: fields[name] for name, ours in _FIELDS.items() if name in fields
    }
    config = RoFormerConfig.from_dict(
        {
            **fields_here,
            "model_type": "roformer_v2",
            "attention_dropout": fields_here.get("dropout", 0.1),
            "layer_norm_epsilon": _EPSILON,
        }
    )
    for name, needed in (("head_size", config.head_dim), ("use_bias", False)):
        if fields.get(name, needed) != needed:
            raise ConfigurationError(
                f"{name} must be {needed!r} for RoFormerV2, got {fields[name]!r:.80}"
            )
    return config


def _own_tensors(tensors, label):
    """Without scales of norms, which RoFormerV2 has none of; they must be 1."""
    tensors_here = {}
    for name, tensor in tensors.items():
        if _SCALE.fullmatch(name):
            if not np.array_equal(tensor.read(), np.ones(tensor.shape)):
                raise CheckpointError(
                    f"{label}: {name[:80]} must be 1 everywhere, because norms of "
                    "RoFormerV2 have no weights, and is not: a model that was trained "
                    "by Keras-Hub cannot be loaded"
                )
            continue
        for pattern, ours in _NAMES:
            name = re.sub(pattern, ours, name)
        tensors_here[name] = tensor
    return tensors_here
