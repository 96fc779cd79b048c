"""Regenerates tests/data/pretraining/losses.npz: losses by the real bert4keras's ops.

    python tools/write_loss_reference.py

It starts itself again in a process with bert4keras (`.reference/bert4keras-0.11.5`, or
ROFORMER_KERAS_REFERENCE). There bert4keras's tokenizer lays out a few pairs of texts as
RoFormer-Sim was trained on them, its model computes vectors and logits, and its backend
the losses of ZhuiyiTechnology/roformer-sim `train/stage1.py`, `stage2.py` and
`supervised.py`.

losses.npz holds

    metadata        JSON: `versions`, `layer_norm_epsilon`; `source`, `teacher` (stems
                    in tests/checkpoints), `length`, `pairs` of texts and their `labels`
    token_ids       int32 `(rows, 2 * length)`: rows `a b` and `b a`, side by side
    segment_ids     of the same shape
    text_ids        int32 `(rows, length)`: rows `a` and `b`
    teacher_ids     the same by the teacher's tokenizer
    kernel          float32 `(3 * hidden, 5)`: of the layer over (a, b, |a - b|)
    seq2seq         float32 scalar: the first part of stage 1's loss
    similarity      its second part
    distillation    what stands in its place in stage 2
    classification  the supervised loss
"""

import json
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from golden import versions, write_with_bert4keras

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINTS = ROOT / "tests" / "checkpoints"
OUTPUT = ROOT / "tests" / "data" / "pretraining" / "losses.npz"

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
LABEL_SETS = ((0, 1), (2, 3, 4))


# --- the batch ------------------------------------------------------------------------


def tokenizer_of(folder):
    from bert4keras.tokenizers import Tokenizer

    return Tokenizer(str(folder / "vocab.txt"), do_lower_case=True)


def padded(rows, length):
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
    return padded(token_ids, 2 * LENGTH), padded(segment_ids, 2 * LENGTH)


def single_rows(tokenizer):
    """Token ids of every text by itself."""
    return padded(
        [tokenizer.encode(text)[0] for pair in PAIRS for text in pair], LENGTH
    )


# --- the losses -----------------------------------------------------------------------


def seq2seq_loss(K, token_ids, segment_ids, logits):
    """Over the second segment, whose every token is told by the one before it."""
    weights = K.constant(segment_ids[:, 1:], "float32")
    each = K.sparse_categorical_crossentropy(
        K.constant(token_ids[:, 1:], "int32"), logits[:, :-1], from_logits=True
    )
    return K.sum(weights * each) / K.sum(weights)


def cosines(K, vectors):
    unit = K.l2_normalize(vectors, axis=1)
    return K.dot(unit, K.transpose(unit))


def similarity_loss(K, vectors):
    """Of finding the neighbour, 20 times the cosines being the logits."""
    count = vectors.shape[0]
    identity = K.eye(count)
    # Every two rows swapped.
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
        (own,) = (labels for labels in LABEL_SETS if label in labels)
        others[row, list(own)] = 0
    logits = K.dot(features, K.constant(kernel)) - 1e12 * K.constant(others)
    return K.mean(
        K.sparse_categorical_crossentropy(
            K.constant(LABELS, "int32"), logits, from_logits=True
        )
    )


# --- what is stored -------------------------------------------------------------------


def build(folder, **kwargs):
    from bert4keras.models import build_transformer_model

    return build_transformer_model(
        str(folder / "bert_config.json"),
        str(folder / "bert_model.ckpt"),
        model="roformer",
        with_pool="linear",
        **kwargs,
    )


def write(path):
    from bert4keras.backend import K

    with tempfile.TemporaryDirectory() as temporary:
        for stem in (SOURCE, TEACHER):
            with zipfile.ZipFile(CHECKPOINTS / f"{stem}.zip") as archive:
                archive.extractall(temporary)
        source, teacher = Path(temporary, SOURCE), Path(temporary, TEACHER)
        token_ids, segment_ids = joined_rows(tokenizer_of(source))
        text_ids = single_rows(tokenizer_of(source))
        teacher_ids = single_rows(tokenizer_of(teacher))
        student = build(source, application="unilm", with_mlm="linear")
        vectors, logits = student([token_ids, segment_ids], training=False)
        teacher_vectors = build(teacher, application="unilm")(
            [teacher_ids, np.zeros_like(teacher_ids)], training=False
        )[0]
        encoder = build(source)
        text_vectors = encoder([text_ids, np.zeros_like(text_ids)], training=False)
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(3 * vectors.shape[1], 5)).astype("float32")
    metadata = {
        "versions": versions(),
        "layer_norm_epsilon": 1e-7,
        "source": SOURCE,
        "teacher": TEACHER,
        "length": LENGTH,
        "pairs": PAIRS,
        "labels": LABELS,
    }
    found = {
        "seq2seq": seq2seq_loss(K, token_ids, segment_ids, logits),
        "similarity": similarity_loss(K, vectors),
        "distillation": distillation_loss(K, vectors, teacher_vectors),
        "classification": classification_loss(K, text_vectors, kernel),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        metadata=json.dumps(metadata, ensure_ascii=False),
        token_ids=token_ids,
        segment_ids=segment_ids,
        text_ids=text_ids,
        teacher_ids=teacher_ids,
        kernel=kernel,
        **{name: np.float32(value.numpy()) for name, value in found.items()},
    )
    for name, value in found.items():
        print(f"{name} {float(value):.6f}")


if __name__ == "__main__":
    write_with_bert4keras(__file__, __doc__, OUTPUT, write)
