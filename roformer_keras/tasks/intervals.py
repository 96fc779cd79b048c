"""95 % confidence intervals of figures, by Wilson and by bootstrap."""

import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from roformer_keras.base.extras import import_extra

_LEVEL = 0.95
# Samples; of many rows fewer, to save time.
_MAX_SAMPLES, _MIN_SAMPLES = 1000, 250
# Rows of all samples together, and of those that are computed at a time.
_ALL_ROWS, _ROWS_AT_A_TIME = 25_000_000, 500_000
_SEED = 0


def wilson_interval(is_right: np.ndarray) -> list[float] | None:
    """The interval of a share of rows, by Wilson's score.

    Source: scipy.stats.binomtest.
    """
    stats = import_extra("scipy.stats", "a confidence interval")
    if not len(is_right):
        return None
    test = stats.binomtest(int(np.sum(is_right)), len(is_right))
    low, high = test.proportion_ci(_LEVEL, method="wilson")
    return [float(low), float(high)]


def bootstrap_intervals(
    rows: int, measured: Sequence[Callable[[np.ndarray], Mapping[str, np.ndarray]]]
) -> list[dict[str, list[float] | None]]:
    """Intervals of figures, from samples of the rows drawn with replacement.

    All figures are of the same samples, which are the same in each call.
    """
    stats = import_extra("scipy.stats", "a confidence interval")
    unit_weights = np.ones((1, rows))
    names = [tuple(figures(unit_weights)) for figures in measured]
    samples = max(_MIN_SAMPLES, min(_MAX_SAMPLES, _ALL_ROWS // max(1, rows)))
    if rows < 2 or not any(names):
        return [dict.fromkeys(own) for own in names]

    def statistic(numbers, axis=-1):
        numbers = np.atleast_2d(numbers)
        # How often each row is in a sample says all about it.
        offsets = rows * np.arange(len(numbers))[:, None]
        weights = np.bincount((numbers + offsets).ravel(), minlength=numbers.size)
        weights = weights.reshape(numbers.shape).astype("float64")
        return np.stack(
            [values for figures in measured for values in figures(weights).values()]
        )

    with warnings.catch_warnings():
        # Samples with an undefined figure are left out below.
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        result = stats.bootstrap(
            (np.arange(rows),),
            statistic,
            n_resamples=samples,
            batch=max(1, _ROWS_AT_A_TIME // rows),
            vectorized=True,
            confidence_level=_LEVEL,
            method="percentile",
            rng=np.random.default_rng(_SEED),
        ).bootstrap_distribution
    ends = iter([_ends(values) for values in result])
    return [{name: next(ends) for name in own} for own in names]


def _ends(values):
    count, values = len(values), values[~np.isnan(values)]
    if 2 * len(values) < count:
        return None
    outside = 50 * (1 - _LEVEL)
    return [float(end) for end in np.percentile(values, [outside, 100 - outside])]
