"""RoFormer as an encoder-decoder: one text in, another out."""

import keras
import numpy as np
from keras import ops

from roformer_keras.config import Seq2SeqConfig
from roformer_keras.data.rows import PairRows
from roformer_keras.data.texts import as_pairs
from roformer_keras.errors import ConfigurationError
from roformer_keras.generation.encoder_decoder import EncoderDecoder
from roformer_keras.generation.generate import TextGeneration
from roformer_keras.layers import (
    AttentionMask,
    Dropout,
    LayerNorm,
    RoFormerBlock,
    RoFormerDecoderBlock,
    SinusoidalPositionEmbedding,
)
from roformer_keras.losses import LabelSmoothing
from roformer_keras.models.preset import PresetModel
from roformer_keras.models.text_trainer import TextData, TextTrainer
from roformer_keras.optimizers import make_optimizer

__all__ = ["RoFormerSeq2Seq"]

# As of Vaswani et al., section 5.3, at other rates: of a model of width d and W updates
# of warm-up theirs is (d W) ** -0.5.
_WARMUP, _SMOOTHING = 4000, 0.1
# Tokens that a text may have more than its source.
_LONGER = 50
# Attributes of a model that compute, some of which are None.
_LAYERS = (
    "token_embedding",
    "position_embedding",
    "padding_mask",
    "causal_mask",
    "encoder_dropout",
    "encoder_layers",
    "encoder_norm",
    "decoder_dropout",
    "decoder_layers",
    "decoder_norm",
)


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerSeq2Seq(TextTrainer, TextGeneration, PresetModel):
    """A Transformer that writes a text from another, with rotary positions.

    Queries and keys are turned by position in the self-attention of both sides;
    attention from one text to the other knows of no positions. Source, target and
    output share one table of embeddings.

    With `position_embedding="sinusoidal"` it is the Transformer of Vaswani et al.

    Args:
        config: `Seq2SeqConfig`.
        dtype: Keras dtype policy of all layers; the global one if not given.

    Call arguments:
        inputs: dict of
            - `encoder_token_ids`: int32 `(batch, source_length)`, `[CLS] text [SEP]`.
              0 is padding, except at position 0.
            - `decoder_token_ids`: int32 `(batch, target_length)`, `[CLS] text`.

    Returns:
        float `(batch, target_length, vocabulary_size)`: logits of the token behind
        each of the decoder's.

    Example:
    ```python
    model = RoFormerSeq2Seq(
        Seq2SeqConfig(
            vocabulary_size=tokenizer.vocabulary_size,
            num_layers=2,
            num_heads=4,
            hidden_dim=128,
            intermediate_dim=512,
        )
    )
    model.tokenizer = tokenizer
    model.fit(["学而时习之"], ["学习了又时常温习"], epochs=3)
    model.generate("学而时习之", method="beam", num_beams=4, length_penalty=0.6)
    ```

    References:
        - [Su et al., 2021](https://arxiv.org/abs/2104.09864)
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762)
    """

    default_batch_size = 64
    row_options = ("max_length",)

    def __init__(self, config, dtype=None, **kwargs):
        # === Layers ===
        dtype = keras.dtype_policies.get(dtype)
        layers = _make_layers(config, dtype)

        # === Functional Model ===
        inputs = {
            name: keras.Input((None,), dtype="int32", name=name)
            for name in ("encoder_token_ids", "decoder_token_ids")
        }
        source, target = inputs.values()
        memory, memory_mask = _encode(layers, source)
        mask = layers["causal_mask"](target, target)
        hidden, _ = _decode(layers, target, mask, memory, memory_mask)
        super().__init__(inputs=inputs, outputs=_logits(layers, hidden), **kwargs)

        # === Config ===
        self.dtype_policy = dtype
        self.config = config
        for name in _LAYERS:
            setattr(self, name, layers[name])
        if keras.backend.backend() == "tensorflow":
            self.jit_compile = False

    # === Coming from and going to files ===

    @classmethod
    def from_roformer_config(cls, config, dtype=None, **options):
        return cls(config, dtype=dtype, **options)

    def get_config(self):
        return {
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            **self.config.to_dict(),
        }

    @classmethod
    def from_config(cls, config):
        fields = dict(config)
        trainable = fields.pop("trainable", True)
        options = {k: fields.pop(k) for k in ("name", "dtype") if k in fields}
        model = cls(Seq2SeqConfig.from_dict(fields), **options)
        model.trainable = trainable
        return model

    # === Training ===

    # By default as Vaswani et al. trained.

    def default_optimizer(self):
        """Adam whose rate rises over 4,000 updates, then falls with their root."""
        return make_optimizer(
            (self.config.hidden_dim * _WARMUP) ** -0.5,
            warmup=_WARMUP,
            beta_2=0.98,
            epsilon=1e-9,
            weight_decay=0.0,
            clip_norm=0.0,
        )

    def default_loss(self):
        return LabelSmoothing(_SMOOTHING)

    def labelled(
        self, x, y=None, sample_weight=None, class_weight=None, *, max_length=128
    ) -> TextData:
        """Pairs of texts, checked and tokenized.

        Args:
            x: list of str, the sources.
            y: as many str, the targets.
            max_length: int. Pairs with a text of more tokens, `[CLS]` and `[SEP]`
                included, are left out, with a warning.
        """
        if sample_weight is not None or class_weight is not None:
            raise ConfigurationError(
                "pairs of texts have no weights and no classes: leave sample_weight "
                "and class_weight out"
            )
        rows = PairRows(self.text_tokenizer(), as_pairs(x, y), max_length)
        return TextData(rows.lengths, np.arange(len(rows)), rows.batch)

    # === Writing ===

    @property
    def is_continuation(self) -> bool:
        return False

    def _counted_length(self, ids):
        return 0

    def _default_new_tokens(self, ids, min_new_tokens):
        # As in section 6.1 of Vaswani et al.
        return max(len(ids) + _LONGER, min_new_tokens)

    def _make_decoder(self) -> EncoderDecoder:
        return EncoderDecoder(_Cached(self), self.text_tokenizer().cls_id)


class _Cached:
    """A model as an `EncoderDecoderModel`."""

    generated_segment = 0

    def __init__(self, model):
        self._layers = {name: getattr(model, name) for name in _LAYERS}
        self.vocabulary_size = model.config.vocabulary_size
        self.weights = model.weights

    def encode(self, token_ids):
        memory, mask = _encode(self._layers, token_ids)
        blocks = self._layers["decoder_layers"]
        return [block.cross_attention.project(memory) for block in blocks], mask

    def create_caches(self, batch, capacity):
        blocks = self._layers["decoder_layers"]
        return [block.attention.create_cache(batch, capacity) for block in blocks]

    def call_with_cache(
        self, inputs, attention_mask, caches, cache_index=0, contexts=None
    ):
        memories = [memory for memory, *_ in contexts]
        rows, _, length, _ = ops.shape(memories[0][0])
        # Of the rows that share a memory each sees the same of it.
        memory_mask = ops.reshape(
            attention_mask[:, :, :, :length], (rows, -1, 1, length)
        )[:, :1]
        return _decode(
            self._layers,
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

    def logits(self, hidden):
        return _logits(self._layers, hidden)

    def visible(self, token_ids, segment_ids):
        return ops.not_equal(token_ids, 0)


# === The two sides ===


def _make_layers(config, dtype):
    def blocks(kind, name):
        return [
            kind(
                num_heads=config.num_heads,
                head_dim=config.head_dim,
                intermediate_dim=config.intermediate_dim,
                rotary=config.position_embedding == "rotary",
                activation=config.activation,
                dropout=config.dropout,
                attention_dropout=config.attention_dropout,
                norm_first=config.norm_first,
                layer_norm_epsilon=config.layer_norm_epsilon,
                dtype=dtype,
                name=f"{name}_layer_{i}",
            )
            for i in range(config.num_layers)
        ]

    layers = {
        "token_embedding": keras.layers.ReversibleEmbedding(
            config.vocabulary_size,
            config.hidden_dim,
            # Of deviation 1 when it has been multiplied, see `_embed`.
            embeddings_initializer=keras.initializers.RandomNormal(
                stddev=config.hidden_dim**-0.5
            ),
            # Else the tied output would be computed in float32 under a mixed policy.
            reverse_dtype=dtype.compute_dtype,
            dtype=dtype,
            name="token_embedding",
        ),
        "padding_mask": AttentionMask("bidirectional", name="padding_mask"),
        "causal_mask": AttentionMask("causal", name="causal_mask"),
        "encoder_layers": blocks(RoFormerBlock, "encoder"),
        "decoder_layers": blocks(RoFormerDecoderBlock, "decoder"),
        "position_embedding": None,
    }
    if config.position_embedding == "sinusoidal":
        layers["position_embedding"] = SinusoidalPositionEmbedding(
            config.hidden_dim, dtype=dtype, name="position_embedding"
        )
    for side in ("encoder", "decoder"):
        layers[f"{side}_dropout"] = Dropout(
            config.dropout, dtype=dtype, name=f"{side}_dropout"
        )
        layers[f"{side}_norm"] = None
        if config.norm_first:
            layers[f"{side}_norm"] = LayerNorm(
                config.layer_norm_epsilon, dtype=dtype, name=f"{side}_norm"
            )
    return layers


def _embed(layers, side, token_ids, position_ids=None):
    """Embeddings times the root of their width: `(batch, length, hidden_dim)`."""
    embedding = layers["token_embedding"]
    x = embedding(token_ids) * embedding.output_dim**0.5
    if layers["position_embedding"] is not None:
        positions = layers["position_embedding"](x, position_ids)
        x = x + ops.cast(positions, x.dtype)
    return layers[f"{side}_dropout"](x)


def _encode(layers, token_ids):
    """The encoder's output, and which of it can be seen: `(batch, 1, 1, length)`."""
    mask = layers["padding_mask"](token_ids, token_ids)
    x = _embed(layers, "encoder", token_ids)
    for block in layers["encoder_layers"]:
        x = block(x, attention_mask=mask)
    return _normalised(layers["encoder_norm"], x), mask


def _decode(
    layers, token_ids, mask, memory, memory_mask, position_ids=None, caching=None
):
    """The decoder's output, and the caches, written to.

    Args:
        memory: the encoder's output, or for each block what it has made of it.
        caching: for each block what it needs of a cache.
    """
    blocks, caches = layers["decoder_layers"], []
    memories = memory if isinstance(memory, list) else [memory] * len(blocks)
    x = _embed(layers, "decoder", token_ids, position_ids)
    for block, own, options in zip(
        blocks, memories, caching or [{}] * len(blocks), strict=True
    ):
        x = block(
            x,
            own,
            cross_attention_mask=memory_mask,
            attention_mask=mask,
            position_ids=position_ids,
            **options,
        )
        x, *written = x if isinstance(x, tuple) else (x,)
        caches += written
    return _normalised(layers["decoder_norm"], x), caches


def _normalised(norm, x):
    """What leaves a side, which blocks that normalise first have not done."""
    return x if norm is None else norm(x)


def _logits(layers, hidden):
    """Scores of every token of the vocabulary."""
    embedding = layers["token_embedding"]
    return ops.cast(embedding(hidden, reverse=True), embedding.compute_dtype)
