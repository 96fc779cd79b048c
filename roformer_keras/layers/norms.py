"""Layer norms in float32, and the activations that layers take by name."""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.types import Shape, TensorLike
from roformer_keras.layers.configured import ConfiguredLayer
from roformer_keras.layers.fused import (
    computes_gelu,
    fused_layer_norm,
    gelu_with_gradient,
    is_fused,
)


@keras.saving.register_keras_serializable("roformer_keras")
def erf_gelu(x: TensorLike) -> TensorLike:
    """The exact GELU, `x * P(X <= x)` for a standard normal X.

    It uses `erf`, because the `erfc` of the Keras activation has no ONNX form.

    Args:
        x: float, of any shape.

    Returns:
        float, of the shape of `x`.

    Example:
        >>> round(float(layers.erf_gelu(ops.convert_to_tensor(1.0))), 4)
        0.8413

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.
    """
    if computes_gelu(x):
        return gelu_with_gradient(x)
    return 0.5 * x * (1.0 + ops.erf(x * math.sqrt(0.5)))


@keras.saving.register_keras_serializable("roformer_keras")
def tanh_gelu(x: TensorLike) -> TensorLike:
    """The approximate GELU, `0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.

    Args:
        x: float, of any shape.

    Returns:
        float, of the shape of `x`.

    Example:
        >>> round(float(layers.tanh_gelu(ops.convert_to_tensor(1.0))), 4)
        0.8412

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415; `gelu_new` of Transformers.
    """
    return keras.activations.gelu(x, approximate=True)


def activation_from_name(activation: str | Callable | None) -> Callable:
    """A Keras activation; `"gelu"` is the exact form, as in bert4keras."""
    if activation in ("gelu", "gelu_tanh"):
        return erf_gelu if activation == "gelu" else tanh_gelu
    try:
        return keras.activations.get(activation)
    except ValueError as error:
        raise ConfigurationError(
            f"activation must be the name of a Keras activation, got {activation!r}"
        ) from error


def _precise_type(layer):
    """The dtype in which a layer computes a norm, whatever the dtype of its input."""
    return "float64" if layer.compute_dtype == "float64" else "float32"


def _check_epsilon(epsilon):
    refuse(
        not epsilon > 0,
        f"epsilon must be above 0, got {epsilon!r}",
    )


@keras.saving.register_keras_serializable("roformer_keras")
class LayerNorm(ConfiguredLayer):
    """Layer normalisation, optionally conditioned on a vector.

    It computes `(x - mean) / sqrt(variance + epsilon) * gamma + beta` over the last
    axis, in float32, or in float64 under that policy. With a condition c, gamma becomes
    `gamma + c Wg` and beta `beta + c Wb`; both products are zero at first.

    Args:
        epsilon: float above 0. 1e-12 as RoFormer was trained.
        conditional: bool. Whether the layer takes a condition.
        condition_hidden_dim: int or None. Width of a dense layer on the condition.
        condition_hidden_activation: activation of that layer.
        kwargs: as in `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        x: float `(..., dim)`.
        condition: float `(batch, condition_dim)`; required if `conditional`.

    Returns:
        float, of the shape of `x`.

    Raises:
        ConfigurationError: `epsilon` is not above 0, or `conditional` without a
            condition in the call.

    Example:
        >>> norm = layers.LayerNorm()
        >>> ops.convert_to_numpy(norm(np.array([[1.0, 3.0]])))
        array([[-1.,  1.]], dtype=float32)

    Source: Ba et al. 2016, arXiv:1607.06450; the condition as in bert4keras.
    """

    def __init__(
        self,
        epsilon: float = 1e-12,
        conditional: bool = False,
        condition_hidden_dim: int | None = None,
        condition_hidden_activation: str | Callable | None = "linear",
        **kwargs: Any,
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

    def build(self, x_shape: Shape, condition_shape: Shape | None = None) -> None:
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

    def call(self, x: TensorLike, condition: TensorLike = None) -> TensorLike:
        precise = _precise_type(self)
        # oneDNN has no norm of float64.
        if is_fused() and not self.conditional and precise == "float32":
            x = ops.cast(x, self.compute_dtype)
            gamma, beta = (ops.cast(w, x.dtype) for w in (self.gamma, self.beta))
            return fused_layer_norm(x, gamma, beta, self.epsilon)
        x = ops.cast(x, precise)
        # PyTorch's `ops.moments` subtracts squares, so it may return a negative
        # variance.
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
        gamma = ops.cast(self.gamma, precise)
        beta = ops.cast(self.beta, precise)
        if self.conditional:
            if self.hidden_dense:
                condition = self.hidden_dense(condition)
            # (batch, dim) -> (batch, 1, ..., dim)
            axes = tuple(range(1, len(x.shape) - 1))
            gamma = gamma + ops.cast(
                ops.expand_dims(self.gamma_dense(condition), axes), precise
            )
            beta = beta + ops.cast(
                ops.expand_dims(self.beta_dense(condition), axes), precise
            )
        normalised = centred * ops.rsqrt(variance + self.epsilon)
        return ops.cast(normalised * gamma + beta, self.compute_dtype)

    def compute_output_shape(
        self, x_shape: Shape, condition_shape: Shape | None = None
    ) -> Shape:
        return x_shape


@keras.saving.register_keras_serializable("roformer_keras")
class RMSNorm(ConfiguredLayer):
    """`x / sqrt(mean(x ** 2) + epsilon)`: the norm of RoFormerV2, without parameters.

    It computes in float32, or in float64 under that policy.

    Args:
        epsilon: float above 0.
        kwargs: as in `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        x: float `(..., dim)`.

    Returns:
        float, of the shape of `x`.

    Raises:
        ConfigurationError: `epsilon` is not above 0.

    Example:
        >>> ops.convert_to_numpy(layers.RMSNorm()(np.array([[1.0, 7.0]]))).round(2)
        array([[0.2, 1.4]], dtype=float32)

    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """

    def __init__(self, epsilon: float = 1e-12, **kwargs: Any):
        super().__init__(**kwargs)
        _check_epsilon(epsilon)
        self.supports_masking = True
        self.epsilon = epsilon

    def call(self, x: TensorLike) -> TensorLike:
        x = ops.cast(x, _precise_type(self))
        square = ops.mean(ops.square(x), axis=-1, keepdims=True)
        return ops.cast(x * ops.rsqrt(square + self.epsilon), self.compute_dtype)
