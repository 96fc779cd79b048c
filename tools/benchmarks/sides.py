"""Sides of several benchmarks; most jobs return a `sample` of their numbers.

Jobs take a shape such as `"32x128"`: rows and tokens.
"""

import functools
import importlib.util
import math
import os
import random
import statistics
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

from tools.benchmarks.harness import Side, make_batch, make_inputs, matrix_products
from tools.reference.bert4keras import build_model, make_tokenizer
from tools.reference.training import hash_ids

# Rows of a batch of bert4keras; tokens of the longest text, and of the single sentence.
THEIR_ROWS, MAX_LENGTH, SENTENCE = 32, 512, 16
SHORT = f"1x{SENTENCE}"
# Of the position tables of BERT; the longest row.
POSITIONS = 4096
TOP_P = 0.95
LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM = 2e-5, 0.01, 1.0


def sizes_of(shape):
    return map(int, shape.split("x"))


def sample(outputs):
    """Some numbers of the first and the last vector of `(..., hidden)`."""
    vectors = np.asarray(outputs).astype("float32")
    vectors = vectors.reshape(-1, vectors.shape[-1])
    return {"sample": vectors[[0, -1], :8].ravel().tolist()}


def sentence():
    return "".join(chr(0x4E00 + 106 + number) for number in range(SENTENCE - 2))


def count_ids(rows):
    return {"ids": hash_ids(rows), "tokens": float(np.mean(list(map(len, rows))))}


class EncodeSide(Side):
    """A side that encodes; `folder` has the checkpoint and what was made of it."""

    def ids(self, shape):
        return make_batch(*sizes_of(shape), self.vocabulary)

    def inputs(self, shape):
        return make_inputs(*sizes_of(shape), self.vocabulary)

    def time_calls(self, call, calls=None):
        """A sample of the outputs of a call; the median and a percentile of seconds."""
        seconds = []
        for _ in range(calls or self.calls):
            start = time.perf_counter()
            output = call()
            seconds.append(time.perf_counter() - start)
        return {
            **(sample(output) if isinstance(output, np.ndarray) else {}),
            "seconds": statistics.median(seconds),
            "95th percentile": float(np.percentile(seconds, 95)),
        }

    def time_ids(self, call, shape):
        """As `time_calls`; one call of a long batch."""
        return self.time_calls(call, None if shape == SHORT else 1)

    def latency(self, *arguments):
        """Of the ids of a sentence, for sides without a tokenizer."""
        return self.time_calls(functools.partial(self.encode, SHORT, *arguments))

    def read_texts(self):
        return (self.folder / "texts.txt").read_text(encoding="utf-8").split("\n")


class RoFormer(EncodeSide):
    """roformer_keras, in the type that is the side's name."""

    def model(self, source="."):
        from roformer_keras import RoFormerBackbone

        return RoFormerBackbone.from_preset(self.folder / source, dtype=self.name)

    def import_all(self):
        from roformer_keras import RoFormerBackbone  # noqa: F401

    def load(self, source):
        return {"weights_mb": 4 * self.model(source).count_params() / 2**20}

    def encode(self, shape, engine="auto"):
        from roformer_keras.inference.compiled_forward import run_model

        inputs = self.keep(self.inputs, shape)
        return sample(run_model(self.keep(self.model), inputs, engine))

    def call_ids(self, shape, way):
        """Computes ids as users of Keras do: by `predict`, or by calling the model."""
        from keras import ops

        model, inputs = self.keep(self.model), self.keep(self.inputs, shape)
        rows = len(inputs["token_ids"])
        ways = {
            "predict": lambda: model.predict(inputs, batch_size=rows, verbose=0),
            "predict_on_batch": lambda: model.predict_on_batch(inputs),
            "call": lambda: ops.convert_to_numpy(model(inputs)),
        }
        return self.time_ids(ways[way], shape)

    def embed(self, texts, engine=None):
        from roformer_keras.models.embedding import embed

        model = self.keep(self.model)
        return embed(model, model.text_tokenizer(), texts, verbose=0, engine=engine)

    def mix(self, engine=None):
        return sample(self.embed(self.read_texts(), engine))

    def count_tokens(self):
        encode = self.keep(self.model).text_tokenizer().encode
        texts = self.read_texts()
        return count_ids([encode(text, max_length=MAX_LENGTH)[0] for text in texts])

    def latency(self, engine=None):
        return self.time_calls(lambda: self.embed(sentence(), engine))

    def export(self, format, dtype):
        from roformer_keras.export import export_model

        int8, texts = dtype == "int8", ()
        if int8 and format == "openvino":
            draw = random.Random(0)
            texts = ["".join(draw.choices(sentence(), k=64)) for _ in range(32)]
        folder, model = self.folder / f"{format}-{dtype}", self.keep(self.model)
        export_model(model, folder, format, int8=int8, calibration_texts=texts)


class Exported(EncodeSide):
    """An export of `export_model` on the runtime of its format; ids in, no texts."""

    def model(self, dtype):
        from roformer_keras.export import load_exported

        stored = "int8" if dtype == "int8" else "float32"
        folder = self.folder / f"{self.name}-{stored}"
        # What remains next to integers is rounded no more than they are.
        is_bfloat16 = dtype != "float32"
        return load_exported(folder, self.name, bfloat16=is_bfloat16, trust=True)

    def encode(self, shape, dtype):
        outputs = self.keep(self.model, dtype)(self.keep(self.inputs, shape))
        return sample(outputs["outputs"])


class Bert4keras(EncodeSide):
    """The real bert4keras, in float32."""

    def pooling_model(self):
        from bert4keras.backend import keras

        model = self.keep(build_model, self.folder)
        first = keras.layers.Lambda(lambda x: x[:, 0])(model.output)
        return keras.models.Model(model.inputs, first)

    def import_all(self):
        from bert4keras.models import build_transformer_model  # noqa: F401

    def load(self, source):
        if source == ".":
            build_model(self.folder)
            return
        # It reads no zip: its users unpack it first.
        with tempfile.TemporaryDirectory() as scratch:
            with zipfile.ZipFile(self.folder / source) as archive:
                archive.extractall(scratch)
            (folder,) = Path(scratch).iterdir()
            build_model(folder)

    def predict(self, shape):
        batch = list(self.keep(self.ids, shape))
        model, rows = self.keep(build_model, self.folder), len(batch[0])
        return model.predict(batch, batch_size=rows, verbose=0)

    def encode(self, shape):
        return sample(self.predict(shape))

    def call_ids(self, shape):
        return self.time_ids(lambda: self.predict(shape), shape)

    def encode_texts(self, texts):
        encode = self.keep(make_tokenizer, self.folder).encode
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
        vectors = [self.vectors(texts[start : start + THEIR_ROWS]) for start in starts]
        return sample(np.concatenate(vectors))

    def count_tokens(self):
        return count_ids([ids for ids, _ in self.encode_texts(self.read_texts())])

    def latency(self):
        return self.time_calls(lambda: self.vectors([sentence()]))


class Transformers(EncodeSide):
    """Hugging Face's models of the same size, with random weights; on a GPU if any."""

    def model(self, name, dtype="float32", **fields):
        import torch
        import transformers

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        kind = "Bert" if name.startswith("Bert") else "RoFormer"
        config = getattr(transformers, f"{kind}Config")(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden // 64,
            intermediate_size=4 * self.hidden,
            **{"max_position_embeddings": POSITIONS, **fields},
        )
        keywords = {"add_pooling_layer": False} if name == "BertModel" else {}
        model = getattr(transformers, name)(config, **keywords).eval()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = model.to(device, getattr(torch, dtype))
        # Compiled where PyTorch can do so.
        return torch.compile(model) if device == "cuda" and not fields else model

    def torch_inputs(self, shape, device):
        import torch

        ids, segments = (torch.from_numpy(x).long().to(device) for x in self.ids(shape))
        mask = (ids != 0).long()
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}

    def encode(self, shape, kind, dtype):
        import torch

        model = self.keep(self.model, f"{kind}Model", dtype)
        inputs = self.keep(self.torch_inputs, shape, model.device)
        with torch.inference_mode():
            model(**inputs)[0][:, 0].float().cpu()

    def call_ids(self, shape, kind, dtype):
        return self.time_ids(lambda: self.encode(shape, kind, dtype), shape)

    def writer(self, dtype):
        return self.model("RoFormerForCausalLM", dtype, is_decoder=True)

    def generate(self, shape, dtype):
        """As many samples as a shape has rows, after one prompt of its tokens."""
        import torch

        rows, length = sizes_of(shape)
        model = self.keep(self.writer, dtype)
        inputs = self.keep(self.torch_inputs, f"1x{length}", model.device)
        ids = inputs["input_ids"].clamp(min=1)
        torch.manual_seed(0)
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_p=TOP_P,
            top_k=0,
            num_return_sequences=rows,
            max_new_tokens=self.new,
            min_new_tokens=self.new,
            pad_token_id=0,
        ).cpu()

    def classifier(self):
        import torch

        model = self.model("RoFormerForSequenceClassification", num_labels=2).train()
        optimizer = torch.optim.AdamW(
            model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY
        )
        return model, optimizer

    def step(self, shape, dtype):
        """Updates on one batch; in bfloat16 those of mixed precision."""
        import torch

        model, optimizer = self.keep(self.classifier)
        inputs = self.keep(self.torch_inputs, shape, model.device)
        labels = (torch.arange(len(inputs["input_ids"])) % 2).to(model.device)
        kind, is_mixed = model.device.type, dtype == "bfloat16"
        for _ in range(self.steps):
            with torch.autocast(kind, torch.bfloat16, enabled=is_mixed):
                loss = model(**inputs, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad()
            loss.item()


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

    def encode(self, shape, dtype):
        inputs = self.inputs(shape)
        inputs["padding_mask"] = (inputs["token_ids"] != 0).astype("int32")
        rows = len(inputs["token_ids"])
        self.keep(self.model, dtype).predict(inputs, batch_size=rows, verbose=0)


class TensorFlow(Side):
    """A process that imports TensorFlow and nothing else."""

    def load(self):
        import tensorflow  # noqa: F401


class Limit(EncodeSide):
    """Matrix products alone."""

    def products(self, tokens, dtype):
        return matrix_products(self.layers, self.hidden, tokens, dtype)

    def encode(self, shape, dtype):
        self.keep(self.products, math.prod(sizes_of(shape)), dtype)()

    def step(self, shape, dtype):
        # Forward, for the gradients of the inputs, and for those of the weights.
        for _ in range(3 * self.steps):
            self.encode(shape, dtype)


SIDES = {
    "tensorflow": TensorFlow,
    "limit": Limit,
    "float32": RoFormer,
    "bfloat16": RoFormer,
    "bert4keras": Bert4keras,
    "transformers": Transformers,
    "keras_hub": KerasHub,
    "saved_model": Exported,
    "onnx": Exported,
    "openvino": Exported,
}
# What sides need that may not be installed.
_ONNX = ("onnx", "onnxruntime")
_NEEDED = {
    "transformers": ("torch", "transformers"),
    "keras_hub": ("keras_hub",),
    "onnx": _ONNX,
    "openvino": ("openvino",),
}


def is_installed(side: str) -> bool:
    return all(importlib.util.find_spec(name) for name in _NEEDED.get(side, ()))


def installed(runs):
    """The runs whose sides are installed."""
    return {name: run for name, run in runs.items() if is_installed(run.side)}
