"""Hyper-parameters of models. Neither this module nor the commands import Keras."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Self, TypeAlias

from roformer_keras.base.checks import (
    Settings,
    check_choice,
    choice,
    integer,
    number,
)
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.types import Unchecked

MODEL_TYPES = ("roformer", "roformer_v2")
ATTENTION_PATTERNS = ("bidirectional", "causal", "unilm")
# Types of attention with random features.
PERFORMERS = ("performer", "rotary_performer")
ATTENTION_TYPES = ("softmax", "linear", "cosine", *PERFORMERS)

# Fields that each model class sets, because `bert_config.json` does not state them.
MODEL_FIELDS = {
    "RoFormerBackbone": {"attention": "bidirectional"},
    "RoFormerMaskedLM": {"attention": "bidirectional"},
    "RoFormerCausalLM": {"attention": "causal"},
    "RoFormerSim": {"attention": "unilm", "pooler_activation": "linear"},
}

# Keras's activations by name, without those that need arguments or change the width,
# and the approximate GELU.
ACTIVATIONS = (
    "celu",
    "elu",
    "exponential",
    "gelu",
    "gelu_tanh",
    "hard_shrink",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "leaky_relu",
    "linear",
    "log_sigmoid",
    "log_softmax",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_shrink",
    "softmax",
    "softplus",
    "softsign",
    "sparse_plus",
    "sparse_sigmoid",
    "sparsemax",
    "squareplus",
    "swish",
    "tanh",
    "tanh_shrink",
)

# Fields of bert_config.json -> fields of RoFormerConfig: all fields that bert4keras
# reads, and the epsilons, which it ignores.
# Required fields.
_REQUIRED_BERT_FIELDS = {
    "vocab_size": "vocabulary_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "hidden_size": "hidden_dim",
    "intermediate_size": "intermediate_dim",
    "hidden_act": "activation",
}
# Optional fields of the same name on both sides; no released file has them.
BERT_CONFIG_OPTIONS = (
    "residual_attention_scores",
    "shared_segment_embeddings",
    "custom_position_ids",
    "layer_norm_epsilon",
    "head_norm_epsilon",
)
# All fields.
_BERT_CONFIG_FIELDS = {
    **_REQUIRED_BERT_FIELDS,
    "embedding_size": "embedding_dim",
    "attention_key_size": "attention_key_size",
    "type_vocab_size": "num_segments",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "initializer_range",
    **{name: name for name in BERT_CONFIG_OPTIONS},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoFormerConfig(Settings):
    """Hyper-parameters of one RoFormer; the same class serves v1 and v2.

    Args:
        vocabulary_size: int. Rows of the token embedding.
        num_layers, num_heads: int.
        hidden_dim: int. A multiple of `num_heads`.
        intermediate_dim: int. Inner width of the feed-forward.
        model_type: `"roformer"` or `"roformer_v2"`, which has no biases, a norm
            without parameters and no transform before the tied MLM output.
        activation: str. A Keras activation name; `"gelu"` is the erf form, and
            `"gelu_tanh"` its approximation by tanh.
        embedding_dim: int or None. Width of the embeddings if it is not `hidden_dim`;
            a dense layer then maps one to the other.
        attention_key_size: int or None. Features per head of queries and keys if not
            `hidden_dim / num_heads`; even.
        num_segments: int. Rows of the segment embedding.
        dropout: float. After embeddings, attention and feed-forward.
        attention_dropout: float. On attention weights, which only softmax has.
        layer_norm_epsilon: float. 1e-12 as the checkpoints were trained; bert4keras
            computes with 1e-7 from 0.11.4 on.
        head_norm_epsilon: float. Of the norm in the MLM head, which has 1e-12 in every
            version of bert4keras.
        tie_word_embeddings: bool. Whether the output of a language model is the
            transposed token embedding; with False it is a separate matrix.
        initializer_range: float. Standard deviation of new v1 weights.
        rotary_base: float. Pair i of a head's features turns by
            `rotary_base ** (-2i / features)` radians a token. bert4keras has 10000
            only; a model trained with that reads longer texts with a larger one
            (NTK-aware scaling).
        attention: `"bidirectional"`, `"causal"` or `"unilm"`.
        attention_type: `"softmax"`, or with linear cost `"linear"`, `"cosine"`,
            `"performer"` or `"rotary_performer"`, none of which can be UniLM; see
            `LinearRoPEAttention`.
        rotary: bool. False leaves out all positions.
        performer_features: int or None. Random features per head of both Performers,
            256 by default; even.
        performer_seed: int. Seed of those features, which no file stores.
        pooler_activation: str or None. Activation of a dense layer on the first
            position, the pooled output; RoFormer-Sim needs `"linear"`.
        with_nsp: bool. Adds next-sentence probabilities; needs a pooler.
        custom_position_ids: bool. Adds a float input `position_ids`.
        shared_segment_embeddings: bool. Segments index the token embedding; as in
            bert4keras, segment 0 then counts as padding.
        residual_attention_scores: bool. Adds each layer's raw attention scores to
            the next layer's (RealFormer, as in bert4keras).
        layer_norm_cond_size: int or None. Width of the input `layer_norm_cond`,
            which shifts and scales every norm. v1 only.
        layer_norm_cond_hidden_size: int or None. Width of a dense layer between
            the condition and the norms.
        layer_norm_cond_hidden_activation: str. Activation of that layer.

    Raises:
        ConfigurationError: a field breaks its rule; names the field and the value.

    Example:
        >>> config = roformer_keras.RoFormerConfig(
        ...     vocabulary_size=100,
        ...     num_layers=2,
        ...     num_heads=2,
        ...     hidden_dim=16,
        ...     intermediate_dim=64,
        ... )
        >>> config.head_dim, config.replace(dropout=0.2).dropout
        (8, 0.2)

    Source: Su et al. 2021, arXiv:2104.09864; for RoFormerV2
    https://kexue.fm/archives/8998
    """

    vocabulary_size: int = integer(minimum=1)
    num_layers: int = integer(minimum=1)
    num_heads: int = integer(minimum=1)
    hidden_dim: int = integer(minimum=1)
    intermediate_dim: int = integer(minimum=1)
    model_type: str = choice("roformer", choices=MODEL_TYPES)
    activation: str = "gelu"
    embedding_dim: int | None = integer(None, minimum=1)
    attention_key_size: int | None = integer(None, minimum=1)
    num_segments: int = integer(2, minimum=1)
    dropout: float = number(0.1, minimum=0, below=1)
    attention_dropout: float = number(0.1, minimum=0, below=1)
    layer_norm_epsilon: float = number(1e-12, above=0, maximum=1)
    head_norm_epsilon: float = number(1e-12, above=0, maximum=1)
    tie_word_embeddings: bool = True
    initializer_range: float = number(0.02, above=0, maximum=100)
    # These are nearly the largest and the smallest numbers of float32.
    rotary_base: float = number(10000.0, minimum=1e-30, maximum=1e30)
    attention: str = choice("bidirectional", choices=ATTENTION_PATTERNS)
    attention_type: str = choice("softmax", choices=ATTENTION_TYPES)
    rotary: bool = True
    performer_features: int | None = integer(None, minimum=1)
    performer_seed: int = integer(0, minimum=0)
    pooler_activation: str | None = None
    with_nsp: bool = False
    custom_position_ids: bool = False
    shared_segment_embeddings: bool = False
    residual_attention_scores: bool = False
    layer_norm_cond_size: int | None = integer(None, minimum=1)
    layer_norm_cond_hidden_size: int | None = integer(None, minimum=1)
    layer_norm_cond_hidden_activation: str = "linear"

    def _check_together(self) -> None:
        for name in (
            "activation",
            "pooler_activation",
            "layer_norm_cond_hidden_activation",
        ):
            value = getattr(self, name)
            refuse(
                value not in (None, *ACTIVATIONS),
                f"{name} must be the name of a Keras activation, got {value!r}",
            )
        refuse(
            self.attention_key_size is None and self.hidden_dim % self.num_heads,
            "hidden_dim must be a multiple of num_heads, got "
            f"hidden_dim={self.hidden_dim}, num_heads={self.num_heads}",
        )
        refuse(
            self.key_dim % 2,
            "features per head must be even, because RoPE turns them in pairs; got "
            f"{self.key_dim}",
        )
        self._check_attention()
        refuse(
            self.with_nsp and self.pooler_activation is None,
            "with_nsp needs a pooler: set pooler_activation, which is 'tanh' in "
            "bert4keras",
        )
        refuse(
            self.layer_norm_cond_hidden_size and not self.layer_norm_cond_size,
            "layer_norm_cond_hidden_size needs layer_norm_cond_size",
        )
        for name in ("pooler_activation", "layer_norm_cond_size"):
            refuse(
                not self.use_bias and getattr(self, name) is not None,
                f"roformer_v2 has no {name}, got {getattr(self, name)!r}",
            )

    def _check_attention(self) -> None:
        kind, features = self.attention_type, self.performer_features
        for name, value in (
            ("attention", "unilm"),
            ("residual_attention_scores", True),
        ):
            refuse(
                self.is_linear and getattr(self, name) == value,
                f"{name}={value!r} needs scores of all pairs of tokens, which "
                f"attention_type={kind!r} does not compute: take "
                "attention_type='softmax', or leave it out",
            )
        has_one_segment = self.num_segments == 1 and not self.shared_segment_embeddings
        refuse(
            self.attention == "unilm" and has_one_segment,
            "attention='unilm' tells the second text by its segment 1: num_segments "
            "must be at least 2, got 1",
        )
        refuse(
            features is not None and kind not in PERFORMERS,
            "performer_features needs attention_type='performer' or "
            f"'rotary_performer', got {features} with {kind!r}",
        )
        refuse(
            features is not None and features % 2,
            "performer_features must be even, because RoPE turns features in pairs; "
            f"got {features}",
        )
        refuse(
            self.custom_position_ids and not self.rotary,
            "custom_position_ids needs rotary=True: without rotation positions change "
            "nothing",
        )

    @property
    def is_linear(self) -> bool:
        """True if the cost of attention grows linearly with the length."""
        return self.attention_type != "softmax"

    @property
    def head_dim(self) -> int:
        """Features per head of the values."""
        return self.hidden_dim // self.num_heads

    @property
    def key_dim(self) -> int:
        """Features per head of queries and keys."""
        return self.attention_key_size or self.head_dim

    @property
    def input_dim(self) -> int:
        """Width of the token embedding."""
        return self.embedding_dim or self.hidden_dim

    @property
    def use_bias(self) -> bool:
        """True for v1: dense layers have a bias, and norms have parameters."""
        return self.model_type == "roformer"

    @property
    def bert4keras_compatible(self) -> bool:
        """True if bert4keras has such a model, so that a zip can store it."""
        has_base = self.rotary and self.rotary_base == 10000
        return has_base and not self.is_linear and self.tie_word_embeddings

    @classmethod
    def from_bert_config(
        cls,
        bert_config: Mapping[str, Any],
        model_type: str = "roformer",
        **changes: Any,
    ) -> Self:
        """Builds a configuration from the content of a `bert_config.json`.

        The file does not state whether the model is v1 or v2; only the tensors show it.
        Missing fields get bert4keras's defaults; fields that bert4keras ignores are
        ignored.

        Args:
            bert_config: dict, the content of the file.
            model_type: `"roformer"` or `"roformer_v2"`.
            changes: fields to set, such as `dropout=0.1`.

        Raises:
            ConfigurationError: a field is missing or breaks its rule.
        """
        refuse(
            not isinstance(bert_config, Mapping),
            "bert_config.json must hold one JSON object, got "
            f"{type(bert_config).__name__}",
        )
        missing = [name for name in _REQUIRED_BERT_FIELDS if name not in bert_config]
        if missing:
            raise ConfigurationError(f"bert_config.json lacks {', '.join(missing)}")
        refuse(
            bert_config.get("hidden_act", "gelu") is None,
            "hidden_act of bert_config.json must be the name of an activation, "
            "got null",
        )
        fields = {"dropout": 0.0, "attention_dropout": 0.0, "model_type": model_type}
        for bert_name, name in _BERT_CONFIG_FIELDS.items():
            if bert_config.get(bert_name) is not None:
                fields[name] = bert_config[bert_name]
        return cls.from_dict({**fields, **changes})

    def to_bert_config(self) -> dict[str, Any]:
        """The `bert_config.json` from which bert4keras builds the same encoder.

        Raises:
            ConfigurationError: bert4keras has no such model, see
                `bert4keras_compatible`.
        """
        refuse(
            not self.bert4keras_compatible,
            "bert4keras has only softmax attention with rotary_base=10000, and "
            f"tied outputs, got attention_type={self.attention_type!r}, "
            f"rotary={self.rotary!r}, rotary_base={self.rotary_base!r}, "
            f"tie_word_embeddings={self.tie_word_embeddings!r}: choose another "
            "format",
        )
        fields = self.to_dict()
        plain = {field.name: field.default for field in dataclasses.fields(self)}
        return {
            bert_name: fields[name]
            for bert_name, name in _BERT_CONFIG_FIELDS.items()
            if fields[name] is not None
            and not (name in BERT_CONFIG_OPTIONS and fields[name] == plain[name])
        }


# A configuration, the content of a `bert_config.json`, or its path.
ConfigSource: TypeAlias = RoFormerConfig | Mapping[str, Any] | str | os.PathLike[str]


def config_for_model(
    model: str,
    config: RoFormerConfig,
    stored_as: str | None = None,
    **changes: Unchecked,
) -> RoFormerConfig:
    """The configuration with which a model class loads stored weights.

    The class decides attention and pooler, unless it stored the weights itself. A
    backbone keeps causal attention. It reads the weights of a UniLM in both directions,
    as a UniLM reads its first segment.

    Args:
        model: name of a model class.
        config: the configuration of the stored weights.
        stored_as: name of the class that stored them, or None if unknown.
        changes: fields to set in any case.

    Raises:
        ConfigurationError: the class is unknown, or a field breaks its rule.
    """
    check_choice("model", model, MODEL_FIELDS)
    fields = {}
    if stored_as != model:
        fields = {
            "pooler_activation": None,
            "with_nsp": False,
            **MODEL_FIELDS[model],
        }
    if model == "RoFormerBackbone" and config.attention == "causal":
        fields["attention"] = "causal"
    return config.replace(**{**fields, **changes})


def config_from(
    config: RoFormerConfig | None, fields: Mapping[str, Unchecked]
) -> RoFormerConfig:
    """The configuration of a model, from an object or from its fields.

    Args:
        config: `RoFormerConfig` or None.
        fields: dict of its fields; empty with a `config`.

    Raises:
        ConfigurationError: both are given, or a field breaks its rule.
    """
    if config is None:
        return RoFormerConfig.from_dict(fields)
    if fields:
        raise ConfigurationError(
            "give a config or its fields as keyword arguments, got both a config and "
            f"{next(iter(fields))}: use config.replace(...)"
        )
    return config
