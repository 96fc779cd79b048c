"""Configurations and vocabularies: `bert_config.json`, `vocab.txt`, --config."""

import json
import os

from common import SMALL, zipped, zipped_json
from sources import SHARD

CONFIG = zipped_json(SMALL)
VOCABULARY = zipped(SMALL, "vocab.txt").decode().split("\n")[:-1]
INDEX, DATA = zipped(SMALL, "bert_model.ckpt.index"), zipped(SMALL, SHARD)
NAN, INFINITY = float("nan"), float("inf")


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
    found = list(VOCABULARY)
    if at is not None:
        found[at : at + len(tokens)] = tokens
    return checkpoint(vocabulary="\n".join(found if at is not None else tokens))


# Field of bert_config.json, value, exit code, message.
_FIELDS = [
    ("vocab_size", 0, 2, "vocabulary_size must be an integer of at least 1, got 0"),
    ("vocab_size", -260, 2, "vocabulary_size must be an integer of at least 1"),
    ("vocab_size", 260.0, 2, "vocabulary_size must be an integer of at least 1"),
    ("vocab_size", [260], 2, "vocabulary_size must be an integer of at least 1"),
    ("vocab_size", {"a": 1}, 2, "vocabulary_size must be an integer of at least 1"),
    ("vocab_size", True, 2, "vocabulary_size must be an integer of at least 1"),
    ("vocab_size", 10**400, 3, "bert/embeddings/word_embeddings has shape (260,"),
    ("vocab_size", 2**31, 3, "bert/embeddings/word_embeddings has shape (260,"),
    ("num_hidden_layers", 0, 2, "num_layers must be an integer of at least 1"),
    ("num_hidden_layers", "two", 2, "num_layers must be an integer of at least 1"),
    ("num_hidden_layers", [], 2, "num_layers must be an integer of at least 1"),
    ("num_hidden_layers", 2.5, 2, "num_layers must be an integer of at least 1"),
    ("num_hidden_layers", 10**18, 3, "there are only 43 tensors"),
    ("num_attention_heads", 0, 2, "num_heads must be an integer of at least 1"),
    ("num_attention_heads", 5, 2, "hidden_dim must be a multiple of num_heads"),
    ("num_attention_heads", 16, 2, "hidden_dim must be a multiple of num_heads"),
    ("num_attention_heads", 10**30, 2, "hidden_dim must be a multiple of num_heads"),
    ("num_attention_heads", NAN, 2, "num_heads must be an integer of at least 1"),
    ("hidden_size", 0, 2, "hidden_dim must be an integer of at least 1"),
    ("hidden_size", 7, 2, "hidden_dim must be a multiple of num_heads"),
    ("hidden_size", 2, 2, "features per head must be even"),
    ("hidden_size", INFINITY, 2, "hidden_dim must be an integer of at least 1"),
    ("hidden_size", "8", 2, "hidden_dim must be an integer of at least 1"),
    ("hidden_size", 10**12, 3, "bert/embeddings/word_embeddings has shape (260,"),
    ("intermediate_size", -1, 2, "intermediate_dim must be an integer of at least 1"),
    ("intermediate_size", 1e3, 2, "intermediate_dim must be an integer of at least 1"),
    ("intermediate_size", 10**15, 3, "bert/encoder/layer_0/intermediate/dense/kernel"),
    ("hidden_act", None, 2, "hidden_act of bert_config.json must be the name"),
    ("hidden_act", "", 2, "must be the name of a Keras activation"),
    ("hidden_act", "GELU", 2, "must be the name of a Keras activation"),
    ("hidden_act", "keras>gelu", 2, "must be the name of a Keras activation"),
    ("hidden_act", "__class__", 2, "must be the name of a Keras activation"),
    ("hidden_act", "glu", 2, "must be the name of a Keras activation"),
    ("hidden_act", "x" * 10**6, 2, "must be the name of a Keras activation"),
    ("hidden_act", 0, 2, "activation must be"),
    ("hidden_act", True, 2, "activation must be"),
    ("hidden_act", ["gelu"], 2, "activation must be"),
    ("hidden_act", {"class_name": "gelu"}, 2, "activation must be"),
    ("hidden_dropout_prob", -0.1, 2, "dropout must be a number in [0, 1)"),
    ("hidden_dropout_prob", "0.1", 2, "dropout must be a number in [0, 1)"),
    ("hidden_dropout_prob", INFINITY, 2, "dropout must be a number in [0, 1)"),
    ("hidden_dropout_prob", [], 2, "dropout must be a number in [0, 1)"),
    ("attention_probs_dropout_prob", True, 2, "attention_dropout must be a number"),
    ("attention_probs_dropout_prob", 10**400, 2, "attention_dropout must be a number"),
    ("embedding_size", 0, 2, "embedding_dim must be an integer of at least 1"),
    ("embedding_size", 4, 3, "expected (260, 4)"),
    ("attention_key_size", 3, 2, "features per head must be even"),
    (
        "attention_key_size",
        10**9,
        3,
        "bert/encoder/layer_0/attention/self/query/kernel",
    ),
    ("type_vocab_size", 0, 2, "num_segments must be an integer of at least 1"),
    ("type_vocab_size", 10**12, 3, "bert/embeddings/token_type_embeddings has shape"),
    ("initializer_range", 0, 2, "initializer_range must be a number in (0, 100]"),
    ("initializer_range", NAN, 2, "initializer_range must be a number in (0, 100]"),
    ("layer_norm_epsilon", -1, 2, "layer_norm_epsilon must be a number in (0, 1]"),
    ("layer_norm_epsilon", NAN, 2, "layer_norm_epsilon must be a number in (0, 1]"),
    ("layer_norm_epsilon", "1e-12", 2, "layer_norm_epsilon must be a number in"),
    ("layer_norm_epsilon", 1e300, 2, "layer_norm_epsilon must be a number in (0, 1],"),
    ("residual_attention_scores", 1, 2, "must be True or False, got 1"),
    ("residual_attention_scores", "true", 2, "must be True or False, got 'true'"),
    ("custom_position_ids", 0, 2, "must be True or False, got 0"),
    ("custom_position_ids", [True], 2, "must be True or False"),
    ("shared_segment_embeddings", "no", 2, "must be True or False"),
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
    (b'{"vocab_size": 1e999}', "lacks num_hidden_layers"),
    (b'{"vocab_size": -' + b"9" * 5000 + b"}", "is not valid JSON"),
]
LAST = VOCABULARY[-1]
_VOCABULARIES = [
    (checkpoint(vocabulary=b""), "is empty"),
    (checkpoint(vocabulary=b"\n"), "the vocabulary has 1 tokens but the embedding 260"),
    (
        checkpoint(vocabulary=b"\x00"),
        "the vocabulary has 1 tokens but the embedding 260",
    ),
    (checkpoint(vocabulary=b"\xff\xfe[\x00"), "a vocabulary must be a UTF-8 text"),
    (checkpoint(vocabulary="今天".encode("gbk")), "a vocabulary must be a UTF-8 text"),
    (checkpoint(vocabulary=b"\xed\xa0\x80"), "a vocabulary must be a UTF-8 text"),
    (
        checkpoint(vocabulary=b"[PAD]\r" * 10),
        "the vocabulary has 10 tokens but the embedding 260",
    ),
    (
        checkpoint(vocabulary="\n" * 10**5),
        "the vocabulary has 100000 tokens but the embedding",
    ),
    (
        checkpoint(vocabulary="x" * 10**6),
        "the vocabulary has 1 tokens but the embedding 260",
    ),
    (
        checkpoint(vocabulary="\ufeff" + "\n".join(VOCABULARY)),
        "[PAD] must be the first token of the vocabulary of",
    ),
    (
        checkpoint(vocabulary="\n".join([*VOCABULARY, "extra"])),
        "the vocabulary has 261 tokens but the embedding 260",
    ),
    (
        checkpoint(vocabulary="\n".join(VOCABULARY[:-1])),
        "the vocabulary has 259 tokens but the embedding 260",
    ),
    (
        checkpoint(vocabulary="\n".join(VOCABULARY[1:])),
        "the vocabulary has 259 tokens but the embedding 260",
    ),
    (
        checkpoint(vocabulary="\n".join(VOCABULARY[::-1])),
        "[PAD] must be the first token of the vocabulary of",
    ),
    (spelled("", at=0), "[PAD] must be the first token of the vocabulary of"),
    (spelled("[pad]", at=0), "[PAD] must be the first token"),
    (spelled("[PAD] ", "[PAD]", at=0), "must hold a token once, got '[PAD]'"),
    (spelled(LAST, at=200), "must hold a token once"),
    (spelled("\x00", "\x00", at=200), "must hold a token once, got '\\x00'"),
    (spelled("", " ", at=200), "must hold a token once, got ''"),
    (spelled("\u3000", "\u2003", at=200), "must hold a token once, got ''"),
    (spelled("zz", at=VOCABULARY.index("[UNK]")), "this one lacks [UNK]"),
    (spelled("zz", at=VOCABULARY.index("[CLS]")), "this one lacks [CLS]"),
    (spelled("zz", at=VOCABULARY.index("[SEP]")), "this one lacks [SEP]"),
]


def special(make):
    """The small checkpoint, of which one file is no regular one."""

    def write(folder):
        for name, content in checkpoint().items():
            (folder / name).parent.mkdir(exist_ok=True)
            data = content.encode() if isinstance(content, str) else content
            (folder / name).write_bytes(data)
        make(folder / "p")

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
    (
        instead("bert_model.ckpt.index"),
        2,
        "no checkpoint in p: it holds bert_config.json,",
    ),
    (instead(SHARD), 2, f"{SHARD} is missing"),
    (instead("bert_config.json", "/dev/zero"), 2, "must be a file"),
    (instead("vocab.txt", "/dev/zero"), 2, "must be a file"),
    (
        instead("vocab.txt", "vocab.txt"),
        2,
        "cannot read p: Too many levels of symbolic links",
    ),
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
