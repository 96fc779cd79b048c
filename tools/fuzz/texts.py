"""Targets that read texts: configurations, settings, vocabularies, texts and tables."""

import contextlib
import functools
import gzip
import itertools
import json
import lzma
import random
from pathlib import Path

from roformer_keras.base.config import RoFormerConfig
from roformer_keras.base.errors import RoFormerError
from roformer_keras.io.blob import Blob
from roformer_keras.io.json_file import read_json
from roformer_keras.tables.corpus import CorpusSource, read_corpus
from roformer_keras.tables.files import read_table
from roformer_keras.tasks.finetuning_settings import FinetuningSettings
from roformer_keras.text.encoders import DocumentEncoder
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.training.pretraining_settings import PretrainingSettings
from tools import ROOT
from tools.fuzz import seeds
from tools.fuzz.formats import Files, mutate_file
from tools.fuzz.mutate import damage, mutate_text, mutate_text_bytes, random_text
from tools.fuzz.target import Target, before_read, expect


def try_each(actions):
    """Does everything; each action may end with an error of this package."""
    errors = []
    for action in actions:
        for call in before_read:
            call()
        try:
            action()
        except RoFormerError as error:
            errors.append(error)
    if errors:
        # Where the last one came from guides the fuzzing.
        raise errors[-1]


# === Configurations and settings ===


def _round_trip(read):
    """Reads a value, writes it as JSON and reads it again: JSON keeps it."""

    def check(folder: Path):
        value = read(folder)
        text = json.dumps(value.to_dict())
        again = type(value).from_dict(json.loads(text))
        # As texts: NaN does not equal itself.
        expect(json.dumps(again.to_dict()) == text, "JSON keeps it", text)
        return value

    return check


def _json_in(folder):
    return read_json(Blob.of_file(folder / "config.json"))


def _read_bert_config(folder: Path):
    read = _round_trip(lambda x: RoFormerConfig.from_bert_config(_json_in(x)))
    again = RoFormerConfig.from_bert_config(read(folder).to_bert_config())
    expect(str(again), "a bert_config can be written")


def _configs(_):
    config = RoFormerConfig.from_bert_config(
        json.loads(seeds.small_members()["bert_config.json"])
    )
    special = config.replace(
        attention_type="rotary_performer", layer_norm_cond_size=4, rotary_base=500.0
    )
    return seeds.json_files("config.json", config.to_dict(), special.to_dict())


# === Vocabularies ===


def _read_vocabulary(folder: Path):
    tokenizer = RoFormerTokenizer(folder / "vocab.txt")
    tokens = tokenizer.vocabulary
    expect(len(set(tokens)) == len(tokens), "tokens differ")
    ids = tokenizer.encode("今天[MASK] unaffable 2019")[0]
    expect(max(ids) < len(tokens), "ids are in the vocabulary", ids)
    tokenizer.decode(range(len(tokens)))
    tokenizer.simplified()


def _read_saved_tokenizer(folder: Path):
    tokenizer = RoFormerTokenizer.from_preset(folder)
    _check_text(tokenizer, "今天 天气\u0301 [MASK]")


def _vocabularies(_):
    folder = ROOT / "tests" / "data" / "tokenizer"
    contents = [(folder / name).read_bytes() for name in seeds.VOCABULARIES]
    contents.append(seeds.small_members()["vocab.txt"])
    return [{"vocab.txt": content} for content in contents]


# === Texts ===


@functools.cache
def _tokenizers():
    folder = ROOT / "tests" / "data" / "tokenizer"
    return [
        RoFormerTokenizer(folder / name, lower_case=lower_case)
        for name in seeds.VOCABULARIES
        for lower_case in (True, False)
    ]


def _read_text(folder: Path):
    data = (folder / "text.txt").read_bytes()
    text = data.decode("utf-8", "surrogatepass")
    for tokenizer in _tokenizers():
        _check_text(tokenizer, text)


def _check_text(tokenizer, text):
    """Tokens, ids, spans, batches and cuts of a text agree with each other."""
    tokens, spans = tokenizer.tokenize(text), tokenizer.offsets(text)
    expect(len(tokens) == len(spans), "a span for each token", tokens, spans)
    inner = spans[1:-1]
    for token, (start, end) in zip(tokens[1:-1], inner, strict=True):
        expect(0 <= start < end <= len(text), "a span lies in the text", token, start)
    expect(inner == sorted(inner), "spans never decrease", text, spans)
    ids, segments = tokenizer.encode(text)
    expect(len(ids) == len(segments) == len(tokens), "an id for each token", tokens)
    expect(
        ids == [tokenizer.token_to_id(token) for token in tokens],
        "the ids of the tokens",
        text,
    )
    decoded = tokenizer.decode(ids)
    expect(isinstance(decoded, str), "decoded ids are a text", decoded)
    batch = tokenizer([text, "今"], return_offsets=True)
    row = batch["token_ids"][0].tolist()
    expect(row[: len(ids)] == ids and not any(row[len(ids) :]), "a batch agrees", text)
    for limit in (1, 2, 3, 7):
        cut, _ = tokenizer.encode(text, max_length=limit)
        expect(len(cut) <= max(limit, 1), "a cut text is short", limit, cut)
        pair, parts = tokenizer.encode(text, text[::-1], max_length=limit)
        expect(len(pair) == len(parts) <= max(limit, 2), "a cut pair", limit, pair)
    masked = tokenizer.tokenize(f"{text}[MASK]", keep_mask=True)
    expect(masked[-2] == "[MASK]", "a mask is kept", masked)
    expect(tokenizer.tokenize(text) == tokens, "tokens are the same again", text)


def _mutate_text_file(draw: random.Random, files: Files) -> Files:
    text = files["text.txt"].decode("utf-8", "surrogatepass")
    new = random_text(draw) if draw.random() < 0.4 else mutate_text(draw, text)
    return {"text.txt": new[:20_000].encode("utf-8", "surrogatepass")}


def _texts(_):
    texts = ("今天天气不错 unaffable, don't 3.14", "e\u0301 가각 [MASK] ﷺ \u200d👨", "")
    return [{"text.txt": text.encode()} for text in texts]


# === Answers of models ===

_SHORT = 200
_CRF = {"RoFormerTokenClassifier": {"labels": ["人", "地"], "crf": True}}
_PAIRS = ("RoFormerQuestionAnswerer", "RoFormerSentenceEncoder")


@functools.cache
def _models():
    """A task of each kind, and if its rows are pairs."""
    import keras

    import roformer_keras as package

    keras.utils.set_random_seed(0)
    return [
        (getattr(package, name).from_preset(seeds.SMALL, **options), name in _PAIRS)
        for name, options in {**seeds.TASKS, **_CRF}.items()
    ]


def _ask(folder: Path):
    text = (folder / "text.txt").read_bytes().decode("utf-8", "surrogatepass")
    text = text[:_SHORT]
    try_each(
        functools.partial(_ask_model, model, (text[::-1], text)[not is_pair :])
        for model, is_pair in _models()
    )


def _ask_model(model, row):
    (answer,) = model.files.to_json([row])
    # As a command writes it.
    json.dumps(answer, allow_nan=False)
    spans = answer.get("spans", [answer["answer"]] if answer.get("answer") else [])
    for span in spans:
        part = row[-1][span["start"] : span["end"]]
        expect(part and part == span["text"], "a span is of its text", row[-1], span)


# === Tables and corpora ===


_PACKED = {".gz": gzip, ".xz": lzma}


def _mutate_table(draw: random.Random, files: Files) -> Files:
    """A changed table; a compressed one is changed inside, or after it was packed."""
    (name, data), *_ = files.items()
    module = _PACKED.get(name[-3:])
    if module is None:
        data = mutate_file(draw, name, data)
        if draw.random() > 0.05:
            return {name: data}
        ending, module = draw.choice(list(_PACKED.items()))
        return {name + ending: module.compress(data)}
    if draw.random() < 0.5:
        # It may be damaged already.
        with contextlib.suppress(Exception):
            changed = mutate_text_bytes(draw, module.decompress(data))
            return {name: module.compress(changed)}
    return {name: damage(draw, data)}


_FIELDS = ((), ("text", "label"), ("1", "2"), ("2", "1"), ("first", "second", "label"))


def _read_tables(folder: Path):
    (path,) = folder.iterdir()
    reads = [
        functools.partial(read_table, path, count, fields, labelled, or_first)
        for count in (1, 2)
        for fields in _FIELDS
        for labelled, or_first in ((True, False), (False, True))
        if len(fields) in (0, count + labelled, count + 1)
    ]
    kinds = ("csv", "tsv", "txt", "xlsx", "json", "jsonl", "bio")
    reads += [functools.partial(read_table, path, 1, format=kind) for kind in kinds]
    ways = [{"header": name} for name in ("first", "none")]
    ways += [{"encoding": name} for name in ("auto", "gb18030", "utf-16")]
    ways += [{"has_tokens": True, "skipped": []}]
    reads += [functools.partial(read_table, path, 1, **way) for way in ways]
    try_each(reads)


def _read_corpora(folder: Path):
    (path,) = folder.iterdir()
    encoder = _encoder()

    def read(**options):
        source = CorpusSource(files=(str(path),), **options)
        for part in ("train", "held_out"):
            for record in itertools.islice(read_corpus(source, part), 50):
                encoder(record)

    group = {"holdout": 0.5, "group": "label"}
    names = ("csv", "tsv", "txt", "jsonl")
    choices = [
        {"holdout": 0.5},
        {**group, "fields": ("text",)},
        {**group, "group": "2"},
    ]
    choices += [{"holdout": 0.5, "format": name} for name in names]
    try_each(functools.partial(read, **one) for one in choices)


@functools.cache
def _encoder():
    return DocumentEncoder(_tokenizers()[0], 16)


def _read_examples(folder: Path):
    """Rows as every task reads their labels."""
    from roformer_keras import tasks
    from roformer_keras.tasks.labelled_files import parse_examples, read_labelled

    (path,) = folder.iterdir()

    def read(task, count, skips):
        task_class = getattr(tasks, task.class_name)
        table = read_labelled(str(path), task, count, (), skips=skips)
        examples = parse_examples(str(path), table, task_class, {}, skips=skips)
        task_class.files_class.find_names(examples.labels, {})

    try_each(
        functools.partial(read, task, count, skips)
        for task in tasks.TASKS.values()
        for count in task.text_counts
        for skips in (False, True)
    )


def _tables(_):
    return seeds.texts(seeds.TABLES)


def _labelled(_):
    return seeds.texts(seeds.TABLES | seeds.LABELLED)


TARGETS = {
    "bert-config": Target(
        lambda _: [{"config.json": seeds.small_members()["bert_config.json"]}],
        _read_bert_config,
    ),
    "own-config": Target(
        _configs, _round_trip(lambda x: RoFormerConfig.from_dict(_json_in(x)))
    ),
    "settings-pretrain": Target(
        lambda _: seeds.pretrainings(),
        _round_trip(lambda x: PretrainingSettings.from_toml(x / "x.toml")),
    ),
    "settings-finetune": Target(
        lambda _: seeds.texts({"x.toml": seeds.FINETUNING}),
        _round_trip(lambda x: FinetuningSettings.from_toml(x / "x.toml")),
    ),
    "vocabulary": Target(_vocabularies, _read_vocabulary),
    "saved-tokenizer": Target(lambda _: [seeds.tokenizer()], _read_saved_tokenizer),
    "tokenizer": Target(_texts, _read_text, _mutate_text_file),
    "tables": Target(_tables, _read_tables, _mutate_table),
    "corpora": Target(_tables, _read_corpora, _mutate_table),
    "examples": Target(_labelled, _read_examples, _mutate_table, needs_keras=True),
    "answers": Target(_texts, _ask, _mutate_text_file, seconds=120, needs_keras=True),
}
