"""RoFormer as an encoder-decoder: one text in, another out."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from roformer_keras.config import Seq2SeqConfig, config_from
from roformer_keras.data.rows import PairRows
from roformer_keras.data.tables import is_table
from roformer_keras.data.texts import as_pairs, as_texts
from roformer_keras.engines.network import write_decoder, write_encoder
from roformer_keras.errors import ConfigurationError
from roformer_keras.fast_model import refuse_quantized
from roformer_keras.generation import generate as writing
from roformer_keras.generation.encoder_decoder import EncoderDecoder
from roformer_keras.generation.engines import Networks, kept_decoder
from roformer_keras.generation.prompts import DefaultLengths
from roformer_keras.generation.stateful import Reading
from roformer_keras.layers import (
    AttentionMask,
    CrossAttention,
    FeedForward,
    LayerNorm,
    RoFormerBlock,
    RoFormerDecoderBlock,
    RoPEAttention,
    SinusoidalPositionEmbedding,
)
from roformer_keras.losses import LabelSmoothing
from roformer_keras.models.preset import PresetModel
from roformer_keras.models.preset_files import take_tokenizer
from roformer_keras.models.text_data import TextData
from roformer_keras.optimizers import make_optimizer
from roformer_keras.types import Texts

# As in Vaswani et al., section 5.3: for width d and W updates of warm-up the highest
# rate is (d W) ** -0.5.
_WARMUP, _SMOOTHING = 4000, 0.1


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerSeq2Seq(PresetModel):
    """A Transformer that writes a text from another, with rotary positions.

    Self-attention of both sides rotates queries and keys by position; attention from
    one text to the other has no positions. Source, target and output share one table of
    embeddings.

    With `position_embedding="sinusoidal"` it is the Transformer of Vaswani et al.

    Args:
        config: `Seq2SeqConfig`; or give its fields as keyword arguments.
        dtype: Keras dtype policy of all layers. Defaults to the global policy.
        name: str. Name of the model.
        fields: fields of `Seq2SeqConfig`, such as `num_layers=6`.

    Call arguments:
        inputs: dict of
            - `encoder_token_ids`: int32 `(batch, source_length)`, `[CLS] text [SEP]`.
              0 is padding, except at position 0.
            - `decoder_token_ids`: int32 `(batch, target_length)`, `[CLS] text`.

    Returns:
        float `(batch, target_length, vocabulary_size)`: logits of the token after each
        of the decoder's.

    Example:
        >>> tokenizer = roformer_keras.RoFormerTokenizer.from_preset("roformer-char")
        >>> model = roformer_keras.RoFormerSeq2Seq(
        ...     vocabulary_size=tokenizer.vocabulary_size,
        ...     num_layers=1,
        ...     num_heads=2,
        ...     hidden_dim=32,
        ...     intermediate_dim=64,
        ... )
        >>> model.tokenizer = tokenizer
        >>> history = model.fit(["学而时习之"], ["学习了又时常温习"], verbose=0)
        >>> text = model.generate("学而时习之", method="greedy", max_new_tokens=4)

    References:
        - [Su et al., 2021](https://arxiv.org/abs/2104.09864)
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762)
    """

    default_batch_size = 64
    row_options = ("max_length",)
    # As in section 6.1 of Vaswani et al.
    default_lengths = DefaultLengths(longer=50, counts_prompt=False)
    # Its own, as it has no backbone.
    config: Seq2SeqConfig = None  # type: ignore[assignment]

    generate = writing.generate
    stream = writing.stream

    def __init__(
        self,
        config: Seq2SeqConfig | None = None,
        dtype: Any = None,
        name: str | None = None,
        **fields: Any,
    ):
        config = config_from(Seq2SeqConfig, config, fields)
        dtype = keras.dtype_policies.get(dtype)
        self.config = config

        # === Layers ===
        self.token_embedding = keras.layers.ReversibleEmbedding(
            config.vocabulary_size,
            config.hidden_dim,
            # Multiplied in `_embed_tokens`, its deviation is 1.
            embeddings_initializer=keras.initializers.RandomNormal(
                stddev=config.hidden_dim**-0.5
            ),
            # Else the tied output would be computed in float32 under a mixed policy.
            reverse_dtype=dtype.compute_dtype,
            dtype=dtype,
            name="token_embedding",
        )
        self.position_embedding = None
        if config.position_embedding == "sinusoidal":
            self.position_embedding = SinusoidalPositionEmbedding(
                config.hidden_dim, dtype=dtype, name="position_embedding"
            )
        self.padding_mask = AttentionMask("bidirectional", name="padding_mask")
        self.causal_mask = AttentionMask("causal", name="causal_mask")
        self.encoder_dropout = _dropout(config, dtype, "encoder_dropout")
        self.encoder_layers = [
            _encoder_block(config, dtype, f"encoder_layer_{i}")
            for i in range(config.num_layers)
        ]
        self.encoder_norm = self.decoder_norm = None
        if config.norm_first:
            self.encoder_norm = _norm(config, dtype, "encoder_norm")
        self.decoder_dropout = _dropout(config, dtype, "decoder_dropout")
        self.decoder_layers = [
            _decoder_block(config, dtype, f"decoder_layer_{i}")
            for i in range(config.num_layers)
        ]
        if config.norm_first:
            self.decoder_norm = _norm(config, dtype, "decoder_norm")

        # === Functional Model ===
        inputs = {
            name: keras.Input((None,), dtype="int32", name=name)
            for name in ("encoder_token_ids", "decoder_token_ids")
        }
        source, target = inputs.values()
        memory, memory_mask = self._run_encoder(source)
        memories = [memory] * config.num_layers
        mask = self.causal_mask(target, target)
        hidden, _ = self._run_decoder(target, mask, memories, memory_mask)
        super().__init__(inputs=inputs, outputs=self._score_tokens(hidden), name=name)

        # === Config ===
        self.dtype_policy = dtype

    def _embed_tokens(self, token_ids, dropout, position_ids=None):
        """Embeddings times the root of their width: `(batch, length, hidden_dim)`."""
        x = self.token_embedding(token_ids) * self.config.hidden_dim**0.5
        if self.position_embedding:
            positions = self.position_embedding(x, position_ids)
            x = x + ops.cast(positions, x.dtype)
        return dropout(x)

    def _run_encoder(self, token_ids):
        """The encoder's output, and its mask `(batch, 1, 1, length)`."""
        mask = self.padding_mask(token_ids, token_ids)
        x = self._embed_tokens(token_ids, self.encoder_dropout)
        for block in self.encoder_layers:
            x = block(x, attention_mask=mask)
        return self.encoder_norm(x) if self.encoder_norm else x, mask

    def _run_decoder(
        self, token_ids, mask, memories, memory_mask, position_ids=None, caching=None
    ):
        """The decoder's output, and the updated caches.

        Args:
            memories: for each block the encoder's output, or its projection.
            caching: for each block its arguments about a cache.
        """
        x, caches = (
            self._embed_tokens(token_ids, self.decoder_dropout, position_ids),
            [],
        )
        for block, memory, options in zip(
            self.decoder_layers, memories, caching or [{}] * len(memories), strict=True
        ):
            x = block(
                x,
                memory,
                cross_attention_mask=memory_mask,
                attention_mask=mask,
                position_ids=position_ids,
                **options,
            )
            x, *updated = x if isinstance(x, tuple) else (x,)
            caches += updated
        return self.decoder_norm(x) if self.decoder_norm else x, caches

    def _score_tokens(self, hidden):
        """Scores of every token of the vocabulary."""
        logits = self.token_embedding(hidden, reverse=True)
        return ops.cast(logits, self.token_embedding.compute_dtype)

    # === Coming from and going to files ===

    @classmethod
    def from_roformer_config(
        cls, config: Seq2SeqConfig, dtype: Any = None, **options: Any
    ) -> Self:
        return cls(config, dtype=dtype, **options)

    def get_config(self) -> dict[str, Any]:
        refuse_quantized(self)
        return {
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            **self.config.to_dict(),
            **self._tokenizer_config(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        fields = dict(config)
        trainable = fields.pop("trainable", True)
        tokenizer = take_tokenizer(fields, cls.__name__)
        model = cls(**fields)
        if tokenizer:
            model._set_tokenizer(*tokenizer)
        model.trainable = trainable
        return model

    # === Training ===

    # By default as Vaswani et al. trained.

    def default_optimizer(self) -> keras.optimizers.Optimizer:
        """Adam whose rate rises over 4,000 updates, then falls with their root."""
        return make_optimizer(
            (self.config.hidden_dim * _WARMUP) ** -0.5,
            warmup=_WARMUP,
            beta_2=0.98,
            epsilon=1e-9,
            weight_decay=0.0,
            clip_norm=0.0,
        )

    def default_loss(self) -> keras.losses.Loss:
        return LabelSmoothing(_SMOOTHING)

    def labelled(
        self,
        x: Texts,
        y: Texts = None,
        sample_weight: Sequence[float] | np.ndarray | None = None,
        class_weight: Mapping | None = None,
        *,
        max_length: int = 128,
    ) -> TextData:
        """Pairs of texts, checked and tokenized.

        Args:
            x: list of str, the sources; or a table with both texts, as `as_texts`
                takes it.
            y: as many str, the targets.
            max_length: int. Pairs with a text of more tokens, `[CLS]` and `[SEP]`
                included, are left out, with a warning.
        """
        if sample_weight is not None or class_weight is not None:
            raise ConfigurationError(
                "pairs of texts have no weights and no classes: leave sample_weight "
                "and class_weight out"
            )
        is_whole = y is None and is_table(x)
        pairs = as_texts(x, (2,)) if is_whole else as_pairs(x, y)
        rows = PairRows(self.text_tokenizer(), pairs, max_length)
        return TextData(rows.lengths, np.arange(len(rows)), rows.batch)

    # === Writing ===

    @property
    def is_continuation(self) -> bool:
        return False

    def _decoder(self, engine=None):
        return kept_decoder(self, engine)

    def _make_decoder(self) -> EncoderDecoder:
        # `encode` gives the mask of the prompts.
        model: Any = _Cached(self)
        return EncoderDecoder(model, self.text_tokenizer().cls_id)

    def _networks(self) -> Networks:
        return {
            "encoder": lambda graph: write_encoder(graph, self),
            "decoder": lambda graph: write_decoder(graph, self),
        }

    def _reading(self) -> Reading:
        return Reading(
            vocabulary_size=self.config.vocabulary_size,
            start_id=self.text_tokenizer().cls_id,
        )


class _Cached:
    """A model as an `EncoderDecoderModel`."""

    generated_segment = 0

    def __init__(self, model):
        self._model = model
        self.vocabulary_size = model.config.vocabulary_size
        self.weights = model.weights
        self.compute_dtype = model.compute_dtype
        self.logits = model._score_tokens

    def encode(self, token_ids):
        memory, mask = self._model._run_encoder(token_ids)
        blocks = self._model.decoder_layers
        return [block.cross_attention.project(memory) for block in blocks], mask

    def create_caches(self, batch, capacity):
        return [
            block.attention.create_cache(batch, capacity)
            for block in self._model.decoder_layers
        ]

    def call_with_cache(
        self, inputs, attention_mask, caches, cache_index=0, contexts=None
    ):
        memories = [memory for memory, *_ in contexts]
        rows, _, length, _ = ops.shape(memories[0][0])
        # Rows that share a memory see the same part of it.
        memory_mask = ops.reshape(
            attention_mask[:, :, :, :length], (rows, -1, 1, length)
        )[:, :1]
        return self._model._run_decoder(
            inputs["token_ids"],
            attention_mask[:, :, :, length:],
            memories,
            memory_mask,
            inputs["position_ids"],
            [
                {"cache": cache, "cache_index": cache_index, "context": tuple(own)}
                for cache, (_, *own) in zip(caches, contexts, strict=True)
            ],
        )

    def visible(self, token_ids, segment_ids):
        return ops.not_equal(token_ids, 0)


def _dropout(config, dtype, name):
    return keras.layers.Dropout(config.dropout, dtype=dtype, name=name)


def _norm(config, dtype, name):
    return LayerNorm(config.layer_norm_epsilon, dtype=dtype, name=name)


def _attention(config, dtype):
    return RoPEAttention(
        config.num_heads,
        config.head_dim,
        rotary=config.position_embedding == "rotary",
        dropout=config.attention_dropout,
        dtype=dtype,
        name="attention",
    )


def _feed_forward(config, dtype):
    return FeedForward(
        config.intermediate_dim,
        activation=config.activation,
        dtype=dtype,
        name="feed_forward",
    )


def _encoder_block(config, dtype, name):
    return RoFormerBlock(
        _attention(config, dtype),
        _feed_forward(config, dtype),
        _norm(config, dtype, "attention_norm"),
        _norm(config, dtype, "feed_forward_norm"),
        dropout=config.dropout,
        norm_first=config.norm_first,
        dtype=dtype,
        name=name,
    )


def _decoder_block(config, dtype, name):
    return RoFormerDecoderBlock(
        _attention(config, dtype),
        CrossAttention(
            config.num_heads,
            config.head_dim,
            dropout=config.attention_dropout,
            dtype=dtype,
            name="cross_attention",
        ),
        _feed_forward(config, dtype),
        _norm(config, dtype, "attention_norm"),
        _norm(config, dtype, "cross_attention_norm"),
        _norm(config, dtype, "feed_forward_norm"),
        dropout=config.dropout,
        norm_first=config.norm_first,
        dtype=dtype,
        name=name,
    )
