"""Configurations and tokenizers of Hugging Face, in both directions."""

import re
from collections.abc import Mapping
from typing import Any

from roformer_keras.base.config import RoFormerConfig
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.conversion.checkpoint import Checkpoint
from roformer_keras.conversion.huggingface_heads import (
    ACTIVATIONS,
    TASK_ARCHITECTURES,
    THEIR_ACTIVATIONS,
    write_task,
)
from roformer_keras.conversion.weights import PYTORCH_DECODER
from roformer_keras.io.tensor import Tensor
from roformer_keras.io.vocabulary import CLS, MASK, PAD, SEP, UNK, vocabulary_level

# Length of the written table of positions, as in the released models.
MAX_POSITIONS = 1536

# Fields of config.json -> field of RoFormerConfig, and Transformers' default.
_FIELDS: dict[str, tuple[str, Any]] = {
    "vocab_size": ("vocabulary_size", 50000),
    "embedding_size": ("embedding_dim", None),
    "hidden_size": ("hidden_dim", 768),
    "num_hidden_layers": ("num_layers", 12),
    "num_attention_heads": ("num_heads", 12),
    "intermediate_size": ("intermediate_dim", 3072),
    "hidden_dropout_prob": ("dropout", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1),
    "type_vocab_size": ("num_segments", 2),
    "initializer_range": ("initializer_range", 0.02),
    "layer_norm_eps": ("layer_norm_epsilon", 1e-12),
}
# Fields that both sides support only with these values. Transformers' limit of
# positions does not limit this package.
_ONLY: dict[str, tuple[Any, ...]] = {
    "model_type": ("roformer", None),
    "rotary_value": (False, None),
    "add_cross_attention": (False, None),
    "is_encoder_decoder": (False, None),
    "pad_token_id": (0, None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "position_embedding_type": ("rotary", "absolute", None),
}
# Transformers' heads that no task of this package computes.
_LEFT_OUT = re.compile(r"(classifier|qa_outputs|sequence_summary)\.")


# === Reading ===


def check_values(
    fields: Any, allowed: Mapping[str, tuple], reason: str, label="", hint=None
) -> None:
    """Raises ConfigurationError unless each field has an allowed value.

    Args:
        fields: dict; a missing field counts as None.
        allowed: dict of field to values; the error names the first value.
        reason: why no other values are allowed.
        label: prefix of the message.
        hint: hint of the error.
    """
    for name, values in allowed.items():
        value = fields.get(name) if isinstance(fields, dict) else fields
        if not any(
            type(value) is type(allowed_value) and value == allowed_value
            for allowed_value in values
        ):
            raise ConfigurationError(
                f"{label}{name} must be {values[0]!r:.80}, {reason}, got {value!r:.80}",
                hint=hint,
            )


def read_config(fields: Mapping, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Fields of a `Checkpoint` from a `config.json` and the tensors next to it.

    Args:
        fields: content of the file. A missing field has Transformers' default.
        tensors: as `own_tensors` returns them.

    Returns:
        dict of `config`, `model`, `model_options` and `left_out`: the names of tensors
        for which this package has no layer.

    Raises:
        ConfigurationError: this package does not support the value of a field.
    """
    check_values(fields, _ONLY, "which is all that this package computes")
    known = {name: fields.get(key, default) for key, (name, default) in _FIELDS.items()}
    known["activation"] = _activation(fields, "hidden_act", "gelu")
    if known["embedding_dim"] == known["hidden_dim"]:
        known["embedding_dim"] = None
    config = RoFormerConfig.from_dict(known)
    has_norms = any(name.endswith("embeddings.LayerNorm.weight") for name in tensors)
    if fields.get("use_bias", has_norms) is not has_norms:
        raise ConfigurationError(
            f"use_bias must be {has_norms} for tensors with"
            f"{'' if has_norms else 'out'} norms, got {fields['use_bias']!r}"
        )
    config = config.replace(
        model_type="roformer" if has_norms else "roformer_v2",
        tie_word_embeddings=PYTORCH_DECODER not in tensors,
    )
    has_mlm = any(name.startswith("cls.predictions.") for name in tensors)
    left_out = [name for name in tensors if _LEFT_OUT.match(name)]
    pooler = [name for name in tensors if name.startswith("roformer.pooler.")]
    is_decoder = _flag(fields, "is_decoder", False)
    model = "RoFormerMaskedLM" if has_mlm or not has_norms else "RoFormerBackbone"
    if not has_norms:
        # RoFormerV2 was trained without the pooler that JunnYu's class adds.
        left_out += pooler
    elif pooler:
        # JunnYu's script leaves the field out: a pooler and a masked LM without an NSP
        # head mean RoFormer-Sim.
        has_nsp = any(name.startswith("cls.seq_relationship.") for name in tensors)
        default = "linear" if has_mlm and not has_nsp else "tanh"
        activation = _activation(fields, "pooler_activation", default)
        config = config.replace(pooler_activation=activation)
        if has_mlm and activation == "linear":
            model = "RoFormerSim"
    if model == "RoFormerSim":
        config = config.replace(attention="unilm")
    elif is_decoder:
        config = config.replace(attention="causal")
        model = "RoFormerCausalLM" if model == "RoFormerMaskedLM" else model
    if has_mlm and has_norms:
        config = config.replace(head_norm_epsilon=config.layer_norm_epsilon)
    return {"config": config, "model": model, "left_out": tuple(left_out)}


def _activation(fields, name, default):
    value = fields.get(name, default)
    refuse(
        not isinstance(value, str) or value not in ACTIVATIONS,
        f"{name} must be one of {', '.join(ACTIVATIONS)}, which are the same "
        f"functions in Keras, got {value!r:.80}",
    )
    return ACTIVATIONS[value]


def _flag(fields, name, default):
    value = fields.get(name, default)
    refuse(
        not isinstance(value, bool),
        f"{name} must be true or false, got {value!r:.80}",
    )
    return value


# === Writing ===


def write_config(checkpoint: Checkpoint, one_segment: bool = False) -> dict[str, Any]:
    """The `config.json` from which Transformers builds the same model.

    Args:
        one_segment: bool. Whether all segment ids will be 0.

    Raises:
        ConfigurationError: Transformers has no such model.
    """
    config, model = checkpoint.config, checkpoint.model
    architecture = _ARCHITECTURES.get(str(model))
    if not isinstance(config, RoFormerConfig) or architecture is None:
        raise ConfigurationError(
            f"{checkpoint.label} holds a {model}, and Transformers' RoFormer computes "
            f"the same only for {', '.join(_ARCHITECTURES)}: choose another format"
        )
    problem = _find_problem(checkpoint, config, one_segment)
    refuse(
        problem is not None,
        f"{checkpoint.label} has {problem}, which Transformers' RoFormer cannot "
        "compute: choose another format",
        hint=_NO_V2 if config.model_type == "roformer_v2" else None,
    )
    values = {**config.to_dict(), "embedding_dim": config.input_dim}
    fields = {key: values[name] for key, (name, _) in _FIELDS.items()}
    fields |= {
        "architectures": [architecture],
        "model_type": "roformer",
        "hidden_act": THEIR_ACTIVATIONS[config.activation],
        "is_decoder": config.attention == "causal",
        "max_position_embeddings": MAX_POSITIONS,
        "pad_token_id": 0,
        "rotary_value": False,
        "tie_word_embeddings": config.tie_word_embeddings,
        "dtype": "float32",
    }
    if config.pooler_activation is not None:
        fields["pooler_activation"] = THEIR_ACTIVATIONS[config.pooler_activation]
    return {**fields, **write_task(checkpoint)}


def write_tokenizer_config(
    checkpoint: Checkpoint, max_length: int = MAX_POSITIONS
) -> dict[str, Any]:
    """The `tokenizer_config.json` of a checkpoint's vocabulary.

    Transformers' RoFormerTokenizer cuts words by jieba, for which it needs a package. A
    character vocabulary needs no words, so BERT's tokenizer reads it.
    """
    tokens = checkpoint.vocabulary or ()
    level = checkpoint.tokenizer.get("level") or vocabulary_level(tokens)
    kind = "RoFormerTokenizer" if level == "word" else "BertTokenizer"
    inputs = ["input_ids", "attention_mask"]
    has_segments = checkpoint.model_options.get("text_segment", 1)
    return {
        **({} if has_segments else {"model_input_names": inputs}),
        "tokenizer_class": kind,
        "do_lower_case": checkpoint.tokenizer.get("lower_case", True),
        "tokenize_chinese_chars": True,
        "strip_accents": None,
        "model_max_length": max_length,
        **{f"{name[1:-1].lower()}_token": name for name in _SPECIAL if name in tokens},
    }


_SPECIAL = (PAD, UNK, CLS, SEP, MASK)


def write_tokenizer_file(checkpoint: Checkpoint) -> dict[str, Any]:
    """The `tokenizer.json` of a word vocabulary.

    From a `vocab.txt` alone, Transformers 5 cuts every word into its characters.
    """
    tokens = checkpoint.vocabulary or ()
    ids = {token: number for number, token in enumerate(tokens)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": ids[name], "content": name, **flags, "special": True}
            for name in sorted(_SPECIAL, key=lambda name: ids.get(name, -1))
            if name in ids
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": False,
            "strip_accents": None,
            "lowercase": checkpoint.tokenizer.get("lower_case", True),
        },
        # Transformers replaces it by jieba, which no file can store.
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": pair_template(ids),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": UNK,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }


def pair_template(ids: Mapping[str, int]) -> dict[str, Any]:
    """The post-processor of `[CLS] first [SEP] second [SEP]`, from ids by token."""
    first, second = (
        [
            {"Sequence": {"id": name, "type_id": kind}},
            {"SpecialToken": {"id": SEP, "type_id": kind}},
        ]
        for kind, name in enumerate("AB")
    )
    single = [{"SpecialToken": {"id": CLS, "type_id": 0}}, *first]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *second],
        "special_tokens": {
            name: {"id": name, "ids": [ids[name]], "tokens": [name]}
            for name in (CLS, SEP)
            if name in ids
        },
    }


_NO_V2 = (
    "a preset, safetensors or .keras keep RoFormerV2, which Transformers lacks, and "
    "export writes it for ONNX Runtime and OpenVINO"
)
# Architectures that compute the same on both sides. RoFormer-Sim is written as a masked
# language model, next to a pooler in the layout of JunnYu's package.
_ARCHITECTURES = {
    "RoFormerBackbone": "RoFormerModel",
    "RoFormerMaskedLM": "RoFormerForMaskedLM",
    "RoFormerCausalLM": "RoFormerForCausalLM",
    "RoFormerSim": "RoFormerForMaskedLM",
    **TASK_ARCHITECTURES,
}


def _find_problem(checkpoint, config, one_segment):
    """The first option that Transformers cannot compute, or None."""
    # With one segment, UniLM attention is bidirectional.
    allows_unilm = one_segment or checkpoint.model == "RoFormerSim"
    if config.attention == "unilm" and not allows_unilm:
        return "attention='unilm'"
    plain = {
        "model_type": "roformer",
        "attention_type": "softmax",
        "rotary": True,
        "rotary_base": 10000,
        "attention_key_size": None,
        "custom_position_ids": False,
        "shared_segment_embeddings": False,
        "residual_attention_scores": False,
        "layer_norm_cond_size": None,
        "with_nsp": False,
    }
    for name, value in plain.items():
        actual = getattr(config, name)
        if actual != value and not (
            name == "attention_key_size" and actual == config.head_dim
        ):
            return f"{name}={actual!r}"
    for name in ("activation", "pooler_activation"):
        value = getattr(config, name)
        if value is not None and value not in ACTIVATIONS.values():
            return f"{name}={value!r}"
    has_head = "mlm" in checkpoint.heads
    if has_head and config.head_norm_epsilon != config.layer_norm_epsilon:
        return (
            f"head_norm_epsilon={config.head_norm_epsilon!r} next to "
            f"layer_norm_epsilon={config.layer_norm_epsilon!r}"
        )
    return None
