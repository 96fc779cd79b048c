"""tests/data/layers/golden.npz: layers and losses of fine-tuning by bert4keras.

Arrays, computed from random numbers, are named `part/name`:

    crf/        `scores` `(batch, length, tags)`, `tags`, `transitions`; for each of
                MASKS `NAME/mask`, `NAME/loss` by row and `NAME/accuracy`; for "none"
                and "padded" also `NAME/scores_gradient` and
                `NAME/transitions_gradient` of the mean loss, `NAME/scaled_gradient`
                for a layer with `multiplier`, and `NAME/path`, -1 at padding
    pointer/    `x` `(batch, length, hidden)`, `mask`; for each case its weights
                `NAME/0`, ..., and the scores `NAME/all` without and `NAME/masked` with
                the mask
    labels/     `scores` `(batch, heads, classes)`, some of them -inf; `targets`, class
                numbers padded with 0, `exact` ones without padding, `soft` ones; the
                losses `dense`, `soft_loss`, `sparse`, `sparse_exact`, and
                `sparse_confident` of scores 20 and -20

metadata: `multiplier`, of the learning rate of transitions; `pointers`, arguments.
"""

import numpy as np

from tools.reference.bert4keras import save_golden

BATCH, LENGTH, TAGS, HIDDEN = 4, 9, 5, 16
MULTIPLIER = 100.0
PADDED = np.arange(LENGTH) < np.array([9, 6, 2, 1])[:, None]
# Holes in the middle, at the first position, at both, and a row without tokens.
HOLES = np.array(
    [
        [1, 1, 0, 0, 1, 1, 1, 1, 1],
        [0, 1, 1, 1, 1, 1, 0, 0, 0],
        [0, 0, 1, 0, 1, 1, 0, 1, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 0],
    ],
    bool,
)
MASKS = {"none": np.ones((BATCH, LENGTH), bool), "padded": PADDED, "holes": HOLES}
POINTERS = {
    "global": {"heads": 3, "head_size": 8},
    "global-plain": {"heads": 3, "head_size": 5, "RoPE": False, "use_bias": False},
    "global-both-ways": {"heads": 1, "head_size": 4, "tril_mask": False},
    "efficient": {"heads": 3, "head_size": 8},
    "efficient-plain": {"heads": 3, "head_size": 5, "RoPE": False, "use_bias": False},
    "efficient-both-ways": {"heads": 2, "head_size": 4, "tril_mask": False},
}


def write(output):
    rng = np.random.default_rng(0)
    parts = {
        "crf": conditional_random_field(rng),
        "pointer": pointers(rng),
        "labels": many_labels(rng),
    }
    save_golden(
        output / "data" / "layers" / "golden.npz",
        {"multiplier": MULTIPLIER, "pointers": POINTERS},
        {
            f"{part}/{name}": np.asarray(value)
            for part, found in parts.items()
            for name, value in found.items()
        },
    )


def normal(rng, *shape, scale=1.0):
    return (scale * rng.normal(size=shape)).astype("float32")


def conditional_random_field(rng):
    import tensorflow as tf
    from bert4keras.layers import ConditionalRandomField
    from bert4keras.snippets import ViterbiDecoder

    scores = normal(rng, BATCH, LENGTH, TAGS, scale=2)
    transitions = normal(rng, TAGS, TAGS)
    tags = rng.integers(TAGS, size=(BATCH, LENGTH)).astype("int32")
    arrays = {"scores": scores, "transitions": transitions, "tags": tags}

    def make_layer(multiplier):
        layer = ConditionalRandomField(lr_multiplier=multiplier)
        layer.build((None, LENGTH, TAGS))
        layer.set_weights([transitions / multiplier])
        return layer

    plain, scaled = make_layer(1), make_layer(MULTIPLIER)
    for name, mask in MASKS.items():
        watched = tf.constant(scores)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(watched)
            masked = plain(watched, mask=tf.constant(mask))
            row_losses = plain.sparse_loss(tags, masked)
            loss = tf.reduce_mean(row_losses)
            scaled_loss = tf.reduce_mean(scaled.sparse_loss(tags, masked))
        dense = plain.dense_loss(tf.one_hot(tags, TAGS), masked)
        np.testing.assert_array_equal(dense, row_losses)
        np.testing.assert_allclose(scaled_loss, loss, rtol=1e-6)
        arrays[f"{name}/mask"] = mask
        arrays[f"{name}/loss"] = row_losses
        arrays[f"{name}/accuracy"] = plain.sparse_accuracy(tags, masked)
        if name == "holes":
            continue
        arrays[f"{name}/scores_gradient"] = tape.gradient(loss, watched)
        (weights,) = plain.trainable_weights
        arrays[f"{name}/transitions_gradient"] = tape.gradient(loss, weights)
        (weights,) = scaled.trainable_weights
        arrays[f"{name}/scaled_gradient"] = tape.gradient(scaled_loss, weights)
        decoder = ViterbiDecoder(transitions)
        path = np.full((BATCH, LENGTH), -1, "int32")
        for row, size in enumerate(mask.sum(axis=1)):
            path[row, :size] = decoder.decode(scores[row, :size].copy())
        arrays[f"{name}/path"] = path
    return arrays


def pointers(rng):
    import tensorflow as tf
    from bert4keras.layers import EfficientGlobalPointer, GlobalPointer

    x = normal(rng, BATCH, LENGTH, HIDDEN)
    arrays = {"x": x, "mask": PADDED}
    for name, arguments in POINTERS.items():
        layer_class = (
            GlobalPointer if name.startswith("global") else EfficientGlobalPointer
        )
        layer = layer_class(**arguments)
        layer(x)
        weights = [normal(rng, *w.shape, scale=0.5) for w in layer.weights]
        layer.set_weights(weights)
        arrays.update({f"{name}/{i}": weight for i, weight in enumerate(weights)})
        arrays[f"{name}/all"] = layer(x)
        arrays[f"{name}/masked"] = layer(x, mask=tf.constant(PADDED))
    return arrays


def many_labels(rng):
    import tensorflow as tf
    from bert4keras.backend import multilabel_categorical_crossentropy as dense_loss
    from bert4keras.backend import (
        sparse_multilabel_categorical_crossentropy as sparse_loss,
    )

    scores = normal(rng, BATCH, 3, 20, scale=3)
    scores[rng.random(scores.shape) < 0.2] = -np.inf
    # Two to four classes each, none with a score of -inf; the first row has none.
    targets = np.zeros((BATCH, 3, 4), "int32")
    exact = np.zeros((BATCH, 3, 2), "int32")
    for row in np.ndindex(BATCH, 3):
        visible = 1 + np.flatnonzero(np.isfinite(scores[row][1:]))
        chosen = rng.permutation(visible)[: rng.integers(2, 5)]
        exact[row] = chosen[:2]
        if row != (0, 0):
            targets[row][: len(chosen)] = chosen
    dense = np.zeros(scores.shape, "float32")
    for row in np.ndindex(BATCH, 3):
        dense[row][targets[row][targets[row] > 0]] = 1
    soft = rng.random(scores.shape).astype("float32")
    soft[rng.random(scores.shape) < 0.5] = 0
    logits = tf.constant(scores)
    return {
        "scores": scores,
        "targets": targets,
        "exact": exact,
        "soft": soft,
        "dense": dense_loss(dense, logits),
        "soft_loss": dense_loss(soft, logits),
        "sparse": sparse_loss(tf.constant(targets), logits, mask_zero=True),
        "sparse_exact": sparse_loss(tf.constant(exact), logits),
        # Numbers that cancel out.
        "sparse_confident": sparse_loss(tf.constant([0]), tf.constant([20.0, -20.0])),
    }
