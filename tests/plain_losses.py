"""The losses of pre-training in NumPy and float64, written to be read."""

import numpy as np


def log_softmax(scores):
    scores = np.asarray(scores, "float64")
    scores = scores - scores.max(axis=-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))


def token_loss(targets, logits, weights):
    """The mean cross-entropy of tokens, weighted."""
    each = -np.take_along_axis(log_softmax(logits), targets[..., None], -1)[..., 0]
    return (each * weights).sum() / weights.sum()


def unit(vectors):
    vectors = np.asarray(vectors, "float64")
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def cosines(vectors):
    return unit(vectors) @ unit(vectors).T


def contrastive(vectors, neighbours, scale=20.0):
    """Of each row."""
    losses = []
    for row, neighbour in enumerate(neighbours):
        others = [other for other in range(len(vectors)) if other != row]
        scores = log_softmax(scale * cosines(vectors)[row, others])
        losses.append(-scores[others.index(neighbour)])
    return np.array(losses)


def supervised_contrastive(labels, vectors, scale=20.0):
    """Of each row."""
    losses = []
    for row, label in enumerate(labels):
        others = [other for other in range(len(vectors)) if other != row]
        scores = log_softmax(scale * cosines(vectors)[row, others])
        of_same_class = [
            -s for s, at in zip(scores, others, strict=True) if labels[at] == label
        ]
        losses.append(np.mean(of_same_class) if of_same_class else 0.0)
    return np.array(losses)


def similarity_regression(teacher, student):
    """Of a batch, from vectors."""
    return 100 * np.mean((cosines(student) - cosines(teacher)) ** 2)


def masked_label_crossentropy(labels, logits, label_sets):
    """Of each pair."""
    losses = []
    for label, row in zip(labels, logits, strict=True):
        (own,) = (list(labels) for labels in label_sets if label in labels)
        losses.append(-log_softmax(np.asarray(row)[own])[own.index(label)])
    return np.array(losses)


def cosent(labels, similarities, scale=20.0):
    """Of a batch."""
    total = 1.0
    for one, near in zip(labels, similarities, strict=True):
        for other, far in zip(labels, similarities, strict=True):
            if one > other:
                total += np.exp(scale * (float(far) - float(near)))
    return np.log(total)
