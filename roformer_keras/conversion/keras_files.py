"""Files of Keras and of this package, opened without Keras."""

import math
from contextlib import ExitStack
from operator import attrgetter

from roformer_keras.base.config import MODEL_FIELDS, RoFormerConfig
from roformer_keras.base.errors import (
    CheckpointError,
    ConfigurationError,
    VocabularyError,
    errors_at,
    refuse,
)
from roformer_keras.base.other_names import explain_withdrawn
from roformer_keras.base.task_registry import task_of
from roformer_keras.conversion.checkpoint import KerasFile
from roformer_keras.conversion.source_content import SourceContent
from roformer_keras.conversion.tokenizer_files import checked_tokenizer_fields
from roformer_keras.conversion.weights import (
    KERAS_BACKBONE,
    KERAS_MLM,
    is_training_state,
)
from roformer_keras.io.blob import Blob
from roformer_keras.io.hdf5 import hdf5_datasets, open_hdf5
from roformer_keras.io.json_file import read_json
from roformer_keras.io.tensor import Tensor


def _by_dataset(format, tensors, **options):
    """Tensors under the names that Keras gives them."""
    is_nested = any(name.startswith(KERAS_BACKBONE) for name in tensors)

    def key(name):
        if is_nested and not name.startswith((KERAS_BACKBONE, KERAS_MLM)):
            # A layer next to the backbone may have the name of a layer in it.
            return None
        return name.removeprefix(KERAS_BACKBONE)

    by_name = {name: (key(name), tensor) for name, tensor in tensors.items()}
    return SourceContent(format, by_name, attrgetter("dataset"), **options)


def open_keras_weights(label: str, tensors: dict[str, Tensor]) -> SourceContent:
    """Opens weights that `save_weights` wrote, which lack only the configuration."""
    by_name = _by_dataset("keras_weights", tensors)
    refuse(
        all(key != _KERAS_EMBEDDING for key, _ in by_name.tensors.values()),
        f"{label} holds HDF5 weights of another kind of model: it has "
        "neither bert4keras's layers nor those of this package",
        error=CheckpointError,
    )
    return by_name


_KERAS_EMBEDDING = "layers/reversible_embedding/vars/0"


def open_keras(files, stack):
    serialized = read_json(files.parts["config"])
    saved = _saved_model(serialized, files.label)
    head = {}
    weights = files.parts["weights"]
    file = stack.enter_context(open_hdf5(weights))
    tensors = dict(hdf5_datasets(weights, file))
    saved["keras_file"] = KerasFile(serialized, file)
    if task_of(saved["model"]):
        # Keras names the head by its layers' classes, which only the task knows.
        backbone = {n: t for n, t in tensors.items() if n.startswith(KERAS_BACKBONE)}
        others = tensors.keys() - backbone.keys()
        if "head" in files.parts:
            head = _datasets(files.parts["head"], stack)
        elif not all(map(is_training_state, others)):
            raise CheckpointError(
                f"{files.label}: an earlier version saved this {saved['model']}, and "
                "its head can be read by Keras alone",
                hint="load it with keras.models.load_model, and save it again",
            )
        tensors = backbone
        _check_sizes(saved, head, files.label, "config.json")
    return _by_dataset("keras", tensors, task=head, saved=saved)


def open_preset(files, stack):
    config = read_json(files.parts["config"])
    if str(config.get("registered_name")).startswith("keras_hub>"):
        raise ConfigurationError(
            f"{files.label} must be a preset of this package, got one of Keras-Hub, "
            f"{config['registered_name']!r:.80}",
            hint="load it with Keras-Hub, or convert the original zip",
        )
    is_base = config.get("class_name") == "RoFormerBackbone"
    if "task" not in files.parts and not is_base:
        # `model.save(folder, zipped=False)`.
        return open_keras(files, stack)
    parts = files.parts
    tensors, head = (
        _datasets(parts[role], stack) if role in parts else {}
        for role in ("weights", "task_weights")
    )
    task = read_json(parts["task"]) if "task" in parts else None
    saved = _saved_model(config if task is None else task, files.label)
    if task is not None:
        other = _saved_model(config, files.label)["config"]
        refuse(
            other != saved["config"],
            f"{files.label}: config.json and task.json must have the same backbone, "
            "but their fields differ: convert or copy it again",
            error=CheckpointError,
        )
    if saved["model"] in MODEL_FIELDS:
        tensors, head = tensors | head, {}
    _check_sizes(saved, head, files.label, "task.json")
    return _by_dataset("preset", tensors, task=head, saved=saved)


def _check_sizes(saved, head, label, file):
    """Checks that a head fits its file, and its classes their number."""
    stored = sum(math.prod(tensor.shape) for tensor in head.values())
    for name in ("num_classes", "head_dim"):
        value = saved["model_options"].get(name)
        if isinstance(value, int) and value > max(1, stored):
            raise CheckpointError(
                f"{label}: {name}={value:,} in {file} does not fit a head of "
                f"{stored:,} numbers"
            )

    options = saved["model_options"]
    for name in ("classes", "labels", "tags"):
        names = options.get(name)
        is_list = isinstance(names, list)
        refuse(
            names is not None
            and not (
                is_list
                and all(
                    isinstance(name_value, str | int | float) for name_value in names
                )
                and len(set(map(str, names))) == len(names)
            ),
            f"{label}: {name} of {file} must be a list of different names, got "
            f"{names!r:.80}",
        )
    # A model whose classes have no names saves their number, and null as names.
    count, names = options.get("num_classes"), options.get("classes")
    is_classifier = saved["model"] == "RoFormerTextClassifier"
    refuse(
        (count is None and is_classifier) or not isinstance(count, int | None),
        f"{label}: num_classes of {file} must be an integer, got {count!r:.40}",
    )
    if None not in (count, names) and len(names) != count:
        raise ConfigurationError(
            f"{label}: {file} must have as many classes as num_classes, {count}, got "
            f"{len(names)}"
        )


def _datasets(blob: Blob, stack: ExitStack) -> dict[str, Tensor]:
    return dict(hdf5_datasets(blob, stack.enter_context(open_hdf5(blob))))


def _saved_model(serialized: dict, label: str) -> dict:
    """Fields of a `Checkpoint` from Keras's serialization of a model."""
    name, options = serialized.get("class_name"), serialized.get("config")
    backbone = options.get("backbone") if isinstance(options, dict) else None
    fields = options
    if backbone is not None:
        fields = backbone.get("config") if isinstance(backbone, dict) else None
    if not isinstance(name, str) or not isinstance(fields, dict):
        raise ConfigurationError(f"{label} holds no RoFormer model")
    if withdrawn := explain_withdrawn(name):
        raise ConfigurationError(f"{label} holds a {name}: {withdrawn}")
    is_task = task_of(name) is not None and backbone is not None
    refuse(
        not is_task and name not in MODEL_FIELDS,
        f"{label} holds a model of class {name!r:.60}, which must be one of "
        f"{', '.join(MODEL_FIELDS)}, or a task",
        hint="keras.models.load_model reads a class of yours from .keras, with the "
        "class in custom_objects",
    )
    encoder = "roformer_keras>RoFormerBackbone"
    if isinstance(backbone, dict) and (
        backbone.get("registered_name", encoder) != encoder
    ):
        raise ConfigurationError(
            f"{label}: backbone must be a RoFormerBackbone, got "
            f"{backbone['registered_name']!r:.80}",
            hint="keras.models.load_model reads a class of yours from .keras, with the "
            "class in custom_objects",
        )
    if serialized.get("registered_name", f"roformer_keras>{name}") != (
        f"roformer_keras>{name}"
    ):
        raise ConfigurationError(
            f"{label}: class_name and registered_name must be of one class, got "
            f"{name!r} and {serialized['registered_name']!r:.80}"
        )
    of_keras = ("name", "trainable", "dtype")
    options, fields = (
        {key: value for key, value in settings.items() if key not in of_keras}
        for settings in ({} if backbone is None else dict(options or {}), fields)
    )
    options.pop("backbone", None)
    saved = {"model": name, "model_options": options}
    for owner in (fields, options):
        # Keras's files have no other place for the tokenizer.
        tokens, text = owner.pop("vocabulary", None), owner.pop("tokenizer", None)
        if tokens is not None:
            saved["vocabulary"] = check_saved_tokens(tokens, label)
            saved["tokenizer"] = checked_tokenizer_fields(text or {}, label)
    if "quantization" in {**fields, **options}:
        raise ConfigurationError(f"{label}: {explain_withdrawn('quantization=')}")
    with errors_at(label):
        return {**saved, "config": RoFormerConfig.from_dict(fields)}


def check_saved_tokens(tokens, label: str) -> tuple[str, ...]:
    refuse(
        not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens),
        f"{label}: its vocabulary is not a list of tokens",
        error=VocabularyError,
    )
    return tuple(tokens)
