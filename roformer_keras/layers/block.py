"""Norms, the feed-forward layer and the post-norm block that a RoFormer repeats."""

import functools
import math

import keras
from keras import ops

from roformer_keras.errors import ConfigurationError
from roformer_keras.layers.attention import RoPEAttention
from roformer_keras.layers.dropout import Dropout
from roformer_keras.layers.fused import fused_operations
from roformer_keras.layers.linear_attention import LinearRoPEAttention
from roformer_keras.layers.projection import Projection
from roformer_keras.layers.recomputation import recomputed

__all__ = ["FeedForward", "LayerNorm", "RMSNorm", "RoFormerBlock", "erf_gelu"]


@keras.saving.register_keras_serializable("roformer_keras")
def erf_gelu(x):
    """The exact GELU, `x * P(X <= x)` for a standard normal X.

    Spelled with `erf`, because the `erfc` of the Keras activation has no ONNX form.

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.
    """
    return 0.5 * x * (1.0 + ops.erf(x * math.sqrt(0.5)))


def activation_from_name(activation):
    """A Keras activation; `"gelu"` is the exact form, as in bert4keras."""
    if activation == "gelu":
        return erf_gelu
    try:
        return keras.activations.get(activation)
    except ValueError as error:
        raise ConfigurationError(
            f"activation must be the name of a Keras activation, got {activation!r}"
        ) from error


def _check_epsilon(epsilon):
    if not epsilon > 0:
        raise ConfigurationError(f"epsilon must be above 0, got {epsilon!r}")


@keras.saving.register_keras_serializable("roformer_keras")
class LayerNorm(keras.layers.Layer):
    """Layer normalisation, on request conditional on a vector.

    `(x - mean) / sqrt(variance + epsilon) * gamma + beta` over the last axis, in
    float32 under every dtype policy. With a condition c, gamma becomes
    `gamma + c Wg` and beta `beta + c Wb`, both products zero at first.

    Args:
        epsilon: float above 0. 1e-12 as RoFormer was trained.
        conditional: bool. Whether the layer takes a condition.
        condition_hidden_dim: int or None. Width of a dense layer on the condition.
        condition_hidden_activation: its activation.

    Call arguments:
        x: float `(..., dim)`.
        condition: float `(batch, condition_dim)`; required if `conditional`.

    Returns:
        float, of the shape of `x`.

    Source: Ba et al. 2016, arXiv:1607.06450; the condition as in bert4keras.
    """

    def __init__(
        self,
        epsilon=1e-12,
        conditional=False,
        condition_hidden_dim=None,
        condition_hidden_activation="linear",
        **kwargs,
    ):
        super().__init__(**kwargs)
        _check_epsilon(epsilon)
        self.supports_masking = True
        self.epsilon = epsilon
        self.conditional = conditional
        self.condition_hidden_dim = condition_hidden_dim
        self.condition_hidden_activation = condition_hidden_activation
        if conditional:
            self.hidden_dense = None
            if condition_hidden_dim:
                self.hidden_dense = keras.layers.Dense(
                    condition_hidden_dim,
                    activation=activation_from_name(condition_hidden_activation),
                    use_bias=False,
                    dtype=self.dtype_policy,
                    name="hidden_dense",
                )

    def build(self, x_shape, condition_shape=None):
        dim = x_shape[-1]
        self.gamma = self.add_weight(
            shape=(dim,), initializer="ones", name="gamma", autocast=False
        )
        self.beta = self.add_weight(
            shape=(dim,), initializer="zeros", name="beta", autocast=False
        )
        if self.conditional:
            if condition_shape is None:
                raise ConfigurationError(
                    "a conditional LayerNorm must be called with a condition"
                )
            if self.hidden_dense:
                self.hidden_dense.build(condition_shape)
                condition_shape = (*condition_shape[:-1], self.condition_hidden_dim)
            self.gamma_dense, self.beta_dense = (
                keras.layers.Dense(
                    dim,
                    use_bias=False,
                    kernel_initializer="zeros",
                    dtype=self.dtype_policy,
                    name=name,
                )
                for name in ("gamma_dense", "beta_dense")
            )
            self.gamma_dense.build(condition_shape)
            self.beta_dense.build(condition_shape)

    def call(self, x, condition=None):
        operations = fused_operations()
        if operations and not self.conditional:
            x = ops.cast(x, self.compute_dtype)
            return operations.layer_norm(x, self.gamma, self.beta, self.epsilon)
        x = ops.cast(x, "float32")
        # Not `ops.moments`: PyTorch's subtracts squares, and may come out below zero.
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
        gamma = ops.cast(self.gamma, "float32")
        beta = ops.cast(self.beta, "float32")
        if self.conditional:
            if self.hidden_dense:
                condition = self.hidden_dense(condition)
            # (batch, dim) -> (batch, 1, ..., dim)
            axes = tuple(range(1, len(x.shape) - 1))
            gamma = gamma + ops.cast(
                ops.expand_dims(self.gamma_dense(condition), axes), "float32"
            )
            beta = beta + ops.cast(
                ops.expand_dims(self.beta_dense(condition), axes), "float32"
            )
        normalised = centred * ops.rsqrt(variance + self.epsilon)
        return ops.cast(normalised * gamma + beta, self.compute_dtype)

    def compute_output_shape(self, x_shape, condition_shape=None):
        return x_shape

    def get_config(self):
        config = super().get_config()
        config.update(
            epsilon=self.epsilon,
            conditional=self.conditional,
            condition_hidden_dim=self.condition_hidden_dim,
            condition_hidden_activation=self.condition_hidden_activation,
        )
        return config


@keras.saving.register_keras_serializable("roformer_keras")
class RMSNorm(keras.layers.Layer):
    """`x / sqrt(mean(x ** 2) + epsilon)`: the norm of RoFormerV2, without parameters.

    Computed in float32 under every dtype policy.

    Args:
        epsilon: float above 0.

    Call arguments:
        x: float `(..., dim)`.

    Returns:
        float, of the shape of `x`.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """

    def __init__(self, epsilon=1e-12, **kwargs):
        super().__init__(**kwargs)
        _check_epsilon(epsilon)
        self.supports_masking = True
        self.epsilon = epsilon

    def call(self, x):
        x = ops.cast(x, "float32")
        square = ops.mean(ops.square(x), axis=-1, keepdims=True)
        return ops.cast(x * ops.rsqrt(square + self.epsilon), self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}


@keras.saving.register_keras_serializable("roformer_keras")
class FeedForward(keras.layers.Layer):
    """Two dense layers with an activation between them.

    Args:
        intermediate_dim: int, at least 1.
        activation: name of a Keras activation; `"gelu"` is the exact form.
        use_bias: bool. True for RoFormer, False for RoFormerV2.
        kernel_initializer: of both kernels.

    Call arguments:
        x: float `(..., hidden_dim)`.

    Returns:
        float, of the shape of `x`.
    """

    def __init__(
        self,
        intermediate_dim,
        activation="gelu",
        use_bias=True,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if intermediate_dim < 1:
            raise ConfigurationError(
                f"intermediate_dim must be at least 1, got {intermediate_dim!r}"
            )
        self.supports_masking = True
        self.intermediate_dim = intermediate_dim
        self.activation = activation
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.intermediate_dense = Projection(
            intermediate_dim,
            activation=activation_from_name(activation),
            use_bias=use_bias,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="intermediate_dense",
        )

    def build(self, input_shape):
        self.intermediate_dense.build(input_shape)
        self.output_dense = Projection(
            input_shape[-1],
            use_bias=self.use_bias,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="output_dense",
        )
        self.output_dense.build((*input_shape[:-1], self.intermediate_dim))

    def call(self, x):
        return self.output_dense(self.intermediate_dense(x))

    def get_config(self):
        config = super().get_config()
        config.update(
            intermediate_dim=self.intermediate_dim,
            activation=self.activation,
            use_bias=self.use_bias,
            kernel_initializer=keras.initializers.serialize(self.kernel_initializer),
        )
        return config


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerBlock(keras.layers.Layer):
    """Attention and feed-forward, each added to its input.

    What is added up is normalised; with `norm_first` the input of each is, and the sum
    is not.

    Args:
        num_heads, head_dim, key_dim, rotary, base, attention_dropout: of the
            `RoPEAttention`.
        attention_type: `"softmax"` for that, or the kind of a `LinearRoPEAttention`,
            which has no dropout.
        causal, performer_features, performer_seed: of the `LinearRoPEAttention`; what
            of a `RoPEAttention` is causal is so by its mask.
        intermediate_dim, activation: of the `FeedForward`.
        dropout: float in [0, 1). After attention and feed-forward, before the sum.
        use_bias: bool. In every dense layer.
        norm: `"layer_norm"`, or `"rms_norm"` as in RoFormerV2.
        norm_first: bool. Whether attention and feed-forward are normalised before.
        layer_norm_epsilon: float above 0, of both norms.
        conditional, condition_hidden_dim, condition_hidden_activation: of both
            norms, see `LayerNorm`.
        kernel_initializer: of every kernel.

    Attributes:
        recompute: bool, False at first. Whether training computes the block again in
            the backward pass, instead of keeping what it computed; not with a cache.

    Call arguments:
        x: float `(batch, length, hidden_dim)`.
        attention_mask, position_ids, residual_scores, return_scores, cache,
        cache_index, context: as the attention takes them.
        condition: float `(batch, condition_dim)`, if `conditional`.

    Returns:
        float `(batch, length, hidden_dim)`, with scores and cache behind it where
        the attention returns them.

    Raises:
        ConfigurationError: an argument breaks its rule, or something is asked for that
            takes scores, of which attention of linear cost has none.
    """

    def __init__(
        self,
        num_heads,
        head_dim,
        intermediate_dim,
        key_dim=None,
        rotary=True,
        base=10000.0,
        attention_type="softmax",
        causal=False,
        performer_features=None,
        performer_seed=0,
        activation="gelu",
        dropout=0.0,
        attention_dropout=0.0,
        use_bias=True,
        norm="layer_norm",
        norm_first=False,
        layer_norm_epsilon=1e-12,
        conditional=False,
        condition_hidden_dim=None,
        condition_hidden_activation="linear",
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(autocast=False, **kwargs)
        if norm not in ("layer_norm", "rms_norm"):
            raise ConfigurationError(
                f"norm must be 'layer_norm' or 'rms_norm', got {norm!r}"
            )
        if norm == "rms_norm" and conditional:
            raise ConfigurationError("an 'rms_norm' takes no condition")
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.intermediate_dim = intermediate_dim
        self.key_dim = key_dim
        self.rotary = rotary
        self.base = base
        self.attention_type = attention_type
        self.causal = causal
        self.performer_features = performer_features
        self.activation = activation
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.use_bias = use_bias
        self.norm = norm
        self.norm_first = norm_first
        self.layer_norm_epsilon = layer_norm_epsilon
        self.conditional = conditional
        self.condition_hidden_dim = condition_hidden_dim
        self.condition_hidden_activation = condition_hidden_activation
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.recompute = False

        self.attention = self._attention(performer_seed)
        self.attention_output_dropout = Dropout(
            dropout, dtype=self.dtype_policy, name="attention_output_dropout"
        )
        self.attention_norm = self._norm("attention_norm")
        self.feed_forward = FeedForward(
            intermediate_dim,
            activation=activation,
            use_bias=use_bias,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="feed_forward",
        )
        self.feed_forward_dropout = Dropout(
            dropout, dtype=self.dtype_policy, name="feed_forward_dropout"
        )
        self.feed_forward_norm = self._norm("feed_forward_norm")

    def _attention(self, performer_seed):
        options = {
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "key_dim": self.key_dim,
            "rotary": self.rotary,
            "base": self.base,
            "use_bias": self.use_bias,
            "kernel_initializer": self.kernel_initializer.clone(),
            "dtype": self.dtype_policy,
            "name": "attention",
        }
        if self.attention_type == "softmax":
            return RoPEAttention(dropout=self.attention_dropout, **options)
        return LinearRoPEAttention(
            kind=self.attention_type,
            causal=self.causal,
            num_features=self.performer_features,
            seed=performer_seed,
            **options,
        )

    def _norm(self, name):
        if self.norm == "rms_norm":
            return RMSNorm(self.layer_norm_epsilon, dtype=self.dtype_policy, name=name)
        return LayerNorm(
            self.layer_norm_epsilon,
            conditional=self.conditional,
            condition_hidden_dim=self.condition_hidden_dim,
            condition_hidden_activation=self.condition_hidden_activation,
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, x_shape, condition_shape=None):
        self.attention.build(x_shape)
        self.feed_forward.build(x_shape)
        for norm in (self.attention_norm, self.feed_forward_norm):
            if self.conditional:
                norm.build(x_shape, condition_shape)
            else:
                norm.build(x_shape)

    def call(
        self,
        x,
        attention_mask=None,
        position_ids=None,
        residual_scores=None,
        return_scores=False,
        condition=None,
        cache=None,
        cache_index=0,
        context=(),
        training=None,
    ):
        options = {
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            "return_scores": return_scores,
            "training": training,
        }
        differentiable = {
            "x": x,
            "residual_scores": residual_scores,
            "condition": condition,
        }
        if not (self.recompute and training and cache is None):
            return self._compute(
                **differentiable,
                **options,
                cache=cache,
                cache_index=cache_index,
                context=context,
            )
        dropouts = [self.attention_output_dropout, self.feed_forward_dropout]
        if self.attention_type == "softmax":
            dropouts.insert(0, self.attention.attention_dropout)
        return recomputed(
            functools.partial(self._compute, **options),
            self,
            dropouts=dropouts,
            arguments={k: v for k, v in differentiable.items() if v is not None},
        )

    def _compute(
        self, x, residual_scores=None, condition=None, training=None, **options
    ):
        x = ops.cast(x, self.compute_dtype)
        norm_arguments = (condition,) if self.conditional else ()
        options.update(residual_scores=residual_scores, training=training)
        if self.attention_type != "softmax":
            options = _without_scores(options)
        attended = self.attention(
            self.attention_norm(x, *norm_arguments) if self.norm_first else x, **options
        )
        attended, *extras = attended if isinstance(attended, tuple) else (attended,)
        x = x + self.attention_output_dropout(attended, training=training)
        if not self.norm_first:
            x = self.attention_norm(x, *norm_arguments)
        # (batch * length, hidden_dim): TensorFlow joins the sum with the product and
        # the bias before it, where no reshape stands between.
        shape = ops.shape(x)
        rows = ops.reshape(x, (-1, shape[-1]))
        fed = rows
        if self.norm_first:
            normalised = self.feed_forward_norm(x, *norm_arguments)
            fed = ops.reshape(normalised, (-1, shape[-1]))
        fed = self.feed_forward_dropout(self.feed_forward(fed), training=training)
        x = ops.reshape(rows + fed, shape)
        if not self.norm_first:
            x = self.feed_forward_norm(x, *norm_arguments)
        return (x, *extras) if extras else x

    def compute_output_spec(
        self,
        x,
        attention_mask=None,
        position_ids=None,
        residual_scores=None,
        return_scores=False,
        condition=None,
        cache=None,
        cache_index=0,
        context=(),
        training=None,
    ):
        if return_scores or cache is not None:
            return super().compute_output_spec(
                x,
                attention_mask=attention_mask,
                position_ids=position_ids,
                residual_scores=residual_scores,
                return_scores=return_scores,
                condition=condition,
                cache=cache,
                cache_index=cache_index,
                context=context,
                training=training,
            )
        # Tracing each block for a shape that is known takes two thirds of the time in
        # which a base model is built.
        return keras.KerasTensor(x.shape, dtype=self.compute_dtype)

    def get_config(self):
        config = super().get_config()
        for name in (
            "num_heads",
            "head_dim",
            "intermediate_dim",
            "key_dim",
            "rotary",
            "base",
            "attention_type",
            "causal",
            "performer_features",
            "activation",
            "dropout",
            "attention_dropout",
            "use_bias",
            "norm",
            "norm_first",
            "layer_norm_epsilon",
            "conditional",
            "condition_hidden_dim",
            "condition_hidden_activation",
        ):
            config[name] = getattr(self, name)
        config["kernel_initializer"] = keras.initializers.serialize(
            self.kernel_initializer
        )
        # It changes when features are redrawn.
        config["performer_seed"] = getattr(self.attention, "seed", 0)
        return config


def _without_scores(options):
    """The arguments of an attention without scores, or an error if they are wanted."""
    options = dict(options)
    del options["training"]
    scores = options.pop("residual_scores")
    wants = {
        "residual_scores": scores is not None,
        "return_scores": options.pop("return_scores"),
        "context": len(options.pop("context", ())) > 0,
    }
    for name, wanted in wants.items():
        if wanted:
            raise ConfigurationError(
                f"attention of linear cost has no scores of pairs, got {name}: leave "
                "it out, or take attention_type='softmax'"
            )
    return options
