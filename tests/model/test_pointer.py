"""Pointers to spans, their loss and their F1: bert4keras's numbers, and plain ones.

The golden numbers come from the real bert4keras, written by
tools/reference/layers.py. The tests run on any backend, which KERAS_BACKEND selects.
"""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
from arrays import assert_close, to_numpy
from keras import ops

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.layers import (
    EfficientGlobalPointer,
    GlobalPointer,
    SpanCrossentropy,
    SpanF1,
    find_spans,
    multilabel_categorical_crossentropy,
    sparse_multilabel_categorical_crossentropy,
)

GOLDEN = Path(__file__).parents[1] / "data" / "layers" / "golden.npz"
with np.load(GOLDEN) as file:
    POINTERS = json.loads(str(file["metadata"]))["pointers"]
    DATA = {key: file[key] for key in file if key != "metadata"}
X, MASK = DATA["pointer/x"], DATA["pointer/mask"]
LABELS = {
    key.removeprefix("labels/"): value
    for key, value in DATA.items()
    if key.startswith("labels/")
}
# bert4keras's name of an argument, and ours.
ARGUMENTS = {
    "heads": "num_heads",
    "head_size": "head_dim",
    "RoPE": "use_rotary",
    "use_bias": "use_bias",
    "tril_mask": "upper_triangular",
}
KINDS = [GlobalPointer, EfficientGlobalPointer]
RNG = np.random.default_rng(0)


def golden_pointer(name, **options):
    """A pointer with the weights of a case."""
    arguments = {ARGUMENTS[key]: value for key, value in POINTERS[name].items()}
    kind = GlobalPointer if name.startswith("global") else EfficientGlobalPointer
    layer = kind(**arguments, **options)
    layer.build(X.shape)
    count = len(layer.weights)
    layer.set_weights([DATA[f"pointer/{name}/{at}"] for at in range(count)])
    assert f"pointer/{name}/{count}" not in DATA
    return layer


def plain_loss(targets, scores):
    """Of one row in float64, by loops: of classes as they are, target or not."""
    totals = {True: 1.0, False: 1.0}
    for target, score in zip(targets, np.float64(scores), strict=True):
        if np.isfinite(score):
            totals[bool(target)] += np.exp(-score if target else score)
    return np.log(totals[True]) + np.log(totals[False])


# === As bert4keras ===


def test_scores_equal_bert4keras():
    for name in POINTERS:
        layer = golden_pointer(name)
        for mask, kind in ((None, "all"), (MASK, "masked")):
            expected = DATA[f"pointer/{name}/{kind}"]
            scores = to_numpy(layer(X, mask=mask))
            assert scores.shape == expected.shape
            np.testing.assert_array_equal(np.isneginf(scores), np.isneginf(expected))
            # Some ten in size.
            assert_close(scores, expected, 1e-5)
    # By another way through Keras, for an unknown length.
    inputs = keras.Input((None, X.shape[-1])), keras.Input((None,), dtype="bool")
    model = keras.Model(inputs, layer(inputs[0], mask=inputs[1]))
    assert model.output.shape == (None, layer.num_heads, None, None)
    assert_close(model.predict([X, MASK], verbose=0), expected, 1e-5)


def test_crossentropy_equals_bert4keras():
    scores, targets = LABELS["scores"], LABELS["targets"]
    dense = np.zeros(scores.shape, bool)
    for row in np.ndindex(targets.shape[:2]):
        dense[row][targets[row][targets[row] > 0]] = True
    assert np.isneginf(scores).any()
    for form in (dense, dense.astype("float32"), dense.astype("int32")):
        losses = multilabel_categorical_crossentropy(form, scores)
        assert_close(losses, LABELS["dense"])
    losses = multilabel_categorical_crossentropy(LABELS["soft"], scores)
    assert_close(losses, LABELS["soft_loss"])


def test_sparse_crossentropy_equals_bert4keras():
    scores, targets = LABELS["scores"], LABELS["targets"]
    losses = sparse_multilabel_categorical_crossentropy(LABELS["exact"], scores)
    assert_close(losses, LABELS["sparse_exact"])
    # Its padding, class 0, takes part in nothing.
    scores = scores.copy()
    scores[..., 0] = -np.inf
    padded = np.where(targets > 0, targets, -1)
    losses = sparse_multilabel_categorical_crossentropy(padded, scores)
    assert_close(losses, LABELS["sparse"])


def test_sparse_crossentropy_does_not_cancel_out():
    scores = np.array([20, -20], "float32")
    loss = sparse_multilabel_categorical_crossentropy(np.array([0]), scores)
    assert_close(loss, 2 * np.log1p(np.exp(-20.0)), 1e-8)
    assert LABELS["sparse_confident"] > 3.8


# === Cross-entropy ===


def test_crossentropy_of_hard_cases():
    """Scores far out, classes that are left out, nothing at all: finite, and exact."""
    scores = RNG.normal(size=(6, 12), scale=100).astype("float32")
    scores[1, ::2] = -np.inf
    scores[2] = -np.inf
    targets = RNG.random(scores.shape) < 0.4
    targets[3] = False
    targets[4] = True
    losses = multilabel_categorical_crossentropy(targets, scores)
    expected = [plain_loss(*row) for row in zip(targets, scores, strict=True)]
    np.testing.assert_allclose(np.asarray(losses), expected, rtol=1e-6)
    assert expected[2] == losses[2] == 0


def test_classes_given_twice_or_not_at_all():
    scores = RNG.normal(size=(3, 7)).astype("float32")
    targets = np.array([[2, 5, 2], [-1, 7, 9], [-1, 0, -1]])
    losses = sparse_multilabel_categorical_crossentropy(targets, scores)
    chosen = [[2, 5], [], [0]]
    dense = [np.isin(np.arange(7), row) for row in chosen]
    assert_close(losses, [plain_loss(*row) for row in zip(dense, scores, strict=True)])
    none = sparse_multilabel_categorical_crossentropy(targets[:, :0], scores)
    assert_close(none, [plain_loss(np.zeros(7), row) for row in scores])


# === Spans ===

SPANS = [[(0, 1, 2), (1, 1, 2), (0, 0, 0)], [(2, 3, 3)], [], [(1, 0, 3), (1, 1, 2)]]


def padded(spans, extra=0):
    rows = np.full((len(spans), max(map(len, spans)) + extra, 3), -1, "int32")
    for row, own in zip(rows, spans, strict=True):
        row[: len(own)] = np.reshape(own, (-1, 3))
    return rows


def dense(spans, heads=3, length=4):
    labels = np.zeros((len(spans), heads, length, length), bool)
    for row, own in zip(labels, spans, strict=True):
        for span in own:
            row[span] = True
    return labels


def span_scores(mask=True):
    scores = RNG.normal(size=(4, 3, 4, 4), scale=2).astype("float32")
    if mask:
        scores[..., ~np.triu(np.ones((4, 4), bool))] = -np.inf
        scores[1, :, :, 2:] = -np.inf
        scores[2] = -np.inf
    return scores


@pytest.mark.parametrize("form", [dense, padded])
def test_span_loss(form):
    scores, loss = span_scores(), SpanCrossentropy()
    pairs = zip(dense(SPANS).reshape(12, 16), scores.reshape(12, 16), strict=True)
    expected = np.reshape([plain_loss(*pair) for pair in pairs], (4, 3)).mean(axis=1)
    assert_close(loss(form(SPANS), scores), expected.mean())
    weights = np.array([1.0, 0.0, 2.0, 0.5])
    weighted = (weights * expected).sum() / weights.sum()
    assert_close(loss(form(SPANS), scores, weights), weighted)
    # In float32, to the last bit.
    coarse = ops.cast(scores, "bfloat16")
    losses = loss(form(SPANS), coarse)
    assert keras.backend.standardize_dtype(losses.dtype) == "float32"
    assert_close(losses, loss(form(SPANS), ops.cast(coarse, "float32")), 0)
    restored = keras.losses.deserialize(keras.losses.serialize(loss))
    assert type(restored) is SpanCrossentropy and restored.name == "span_crossentropy"
    assert restored.reduction == loss.reduction


def test_padding_of_spans_makes_no_difference():
    scores, loss = span_scores(), SpanCrossentropy()
    expected = loss(dense(SPANS), scores)
    for spans in (padded(SPANS), padded(SPANS, 3), padded(SPANS)[:, ::-1]):
        assert_close(loss(spans, scores), expected, 0)
    assert_close(loss(padded([[]] * 4), scores), loss(dense([[]] * 4), scores), 0)


def test_rows_that_are_no_span():
    """None, and not another one: in a row of numbers (0, 1, 4) stands for (0, 2, 0)."""
    scores, loss = span_scores(mask=False), SpanCrossentropy()
    expected = loss(dense(SPANS), scores)
    spans = padded(SPANS, 1)
    for row in [(-1, 1, 2), (0, -1, 2), (0, 1, -1), (3, 1, 2), (0, 4, 4), (0, 1, 4)]:
        spans[:, -1] = row
        assert_close(loss(spans, scores), expected, 0)


def test_found_spans():
    scores = np.where(dense(SPANS), 0.5, -1.0).astype("float32")
    spans = find_spans(scores)
    assert [list(map(tuple, row)) for row in spans] == [sorted(row) for row in SPANS]
    assert [len(row) for row in find_spans(scores, 0.5)] == [0, 0, 0, 0]
    # As targets again.
    assert float(SpanCrossentropy()(padded(spans), 1e3 * scores)) < 1e-6
    marked = find_spans(ops.convert_to_tensor(span_scores()))
    assert all((row[:, 1] <= row[:, 2]).all() for row in marked)
    assert len(marked[2]) == 0


@pytest.mark.parametrize("form", [dense, padded])
def test_f1_over_batches(form):
    metric = SpanF1()
    assert metric.result() == 0
    # Two of three, with one that is too long; none; one where there is none; all.
    predicted_spans = [[(0, 1, 2), (1, 1, 3), (0, 0, 0)], [], [(0, 0, 1)], SPANS[3]]
    scores = np.where(dense(predicted_spans), 3.0, -3.0).astype("float32")
    right, predicted, actual = 4, 6, 6
    for rows in (slice(3), slice(3, 4)):
        metric.update_state(form(SPANS[rows]), scores[rows])
    assert_close(metric.result(), 2 * right / (predicted + actual))
    metric.update_state(form(SPANS), ops.convert_to_tensor(scores))
    assert_close(metric.result(), 2 * right / (predicted + actual))
    metric.reset_state()
    # Scores that are -inf are found by no threshold.
    metric.update_state(form(SPANS[:1]), np.full((1, 3, 4, 4), -np.inf, "float32"))
    assert metric.result() == 0
    weighted = SpanF1(threshold=2.0, name="f1")
    weighted.update_state(form(SPANS), scores, sample_weight=np.array([1.0, 0, 2, 0]))
    assert_close(weighted.result(), 2 * 2 / (5 + 3))
    restored = keras.metrics.deserialize(keras.metrics.serialize(weighted))
    assert restored.threshold == 2 and restored.name == "f1"


def test_wrong_targets():
    scores = span_scores()
    for call in (SpanCrossentropy(), SpanF1().update_state):
        with pytest.raises(ValueError, match=r"\(head, start, end\).*got \(4, 3\)"):
            call(padded(SPANS)[..., 0], scores)
        with pytest.raises(
            ValueError, match=r"heads, length, length\), got \(4, 3, 4\)"
        ):
            call(padded(SPANS), scores[..., 0])


# === As layers ===


@pytest.mark.parametrize(
    ("name", "policy"), [("global", "mixed_bfloat16"), ("efficient", "mixed_float16")]
)
def test_mixed_precision(name, policy):
    layer = golden_pointer(name, dtype=policy)
    scores = layer(X, mask=MASK)
    assert keras.backend.standardize_dtype(scores.dtype) == policy.split("_")[1]
    expected = DATA[f"pointer/{name}/masked"]
    visible = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(to_numpy(scores)), visible)
    error = np.abs(to_numpy(scores) - np.where(visible, expected, 0))[visible]
    assert error.max() < 0.05 * np.abs(expected[visible]).max()


def test_short_texts():
    for kind in KINDS:
        for length in (1, 2):
            scores = to_numpy(kind(2, 4)(X[:, :length]))
            assert scores.shape == (4, 2, length, length)
            visible = np.triu(np.ones((length, length), bool))
            np.testing.assert_array_equal(np.isfinite(scores[0, 0]), visible)


@pytest.mark.slow
def test_fit():
    """A row of padding alone among them, and one without a span."""
    keras.utils.set_random_seed(0)
    x = keras.Input((None, 16), name="x")
    mask = keras.Input((None,), dtype="bool", name="mask")
    layer = EfficientGlobalPointer(3, 8, dtype="mixed_bfloat16")
    model = keras.Model({"x": x, "mask": mask}, layer(x, mask=mask))
    model.compile(keras.optimizers.Adam(0.05), SpanCrossentropy(), metrics=[SpanF1()])
    visible = np.ones((4, 4), bool)
    visible[2] = False
    inputs = {"x": X[:, :4], "mask": visible}
    spans = padded([SPANS[0], SPANS[1], [], []])
    before = [to_numpy(weight) for weight in layer.weights]
    history = model.fit(inputs, spans, batch_size=4, epochs=15, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert history["loss"][-1] < history["loss"][0] / 2
    assert history["span_f1"][-1] == 1
    for weight, old in zip(layer.weights, before, strict=True):
        new = to_numpy(weight)
        assert np.isfinite(new).all() and (new != old).any(), weight.path


@pytest.mark.parametrize("kind", KINDS)
def test_keras_masks_are_taken(kind):
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(8, 4, mask_zero=True)(ids)
    model = keras.Model(ids, kind(2, 4)(x))
    scores = to_numpy(model(np.array([[3, 4, 0], [5, 0, 0]])))
    visible = np.isfinite(scores[:, 0])
    assert visible.sum(axis=(1, 2)).tolist() == [3, 1]
    # It would be an error: losses of rows with a mask of tokens.
    model.compile("sgd", SpanCrossentropy(), run_eagerly=True)
    loss = model.train_on_batch(np.array([[3, 4, 0]]), np.array([[[0, 0, 1]]]))
    assert np.isfinite(loss)


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_arguments(kind):
    with pytest.raises(ConfigurationError, match="num_heads must be at least 1, got 0"):
        kind(0, 4)
    with pytest.raises(ConfigurationError, match="head_dim must be at least 1, got -2"):
        kind(1, -2)
    with pytest.raises(ConfigurationError, match=r"head_dim must be even.*got 3"):
        kind(1, 3)
    layer = kind(1, 3, use_rotary=False)
    with pytest.raises(ValueError, match=r"hidden_dim\), got \(4, 9\)"):
        layer(X[..., 0])
    with pytest.raises(ValueError, match=r"\(4, 9, 16\), got \(4, 1, 1, 9\)"):
        layer(X, mask=MASK[:, None, None])
    with pytest.raises(ValueError, match=r"\(4, 9, 16\), got \(4, 8\)"):
        layer(X, mask=MASK[:, 1:])
