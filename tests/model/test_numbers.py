"""Losses, masks and optimizers over shapes, types and ways to run, against NumPy."""

import itertools

import keras
import numpy as np
import plain_losses as plain
import pytest
from allpairspy import AllPairs
from arrays import assert_close
from common import wrong_cells
from finetuning_cases import BAD, GOOD, load_small

from roformer_keras import (
    RoFormerSentenceEncoder,
    RoFormerTextClassifier,
    layers,
    losses,
)
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.optimizers import (
    AdamW,
    Lamb,
    PiecewiseLinear,
    layerwise_rates,
    make_optimizer,
)

RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(6, 5))
LOGITS = RNG.normal(size=(6, 5))
COSINES = RNG.uniform(-1, 1, size=6)
SETS = ((0, 1), (2, 3, 4))
NEIGHBOURS, LABELS, CLASSES, DEGREES = map(
    np.array,
    ([1, 0, 3, 2, 5, 4], [0, 3, 4, 1, 2, 2], [1, 1, 1, 2, 2, 0], [0, 3, 1, 1, 5, 0]),
)
# Loss, targets, outputs, and the same for each row in NumPy.
LOSSES = {
    "contrastive": (
        losses.Contrastive(scale=10.0),
        NEIGHBOURS,
        VECTORS,
        lambda y, x: plain.contrastive(x, y, 10.0),
    ),
    "supervised_contrastive": (
        losses.SupervisedContrastive(scale=10.0),
        # The last is alone in its class.
        CLASSES,
        VECTORS,
        lambda y, x: plain.supervised_contrastive(y, x, 10.0),
    ),
    "masked_label_crossentropy": (
        losses.MaskedLabelCrossentropy(SETS),
        LABELS,
        LOGITS,
        lambda y, x: plain.masked_label_crossentropy(y, x, SETS),
    ),
    "cosent": (
        losses.CoSENT(scale=10.0),
        DEGREES,
        COSINES,
        lambda y, x: plain.cosent(y, x, 10.0),
    ),
}


def ways_to_run():
    """Functions of a loss that run it as the backend does: eager, graph, XLA."""
    ways = {"eager": lambda loss: loss}
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        ways["graph"] = tf.function
        ways["XLA"] = lambda loss: tf.function(loss, jit_compile=True)
    elif keras.backend.backend() == "jax":
        import jax

        ways["XLA"] = jax.jit
    return ways


WAYS = ways_to_run()
# JAX computes in 64 bits only if its configuration says so.
IS_64_BIT = keras.backend.backend() != "jax"
TARGETS = [
    *("int8", "uint8", "int16", "int32", "float16", "float32"),
    *["int64", "float64"] * IS_64_BIT,
]
OUTPUTS = ["float16", "bfloat16", "float32", *["float64"] * IS_64_BIT]
SHAPES = ["rows", "column", "one row"]
LOSS_FACTORS = [list(LOSSES), SHAPES, TARGETS, OUTPUTS, list(WAYS)]


def wrong_loss(name, shape, target_type, output_type, way):
    loss, targets, outputs, expected = LOSSES[name]
    if shape == "one row":
        if name == "contrastive":
            return None  # A row alone has no neighbour.
        if name == "supervised_contrastive":
            expected = lambda y, x: 0.0  # noqa: E731
        targets, outputs = targets[:1], outputs[:1]
    outputs = keras.ops.cast(keras.ops.convert_to_tensor(outputs), output_type)
    exact = keras.ops.convert_to_numpy(keras.ops.cast(outputs, "float32"))
    if output_type == "float64":
        exact = keras.ops.convert_to_numpy(outputs)
    expected = np.mean(expected(targets, exact.astype("float64")))
    targets = keras.ops.cast(keras.ops.convert_to_tensor(targets), target_type)
    if shape == "column":
        targets = targets[:, None]
        outputs = outputs[:, None] if name == "cosent" else outputs
    value = float(WAYS[way](loss)(targets, outputs))
    is_right = abs(value - expected) <= 1e-4 * max(1, abs(expected))
    return None if is_right else f"{value} instead of {expected}"


def test_losses_over_shapes_types_and_ways():
    assert wrong_cells(wrong_loss, map(tuple, AllPairs(LOSS_FACTORS))) == []


@pytest.mark.weekly
def test_all_losses_over_shapes_types_and_ways():
    assert wrong_cells(wrong_loss, itertools.product(*LOSS_FACTORS)) == []


# Of matrices of cosines, which have no other shapes.
WEIGHTED = LOSSES | {
    "similarity_regression": (
        losses.SimilarityRegression(factor=3.0),
        np.zeros((6, 6)),
        plain.cosines(VECTORS),
        lambda y, x: 3 * np.mean((x - y) ** 2, axis=1),
    )
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_a_loss_is_the_weighted_mean(name):
    loss, targets, outputs, expected = WEIGHTED[name]
    row_losses = np.broadcast_to(expected(targets, outputs), 6)
    outputs = outputs.astype("float32")
    assert loss.name == name
    assert_close(loss(targets, outputs), row_losses.mean())
    if name != "cosent":  # It refuses them.
        weights = np.arange(6, dtype="float32")
        mean = (weights * row_losses).sum() / weights.sum()
        assert_close(loss(targets, outputs, weights), mean)
    restored = keras.losses.deserialize(keras.losses.serialize(loss))
    assert type(restored) is type(loss)
    assert restored(targets, outputs) == loss(targets, outputs)
    # In float32, of the bfloat16 numbers that a model gives, to the last bit.
    coarse = keras.ops.cast(outputs, "bfloat16")
    rounded = loss(targets, coarse)
    assert keras.backend.standardize_dtype(rounded.dtype) == "float32"
    assert rounded == loss(targets, keras.ops.cast(coarse, "float32"))


def test_defaults_of_losses_and_functions():
    for loss, options in {
        losses.Contrastive: {"scale": 20.0},
        losses.SupervisedContrastive: {"scale": 20.0},
        losses.SimilarityRegression: {"factor": 100.0},
        losses.CoSENT: {"scale": 20.0},
    }.items():
        assert loss().options == options
    # The functions too compute in float32.
    coarse = keras.ops.cast(VECTORS, "bfloat16")
    exact = keras.ops.convert_to_numpy(keras.ops.cast(coarse, "float32"))
    assert_close(
        losses.contrastive(NEIGHBOURS, coarse), plain.contrastive(exact, NEIGHBOURS)
    )
    assert_close(losses.cosent(DEGREES, COSINES), plain.cosent(DEGREES, COSINES))
    expected = plain.supervised_contrastive(LABELS, LOGITS)
    assert_close(losses.supervised_contrastive(LABELS, LOGITS), expected)
    teacher = RNG.normal(size=(6, 3))
    row_losses = losses.similarity_regression(
        plain.cosines(teacher), plain.cosines(VECTORS)
    )
    assert row_losses.shape == (6,)
    expected = plain.similarity_regression(teacher, VECTORS)
    assert_close(keras.ops.mean(row_losses), expected, 1e-4)


def test_a_vector_of_zeros_is_no_error():
    vectors = VECTORS.copy()
    vectors[2] = 0
    for values in (
        losses.contrastive(NEIGHBOURS, vectors),
        losses.pair_cosines(vectors, VECTORS),
    ):
        assert np.isfinite(keras.ops.convert_to_numpy(values)).all()


def test_cosines():
    assert_close(losses.cosines(VECTORS), plain.cosines(VECTORS), 1e-6)
    expected = np.diag(plain.unit(VECTORS) @ plain.unit(VECTORS[::-1]).T)
    assert_close(losses.pair_cosines(VECTORS, VECTORS[::-1]), expected, 1e-6)


def test_rows_that_are_right():
    # By pairs: side by side, and opposite.
    vectors = np.array([[1, 0.1], [1, 0.0], [0, 1.0], [0, -1.0]], "float32")
    assert_close(
        losses.neighbour_is_nearest(np.array([1, 0, 3, 2]), vectors), [1, 1, 0, 0]
    )
    logits = np.array([[1, 2, 9, 9, 9], [9, 9, 3, 1, 2], [0, 0, 0, 0, 1]], "float32")
    assert_close(losses.label_is_best(np.array([1, 3, 4]), logits, SETS), [1, 0, 1])


def test_classes_may_be_large_integers():
    labels = CLASSES + 20231100
    loss = losses.SupervisedContrastive()
    for kind in ("int32", "int64", "uint32"):
        value = loss(labels.astype(kind), VECTORS)
        assert value == loss(CLASSES, VECTORS)


def test_cosent_has_no_weights_of_rows():
    with pytest.raises(ConfigurationError, match="rows have no weights"):
        losses.CoSENT()(DEGREES, COSINES, np.ones(6))


@pytest.mark.parametrize(
    "kind", ["bool", "int8", "uint8", "int16", "int32", "int64", "uint32"]
)
def test_masks_count_beyond_the_type_of_ids(kind):
    length = 600
    ids = np.ones((1, length), kind)
    ids[0, 590:] = 0
    assert np.asarray(layers.padding_mask(ids))[0, 0, 0].sum() == 590
    segments = np.zeros((1, length), kind)
    segments[0, 10:] = 1
    mask = np.asarray(layers.unilm_mask(segments))[0, 0]
    columns, rows = np.meshgrid(np.arange(length), np.arange(length))
    np.testing.assert_array_equal(mask, (columns <= rows) | (columns < 10))


@pytest.mark.parametrize("pattern", ["bidirectional", "causal", "unilm"])
@pytest.mark.parametrize("pad_segments", [False, True])
def test_masks_of_models(pattern, pad_segments):
    ids, segments = np.array([[2, 7, 3, 8, 3, 0]]), np.array([[0, 0, 0, 1, 1, 0]])
    columns, rows = np.meshgrid(np.arange(6), np.arange(6))
    expected = np.broadcast_to(ids[0] != 0, (6, 6))
    if pad_segments:
        # Segment 0 is padding too, but at the first position.
        expected = expected & ((segments[0] != 0) | (columns == 0))
    if pattern == "causal":
        expected = expected & (columns <= rows)
    elif pattern == "unilm":
        ones = np.cumsum(segments[0])
        expected = expected & (ones[columns] <= ones[rows])
    mask = layers.AttentionMask(pattern, pad_segments)(ids, segments)
    np.testing.assert_array_equal(np.broadcast_to(mask, (1, 1, 6, 6))[0, 0], expected)
    if not pad_segments:
        default = layers.AttentionMask(pattern)(ids, segments)
        np.testing.assert_array_equal(default, mask)


def test_a_causal_mask_may_begin_later():
    mask = np.asarray(layers.causal_mask(2, 5, offset=2))[0, 0]
    assert mask.astype(int).tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]


def test_points_of_a_schedule_ascend():
    for points in ([(5, 1.0), (5, 0.5)], [(9, 1.0), (5, 0.5)], [(-1, 1.0)]):
        with pytest.raises(ConfigurationError, match="later step"):
            PiecewiseLinear(1.0, points)


# === Optimizers ===


OPTIONS = {
    "name": ["adamw", "lamb"],
    "accumulation": [1, 3],
    "ema": [0.0, 0.5],
    "clip_norm": [0.0, 0.1],
    "weight_decay": [0.0, 0.1],
    "layer_decay": [1.0, 0.5],
    "adversarial_epsilon": [0.0, 1.0],
    "r_drop": [0.0, 2.0],
    "dtype": ["float32", "mixed_bfloat16", "bfloat16"],
}
TEXTS, NAMES = (GOOD + BAD)[:6], ["好"] * 4 + ["差"] * 2


def classifier(dtype="float32"):
    keras.utils.set_random_seed(0)
    return load_small(RoFormerTextClassifier, classes=["差", "好"], dtype=dtype)


def trained(rate, batch_size=2, epochs=1, **cell):
    """The weights before and after a training."""
    model = classifier(cell.pop("dtype", "float32"))
    aids = {name: cell.pop(name, 0.0) for name in ("adversarial_epsilon", "r_drop")}
    decay = cell.pop("layer_decay", 1.0)
    if cell.get("name") != "lamb":
        cell["rates"] = layerwise_rates(1, decay)
    model.compile(make_optimizer(rate, **cell), run_eagerly=True, **aids)
    # A key's bias changes no score. Its gradient is nothing but rounding, to which LAMB
    # gives the length of the weights.
    variables = [v for v in model.trainable_variables if "key/bias" not in v.path]
    before = [np.array(v, "float32") for v in variables]
    model.fit(TEXTS, NAMES, batch_size=batch_size, epochs=epochs, verbose=0)
    return before, [np.array(v, "float32") for v in variables]


def moved(before, after):
    return max(np.abs(a - b).max() for a, b in zip(before, after, strict=True))


def wrong_at_rate_0(*values):
    cell = dict(zip(OPTIONS, values, strict=True))
    # FGM moves the embeddings and back, which rounds.
    epsilon = cell["adversarial_epsilon"]
    tolerance = epsilon * (2e-2 if cell["dtype"] == "bfloat16" else 1e-6)
    distance = moved(*trained(0.0, **cell))
    return None if distance <= tolerance else f"moved {distance}"


@pytest.mark.slow
def test_at_rate_0_nothing_moves():
    assert (
        wrong_cells(wrong_at_rate_0, map(tuple, AllPairs(list(OPTIONS.values())))) == []
    )


# Of which parts of a batch do the same as the batch. A norm that clips counts the rows
# of tokens, which a sum has no more.
ACCUMULATED = {
    name: values
    for name, values in {**OPTIONS, "clip_norm": [0.0, 10.0]}.items()
    if name not in ("accumulation", "adversarial_epsilon", "dtype")
}


def wrong_accumulation(*values):
    cell = dict(zip(ACCUMULATED, values, strict=True))
    _, parts = trained(0.01, 2, epochs=3, accumulation=3, epsilon=0.1, **cell)
    _, whole = trained(0.01, 6, epochs=3, epsilon=0.1, **cell)
    distance = moved(parts, whole)
    return None if distance <= 1e-5 else f"differs by {distance}"


@pytest.mark.slow
def test_parts_of_a_batch_are_the_batch():
    """EMA, decay and clipping count updates, not the parts of their batches."""
    cells = map(tuple, AllPairs(list(ACCUMULATED.values())))
    assert wrong_cells(wrong_accumulation, cells) == []


def test_a_mean_before_the_first_update_is_the_weights():
    assert moved(*trained(0.01, accumulation=99, ema=0.5)) == 0


@pytest.mark.parametrize("kind", [AdamW, Lamb])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_of_16_bits_go_where_those_of_32_go(kind, dtype):
    ends = []
    for one in (dtype, "float32"):
        variable = keras.Variable(np.array([1.0, -2.0, 0.5]), dtype=one, name="kernel")
        optimizer = kind(0.1, epsilon=1e-6, weight_decay=0.01, global_clipnorm=1.0)
        optimizer.build([variable])
        for step in range(10):
            gradient = np.array([1.0, 1e-4, np.cos(step)])
            optimizer.apply([keras.ops.cast(gradient, one)])
        ends.append(np.array(variable, "float32"))
    # bfloat16 rounds numbers near 4 to 1 / 64.
    np.testing.assert_allclose(*ends, atol=0.06)


def test_gradients_of_several_types_are_clipped_together():
    variables = [
        keras.Variable(np.ones(2), dtype=kind, name="bias")
        for kind in ("float32", "bfloat16")
    ]
    optimizer = make_optimizer(0.1, clip_norm=1.0)
    optimizer.build(variables)
    gradients = [keras.ops.full((2,), 3.0, v.dtype) for v in variables]
    clipped = optimizer._clip_gradients(gradients)
    types = [keras.backend.standardize_dtype(one.dtype) for one in clipped]
    assert types == ["float32", "bfloat16"]
    for one in clipped:
        values = keras.ops.convert_to_numpy(keras.ops.cast(one, "float32"))
        np.testing.assert_allclose(values, 0.5, atol=2e-3)


def test_lamb_knows_after_loading_what_does_not_decay():
    optimizer = make_optimizer(0.1, name="lamb", weight_decay=0.5)
    loaded = type(optimizer).from_config(optimizer.get_config())
    assert loaded.not_decayed == optimizer.not_decayed == ("bias", "gamma", "beta")
    bias = keras.Variable(np.ones(3), name="bias")
    loaded.build([bias])
    loaded.apply([keras.ops.zeros(3)])
    np.testing.assert_array_equal(np.array(bias), np.ones(3))


@pytest.mark.parametrize("objective", ["cosent", "contrastive"])
def test_vectors_are_float32_under_each_policy(objective):
    for dtype in ("mixed_bfloat16", "bfloat16"):
        model = load_small(RoFormerSentenceEncoder, objective=objective, dtype=dtype)
        assert model.encode(TEXTS[:1]).dtype == model.output.dtype == "float32"


@pytest.mark.skipif(not IS_64_BIT, reason="JAX's configuration rules 64 bits out")
def test_a_model_computes_in_float64():
    all_outputs = []
    for dtype in ("float64", "float32"):
        model = classifier(dtype)
        model.set_weights([np.array(w) for w in classifier().get_weights()])
        outputs = model.predict(TEXTS, verbose=0)
        ids = model.tokenizer(TEXTS)
        called = keras.ops.convert_to_numpy(model(ids))
        np.testing.assert_allclose(called, outputs, atol=1e-6)
        all_outputs.append(outputs)
    np.testing.assert_allclose(*all_outputs, atol=1e-5)
