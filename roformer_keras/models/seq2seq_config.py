"""The hyper-parameters of an encoder-decoder."""

import dataclasses
import json
from collections.abc import Mapping

from roformer_keras.errors import ConfigurationError
from roformer_keras.training.settings import (
    build,
    check_choice,
    check_integer,
    check_number,
    check_types,
)

__all__ = ["Seq2SeqConfig"]

POSITION_EMBEDDINGS = ("rotary", "sinusoidal")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
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

    vocabulary_size: int
    num_layers: int
    num_heads: int
    hidden_dim: int
    intermediate_dim: int
    position_embedding: str = "rotary"
    norm_first: bool = False
    activation: str = "relu"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    layer_norm_epsilon: float = 1e-6

    def __post_init__(self):
        check_types(self)
        for name in (
            "vocabulary_size",
            "num_layers",
            "num_heads",
            "hidden_dim",
            "intermediate_dim",
        ):
            check_integer(name, getattr(self, name), 1)
        check_choice("position_embedding", self.position_embedding, POSITION_EMBEDDINGS)
        for name in ("dropout", "attention_dropout"):
            check_number(name, getattr(self, name), 0, 1, below=True)
        if not self.layer_norm_epsilon > 0:
            raise ConfigurationError(
                f"layer_norm_epsilon must be above 0, got {self.layer_norm_epsilon!r}"
            )
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
    def is_of_bert4keras(self) -> bool:
        """Whether bert4keras has such a model."""
        return False

    def to_dict(self) -> dict:
        """Plain JSON types, as `from_dict` takes them back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping) -> "Seq2SeqConfig":
        """Builds from `to_dict`'s result; unknown and missing fields are errors."""
        return build(cls, fields, "the configuration of an encoder-decoder")

    def __str__(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)
