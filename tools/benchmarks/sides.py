"""The sides of `encode.py`: this package, bert4keras and others, and their limit.

Most jobs return `sample`, some numbers of what was computed, so that sides with the
same weights can be compared.
"""

import functools
import importlib.util
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

from tools.benchmarks.harness import Side, make_batch, matrix_products
from tools.reference.bert4keras import build_model, make_tokenizer
from tools.reference.training import hash_ids

# Rows of a batch of bert4keras, on texts in the order in which they came.
THEIR_ROWS = 32
MAX_LENGTH = 512
# Tokens of the single sentence, with [CLS] and [SEP].
SENTENCE = 16
# Of the position tables of BERT; the longest row.
POSITIONS = 4096
# Formats of `export_model`, which are sides.
EXPORTS = ("saved_model", "onnx", "openvino")


def sample(outputs):
    """Some numbers of the first and the last vector of `(..., hidden)`."""
    vectors = np.asarray(outputs).astype("float32")
    vectors = vectors.reshape(-1, vectors.shape[-1])
    return {"sample": vectors[[0, -1], :8].ravel().tolist()}


def sentence():
    return "".join(chr(0x4E00 + 106 + number) for number in range(SENTENCE - 2))


class EncodeSide(Side):
    """A side that encodes.

    Attributes:
        name: of the side.
        layers, hidden, vocabulary: sizes of the model.
        calls: sentences of a turn of latency.
        folder: with the checkpoint, `base.zip`, `preset` and the exports.
    """

    def batch(self, shape):
        """Token and segment ids of a shape such as `"32x128"`."""
        return make_batch(*map(int, shape.split("x")), self.vocabulary)

    def inputs(self, shape):
        token_ids, segment_ids = self.batch(shape)
        return {"token_ids": token_ids, "segment_ids": segment_ids}

    def time_calls(self, call):
        """What a call returned; median and 95th percentile of seconds of `calls`."""
        seconds = []
        for _ in range(self.calls):
            start = time.perf_counter()
            found = call()
            seconds.append(time.perf_counter() - start)
        percentile = float(np.percentile(seconds, 95))
        return found, {"seconds": statistics.median(seconds), "p95": percentile}

    def read_texts(self):
        return (self.folder / "texts.txt").read_text(encoding="utf-8").split("\n")


class RoFormer(EncodeSide):
    """roformer_keras, in the type that is the side's name."""

    def model(self, source="."):
        from roformer_keras import RoFormerBackbone

        return RoFormerBackbone.from_preset(self.folder / source, dtype=self.name)

    def load(self, source):
        return {"weights_mb": 4 * self.model(source).count_params() / 2**20}

    def encode(self, shape):
        from roformer_keras.models.forward import run_model

        return sample(run_model(self.keep(self.model), self.keep(self.inputs, shape)))

    def predict(self, shape):
        inputs = self.keep(self.inputs, shape)
        rows = len(inputs["token_ids"])
        outputs = self.keep(self.model).predict(inputs, batch_size=rows, verbose=0)
        return sample(outputs)

    def embed(self, texts):
        from roformer_keras.models.embedding import embed

        model = self.keep(self.model)
        return embed(model, model.text_tokenizer(), texts, verbose=0)

    def mix(self):
        return sample(self.embed(self.read_texts()))

    def count_tokens(self):
        encode = self.keep(self.model).text_tokenizer().encode
        return count_ids(
            [encode(text, max_length=MAX_LENGTH)[0] for text in self.read_texts()]
        )

    def latency(self):
        vector, figures = self.time_calls(lambda: self.embed(sentence()))
        return figures | sample(vector)

    def export(self, format, dtype):
        from roformer_keras.serving import export_model

        int8, texts = dtype == "int8", ()
        if int8 and format == "openvino":
            draw = random.Random(0)
            texts = ["".join(draw.choices(sentence(), k=64)) for _ in range(32)]
        folder = self.folder / f"{format}-{dtype}"
        model = self.keep(self.model)
        export_model(model, folder, format, int8=int8, calibration_texts=texts)


def count_ids(rows):
    return {"ids": hash_ids(rows), "tokens": float(np.mean(list(map(len, rows))))}


class Exported(EncodeSide):
    """What `export_model` wrote, on the runtime of its format; ids in, no texts."""

    def model(self, dtype):
        from roformer_keras.serving import load_exported

        stored = "int8" if dtype == "int8" else "float32"
        folder = self.folder / f"{self.name}-{stored}"
        # What remains next to integers is rounded no more than they are.
        return load_exported(folder, self.name, bfloat16=dtype != "float32")

    def encode(self, shape, dtype):
        outputs = self.keep(self.model, dtype)(self.keep(self.inputs, shape))
        return sample(outputs["outputs"])

    def latency(self, dtype):
        call = functools.partial(self.encode, f"1x{SENTENCE}", dtype)
        return self.time_calls(call)[1]


class Command(EncodeSide):
    """The command line, whose process is measured."""

    def convert(self):
        with tempfile.TemporaryDirectory() as scratch:
            convert_to_preset(self.folder / "base.zip", Path(scratch) / "preset")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        return {"peak_mb": peak}


def convert_to_preset(source, target):
    subprocess.run(
        [sys.executable, "-m", "roformer_keras", "convert", source, target, "--quiet"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


class Bert4keras(EncodeSide):
    """The real bert4keras, in float32."""

    def model(self):
        return build_model(self.folder)

    def pooling_model(self):
        from bert4keras.backend import keras

        model = self.keep(self.model)
        first = keras.layers.Lambda(lambda x: x[:, 0])(model.output)
        return keras.models.Model(model.inputs, first)

    def tokenizer(self):
        return make_tokenizer(self.folder)

    def load(self, source):
        if source == ".":
            self.model()
            return
        # It reads no zip: its users unpack it first.
        with tempfile.TemporaryDirectory() as scratch:
            with zipfile.ZipFile(self.folder / source) as archive:
                archive.extractall(scratch)
            (folder,) = Path(scratch).iterdir()
            build_model(folder)

    def predict(self, shape):
        batch = list(self.keep(self.batch, shape))
        outputs = self.keep(self.model).predict(
            batch, batch_size=len(batch[0]), verbose=0
        )
        return sample(outputs)

    def encode_texts(self, texts):
        encode = self.keep(self.tokenizer).encode
        return [encode(text, maxlen=MAX_LENGTH) for text in texts]

    def vectors(self, texts):
        from bert4keras.snippets import sequence_padding

        rows = self.encode_texts(texts)
        batch = [sequence_padding(ids) for ids in zip(*rows, strict=True)]
        vectors = self.keep(self.pooling_model).predict(batch, verbose=0)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def mix(self):
        texts = self.read_texts()
        starts = range(0, len(texts), THEIR_ROWS)
        found = [self.vectors(texts[start : start + THEIR_ROWS]) for start in starts]
        return sample(np.concatenate(found))

    def count_tokens(self):
        return count_ids([ids for ids, _ in self.encode_texts(self.read_texts())])

    def latency(self):
        vectors, figures = self.time_calls(lambda: self.vectors([sentence()]))
        return figures | sample(vectors)


class Transformers(EncodeSide):
    """Hugging Face's encoders of the same size, with random weights."""

    def model(self, name, dtype):
        import torch
        import transformers

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        name = {"BERT": "Bert"}.get(name, name)
        config = getattr(transformers, f"{name}Config")(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden // 64,
            intermediate_size=4 * self.hidden,
            max_position_embeddings=POSITIONS,
        )
        keywords = {"add_pooling_layer": False} if name == "Bert" else {}
        model = getattr(transformers, f"{name}Model")(config, **keywords)
        return model.eval().to(getattr(torch, dtype))

    def torch_inputs(self, shape):
        import torch

        token_ids, segment_ids = map(torch.from_numpy, self.batch(shape))
        return {
            "input_ids": token_ids.long(),
            "token_type_ids": segment_ids.long(),
            "attention_mask": (token_ids != 0).long(),
        }

    def encode(self, shape, name, dtype):
        import torch

        model = self.keep(self.model, name, dtype)
        with torch.inference_mode():
            model(**self.keep(self.torch_inputs, shape))

    def latency(self, name, dtype):
        # Of ids: it has no tokenizer that gives the same.
        call = functools.partial(self.encode, f"1x{SENTENCE}", name, dtype)
        return self.time_calls(call)[1]


class KerasHub(EncodeSide):
    """Keras-Hub's BERT of the same size, with random weights."""

    def model(self, dtype):
        from keras_hub.models import BertBackbone

        return BertBackbone(
            vocabulary_size=self.vocabulary,
            num_layers=self.layers,
            num_heads=self.hidden // 64,
            hidden_dim=self.hidden,
            intermediate_dim=4 * self.hidden,
            max_sequence_length=POSITIONS,
            dtype=dtype,
        )

    def predict(self, shape, dtype):
        inputs = self.inputs(shape)
        inputs["padding_mask"] = (inputs["token_ids"] != 0).astype("int32")
        rows = len(inputs["token_ids"])
        self.keep(self.model, dtype).predict(inputs, batch_size=rows, verbose=0)


class TensorFlow(EncodeSide):
    """A process that imports TensorFlow and nothing else."""

    def load(self):
        import tensorflow  # noqa: F401


class Limit(EncodeSide):
    """Matrix products alone."""

    def products(self, tokens, dtype):
        return matrix_products(self.layers, self.hidden, tokens, dtype)

    def encode(self, shape, dtype):
        tokens = math.prod(map(int, shape.split("x")))
        self.keep(self.products, tokens, dtype)()

    def latency(self, dtype):
        return self.time_calls(self.keep(self.products, SENTENCE, dtype))[1]


SIDES = {
    name: f"{__name__}:{cls.__name__}"
    for name, cls in {
        "tensorflow": TensorFlow,
        "limit": Limit,
        "float32": RoFormer,
        "bfloat16": RoFormer,
        "command": Command,
        "bert4keras": Bert4keras,
        "transformers": Transformers,
        "keras_hub": KerasHub,
        **dict.fromkeys(EXPORTS, Exported),
    }.items()
}


def missing_modules(side: str) -> list[str]:
    """The modules that a side needs and that are not installed."""
    onnx = ("onnx", "onnxruntime", "tf2onnx")
    needed = {
        "transformers": ("torch", "transformers"),
        "keras_hub": ("keras_hub",),
        "onnx": onnx,
        "openvino": (*onnx, "openvino"),
    }
    names = needed.get(side, ())
    return [name for name in names if importlib.util.find_spec(name) is None]
