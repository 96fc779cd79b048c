"""The RoFormer encoder, v1 and v2, on which every model of this package is built."""

from collections.abc import Sequence
from typing import Any, Self

import keras
from keras import ops

from roformer_keras.base.config import PERFORMERS, RoFormerConfig, config_from
from roformer_keras.base.errors import Hint, refuse
from roformer_keras.base.types import TensorLike
from roformer_keras.engines.known import check_methods
from roformer_keras.inference.fast_model import (
    refuse_changed,
    refuse_quantized,
    remember_layers,
)
from roformer_keras.layers import (
    AttentionMask,
    FeedForward,
    LayerNorm,
    LinearRoPEAttention,
    Pooler,
    RMSNorm,
    RoFormerBlock,
    RoPEAttention,
)
from roformer_keras.layers.masks import PaddingMask
from roformer_keras.layers.projection import Dense
from roformer_keras.models.initializers import embedding_initializer, initializer
from roformer_keras.models.lora import set_trainable_state, trainable_state
from roformer_keras.models.preset import PresetModel
from roformer_keras.models.preset_files import take_tokenizer


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerBackbone(PresetModel):
    """Embeddings and post-norm blocks, with an optional pooler.

    RoFormer and RoFormerV2 differ in `config.model_type` only. Rows may have any
    length, because there is no position table.

    Args:
        config: `RoFormerConfig`; or give its fields as keyword arguments.
        dtype: Keras dtype policy of all layers. Defaults to the global policy.
        name: str. Name of the model.
        fields: fields of `RoFormerConfig`, such as `num_layers=12`.

    Attributes:
        inputs: list of the symbolic inputs, in the alphabetical order of their names:
            `layer_norm_cond`, `position_ids`, `segment_ids`, `token_ids`, without those
            that the configuration lacks. A model made of this list takes a dict as
            well; `input` is that dict.
        gradient_checkpointing: bool, False at first. Whether training computes each
            block again in the backward pass: less memory, more time, equal gradients.
            Set it before the first step. It is not saved.

    Call arguments:
        inputs: dict of
            - `token_ids`: int32 `(batch, length)`. 0 is padding, except at position 0.
            - `segment_ids`: int32 `(batch, length)`.
            - `position_ids`: float32 `(batch, length)`, if
              `config.custom_position_ids`.
            - `layer_norm_cond`: float32 `(batch, config.layer_norm_cond_size)`, if
              that is set.

    Returns:
        float `(batch, length, hidden_dim)`, which carries the padding as its Keras
        mask; with a pooler a dict of that as `sequence_output`, `pooled_output`
        `(batch, hidden_dim)` and, if `config.with_nsp`, `nsp_probabilities`
        `(batch, 2)`.

    Raises:
        ConfigurationError: a field breaks its rule, or both a configuration and fields
            are given.

    Example:
        >>> backbone = roformer_keras.RoFormerBackbone.from_preset("roformer-char")
        >>> inputs = backbone.tokenizer(["今天天气不错", "你好"])
        >>> ops.shape(backbone(inputs))
        (2, 8, 192)

    References:
        - [Su et al., 2021](https://arxiv.org/abs/2104.09864)
        - [RoFormerV2](https://kexue.fm/archives/8998)
    """

    config: RoFormerConfig = None  # type: ignore[assignment]

    def __init__(
        self,
        config: RoFormerConfig | None = None,
        dtype: Any = None,
        name: str | None = None,
        **fields: Any,
    ):
        config = config_from(config, fields)
        dtype = keras.dtype_policies.get(dtype)
        self.config = config

        # === Layers ===
        self.token_embedding = keras.layers.ReversibleEmbedding(
            config.vocabulary_size,
            config.input_dim,
            embeddings_initializer=embedding_initializer(config),
            # By default a mixed policy computes the tied output in float32.
            reverse_dtype=dtype.compute_dtype,
            dtype=dtype,
            name="token_embedding",
        )
        self.segment_embedding = self.token_embedding
        if not config.shared_segment_embeddings:
            self.segment_embedding = keras.layers.Embedding(
                config.num_segments,
                config.input_dim,
                embeddings_initializer=embedding_initializer(config),
                dtype=dtype,
                name="segment_embedding",
            )
        self.embedding_norm = _norm(config, dtype, "embedding_norm")
        self.embedding_dropout = keras.layers.Dropout(
            config.dropout, dtype=dtype, name="embedding_dropout"
        )
        self.embedding_mapping = None
        if config.input_dim != config.hidden_dim:
            self.embedding_mapping = Dense(
                config.hidden_dim,
                use_bias=config.use_bias,
                kernel_initializer=initializer(config),
                dtype=dtype,
                name="embedding_mapping",
            )
        self.attention_mask = AttentionMask(
            # Linear attention is causal by itself: this mask is quadratic.
            "bidirectional" if config.is_linear else config.attention,
            pad_segments=config.shared_segment_embeddings,
            name="attention_mask",
        )
        self.transformer_layers = [
            _block(config, dtype, i) for i in range(config.num_layers)
        ]
        self.padding_mask = PaddingMask(
            config.shared_segment_embeddings, dtype=dtype, name="padding_mask"
        )
        self.pooler = self.nsp = None
        if config.pooler_activation is not None:
            self.pooler = Pooler(
                config.pooler_activation,
                kernel_initializer=initializer(config),
                dtype=dtype,
                name="pooler",
            )
        if config.with_nsp:
            self.nsp = keras.layers.Dense(
                2,
                activation="softmax",
                kernel_initializer=initializer(config),
                dtype=dtype,
                name="nsp",
            )

        # === Functional Model ===
        inputs = _make_inputs(config)
        ids = inputs["token_ids"], inputs["segment_ids"]
        x = self._transform(self._embed(inputs), self.attention_mask(*ids), inputs)
        outputs = self.padding_mask([x, *ids])
        if self.pooler:
            outputs = {"sequence_output": outputs, "pooled_output": self.pooler(x)}
        if self.nsp:
            outputs["nsp_probabilities"] = self.nsp(outputs["pooled_output"])
        super().__init__(inputs=inputs, outputs=outputs, name=name)

        # === Config ===
        self.dtype_policy = dtype

    @property
    def gradient_checkpointing(self) -> bool:
        return all(block.recompute for block in self.transformer_layers)

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, value: bool) -> None:
        for block in self.transformer_layers:
            block.recompute = bool(value)

    def _embed(self, inputs):
        """Token and segment embeddings, normalised: `(batch, length, hidden_dim)`."""
        x = ops.add(
            self.token_embedding(inputs["token_ids"]),
            self.segment_embedding(inputs["segment_ids"]),
        )
        if self.config.use_bias:
            condition = [v for k, v in inputs.items() if k == "layer_norm_cond"]
            x = self.embedding_dropout(self.embedding_norm(x, *condition))
        else:
            # RoFormerV2 drops before it normalises.
            x = self.embedding_norm(self.embedding_dropout(x))
        return self.embedding_mapping(x) if self.embedding_mapping else x

    def _transform(self, x, mask, inputs, caching=None):
        """All blocks; `caching` has for each block its arguments about a cache."""
        scores, caches = None, []
        blocks = self.transformer_layers
        for block, options in zip(blocks, caching or [{}] * len(blocks), strict=True):
            x = block(
                x,
                attention_mask=mask,
                position_ids=inputs.get("position_ids"),
                condition=inputs.get("layer_norm_cond"),
                residual_scores=scores,
                return_scores=self.config.residual_attention_scores,
                **options,
            )
            x, *extras = x if isinstance(x, tuple) else (x,)
            if self.config.residual_attention_scores:
                # bert4keras passes on each layer's own scores, not their running sum.
                scores = extras.pop(0)
            caches += extras
        return (x, caches) if caching else x

    def call_with_cache(
        self,
        inputs: dict[str, Any],
        attention_mask: TensorLike,
        caches: list,
        cache_index: int | TensorLike = 0,
        contexts: Sequence | None = None,
    ) -> tuple[TensorLike, list]:
        """Runs the blocks on tokens that follow others whose keys are in caches.

        Args:
            inputs: dict as the model takes it, always with `position_ids`.
            attention_mask: bool, broadcastable to `(batch, heads, length, keys)`,
                where the keys of the contexts come before all keys of the cache.
            caches: one cache per layer, see `create_caches`.
            cache_index: int, or int scalar tensor. Where the tokens go in the caches;
                unused by caches of constant size.
            contexts: None, or for each layer a list of caches that come first and are
                only read; see `RoPEAttention`.

        Returns:
            float `(batch, length, hidden_dim)`, and the updated caches.
        """
        caching = [
            {"cache": cache, "cache_index": cache_index, "context": context}
            for cache, context in zip(
                caches, contexts or [()] * len(caches), strict=True
            )
        ]
        return self._transform(self._embed(inputs), attention_mask, inputs, caching)

    def create_caches(self, batch: int, *capacity: int) -> list:
        """One cache per layer, made by `create_cache` of its attention.

        Args:
            batch: int. Rows.
            capacity: int. Maximum number of keys, for softmax attention only.
        """
        return [
            block.attention.create_cache(batch, *capacity)
            for block in self.transformer_layers
        ]

    def redraw_features(self, seed: int) -> None:
        """Draws the random features of a Performer again, with another seed.

        The result equals a backbone of `performer_seed=seed`, and the seed is saved. A
        compiled training function keeps the old features: call `compile` again.

        Args:
            seed: int, at least 0.

        Raises:
            ConfigurationError: `seed` breaks its rule, or there are no such features.
        """
        refuse(
            self.config.attention_type not in PERFORMERS,
            "only attention_type='performer' and 'rotary_performer' have random "
            f"features, got {self.config.attention_type!r}",
        )
        self.config = self.config.replace(performer_seed=seed)
        for i, block in enumerate(self.transformer_layers):
            block.attention.redraw(_layer_seed(self.config, i))

    @classmethod
    def from_roformer_config(
        cls, config: RoFormerConfig, dtype: Any = None, **options: Any
    ) -> Self:
        return cls(config, dtype=dtype, **options)

    def get_config(self) -> dict[str, Any]:
        refuse_quantized(self)
        refuse_changed(self)
        return {
            "name": self.name,
            "trainable": trainable_state(self),
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            **self.config.to_dict(),
            **self.presets.tokenizer_fields(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        fields = dict(config)
        trainable = fields.pop("trainable", True)
        tokenizer = take_tokenizer(fields, cls.__name__)
        model = cls(**fields)
        remember_layers(model)
        if tokenizer:
            model.set_vocabulary(*tokenizer)
        # Not an argument: the layers must exist first.
        set_trainable_state(model, trainable)
        return model


def check_step(backbone: RoFormerBackbone) -> None:
    """Raises ConfigurationError unless a step of a text computes the backbone's graph.

    Keras computes a step with the layers that are its attributes.
    """
    names = ("call_with_cache", "create_caches", "_embed", "_transform")
    check_methods(backbone, RoFormerBackbone, names)
    mask, config = backbone.attention_mask, backbone.config
    parts = [
        backbone.token_embedding,
        backbone.segment_embedding,
        backbone.embedding_norm,
        backbone.embedding_dropout,
        mask,
    ]
    blocks = list(backbone.transformer_layers)
    in_order = [x for x in backbone.layers if x in blocks]
    has_parts = all(part in backbone.layers for part in parts)
    mapping = backbone.embedding_mapping
    has_mapping = mapping is None or mapping in backbone.layers
    is_as_configured = config.is_linear or (
        mask.pattern == config.attention
        and mask.pad_segments == config.shared_segment_embeddings
    )
    refuse(
        not (in_order == blocks and has_parts and has_mapping and is_as_configured),
        f"the layers of {backbone.name} must be those of its graph, got others",
        hint=Hint("use {engine:'keras'}; or make a new model with these layers"),
    )


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


def _norm(config, dtype, name):
    if not config.use_bias:
        return RMSNorm(config.layer_norm_epsilon, dtype=dtype, name=name)
    return LayerNorm(
        config.layer_norm_epsilon,
        conditional=config.layer_norm_cond_size is not None,
        condition_hidden_dim=config.layer_norm_cond_hidden_size,
        condition_hidden_activation=config.layer_norm_cond_hidden_activation,
        dtype=dtype,
        name=name,
    )


def _block(config, dtype, i):
    options = {
        "key_dim": config.key_dim,
        "base": config.rotary_base,
        "rotary": config.rotary,
        "use_bias": config.use_bias,
        "kernel_initializer": initializer(config),
        "dtype": dtype,
        "name": "attention",
    }
    if config.is_linear:
        attention = LinearRoPEAttention(
            config.num_heads,
            config.head_dim,
            kind=config.attention_type,
            causal=config.attention == "causal",
            num_features=config.performer_features,
            seed=_layer_seed(config, i),
            **options,
        )
    else:
        attention = RoPEAttention(
            config.num_heads,
            config.head_dim,
            dropout=config.attention_dropout,
            **options,
        )
    return RoFormerBlock(
        attention,
        FeedForward(
            config.intermediate_dim,
            activation=config.activation,
            use_bias=config.use_bias,
            kernel_initializer=initializer(config),
            dtype=dtype,
            name="feed_forward",
        ),
        _norm(config, dtype, "attention_norm"),
        _norm(config, dtype, "feed_forward_norm"),
        dropout=config.dropout,
        dtype=dtype,
        name=f"transformer_layer_{i}",
    )


def _layer_seed(config, i):
    """No two layers, and no two seeds of a model, share their random features."""
    return config.performer_seed * config.num_layers + i
