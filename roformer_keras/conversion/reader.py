"""Opens any source as a `Checkpoint`: a configuration, a vocabulary and named tensors.

Tensors have their checkpoint names (`bert/encoder/layer_0/...`) and are read one at a
time, on request. The opener of a format lists the tensors under the source's names; all
other steps are the same for every format.
"""

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from roformer_keras.base.config import (
    MODEL_FIELDS,
    ConfigSource,
    RoFormerConfig,
    config_for_model,
)
from roformer_keras.base.errors import (
    CheckpointError,
    ConfigurationError,
    Hint,
    VocabularyError,
    errors_at,
    refuse,
)
from roformer_keras.conversion.checkpoint import Checkpoint, model_of
from roformer_keras.conversion.huggingface import (
    by_huggingface_name,
    is_huggingface,
    open_huggingface,
    own_tensors,
)
from roformer_keras.conversion.huggingface_tokenizer import huggingface_tokenizer
from roformer_keras.conversion.keras_files import (
    check_saved_tokens,
    open_keras,
    open_keras_weights,
    open_preset,
)
from roformer_keras.conversion.source_content import SourceContent
from roformer_keras.conversion.tokenizer_files import (
    checked_tokenizer_fields,
    read_tokens,
    saved_tokenizer,
)
from roformer_keras.conversion.weights import (
    TASK_PREFIX,
    is_training_state,
    weight_table,
)
from roformer_keras.io.blob import Blob
from roformer_keras.io.hdf5 import (
    hdf5_datasets,
    hdf5_errors,
    hdf5_layers,
    hdf5_tensor,
    open_hdf5,
)
from roformer_keras.io.json_file import parse_json, read_json, strict_json
from roformer_keras.io.safetensors_file import open_safetensors
from roformer_keras.io.sources import SourceFiles, open_source
from roformer_keras.io.tensor import Tensor
from roformer_keras.io.tensor_bundle import TensorBundleReader
from roformer_keras.io.vocabulary import check_tokens, fitting_tokens


@contextmanager
def open_checkpoint(
    source: str | os.PathLike,
    config: ConfigSource | None = None,
    vocabulary: str | os.PathLike | None = None,
) -> Iterator[Checkpoint]:
    """Opens a source; its tensors can be read until the block ends."""
    with ExitStack() as stack:
        files = stack.enter_context(open_source(source))
        vocabulary_file = None
        if vocabulary is not None:
            vocabulary_file = _given_file("vocabulary", vocabulary)
        if vocabulary_file is not None and files.format == "huggingface":
            names = ("vocabulary", "given_vocabulary")
            parts = {**files.parts, **dict.fromkeys(names, vocabulary_file)}
            files = dataclasses.replace(files, parts=parts)
        opened = _OPENERS[files.format](files, stack)
        config, bert_config = _find_config(files, opened, config)
        fields = {**opened.saved, **saved_tokenizer(files.parts), "config": config}
        if vocabulary_file is not None:
            fields["vocabulary"] = read_tokens(vocabulary_file)
        if fields.get("vocabulary"):
            rows = fields["config"].vocabulary_size
            tokens = fitting_tokens(fields["vocabulary"], rows)
            if len({*tokens}) < len(tokens) == rows:
                # bert4keras gives a repeated token and the next one the same id.
                check_tokens(tokens, f"the vocabulary of {files.label}")
            fields["vocabulary"] = tokens
        checkpoint = Checkpoint(
            label=files.label,
            format=opened.format,
            bert_config=bert_config,
            **_place_tensors(files.label, opened, config),
            **fields,
        )
        if bert_config is not None and model_of(checkpoint) == "RoFormerCausalLM":
            # The source's name distinguishes GPT; bert_config.json does not.
            causal = checkpoint.config.replace(attention="causal")
            checkpoint = dataclasses.replace(checkpoint, config=causal)
        yield checkpoint


def read_tokenizer(source: str | os.PathLike) -> tuple[tuple[str, ...], dict]:
    """Vocabulary of a source, and the tokenizer's other arguments if saved."""
    with ExitStack() as stack:
        parts = {
            role: Blob.of_file(Path(source, name))
            for role, name in _TOKENIZER_FILES.items()
            if os.path.isfile(Path(source, name))
        }
        if "tokenizer" in parts and (
            "vocabulary" in parts or not _is_of_hugging_face(parts["tokenizer"])
        ):
            saved = saved_tokenizer(parts)
        else:
            files = stack.enter_context(open_source(source))
            saved = saved_tokenizer(files.parts)
            if saved and "bert_config" in files.parts:
                size = read_json(files.parts["bert_config"]).get("vocab_size")
                rows = size if isinstance(size, int) else 0
                saved["vocabulary"] = fitting_tokens(saved["vocabulary"], rows)
                count = len(saved["vocabulary"])
                refuse(
                    size != count,
                    f"the vocabulary of {source} must have the vocab_size of its "
                    f"bert_config.json, {size!r}, got {count} tokens",
                    error=VocabularyError,
                )
            if files.format == "huggingface":
                saved = huggingface_tokenizer(files.parts)
                tokens = saved.get("vocabulary") or ()
                rows = read_json(files.parts["config"]).get("vocab_size")
                rows = rows if isinstance(rows, int) else 0
                saved["vocabulary"] = fitting_tokens(tokens, rows) or None
            elif not saved and files.format in ("keras", "safetensors"):
                saved = _OPENERS[files.format](files, stack).saved
    refuse(
        saved.get("vocabulary") is None,
        f"{source} comes without a vocabulary",
        hint=Hint("put its vocab.txt next to the weights; or give {vocabulary}"),
        error=VocabularyError,
    )
    return saved["vocabulary"], dict(saved.get("tokenizer", {}))


def _is_of_hugging_face(blob: Blob) -> bool:
    """True if a `tokenizer.json` is Hugging Face's, whose content differs from ours."""
    has_neighbour = blob.path.with_name("tokenizer_config.json").is_file()
    return has_neighbour or "model" in read_json(blob)


# === Steps of every format ===

_TOKENIZER_FILES = {
    "tokenizer": "tokenizer.json",
    "vocabulary": "assets/tokenizer/vocabulary.txt",
}


def _find_config(files, content, source_config):
    """The configuration of the tensors, and the bert_config that it comes from."""
    saved, model = content.saved.get("config"), content.saved.get("model")
    if source_config is None and saved is not None:
        return saved, None
    if isinstance(source_config, str | os.PathLike):
        source_config = read_json(_given_file("config", source_config))
    elif source_config is None:
        refuse(
            "bert_config" not in files.parts,
            f"{files.label} comes without a bert_config.json",
            hint=Hint("put it next to the weights; or give {config}"),
        )
        source_config = read_json(files.parts["bert_config"])
    is_whole = isinstance(source_config, RoFormerConfig)
    with errors_at(files.label):
        config = (
            source_config
            if is_whole
            else RoFormerConfig.from_bert_config(source_config)
        )
        if saved is None:
            config = config.replace(
                model_type=_model_type(files.label, content, config),
                **_condition(content),
            )
        else:
            config = config.replace(model_type=saved.model_type)
            if model is not None and not is_whole:
                model = model if model in MODEL_FIELDS else "RoFormerBackbone"
                config = config_for_model(model, config)
    return config, None if is_whole else source_config


def _model_type(label, content, config):
    """`"roformer"` if the encoder's norms have parameters, else `"roformer_v2"`."""
    table = _table(label, content, config.replace(model_type="roformer"))
    norms = (row for row in table if row.head is None and row.name.endswith("/gamma"))
    keys = {key for key, _ in content.tensors.values()}
    return "roformer_v2" if keys.isdisjoint(map(content.key_of, norms)) else "roformer"


def _condition(content):
    """Sizes of conditional norms, whose kernels follow beta and gamma in a layer."""
    kernels = {
        key[1]: tensor.shape
        for key, tensor in content.tensors.values()
        if isinstance(key, tuple)
        and key[0] == "Embedding-Norm"
        and len(tensor.shape) == 2
    }
    if not kernels:
        return {}
    # The hidden layer has its own name, or else the lowest index.
    first = kernels.get("hidden_dense/kernel") or kernels[min(kernels)]
    hidden = {"layer_norm_cond_hidden_size": first[1]} if len(kernels) > 2 else {}
    return {"layer_norm_cond_size": first[0], **hidden}


def _place_tensors(label, content, config):
    """Fields of a `Checkpoint`: tensors by checkpoint name, and those without a row."""
    rows = {content.key_of(row): row for row in _table(label, content, config)}
    tensors, unexpected, state = {}, {}, []
    for name, (key, tensor) in content.tensors.items():
        row = rows.pop(key, None)
        if row is not None:
            turned = content.is_turned(row)
            tensors[row.name] = tensor.transposed() if turned else tensor
        elif is_training_state(name):
            state.append(name)
        else:
            unexpected[name] = tensor
    task = {f"{TASK_PREFIX}{path}": tensor for path, tensor in content.task.items()}
    return {
        "tensors": {**unexpected, **tensors, **task},
        "unexpected": tuple(unexpected),
        "training_state": tuple(state),
    }


def _table(label, content, config):
    """The weight table, unless a hostile number of layers would make it endless."""
    # Every layer has at least six tensors.
    refuse(
        4 * config.num_layers > len(content.tensors),
        f"{label}: the configuration has {config.num_layers:,} layers, but there "
        f"are only {len(content.tensors)} tensors",
        error=CheckpointError,
    )
    return weight_table(config)


def _given_file(name: str, path: str | os.PathLike) -> Blob:
    if not os.path.isfile(path):
        error = VocabularyError if name == "vocabulary" else ConfigurationError
        raise error(f"{name}: there is no file {path}")
    return Blob.of_file(Path(path))


# === Files of bert4keras ===


def open_bundle(files: SourceFiles) -> TensorBundleReader:
    """The reader of a TensorFlow checkpoint that `open_source` recognized."""
    shards = [
        blob for role, blob in sorted(files.parts.items()) if role.startswith("data-")
    ]
    return TensorBundleReader(files.parts["index"].read_small(), shards, files.label)


@contextmanager
def opened_bundle(path: str | os.PathLike) -> Iterator[TensorBundleReader]:
    """A context with the tensors of a TensorFlow checkpoint."""
    with open_source(path) as files:
        refuse(
            files.format != "tensor_bundle",
            f"{path} must be a checkpoint of TensorFlow, got {files.format}",
            hint="convert it with roformer-keras convert, or load it with from_preset",
            error=CheckpointError,
        )
        yield open_bundle(files)


def _open_tensor_bundle(files, stack):
    bundle = open_bundle(files)
    tensors = {
        name: Tensor(
            bundle.shape(name), bundle.dtype(name), lambda name=name: bundle.read(name)
        )
        for name in bundle.names()
    }
    variables = bundle.object_names()
    if not variables:
        return _by_name("bert4keras", tensors)
    by_path = {
        name: (_object_key(name, *variables.get(name, ("", ""))), tensor)
        for name, tensor in tensors.items()
    }
    return SourceContent("tf_object", by_path, lambda row: (row.layer, row.attribute))


def _by_name(format, tensors, **saved):
    """Tensors that already have their checkpoint names."""
    by_name = {name: (name, tensor) for name, tensor in tensors.items()}
    return SourceContent(
        format, by_name, lambda row: row.name, lambda row: False, saved=saved
    )


def _object_key(key: str, variable: str, path: str):
    """The layer, from the variable's name, and the attribute, from the graph or key."""
    attribute = key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")
    if attribute == key or ".OPTIMIZER_SLOT" in key:
        return None
    attribute = path or re.sub(r"^.*layer_with_weights-\d+/", "", attribute)
    layer = variable.split("/")[0]
    if layer == "MLM-Bias":
        # bert4keras before 0.11 had another layer here, and called it "bias".
        attribute = "beta"
    return layer, attribute


_BERT4KERAS_LAYER = re.compile(
    r"Embedding-\w+|Transformer-\d+-\w+(-Norm)?|Pooler-Dense|NSP-Proba|MLM-\w+"
    r"|Output-Mapping"
)


# Groups of a Keras 2 file that are not layers.
_OF_KERAS_2 = ("optimizer_weights/", "top_level_model_weights/", "model_weights/")


def _open_hdf5(files, stack):
    blob = files.parts["weights"]
    file = stack.enter_context(open_hdf5(blob))
    by_name, count = {}, Counter()
    with hdf5_errors(blob.label):
        root = file.get("model_weights", file)
        if "layer_names" not in root.attrs:
            return open_keras_weights(files.label, dict(hdf5_datasets(blob, file)))
        for group_name, group, weight_names in hdf5_layers(blob, root):
            is_layer = _BERT4KERAS_LAYER.fullmatch(group_name)
            for weight_name in weight_names:
                # A nested model is one group; the name of the weight states the layer.
                layer = group_name if is_layer else weight_name.split("/")[0]
                name = f"{group_name}/{weight_name}"
                if name in by_name:
                    raise CheckpointError(
                        f"{blob.label} names {name[:200]!r} twice: it is damaged, save "
                        "or download it again"
                    )
                tensor = hdf5_tensor(blob, name, group[weight_name])
                by_name[name] = (layer, count[layer]), tensor
                count[layer] += 1
        # A tensor without an attribute may be a weight with a damaged name.
        for name, tensor in hdf5_datasets(blob, root):
            if name not in by_name and not name.startswith(_OF_KERAS_2):
                by_name[name] = name, tensor
    return SourceContent("hdf5", by_name, lambda row: (row.layer, row.index))


# === safetensors ===


def _open_safetensors(files, stack):
    tensors, metadata = open_safetensors(files.parts["weights"], stack)
    saved = {
        name: parse_json(metadata.get(name, "{}"), f"{files.label}: {name}")
        for name in ("model_options", "tokenizer")
    }
    if saved["tokenizer"]:
        saved["tokenizer"] = checked_tokenizer_fields(saved["tokenizer"], files.label)
    saved["model"] = metadata.get("model")
    if saved["model"] not in (None, *MODEL_FIELDS):
        raise ConfigurationError(
            f"{files.label}: model must be one of {', '.join(MODEL_FIELDS)}, got "
            f"{saved['model']!r:.60}"
        )
    if "config" in metadata:
        with errors_at(files.label):
            fields = parse_json(metadata["config"], "config")
            saved["config"] = RoFormerConfig.from_dict(fields)
    if "vocabulary" in metadata:
        try:
            tokens = strict_json(metadata["vocabulary"])
        except (ValueError, RecursionError):
            tokens = None
        saved["vocabulary"] = check_saved_tokens(tokens, files.label)
    if is_huggingface(tensors):
        return by_huggingface_name("safetensors", own_tensors(tensors, files.label))
    return _by_name("safetensors", tensors, **saved)


_OPENERS = {
    "tensor_bundle": _open_tensor_bundle,
    "hdf5": _open_hdf5,
    "keras": open_keras,
    "preset": open_preset,
    "safetensors": _open_safetensors,
    "huggingface": open_huggingface,
}
