"""The modules of sentence-transformers around an encoder, in both directions.

    Transformer -> Pooling -> Dense -> Normalize

Dense is RoFormer-Sim's pooler; a `RoFormerSentenceEncoder` has none. Our `encode` gives
vectors of length 1 unless it is asked not to, with or without a Normalize.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from roformer_keras.checks import check_integer
from roformer_keras.config import RoFormerConfig
from roformer_keras.conversion.checkpoint import Checkpoint
from roformer_keras.conversion.huggingface_config import MAX_POSITIONS
from roformer_keras.errors import CheckpointError, ConfigurationError, Hint, SourceError
from roformer_keras.io.blob import Blob
from roformer_keras.io.json_file import read_json
from roformer_keras.io.sources import SENTENCE_PARTS
from roformer_keras.io.tensor import Tensor

# Name of the pooler's tensors in a Dense module -> in JunnYu's layout.
DENSE_TENSORS = {
    "linear.weight": "roformer.pooler.dense.weight",
    "linear.bias": "roformer.pooler.dense.bias",
}
# Poolings there -> here, and their flags in a folder.
_POOLINGS = {
    "cls": "first",
    "mean": "mean",
    "max": "max",
    "mean_sqrt_len_tokens": "sqrt_mean",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
# Activations here -> classes below `torch.nn.modules`.
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
_WAY_OUT = "delete modules.json to read the encoder alone"
# Tokens to which `encode` of a model without a length cuts texts.
_LENGTH = 512


# === Reading ===


@dataclass(frozen=True)
class SentenceModules:
    """Settings in the modules of a folder.

    Args:
        pooling: as in `TextVector`.
        max_length: int. Tokens to which texts are cut; None for the encoder's limit.
        fields: what Dense changes in the `config.json`.
        tensors: those of Dense, by their names in JunnYu's layout.
    """

    pooling: str
    max_length: int | None
    fields: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def task(self, saved: Mapping[str, Any], fields: Mapping) -> dict[str, Any]:
        """Fields of a `Checkpoint` that these modules change.

        Args:
            saved: as `read_config` returns it.
            fields: content of the `config.json`.

        Raises:
            ConfigurationError: the length is no integer.
        """
        if self.tensors:
            return {}
        length = self.max_length
        if length is None:
            length = fields.get("max_position_embeddings", MAX_POSITIONS)
            check_integer("max_position_embeddings", length, minimum=1)
        return {
            "model": "RoFormerSentenceEncoder",
            "model_options": {"pooling": self.pooling, "max_length": length},
        }


def read_modules(
    parts: Mapping[str, Blob], open_file: Callable[[Blob], dict[str, Tensor]]
) -> SentenceModules | None:
    """The modules of a folder, or None if it has none.

    Args:
        parts: dict of role to `Blob`, as in `SourceFiles`.
        open_file: function from a file of weights to its tensors.

    Raises:
        ConfigurationError: the modules compute what no class of this package does.
        SourceError: a file is missing.
    """
    if "modules" not in parts:
        return None
    blob = parts["modules"]
    modules = [_read_module(entry, blob) for entry in read_json(blob, list)]
    names = [name for name, _ in modules]
    kinds = [kind for kind in names if kind != "Normalize"]
    is_last = "Normalize" not in names[:-1]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Dense"]):
        is_last = False
    if not is_last:
        raise ConfigurationError(
            f"{blob.label}: modules must be Transformer, Pooling, at most one Dense "
            f"and at most one Normalize, in this order, got {', '.join(names)[:80]}",
            hint=_WAY_OUT,
        )
    for (name, path), role in zip(
        modules, ("config", "pooling", "dense"), strict=False
    ):
        wanted = SENTENCE_PARTS.get(role, "").rpartition("/")[0]
        if name != "Normalize" and path != wanted:
            raise ConfigurationError(
                f"{blob.label}: {name} must be in {wanted or 'the folder itself'!r}, "
                f"got {path!r:.80}",
                hint="save the model again by sentence-transformers",
            )
    _check_settings(parts)
    pooling = _read_pooling(_part(parts, "pooling"))
    length = _read_length(parts)
    if "Dense" not in kinds:
        return SentenceModules(pooling, length)
    dense = _part(parts, "dense")
    activation = _read_dense(read_json(dense), pooling, dense.label)
    weights = parts.get("dense_weights") or _part(parts, "dense_pickle")
    tensors = open_file(weights)
    if tensors.keys() != DENSE_TENSORS.keys():
        raise CheckpointError(
            f"{weights.label} must hold {' and '.join(DENSE_TENSORS)}, got "
            f"{', '.join(sorted(tensors))[:80]}: save the model again"
        )
    tensors = {DENSE_TENSORS[name]: tensor for name, tensor in tensors.items()}
    return SentenceModules(pooling, length, {"pooler_activation": activation}, tensors)


def _part(parts, role):
    if role not in parts:
        raise SourceError(
            f"{parts['modules'].label} needs {SENTENCE_PARTS[role]}, and there is no "
            "such file: download it"
        )
    return parts[role]


def _read_module(entry, blob):
    """Class and path of an entry of `modules.json`."""
    kind, path = (
        entry.get(name) if isinstance(entry, dict) else None
        for name in ("type", "path")
    )
    if not isinstance(kind, str) or not isinstance(path, str):
        raise ConfigurationError(
            f"{blob.label} must be a list of objects with a type and a path, got "
            f"{entry!r:.80}"
        )
    library, _, name = kind.rpartition(".")
    return (name if library.startswith("sentence_transformers.") else kind), path


def _check_settings(parts):
    if "sentence_settings" not in parts:
        return
    blob = parts["sentence_settings"]
    settings = read_json(blob)
    for name in ("default_prompt_name", "truncate_dim"):
        if settings.get(name) is not None:
            raise ConfigurationError(
                f"{blob.label}: {name} must be null, because encode adds no prompt and "
                f"cuts no vector here, got {settings[name]!r:.80}",
                hint=_WAY_OUT,
            )


def _read_pooling(blob):
    content = read_json(blob)
    mode = content.get("pooling_mode")
    if mode is None:
        # As it was written before version 5.4.
        names = {flag: name for name, flag in _FLAGS.items()}
        on = [
            key
            for key, value in content.items()
            if key.startswith("pooling_mode_") and value is True
        ]
        mode = [names.get(key, key) for key in on] or "mean"
    mode = mode[0] if isinstance(mode, list) and len(mode) == 1 else mode
    if not isinstance(mode, str) or mode not in _POOLINGS:
        raise ConfigurationError(
            f"{blob.label}: pooling_mode must be one of {', '.join(_POOLINGS)}, got "
            f"{mode!r:.80}",
            hint=_WAY_OUT,
        )
    return _POOLINGS[mode]


def _read_length(parts):
    """Length to which sentence-transformers, or its tokenizer, cuts texts."""
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


def _read_dense(content, pooling, label):
    """The activation of a Dense, in Keras's names."""
    theirs = {f"torch.nn.modules.{name}": ours for ours, name in _ACTIVATIONS.items()}
    activation = content.get("activation_function")
    size = content.get("in_features")
    wanted = {
        "bias": (True,),
        "use_residual": (False, None),
        "out_features": (size,),
        "module_input_name": ("sentence_embedding", None),
        "module_output_name": ("sentence_embedding", None),
        "activation_function": tuple(theirs),
    }
    for name, allowed in wanted.items():
        if content.get(name) not in allowed:
            raise ConfigurationError(
                f"{label}: {name} must be {allowed[0]!r}, as in RoFormer-Sim's pooler, "
                f"got {content.get(name)!r:.80}",
                hint=_WAY_OUT,
            )
    if pooling != "first":
        raise ConfigurationError(
            f"{label}: a Dense must follow the pooling 'cls', as RoFormer-Sim's pooler "
            f"does, got {pooling!r}",
            hint=_WAY_OUT,
        )
    return theirs[activation]


# === Writing ===


def write_modules(checkpoint: Checkpoint) -> dict[str, Any]:
    """The content of each JSON file that sentence-transformers needs, by its name.

    Args:
        checkpoint: one whose encoder `write_config` takes.

    Raises:
        ConfigurationError: the model gives no vectors of texts, or other modules would
            have to compute them.
    """
    config, model, label = checkpoint.config, checkpoint.model, checkpoint.label
    options = checkpoint.model_options
    has_pooler = isinstance(config, RoFormerConfig) and bool(config.pooler_activation)
    is_task = model == "RoFormerSentenceEncoder"
    if not is_task and not (
        has_pooler and model in ("RoFormerSim", "RoFormerBackbone")
    ):
        raise ConfigurationError(
            f"{label} holds a {model}, and sentence-transformers takes a "
            "RoFormerSentenceEncoder, a RoFormerSim, or a RoFormerBackbone with a "
            "pooler: train one with `roformer-keras finetune sentence-embedding`"
        )
    if checkpoint.vocabulary is None:
        raise ConfigurationError(
            f"{label} has no vocabulary, and sentence-transformers needs its "
            "tokenizer: give it as vocabulary="
        )
    head = [row.name for row in checkpoint.rows.values() if row.head == "task"]
    if head:
        use = "whitens" if options.get("whitening_dim") else "is used in training alone"
        raise ConfigurationError(
            f"{label} has a head that {use} ({', '.join(head)}), "
            "and sentence-transformers has no place for it",
            hint=Hint("leave it out with {ignore:'task/*'}"),
        )
    length = options.get("max_length", _LENGTH)
    if length > MAX_POSITIONS:
        raise ConfigurationError(
            f"max_length must be at most {MAX_POSITIONS}, the positions that are "
            f"written, got {length:,}: load the model with max_length={MAX_POSITIONS}, "
            "and save it again"
        )
    assert isinstance(config, RoFormerConfig)
    width = config.hidden_dim
    poolings = {ours: name for name, ours in _POOLINGS.items()}
    own_pooling = options.get("pooling", "mean") if is_task else "first"
    if own_pooling not in poolings:
        raise ConfigurationError(
            f"{label} has pooling={own_pooling!r}, which sentence-transformers cannot "
            "compute: choose another format"
        )
    pooling = poolings[own_pooling]
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
        # The names that all versions read.
        SENTENCE_PARTS["pooling"]: {
            "word_embedding_dimension": width,
            **{flag: name == pooling for name, flag in _FLAGS.items()},
        },
    }
    kinds = {"Transformer": "", "Pooling": "1_Pooling"}
    if not is_task:
        kinds["Dense"] = "2_Dense"
        contents[SENTENCE_PARTS["dense"]] = {
            "in_features": width,
            "out_features": width,
            "bias": True,
            "activation_function": "torch.nn.modules."
            + _ACTIVATIONS[str(config.pooler_activation)],
        }
    kinds["Normalize"] = f"{len(kinds)}_Normalize"
    contents[SENTENCE_PARTS["modules"]] = [
        {
            "idx": number,
            "name": str(number),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, (kind, path) in enumerate(kinds.items())
    ]
    return contents
