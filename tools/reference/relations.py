"""tests/data/finetuning/relations.npz: the loss of GPLinker by bert4keras.

Its example task_relation_extraction_gplinker.py adds three EfficientGlobalPointers to
an encoder, and trains each with sparse_multilabel_categorical_crossentropy, summed over
heads, where class 0 pads the labels.

    token_ids                       int32 `(rows, length)`: the padded batch
    POINTER/INDEX                   float32: weights of `entities`, `heads`, `tails`
    POINTER/loss                    float32: mean over rows
    POINTER/gradient/INDEX          float32: of the sum of the losses
    embeddings/gradient             float32 `(vocabulary, dim)`: of token embeddings

metadata: `layer_norm_epsilon`; `source`, stem in tests/checkpoints; `texts`; `triples`
of each; `predicates`; `head_dim`.
"""

import tempfile
from pathlib import Path

import numpy as np

from tools.reference.bert4keras import build_model, make_tokenizer, save_golden, unzip
from tools.reference.training import pad_rows

SOURCE = "chinese_roformer-char_L-2_H-32_A-4"
TEXTS = (
    "今天天气不错",
    "我爱北京天安门，天安门上太阳升",
    "她在北京大学学习",
    "不",
)
TRIPLES = (
    (("天气", "是", "不错"), ("今天", "有", "天气")),
    (("天安门", "在", "北京"), ("太阳", "在", "天安门")),
    (("她", "在", "北京"), ("她", "在", "北京大学"), ("北京大学", "在", "北京")),
    (),
)
PREDICATES = ("在", "是", "有")
HEAD_DIM = 8


def write(output):
    import tensorflow as tf
    from bert4keras.backend import keras
    from bert4keras.layers import EfficientGlobalPointer

    with tempfile.TemporaryDirectory() as scratch:
        folder = unzip(SOURCE, Path(scratch))
        tokenizer = make_tokenizer(folder)
        encoder = build_model(folder)
    rows = [np.array(tokenizer.encode(text)[0]) for text in TEXTS]
    inputs = pad_rows(rows)
    count, linked = len(PREDICATES), {"RoPE": False, "tril_mask": False}
    pointers = {
        "entities": EfficientGlobalPointer(2, HEAD_DIM),
        "heads": EfficientGlobalPointer(count, HEAD_DIM, **linked),
        "tails": EfficientGlobalPointer(count, HEAD_DIM, **linked),
    }
    outputs = [pointer(encoder.output) for pointer in pointers.values()]
    model = keras.models.Model(encoder.inputs, outputs)
    random, arrays = np.random.default_rng(0), {}
    for name, pointer in pointers.items():
        values = [random.normal(0, 0.2, w.shape) for w in pointer.get_weights()]
        pointer.set_weights(values)
        for index, value in enumerate(pointer.get_weights()):
            arrays[f"{name}/{index}"] = value
    table = encoder.get_layer("Embedding-Token").weights[0]
    with tf.GradientTape() as tape:
        scores = model([tf.constant(part) for part in inputs], training=False)
        targets = targets_of(tokenizer, rows)
        losses = [loss_of(*pair) for pair in zip(targets, scores, strict=True)]
        total = sum(losses)
    weights = [weight for pointer in pointers.values() for weight in pointer.weights]
    *gradients, of_table = map(
        tf.convert_to_tensor, tape.gradient(total, [*weights, table])
    )
    gradients = iter(gradients)
    for (name, pointer), loss in zip(pointers.items(), losses, strict=True):
        arrays[f"{name}/loss"] = np.float32(loss)
        for index in range(len(pointer.weights)):
            arrays[f"{name}/gradient/{index}"] = next(gradients).numpy()
    arrays |= {
        "token_ids": inputs[0].astype("int32"),
        "embeddings/gradient": of_table.numpy(),
    }
    metadata = {"layer_norm_epsilon": 1e-7, "source": SOURCE, "texts": TEXTS}
    metadata |= {"triples": TRIPLES, "predicates": PREDICATES, "head_dim": HEAD_DIM}
    save_golden(output / "data" / "finetuning" / "relations.npz", metadata, arrays)


def targets_of(tokenizer, rows):
    """Cells of each pointer: float32 `(rows, heads, cells, 2)`, padded with 0."""
    sizes = (2, len(PREDICATES), len(PREDICATES))
    cells = [[[set() for _ in range(size)] for _ in rows] for size in sizes]
    for row, (ids, triples) in enumerate(zip(rows, TRIPLES, strict=True)):
        for subject, predicate, entity in triples:
            places = [
                first_place(ids, tokenizer.encode(part)[0][1:-1])
                for part in (subject, entity)
            ]
            number = PREDICATES.index(predicate)
            for role, place in enumerate(places):
                cells[0][row][role].add(place)
            for end in (0, 1):
                pair = places[0][end], places[1][end]
                cells[1 + end][row][number].add(pair)
    width = max(len(head) for part in cells for row in part for head in row)
    arrays = []
    for size, part in zip(sizes, cells, strict=True):
        array = np.zeros((len(rows), size, width, 2), "float32")
        for row, heads in enumerate(part):
            for head, own in enumerate(heads):
                if own:
                    array[row, head, : len(own)] = sorted(own)
        arrays.append(array)
    return arrays


def first_place(ids, part):
    """First and last token of a part of ids."""
    starts = (at for at in range(len(ids)) if list(ids[at : at + len(part)]) == part)
    start = next(starts)
    return start, start + len(part) - 1


def loss_of(cells, scores):
    """Sum over heads, and mean over rows."""
    import tensorflow as tf
    from bert4keras.backend import sparse_multilabel_categorical_crossentropy

    batch, heads, length, _ = scores.shape
    numbers = tf.constant(cells[..., 0] * length + cells[..., 1])
    flat = tf.reshape(scores, (batch, heads, length * length))
    loss = sparse_multilabel_categorical_crossentropy(numbers, flat, True)
    return tf.reduce_mean(tf.reduce_sum(loss, axis=1))
