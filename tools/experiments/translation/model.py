"""The encoder-decoder of Vaswani et al., with rotary or sinusoidal positions."""

import keras
from keras import ops

from roformer_keras.layers import (
    FeedForward,
    LayerNorm,
    RoFormerBlock,
    RoPEAttention,
    SinusoidalPositionEmbedding,
)
from roformer_keras.layers.attention import ProjectedAttention

EPSILON = 1e-6


class CrossAttention(ProjectedAttention):
    """Attention to an encoder's output, without positions."""

    def __init__(self, num_heads, head_dim, **options):
        super().__init__(num_heads, head_dim, rotary=False, **options)

    def project(self, memory):
        """Keys and values `(rows, heads, length, head_dim)` of an encoder's output."""
        shape = (*ops.shape(memory)[:2], self.num_heads, self.head_dim)
        return tuple(
            ops.transpose(ops.reshape(dense(memory), shape), (0, 2, 1, 3))
            for dense in (self.key, self.value)
        )

    def call(self, x, memory, mask):
        keys, values = memory
        query = ops.reshape(
            self.query(x), (*ops.shape(x)[:2], self.num_heads, self.head_dim)
        )
        scores = ops.einsum("bqhd,bhkd->bhqk", query, keys) * self.head_dim**-0.5
        weights = ops.softmax(ops.where(mask, scores, -1e9))
        return self._joined(ops.einsum("bhqk,bhkd->bqhd", weights, values))


class DecoderBlock(keras.layers.Layer):
    """Self-attention, attention to an encoder's output, and feed-forward.

    Each is added to its input, and the sum is normalised.
    """

    def __init__(self, attention, cross_attention, feed_forward, dropout):
        super().__init__()
        self.attention, self.cross_attention = attention, cross_attention
        self.feed_forward = feed_forward
        self.norms = [LayerNorm(EPSILON) for _ in range(3)]
        self.dropouts = [keras.layers.Dropout(dropout) for _ in range(3)]

    def build(self, x_shape):
        for layer in (self.attention, self.cross_attention, self.feed_forward):
            layer.build(x_shape)
        for norm in self.norms:
            norm.build(x_shape)

    def call(self, x, memory, memory_mask, training=False, **options):
        attended = self.attention(x, training=training, **options)
        attended, *caches = attended if isinstance(attended, tuple) else (attended,)
        x = self._add(0, x, attended, training)
        attended = self.cross_attention(x, memory, memory_mask)
        x = self._add(1, x, attended, training)
        x = self._add(2, x, self.feed_forward(x), training)
        return x, caches

    def _add(self, number, x, added, training):
        added = self.dropouts[number](added, training=training)
        return self.norms[number](x + added)


class Translator(keras.Model):
    """A Transformer whose self-attention has rotary positions, or sinusoidal ones.

    Source, target and output share one table of embeddings. Inputs are int32
    `(batch, length)` with 0 for padding: `source`, `[CLS] text [SEP]`, and `target`,
    `[CLS] text`. Outputs are logits `(batch, target length, vocabulary)`.

    Args:
        tokenizer: `RoFormerTokenizer` of both languages.
        positions: `"rotary"` or `"sinusoidal"`.
    """

    def __init__(
        self,
        tokenizer,
        positions="rotary",
        num_layers=2,
        num_heads=4,
        hidden_dim=128,
        intermediate_dim=512,
        dropout=0.1,
    ):
        super().__init__()
        self.tokenizer, self.hidden_dim = tokenizer, hidden_dim
        sizes = num_heads, hidden_dim // num_heads
        self.embedding = keras.layers.ReversibleEmbedding(
            tokenizer.vocabulary_size,
            hidden_dim,
            # It is multiplied by the root of the width: its deviation becomes 1.
            embeddings_initializer=keras.initializers.RandomNormal(
                stddev=hidden_dim**-0.5
            ),
        )
        is_rotary = positions == "rotary"
        self.positions = None if is_rotary else SinusoidalPositionEmbedding(hidden_dim)
        self.dropouts = [keras.layers.Dropout(dropout) for _ in range(2)]

        def parts():
            attention = RoPEAttention(*sizes, rotary=is_rotary)
            return attention, FeedForward(intermediate_dim, activation="relu")

        self.encoder = [
            RoFormerBlock(
                *parts(), LayerNorm(EPSILON), LayerNorm(EPSILON), dropout=dropout
            )
            for _ in range(num_layers)
        ]
        self.decoder = []
        for _ in range(num_layers):
            attention, feed_forward = parts()
            cross_attention = CrossAttention(*sizes)
            self.decoder.append(
                DecoderBlock(attention, cross_attention, feed_forward, dropout)
            )
        for block in (*self.encoder, *self.decoder):
            block.build((None, None, hidden_dim))
        ids = ops.zeros((1, 2), "int32")
        self({"source": ids, "target": ids})

    def call(self, inputs, training=False):
        memories, mask = self.read(inputs["source"], training)
        length = ops.shape(inputs["target"])[1]
        order = ops.arange(length)
        hidden, _ = self.decode(
            inputs["target"],
            memories,
            mask,
            order[None],
            (order[None] <= order[:, None])[None, None],
            training=training,
        )
        return self.embedding(hidden, reverse=True)

    def read(self, source, training=False):
        """Keys and values of a source for each decoder block, and their mask."""
        positions = ops.arange(ops.shape(source)[1])[None]
        mask = ((source != 0) | (positions == 0))[:, None, None, :]
        x = self._embed(source, positions, self.dropouts[0], training)
        for block in self.encoder:
            x = block(x, attention_mask=mask, training=training)
        return [block.cross_attention.project(x) for block in self.decoder], mask

    def decode(
        self,
        target,
        memories,
        memory_mask,
        positions,
        mask,
        caches=None,
        index=0,
        training=False,
    ):
        """Hidden states of a target, and the updated caches of self-attention."""
        x = self._embed(target, positions, self.dropouts[1], training)
        updated = []
        for number, (block, memory) in enumerate(
            zip(self.decoder, memories, strict=True)
        ):
            options = {"attention_mask": mask, "position_ids": positions}
            if caches:
                options |= {"cache": caches[number], "cache_index": index}
            x, cache = block(x, memory, memory_mask, training=training, **options)
            updated += cache
        return x, updated

    def _embed(self, ids, positions, dropout, training):
        x = self.embedding(ids) * self.hidden_dim**0.5
        if self.positions is not None:
            x = x + self.positions(x, positions)
        return dropout(x, training=training)
