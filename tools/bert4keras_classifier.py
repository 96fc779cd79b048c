"""A text classifier as bert4keras's users build and train it, in a process of its own.

    PYTHONPATH=<folder of bert4keras> python bert4keras_classifier.py JOB.json

bert4keras replaces `sys.modules["keras"]`, so nothing of this package can live in the
same process. The job holds

    folder          with bert_config.json, bert_model.ckpt.* and vocab.txt
    model           "roformer" or "roformer_v2"
    train, test     files of JSON: lists of [text, number of the class]
    arrays          .npz with `head/kernel`, `head/bias`, and `batch/<number>`: the rows
                    of each batch, in order
    epochs, batch_size, max_length, learning_rate, weight_decay, clip_norm
    schedule        pairs of step and factor of the learning rate, ascending
    seed            of the dropout
    output          file of JSON to write: `accuracy` on the test texts, mean `loss` of
                    the last epoch, `seconds` of training, `ids`: hash of all token ids

Everything is as in bert4keras's example task_sentiment_albert.py: softmax of a dense
layer on the vector of [CLS], its cross-entropy, and its own Adam.
"""

import hashlib
import json
import sys
import time
from pathlib import Path

import numpy as np

# Of bert4keras's variables: not decayed.
NOT_DECAYED = ("bias", "Norm")


def make_classifier(folder, model, kernel, bias, **kwargs):
    """bert4keras's encoder, and a head of these weights: a compiled Keras 2 model.

    Args:
        folder: Path with `bert_config.json` and `bert_model.ckpt.*`.
        model: `"roformer"` or `"roformer_v2"`.
        kernel: float `(hidden_dim, classes)`.
        bias: float `(classes,)`.
        kwargs: as of `build_transformer_model`.
    """
    from bert4keras.backend import keras
    from bert4keras.models import build_transformer_model

    encoder = build_transformer_model(
        str(folder / "bert_config.json"),
        str(folder / "bert_model.ckpt"),
        model=model,
        **kwargs,
    )
    vector = keras.layers.Lambda(lambda x: x[:, 0], name="CLS-token")(encoder.output)
    head = keras.layers.Dense(kernel.shape[1], activation="softmax", name="head")
    classifier = keras.models.Model(encoder.inputs, head(vector))
    head.set_weights([kernel, bias])
    return classifier


def make_optimizer(learning_rate, weight_decay, schedule=(), **kwargs):
    """bert4keras's Adam, extended as its users do.

    Args:
        learning_rate: float. What the factors of `schedule` multiply.
        weight_decay: float. Not on biases and norms.
        schedule: pairs (step, factor), ascending; none for a constant rate.
        kwargs: as of the optimizer.
    """
    from bert4keras.backend import keras

    # It is written for the optimizers that Keras had before TensorFlow 2.11.
    keras.optimizers.Optimizer = keras.optimizers.legacy.Optimizer
    from bert4keras import optimizers

    kind = optimizers.extend_with_weight_decay(optimizers.Adam, name="AdamW")
    kwargs["weight_decay_rate"] = weight_decay
    kwargs["exclude_from_weight_decay"] = list(NOT_DECAYED)
    if schedule:
        kind = optimizers.extend_with_piecewise_linear_lr(kind, name="AdamWLR")
        kwargs["lr_schedule"] = {int(step): factor for step, factor in schedule}
    return kind(learning_rate=learning_rate, **kwargs)


# --- one training ---------------------------------------------------------------------


def encoded(tokenizer, texts, max_length):
    return [np.array(tokenizer.encode(text, maxlen=max_length)[0]) for text in texts]


def hash_of_ids(rows):
    """Of the token ids of all rows, one behind the other."""
    return hashlib.sha256(np.concatenate(rows).astype("int32").tobytes()).hexdigest()


def padded(rows):
    """Inputs of the model: token ids and segment ids `(batch, length)`."""
    from bert4keras.snippets import sequence_padding

    token_ids = sequence_padding(rows)
    return [token_ids, np.zeros_like(token_ids)]


def accuracy_of(model, rows, labels, batch_size):
    """The share of the rows whose likeliest class is theirs."""
    order = np.argsort([len(row) for row in rows], kind="stable")
    right = 0
    for start in range(0, len(order), batch_size):
        numbers = order[start : start + batch_size]
        found = model.predict_on_batch(padded([rows[number] for number in numbers]))
        right += int((found.argmax(axis=1) == labels[numbers]).sum())
    return right / len(rows)


def train(job):
    """Does a job; returns what it reports."""
    from bert4keras.backend import keras
    from bert4keras.tokenizers import Tokenizer

    keras.utils.set_random_seed(job["seed"])
    folder = Path(job["folder"])
    tokenizer = Tokenizer(str(folder / "vocab.txt"), do_lower_case=True)
    rows, labels = {}, {}
    for part in ("train", "test"):
        records = json.loads(Path(job[part]).read_text(encoding="utf-8"))
        texts, numbers = zip(*records, strict=True)
        rows[part] = encoded(tokenizer, texts, job["max_length"])
        labels[part] = np.array(numbers)
    with np.load(job["arrays"]) as file:
        arrays = dict(file)
    batches = [arrays[f"batch/{number}"] for number in range(len(arrays) - 2)]
    model = make_classifier(
        folder, job["model"], arrays["head/kernel"], arrays["head/bias"]
    )
    model.compile(
        loss="sparse_categorical_crossentropy",
        optimizer=make_optimizer(
            job["learning_rate"],
            job["weight_decay"],
            job["schedule"],
            global_clipnorm=job["clip_norm"],
        ),
    )

    def generate():
        for numbers in batches:
            inputs = padded([rows["train"][number] for number in numbers])
            yield inputs, labels["train"][numbers]

    start = time.perf_counter()
    history = model.fit(
        generate(),
        steps_per_epoch=len(batches) // job["epochs"],
        epochs=job["epochs"],
        verbose=2,
    )
    seconds = time.perf_counter() - start
    return {
        "accuracy": accuracy_of(model, rows["test"], labels["test"], job["batch_size"]),
        "loss": float(history.history["loss"][-1]),
        "seconds": seconds,
        "ids": hash_of_ids(rows["train"] + rows["test"]),
    }


def main(path):
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    Path(job["output"]).write_text(json.dumps(train(job)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
