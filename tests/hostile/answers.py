"""Presets of fine-tuned tasks and of an encoder-decoder, and texts given to them.

`predict`, `evaluate`, `embed`, `generate` and `export` read them. The presets are
written once, by `presets()`, and each row changes a copy.
"""

import functools
import json
import tempfile
from pathlib import Path

import h5py
import numpy as np
from common import SMALL

from hostile.presets import place

NAN = float("nan")


@functools.cache
def presets():
    """Name of a preset -> its files: content by name."""
    import roformer_keras
    from roformer_keras import tasks

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, make in {
            "classes": lambda: tasks.RoFormerTextClassifier.from_preset(
                SMALL, classes=["坏", "好"]
            ),
            "tags": lambda: tasks.RoFormerTokenClassifier.from_preset(
                SMALL, labels=["地"], crf=True
            ),
            "seq2seq": lambda: _seq2seq(roformer_keras),
        }.items():
            path = Path(folder, name)
            make().save_to_preset(path)
            found[name] = {
                str(file.relative_to(path)): file.read_bytes()
                for file in path.rglob("*")
                if file.is_file()
            }
    return found


def _seq2seq(roformer_keras):
    from common import tiny_seq2seq

    return tiny_seq2seq(
        "天地玄黄宇宙洪荒", num_layers=1, hidden_dim=16, intermediate_dim=16
    )


def copy(name, change=lambda folder: None, **more):
    """A preset `p`, its checksums left out, after a change; and other files."""

    def write(folder):
        for file, data in presets()[name].items():
            path = folder / "p" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (folder / "p" / "metadata.json").write_text("{}")
        (folder / "x.txt").write_text("今天\n", encoding="utf-8")
        change(folder / "p")

    return write


def field(name, file, *keys, value):
    """A preset in which a field of a JSON file has another value."""

    def change(folder):
        content = json.loads((folder / file).read_text(encoding="utf-8"))
        place(content, keys, value)
        (folder / file).write_text(json.dumps(content))

    return copy(name, change)


def weights(name, file, edit):
    def change(folder):
        with h5py.File(folder / file, "a") as opened:
            edit(opened)

    return copy(name, change)


def dataset(name, value, **options):
    """An edit that puts another dataset in the place of one."""

    def edit(file):
        del file[name]
        if value is not None:
            file.create_dataset(name, data=value, **options)

    return edit


TASK = "task.json"
# Preset, key of task.json, value, exit code, message.
_OPTIONS = [
    ("classes", "num_classes", 3, 2, "classes must be 3 different names, got ['坏',"),
    ("classes", "num_classes", 1, 2, "num_classes must be an integer of at least 2,"),
    ("classes", "num_classes", 0, 2, "num_classes must be an integer of at least 2,"),
    ("classes", "num_classes", -1, 2, "num_classes must be an integer of at least 2,"),
    ("classes", "num_classes", "2", 2, "num_classes must be an integer of at least 2,"),
    ("classes", "num_classes", 2.0, 2, "num_classes must be an integer of at least 2,"),
    (
        "classes",
        "num_classes",
        True,
        2,
        "num_classes must be an integer of at least 2,",
    ),
    (
        "classes",
        "num_classes",
        10**9,
        3,
        "num_classes=1,000,000,000 in task.json does not",
    ),
    ("classes", "classes", 3, 2, "classes must be a list of names, got 3"),
    ("classes", "classes", "坏好", 2, "classes must be a list of names, got '坏好'"),
    ("classes", "classes", [], 2, "classes must be 2 different names, got []"),
    (
        "classes",
        "classes",
        ["好", "好"],
        2,
        "classes must be 2 different names, got ['好',",
    ),
    ("classes", "classes", ["好"], 2, "classes must be 2 different names, got ['好']"),
    (
        "classes",
        "classes",
        [None, None],
        2,
        "classes must be 2 different names, got ['None',",
    ),
    ("classes", "classes", {"a": 1}, 2, "classes must be 2 different names, got ['a']"),
    (
        "classes",
        "classes",
        ["a"] * 10**5,
        2,
        "classes must be 2 different names, got ['a',",
    ),
    ("classes", "multi_label", "no", 2, "multi_label must be True or False, got 'no'"),
    ("classes", "multi_label", 1, 2, "multi_label must be True or False, got 1"),
    ("classes", "multi_label", None, 2, "multi_label must be True or False, got None"),
    ("classes", "pooling", "max", 2, "pooling must be one of 'first', 'mean', got"),
    ("classes", "pooling", 3, 2, "pooling must be one of 'first', 'mean', got 3"),
    ("classes", "pooling", [], 2, "pooling must be one of 'first', 'mean', got []"),
    ("classes", "head_dropout", 2, 2, "head_dropout must be a number in [0, 1), got 2"),
    (
        "classes",
        "head_dropout",
        "x",
        2,
        "head_dropout must be a number in [0, 1), got 'x'",
    ),
    (
        "classes",
        "head_dropout",
        NAN,
        2,
        "head_dropout must be a number in [0, 1), got nan",
    ),
    ("classes", "max_length", 0, 2, "max_length must be an integer from 4 to"),
    ("classes", "max_length", 10**30, 2, "max_length must be an integer from 4 to"),
    ("classes", "max_length", "512", 2, "max_length must be an integer from 4 to"),
    ("classes", "max_length", None, 2, "max_length must be an integer from 4 to"),
    ("classes", "colour", "red", 2, "RoFormerTextClassifier has no option colour; it"),
    ("classes", "backbone2", {}, 2, "RoFormerTextClassifier has no option backbone2;"),
    ("classes", "inputs", [], 2, "RoFormerTextClassifier has no option inputs; it"),
    ("classes", "outputs", [], 2, "RoFormerTextClassifier has no option outputs;"),
    ("classes", "tokenizer", "x", 2, "RoFormerTextClassifier has no option tokenizer;"),
    ("classes", "vocabulary", "x", 2, "its vocabulary is not a list of tokens"),
    (
        "classes",
        "quantization",
        {"classes": {}},
        3,
        "quantization of classes must be a layer",
    ),
    ("tags", "labels", 3, 2, "labels must be a list of names, got 3"),
    ("tags", "labels", None, 2, "labels must be a list of names, got None"),
    ("tags", "labels", [], 2, "labels must be different names, got []"),
    ("tags", "labels", "地", 2, "labels must be a list of names, got '地'"),
    (
        "tags",
        "labels",
        ["地", "人"],
        3,
        "task/tags/kernel has shape (8, 3), expected (8,",
    ),
    (
        "tags",
        "labels",
        ["地", "地"],
        2,
        "labels must be different names, got ['地', '地']",
    ),
    ("tags", "crf", "no", 2, "crf must be True or False, got 'no'"),
    ("tags", "crf", False, 3, "unexpected task/crf/kernel (3, 3): if these are"),
    ("tags", "crf_rate", -1, 2, "crf_rate must be a finite number above 0, got -1"),
    ("tags", "crf_rate", "x", 2, "crf_rate must be a finite number above 0, got"),
    ("tags", "crf_rate", NAN, 2, "crf_rate must be a finite number above 0, got"),
]
_NAMES = [
    ("classes", "class_name", [], 2, "p holds no RoFormer model"),
    (
        "classes",
        "class_name",
        "RoFormerTextRegressor",
        2,
        "class_name and registered_name must be of one",
    ),
    (
        "classes",
        "class_name",
        "RoFormerTagger",
        2,
        "p holds a model of class 'RoFormerTagger',",
    ),
    (
        "classes",
        "registered_name",
        3,
        2,
        "class_name and registered_name must be of one",
    ),
    (
        "classes",
        "registered_name",
        "roformer_keras>RoFormerSpanExtractor",
        2,
        "class_name and registered_name must be of one",
    ),
    (
        "classes",
        "registered_name",
        "builtins>exec",
        2,
        "class_name and registered_name must be of one",
    ),
]
KERNEL, BIAS, HEAD = "classes/kernel", "classes/bias", "task.weights.h5"
_WEIGHTS = [
    ("classes", HEAD, dataset(KERNEL, None), 3, "missing task/classes/kernel (8, 2)"),
    (
        "classes",
        HEAD,
        dataset(KERNEL, np.zeros((8, 3), "f4")),
        3,
        "task/classes/kernel has shape (8, 3), expected",
    ),
    (
        "classes",
        HEAD,
        dataset(KERNEL, np.zeros((2, 8), "f4")),
        3,
        "task/classes/kernel has shape (2, 8), expected",
    ),
    (
        "classes",
        HEAD,
        dataset(KERNEL, np.zeros((8, 2), "i4")),
        3,
        "task/classes/kernel must be a float tensor to",
    ),
    (
        "classes",
        HEAD,
        dataset(KERNEL, np.full((8, 2), b"x")),
        3,
        "task/classes/kernel must be a float tensor to",
    ),
    (
        "classes",
        HEAD,
        dataset(KERNEL, np.full((8, 2), NAN, "f4")),
        3,
        "task/classes/kernel must hold finite numbers,",
    ),
    (
        "classes",
        HEAD,
        dataset(BIAS, np.float32(0)),
        3,
        "task/classes/bias has shape (), expected (2,)",
    ),
    (
        "classes",
        HEAD,
        dataset(BIAS, np.full(2, -np.inf, "f4")),
        3,
        "task/classes/bias must hold finite numbers, got",
    ),
    (
        "classes",
        HEAD,
        dataset(BIAS, np.full(2, 1e200)),
        3,
        "task/classes/bias must hold finite numbers, got",
    ),
    (
        "classes",
        HEAD,
        dataset(BIAS, h5py.Empty("f4")),
        3,
        "tensor 'classes/bias' must be a dataset that",
    ),
    (
        "classes",
        HEAD,
        lambda file: file.create_dataset("x", data=[1.0]),
        3,
        "unexpected task/x (1,): if these are your own",
    ),
    (
        "classes",
        HEAD,
        lambda file: file.create_dataset("y", (9,), "f4"),
        3,
        "tensor 'y' declares 36 bytes, and 0 are stored:",
    ),
    ("tags", HEAD, lambda file: file.pop("crf"), 3, "missing task/crf/kernel (3, 3)"),
]
_SEQ2SEQ = [
    ("num_layers", 2, 3, "missing encoder_layer_1/attention/query/kernel"),
    ("num_layers", 10**12, 3, "the configuration has 1,000,000,000,000 layers,"),
    ("num_layers", 0, 2, "num_layers must be an integer of at least 1,"),
    ("num_heads", 3, 2, "hidden_dim must be a multiple of num_heads,"),
    ("num_heads", 16, 2, "hidden_dim must be a multiple of num_heads,"),
    ("hidden_dim", 32, 3, "token_embedding/embeddings has shape (12, 16),"),
    ("hidden_dim", 10**12, 3, "token_embedding/embeddings has shape (12, 16),"),
    ("vocabulary_size", 10**10, 3, "token_embedding/embeddings has shape (12, 16),"),
    ("vocabulary_size", 5, 3, "token_embedding/embeddings has shape (12, 16),"),
    ("position_embedding", 3, 2, "position_embedding must be one of 'rotary',"),
    ("position_embedding", [], 2, "position_embedding must be one of 'rotary',"),
    ("norm_first", "yes", 2, "norm_first must be True or False, got 'yes'"),
    ("activation", "os.system", 2, "activation must be the name of a Keras"),
    ("activation", {}, 2, "activation must be a string, got {}"),
    ("layer_norm_epsilon", 0, 2, "layer_norm_epsilon must be a number in (0, 1],"),
    ("layer_norm_epsilon", NAN, 2, "layer_norm_epsilon must be a number in (0, 1],"),
    ("dropout", 1, 2, "dropout must be a number in [0, 1), got 1"),
    ("colour", "red", 2, "Seq2SeqConfig has no field colour; it has"),
]
# Lines, the preset that they need, and other files.
TEXTS = {
    "empty.txt": "",
    "blank.txt": "\n \n",
    "latin.txt": b"\xe9t\xe9\n",
    "utf16.txt": "今天".encode("utf-16"),
    "bad.jsonl": "[" * 10**5,
    "half.jsonl": '{"text": "\\ud83d"}\n',
    "numbers.jsonl": '{"text": 3}\n',
    "other.jsonl": '{"words": "今天"}\n',
    "pairs.tsv": "甲\t乙\t丙\t丁\n",
    "labels.tsv": "今天\t妙\n",
    "wrong.tsv": "今天\t\n",
    "good.tsv": "今天\t好\n",
}
_LINES = [
    ("predict p empty.txt", 2, "empty.txt has no row"),
    ("predict p blank.txt", 2, "line 2 of blank.txt: a text must be a str that"),
    ("predict p latin.txt", 2, "line 1 of latin.txt must be UTF-8: 'utf-8'"),
    ("predict p utf16.txt", 2, "line 1 of utf16.txt must be UTF-8: 'utf-8'"),
    ("predict p bad.jsonl", 2, "line 1 of bad.jsonl must be a JSON object:"),
    ("predict p half.jsonl", 2, "line 1 of half.jsonl must hold whole"),
    ("predict p numbers.jsonl", 2, "line 1 of numbers.jsonl: a text must be a str"),
    ("predict p other.jsonl", 2, "line 1 of other.jsonl must have 'text', got"),
    ("predict p nowhere.txt", 2, "cannot read nowhere.txt: No such file or"),
    ("predict p p", 2, "a file of labelled texts must be .csv, .tsv,"),
    ("predict p /dev/zero", 2, "a file of labelled texts must be .csv, .tsv,"),
    (
        "predict p good.tsv --fields 7",
        2,
        "line 1 of good.tsv must have 7 columns, got 2",
    ),
    (
        "predict p good.tsv --fields colour",
        2,
        "line 1 of good.tsv must name the columns",
    ),
    (
        "predict p good.tsv --fields 1,2,3",
        2,
        "line 1 of good.tsv must have 3 columns, got 2",
    ),
    ("predict p --text ''", 2, "a text must not be empty, got '' in row 0:"),
    ("predict p --text ' '", 2, "a text must not be empty, got ' ' in row 0:"),
    ("predict p --text 甲 乙 丙", 2, "a row must have 1 or 2 texts, got 3"),
    (
        "predict p --text 甲 --text 甲 乙 丙",
        2,
        "all rows must have as many texts as the first,",
    ),
    ("predict p -", 2, "standard input has no row"),
    ("evaluate p empty.txt", 2, "empty.txt has no row"),
    ("evaluate p blank.txt", 2, "line 2 of blank.txt must have 2 columns, got 1"),
    ("evaluate p utf16.txt", 2, "line 1 of utf16.txt must be UTF-8: 'utf-8'"),
    ("evaluate p bad.jsonl", 2, "line 1 of bad.jsonl must be a JSON object:"),
    ("evaluate p other.jsonl", 2, "line 1 of other.jsonl must have 'text',"),
    ("evaluate p labels.tsv", 2, "line 1 of labels.tsv: a label must be an"),
    ("evaluate p wrong.tsv", 2, "line 1 of wrong.tsv: a label must be a name, or"),
    ("evaluate p labels.tsv --on-bad-row skip", 2, "labels.tsv must have rows that"),
    (
        "evaluate p wrong.tsv --on-bad-row skip",
        2,
        "wrong.tsv has no row with a label; line 1: a",
    ),
    (
        "evaluate p good.tsv --fields 1",
        2,
        "fields must name 1 or 2 texts and a label, got 1",
    ),
    (
        "evaluate p good.tsv --fields 1,9",
        2,
        "line 1 of good.tsv must have 9 columns, got 2",
    ),
    (
        "evaluate p good.tsv --fields 1,2,3,4",
        2,
        "fields must name 1 or 2 texts and a label, got 1, 2, 3, 4",
    ),
    ("evaluate p good.tsv -o no/x", 4, "no is not a folder: make it first"),
    (
        "evaluate p good.tsv -o good.tsv",
        4,
        "good.tsv is a file: give the name of a folder",
    ),
    ("evaluate p good.tsv -o p", 4, "p exists: choose another name, or pass"),
    ("evaluate p /dev/zero --format tsv", 2, "line 1 of /dev/zero must be of at most"),
    ("evaluate p nowhere.tsv", 2, "cannot read nowhere.tsv: No such file or"),
    ("export p p", 4, "p exists: choose another name, or pass"),
    ("export p good.tsv", 4, "good.tsv is a file: give the name of a folder"),
    (
        "export p out --vocabulary good.tsv",
        2,
        "p is a model that holds its configuration and",
    ),
    (
        "export p out --config good.tsv",
        2,
        "good.tsv is not valid JSON: Expecting value:",
    ),
    ("embed latin.txt --source p", 2, "line 1 of latin.txt must be UTF-8: 'utf-8'"),
    (
        "embed empty.txt --source p",
        2,
        "line 1 of empty.txt must be a text, got no line",
    ),
    ("embed utf16.txt --source p", 2, "line 1 of utf16.txt must be UTF-8: 'utf-8'"),
    ("embed /dev/zero --source p", 2, "line 1 of /dev/zero must be of at most"),
    (
        "embed good.tsv --source p -o p.npy/x.npy",
        4,
        "p.npy is not a folder: make it first",
    ),
    ("generate good.tsv --source p --model RoFormerSim", 3, "no pooler head: missing"),
    (
        "generate empty.txt --source p",
        2,
        "line 1 of empty.txt must be a text, got no line",
    ),
    ("generate latin.txt --source p", 2, "line 1 of latin.txt must be UTF-8: 'utf-8'"),
    ("generate /dev/zero --source p", 2, "line 1 of /dev/zero must be of at most"),
]

# `export.json` of an exported generator, message.
_EXPORTS = [
    ("5", "p/export.json must hold one JSON object, got int"),
    ('{"generator": {}}', "p/export.json must have the field 'model' of type str"),
    ('{"generator": ', "p/export.json is not valid JSON"),
]


def with_texts(folder):
    copy("classes")(folder)
    for name, content in TEXTS.items():
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)


CASES = [
    *(
        ("predict p x.txt", field(name, TASK, "config", key, value=value), code, m)
        for name, key, value, code, m in _OPTIONS
    ),
    *(
        ("evaluate p x.txt", field(name, TASK, key, value=value), code, m)
        for name, key, value, code, m in _NAMES
    ),
    *(("predict p x.txt", weights(*row[:3]), *row[3:]) for row in _WEIGHTS),
    *(
        (
            "generate --text 天 --source p",
            field("seq2seq", "config.json", "config", key, value=value),
            code,
            message,
        )
        for key, value, code, message in _SEQ2SEQ
    ),
    *(
        (f"{verb} --text 天 --source p", {"p/export.json": text}, 2, message)
        for verb in ("generate", "paraphrase")
        for text, message in _EXPORTS
    ),
    *((line, with_texts, code, message) for line, code, message in _LINES),
]
