"""Texts learned as bert4keras's users build and train it, in a process of its own.

    PYTHONPATH=<folder of bert4keras> python bert4keras_classifier.py JOB.json

bert4keras replaces `sys.modules["keras"]`, so nothing of this package can live in the
same process. The job holds

    task            "classification", "similarity" or "entities"
    folder          with bert_config.json, bert_model.ckpt.* and vocab.txt
    model           "roformer" or "roformer_v2"
    train, test     files of JSON: lists of the texts of each row
    arrays          .npz with `targets` of the training rows; `batch/<number>`: the rows
                    of each batch, in order; and weights to begin with: `head/kernel`
                    and `head/bias` of a dense layer, `crf/kernel` of a field
    ids, first_loss what the batches must be: hash of their token ids, and the loss of
                    the first one before the first update, without dropout
    epochs, batch_size, max_length, learning_rate, weight_decay
    clip_norm       0 for none
    crf_rate        of "entities": how much faster transitions learn
    schedule        pairs of step and factor of the learning rate, ascending
    seed            of the dropout
    output          file of JSON to write: `answers` for the test texts, mean `loss` of
                    the last epoch, `seconds` of training

What each task is says its class below.
"""

import hashlib
import json
import sys
import time
from pathlib import Path

import numpy as np

# Of bert4keras's variables: not decayed.
NOT_DECAYED = ("bias", "Norm")
# What cosines are multiplied by, in CoSENT.
SCALE = 20.0
# How far the loss of a batch may be from what it must be, and as a share of it.
TOLERANCE, SHARE = 1e-4, 1e-5


def make_encoder(folder, model, **kwargs):
    """bert4keras's encoder, of the weights in a folder; see `make_classifier`."""
    from bert4keras.models import build_transformer_model

    return build_transformer_model(
        str(folder / "bert_config.json"),
        str(folder / "bert_model.ckpt"),
        model=model,
        **kwargs,
    )


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

    encoder = make_encoder(folder, model, **kwargs)
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


# --- tasks ----------------------------------------------------------------------------


class Classification:
    """Cross-entropy of a dense layer on the vector of [CLS]; answers are classes.

    As in bert4keras's example task_sentiment_albert.py.
    """

    loss = "sparse_categorical_crossentropy"

    def __init__(self, job, arrays, lengths):
        self.targets = arrays["targets"]
        self.model = make_classifier(
            Path(job["folder"]),
            job["model"],
            arrays["head/kernel"],
            arrays["head/bias"],
        )

    def batch_targets(self, numbers):
        """Targets of the training rows of a batch, as the loss takes them."""
        return self.targets[numbers]

    def answers(self, outputs, lengths):
        """Answers for rows of so many tokens."""
        return outputs.argmax(axis=1).tolist()


class Similarity:
    """CoSENT on the vectors of [CLS] of two texts; answers are cosines.

    Source: https://github.com/bojone/CoSENT
    """

    def __init__(self, job, arrays, lengths):
        from bert4keras.backend import keras

        self.targets = arrays["targets"]
        encoder = make_encoder(Path(job["folder"]), job["model"])
        vectors = keras.layers.Lambda(lambda x: x[:, 0], name="CLS-token")
        self.model = keras.models.Model(encoder.inputs, vectors(encoder.output))

    def batch_targets(self, numbers):
        # Keras wants as many targets as rows, and a pair is two.
        return np.repeat(self.targets[numbers], 2)[:, None]

    @staticmethod
    def loss(targets, vectors):
        from bert4keras.backend import K

        degrees = targets[::2, 0]
        unit = K.l2_normalize(vectors, axis=1)
        scores = SCALE * K.sum(unit[::2] * unit[1::2], axis=1)
        # (i, j): by how much j is the nearer one, where i should be
        wrong_by = scores[None, :] - scores[:, None]
        counts = K.cast(degrees[:, None] > degrees[None, :], K.floatx())
        terms = K.reshape(wrong_by - 1e12 * (1 - counts), [-1])
        return K.logsumexp(K.concatenate([[0.0], terms], axis=0))

    def answers(self, outputs, lengths):
        unit = outputs / np.linalg.norm(outputs, axis=1, keepdims=True)
        return (unit[::2] * unit[1::2]).sum(axis=1).tolist()


class Entities:
    """Tags by a dense layer and a conditional random field; answers are tags.

    As in bert4keras's example task_sequence_labeling_ner_crf.py, but that the field is
    over the tokens between [CLS] and [SEP], which have no tag. A target is -1 there.
    """

    def __init__(self, job, arrays, lengths):
        from bert4keras.backend import keras
        from bert4keras.layers import ConditionalRandomField

        self.targets = np.split(arrays["targets"], np.cumsum(lengths)[:-1])
        encoder = make_encoder(Path(job["folder"]), job["model"])
        tokens = keras.layers.Lambda(
            lambda x: x[:, 1:-1],
            # A token is of the text if there is one behind it.
            mask=lambda x, mask: mask[:, 2:],
            name="Text-tokens",
        )
        kernel = arrays["head/kernel"]
        head = keras.layers.Dense(kernel.shape[1], name="head")
        self.field = ConditionalRandomField(job["crf_rate"], name="crf")
        scores = self.field(head(tokens(encoder.output)))
        self.model = keras.models.Model(encoder.inputs, scores)
        head.set_weights([kernel, arrays["head/bias"]])
        self.field.set_weights([arrays["crf/kernel"]])
        self.loss = self.field.sparse_loss

    def batch_targets(self, numbers):
        from bert4keras.snippets import sequence_padding

        rows = [self.targets[number] for number in numbers]
        return sequence_padding(rows, value=-1)[:, 1:-1]

    def answers(self, outputs, lengths):
        from bert4keras.backend import K
        from bert4keras.snippets import ViterbiDecoder

        decoder = ViterbiDecoder(K.eval(self.field.trans))
        return [
            decoder.decode(scores[: length - 2]).tolist()
            for scores, length in zip(outputs, lengths, strict=True)
        ]


TASKS = {
    "classification": Classification,
    "similarity": Similarity,
    "entities": Entities,
}


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


class Rows:
    """Token ids of rows, of which each may be of several texts, one behind the other.

    Args:
        path: file of JSON.
        tokenizer: of bert4keras.
        max_length: int. Tokens to which longer texts are cut.

    Attributes:
        lengths: int `(rows,)`. Tokens of the longest text of each.
    """

    def __init__(self, path, tokenizer, max_length):
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
        self._ids = [encoded(tokenizer, texts, max_length) for texts in rows]
        self.lengths = np.array([max(map(len, texts)) for texts in self._ids])

    def batch(self, numbers):
        return padded([ids for number in numbers for ids in self._ids[number]])


def answers_of(task, rows, batch_size):
    """Answers for rows, in their order."""
    order = np.argsort(rows.lengths, kind="stable")
    found = [None] * len(order)
    for start in range(0, len(order), batch_size):
        numbers = order[start : start + batch_size]
        outputs = task.model.predict_on_batch(rows.batch(numbers))
        own = task.answers(outputs, rows.lengths[numbers])
        for number, answer in zip(numbers, own, strict=True):
            found[number] = answer
    return found


def train(job):
    """Does a job; returns what it reports."""
    from bert4keras.backend import keras
    from bert4keras.tokenizers import Tokenizer

    keras.utils.set_random_seed(job["seed"])
    tokenizer = Tokenizer(str(Path(job["folder"], "vocab.txt")), do_lower_case=True)
    rows, test = (
        Rows(job[part], tokenizer, job["max_length"]) for part in ("train", "test")
    )
    with np.load(job["arrays"]) as file:
        arrays = dict(file)
    count = sum(name.startswith("batch/") for name in arrays)
    batches = [arrays[f"batch/{number}"] for number in range(count)]
    every = [rows.batch(numbers) for numbers in batches]
    every += [test.batch([number]) for number in range(len(test.lengths))]
    if hash_of_ids([token_ids.ravel() for token_ids, _ in every]) != job["ids"]:
        raise AssertionError("bert4keras made other ids of the same texts")
    task = TASKS[job["task"]](job, arrays, rows.lengths)
    clip = {"global_clipnorm": job["clip_norm"]} if job["clip_norm"] else {}
    task.model.compile(
        loss=task.loss,
        optimizer=make_optimizer(
            job["learning_rate"], job["weight_decay"], job["schedule"], **clip
        ),
    )
    first = rows.batch(batches[0]), task.batch_targets(batches[0])
    loss = float(task.model.test_on_batch(*first))
    print(f"first loss {loss:.6f}", flush=True)
    if abs(loss - job["first_loss"]) > max(TOLERANCE, SHARE * loss):
        raise AssertionError(
            f"the loss of the first batch must be {job['first_loss']:.6f}, before the "
            f"first update and without dropout, got {loss:.6f} of bert4keras"
        )

    def generate():
        for numbers in batches:
            yield rows.batch(numbers), task.batch_targets(numbers)

    start = time.perf_counter()
    history = task.model.fit(
        generate(),
        steps_per_epoch=len(batches) // job["epochs"],
        epochs=job["epochs"],
        verbose=2,
    )
    seconds = time.perf_counter() - start
    return {
        "answers": answers_of(task, test, job["batch_size"]),
        "loss": float(history.history["loss"][-1]),
        "seconds": seconds,
    }


def main(path):
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    Path(job["output"]).write_text(json.dumps(train(job)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
