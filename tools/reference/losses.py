"""tests/data/pretraining/losses.npz: the losses of RoFormer-Sim by bert4keras.

The losses of `stage1.py`, `stage2.py` and `supervised.py` in `train/` of
ZhuiyiTechnology/roformer-sim, on a few pairs of texts.

    token_ids, segment_ids   int32 `(rows, 2 * length)`: rows `a b` and `b a` in turn
    text_ids                 int32 `(rows, length)`: rows `a` and `b` in turn
    teacher_ids              the same by the tokenizer of the teacher
    kernel                   float32 `(3 * hidden, 5)`: layer over (a, b, |a - b|)
    seq2seq, similarity      float32: the two terms of the loss of stage 1
    distillation             float32: the term that replaces `similarity` in stage 2
    classification           float32: the supervised loss

metadata: `source` and `teacher`, stems in tests/checkpoints, whose vectors distillation
compares; `length`, `pairs`, `labels`.
"""

import tempfile
from pathlib import Path

import numpy as np

from tools.reference.bert4keras import build_model, make_tokenizer, save_golden, unzip

SOURCE = "chinese_roformer-sim-char_L-2_H-32_A-4"
TEACHER = "roformer-small_L-2_H-8_A-2"
LENGTH = 16
PAIRS = (
    ("今天天气不错", "天气真好"),
    ("北京", "中国的首都是北京"),
    ("我爱北京天安门，天安门上", "天安门"),
    ("hello, 2020 北京!", "你好"),
    ("一二三四五六七八九十一二三四", "十四个字"),
    ("不", "不，不是"),
)
LABELS = (1, 0, 2, 4, 3, 1)
# Labels of one data set, between which the supervised loss decides.
LABEL_SETS = ((0, 1), (2, 3, 4))


def write(output):
    from bert4keras.backend import K

    with tempfile.TemporaryDirectory() as scratch:
        source, teacher = (unzip(stem, Path(scratch)) for stem in (SOURCE, TEACHER))
        tokenizer = make_tokenizer(source)
        token_ids, segment_ids = joined_rows(tokenizer)
        text_ids = single_rows(tokenizer)
        teacher_ids = single_rows(make_tokenizer(teacher))
        options = {"with_pool": "linear", "application": "unilm"}
        student = build_model(source, **options, with_mlm="linear")
        vectors, logits = student([token_ids, segment_ids], training=False)
        inputs = [teacher_ids, np.zeros_like(teacher_ids)]
        teacher_vectors, _ = build_model(teacher, **options)(inputs, training=False)
        encoder = build_model(source, with_pool="linear")
        text_vectors = encoder([text_ids, np.zeros_like(text_ids)], training=False)
    kernel = np.random.default_rng(0).normal(size=(3 * vectors.shape[1], 5))
    kernel = kernel.astype("float32")
    losses = {
        "seq2seq": seq2seq_loss(K, token_ids, segment_ids, logits),
        "similarity": similarity_loss(K, vectors),
        "distillation": distillation_loss(K, vectors, teacher_vectors),
        "classification": classification_loss(K, text_vectors, kernel),
    }
    metadata = {"layer_norm_epsilon": 1e-7, "source": SOURCE, "teacher": TEACHER}
    metadata |= {"length": LENGTH, "pairs": PAIRS, "labels": LABELS}
    arrays = {
        "token_ids": token_ids,
        "segment_ids": segment_ids,
        "text_ids": text_ids,
        "teacher_ids": teacher_ids,
        "kernel": kernel,
        **{name: np.float32(loss.numpy()) for name, loss in losses.items()},
    }
    save_golden(output / "data" / "pretraining" / "losses.npz", metadata, arrays)


def pad(rows, length):
    from bert4keras.snippets import sequence_padding

    return sequence_padding([np.array(row) for row in rows], length).astype("int32")


def joined_rows(tokenizer):
    """Token and segment ids of both orders of every pair."""
    token_ids, segment_ids = [], []
    for pair in PAIRS:
        for first, second in (pair, pair[::-1]):
            head = tokenizer.encode(first)[0]
            # Without its [CLS].
            tail = tokenizer.encode(second)[0][1:]
            token_ids.append(head + tail)
            segment_ids.append([0] * len(head) + [1] * len(tail))
    return pad(token_ids, 2 * LENGTH), pad(segment_ids, 2 * LENGTH)


def single_rows(tokenizer):
    """Token ids of every text."""
    return pad([tokenizer.encode(text)[0] for pair in PAIRS for text in pair], LENGTH)


def seq2seq_loss(K, token_ids, segment_ids, logits):
    """Cross-entropy of the second segment, each token predicted by those before it."""
    weights = K.constant(segment_ids[:, 1:], "float32")
    losses = K.sparse_categorical_crossentropy(
        K.constant(token_ids[:, 1:], "int32"), logits[:, :-1], from_logits=True
    )
    return K.sum(weights * losses) / K.sum(weights)


def cosines(K, vectors):
    unit = K.l2_normalize(vectors, axis=1)
    return K.dot(unit, K.transpose(unit))


def similarity_loss(K, vectors):
    """Cross-entropy of finding the other row of a pair; logits are 20 times cosines."""
    count = vectors.shape[0]
    identity = K.eye(count)
    # Swaps every two rows.
    pairs = K.reshape(identity, (count // 2, 2, count))
    neighbours = K.reshape(K.reverse(pairs, axes=1), (count, count))
    scores = 20 * (cosines(K, vectors) - 1e12 * identity)
    return K.mean(K.categorical_crossentropy(neighbours, scores, from_logits=True))


def distillation_loss(K, vectors, teacher_vectors):
    return 100 * K.mean(K.square(cosines(K, vectors) - cosines(K, teacher_vectors)))


def classification_loss(K, vectors, kernel):
    first, second = vectors[::2], vectors[1::2]
    features = K.concatenate([first, second, K.abs(first - second)], axis=1)
    others = np.ones((len(LABELS), kernel.shape[1]), "float32")
    for row, label in enumerate(LABELS):
        (candidates,) = (labels for labels in LABEL_SETS if label in labels)
        others[row, list(candidates)] = 0
    logits = K.dot(features, K.constant(kernel)) - 1e12 * K.constant(others)
    losses = K.sparse_categorical_crossentropy(
        K.constant(LABELS, "int32"), logits, from_logits=True
    )
    return K.mean(losses)
