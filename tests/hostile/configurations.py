"""Configurations and vocabularies: `bert_config.json`, `vocab.txt`, --config."""

import json
import os

from common import SMALL, write_files, zipped, zipped_json
from sources import SHARD

CONFIG = zipped_json(SMALL)
VOCABULARY = zipped(SMALL, "vocab.txt").decode().split("\n")[:-1]
INDEX, DATA = zipped(SMALL, "bert_model.ckpt.index"), zipped(SMALL, SHARD)


def checkpoint(config=None, vocabulary=None):
    """The small checkpoint as a folder `p`, with another file."""
    config = json.dumps(CONFIG) if config is None else config
    vocabulary = "\n".join(VOCABULARY) if vocabulary is None else vocabulary
    return {
        "p/bert_model.ckpt.index": INDEX,
        f"p/{SHARD}": DATA,
        "p/bert_config.json": config,
        "p/vocab.txt": vocabulary,
    }


def configured(**fields):
    return checkpoint(config=json.dumps({**CONFIG, **fields}))


def spelled(*tokens, at=None):
    """Another vocabulary: these tokens in place of those from an id on."""
    vocabulary = list(VOCABULARY)
    if at is not None:
        vocabulary[at : at + len(tokens)] = tokens
    return checkpoint(vocabulary="\n".join(vocabulary if at is not None else tokens))


EMBEDDING = "bert/embeddings/word_embeddings has shape (260,"
ACTIVATION = "must be the name of a Keras activation"
# Field of bert_config.json, value, exit code, message. What is wrong with a field alone
# is in tests/unit/test_config.py.
_FIELDS = [
    ("vocab_size", 0, 2, "vocabulary_size must be an integer of at least 1, got 0"),
    *(("vocab_size", value, 3, EMBEDDING) for value in (10**400, 2**31)),
    ("num_hidden_layers", 10**18, 3, "there are only 43 tensors"),
    ("num_attention_heads", 16, 2, "hidden_dim must be a multiple of num_heads"),
    ("num_attention_heads", 10**30, 2, "hidden_dim must be a multiple of num_heads"),
    ("hidden_size", 2, 2, "features per head must be even"),
    ("hidden_size", 10**12, 3, EMBEDDING),
    ("intermediate_size", 10**15, 3, "bert/encoder/layer_0/intermediate/dense/kernel"),
    ("hidden_act", None, 2, "hidden_act of bert_config.json must be the name"),
    *(
        ("hidden_act", value, 2, ACTIVATION)
        for value in ("", "GELU", "keras>gelu", "__class__", "glu", "x" * 10**6)
    ),
    *(
        ("hidden_act", value, 2, "activation must be")
        for value in (0, True, ["gelu"], {"class_name": "gelu"})
    ),
    ("embedding_size", 4, 3, "expected (260, 4)"),
    ("attention_key_size", 10**9, 3, "layer_0/attention/self/query/kernel"),
    ("type_vocab_size", 10**12, 3, "bert/embeddings/token_type_embeddings has shape"),
    ("layer_norm_epsilon", 1e300, 2, "layer_norm_epsilon must be a number in (0, 1],"),
    *(
        (name, value, 2, "must be True or False")
        for name in (
            "residual_attention_scores",
            "custom_position_ids",
            "shared_segment_embeddings",
        )
        for value in (0, "true", [True])
    ),
]
# The whole of a bert_config.json.
_CONFIGS = [
    (b"null", "must hold one JSON object, got NoneType"),
    (b'"bert"', "must hold one JSON object, got str"),
    (b"{}", "lacks vocab_size"),
    (b'{"vocab_size": 1, "vocab_size"}', "is not valid JSON"),
    (b"{'vocab_size': 1}", "is not valid JSON"),
    (b"[" * 100_000, "is not valid JSON"),
    (b'{"a": ' * 50_000 + b"1" + b"}" * 50_000, "is not valid JSON"),
    (b"\x00" * 1000, "is not valid JSON"),
    (b"\xff\xfe\xff", "is not valid JSON"),
    (b"\x1f\x8b\x08\x00", "is not valid JSON"),
    (b"<html>", "is not valid JSON"),
    (b'{"vocab_size": 1e999}', "1e999 is more than a float can be"),
    (b'{"vocab_size": -' + b"9" * 5000 + b"}", "is not valid JSON"),
]
LAST = VOCABULARY[-1]
NO_TEXT, NOT_FIRST = (
    "a vocabulary must be a UTF-8 text",
    "[PAD] must be the first token",
)
TWICE = "must hold a token once"


def counted(vocabulary, count):
    message = f"the vocabulary has {count} tokens but the embedding 260"
    return checkpoint(vocabulary=vocabulary), message


_VOCABULARIES = [
    (checkpoint(vocabulary=b""), "is empty"),
    counted(b"\n", 1),
    counted(b"\0", 1),
    counted(b"[PAD]\r" * 10, 10),
    counted("\n" * 10**5, 100_000),
    counted("x" * 10**6, 1),
    counted("\n".join([*VOCABULARY, "extra"]), 261),
    counted("\n".join(VOCABULARY[:-1]), 259),
    counted("\n".join(VOCABULARY[1:]), 259),
    (checkpoint(vocabulary=b"\xff\xfe[\x00"), NO_TEXT),
    (checkpoint(vocabulary="今天".encode("gbk")), NO_TEXT),
    (checkpoint(vocabulary=b"\xed\xa0\x80"), NO_TEXT),
    (checkpoint(vocabulary="\ufeff" * 2 + "\n".join(VOCABULARY)), NOT_FIRST),
    (checkpoint(vocabulary="\n".join(VOCABULARY[::-1])), NOT_FIRST),
    (spelled("", at=0), NOT_FIRST),
    (spelled("[pad]", at=0), NOT_FIRST),
    (spelled("[PAD] ", "[PAD]", at=0), f"{TWICE}, got '[PAD]'"),
    (spelled(LAST, at=200), TWICE),
    (spelled("\x00", "\x00", at=200), f"{TWICE}, got '\\x00'"),
    (spelled("", " ", at=200), f"{TWICE}, got ''"),
    (spelled("\u3000", "\u2003", at=200), f"{TWICE}, got ''"),
    *(
        (spelled("zz", at=VOCABULARY.index(token)), f"this one lacks {token}")
        for token in ("[UNK]", "[CLS]", "[SEP]")
    ),
]


def special(make):
    """The small checkpoint, of which one file is no regular one."""

    def write(folder):
        make(write_files(folder, checkpoint()) / "p")

    return write


def instead(name, target=None):
    """A pipe, or a link to a target, in the place of a file."""

    def make(folder):
        (folder / name).unlink()
        if target is None:
            os.mkfifo(folder / name)
        else:
            (folder / name).symlink_to(target)

    return special(make)


_SPECIAL = [
    (instead("bert_config.json"), 2, "must be a file"),
    (instead("vocab.txt"), 2, "must be a file"),
    (instead("bert_model.ckpt.index"), 2, "no checkpoint in p: it holds bert_config.j"),
    (instead(SHARD), 2, f"{SHARD} is missing"),
    (instead("bert_config.json", "/dev/zero"), 2, "must be a file"),
    (instead("vocab.txt", "/dev/zero"), 2, "must be a file"),
    (instead("vocab.txt", "vocab.txt"), 2, "cannot read p: Too many levels of symboli"),
    (instead("vocab.txt", "nowhere"), 2, "must be a file"),
    (instead("vocab.txt", "/"), 2, "must be a file"),
    (instead(SHARD, "/dev/zero"), 2, f"{SHARD} is missing"),
    (instead("bert_model.ckpt.index", SHARD), 3, "the index cannot be used"),
]
# Files that are given by flags: words, content of `x`, message.
_GIVEN = [
    ("--config x", {}, "config: there is no file x"),
    ("--config x", {"x/y": ""}, "config: there is no file x"),
    ("--config /dev/zero", {}, "config: there is no file /dev/zero"),
    ("--config x", {"x": os.mkfifo}, "config: there is no file x"),
    ("--config x", {"x": "[]"}, "x must hold one JSON object"),
    ("--config x", {"x": b"\x80"}, "x is not valid JSON"),
    ("--config ''", {}, "config: there is no file"),
    (f"--config {'x' * 300}", {}, "config: there is no file"),
    (f"--config {'x/' * 3000}", {}, "config: there is no file"),
    ("--vocabulary x", {"x/y": ""}, "vocabulary: there is no file x"),
    ("--vocabulary /dev/zero", {}, "vocabulary: there is no file /dev/zero"),
    ("--vocabulary x", {"x": os.mkfifo}, "vocabulary: there is no file x"),
    ("--vocabulary x", {"x": b"\x80"}, "a vocabulary must be a UTF-8 text"),
    ("--vocabulary x", {"x": b""}, "x is empty"),
    (f"--vocabulary {'x' * 300}", {}, "vocabulary: there is no file"),
]
CASES = [
    *(("convert p y", configured(**{k: v}), code, m) for k, v, code, m in _FIELDS),
    *(("inspect p", checkpoint(config=data), 2, m) for data, m in _CONFIGS),
    *(("convert p y", files, 2, message) for files, message in _VOCABULARIES),
    ("tokenize --source p 今", spelled("天气", at=200), 2, "does not show its level"),
    *(("convert p y", *row) for row in _SPECIAL),
    *((f"convert SMALL y {words}", files, 2, m) for words, files, m in _GIVEN),
]
