"""Heads of tasks of Hugging Face, in both directions."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from roformer_keras.base.errors import Hint, refuse
from roformer_keras.conversion.checkpoint import Checkpoint
from roformer_keras.conversion.weights import task_rows
from roformer_keras.io.tensor import Tensor

# Transformers' names of activations -> Keras's names of the same functions.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_python": "gelu",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "linear": "linear",
    "mish": "mish",
    "relu": "relu",
    "relu6": "relu6",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
THEIR_ACTIVATIONS = {
    **{keras_name: name for name, keras_name in ACTIVATIONS.items()},
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "silu": "silu",
}
# `summary_type` of a choice -> pooling. `cls_index` without an index means the last.
_SUMMARIES = {
    "first": "first",
    "last": "last_position",
    "cls_index": "last_position",
    "mean": "mean_positions",
}


# === Reading ===


def read_task(
    fields: Mapping, tensors: Mapping[str, Tensor], saved: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by path, and changed fields, of a head that both libraries have."""
    if saved["model"] != "RoFormerBackbone":
        return {}, {}
    for read in (_read_answerer, _read_chooser, _read_tagger, _read_classifier):
        task = read(fields, tensors, saved["config"])
        if task is not None:
            model, options, head = task
            return head, {"model": model, "model_options": options, "left_out": ()}
    return {}, {}


def _read_answerer(fields, tensors, config):
    head = _dense(tensors, "ends", config.hidden_dim, 2)
    # The tokenizer's configuration states its inputs.
    inputs = fields.get("model_input_names")
    has_segments = config.num_segments > 1 and "token_type_ids" in (
        inputs if isinstance(inputs, list) else ["token_type_ids"]
    )
    options = {"text_segment": int(has_segments)}
    return head and ("RoFormerQuestionAnswerer", options, head)


def _read_chooser(fields, tensors, config):
    """Reads a choice head, unless its summary takes padding into account.

    Transformers' default, `summary_type="last"`, takes the last position of a batch,
    which is padding in all rows but the longest; and `"mean"` counts padding.
    """
    width = config.hidden_dim
    head = _dense(tensors, "choice", width, 1)
    kind, activation = fields.get("summary_type", "last"), "linear"
    if name := fields.get("summary_activation"):
        activation = ACTIVATIONS.get(name) if isinstance(name, str) else None
    if (
        head is None
        or fields.get("architectures") != ["RoFormerForMultipleChoice"]
        or not isinstance(kind, str)
        or kind not in _SUMMARIES
        or activation is None
    ):
        return None
    options = {"pooling": _SUMMARIES[kind]}
    if fields.get("summary_use_proj"):
        dense = _dense(tensors, "summary", width, width)
        head = None if dense is None else {**dense, **head}
        options["head_activation"] = activation
    elif activation != "linear":
        return None
    return head and ("RoFormerMultipleChoice", options, head)


def _read_tagger(fields, tensors, config):
    head = _dense(tensors, "tags", config.hidden_dim)
    is_tagger = fields.get("architectures") == ["RoFormerForTokenClassification"]
    tags = head and is_tagger and label_names(fields, *head["tags/bias"].shape)
    if not tags:
        return None
    options, order = read_tags(tags)

    def ordered(tensor):
        return Tensor(
            tensor.shape,
            tensor.dtype,
            lambda: np.ascontiguousarray(tensor.read()[..., order]),
        )

    head = {path: ordered(tensor) for path, tensor in head.items()}
    return "RoFormerTokenClassifier", {**options, "crf": False}, head


def _read_classifier(fields, tensors, config):
    """Reads one output without another `problem_type` as a regression."""
    width = config.hidden_dim
    dense = _dense(tensors, "dense", width, width)
    output = _dense(tensors, "out_proj", width)
    if dense is None or output is None:
        return None
    (count,) = output["out_proj/bias"].shape
    kind = fields.get("problem_type")
    options = {"pooling": "first", "head_activation": config.activation}
    options["head_dropout"] = config.dropout
    if count == 1 and kind in (None, "regression"):
        return "RoFormerTextRegressor", options, {**dense, **output}
    is_multi = kind == "multi_label_classification"
    is_single = kind in (None, "single_label_classification") and count > 1
    if not is_multi and not is_single:
        return None
    names = label_names(fields, count)
    if names is None:
        warnings.warn(
            f"id2label must give each of {count} labels a different name, got "
            f"{fields['id2label']!r:.80}: the classes have no names",
            stacklevel=2,
        )
    if names == _numbered(count):
        names = None
    options |= {"num_classes": count, "classes": names, "multi_label": is_multi}
    return "RoFormerTextClassifier", options, {**dense, **output}


def _dense(tensors, layer, width, outputs=None):
    """Tensors of a dense layer by our paths, or None if they do not fit."""
    kernel, bias = (
        tensors.get(task_rows({f"{layer}/{variable}": ()})[0].huggingface)
        for variable in ("kernel", "bias")
    )
    if kernel is None or bias is None or len(bias.shape) != 1:
        return None
    if kernel.shape != (*bias.shape, width) or outputs not in (None, *bias.shape):
        return None
    return {f"{layer}/kernel": kernel.transposed(), f"{layer}/bias": bias}


def read_tags(tags: list[str]) -> tuple[dict[str, list[str]], list[int]]:
    """Options of a tagger, and Transformers' index of each of our tags.

    Tags of BIO are given as labels, others unchanged.
    """
    names = [tag[2:] for tag in tags if tag.startswith("B-")]
    bio_tags = _bio_tags(names)
    if not names or sorted(bio_tags) != sorted(tags):
        return {"tags": tags}, list(range(len(tags)))
    return {"labels": names}, [tags.index(tag) for tag in bio_tags]


def _bio_tags(labels):
    return ["O", *(f"{kind}-{label}" for label in labels for kind in "BI")]


def label_names(fields: Mapping, count: int) -> list[str] | None:
    """Names of the outputs by number, or None if two names are equal.

    Without an `id2label`, the names are `LABEL_0` and so on, as in Transformers.
    """
    if fields.get("id2label") is None:
        return _numbered(count)
    id2label = fields["id2label"]
    if not isinstance(id2label, dict) or set(id2label) != set(map(str, range(count))):
        return None
    names = [id2label[str(number)] for number in range(count)]
    if not all(isinstance(name, str) and name.strip() for name in names):
        return None
    return names if len(set(names)) == count else None


def _numbered(count):
    """Transformers' names for labels without a name."""
    return [f"LABEL_{number}" for number in range(count)]


# === Writing ===

# Heads that compute the same in both libraries.
TASK_ARCHITECTURES = {
    "RoFormerTextClassifier": "RoFormerForSequenceClassification",
    "RoFormerTextRegressor": "RoFormerForSequenceClassification",
    "RoFormerTokenClassifier": "RoFormerForTokenClassification",
    "RoFormerQuestionAnswerer": "RoFormerForQuestionAnswering",
    "RoFormerMultipleChoice": "RoFormerForMultipleChoice",
}


def write_task(checkpoint: Checkpoint) -> dict[str, Any]:
    """Fields of a `config.json` about the head of a task."""
    options, model = checkpoint.model_options, str(checkpoint.model)
    fields: dict[str, Any] = {}
    names: list[str] | None = None
    problem = "a conditional random field" if options.get("crf") else None
    pooling = options.get("pooling", "first")
    own_activation = options.get("head_activation")
    # A mean that includes padding is another mean.
    poolings = {"first": "first"}
    if model == "RoFormerMultipleChoice":
        poolings = {pooling_name: kind for kind, pooling_name in _SUMMARIES.items()}
        poolings["last_position"] = "last"
        if own_activation not in (None, *THEIR_ACTIVATIONS):
            problem = f"head_activation={own_activation!r}"
    if model in TASK_ARCHITECTURES and pooling not in poolings:
        problem = f"pooling={pooling!r}"
    refuse(
        problem is not None,
        f"{checkpoint.label} has {problem}, which Transformers' RoFormer cannot "
        "compute: choose another format",
    )
    architecture = TASK_ARCHITECTURES.get(model, "")
    activation = getattr(checkpoint.config, "activation", None)
    has_dense = architecture.endswith("SequenceClassification")
    refuse(
        has_dense and own_activation != activation,
        f"{checkpoint.label} has head_activation={own_activation!r}, but the head "
        f"of Transformers' {architecture} has a dense layer with {activation!r}: "
        "choose another format",
        hint=Hint("or train it with {head_activation}", head_activation=activation),
    )
    if model == "RoFormerMultipleChoice":
        fields = {
            "summary_type": poolings[pooling],
            "summary_use_proj": own_activation is not None,
            "summary_proj_to_labels": False,
        }
        if own_activation not in (None, "linear"):
            fields["summary_activation"] = THEIR_ACTIVATIONS[own_activation]
    elif model == "RoFormerTokenClassifier":
        names = list(options.get("tags") or _bio_tags(options.get("labels") or ()))
    elif model == "RoFormerTextRegressor":
        fields, names = {"problem_type": "regression"}, _numbered(1)
    elif model == "RoFormerTextClassifier":
        kind = "multi" if options.get("multi_label") else "single"
        fields = {"problem_type": f"{kind}_label_classification"}
        classes = options.get("classes") or _numbered(options["num_classes"])
        names = [str(name) for name in classes]
    if names is not None:
        fields["id2label"] = {str(number): name for number, name in enumerate(names)}
        fields["label2id"] = {name: number for number, name in enumerate(names)}
    return fields
