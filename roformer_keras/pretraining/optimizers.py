"""The optimizers of pre-training, and how their learning rate goes."""

import itertools
from collections.abc import Sequence

import keras
from keras import ops

from roformer_keras.pretraining.settings import OptimizerSettings, Stage

__all__ = ["PiecewiseLinear", "make_optimizer"]

# Names of weights that are not decayed: of dense layers and of norms.
_NOT_DECAYED = ("bias", "gamma", "beta")


@keras.saving.register_keras_serializable("roformer_keras")
class PiecewiseLinear(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate times a factor that is linear between given steps.

    Args:
        learning_rate: float.
        points: pairs (step, factor), ascending. Before the first the factor rises from
            0 at step 0, so that the first update then has the rate 0; behind the last
            it stays. None: constant.

    Call arguments:
        step: int. Updates so far.

    Returns:
        float32 scalar.

    Source: bert4keras 0.11.5, `piecewise_linear`.
    """

    def __init__(self, learning_rate: float, points: Sequence[tuple[int, float]] = ()):
        self.learning_rate = float(learning_rate)
        self.points = [(int(step), float(factor)) for step, factor in points]

    def __call__(self, step):
        points = self.points or [(0, 1.0)]
        if points[0][0] > 0:
            points = [(0, 0.0), *points]
        step = ops.cast(step, "float32")
        factor = ops.full_like(step, points[0][1])
        for (start, before), (end, after) in itertools.pairwise(points):
            share = ops.clip((step - start) / (end - start), 0.0, 1.0)
            factor += share * (after - before)
        return factor * self.learning_rate

    def get_config(self):
        return {"learning_rate": self.learning_rate, "points": self.points}


def make_optimizer(settings: OptimizerSettings, stage: Stage):
    """A Keras optimizer as the settings of a stage say."""
    kinds = {"adamw": keras.optimizers.AdamW, "lamb": keras.optimizers.Lamb}
    parts = stage.accumulation
    optimizer = kinds[settings.name](
        PiecewiseLinear(stage.learning_rate, stage.schedule),
        weight_decay=settings.weight_decay or None,
        # As in BERT; a step of float32 is far above it.
        epsilon=1e-6,
        global_clipnorm=settings.clip_norm or None,
        use_ema=settings.ema > 0,
        # Keras counts each part of a batch.
        ema_momentum=settings.ema ** (1 / parts) if settings.ema else 0.99,
        gradient_accumulation_steps=parts if parts > 1 else None,
        # Else Keras numbers them through, and a state would not know its own.
        name=settings.name,
    )
    if settings.weight_decay:
        optimizer.exclude_from_weight_decay(var_names=list(_NOT_DECAYED))
    return optimizer
