"""The inputs that fuzzing starts from: files of the tests, and presets made once."""

import functools
import io
import json
import os
import tempfile
import zipfile
from pathlib import Path

from roformer_keras.conversion.convert import convert
from roformer_keras.io.sources import EXPORT
from tools import ROOT
from tools.fuzz.formats import Files
from tools.fuzz.worker import read_files

CHECKPOINTS = ROOT / "tests" / "checkpoints"
SAVED = CHECKPOINTS / "saved"
SMALL = CHECKPOINTS / "roformer-small_L-2_H-8_A-2.zip"
GPT = CHECKPOINTS / "chinese_roformer-gpt-char_L-2_H-32_A-4.zip"
SIM = CHECKPOINTS / "chinese_roformer-sim-char_L-2_H-32_A-4.zip"
VOCABULARIES = ("character_vocab.txt", "word_vocab.txt")
HDF5 = (
    "lm.h5",
    "encoder-model.h5",
    "encoder-nested-model.h5",
    "unilm-pool.h5",
    "unilm-pool.weights.h5",
    "unilm-pool-model.h5",
    "condition-hidden.h5",
)
# Class of a task -> options of a new head.
TASKS = {
    "RoFormerTextClassifier": {"classes": ["坏", "好"]},
    "RoFormerTokenClassifier": {"labels": ["人", "地"]},
    "RoFormerSpanExtractor": {"labels": ["人", "地"]},
    "RoFormerRelationExtractor": {"labels": ["在"]},
    "RoFormerQuestionAnswerer": {},
    "RoFormerSentenceEncoder": {},
    "RoFormerTextRegressor": {},
}


@functools.cache
def small_members() -> Files:
    """The files in the smallest zip, without its folder."""
    with zipfile.ZipFile(SMALL) as archive:
        return {n.split("/")[-1]: archive.read(n) for n in archive.namelist()}


def bundle() -> Files:
    """An unpacked checkpoint of bert4keras."""
    names = ("bert_config.json", "vocab.txt")
    members = small_members()
    return {n: d for n, d in members.items() if n in names or "ckpt." in n}


def object_checkpoint(name: str) -> Files:
    """A file of `save_weights` of tf.keras, with its configuration."""
    files = read_files(SAVED / name)
    return {**files, "bert_config.json": small_members()["bert_config.json"]}


def hdf5(name: str) -> Files:
    """HDF5 weights, or a whole model, with their configuration."""
    config = small_members()["bert_config.json"]
    return {"x.h5": (SAVED / name).read_bytes(), "bert_config.json": config}


def huggingface() -> list[Files]:
    """Folders of Transformers in each format, and one of sentence-transformers."""
    names = ("encoder", "masked-lm", "masked-lm-bin", "causal-lm", "tagger")
    source = ROOT / "tests" / "data" / "huggingface"
    folders = [read_files(source / name) for name in names]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "x")
        convert(SIM, target, format="sentence-transformers", verbose=0)
        return [*folders, read_files(target)]


def pickles() -> list[Files]:
    """Files of PyTorch, of both formats."""
    source = ROOT / "tests" / "data" / "huggingface"
    paths = [
        source / name / "pytorch_model.bin" for name in ("masked-lm-bin", "causal-lm")
    ]
    return [{"x.bin": path.read_bytes()} for path in paths]


def exports() -> list[Files]:
    """Folders of exports without their networks: generators and an encoder."""
    common = {"dim": 8, "format": "openvino", "int8": False}
    reading = {"vocabulary_size": 9, "attention": "unilm"}
    generator = {
        "networks": ["decoder", "vectors"],
        "reading": reading,
        "new_tokens": {"fixed": None, "longer": 64},
    }
    encoder = {
        "outputs": {"vectors": "float32 (batch, 8)"},
        "options": {"max_length": 32, "pooling": "mean"},
    }
    contents = (
        {"model": "RoFormerSim", **common, "generator": generator},
        {"model": "RoFormerSentenceEncoder", **common, **encoder, "format": "onnx"},
    )
    return [{**tokenizer(), EXPORT: json.dumps(x).encode()} for x in contents]


def tokenizer() -> Files:
    """A saved tokenizer."""
    config = {"lower_case": True, "level": "character"}
    content = {"class_name": "RoFormerTokenizer", "config": config}
    return {
        "tokenizer.json": json.dumps(content).encode(),
        "assets/tokenizer/vocabulary.txt": small_members()["vocab.txt"],
    }


def zips() -> list[Files]:
    """Zips of checkpoints: stored in a folder, and deflated without one."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in bundle().items():
            archive.writestr(name, data)
    return [{"x.zip": SMALL.read_bytes()}, {"x.zip": target.getvalue()}]


def converted(made: Path, suffix: str) -> list[Files]:
    """Converted checkpoints whose names end in this."""
    config = small_members()["bert_config.json"]
    return [
        {path.name.replace(path.name.split(".")[0], "x", 1): path.read_bytes()}
        | ({"bert_config.json": config} if suffix == ".weights.h5" else {})
        for path in sorted(made.glob(f"*{suffix}"))
    ]


def presets(made: Path, *names: str) -> list[Files]:
    """Preset folders by name; all of them by default."""
    folders = sorted(path for path in made.iterdir() if path.is_dir())
    return [read_files(p) for p in folders if not names or p.name in names]


class Maker:
    """Makes the presets, in a process with Keras."""

    def make(self, folder: str) -> None:
        """Writes a preset of each kind, and each format of a converted checkpoint."""
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        import roformer_keras as package

        target = Path(folder)
        for class_name in ("RoFormerBackbone", "RoFormerMaskedLM"):
            model = getattr(package, class_name).from_preset(SMALL)
            model.save_to_preset(target / class_name)
        for name, options in TASKS.items():
            task = getattr(package, name).from_preset(SMALL, **options)
            task.save_to_preset(target / name)
        for name in ("lm.keras", "lm.weights.h5", "lm.safetensors", "half.safetensors"):
            dtype = "float16" if name.startswith("half") else "float32"
            package.convert(SMALL, target / name, dtype=dtype, verbose=0)
        task.save(target / "task.keras")


# === Texts, tables, settings ===

TABLES = {
    "x.tsv": "text\tlabel\n今天天气好\t好\n坏\t坏\n",
    "x.csv": 'text,label\n"今天, ""好""",1\n"两\n行",0\n',
    "x.txt": "今天\t好\n天气\t坏\n",
    "x.jsonl": '{"text": "今天", "label": "好"}\n{"text": "我", "label": 0.5}\n',
    "x.bio": "今 B-T\n天 I-T\n\n我 O\n",
    "x.conll": "今0 B-T\n天1 E-T\n\n我0 S-P\n",
}
LABELLED = {
    "spans.jsonl": '{"text": "今天我", "label": [[0, 2, "人"]]}\n',
    "relations.jsonl": '{"text": "今天我", "label": [["今", "在", "我"]]}\n',
    "answers.jsonl": '{"first": "谁?", "second": "我在", "label": "我"}\n',
    "pairs.tsv": "first\tsecond\tlabel\n今\t天\t1\n我\t你\t0\n",
    "triplets.tsv": "first\tsecond\tthird\n今\t天\t我\n",
    "classes.tsv": "今\t好\n天\t坏|好\n",
    "choices.jsonl": '{"context": "我在", "question": "谁?", "choices": ["我", "你"], '
    '"label": 0}\n',
    "choices.csv": "context,question,choice1,choice2,label\n我在,谁?,我,你,我\n",
}
FINETUNING = """
task = "text-classification"
source = "x.zip"
train = "x.tsv"
valid = "y.tsv"
fields = ["text", "label"]
epochs = 2
batch_size = 8
lora_rank = 2
learning_rate = 1e-4
class_weights = "balanced"

[options]
classes = ["a", "b"]

[optimizer]
name = "adamw"
weight_decay = 0.1
"""


def pretrainings() -> list[Files]:
    """The configurations of the shipped checkpoints."""
    paths = sorted((ROOT / "checkpoints" / "training").glob("roformer-*.toml"))
    return [{"x.toml": path.read_bytes()} for path in paths]


def texts(content) -> list[Files]:
    """Each file of a dict of texts alone."""
    return [{name: text.encode()} for name, text in content.items()]


def json_files(name: str, *contents: object) -> list[Files]:
    """A JSON file of each of these contents."""
    return [{name: json.dumps(content).encode()} for content in contents]
