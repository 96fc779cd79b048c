"""The modules of sentence-transformers around an encoder, in both directions.

    Transformer -> Pooling -> Dense -> Dense -> Normalize

The first Dense is RoFormer-Sim's pooler, the other one whitening; both are optional.
`encode` of this package normalizes vectors by default, with or without a Normalize.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from roformer_keras.base.checks import check_integer
from roformer_keras.base.config import RoFormerConfig
from roformer_keras.base.errors import (
    CheckpointError,
    ConfigurationError,
    Hint,
    SourceError,
    refuse,
)
from roformer_keras.conversion.checkpoint import Checkpoint
from roformer_keras.conversion.huggingface_config import MAX_POSITIONS, check_values
from roformer_keras.io.blob import Blob
from roformer_keras.io.json_file import read_json
from roformer_keras.io.sources import SENTENCE_PARTS
from roformer_keras.io.tensor import Tensor

# Roles of Dense modules in a folder, and the names of their tensors -> the layer's
# names in JunnYu's layout or by path.
DENSES = ("dense", "second_dense")
_TENSORS = {
    "pooler": {
        "linear.weight": "roformer.pooler.dense.weight",
        "linear.bias": "roformer.pooler.dense.bias",
    },
    "whitening": {
        "linear.weight": "whitening/kernel",
        "linear.bias": "whitening/bias",
    },
}
# Their poolings -> ours, and their flags in a folder, in the order of concatenation.
_POOLINGS = {
    "cls": ("first", "pooling_mode_cls_token"),
    "max": ("max", "pooling_mode_max_tokens"),
    "mean": ("mean", "pooling_mode_mean_tokens"),
    "mean_sqrt_len_tokens": ("sqrt_mean", "pooling_mode_mean_sqrt_len_tokens"),
    "weightedmean": ("weighted_mean", "pooling_mode_weightedmean_tokens"),
    "lasttoken": ("last", "pooling_mode_lasttoken"),
}
# Keras's activations -> classes below `torch.nn.modules`.
_ACTIVATIONS = {
    "gelu": "activation.GELU",
    "linear": "linear.Identity",
    "mish": "activation.Mish",
    "relu": "activation.ReLU",
    "relu6": "activation.ReLU6",
    "sigmoid": "activation.Sigmoid",
    "silu": "activation.SiLU",
    "tanh": "activation.Tanh",
}
# Settings with the values that change no vector.
_SETTINGS: dict[str, tuple] = {
    "default_prompt_name": (None,),
    "truncate_dim": (None,),
    "similarity_fn_name": ("cosine", None),
}
_WAY_OUT = "delete modules.json to read the encoder alone"
# `encode` cuts texts to so many tokens if a model has no length.
_LENGTH = 512


# === Reading ===


@dataclass(frozen=True)
class SentenceModules:
    """Settings in the modules of a folder."""

    pooling: str
    max_length: int | None
    fields: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    head: Mapping[str, Tensor]

    def task(self, saved: Mapping[str, Any], fields: Mapping) -> dict[str, Any]:
        """Fields of a `Checkpoint` that these modules change."""
        length = self.max_length
        if length is None:
            length = fields.get("max_position_embeddings", MAX_POSITIONS)
            check_integer("max_position_embeddings", length, minimum=1)
        if self.tensors and not self.head and saved["model"] == "RoFormerSim":
            return {"model_options": {"max_length": length}}
        options: dict[str, Any] = {"pooling": self.pooling, "max_length": length}
        if self.tensors:
            options["pooling"] = "pooler"
        if self.head:
            options["whitening_dim"] = self.head["whitening/bias"].shape[0]
        return {"model": "RoFormerSentenceEncoder", "model_options": options}


def read_modules(
    parts: Mapping[str, Blob], open_file: Callable[[Blob], dict[str, Tensor]]
) -> SentenceModules | None:
    """The modules of a folder; None if it has none or holds a CrossEncoder."""
    if "modules" not in parts:
        return None
    blob = parts["modules"]
    modules = [_read_module(entry, blob) for entry in read_json(blob, list)]
    names = [name for name, *_ in modules]
    settings = _read_settings(parts)
    if names == ["Transformer"] and settings.get("model_type") == "CrossEncoder":
        activation = str(settings.get("activation_fn", "")).rpartition(".")[2]
        if activation not in ("", "Identity"):
            warnings.warn(
                f"{blob.label}: the scores lack the {activation} that "
                "CrossEncoder.predict applies; their order is the same",
                stacklevel=2,
            )
        return None
    kinds = [kind for kind in names if kind != "Normalize"]
    is_known = kinds[:2] == ["Transformer", "Pooling"] and len(kinds) <= 4
    if "Normalize" in names[:-1] or not is_known or not {*kinds[2:]} <= {"Dense"}:
        raise ConfigurationError(
            f"{blob.label}: modules must be Transformer, Pooling, at most two Dense "
            f"and at most one Normalize, in this order, got {', '.join(names)[:80]}",
            hint=_WAY_OUT,
        )
    for (name, path, _), role in zip(
        modules, ("config", "pooling", *DENSES), strict=False
    ):
        expected = SENTENCE_PARTS.get(role, "").rpartition("/")[0]
        refuse(
            name != "Normalize" and path != expected,
            f"{blob.label}: {name} must be in {expected or 'the folder itself'!r}, "
            f"got {path!r:.80}",
            hint="save the model again by sentence-transformers",
        )
    pooling, width = _read_pooling(_part(parts, "pooling"))
    fields: dict[str, Any] = {}
    pooler: dict[str, Tensor] = {}
    head: dict[str, Tensor] = {}
    own_names = [name for *_, name in modules[2 : len(kinds)]]
    for role, own_name in zip(DENSES, own_names, strict=False):
        blob = _part(parts, role)
        content = read_json(blob)
        is_square = content.get("out_features") == width
        is_pooler = pooling == "first" and is_square and own_name != "whitening"
        if len(own_names) == 2:
            is_pooler = role == "dense"
        activation = _read_dense(content, pooling, width, is_pooler, blob.label)
        shape = content.get("out_features"), width
        tensors = _read_linear(parts, role, shape, open_file)
        if is_pooler:
            pooler = {_TENSORS["pooler"][name]: tensors[name] for name in tensors}
            fields = {"pooler_activation": activation}
        else:
            kernel, bias = tensors["linear.weight"], tensors["linear.bias"]
            head = {"whitening/kernel": kernel.transposed(), "whitening/bias": bias}
    return SentenceModules(pooling, read_length(parts), fields, pooler, head)


def _read_linear(parts, role, shape, open_file):
    blob = parts.get(f"{role}_weights") or _part(parts, f"{role}_pickle")
    tensors = open_file(blob)
    expected_shapes = {"linear.weight": shape, "linear.bias": shape[:1]}
    shapes_there = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes_there != expected_shapes:
        raise CheckpointError(
            f"{blob.label}: there must be {_shown(expected_shapes)}, got "
            f"{_shown(shapes_there)}: save the model again"
        )
    return tensors


def _shown(shapes):
    return ", ".join(f"{name} {shapes[name]}" for name in sorted(shapes))[:120]


def _part(parts, role):
    if role not in parts:
        raise SourceError(
            f"{parts['modules'].label} needs {SENTENCE_PARTS[role]}, and there is no "
            "such file: download it"
        )
    return parts[role]


def has_one_segment(parts: Mapping[str, Blob]) -> bool:
    """True if a CrossEncoder gives both texts of a pair the same token types.

    Since version 5, the RoFormerTokenizer of Transformers gives no token types by
    default.
    """
    if not {"modules", "tokenizer_config"} <= parts.keys():
        return False
    tokenizer = read_json(parts["tokenizer_config"])
    inputs = tokenizer.get("model_input_names")
    if isinstance(inputs, list):
        return "token_type_ids" not in inputs
    versions = _read_settings(parts).get("__version__")
    library = versions.get("transformers") if isinstance(versions, dict) else None
    is_old = isinstance(library, str) and library.startswith("4.")
    return not is_old and "Bert" not in str(tokenizer.get("tokenizer_class"))


def _read_module(entry, blob):
    """Class, path and name of an entry of `modules.json`."""
    kind, path, own_name = (
        entry.get(field) if isinstance(entry, dict) else None
        for field in ("type", "path", "name")
    )
    refuse(
        not isinstance(kind, str) or not isinstance(path, str),
        f"{blob.label} must be a list of objects with a type and a path, got "
        f"{entry!r:.80}",
    )
    library, _, name = kind.rpartition(".")
    is_known = library.startswith("sentence_transformers.")
    return name if is_known else kind, path, own_name


def _read_settings(parts) -> Mapping[str, Any]:
    """The content of `config_sentence_transformers.json`."""
    if "sentence_settings" not in parts:
        return {}
    blob = parts["sentence_settings"]
    settings = read_json(blob)
    label, prompts = f"{blob.label}: ", settings.get("prompts") or {}
    # A prompt may be empty.
    if not isinstance(prompts, dict) or any(prompts.values()):
        check_values(
            {"prompts": prompts},
            {"prompts": ({},)},
            "because encode adds none here",
            label,
            'put the prompt before your texts, and write "prompts": {} into the file',
        )
    reason = (
        "because here encode adds no prompt, cuts no vector and gives vectors of "
        "length 1"
    )
    check_values(settings, _SETTINGS, reason, label, _WAY_OUT)
    return settings


def _read_pooling(blob):
    """Our names of the poolings, and the width of the vector that they give."""
    content = read_json(blob)
    mode = content.get("pooling_mode")
    if mode is None:
        # Files from before version 5.4 have flags instead.
        names = {flag: name for name, (_, flag) in _POOLINGS.items()}
        on = [
            key
            for key in (*names, *sorted(content.keys() - names))
            if key.startswith("pooling_mode_") and content.get(key) is True
        ]
        mode = [names.get(key, key) for key in on] or "mean"
    modes = mode if isinstance(mode, list) and mode else [mode]
    refuse(
        not all(isinstance(mode, str) and mode in _POOLINGS for mode in modes),
        f"{blob.label}: pooling_mode must be of {', '.join(_POOLINGS)}, got "
        f"{mode!r:.80}",
        hint=_WAY_OUT,
    )
    width: Any = content.get("word_embedding_dimension")
    width = content.get("embedding_dimension", width)
    check_integer(f"{blob.label}: embedding_dimension", width, minimum=1)
    return "+".join(_POOLINGS[mode][0] for mode in modes), width * len(modes)


def read_length(parts: Mapping[str, Blob]) -> int | None:
    """Maximal length in sentence-transformers, or else in its tokenizer."""
    for role, name in (
        ("sentence_config", "max_seq_length"),
        ("tokenizer_config", "model_max_length"),
    ):
        value = read_json(parts[role]).get(name) if role in parts else None
        # Transformers writes 1e30 for a tokenizer without a limit.
        if value is not None and not (isinstance(value, int | float) and value >= 1e9):
            if type(value) is not int:
                raise ConfigurationError(
                    f"{parts[role].label}: {name} must be an integer, got {value!r:.80}"
                )
            return value
    return None


def _read_dense(content, pooling, width, is_pooler, label):
    """The activation of a Dense, in Keras's names."""
    keras_names = {
        f"torch.nn.modules.{name}": keras_name
        for keras_name, name in _ACTIVATIONS.items()
    }
    linear = f"torch.nn.modules.{_ACTIVATIONS['linear']}"
    kind = "RoFormer-Sim's pooler" if is_pooler else "whitening"
    allowed = {
        "bias": (True,),
        "use_residual": (False, None),
        "in_features": (width,),
        "module_input_name": ("sentence_embedding", None),
        "module_output_name": ("sentence_embedding", None),
        "activation_function": tuple(keras_names) if is_pooler else (linear,),
    }
    check_values(content, allowed, f"as in {kind}", f"{label}: ", _WAY_OUT)
    refuse(
        is_pooler and pooling != "first",
        f"{label}: RoFormer-Sim's pooler is a Dense between the pooling 'cls' and "
        f"another Dense, got the pooling {pooling!r}",
        hint=_WAY_OUT,
    )
    return keras_names[content["activation_function"]]


# === Writing ===


def write_modules(checkpoint: Checkpoint) -> dict[str, Any]:
    """The content of each JSON file that sentence-transformers needs, by file name."""
    config, model, label = checkpoint.config, checkpoint.model, checkpoint.label
    options = checkpoint.model_options
    has_pooler = isinstance(config, RoFormerConfig) and bool(config.pooler_activation)
    is_task = model == "RoFormerSentenceEncoder"
    refuse(
        not is_task
        and not (has_pooler and model in ("RoFormerSim", "RoFormerBackbone")),
        f"{label} holds a {model}, and sentence-transformers takes a "
        "RoFormerSentenceEncoder, a RoFormerSim, or a RoFormerBackbone with a "
        "pooler: train one with `roformer-keras finetune sentence-embedding`",
    )
    refuse(
        checkpoint.vocabulary is None,
        f"{label} has no vocabulary, and sentence-transformers needs its "
        "tokenizer: give it as vocabulary=",
    )
    head = [
        row.name
        for row in checkpoint.rows.values()
        if row.head == "task" and not row.path.startswith("whitening/")
    ]
    if head:
        # The pattern names this layer alone, so that whitening stays.
        pattern = f"{head[0].rpartition('/')[0]}/*"
        raise ConfigurationError(
            f"{label} has a head that is used in training alone ({', '.join(head)}), "
            "and sentence-transformers has no place for it",
            hint=Hint("leave it out with {ignore}", ignore=pattern),
        )
    length = options.get("max_length", _LENGTH)
    refuse(
        length > MAX_POSITIONS,
        f"max_length must be at most {MAX_POSITIONS}, the number of written positions, "
        f"got {length:,}: load the model with max_length={MAX_POSITIONS}, "
        "and save it again",
    )
    assert isinstance(config, RoFormerConfig)
    width = config.hidden_dim
    poolings = {own_name: name for name, (own_name, _) in _POOLINGS.items()}
    own_pooling = options.get("pooling", "mean") if is_task else "pooler"
    # The pooler takes the first position.
    own_names = own_pooling.replace("pooler", "first").split("+")
    refuse(
        not poolings.keys() >= {*own_names},
        f"{label} has pooling={own_pooling!r}, which sentence-transformers cannot "
        "compute: choose another format",
    )
    modes = [poolings[own_name] for own_name in own_names]
    contents: dict[str, Any] = {
        SENTENCE_PARTS["sentence_config"]: {
            "max_seq_length": length,
            "do_lower_case": False,
        },
        SENTENCE_PARTS["sentence_settings"]: {
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
        # All versions read these names.
        SENTENCE_PARTS["pooling"]: {
            "word_embedding_dimension": width,
            **{flag: name in modes for name, (_, flag) in _POOLINGS.items()},
        },
    }
    if modes != [name for name in _POOLINGS if name in modes]:
        # Flags cannot express an order.
        contents[SENTENCE_PARTS["pooling"]]["pooling_mode"] = modes
    return contents | _write_denses(checkpoint, config, width * len(modes))


def _write_denses(checkpoint, config, width):
    """The settings of each Dense, and the list of all modules."""
    contents, layers = {}, list(_layers(checkpoint))
    for role, layer in zip(DENSES, layers, strict=False):
        out, activation = width, str(config.pooler_activation)
        if layer == "whitening":
            (out,), activation = checkpoint.rows["task/whitening/bias"].shape, "linear"
        contents[SENTENCE_PARTS[role]] = {
            "in_features": width,
            "out_features": out,
            "bias": True,
            "activation_function": f"torch.nn.modules.{_ACTIVATIONS[activation]}",
        }
    kinds = [("Transformer", ""), ("Pooling", ""), ("Normalize", "")]
    kinds[2:2] = [("Dense", layer) for layer in layers]
    contents[SENTENCE_PARTS["modules"]] = [
        {
            "idx": number,
            # It distinguishes square whitening from a pooler.
            "name": layer if layer == "whitening" else str(number),
            "path": f"{number}_{kind}" if number else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, (kind, layer) in enumerate(kinds)
    ]
    return contents


def _layers(checkpoint: Checkpoint) -> Iterator[str]:
    """Names of the dense layers of vectors: `"pooler"` and `"whitening"`."""
    pooling = checkpoint.model_options.get("pooling", "mean")
    if not checkpoint.is_task or pooling == "pooler":
        yield "pooler"
    if "task/whitening/bias" in checkpoint.rows:
        yield "whitening"


def dense_tensors(checkpoint: Checkpoint) -> list[dict[str, str]]:
    """For each Dense, its tensor names -> the names of `Weight.huggingface`."""
    return [_TENSORS[layer] for layer in _layers(checkpoint)]
