"""Settings that pre-training and fine-tuning share."""

import dataclasses

from roformer_keras.base.checks import Settings, choice, integer, number

DTYPES = ("float32", "mixed_bfloat16", "mixed_float16")


def dtype_policy():
    """The field `dtype`."""
    return choice("float32", choices=DTYPES)


def random_seed():
    """The field `seed`: what `keras.utils.set_random_seed` takes."""
    return integer(0, minimum=0, maximum=2**32 - 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSettings(Settings):
    """Options of the optimizer.

    Args:
        name: `"adamw"` or `"lamb"`.
        beta_1, beta_2: float. Momenta of the gradients' mean and square; from 0 to less
            than 1.
        epsilon: float. Added to the root of the mean square.
        weight_decay: float. Decoupled; never applied to biases, gamma and beta.
        clip_norm: float. Maximum of the norm of all gradients together; 0 for none.
        ema: float. Momentum of a running mean of the weights, which becomes the weights
            at the end; from 0 to less than 1, 0 for none.

    Raises:
        ConfigurationError: a setting breaks its rule.

    Example:
        >>> roformer_keras.OptimizerSettings(weight_decay=0.1).name
        'adamw'
    """

    name: str = choice("adamw", choices=("adamw", "lamb"))
    beta_1: float = number(0.9, minimum=0, below=1)
    beta_2: float = number(0.999, minimum=0, below=1)
    epsilon: float = number(1e-6, minimum=0)
    weight_decay: float = number(0.01, minimum=0)
    clip_norm: float = number(1.0, minimum=0)
    ema: float = number(0.0, minimum=0, below=1)
