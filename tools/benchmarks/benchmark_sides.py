"""The sides that tools/benchmarks/benchmark.py measures, each in a process of its own.

A side is a function of the options that returns its jobs by name; `serve` of workers.py
does them. Most return `sample`, some numbers of what was computed, so that sides of one
model can be compared. Nothing is imported here that a side does not share with
bert4keras, which replaces `sys.modules["keras"]`.
"""

import argparse
import functools
import json
import math
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

__all__ = [
    "EXPORTS",
    "NEEDS",
    "POSITIONS",
    "SIDES",
    "SOURCES",
    "THEIR_ROWS",
    "batch_of",
    "convert_to_preset",
    "exported",
    "matrix_products",
    "missing",
    "read_texts",
    "texts_of",
    "thread_count",
]

# Rows of a batch of bert4keras, on texts in the order in which they came.
THEIR_ROWS = 32
MAX_LENGTH = 512
# Tokens of the single sentence, two of which stand around it.
SENTENCE = 16
# Of the table that BERT has, which must hold the longest row.
POSITIONS = 4096
# What the options' folder holds.
SOURCES = {"zip": "base.zip", "folder": ".", "preset": "preset"}


def thread_count():
    return len(os.sched_getaffinity(0))


def batch_of(options):
    """Token and segment ids, `options.batch` by `options.length`; half have padding."""
    random = np.random.default_rng(0)
    shape = (options.batch, options.length)
    token_ids = random.integers(1, options.vocabulary, shape, dtype="int32")
    token_ids[::2, options.length * 3 // 4 :] = 0
    return token_ids, np.zeros_like(token_ids)


def matrix_products(layers, hidden, tokens, dtype="float32"):
    """A function that multiplies so many vectors by the matrices of all layers.

    It does nothing else: no attention, whose products grow with the length.
    """
    import tensorflow as tf

    def random(rows, columns):
        # What is multiplied on and on keeps its size.
        matrix = tf.random.normal((rows, columns)) / rows**0.5
        return tf.cast(matrix, dtype)

    vectors = tf.cast(tf.random.normal((tokens, hidden)), dtype)
    square = random(hidden, hidden)
    up, down = random(hidden, 4 * hidden), random(4 * hidden, hidden)

    @tf.function
    def products():
        x = vectors
        for _ in range(layers):
            for _ in range(4):
                x = tf.matmul(x, square)
            x = tf.matmul(tf.matmul(x, up), down)
        return x

    return lambda: products().numpy()


def texts_of(options):
    return options.folder / "texts.json"


def read_texts(options):
    return json.loads(texts_of(options).read_text(encoding="utf-8"))


def _sentence():
    return "".join(chr(0x4E00 + 106 + number) for number in range(SENTENCE - 2))


def _random_texts():
    """Of the characters that every vocabulary has, for the scales of integers."""
    draw = random.Random(0)
    return ["".join(draw.choices(_sentence(), k=64)) for _ in range(32)]


def _shaped(options, shape):
    """Ids of a batch of a shape as `"32x128"`."""
    batch, length = map(int, shape.split("x"))
    sizes = argparse.Namespace(
        batch=batch, length=length, vocabulary=options.vocabulary
    )
    return batch_of(sizes)


def _sample(outputs):
    """Some numbers of the first and the last vector of `(..., hidden)`."""
    vectors = np.asarray(outputs).astype("float32")
    vectors = vectors.reshape(-1, vectors.shape[-1])
    return vectors[[0, -1], :8].ravel().tolist()


def _timed_calls(options, call):
    """Median and 95th percentile of the seconds of so many calls."""
    seconds = []
    for _ in range(options.calls):
        start = time.perf_counter()
        found = call()
        seconds.append(time.perf_counter() - start)
    return found, {
        "seconds": statistics.median(seconds),
        "p95": float(np.percentile(seconds, 95)),
    }


def _counts(rows, batches):
    """Of rows of ids: their hash, mean tokens, and those with the batches' padding."""
    from tools.experiments.bert4keras_classifier import hash_of_ids

    padded = sum(len(batch) * max(map(len, batch)) for batch in batches)
    return {
        "ids": hash_of_ids(rows),
        "tokens": float(np.mean([len(row) for row in rows])),
        "padded": padded / len(rows),
    }


# === roformer_keras ===


def our_side(options):
    import tensorflow as tf

    from roformer_keras import RoFormerBackbone
    from roformer_keras.data.rows import WINDOW, by_length
    from roformer_keras.models.embedding import embed
    from roformer_keras.models.forward import run_model

    @functools.cache
    def model(source="folder"):
        path = options.folder / SOURCES[source]
        return RoFormerBackbone.from_preset(path, dtype=options.worker)

    @functools.cache
    def inputs(shape):
        token_ids, segment_ids = _shaped(options, shape)
        return {"token_ids": token_ids, "segment_ids": segment_ids}

    def load(source):
        sizes = [
            math.prod(weight.shape) * tf.as_dtype(weight.dtype).size
            for weight in model(source).weights
        ]
        return {"weights_mb": sum(sizes) / 2**20}

    def encode(shape):
        return {"sample": _sample(run_model(model(), inputs(shape)))}

    def predict(shape):
        batch = inputs(shape)
        rows = len(batch["token_ids"])
        return {"sample": _sample(model().predict(batch, batch_size=rows, verbose=0))}

    def mix():
        tokenizer = model().text_tokenizer()
        texts = read_texts(options)
        return {"sample": _sample(embed(model(), tokenizer, texts, progress=False))}

    def count():
        tokenizer = model().text_tokenizer()
        rows = [
            tokenizer.encode(text, max_length=MAX_LENGTH)[0]
            for text in read_texts(options)
        ]
        windows = [rows[i : i + WINDOW] for i in range(0, len(rows), WINDOW)]
        return _counts(
            rows,
            [
                [window[number] for number in batch]
                for window in windows
                for batch in by_length([len(row) for row in window])
            ],
        )

    def latency():
        tokenizer = model().text_tokenizer()
        vector, figures = _timed_calls(
            options, lambda: embed(model(), tokenizer, _sentence())
        )
        return {**figures, "sample": _sample(vector)}

    def export(format, dtype):
        from roformer_keras.serving import export_model

        int8 = dtype == "int8"
        texts = _random_texts() if int8 and format == "openvino" else ()
        folder = exported(options, format, dtype)
        export_model(model(), folder, format, int8=int8, calibration_texts=texts)

    return {
        "load": load,
        "encode": encode,
        "predict": predict,
        "mix": mix,
        "count": count,
        "latency": latency,
        "export": export,
    }


def exported(options, format, dtype):
    """Where an export lies: one in float32 serves for bfloat16 too."""
    kind = "int8" if dtype == "int8" else "float32"
    return options.folder / f"{format}-{kind}"


def exported_side(options):
    """What `export_model` wrote, on the runtime of its format; ids in, no texts."""
    from roformer_keras.serving import load_exported

    format = options.worker

    @functools.cache
    def model(dtype):
        folder = exported(options, format, dtype)
        # What is left beside integers is rounded no more than they are.
        return load_exported(folder, format, bfloat16=dtype != "float32")

    def encode(shape, dtype):
        token_ids, segment_ids = _shaped(options, shape)
        outputs = model(dtype)({"token_ids": token_ids, "segment_ids": segment_ids})
        return {"sample": _sample(outputs["outputs"])}

    def latency(dtype):
        return _timed_calls(options, lambda: encode(f"1x{SENTENCE}", dtype))[1]

    return {"encode": encode, "latency": latency}


def command_side(options):
    """The command line, whose process it is that is measured."""

    def convert():
        with tempfile.TemporaryDirectory() as scratch:
            convert_to_preset(options.folder, Path(scratch) / "preset")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        return {"peak_mb": peak}

    return {"convert": convert}


def convert_to_preset(folder, target):
    command = [sys.executable, "-m", "roformer_keras", "convert", "--quiet"]
    subprocess.run(
        [*command, folder / SOURCES["zip"], target],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


# === Others ===


def bert4keras_side(options):
    from bert4keras.backend import keras
    from bert4keras.models import build_transformer_model
    from bert4keras.snippets import sequence_padding
    from bert4keras.tokenizers import Tokenizer

    inputs = functools.cache(lambda shape: list(_shaped(options, shape)))

    def build(folder):
        return build_transformer_model(
            str(folder / "bert_config.json"),
            str(folder / "bert_model.ckpt"),
            model="roformer",
        )

    @functools.cache
    def model():
        return build(options.folder)

    @functools.cache
    def pooling_model():
        first = keras.layers.Lambda(lambda x: x[:, 0])(model().output)
        return keras.models.Model(model().inputs, first)

    @functools.cache
    def tokenizer():
        return Tokenizer(str(options.folder / "vocab.txt"), do_lower_case=True)

    def load(source):
        if source == "folder":
            build(options.folder)
            return
        # It reads no zip: its users unpack it first.
        with tempfile.TemporaryDirectory() as scratch:
            with zipfile.ZipFile(options.folder / SOURCES[source]) as archive:
                archive.extractall(scratch)
            (folder,) = Path(scratch).iterdir()
            build(folder)

    def predict(shape):
        batch = inputs(shape)
        return {
            "sample": _sample(
                model().predict(batch, batch_size=len(batch[0]), verbose=0)
            )
        }

    def encoded(texts):
        return [tokenizer().encode(text, maxlen=MAX_LENGTH) for text in texts]

    def batches(items):
        return [items[i : i + THEIR_ROWS] for i in range(0, len(items), THEIR_ROWS)]

    def vectors_of(texts):
        batch = [sequence_padding(ids) for ids in zip(*encoded(texts), strict=True)]
        return pooling_model().predict(batch, batch_size=THEIR_ROWS, verbose=0)

    def unit(vectors):
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def mix():
        found = [vectors_of(texts) for texts in batches(read_texts(options))]
        return {"sample": _sample(unit(np.concatenate(found)))}

    def count():
        rows = [ids for ids, _ in encoded(read_texts(options))]
        return _counts(rows, batches(rows))

    def latency():
        vectors, figures = _timed_calls(options, lambda: vectors_of([_sentence()]))
        return {**figures, "sample": _sample(unit(vectors))}

    return {
        "load": load,
        "predict": predict,
        "mix": mix,
        "count": count,
        "latency": latency,
    }


def transformers_side(options):
    """Hugging Face's encoders of the same size, with random weights."""
    import torch
    import transformers

    torch.set_num_threads(thread_count())

    @functools.cache
    def model(name, dtype):
        config = getattr(transformers, f"{name}Config")(
            vocab_size=options.vocabulary,
            hidden_size=options.hidden,
            num_hidden_layers=options.layers,
            num_attention_heads=options.hidden // 64,
            intermediate_size=4 * options.hidden,
            max_position_embeddings=POSITIONS,
        )
        kwargs = {"add_pooling_layer": False} if name == "Bert" else {}
        made = getattr(transformers, f"{name}Model")(config, **kwargs)
        return made.eval().to(getattr(torch, dtype))

    @functools.cache
    def inputs(shape):
        token_ids, segment_ids = map(torch.from_numpy, _shaped(options, shape))
        return {
            "input_ids": token_ids.long(),
            "token_type_ids": segment_ids.long(),
            "attention_mask": (token_ids != 0).long(),
        }

    def encode(shape, name, dtype):
        with torch.inference_mode():
            model(name, dtype)(**inputs(shape))

    def latency(name, dtype):
        # Of ids: it has no tokenizer that gives the same.
        call = functools.partial(encode, f"1x{SENTENCE}", name, dtype)
        return _timed_calls(options, call)[1]

    return {"encode": encode, "latency": latency}


def keras_hub_side(options):
    """Keras-Hub's BERT of the same size, with random weights."""
    from keras_hub.models import BertBackbone

    @functools.cache
    def model(dtype):
        return BertBackbone(
            vocabulary_size=options.vocabulary,
            num_layers=options.layers,
            num_heads=options.hidden // 64,
            hidden_dim=options.hidden,
            intermediate_dim=4 * options.hidden,
            max_sequence_length=POSITIONS,
            dtype=dtype,
        )

    def predict(shape, dtype):
        token_ids, segment_ids = _shaped(options, shape)
        batch = {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "padding_mask": (token_ids != 0).astype("int32"),
        }
        model(dtype).predict(batch, batch_size=len(token_ids), verbose=0)

    return {"predict": predict}


def tensorflow_side(options):
    """A process that has TensorFlow and nothing else."""
    import tensorflow  # noqa: F401

    return {"load": lambda: None}


def limit_side(options):
    """Matrix products alone, by as many threads of TensorFlow as the models have."""

    @functools.cache
    def products(tokens, dtype):
        return matrix_products(options.layers, options.hidden, tokens, dtype)

    def encode(shape, dtype):
        batch, length = map(int, shape.split("x"))
        products(batch * length, dtype)()

    def latency(dtype):
        return _timed_calls(options, products(SENTENCE, dtype))[1]

    return {"encode": encode, "latency": latency}


# Sides that are formats of `export_model`.
EXPORTS = ("saved_model", "onnx", "openvino")
SIDES = {
    "tensorflow": tensorflow_side,
    "limit": limit_side,
    "float32": our_side,
    "bfloat16": our_side,
    "command": command_side,
    "bert4keras": bert4keras_side,
    "transformers": transformers_side,
    "keras_hub": keras_hub_side,
    **dict.fromkeys(EXPORTS, exported_side),
}
# Side -> modules without which it is left out.
NEEDS = {
    "transformers": ("torch", "transformers"),
    "keras_hub": ("keras_hub",),
    "onnx": ("onnx", "onnxruntime", "tf2onnx"),
    "openvino": ("onnx", "onnxruntime", "tf2onnx", "openvino"),
}


def missing(side):
    """Those of a side's modules that are not installed."""
    from importlib.util import find_spec

    return [name for name in NEEDS.get(side, ()) if find_spec(name) is None]
