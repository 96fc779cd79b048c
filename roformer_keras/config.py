"""What a RoFormer is made of, as plain numbers.

Nothing here imports Keras: the command line reads a configuration without it.
"""

import dataclasses
import json
from collections.abc import Mapping

from roformer_keras.checks import Settings, check_choice, choice, integer, number
from roformer_keras.errors import ConfigurationError

__all__ = [
    "BERT_CONFIG_OPTIONS",
    "MODEL_FIELDS",
    "RoFormerConfig",
    "Seq2SeqConfig",
    "config_for_model",
]

MODEL_TYPES = ("roformer", "roformer_v2")
POSITION_EMBEDDINGS = ("rotary", "sinusoidal")
ATTENTION_PATTERNS = ("bidirectional", "causal", "unilm")
# Those whose features are random.
PERFORMERS = ("performer", "rotary_performer")
ATTENTION_TYPES = ("softmax", "linear", "cosine", *PERFORMERS)

# What each model class asks of its backbone; `bert_config.json` says none of it.
MODEL_FIELDS = {
    "RoFormerBackbone": {"attention": "bidirectional"},
    "RoFormerMaskedLM": {"attention": "bidirectional"},
    "RoFormerCausalLM": {"attention": "causal"},
    "RoFormerSim": {"attention": "unilm", "pooler_activation": "linear"},
}

# bert_config.json field -> RoFormerConfig field. bert4keras takes keywords of its
# models from that file too; what it does not know (`directionality`, `pooler_*`) has no
# place here. `layer_norm_epsilon` is ours: bert4keras passes over it.
_BERT_CONFIG_FIELDS = {
    "vocab_size": "vocabulary_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "hidden_size": "hidden_dim",
    "intermediate_size": "intermediate_dim",
    "hidden_act": "activation",
    "embedding_size": "embedding_dim",
    "attention_key_size": "attention_key_size",
    "type_vocab_size": "num_segments",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "initializer_range",
    "residual_attention_scores": "residual_attention_scores",
    "shared_segment_embeddings": "shared_segment_embeddings",
    "custom_position_ids": "custom_position_ids",
    "layer_norm_epsilon": "layer_norm_epsilon",
}
# Those that a released bert_config.json does not have.
BERT_CONFIG_OPTIONS = (
    "residual_attention_scores",
    "shared_segment_embeddings",
    "custom_position_ids",
    "layer_norm_epsilon",
)
_REQUIRED_BERT_FIELDS = (
    "vocab_size",
    "num_hidden_layers",
    "num_attention_heads",
    "hidden_size",
    "intermediate_size",
    "hidden_act",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoFormerConfig(Settings):
    """Hyper-parameters of one RoFormer; the same class serves v1 and v2.

    Args:
        vocabulary_size: int, at least 1. Rows of the token embedding.
        num_layers: int, at least 1.
        num_heads: int, at least 1.
        hidden_dim: int, a multiple of `num_heads`.
        intermediate_dim: int, at least 1. Inner width of the feed-forward.
        model_type: `"roformer"` or `"roformer_v2"`. v2 has no biases, a norm
            without parameters and no transform before the tied MLM output.
        activation: str. A Keras activation name; `"gelu"` is the erf form.
        embedding_dim: int or None. Width of the embeddings when it is not
            `hidden_dim`; a dense layer then maps one to the other.
        attention_key_size: int or None, even. Features per head of queries and
            keys when it is not `hidden_dim / num_heads`.
        num_segments: int, at least 1. Rows of the segment embedding.
        dropout: float in [0, 1). After embeddings, attention and feed-forward.
        attention_dropout: float in [0, 1). On attention weights; those of linear cost
            have none that could be dropped.
        layer_norm_epsilon: float above 0. 1e-12 as the checkpoints were trained;
            bert4keras from 0.11.4 on computes with 1e-7.
        initializer_range: float above 0. Standard deviation of fresh v1 weights.
        rotary_base: float above 0. Pair i of a head's features turns by
            `rotary_base ** (-2i / features)` radians a token. bert4keras knows 10000
            alone; a model trained with that reads longer texts with a larger one
            (NTK-aware scaling).
        attention: `"bidirectional"`, `"causal"` or `"unilm"`.
        attention_type: `"softmax"`, or one of linear cost, see `LinearRoPEAttention`:
            `"linear"`, `"cosine"`, `"performer"` or `"rotary_performer"`, none of them
            for UniLM.
        rotary: bool. False leaves out all positions.
        performer_features: int or None, even. Random features per head of both
            Performers; 256 if it is not given.
        performer_seed: int, at least 0. They are drawn from it, and kept in no file.
        pooler_activation: str or None. With a name, a dense layer with that
            activation turns the first position into a pooled output; RoFormer-Sim
            needs `"linear"`.
        with_nsp: bool. Adds next-sentence probabilities; needs a pooler.
        custom_position_ids: bool. Adds a float input `position_ids`.
        shared_segment_embeddings: bool. Segments index the token embedding, and as in
            bert4keras id 0 is then padding among the segments too.
        residual_attention_scores: bool. Adds each layer's raw attention scores to
            the next layer's (RealFormer, as bert4keras computes it).
        layer_norm_cond_size: int or None. Width of the input `layer_norm_cond`,
            which then shifts and scales every norm. v1 only.
        layer_norm_cond_hidden_size: int or None. Width of a dense layer between
            the condition and the norms.
        layer_norm_cond_hidden_activation: str. Activation of that layer.

    Raises:
        ConfigurationError: a field breaks its rule; names the field and the value.
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
    layer_norm_epsilon: float = number(1e-12, above=0)
    initializer_range: float = number(0.02, above=0)
    rotary_base: float = number(10000.0, above=0)
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

    def _check_together(self):
        if self.attention_key_size is None and self.hidden_dim % self.num_heads:
            raise ConfigurationError(
                "hidden_dim must be a multiple of num_heads, got "
                f"hidden_dim={self.hidden_dim}, num_heads={self.num_heads}"
            )
        if self.key_dim % 2:
            raise ConfigurationError(
                "features per head must be even, because RoPE turns them in pairs; "
                f"got {self.key_dim}"
            )
        self._check_attention()
        if self.with_nsp and self.pooler_activation is None:
            raise ConfigurationError(
                "with_nsp needs a pooler: set pooler_activation, which is 'tanh' in "
                "bert4keras"
            )
        if self.layer_norm_cond_hidden_size and not self.layer_norm_cond_size:
            raise ConfigurationError(
                "layer_norm_cond_hidden_size needs layer_norm_cond_size"
            )
        if self.model_type == "roformer_v2":
            for name in ("pooler_activation", "layer_norm_cond_size"):
                if getattr(self, name) is not None:
                    raise ConfigurationError(
                        f"roformer_v2 has no {name}, got {getattr(self, name)!r}"
                    )

    def _check_attention(self):
        if self.is_linear:
            for name, refused in (
                ("attention", "unilm"),
                ("residual_attention_scores", True),
            ):
                if getattr(self, name) == refused:
                    raise ConfigurationError(
                        f"{name}={refused!r} needs scores of all pairs of tokens, "
                        f"which attention_type={self.attention_type!r} does not "
                        "compute: take attention_type='softmax', or leave it out"
                    )
        features = self.performer_features
        if features is not None and self.attention_type not in PERFORMERS:
            raise ConfigurationError(
                "performer_features needs attention_type='performer' or "
                f"'rotary_performer', got {features} with {self.attention_type!r}"
            )
        if features is not None and features % 2:
            raise ConfigurationError(
                "performer_features must be even, because RoPE turns features in "
                f"pairs; got {features}"
            )
        if self.custom_position_ids and not self.rotary:
            raise ConfigurationError(
                "custom_position_ids needs rotary=True: without rotation positions "
                "change nothing"
            )

    @property
    def is_linear(self) -> bool:
        """Whether the cost of attention grows with the length, not with its square."""
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
        """Whether dense layers have a bias and norms their own parameters: v1."""
        return self.model_type == "roformer"

    @property
    def bert4keras_compatible(self) -> bool:
        """Whether bert4keras has this attention: what it cannot compute is no zip."""
        return not self.is_linear and self.rotary and self.rotary_base == 10000

    @classmethod
    def from_bert_config(
        cls, bert_config: Mapping, model_type: str = "roformer", **changes
    ) -> "RoFormerConfig":
        """Builds from the content of a `bert_config.json`.

        The file does not tell v1 from v2: only the tensors beside it do, which is why
        `model_type` is an argument. Fields that it lacks take bert4keras's defaults;
        fields that bert4keras ignores are ignored here too.
        """
        if not isinstance(bert_config, Mapping):
            raise ConfigurationError(
                "bert_config.json must hold one JSON object, got "
                f"{type(bert_config).__name__}"
            )
        missing = [name for name in _REQUIRED_BERT_FIELDS if name not in bert_config]
        if missing:
            raise ConfigurationError(f"bert_config.json lacks {', '.join(missing)}")
        fields = {"dropout": 0.0, "attention_dropout": 0.0, "model_type": model_type}
        for theirs, ours in _BERT_CONFIG_FIELDS.items():
            if bert_config.get(theirs) is not None:
                fields[ours] = bert_config[theirs]
        return cls.from_dict({**fields, **changes})

    def to_bert_config(self) -> dict:
        """The `bert_config.json` from which bert4keras builds the same encoder.

        Raises:
            ConfigurationError: it cannot, see `bert4keras_compatible`.
        """
        if not self.bert4keras_compatible:
            raise ConfigurationError(
                "bert4keras knows softmax attention that is rotated to the base 10000 "
                f"alone, got attention_type={self.attention_type!r}, "
                f"rotary={self.rotary!r}, rotary_base={self.rotary_base!r}: choose "
                "another format"
            )
        fields = self.to_dict()
        plain = {field.name: field.default for field in dataclasses.fields(self)}
        return {
            theirs: fields[ours]
            for theirs, ours in _BERT_CONFIG_FIELDS.items()
            if fields[ours] is not None
            and not (ours in BERT_CONFIG_OPTIONS and fields[ours] == plain[ours])
        }

    def __str__(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(Settings):
    """Hyper-parameters of one `RoFormerSeq2Seq`.

    Args:
        vocabulary_size: int, at least 1. Of source and target, which share it.
        num_layers: int, at least 1. Blocks of the encoder, and as many of the decoder.
        num_heads: int, at least 1.
        hidden_dim: int, a multiple of `num_heads`, into an even number a head.
        intermediate_dim: int, at least 1. Inner width of the feed-forward.
        position_embedding: `"rotary"` turns queries and keys of self-attention;
            `"sinusoidal"` is added to the embeddings and turns nothing, as in the
            Transformer of Vaswani et al.
        norm_first: bool. Whether what goes into attention and feed-forward is
            normalised, and then what leaves each side; else what comes out of each sum.
        activation: str. A Keras activation name; `"gelu"` is the erf form.
        dropout: float in [0, 1). After embeddings, attention and feed-forward.
        attention_dropout: float in [0, 1). On attention weights.
        layer_norm_epsilon: float above 0.

    Raises:
        ConfigurationError: a field breaks its rule; names the field and the value.
    """

    vocabulary_size: int = integer(minimum=1)
    num_layers: int = integer(minimum=1)
    num_heads: int = integer(minimum=1)
    hidden_dim: int = integer(minimum=1)
    intermediate_dim: int = integer(minimum=1)
    position_embedding: str = choice("rotary", choices=POSITION_EMBEDDINGS)
    norm_first: bool = False
    activation: str = "relu"
    dropout: float = number(0.1, minimum=0, below=1)
    attention_dropout: float = number(0.0, minimum=0, below=1)
    layer_norm_epsilon: float = number(1e-6, above=0)

    def _check_together(self):
        if self.hidden_dim % (2 * self.num_heads):
            raise ConfigurationError(
                "hidden_dim must be a multiple of num_heads, with an even number of "
                f"features a head, got hidden_dim={self.hidden_dim}, "
                f"num_heads={self.num_heads}"
            )

    @property
    def head_dim(self) -> int:
        """Features per head."""
        return self.hidden_dim // self.num_heads

    @property
    def bert4keras_compatible(self) -> bool:
        """Whether bert4keras has such a model."""
        return False

    def __str__(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)


def config_for_model(
    model: str, config: RoFormerConfig, stored_as: str | None = None, **changes
) -> RoFormerConfig:
    """The configuration with which a model class takes up stored weights.

    Attention and pooler are the class's own, unless the weights were stored by the
    same class; `changes` go before both.

    Args:
        model: name of a model class.
        config: of the stored weights.
        stored_as: name of the class that stored them, where that is known.
        changes: fields to set.

    Raises:
        ConfigurationError: no such class, or a field breaks its rule.
    """
    check_choice("model", model, MODEL_FIELDS)
    fields = {}
    if stored_as != model:
        fields = {
            "pooler_activation": None,
            "with_nsp": False,
            **MODEL_FIELDS[model],
        }
    return config.replace(**{**fields, **changes})
