"""Regenerates tests/data/layers/golden.npz: layers of fine-tuning by bert4keras.

    python tools/write_layer_reference.py

It starts itself again in a process with bert4keras (`.reference/bert4keras-0.11.5`, or
ROFORMER_KERAS_REFERENCE), which computes what ConditionalRandomField, ViterbiDecoder,
GlobalPointer, EfficientGlobalPointer and the two cross-entropies over many labels give
for random numbers.

golden.npz holds float32 numbers, but for bool masks and int32 tags, under `part/name`:

    metadata    JSON: `versions`, `multiplier` of the transitions' rate, `pointers`, the
                arguments of each case by its name
    crf/        `scores` `(batch, length, tags)`, `tags`, `transitions`; for each of
                MASKS the mask as `NAME/mask`, `NAME/loss` of each row and
                `NAME/accuracy`; of the padded ones `NAME/scores_gradient`,
                `NAME/transitions_gradient` of the mean loss, `NAME/scaled_gradient`,
                the latter for a layer with a multiplier, and `NAME/path`, -1 at padding
    pointer/    `x` `(batch, length, hidden)`, `mask`; for each case its weights
                `NAME/0`, ..., and `NAME/all` and `NAME/masked`: scores without and with
                the mask
    labels/     `scores` `(batch, heads, classes)`, some of them -inf, `targets` as
                numbers of classes, 0 for padding, and `exact` without; `soft` targets;
                `dense`, `soft_loss`, `sparse`, `sparse_exact`: losses
"""

import json
from pathlib import Path

import numpy as np
from golden import versions, write_with_bert4keras

OUTPUT = Path(__file__).parents[1] / "tests" / "data" / "layers" / "golden.npz"

BATCH, LENGTH, TAGS, HIDDEN = 4, 9, 5, 16
MULTIPLIER = 100.0
SIZES = np.array([9, 6, 2, 1])
PADDED = np.arange(LENGTH) < SIZES[:, None]
# Positions in the middle, the first one, both, and a whole row.
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


def random(rng, *shape, scale=1.0):
    return (scale * rng.normal(size=shape)).astype("float32")


# --- conditional random field ---------------------------------------------------------


def conditional_random_field(rng):
    import tensorflow as tf
    from bert4keras.layers import ConditionalRandomField
    from bert4keras.snippets import ViterbiDecoder

    scores = random(rng, BATCH, LENGTH, TAGS, scale=2)
    transitions = random(rng, TAGS, TAGS)
    tags = rng.integers(TAGS, size=(BATCH, LENGTH)).astype("int32")
    found = {"scores": scores, "transitions": transitions, "tags": tags}

    def layer_with(multiplier):
        layer = ConditionalRandomField(lr_multiplier=multiplier)
        layer.build((None, LENGTH, TAGS))
        layer.set_weights([transitions / multiplier])
        return layer

    plain, scaled = layer_with(1), layer_with(MULTIPLIER)
    for name, mask in MASKS.items():
        watched = tf.constant(scores)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(watched)
            marked = plain(watched, mask=tf.constant(mask))
            each = plain.sparse_loss(tags, marked)
            loss = tf.reduce_mean(each)
            scaled_loss = tf.reduce_mean(scaled.sparse_loss(tags, marked))
        dense = plain.dense_loss(tf.one_hot(tags, TAGS), marked)
        np.testing.assert_array_equal(dense, each)
        np.testing.assert_allclose(scaled_loss, loss, rtol=1e-6)
        found[f"{name}/mask"] = mask
        found[f"{name}/loss"] = each
        found[f"{name}/accuracy"] = plain.sparse_accuracy(tags, marked)
        if name == "holes":
            continue
        found[f"{name}/scores_gradient"] = tape.gradient(loss, watched)
        (weights,) = plain.trainable_weights
        found[f"{name}/transitions_gradient"] = tape.gradient(loss, weights)
        (weights,) = scaled.trainable_weights
        found[f"{name}/scaled_gradient"] = tape.gradient(scaled_loss, weights)
        decoder = ViterbiDecoder(transitions)
        path = np.full((BATCH, LENGTH), -1, "int32")
        for row, size in enumerate(mask.sum(axis=1)):
            path[row, :size] = decoder.decode(scores[row, :size].copy())
        found[f"{name}/path"] = path
    return found


# --- pointers -------------------------------------------------------------------------


def pointers(rng):
    import tensorflow as tf
    from bert4keras.layers import EfficientGlobalPointer, GlobalPointer

    x = random(rng, BATCH, LENGTH, HIDDEN)
    found = {"x": x, "mask": PADDED}
    for name, arguments in POINTERS.items():
        kind = GlobalPointer if name.startswith("global") else EfficientGlobalPointer
        layer = kind(**arguments)
        layer(x)
        weights = [random(rng, *w.shape, scale=0.5) for w in layer.weights]
        layer.set_weights(weights)
        found.update({f"{name}/{i}": weight for i, weight in enumerate(weights)})
        found[f"{name}/all"] = layer(x)
        found[f"{name}/masked"] = layer(x, mask=tf.constant(PADDED))
    return found


# --- many labels ----------------------------------------------------------------------


def many_labels(rng):
    import tensorflow as tf
    from bert4keras.backend import (
        multilabel_categorical_crossentropy,
        sparse_multilabel_categorical_crossentropy,
    )

    classes = 20
    scores = random(rng, BATCH, 3, classes, scale=3)
    scores[rng.random(scores.shape) < 0.2] = -np.inf
    # Two to four classes each, none of them masked; the first row has none at all.
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
    return {
        "scores": scores,
        "targets": targets,
        "exact": exact,
        "soft": soft,
        "dense": multilabel_categorical_crossentropy(dense, tf.constant(scores)),
        "soft_loss": multilabel_categorical_crossentropy(soft, tf.constant(scores)),
        "sparse": sparse_multilabel_categorical_crossentropy(
            tf.constant(targets), tf.constant(scores), mask_zero=True
        ),
        "sparse_exact": sparse_multilabel_categorical_crossentropy(
            tf.constant(exact), tf.constant(scores)
        ),
        # Where it cancels out: one class that is right and scores 20, one that is not.
        "sparse_confident": sparse_multilabel_categorical_crossentropy(
            tf.constant([0]), tf.constant([20.0, -20.0])
        ),
    }


# --- what is stored -------------------------------------------------------------------


def write(path):
    rng = np.random.default_rng(0)
    metadata = {
        "versions": versions(),
        "multiplier": MULTIPLIER,
        "pointers": POINTERS,
    }
    parts = {
        "crf": conditional_random_field(rng),
        "pointer": pointers(rng),
        "labels": many_labels(rng),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        metadata=json.dumps(metadata),
        **{
            f"{part}/{name}": np.asarray(value)
            for part, found in parts.items()
            for name, value in found.items()
        },
    )
    print(f"{path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    write_with_bert4keras(__file__, __doc__, OUTPUT, write)
