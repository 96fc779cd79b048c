"""The conditional random field: bert4keras's numbers, and those of all paths.

The golden numbers come from the real bert4keras, written by
tools/reference/layers.py. The tests run on any backend, which KERAS_BACKEND selects.
"""

import itertools
import json
from pathlib import Path

import keras
import numpy as np
import pytest
from arrays import assert_close
from keras import ops

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.layers import ConditionalRandomField, TagAccuracy

GOLDEN = Path(__file__).parents[1] / "data" / "layers" / "golden.npz"
with np.load(GOLDEN) as file:
    MULTIPLIER = json.loads(str(file["metadata"]))["multiplier"]
    CRF = {
        key.removeprefix("crf/"): file[key] for key in file if key.startswith("crf/")
    }
SCORES, TAGS, TRANSITIONS = CRF["scores"], CRF["tags"], CRF["transitions"]
RNG = np.random.default_rng(0)

# Every mask of four positions, and for each a row of scores of three tags.
ALL_MASKS = np.array(list(itertools.product([False, True], repeat=4)))
FEW_SCORES = RNG.normal(size=(16, 4, 3)).astype("float32")
FEW_TRANSITIONS = RNG.normal(size=(3, 3)).astype("float32")


def relatively_close(ours, expected, tolerance=1e-6):
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(ours), expected, rtol=tolerance
    )


def field(transitions=TRANSITIONS, **options):
    layer = ConditionalRandomField(**options)
    layer.build((None, None, len(transitions)))
    layer.set_weights([transitions / layer.learning_rate_multiplier])
    return layer


def path_score(path, scores, transitions):
    path = list(path)
    tag_score = sum(float(row[tag]) for row, tag in zip(scores, path, strict=True))
    return tag_score + sum(
        float(transitions[pair]) for pair in itertools.pairwise(path)
    )


def all_paths(scores, transitions):
    """Each with its score."""
    length, num_tags = scores.shape
    paths = itertools.product(range(num_tags), repeat=length)
    return {path: path_score(path, scores, transitions) for path in paths}


# === As bert4keras ===


def test_loss_equals_bert4keras():
    for name, mask in (("none", None), ("padded", CRF["padded/mask"])):
        loss = field().loss(TAGS, SCORES, mask)
        relatively_close(loss, CRF[f"{name}/loss"])
        assert keras.backend.standardize_dtype(loss.dtype) == "float32"


@pytest.mark.parametrize(
    ("name", "multiplier"), [("none", 1.0), ("padded", MULTIPLIER)]
)
def test_gradients_equal_bert4keras(name, multiplier):
    """One step of SGD, whose rate is 1, on scores that are weights."""
    count, num_tags = TAGS.size, SCORES.shape[-1]
    ids = keras.Input((None,), dtype="int32")
    mask = keras.Input((None,), dtype="bool")
    scores = keras.layers.Embedding(count, num_tags)
    layer = ConditionalRandomField(multiplier)
    model = keras.Model([ids, mask], layer(scores(ids), mask=mask))
    scores.set_weights([SCORES.reshape(count, num_tags)])
    layer.set_weights([TRANSITIONS / multiplier])
    model.compile(keras.optimizers.SGD(1.0), layer.loss, run_eagerly=True)
    inputs = [np.arange(count).reshape(TAGS.shape), CRF[f"{name}/mask"]]
    loss = model.train_on_batch(inputs, TAGS)
    relatively_close(loss, CRF[f"{name}/loss"].mean())
    gradient = SCORES - scores.get_weights()[0].reshape(SCORES.shape)
    assert_close(gradient, CRF[f"{name}/scores_gradient"], 2e-6)
    gradient = TRANSITIONS / multiplier - layer.get_weights()[0]
    kind = "transitions" if multiplier == 1 else "scaled"
    relatively_close(gradient, CRF[f"{name}/{kind}_gradient"], 1e-4)


def test_path_equals_bert4keras():
    for name in ("none", "padded"):
        for scores in (SCORES, ops.convert_to_tensor(SCORES)):
            path = field().decode(scores, CRF[f"{name}/mask"])
            assert isinstance(path, np.ndarray) == isinstance(scores, np.ndarray)
            np.testing.assert_array_equal(path, CRF[f"{name}/path"])


def test_accuracy_equals_bert4keras():
    for name in ("none", "padded", "holes"):
        metric = TagAccuracy()
        metric.update_state(TAGS, field()(SCORES, mask=CRF[f"{name}/mask"]))
        relatively_close(metric.result(), CRF[f"{name}/accuracy"])


def test_holes_are_where_bert4keras_is_odd():
    mask = CRF["holes/mask"]
    ours = np.asarray(field().loss(TAGS, SCORES, mask))
    theirs = CRF["holes/loss"]
    for row, visible in enumerate(mask):
        if not visible.any():
            continue
        visible_loss = field().loss(
            TAGS[row : row + 1, visible], SCORES[row : row + 1, visible]
        )
        relatively_close(ours[row], visible_loss[0])
    # Positions 2 and 3 are left out: their target has no transition from 1 to 4.
    relatively_close(ours[0], theirs[0] - TRANSITIONS[TAGS[0, 1], TAGS[0, 4]])
    # They begin with some tag at a position that is left out.
    assert (np.abs(ours - theirs)[1:3] > 0.1).all()
    # Of nothing at all they have the loss of one tag among all.
    relatively_close(theirs[3], np.log(SCORES.shape[-1]))
    assert ours[3] == 0


# === As counted ===


def test_probabilities_of_all_paths():
    """Each is what its score says, and they sum to one, whatever is left out."""
    layer = field(FEW_TRANSITIONS)
    for scores, mask in zip(FEW_SCORES, ALL_MASKS, strict=True):
        expected = all_paths(scores[mask], FEW_TRANSITIONS)
        total = np.logaddexp.reduce(list(expected.values()))
        tags = np.zeros((len(expected), 4), int)
        tags[:, mask] = list(expected)
        rows = (
            np.broadcast_to(array, (len(tags), *array.shape))
            for array in (scores, mask)
        )
        losses = np.asarray(layer.loss(tags, *rows))
        assert_close(losses, total - np.array(list(expected.values())))
        assert_close(np.exp(-losses).sum(), 1)


def test_best_of_all_paths():
    for convert in (np.asarray, ops.convert_to_tensor):
        best = field(FEW_TRANSITIONS).decode(convert(FEW_SCORES), ALL_MASKS)
        assert keras.backend.standardize_dtype(best.dtype) == "int32"
        for row, scores, mask in zip(best, FEW_SCORES, ALL_MASKS, strict=True):
            paths = all_paths(scores[mask], FEW_TRANSITIONS)
            row = np.asarray(row)
            assert tuple(row[mask]) == max(paths, key=paths.get)
            assert (row[~mask] == -1).all()


def test_the_three_ways_to_leave_out_are_one():
    layer, tags = field(FEW_TRANSITIONS), RNG.integers(3, size=(16, 4))
    expected = layer.loss(tags, FEW_SCORES, ALL_MASKS)
    assert_close(layer.loss(tags, layer(FEW_SCORES, mask=ALL_MASKS)), expected, 0)
    assert_close(layer.loss(np.where(ALL_MASKS, tags, -1), FEW_SCORES), expected, 0)
    # What stands there makes no difference.
    noise = np.where(ALL_MASKS[..., None], FEW_SCORES, 1e4 * FEW_SCORES)
    assert_close(
        layer.loss(np.where(ALL_MASKS, tags, 2), noise, ALL_MASKS), expected, 0
    )
    marked = np.asarray(layer(FEW_SCORES, mask=ALL_MASKS))
    np.testing.assert_array_equal(
        layer.decode(marked), layer.decode(FEW_SCORES, ALL_MASKS)
    )


def test_one_forbidden_tag_leaves_nothing_out():
    """bert4keras takes a position for padding where a single score is -inf."""
    scores = FEW_SCORES.copy()
    scores[:, 2, 1] = -np.inf
    layer = field(FEW_TRANSITIONS)
    for row, path in zip(scores, layer.decode(scores), strict=True):
        paths = all_paths(row, FEW_TRANSITIONS)
        assert tuple(path) == max(paths, key=paths.get)
    tags = np.zeros((16, 4), int)
    paths = all_paths(scores[0], FEW_TRANSITIONS)
    total = np.logaddexp.reduce(list(paths.values()))
    assert_close(layer.loss(tags, scores)[0], total - paths[0, 0, 0, 0])


def test_nan_is_not_left_out():
    scores = np.full((1, 3, 3), np.nan, "float32")
    assert np.isnan(field(FEW_TRANSITIONS).loss(np.zeros((1, 3), int), scores)).all()


@pytest.mark.parametrize("length", [1, 2, 50])
def test_lengths(length):
    """Scores in the thousands neither overflow nor lose what distinguishes paths."""
    scores = RNG.normal(size=(2, length, 3), scale=1000).astype("float32")
    layer = field(FEW_TRANSITIONS)
    path = layer.decode(scores)
    np.testing.assert_array_equal(layer.decode(ops.convert_to_tensor(scores)), path)
    loss = np.asarray(layer.loss(path, scores))
    assert np.isfinite(loss).all()
    best = [
        path_score(*each, FEW_TRANSITIONS) for each in zip(path, scores, strict=True)
    ]
    assert (loss < 1e-5 * np.abs(best) + 1).all()
    if length == 1:
        assert_close(loss, np.logaddexp.reduce(scores[:, 0], axis=-1) - best, 1e-3)


# === As a layer ===


def test_layer_is_float32():
    layer = ConditionalRandomField(dtype="mixed_bfloat16")
    assert keras.backend.standardize_dtype(layer(FEW_SCORES).dtype) == "float32"
    # To the last bit.
    assert_close(layer(FEW_SCORES), FEW_SCORES, 0)
    layer.set_weights([FEW_TRANSITIONS])
    assert_close(layer.transitions, FEW_TRANSITIONS, 0)
    tags = np.zeros((16, 4), int)
    exact = field(FEW_TRANSITIONS)
    assert_close(layer.loss(tags, FEW_SCORES), exact.loss(tags, FEW_SCORES), 0)
    coarse = ops.cast(FEW_SCORES, "bfloat16")
    expected = exact.loss(tags, ops.cast(coarse, "float32"))
    assert_close(layer.loss(tags, coarse), expected, 0)


def test_multiplier_does_not_change_what_is_at_first():
    first = []
    for multiplier in (1.0, 50.0):
        initial = keras.initializers.RandomNormal(seed=1)
        layer = ConditionalRandomField(multiplier, initial)
        layer.build((None, None, 4))
        first.append(ops.convert_to_numpy(layer.transitions))
    assert_close(first[1], first[0], 1e-7)
    assert first[0].std() > 0


def test_keras_masks_are_taken():
    """Of an embedding that masks zeros, and they go no further."""
    token_ids = np.array([[3, 4, 5, 6, 0, 0], [7, 1, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6]])
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(8, 4, mask_zero=True)(ids)
    layer = ConditionalRandomField()
    model = keras.Model(ids, layer(keras.layers.Dense(3)(x)))
    left_out = np.isneginf(ops.convert_to_numpy(model(token_ids))).all(-1)
    assert left_out.tolist() == (token_ids == 0).tolist()
    model.compile("sgd", layer.loss, run_eagerly=True)
    # It would be an error: losses of rows with a mask of tokens.
    assert np.isfinite(model.train_on_batch(token_ids, np.zeros_like(token_ids)))


def test_wrong_arguments():
    for multiplier in (0, -1.0):
        with pytest.raises(ConfigurationError, match=rf"above 0, got {multiplier}"):
            ConditionalRandomField(multiplier)
    layer = ConditionalRandomField()
    with pytest.raises(ValueError, match="no transitions yet: call it on scores"):
        layer.loss(TAGS, SCORES)
    with pytest.raises(ValueError, match=r"num_tags\), got \(4, 9\)"):
        layer(TAGS.astype("float32"))
    layer = field()
    with pytest.raises(ValueError, match=r"num_tags\), got \(4, 9\)"):
        layer.decode(TAGS)
    with pytest.raises(ValueError, match=r"\(4, 9\) as the scores are, got \(4, 8\)"):
        layer.loss(TAGS[:, 1:], SCORES)
    for call in (layer, layer.decode, lambda *x, mask: layer.loss(TAGS, *x, mask)):
        with pytest.raises(ValueError, match=r"\(4, 9, 5\), got \(4, 1, 1, 9\)"):
            call(SCORES, mask=np.ones((4, 1, 1, 9), bool))
        with pytest.raises(ValueError, match=r"\(4, 9, 5\), got \(4, 8\)"):
            call(SCORES, mask=np.ones((4, 8), bool))


# === Accuracy ===


def test_accuracy_over_batches():
    metric = TagAccuracy()
    # Of tags, as they are decoded: three of four, one is left out.
    metric.update_state([[1, 2, -1], [0, 0, -1]], [[1, 2, 0], [0, 1, -1]])
    assert_close(metric.result(), 3 / 4)
    # Of scores: one of one, the other is left out by them.
    scores = np.array([[[0, 0, 1], [-np.inf] * 3]], "float32")
    metric.update_state([[2, 0]], scores)
    assert_close(metric.result(), 4 / 5)
    metric.reset_state()
    assert metric.result() == 0
    weights = np.array([2.0, 1.0])
    metric.update_state([[1, 2], [0, 0]], [[1, 2], [1, 1]], weights)
    assert_close(metric.result(), 2 / 3)
    restored = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert type(restored) is TagAccuracy and restored.name == "tag_accuracy"


@pytest.mark.slow
def test_a_graph_of_any_length_has_the_gradients():
    """XLA compiles them, which on TensorFlow it does for no loop."""
    import tensorflow as tf

    layer = field(FEW_TRANSITIONS)
    tags = np.where(ALL_MASKS, RNG.integers(3, size=(16, 4)), -1).astype("int32")

    def loss_and_gradients(tags, scores):
        with tf.GradientTape() as tape:
            tape.watch(scores)
            loss = layer.loss(tags, scores)
        sources = [scores, layer.trainable_variables[0].value]
        return loss, *tape.gradient(loss, sources)

    scores = tf.constant(FEW_SCORES)
    expected = loss_and_gradients(tags, scores)
    shapes = [tf.TensorSpec((None, None), "int32"), tf.TensorSpec((None, None, 3))]
    for options in ({"input_signature": shapes}, {"jit_compile": True}):
        outputs = tf.function(loss_and_gradients, **options)(tags, scores)
        for ours, eager in zip(outputs, expected, strict=True):
            assert_close(ours, eager)
    decode = tf.function(layer.decode, input_signature=shapes[1:])
    np.testing.assert_array_equal(decode(scores), layer.decode(FEW_SCORES))
