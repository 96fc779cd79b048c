"""Folders that others wrote, compared with the real tokenizers and Transformers.

They run in separate processes, by the interpreter that can import Transformers.
"""

import copy
import itertools
import json
import textwrap
import warnings

import numpy as np
import pytest
from common import output_of, read_json, transformers_python, write_file
from huggingface_folders import FOLDER
from sources import copied

import roformer_keras
from roformer_keras import RoFormerTokenizer, convert
from roformer_keras.base.errors import RoFormerError

PYTHON = transformers_python()
pytestmark = pytest.mark.skipif(PYTHON is None, reason="needs Transformers")

# === Tokenizers ===

TEXTS = [
    "今天天气不错，我们学习。",
    "Hello, World 2021! café ÉTÉ naïve",
    "北京 A b\tc\u200b\ud7ff d\u0301 ﬁ １２ <e1>北京</e1> 新词",
    "",
    "x" * 30 + ' 他说:"好" (a-b) 3.14 #tag @me',
]
# Changes of a tokenizer.json that BERT's tokenizer has: a path in it, and a value.
FILES = {
    "as it is": [],
    "lowercase": [("normalizer.lowercase", False)],
    "strip_accents": [("normalizer.strip_accents", False)],
    "strip_accents, said": [("normalizer.strip_accents", True)],
    "accents without case": [
        ("normalizer.lowercase", False),
        ("normalizer.strip_accents", True),
    ],
    "clean_text": [("normalizer.clean_text", False)],
    "handle_chinese_chars": [("normalizer.handle_chinese_chars", False)],
    "no normalizer": [("normalizer", None)],
    "a sequence of one": [
        ("normalizer", lambda one: {"type": "Sequence", "normalizers": [one]})
    ],
    "Replace": [
        (
            "normalizer",
            lambda one: {
                "type": "Sequence",
                "normalizers": [
                    {"type": "Replace", "pattern": {"String": "天"}, "content": "地"},
                    one,
                ],
            },
        )
    ],
    "Strip": [
        ("normalizer", {"type": "Strip", "strip_left": True, "strip_right": True})
    ],
    "StripAccents": [("normalizer", {"type": "StripAccents"})],
    "Lowercase": [("normalizer", {"type": "Lowercase"})],
    "NFKC": [
        (
            "normalizer",
            lambda one: {"type": "Sequence", "normalizers": [{"type": "NFKC"}, one]},
        )
    ],
    "no pre_tokenizer": [("pre_tokenizer", None)],
    "WhitespaceSplit": [("pre_tokenizer", {"type": "WhitespaceSplit"})],
    "Whitespace": [("pre_tokenizer", {"type": "Whitespace"})],
    "Split": [
        (
            "pre_tokenizer",
            lambda one: {
                "type": "Sequence",
                "pretokenizers": [
                    one,
                    {
                        "type": "Split",
                        "pattern": {"Regex": "\\d"},
                        "behavior": "Isolated",
                        "invert": False,
                    },
                ],
            },
        )
    ],
    "pre_tokenizer of one": [
        ("pre_tokenizer", lambda one: {"type": "Sequence", "pretokenizers": [one]})
    ],
    "no post_processor": [("post_processor", None)],
    "BertProcessing": [
        (
            "post_processor",
            {"type": "BertProcessing", "sep": ["[SEP]", 4], "cls": ["[CLS]", 3]},
        )
    ],
    "other ids": [
        (
            "post_processor",
            {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 4]},
        )
    ],
    "one segment": [("post_processor.pair.3.Sequence.type_id", 0)],
    "truncated on the left": [
        (
            "truncation",
            {
                "direction": "Left",
                "max_length": 8,
                "strategy": "LongestFirst",
                "stride": 0,
            },
        )
    ],
    "short words": [("model.max_input_chars_per_word", 3)],
    "other prefix": [("model.continuing_subword_prefix", "@@")],
    "WordLevel": [("model.type", "WordLevel")],
    **{
        f"added {name}": [
            (
                "added_tokens",
                lambda one, name=name, special=special: [
                    *one,
                    {
                        **one[0],
                        "id": 145 if name != "[unused1]" else 1,
                        "content": name,
                        "special": special,
                        "normalized": not special,
                    },
                ],
            )
        ]
        for name, special in (("<e1>", True), ("新词", False), ("[unused1]", True))
    },
}
# Fields of tokenizer_config.json, next to a vocab.txt alone.
SETTINGS = {
    "BertTokenizer": {},
    "cased": {"do_lower_case": False},
    "strip_accents": {"strip_accents": False},
    "strip_accents, said": {"strip_accents": True},
    "accents without case": {"do_lower_case": False, "strip_accents": True},
    "tokenize_chinese_chars": {"tokenize_chinese_chars": False},
    "cls_token": {"cls_token": "[MASK]"},
    "additional": {"additional_special_tokens": ["<e1>"]},
    "decoder": {
        "added_tokens_decoder": {"145": {"content": "新词", "special": False}},
    },
}
ENCODE = """
import json, sys, warnings
warnings.simplefilter("ignore")
import tokenizers, transformers
texts, *folders = json.loads(sys.argv[1])
ids = []
for folder in folders:
    if folder.endswith(".json"):
        tokenizer = tokenizers.Tokenizer.from_file(folder)
        tokenizer.no_truncation() if tokenizer.truncation is None else None
        encoded = [tokenizer.encode(*row) for row in texts]
        ids.append([[one.ids, one.type_ids] for one in encoded])
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        encoded = [tokenizer(*row) for row in texts]
        ids.append([[one["input_ids"], one["token_type_ids"]] for one in encoded])
print(json.dumps(ids))
"""
WRITE = """
import sys, transformers
transformers.BertTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])
print(1)
"""


def changed_at(content, path, value):
    """The content with another value at a path of keys and numbers."""
    *keys, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    inner = content
    for key in keys:
        inner = inner[key]
    inner[last] = value(inner[last]) if callable(value) else value
    return content


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of tokenizers by name; those with a tokenizer.json have its path."""
    root = tmp_path_factory.mktemp("tokenizers")
    output_of("-c", WRITE, FOLDER / "tagger", root / "bert", python=PYTHON)
    content = read_json(root / "bert" / "tokenizer.json")
    paths = {}
    for number, (name, changes) in enumerate(FILES.items()):
        (root / str(number)).mkdir()
        source = copied(FOLDER / "tagger", root / str(number))
        (source / "vocab.txt").unlink()
        changed = copy.deepcopy(content)
        for path, value in changes:
            changed_at(changed, path, value)
        write_file(source / "tokenizer.json", changed)
        paths[f"file: {name}"] = source / "tokenizer.json"
    for name, fields in SETTINGS.items():
        (root / name).mkdir()
        source = copied(FOLDER / "tagger", root / name)
        fields = {"tokenizer_class": "BertTokenizer", **fields}
        write_file(source / "tokenizer_config.json", fields)
        paths[f"settings: {name}"] = source
    return paths


# What is computed here; all others must be refused.
READ = {
    "file: as it is",
    "file: lowercase",
    "file: strip_accents, said",
    "file: a sequence of one",
    "file: pre_tokenizer of one",
    "file: BertProcessing",
    "settings: BertTokenizer",
    "settings: cased",
    "settings: strip_accents, said",
}


def test_ids_are_those_of_the_real_tokenizers_or_refused(folders):
    # Transformers takes an empty second text for none.
    pairs = itertools.pairwise(text for text in TEXTS if text)
    rows = [*([text] for text in TEXTS), *map(list, pairs)]
    read = {}
    for name, path in folders.items():
        folder = path.parent if path.suffix == ".json" else path
        try:
            read[name] = RoFormerTokenizer.from_preset(folder)
        except RoFormerError:
            assert name not in READ
    job = json.dumps([rows, *(str(folders[name]) for name in read)])
    output = output_of("-c", textwrap.dedent(ENCODE), job, python=PYTHON)
    for (name, tokenizer), encoded in zip(
        read.items(), json.loads(output), strict=True
    ):
        ours = [list(tokenizer.encode(*row)) for row in rows]
        assert encoded == ours, name
    assert set(read) == READ


# === Cross-encoders ===

PAIRS = [["今天天气", "不错"], ["我们学习" * 12, "北京上海" * 20], ["好", "A b 3"]]
CROSS = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch, transformers
from sentence_transformers import CrossEncoder
transformers.utils.logging.disable_progress_bar()
pairs, *names = json.loads(sys.argv[1])
logits = []
for name, source, options in names:
    torch.manual_seed(0)
    model = CrossEncoder(source, device="cpu", **options)
    values = model.predict(pairs, activation_fn=torch.nn.Identity())
    logits.append(values.reshape(len(pairs), -1).tolist())
    if name:
        model.save(name)
print(json.dumps(logits))
"""


def test_cross_encoders_are_read_and_written(tmp_path):
    """With the lengths and the token types of their tokenizers."""
    pytest.importorskip("sentence_transformers")
    encoder, classifier = str(FOLDER / "encoder"), str(FOLDER / "classifier")
    bert = copied(FOLDER / "classifier", tmp_path)
    fields = {"tokenizer_class": "BertTokenizer", "model_max_length": 24}
    write_file(bert / "tokenizer_config.json", fields)
    jobs = [
        (str(tmp_path / "one"), encoder, {"num_labels": 1}),
        (str(tmp_path / "short"), classifier, {"max_length": 20}),
        (str(tmp_path / "bert"), str(bert), {}),
    ]
    encoded = json.dumps([PAIRS, *jobs])
    expected = json.loads(output_of("-c", CROSS, encoded, python=PYTHON))
    back = []
    for (folder, *_), logits in zip(jobs, expected, strict=True):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*lack the Sigmoid")
            model = roformer_keras.load_model(folder)
            there = convert(folder, f"{folder}-x", format="huggingface", verbose=0)
        scores = model.predict([tuple(pair) for pair in PAIRS], verbose=0)
        assert np.abs(scores - logits).max() <= 1e-5, folder
        back.append((None, str(there), {}))
    again = output_of("-c", CROSS, json.dumps([PAIRS, *back]), python=PYTHON)
    for logits, values in zip(json.loads(again), expected, strict=True):
        assert np.abs(np.array(logits) - values).max() <= 1e-5
