"""The RoFormer encoder, v1 and v2: what every model of this package is built on."""

import keras
from keras import ops

from roformer_keras.config import PERFORMERS, RoFormerConfig
from roformer_keras.errors import ConfigurationError
from roformer_keras.layers import (
    AttentionMask,
    Dropout,
    LayerNorm,
    Pooler,
    RMSNorm,
    RoFormerBlock,
)
from roformer_keras.models.initializers import embedding_initializer, initializer
from roformer_keras.models.lora import set_trainable_state, trainable_state
from roformer_keras.models.preset import PresetModel

__all__ = ["RoFormerBackbone"]


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerBackbone(PresetModel):
    """Embeddings and post-norm blocks, with a pooler on request.

    RoFormer and RoFormerV2 differ in `config.model_type` only. Any length: there is
    no position table to run out of.

    Args:
        config: `RoFormerConfig`.
        dtype: Keras dtype policy of all layers; the global one if not given.

    Attributes:
        gradient_checkpointing: bool, False at first. Whether training computes each
            block again in the backward pass, which takes less memory and more time,
            and gives the same gradients. To be set before the first step. No file has
            it: the machine and the length of the texts ask for it, not the model.

    Call arguments:
        inputs: dict of
            - `token_ids`: int32 `(batch, length)`. 0 is padding, except at position 0.
            - `segment_ids`: int32 `(batch, length)`.
            - `position_ids`: float32 `(batch, length)`, if
              `config.custom_position_ids`.
            - `layer_norm_cond`: float32 `(batch, config.layer_norm_cond_size)`, if
              that is set.

    Returns:
        float `(batch, length, hidden_dim)`; with a pooler a dict of that as
        `sequence_output`, `pooled_output` `(batch, hidden_dim)` and, if
        `config.with_nsp`, `nsp_probabilities` `(batch, 2)`.

    Example:
    ```python
    source = "chinese_roformer-char_L-12_H-768_A-12.zip"
    tokenizer = RoFormerTokenizer.from_preset(source)
    backbone = RoFormerBackbone.from_preset(source)
    hidden = backbone(tokenizer(["今天天气不错", "你好"]))
    ```

    References:
        - [Su et al., 2021](https://arxiv.org/abs/2104.09864)
        - [RoFormerV2](https://kexue.fm/archives/8998)
    """

    def __init__(self, config, dtype=None, **kwargs):
        # === Layers ===
        dtype = keras.dtype_policies.get(dtype)
        layers = _make_layers(config, dtype)

        # === Functional Model ===
        inputs = _make_inputs(config)
        token_ids, segment_ids = inputs["token_ids"], inputs["segment_ids"]
        x = _embed(config, layers, inputs)
        mask = layers["attention_mask"](token_ids, segment_ids)
        x = _transform(config, layers, x, mask, inputs)
        outputs = {"sequence_output": x}
        if config.pooler_activation is not None:
            outputs["pooled_output"] = layers["pooler"](x)
        if config.with_nsp:
            outputs["nsp_probabilities"] = layers["nsp"](outputs["pooled_output"])
        super().__init__(
            inputs=inputs,
            outputs=outputs if len(outputs) > 1 else x,
            **kwargs,
        )

        # === Config ===
        self.dtype_policy = dtype
        self.config = config
        self.token_embedding = layers["token_embedding"]
        self.segment_embedding = layers["segment_embedding"]
        self.embedding_norm = layers["embedding_norm"]
        self.embedding_dropout = layers["embedding_dropout"]
        self.embedding_mapping = layers.get("embedding_mapping")
        self.attention_mask = layers["attention_mask"]
        self.transformer_layers = layers["blocks"]
        self.pooler = layers.get("pooler")

    @property
    def gradient_checkpointing(self) -> bool:
        return all(block.recompute for block in self.transformer_layers)

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, value: bool):
        for block in self.transformer_layers:
            block.recompute = bool(value)

    def call_with_cache(
        self, inputs, attention_mask, caches, cache_index=0, contexts=None
    ):
        """Runs the blocks on tokens that follow others, whose keys are kept.

        Args:
            inputs: dict as the model takes it, and always with `position_ids`.
            attention_mask: bool, broadcastable to `(batch, heads, length, keys)`,
                where keys are those of the contexts and then all of the cache.
            caches: a cache a layer, see `create_caches`.
            cache_index: int, or int scalar tensor. Where in the caches tokens go; not
                used by those of a constant size.
            contexts: None, or for each layer a list of caches that come before and
                are only read; see `RoPEAttention`.

        Returns:
            float `(batch, length, hidden_dim)`, and the caches, written to.
        """
        layers = {
            "token_embedding": self.token_embedding,
            "segment_embedding": self.segment_embedding,
            "embedding_norm": self.embedding_norm,
            "embedding_dropout": self.embedding_dropout,
            "blocks": self.transformer_layers,
        }
        if self.embedding_mapping is not None:
            layers["embedding_mapping"] = self.embedding_mapping
        x = _embed(self.config, layers, inputs)
        caching = [
            {"cache": cache, "cache_index": cache_index, "context": context}
            for cache, context in zip(
                caches, contexts or [()] * len(caches), strict=True
            )
        ]
        return _transform(self.config, layers, x, attention_mask, inputs, caching)

    def create_caches(self, batch, *capacity):
        """A cache of every layer, by the `create_cache` of its attention.

        Args:
            batch: int. Rows.
            capacity: int. Most keys, of softmax attention; others take none.
        """
        return [
            block.attention.create_cache(batch, *capacity)
            for block in self.transformer_layers
        ]

    def redraw_features(self, seed):
        """Draws other random features for a Performer.

        As a backbone of `performer_seed=seed` has them; the seed is kept and saved. A
        function that was compiled before goes on with the old ones: call `compile` of
        a model that is being trained once more.

        Args:
            seed: int, at least 0.

        Raises:
            ConfigurationError: `seed` breaks its rule, or there are no such features.
        """
        if self.config.attention_type not in PERFORMERS:
            raise ConfigurationError(
                "random features are those of attention_type='performer' and "
                f"'rotary_performer', got {self.config.attention_type!r}"
            )
        self.config = self.config.replace(performer_seed=seed)
        for i, block in enumerate(self.transformer_layers):
            block.attention.redraw(_layer_seed(self.config, i))

    @classmethod
    def from_roformer_config(cls, config, dtype=None, **options):
        return cls(config, dtype=dtype, name="backbone", **options)

    def get_config(self):
        return {
            "name": self.name,
            "trainable": trainable_state(self),
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            **self.config.to_dict(),
        }

    @classmethod
    def from_config(cls, config):
        fields = dict(config)
        trainable = fields.pop("trainable", True)
        options = {k: fields.pop(k) for k in ("name", "dtype") if k in fields}
        model = cls(RoFormerConfig.from_dict(fields), **options)
        # Not an argument: Keras would take it up before the model has its layers.
        set_trainable_state(model, trainable)
        return model


def _make_inputs(config):
    inputs = {
        "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
        "segment_ids": keras.Input((None,), dtype="int32", name="segment_ids"),
    }
    if config.custom_position_ids:
        inputs["position_ids"] = keras.Input(
            (None,), dtype="float32", name="position_ids"
        )
    if config.layer_norm_cond_size:
        inputs["layer_norm_cond"] = keras.Input(
            (config.layer_norm_cond_size,), dtype="float32", name="layer_norm_cond"
        )
    return inputs


def _make_layers(config, dtype):
    layers = {
        "token_embedding": keras.layers.ReversibleEmbedding(
            config.vocabulary_size,
            config.input_dim,
            embeddings_initializer=embedding_initializer(config),
            # Else the tied output would be computed in float32 under a mixed policy.
            reverse_dtype=dtype.compute_dtype,
            dtype=dtype,
            name="token_embedding",
        ),
        "attention_mask": AttentionMask(
            # Of linear cost, it would be the mask that grows with the square.
            "bidirectional" if config.is_linear else config.attention,
            pad_segments=config.shared_segment_embeddings,
            name="attention_mask",
        ),
        "embedding_dropout": Dropout(
            config.dropout, dtype=dtype, name="embedding_dropout"
        ),
        "blocks": [
            RoFormerBlock(
                num_heads=config.num_heads,
                head_dim=config.head_dim,
                key_dim=config.key_dim,
                base=config.rotary_base,
                rotary=config.rotary,
                attention_type=config.attention_type,
                causal=config.attention == "causal",
                performer_features=config.performer_features,
                performer_seed=_layer_seed(config, i),
                intermediate_dim=config.intermediate_dim,
                activation=config.activation,
                dropout=config.dropout,
                attention_dropout=config.attention_dropout,
                use_bias=config.use_bias,
                norm="layer_norm" if config.use_bias else "rms_norm",
                layer_norm_epsilon=config.layer_norm_epsilon,
                conditional=config.layer_norm_cond_size is not None,
                condition_hidden_dim=config.layer_norm_cond_hidden_size,
                condition_hidden_activation=config.layer_norm_cond_hidden_activation,
                kernel_initializer=initializer(config),
                dtype=dtype,
                name=f"transformer_layer_{i}",
            )
            for i in range(config.num_layers)
        ],
    }
    if config.shared_segment_embeddings:
        layers["segment_embedding"] = layers["token_embedding"]
    else:
        layers["segment_embedding"] = keras.layers.Embedding(
            config.num_segments,
            config.input_dim,
            embeddings_initializer=embedding_initializer(config),
            dtype=dtype,
            name="segment_embedding",
        )
    if config.use_bias:
        layers["embedding_norm"] = LayerNorm(
            config.layer_norm_epsilon,
            conditional=config.layer_norm_cond_size is not None,
            condition_hidden_dim=config.layer_norm_cond_hidden_size,
            condition_hidden_activation=config.layer_norm_cond_hidden_activation,
            dtype=dtype,
            name="embedding_norm",
        )
    else:
        layers["embedding_norm"] = RMSNorm(
            config.layer_norm_epsilon, dtype=dtype, name="embedding_norm"
        )
    if config.input_dim != config.hidden_dim:
        layers["embedding_mapping"] = keras.layers.Dense(
            config.hidden_dim,
            use_bias=config.use_bias,
            kernel_initializer=initializer(config),
            dtype=dtype,
            name="embedding_mapping",
        )
    if config.pooler_activation is not None:
        layers["pooler"] = Pooler(
            config.pooler_activation,
            kernel_initializer=initializer(config),
            dtype=dtype,
            name="pooler",
        )
    if config.with_nsp:
        layers["nsp"] = keras.layers.Dense(
            2,
            activation="softmax",
            kernel_initializer=initializer(config),
            dtype=dtype,
            name="nsp",
        )
    return layers


def _layer_seed(config, i):
    """No two layers, and no two seeds of a model, share their random features."""
    return config.performer_seed * config.num_layers + i


def _embed(config, layers, inputs):
    """Token and segment embeddings, normalised: `(batch, length, hidden_dim)`."""
    x = ops.add(
        layers["token_embedding"](inputs["token_ids"]),
        layers["segment_embedding"](inputs["segment_ids"]),
    )
    norm, dropout = layers["embedding_norm"], layers["embedding_dropout"]
    if config.use_bias:
        condition = (inputs["layer_norm_cond"],) if "layer_norm_cond" in inputs else ()
        x = dropout(norm(x, *condition))
    else:
        # RoFormerV2 drops before it normalises.
        x = norm(dropout(x))
    if "embedding_mapping" in layers:
        x = layers["embedding_mapping"](x)
    return x


def _transform(config, layers, x, mask, inputs, caching=None):
    """All blocks; `caching` holds for each what it needs of a cache."""
    blocks = layers["blocks"]
    scores, caches = None, []
    for block, options in zip(blocks, caching or [{}] * len(blocks), strict=True):
        x = block(
            x,
            attention_mask=mask,
            position_ids=inputs.get("position_ids"),
            condition=inputs.get("layer_norm_cond"),
            residual_scores=scores,
            return_scores=config.residual_attention_scores,
            **options,
        )
        x, *extras = x if isinstance(x, tuple) else (x,)
        if config.residual_attention_scores:
            # bert4keras passes on each layer's own scores, not their running sum.
            scores = extras.pop(0)
        caches += extras
    return (x, caches) if caching else x
