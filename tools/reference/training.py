"""Fine-tuning as bert4keras's users write it, in a process with bert4keras."""

import hashlib
import json
import time
from pathlib import Path

import numpy as np

from tools.reference.bert4keras import build_model, import_optimizers, make_tokenizer

# Parts of the names of variables without weight decay.
NOT_DECAYED = ("bias", "Norm")
# CoSENT multiplies cosines by it.
SCALE = 20.0
# Largest difference of the first loss from the expected one, absolute and relative.
ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE = 1e-4, 1e-5


def make_classifier(folder: Path, model: str, kernel, bias, **keywords):
    """bert4keras's encoder with a softmax head on [CLS], as a Keras 2 model."""
    from bert4keras.backend import keras

    encoder = build_model(folder, model, **keywords)
    vector = keras.layers.Lambda(lambda x: x[:, 0], name="CLS-token")(encoder.output)
    head = keras.layers.Dense(kernel.shape[1], activation="softmax", name="head")
    classifier = keras.models.Model(encoder.inputs, head(vector))
    head.set_weights([kernel, bias])
    return classifier


def make_optimizer(learning_rate, weight_decay, schedule=(), **keywords):
    """bert4keras's Adam, extended as its users do; `schedule` has (step, factor)."""
    optimizers = import_optimizers()
    optimizer = optimizers.extend_with_weight_decay(optimizers.Adam, name="AdamW")
    keywords["weight_decay_rate"] = weight_decay
    keywords["exclude_from_weight_decay"] = list(NOT_DECAYED)
    if schedule:
        optimizer = optimizers.extend_with_piecewise_linear_lr(optimizer, "AdamWLR")
        keywords["lr_schedule"] = {int(step): factor for step, factor in schedule}
    return optimizer(learning_rate=learning_rate, **keywords)


def encode_texts(tokenizer, texts, max_length):
    return [np.array(tokenizer.encode(text, maxlen=max_length)[0]) for text in texts]


def hash_ids(rows) -> str:
    """SHA-256 of the concatenated token ids of all rows."""
    return hashlib.sha256(np.concatenate(rows).astype("int32").tobytes()).hexdigest()


def pad_rows(rows):
    """Inputs of the model: token ids and segment ids `(batch, length)`."""
    from bert4keras.snippets import sequence_padding

    token_ids = sequence_padding(rows)
    return [token_ids, np.zeros_like(token_ids)]


class Classification:
    """Cross-entropy of a dense layer on [CLS]; answers are classes.

    As in bert4keras's example task_sentiment_albert.py.
    """

    loss = "sparse_categorical_crossentropy"

    def __init__(self, job, arrays, lengths):
        self.targets = arrays["targets"]
        head = arrays["head/kernel"], arrays["head/bias"]
        self.model = make_classifier(Path(job["folder"]), job["model"], *head)

    def batch_targets(self, numbers):
        return self.targets[numbers]

    def answer(self, outputs, length):
        return int(outputs[0].argmax())


class Similarity:
    """CoSENT on the vectors of [CLS] of two texts; answers are cosines.

    Source: https://github.com/bojone/CoSENT
    """

    def __init__(self, job, arrays, lengths):
        from bert4keras.backend import keras

        self.targets = arrays["targets"]
        encoder = build_model(Path(job["folder"]), job["model"])
        vectors = keras.layers.Lambda(lambda x: x[:, 0], name="CLS-token")
        self.model = keras.models.Model(encoder.inputs, vectors(encoder.output))

    def batch_targets(self, numbers):
        # Keras needs as many targets as rows, and a pair has two rows.
        return np.repeat(self.targets[numbers], 2)[:, None]

    @staticmethod
    def loss(targets, vectors):
        from bert4keras.backend import K

        degrees = targets[::2, 0]
        unit = K.l2_normalize(vectors, axis=1)
        scores = SCALE * K.sum(unit[::2] * unit[1::2], axis=1)
        # (i, j): how much higher pair j scores, where i should be higher.
        wrong_by = scores[None, :] - scores[:, None]
        counts = K.cast(degrees[:, None] > degrees[None, :], K.floatx())
        terms = K.reshape(wrong_by - 1e12 * (1 - counts), [-1])
        return K.logsumexp(K.concatenate([[0.0], terms], axis=0))

    def answer(self, outputs, length):
        first, second = outputs / np.linalg.norm(outputs, axis=1, keepdims=True)
        return float(first @ second)


class Entities:
    """Tags by a dense layer and a conditional random field; answers are tags.

    As in bert4keras's example task_sequence_labeling_ner_crf.py, except that the field
    leaves out [CLS] and [SEP], which have no tag; their targets are -1.
    """

    def __init__(self, job, arrays, lengths):
        from bert4keras.backend import keras
        from bert4keras.layers import ConditionalRandomField

        self.targets = np.split(arrays["targets"], np.cumsum(lengths)[:-1])
        encoder = build_model(Path(job["folder"]), job["model"])
        tokens = keras.layers.Lambda(
            lambda x: x[:, 1:-1],
            # A token belongs to the text if another one follows it.
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

    def answer(self, outputs, length):
        from bert4keras.backend import K
        from bert4keras.snippets import ViterbiDecoder

        decoder = ViterbiDecoder(K.eval(self.field.trans))
        return decoder.decode(outputs[0][: length - 2]).tolist()


TASKS = {
    "classification": Classification,
    "similarity": Similarity,
    "entities": Entities,
}


class Rows:
    """Token ids of rows of one or more texts each, and tokens of the longest."""

    def __init__(self, path, tokenizer, max_length):
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
        self._ids = [encode_texts(tokenizer, texts, max_length) for texts in rows]
        self.lengths = np.array([max(map(len, texts)) for texts in self._ids])

    def batch(self, numbers):
        return pad_rows([ids for number in numbers for ids in self._ids[number]])


class Trainer:
    """A training, done by `train`; `experiments/finetuning.py` makes its `job`."""

    def __init__(self, job):
        from bert4keras.backend import keras

        self.job = job
        keras.utils.set_random_seed(job["seed"])
        tokenizer = make_tokenizer(Path(job["folder"]))
        self.rows, self.test = (
            Rows(job[part], tokenizer, job["max_length"]) for part in ("train", "test")
        )
        with np.load(job["arrays"]) as file:
            arrays = dict(file)
        count = sum(name.startswith("batch/") for name in arrays)
        self.batches = [arrays[f"batch/{number}"] for number in range(count)]
        batches = [self.rows.batch(numbers) for numbers in self.batches]
        batches += [self.test.batch([i]) for i in range(len(self.test.lengths))]
        if hash_ids([token_ids.ravel() for token_ids, _ in batches]) != job["ids"]:
            raise AssertionError("bert4keras encodes the same texts to other ids")
        self.task = TASKS[job["task"]](job, arrays, self.rows.lengths)

    def train(self) -> dict:
        """`answers` to the test rows, `loss` of the last epoch, `seconds`."""
        job, model = self.job, self.task.model
        clip = {"global_clipnorm": job["clip_norm"]} if job["clip_norm"] else {}
        optimizer = make_optimizer(
            job["learning_rate"], job["weight_decay"], job["schedule"], **clip
        )
        model.compile(loss=self.task.loss, optimizer=optimizer)
        loss, expected = float(model.test_on_batch(*self.batch(0))), job["first_loss"]
        if abs(loss - expected) > max(ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE * loss):
            raise AssertionError(
                f"the loss of the first batch must be {expected:.6f} before the first "
                f"update and without dropout, got {loss:.6f} from bert4keras"
            )
        start = time.perf_counter()
        history = model.fit(
            map(self.batch, range(len(self.batches))),
            steps_per_epoch=len(self.batches) // job["epochs"],
            epochs=job["epochs"],
            verbose=0,
        )
        seconds = time.perf_counter() - start
        return {
            "answers": self.answers(),
            "loss": float(history.history["loss"][-1]),
            "seconds": seconds,
        }

    def batch(self, number):
        """Inputs and targets of a training batch."""
        numbers = self.batches[number]
        return self.rows.batch(numbers), self.task.batch_targets(numbers)

    def answers(self):
        """Answers to the test rows, in their order."""
        decoded = []
        for number, length in enumerate(self.test.lengths):
            outputs = self.task.model.predict_on_batch(self.test.batch([number]))
            decoded.append(self.task.answer(outputs, length))
        return decoded
