"""Any source to one shape: a configuration, a vocabulary, and tensors by name.

Tensors come under their checkpoint names (`bert/encoder/layer_0/...`) and are read
when they are asked for, one at a time. What the source was does not show afterwards.
"""

import dataclasses
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from roformer_keras.config import MODEL_FIELDS, RoFormerConfig, config_for_model
from roformer_keras.conversion.checkpoint import Checkpoint, Tensor
from roformer_keras.conversion.files import Blob, SourceFiles, open_source
from roformer_keras.conversion.hdf5 import (
    hdf5_datasets,
    hdf5_errors,
    hdf5_tensor,
    hdf5_text,
    open_hdf5,
)
from roformer_keras.conversion.mapping import (
    KERAS_BACKBONE,
    Weight,
    detect_model_type,
    is_training_state,
    keras_key,
    weight_table,
)
from roformer_keras.conversion.tensor_bundle import TensorBundleReader
from roformer_keras.conversion.vocabulary import read_vocabulary
from roformer_keras.errors import (
    CheckpointError,
    ConfigurationError,
    SourceError,
    VocabularyError,
)

__all__ = ["open_checkpoint", "read_saved_tokenizer", "read_tokenizer"]


@contextmanager
def open_checkpoint(
    source: str | os.PathLike,
    config: RoFormerConfig | Mapping | str | os.PathLike | None = None,
    vocabulary: str | os.PathLike | None = None,
) -> Iterator[Checkpoint]:
    """Opens a source; tensors can be read until the block ends.

    Args:
        source: a zip, folder, checkpoint prefix, HDF5, `.keras` or safetensors file,
            or preset folder.
        config: of sources that carry none, or to replace what they carry: a
            `RoFormerConfig`, the content of a `bert_config.json`, or its path.
        vocabulary: path of a `vocab.txt`, likewise.

    Raises:
        SourceError: there is no such source, or it is unsafe or holds no weights.
        ConfigurationError: there is no configuration, or it cannot be used.
        CheckpointError: the source is damaged, or not of a RoFormer.
        VocabularyError: the vocabulary cannot be read.
    """
    with ExitStack() as stack:
        files = stack.enter_context(open_source(source))
        opener = _OPENERS[files.format]
        yield opener(files, _Given(config, vocabulary), stack)


def read_tokenizer(source: str | os.PathLike) -> tuple[tuple[str, ...], dict]:
    """Vocabulary of a source, and the tokenizer's other arguments if it was saved.

    Raises:
        VocabularyError: the source has no vocabulary, or it cannot be read.
        SourceError: there is no such source, or it is unsafe.
    """
    with ExitStack() as stack:
        files = stack.enter_context(open_source(source))
        if files.format == "safetensors" and "vocabulary" not in files.parts:
            checkpoint = _open_safetensors(files, _Given(None, None), stack)
            tokens, fields = checkpoint.vocabulary, dict(checkpoint.tokenizer)
        else:
            tokens, fields = _Given(None, None).tokens(files), {}
            if "tokenizer" in files.parts:
                fields = _tokenizer_fields(files.parts["tokenizer"])
    if tokens is None:
        raise VocabularyError(
            f"{source} comes without a vocabulary: put its vocab.txt beside the "
            "weights, or give it as vocabulary="
        )
    return tokens, fields


# === What a source carries beside its tensors ===


@dataclass(frozen=True)
class _Given:
    """Configuration and vocabulary as the caller gave them, or not."""

    config: RoFormerConfig | Mapping | str | os.PathLike | None
    vocabulary: str | os.PathLike | None

    def bert_config(self, files: SourceFiles) -> Mapping | RoFormerConfig:
        config = self.config
        if config is None:
            if "bert_config" not in files.parts:
                raise ConfigurationError(
                    f"{files.label} comes without a bert_config.json: put it beside "
                    "the weights, or give it as config="
                )
            return _json(files.parts["bert_config"])
        if isinstance(config, str | os.PathLike):
            path = Path(config)
            if not path.is_file():
                raise ConfigurationError(f"config: there is no file {path}")
            return _json(Blob(path, 0, path.stat().st_size, str(path)))
        return config

    def tokens(self, files: SourceFiles) -> tuple[str, ...] | None:
        if self.vocabulary is not None:
            path = Path(self.vocabulary)
            if not path.is_file():
                raise VocabularyError(f"vocabulary: there is no file {path}")
            return tuple(read_vocabulary(path.read_bytes(), str(path)))
        blob = files.parts.get("vocabulary")
        if blob is None:
            return None
        return tuple(read_vocabulary(blob.read(), blob.label))


def _json(blob: Blob) -> dict:
    try:
        return _json_object(blob.read().decode("utf-8-sig"), blob.label)
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{blob.label} is not valid JSON: {error}") from error


def _json_object(text: str, label: str) -> dict:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{label} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"{label} must hold one JSON object, got {type(content).__name__}"
        )
    return content


def _config(
    found: Mapping | RoFormerConfig, model_type: str, label: str
) -> RoFormerConfig:
    if isinstance(found, RoFormerConfig):
        return found.replace(model_type=model_type)
    with _naming(label):
        return RoFormerConfig.from_bert_config(found, model_type)


def _replaced(
    config: RoFormerConfig, model: str | None, files, given
) -> RoFormerConfig:
    """The configuration that was saved with a model, or what the caller gave."""
    if given.config is None:
        return config
    found = given.bert_config(files)
    config = _config(found, config.model_type, files.label)
    if isinstance(found, RoFormerConfig) or model is None:
        return config
    return config_for_model(model, config)


@contextmanager
def _naming(label: str):
    """Lets errors of a configuration say where it is."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{label}: {error}") from error


def _whole_table(
    config: RoFormerConfig, found: Sized, label: str
) -> tuple[Weight, ...]:
    """The table, which a hostile configuration would make endless."""
    if config.num_layers > len(found):
        raise CheckpointError(
            f"{label}: the configuration has {config.num_layers:,} layers, but there "
            f"are only {len(found)} tensors"
        )
    return weight_table(config)


def _of_bert4keras(files, given, raw, format_, place_of):
    """Puts tensors of bert4keras into the table by the place that each row has.

    Args:
        raw: dict of the source's own name to (place, `Tensor`).
        place_of: of a row; the same kind of key.
    """
    found = given.bert_config(files)
    shapes = {place: tensor.shape for place, tensor in raw.values() if place}
    config = _config(found, _placed_model_type(shapes), files.label)
    config = config.replace(**_placed_condition(shapes))
    rows = {place_of(row): row for row in _whole_table(config, raw, files.label)}
    tensors, unexpected, state = {}, {}, []
    for name, (place, tensor) in raw.items():
        if place in rows:
            row = rows[place]
            tensors[row.name] = tensor.transposed() if row.transposed else tensor
        elif is_training_state(name):
            state.append(name)
        else:
            unexpected[name] = tensor
    return Checkpoint(
        label=files.label,
        format=format_,
        config=config,
        tensors={**tensors, **unexpected},
        vocabulary=given.tokens(files),
        bert_config=None if isinstance(found, RoFormerConfig) else found,
        unexpected=tuple(unexpected),
        training_state=tuple(state),
    )


def _placed_model_type(shapes) -> str:
    """v2 has four weights in an attention layer, v1 eight."""
    layers = Counter(layer for layer, _ in shapes)
    count = layers.get("Transformer-0-MultiHeadSelfAttention")
    return "roformer_v2" if count == 4 else "roformer"


def _placed_condition(shapes) -> dict:
    """A conditional norm keeps [hidden], beta and gamma kernels behind its own."""
    extra = [
        (at, shape)
        for (layer, at), shape in shapes.items()
        if layer == "Embedding-Norm" and len(shape) == 2
    ]
    if not extra:
        return {}
    if len(extra) == 2:
        return {"layer_norm_cond_size": extra[0][1][0]}
    hidden = dict(extra).get("hidden_dense/kernel") or min(extra)[1]
    return {
        "layer_norm_cond_size": hidden[0],
        "layer_norm_cond_hidden_size": hidden[1],
    }


# === Formats ===


def _open_tensor_bundle(files, given, stack):
    shards = [
        blob for role, blob in sorted(files.parts.items()) if role.startswith("data-")
    ]
    bundle = TensorBundleReader(files.parts["index"].read(), shards, files.label)
    tensors = {
        name: Tensor(
            bundle.shape(name), bundle.dtype(name), lambda name=name: bundle.read(name)
        )
        for name in bundle.names()
    }
    objects = bundle.object_names()
    if objects:
        raw = {
            name: (_object_place(name, objects.get(name, "")), tensor)
            for name, tensor in tensors.items()
        }
        return _of_bert4keras(
            files, given, raw, "tf_object", lambda row: (row.layer, row.attribute)
        )
    state = [name for name in tensors if is_training_state(name)]
    weights = {name: tensors[name] for name in tensors if name not in set(state)}
    found = given.bert_config(files)
    config = _config(found, detect_model_type(weights), files.label)
    known = {row.name for row in _whole_table(config, weights, files.label)}
    return Checkpoint(
        label=files.label,
        format="bert4keras",
        config=config,
        tensors=weights,
        vocabulary=given.tokens(files),
        bert_config=None if isinstance(found, RoFormerConfig) else found,
        unexpected=tuple(name for name in weights if name not in known),
        training_state=tuple(state),
    )


def _object_place(key: str, variable: str):
    """Layer from the variable's name, place in it from the attributes of the key."""
    attribute = key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")
    if attribute == key or ".OPTIMIZER_SLOT" in key:
        return None
    attribute = re.sub(r"^.*layer_with_weights-\d+/", "", attribute)
    layer = variable.split("/")[0]
    if layer == "MLM-Bias":
        # bert4keras before 0.11 had another layer here, and called it "bias".
        attribute = "beta"
    return layer, attribute


def _open_hdf5(files, given, stack):
    blob = files.parts["weights"]
    file = stack.enter_context(open_hdf5(blob))
    with hdf5_errors(blob.label):
        root = file.get("model_weights", file)
        layered = "layer_names" in root.attrs
        raw = _h5_layers(blob, root, file) if layered else {}
    if not layered:
        return _of_keras_weights(files, given, hdf5_datasets(blob, file))
    return _of_bert4keras(files, given, raw, "hdf5", lambda row: (row.layer, row.index))


def _h5_layers(blob, root, home) -> dict:
    """Weights by group and name, each with its layer and its place in the layer."""
    raw, count = {}, Counter()
    for group_name in map(hdf5_text, root.attrs["layer_names"]):
        group = root[group_name]
        for weight_name in map(hdf5_text, group.attrs["weight_names"]):
            # In the one group of a nested model, the weight tells the layer.
            layer = weight_name.split("/")[0]
            if _BERT4KERAS_LAYER.fullmatch(group_name):
                layer = group_name
            place = (layer, count[layer])
            count[layer] += 1
            name = f"{group_name}/{weight_name}"
            raw[name] = (place, hdf5_tensor(blob, name, group[weight_name], home))
    return raw


_BERT4KERAS_LAYER = re.compile(
    r"Embedding-\w+|Transformer-\d+-\w+(-Norm)?|Pooler-Dense|NSP-Proba|MLM-\w+"
    r"|Output-Mapping"
)


def _of_keras_weights(files, given, datasets):
    """`save_weights` of one of our models: only the configuration is missing."""
    found = given.bert_config(files)
    stripped = {key.removeprefix(KERAS_BACKBONE): value for key, value in datasets}
    if "layers/reversible_embedding/vars/0" not in stripped:
        raise CheckpointError(
            f"{files.label} holds HDF5 weights of another kind of model: neither "
            "bert4keras's layers nor those of a model of this package"
        )
    norm = any(key.startswith("layers/layer_norm/") for key in stripped)
    config = _config(found, "roformer" if norm else "roformer_v2", files.label)
    return _of_keras(files, given, config, stripped, "keras_weights")


def _of_keras(files, given, config, datasets, format_, **saved):
    table = _whole_table(config, datasets, files.label)
    rows = {keras_key(row, config): row for row in table}
    tensors, unexpected, state = {}, [], []
    for key, tensor in datasets.items():
        if key in rows:
            row = rows[key]
            tensors[row.name] = tensor.transposed() if row.transposed else tensor
        # What LoRA adds stands in the kernels too, merged.
        elif key.startswith("optimizer/") or re.search(
            "seed_generator|/lora_kernel_[ab]$", key
        ):
            state.append(key)
        else:
            unexpected.append(key)
            tensors[key] = tensor
    return Checkpoint(
        label=files.label,
        format=format_,
        config=config,
        tensors=tensors,
        vocabulary=given.tokens(files),
        unexpected=tuple(unexpected),
        training_state=tuple(state),
        **saved,
    )


def _open_keras(files, given, stack):
    blob = files.parts["weights"]
    file = stack.enter_context(open_hdf5(blob))
    serialized = _json(files.parts["config"])
    config, saved = _saved_model(serialized, files.label)
    config = _replaced(config, saved["model"], files, given)
    datasets = {
        key.removeprefix(KERAS_BACKBONE): tensor
        for key, tensor in hdf5_datasets(blob, file)
        if key.startswith(KERAS_BACKBONE) or not _is_task(serialized)
    }
    found = _of_keras(files, given, config, datasets, "keras", **saved)
    fields = serialized["config"]
    if found.vocabulary is None and _is_task(serialized) and "vocabulary" in fields:
        found = dataclasses.replace(
            found,
            vocabulary=tuple(fields["vocabulary"]),
            tokenizer=dict(fields.get("tokenizer", {})),
        )
    return found


def _open_preset(files, given, stack):
    serialized = _json(files.parts["task" if "task" in files.parts else "config"])
    config, saved = _saved_model(serialized, files.label)
    datasets = {}
    for role in ("weights",) if _is_task(serialized) else ("weights", "task_weights"):
        if role in files.parts:
            file = stack.enter_context(open_hdf5(files.parts[role]))
            datasets.update(hdf5_datasets(files.parts[role], file))
    config = _replaced(config, saved["model"], files, given)
    if "tokenizer" in files.parts:
        saved["tokenizer"] = _tokenizer_fields(files.parts["tokenizer"])
    return _of_keras(files, given, config, datasets, "preset", **saved)


def read_saved_tokenizer(folder: Path) -> tuple[tuple[str, ...], dict]:
    """Vocabulary and fields of a tokenizer that was saved into a preset folder."""
    vocabulary = folder / "assets" / "tokenizer" / "vocabulary.txt"
    if not vocabulary.is_file():
        raise VocabularyError(f"{folder} has a tokenizer.json but no {vocabulary}")
    file = folder / "tokenizer.json"
    fields = _tokenizer_fields(Blob(file, 0, file.stat().st_size, str(file)))
    return tuple(read_vocabulary(vocabulary.read_bytes(), str(vocabulary))), fields


def _tokenizer_fields(blob: Blob) -> dict:
    fields = _json(blob).get("config")
    if not isinstance(fields, dict):
        raise ConfigurationError(f"{blob.label} holds no tokenizer")
    return fields


def _saved_model(serialized: dict, label: str):
    """Configuration and class from what Keras serialises of a model."""
    try:
        name, fields = serialized["class_name"], dict(serialized["config"])
        backbone = dict(fields.pop("backbone", {"config": fields})["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{label} holds no RoFormer model") from error
    if _is_task(serialized):
        # Its head is for its own class; the rest is a backbone like others.
        name, fields = "RoFormerBackbone", {}
    if name not in MODEL_FIELDS:
        raise ConfigurationError(
            f"{label} holds a model of class {name!r}, which must be one of "
            f"{', '.join(MODEL_FIELDS)}; an encoder-decoder is loaded by "
            "RoFormerSeq2Seq.from_preset, and has no other format"
        )
    for own in ("name", "trainable", "dtype"):
        backbone.pop(own, None)
        fields.pop(own, None)
    options = fields if "backbone" in serialized["config"] else {}
    with _naming(label):
        config = RoFormerConfig.from_dict(backbone)
    return config, {"model": name, "model_options": options}


def _is_task(serialized: dict) -> bool:
    """Whether it is a model of this package that was fine-tuned for a task."""
    return (
        str(serialized.get("registered_name", "")).startswith("roformer_keras>")
        and serialized.get("class_name") not in MODEL_FIELDS
        and "backbone" in serialized.get("config", {})
    )


def _open_safetensors(files, given, stack):
    from safetensors import SafetensorError, safe_open

    blob = files.parts["weights"]
    try:
        path = _file_of_its_own(blob, stack)
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {
                name: _safetensors_tensor(path, name, file.get_slice(name))
                for name in file.keys()  # noqa: SIM118
            }
    except SafetensorError as error:
        raise CheckpointError(
            f"{blob.label} is damaged: {error}; convert or copy it again"
        ) from error
    model = metadata.get("model")
    model_options, tokenizer = (
        _json_object(metadata.get(name, "{}"), f"{files.label}: {name}")
        for name in ("model_options", "tokenizer")
    )
    if "config" in metadata:
        with _naming(files.label):
            saved = _json_object(metadata["config"], "config")
            config = RoFormerConfig.from_dict(saved)
        config = _replaced(config, model, files, given)
    else:
        found = given.bert_config(files)
        config = _config(found, detect_model_type(tensors), files.label)
    vocabulary = given.tokens(files)
    if vocabulary is None and "vocabulary" in metadata:
        vocabulary = _json_tokens(metadata["vocabulary"], files.label)
    known = {row.name for row in _whole_table(config, tensors, files.label)}
    return Checkpoint(
        label=files.label,
        format="safetensors",
        config=config,
        tensors=tensors,
        vocabulary=vocabulary,
        model=model,
        model_options=model_options,
        tokenizer=tokenizer,
        unexpected=tuple(name for name in tensors if name not in known),
    )


def _safetensors_tensor(path: Path, name: str, piece) -> Tensor:
    from safetensors import safe_open

    def read():
        # Opened anew each time: what was read stays mapped as long as it is open,
        # and would count as memory of the process.
        with safe_open(path, framework="numpy") as file:
            return file.get_tensor(name)

    dtype = _SAFETENSORS_DTYPES.get(piece.get_dtype(), piece.get_dtype())
    return Tensor(tuple(piece.get_shape()), dtype, read)


def _file_of_its_own(blob: Blob, stack: ExitStack) -> Path:
    """Where the bytes are a file: safetensors opens nothing inside a zip."""
    if blob.offset == 0:
        return blob.path
    try:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = Path(folder, "weights.safetensors")
        with open(path, "wb") as file:
            file.writelines(blob.chunks())
    except OSError as error:
        raise SourceError(
            f"could not unpack {blob.label} into {tempfile.gettempdir()} "
            f"({error.strerror}): free some space there, or unpack the zip yourself"
        ) from error
    return path


def _json_tokens(text: str, label: str) -> tuple[str, ...]:
    try:
        tokens = json.loads(text)
    except (ValueError, RecursionError):
        tokens = None
    if not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens):
        raise VocabularyError(f"{label}: its vocabulary is not a list of tokens")
    return tuple(tokens)


_SAFETENSORS_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

_OPENERS = {
    "tensor_bundle": _open_tensor_bundle,
    "hdf5": _open_hdf5,
    "keras": _open_keras,
    "preset": _open_preset,
    "safetensors": _open_safetensors,
}
