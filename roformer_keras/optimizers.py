"""The optimizers of training, and the learning rates of variables."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from roformer_keras.base import quirks
from roformer_keras.base.checks import (
    check_choice,
    check_instance,
    check_integer,
    check_number,
)
from roformer_keras.base.errors import refuse
from roformer_keras.base.schedules import PiecewiseLinear, UpdatesLinear
from roformer_keras.base.types import TensorLike

__all__ = [
    "AdamW",
    "PiecewiseLinear",
    "finetuning_rate",
    "layerwise_rates",
    "make_optimizer",
]

# Parts of the names of weights that do not decay: biases of dense layers and norms.
_NOT_DECAYED = ("bias", "gamma", "beta")


_MOMENTS = ("momentum", "velocity", "velocity_hat")


def batch_count(optimizer: keras.optimizers.Optimizer) -> keras.Variable:
    """The variable that counts batches.

    `iterations` counts updates; accumulation makes them fewer.
    """
    return next(x for x in optimizer.variables if x.name == "iteration")


class _BertOptimizer(quirks.OptimizerSteps, keras.optimizers.Optimizer):
    """The changes to Keras's optimizers that this module's optimizers share.

    The running mean of the weights moves with each update; Keras moves it with each
    batch of an accumulation. Names of weights that do not decay are saved. Gradients of
    several types are clipped. Momenta of 16-bit weights are float32.
    """

    not_decayed: tuple[str, ...] = ()
    # Name -> one variable for each of the model, such as its momentum.
    _states: Mapping[str, list] = {}

    def __init__(self, *args: Any, not_decayed: Sequence[str] = (), **kwargs: Any):
        super().__init__(*args, **kwargs)
        if not_decayed:
            self.exclude_from_weight_decay(var_names=list(not_decayed))

    def exclude_from_weight_decay(
        self, var_list: list | None = None, var_names: list[str] | None = None
    ) -> None:
        super().exclude_from_weight_decay(var_list, var_names)
        # Keras's configuration lacks them.
        self.not_decayed = tuple(var_names or ())

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "not_decayed": list(self.not_decayed)}

    def mean_momentum(self, batches: TensorLike) -> TensorLike:
        """The share of the running mean that a batch keeps; 1 if it updates no weights.

        Until the first update, the mean equals the weights, even if a training ends
        before it.

        Args:
            batches: int scalar. Batches before this one.

        Returns:
            float32 scalar.
        """
        parts = self.gradient_accumulation_steps or 1
        is_first = ops.equal(ops.floor_divide(batches, parts), 0)
        is_update = ops.equal(ops.mod(ops.add(batches, 1), parts), 0)
        momentum = ops.where(is_update, self.ema_momentum, 1.0)
        return ops.cast(ops.where(is_first, 0.0, momentum), "float32")

    def move_means(self, variables: list[keras.Variable]) -> None:
        if not self.use_ema:
            return
        momentum = self.mean_momentum(batch_count(self))
        for variable, mean in zip(variables, self._states["average"], strict=True):
            if mean is not None:
                moved = momentum * ops.cast(mean, "float32")
                moved += (1 - momentum) * ops.cast(variable, "float32")
                mean.assign(ops.cast(moved, mean.dtype))

    def finalize_variable_values(self, var_list: list[keras.Variable]) -> None:
        super().finalize_variable_values(var_list)
        if self.use_ema:
            # Keras on JAX lets weight and mean share an array, which the next `fit`
            # would free twice.
            for variable in var_list:
                variable.assign(ops.copy(variable))

    def decay_weights(self, variables: list[keras.Variable]) -> None:
        # Keras on PyTorch fails if no variable decays.
        if any(map(self.decays, variables)):
            super().decay_weights(variables)

    def clip_gradients(self, grads: list) -> list:
        # Keras's other ways to clip come first.
        if not self.global_clipnorm or self.clipnorm:
            return super().clip_gradients(grads)
        present = [gradient for gradient in grads if gradient is not None]
        types = {
            keras.backend.standardize_dtype(gradient.dtype) for gradient in present
        }
        if types == {"float32"} and keras.backend.backend() == "tensorflow":
            return _clipped_by_global_norm(grads, self.global_clipnorm)
        # Keras can only sum squares of one type.
        precise = [
            None if g is None else ops.cast(ops.convert_to_tensor(g), "float32")
            for g in grads
        ]
        return [
            None if g is None else ops.cast(clipped, g.dtype)
            for g, clipped in zip(grads, super().clip_gradients(precise), strict=True)
        ]

    def add_optimizer_variables(
        self, trainable_variables: list, name: Any, initializer: Any = "zeros"
    ) -> Any:
        added = super().add_optimizer_variables(trainable_variables, name, initializer)
        is_single = isinstance(name, str)
        names, states = ([name], [added]) if is_single else (name, added)
        self._states = {**self._states, **dict(zip(names, states, strict=True))}
        return added

    def add_variable_from_reference(
        self,
        reference_variable: keras.Variable,
        name: str | None = None,
        initializer: Any = "zeros",
    ) -> keras.Variable:
        is_momentum = name in _MOMENTS
        if is_momentum and _has_16_bits(reference_variable):
            return self.add_variable(
                shape=reference_variable.shape,
                initializer=initializer,
                dtype="float32",
                name=f"{reference_variable.path.replace('/', '_')}_{name}",
            )
        return super().add_variable_from_reference(
            reference_variable, name, initializer
        )

    def _moments(self, variable):
        """First and second moment of Adam, and the largest second moment or None."""
        index = quirks.place_of(self, variable)
        states = [self._states.get(name) for name in _MOMENTS]
        return [state and state[index] for state in states]

    def _direction(self, gradient, variable):
        """The gradient's mean divided by the root of its mean square, unbiased.

        Keras adds epsilon before it corrects the bias of the second moment, which makes
        epsilon thirty times as large in the first steps. 16-bit weights would round
        0.999 and epsilon, so their direction is in float32.
        """
        mean, square, highest = self._moments(variable)
        gradient = ops.cast(gradient, mean.dtype)
        self.assign_add(mean, (gradient - mean) * (1 - self.beta_1))
        self.assign_add(square, (ops.square(gradient) - square) * (1 - self.beta_2))
        if highest is not None:
            self.assign(highest, ops.maximum(highest, square))
            square = highest
        step = ops.cast(self.iterations + 1, mean.dtype)
        unbiased = square / (1 - ops.power(self.beta_2, step))
        mean = mean / (1 - ops.power(self.beta_1, step))
        return mean / (ops.sqrt(unbiased) + self.epsilon)

    def _move(self, variable, by):
        """Subtracts `by` from a variable, in the type of `by`."""
        moved = ops.cast(variable, by.dtype) - by
        self.assign(variable, ops.cast(moved, variable.dtype))


def _has_16_bits(variable):
    return keras.backend.standardize_dtype(variable.dtype) in ("bfloat16", "float16")


@keras.saving.register_keras_serializable("roformer_keras")
class AdamW(_BertOptimizer, keras.optimizers.AdamW):
    """AdamW as in BERT's descendants and in bert4keras.

    It can train some variables more slowly than others.

    Args:
        rates: dict of pattern to factor. The learning rate of a variable, and with it
            its weight decay, is multiplied by the factor of the first pattern that
            `re.search` matches in its path, or by 1 without a match.
        not_decayed: substrings of names of variables whose weights do not decay, as in
            `exclude_from_weight_decay`.
        kwargs: as in `keras.optimizers.AdamW`.
        args: as in `keras.optimizers.AdamW`, such as `learning_rate`.

    Raises:
        ConfigurationError: a factor is negative or not a number.

    Example:
        >>> optimizer = optimizers.AdamW(2e-5, rates={"transformer_layer_0/": 0.5})
        >>> optimizer.rates
        {'transformer_layer_0/': 0.5}

    Source: Loshchilov and Hutter 2019, arXiv:1711.05101; bert4keras 0.11.5 for
    the numbers.
    """

    def __init__(
        self,
        *args: Any,
        rates: Mapping[str, float] | None = None,
        not_decayed: Sequence[str] = (),
        **kwargs: Any,
    ):
        super().__init__(*args, not_decayed=not_decayed, **kwargs)
        self.rates = dict(rates or {})
        for pattern, factor in self.rates.items():
            refuse(
                not factor >= 0,
                f"a factor of the rate must be at least 0, got {factor!r} for "
                f"{pattern!r}",
            )

    def update_step(
        self, gradient: TensorLike, variable: TensorLike, learning_rate: TensorLike
    ) -> None:
        factor = self._factor(variable)
        if factor != 1:
            # The whole rate has already decayed it.
            if self.weight_decay is not None and self.decays(variable):
                decay = ops.cast(self.weight_decay * learning_rate, variable.dtype)
                decayed = variable * (1 - factor * decay) / (1 - decay)
                self.assign(variable, decayed)
            learning_rate = learning_rate * factor
        gradient = dense_gradient(gradient, variable)
        if self._has_kernel(variable):
            self._update_at_once(gradient, variable, learning_rate)
            return
        direction = self._direction(gradient, variable)
        self._move(variable, ops.cast(learning_rate, direction.dtype) * direction)

    def _has_kernel(self, variable):
        # Types of few bits would round its betas to 1.
        is_float32 = keras.backend.standardize_dtype(variable.dtype) == "float32"
        is_tensorflow = keras.backend.backend() == "tensorflow"
        return is_tensorflow and is_float32 and not self.amsgrad

    def _update_at_once(self, gradient, variable, learning_rate):
        """The same update, in one pass over memory instead of a dozen."""
        import tensorflow as tf

        mean, square, _ = self._moments(variable)
        step = ops.cast(self.iterations + 1, "float32")
        beta2_power = ops.power(self.beta_2, step)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=mean.value.handle,
            v=square.value.handle,
            beta1_power=ops.power(self.beta_1, step),
            beta2_power=beta2_power,
            lr=learning_rate,
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon * ops.sqrt(1 - beta2_power),
            grad=ops.cast(gradient, "float32"),
        )

    def _factor(self, variable):
        for pattern, factor in self.rates.items():
            # TensorFlow passes its own variables, whose name is the path.
            if re.search(pattern, getattr(variable, "path", variable.name)):
                return factor
        return 1.0

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rates": self.rates}


@keras.saving.register_keras_serializable("roformer_keras")
class Lamb(_BertOptimizer, keras.optimizers.Lamb):
    """Keras's LAMB, which remembers after loading which weights do not decay.

    Args:
        not_decayed: as in `AdamW`.
        args, kwargs: as in `keras.optimizers.Lamb`.
    """

    def update_step(self, gradient, variable, learning_rate):
        gradient = dense_gradient(gradient, variable)
        direction = self._direction(gradient, variable)
        norm = ops.norm(ops.cast(variable, direction.dtype))
        step_norm = ops.norm(direction)
        is_known = ops.logical_and(norm > 0, step_norm > 0)
        ratio = ops.where(is_known, norm / ops.maximum(step_norm, 1e-30), 1.0)
        rate = ops.cast(learning_rate, direction.dtype)
        self._move(variable, ratio * rate * direction)


def has_rows(gradient: TensorLike) -> bool:
    """True for a gradient that lists the rows of an embedding."""
    return hasattr(gradient, "dense_shape")


def dense_gradient(gradient: TensorLike, variable: TensorLike) -> TensorLike:
    """A gradient in the shape of its variable.

    TensorFlow passes the rows of an embedding one by one: rows of a repeated token must
    be summed before they are squared.
    """
    if has_rows(gradient):
        return ops.add(ops.zeros_like(variable), gradient)
    return gradient


def _clipped_by_global_norm(gradients, limit):
    """Keras's clipping in one pass over memory, or in two above the limit."""
    import tensorflow as tf

    present = [gradient for gradient in gradients if gradient is not None]
    # On TensorFlow, Keras and bert4keras do not sum the rows of a token in an embedding
    # before the norm either. JAX, PyTorch and accumulation sum them.
    halves = [
        tf.nn.l2_loss(getattr(gradient, "values", gradient)) for gradient in present
    ]
    norm = tf.sqrt(2 * tf.add_n(halves))
    present = [tf.convert_to_tensor(gradient) for gradient in present]

    def scaled():
        # An infinite norm gives NaN, as in Keras.
        scale = limit / norm + (norm - norm)
        return [gradient * scale for gradient in present]

    # NaN is never within the limit.
    clipped = iter(tf.cond(norm <= limit, lambda: list(present), scaled))
    return [None if gradient is None else next(clipped) for gradient in gradients]


def layerwise_rates(num_layers: int, decay: float) -> dict[str, float]:
    """`rates` of `AdamW` that fall from the head down to the embeddings.

    The highest block has the factor `decay`. Each lower block, and at last the
    embeddings, has the factor of the one above it times `decay`; a head has 1.

    Args:
        num_layers: int. Blocks of the backbone.
        decay: float in (0, 1].

    Returns:
        dict of pattern to factor; empty if `decay` is 1.

    Raises:
        ConfigurationError: `decay` is not in (0, 1].

    Example:
        >>> rates = optimizers.layerwise_rates(num_layers=2, decay=0.5)
        >>> list(rates.values())
        [0.25, 0.5, 0.125]

    Source: Howard and Ruder 2018, arXiv:1801.06146, section 3.2 (discriminative
    fine-tuning).
    """
    check_integer("num_layers", num_layers, minimum=0)
    check_number("layer_decay", decay, above=0, maximum=1)
    if decay == 1:
        return {}
    rates = {
        rf"(^|/)transformer_layer_{number}/": decay ** (num_layers - number)
        for number in range(num_layers)
    }
    embeddings = r"(^|/)((token|segment)_embedding|embedding_(norm|mapping))/"
    rates[embeddings] = decay ** (num_layers + 1)
    return rates


def finetuning_rate(hidden_dim: int) -> float:
    """The default learning rate of a fine-tuning.

    It is 2e-5 at the width of a base model, 768, as in bert4keras's examples. Narrower
    models take it times the square of the ratio of widths, at most 5e-4: they barely
    move at the rate of a wide model.

    Args:
        hidden_dim: int. Width of the encoder.

    Returns:
        float.

    Example:
        >>> optimizers.finetuning_rate(768)
        2e-05
        >>> optimizers.finetuning_rate(192)
        0.00032
    """
    return min(5e-4, 2e-5 * (768 / hidden_dim) ** 2)


def make_optimizer(
    learning_rate: float,
    schedule: Sequence[tuple[int, float]] = (),
    *,
    name: str = "adamw",
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-6,
    weight_decay: float = 0.01,
    clip_norm: float = 1.0,
    ema: float = 0.0,
    accumulation: int = 1,
    rates: Mapping[str, float] | None = None,
) -> keras.optimizers.Optimizer:
    """A Keras optimizer as BERT's descendants are trained with.

    Args:
        learning_rate: float. Base rate, which the factors of `schedule` multiply.
        schedule: points of `PiecewiseLinear`, in updates.
        name: `"adamw"` or `"lamb"`. Without weight decay, `"adamw"` is Adam.
        beta_1, beta_2: float in [0, 1). Momenta of the gradients' mean and square.
        epsilon: float. Added to the root of the second moment; 1e-6 as in BERT.
        weight_decay: float, 0 for none. Decoupled; never on biases, gamma and beta.
        clip_norm: float, 0 for none. Maximum global gradient norm. On TensorFlow, the
            gradient of a token counts once for each of its positions, as in bert4keras;
            on other backends, and under accumulation, it counts once.
        ema: float in [0, 1), 0 for none. Momentum of a running mean of the weights.
        accumulation: int. Batches per update.
        rates: as in `AdamW`.

    Returns:
        The optimizer, for `compile`.

    Raises:
        ConfigurationError: there is no optimizer of that name.

    Example:
        >>> optimizer = optimizers.make_optimizer(1e-4, [(100, 1.0), (1000, 0.0)])
        >>> type(optimizer).__name__, optimizer.weight_decay
        ('AdamW', 0.01)

    Source: Loshchilov and Hutter 2019, arXiv:1711.05101; LAMB: You et al. 2020,
    arXiv:1904.00962.
    """
    kinds: dict[str, Any] = {"adamw": AdamW, "lamb": Lamb}
    check_choice("name", name, kinds)
    check_number("learning_rate", learning_rate)
    for option, value in (("beta_1", beta_1), ("beta_2", beta_2), ("ema", ema)):
        check_number(option, value, minimum=0, below=1)
    check_number("epsilon", epsilon, minimum=0)
    check_number("weight_decay", weight_decay, minimum=0)
    check_number("clip_norm", clip_norm, minimum=0)
    check_integer("accumulation", accumulation, minimum=1)
    if rates is not None:
        check_instance("rates", rates, Mapping)
    optimizer = kinds[name](
        UpdatesLinear(learning_rate, schedule, accumulation),
        # Keras's AdamW does not take None.
        weight_decay=float(weight_decay),
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=epsilon,
        global_clipnorm=clip_norm or None,
        use_ema=ema > 0,
        ema_momentum=ema or 0.99,
        gradient_accumulation_steps=accumulation if accumulation > 1 else None,
        # Without a name, Keras numbers optimizers, and a state would not match its own.
        name=name,
        **({"rates": rates} if rates else {}),
    )
    if weight_decay:
        optimizer.exclude_from_weight_decay(var_names=list(_NOT_DECAYED))
    return optimizer
