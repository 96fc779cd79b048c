"""Targets that read texts: configurations, settings, vocabularies, texts and tables."""

import functools
import gzip
import io
import itertools
import json
import lzma
import random
from pathlib import Path

from roformer_keras.config import RoFormerConfig, Seq2SeqConfig
from roformer_keras.data.corpus import CorpusSource, read_corpus
from roformer_keras.data.encoders import DocumentEncoder
from roformer_keras.data.files import read_table
from roformer_keras.errors import RoFormerError
from roformer_keras.io.blob import Blob
from roformer_keras.io.json_file import read_json
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.text.train_vocabulary import (
    build_subword_vocabulary,
    build_vocabulary,
)
from roformer_keras.training.finetuning_settings import FinetuningSettings
from roformer_keras.training.pretraining_settings import PretrainingSettings
from tools import ROOT
from tools.fuzz import seeds
from tools.fuzz.formats import mutate_files
from tools.fuzz.mutate import damage, mutate_text, mutate_text_bytes, random_text
from tools.fuzz.target import Files, Target, expect


def try_each(actions):
    """Does everything; each action may end with an error of this package."""
    errors = []
    for action in actions:
        try:
            action()
        except RoFormerError as error:
            errors.append(error)
    if errors:
        # Where the last one came from guides the fuzzing.
        raise errors[-1]


# === Configurations and settings ===


def _json_in(folder):
    return read_json(Blob.of_file(folder / "config.json"))


def _read_configs(folder: Path):
    config = RoFormerConfig.from_bert_config(_json_in(folder))
    expect(RoFormerConfig.from_dict(config.to_dict()) == config, "a copy is equal")
    again = RoFormerConfig.from_bert_config(config.to_bert_config())
    expect(str(again), "a bert_config can be written")


def _read_own_config(cls):
    def check(folder: Path):
        config = cls.from_dict(_json_in(folder))
        text = json.dumps(config.to_dict())
        expect(cls.from_dict(json.loads(text)) == config, "JSON keeps it", text)

    return check


def _read_settings(cls):
    def check(folder: Path):
        settings = cls.from_toml(folder / "x.toml")
        text = json.dumps(settings.to_dict())
        # As texts: NaN does not equal itself.
        again = json.dumps(cls.from_dict(json.loads(text)).to_dict())
        expect(again == text, "JSON keeps it", text)

    return check


def _own_configs(_):
    config = RoFormerConfig.from_bert_config(
        json.loads(seeds.small_members()["bert_config.json"])
    )
    special = config.replace(
        attention_type="rotary_performer", layer_norm_cond_size=4, rotary_base=500.0
    )
    return seeds.json_file("config.json", config.to_dict(), special.to_dict())


def _seq2seq_configs(_):
    config = Seq2SeqConfig(
        vocabulary_size=9, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8
    )
    return seeds.json_file("config.json", config.to_dict())


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
    found = [(folder / name).read_bytes() for name in seeds.VOCABULARIES]
    return [
        {"vocab.txt": data} for data in (*found, seeds.small_members()["vocab.txt"])
    ]


def _saved_tokenizers(_):
    content = {"class_name": "RoFormerTokenizer", "config": {"lower_case": True}}
    content["config"]["level"] = "character"
    name = "assets/tokenizer/vocabulary.txt"
    vocabulary = seeds.small_members()["vocab.txt"]
    return [{"tokenizer.json": json.dumps(content).encode(), name: vocabulary}]


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
        "ids are those of the tokens",
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


def mutate_text_file(draw: random.Random, files: Files) -> Files:
    text = files["text.txt"].decode("utf-8", "surrogatepass")
    new = random_text(draw) if draw.random() < 0.4 else mutate_text(draw, text)
    return {"text.txt": new[:20_000].encode("utf-8", "surrogatepass")}


def text_files(_):
    found = ("今天天气不错 unaffable, don't 3.14", "e\u0301 가각 [MASK] ﷺ \u200d👨", "")
    return [{"text.txt": text.encode()} for text in found]


# === Tables and corpora ===


def _mutate_table(draw: random.Random, files: Files) -> Files:
    """A changed table; a compressed one is changed inside, or after it was packed."""
    (name, data), *_ = files.items()
    pack = {".gz": gzip, ".xz": lzma}.get(name[-3:])
    if pack is None:
        data = mutate_text_bytes(draw, data)
        if draw.random() < 0.05:
            ending = draw.choice((".gz", ".xz"))
            module = gzip if ending == ".gz" else lzma
            return {name + ending: module.compress(data)}
        return {name: data}
    if draw.random() < 0.5:
        return {name: damage(draw, data)}
    try:
        return {name: pack.compress(mutate_text_bytes(draw, pack.decompress(data)))}
    except Exception:
        # It was damaged before.
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
    kinds = ("csv", "tsv", "txt", "jsonl", "bio")
    reads += [functools.partial(read_table, path, 1, format=kind) for kind in kinds]
    try_each(reads)


def _arrow_files(_):
    """A small table as Parquet, as an Arrow file and as a stream."""
    import pyarrow
    from pyarrow import ipc, parquet

    table = pyarrow.table(
        {"text": ["甲，乙", "丙 丁"], "label": ["好", "坏"], "tags": [["O"], None]}
    )
    whole = io.BytesIO()
    parquet.write_table(table, whole)
    found = [{"a.parquet": whole.getvalue()}]
    for new in (ipc.new_file, ipc.new_stream):
        stream = io.BytesIO()
        with new(stream, table.schema) as writer:
            writer.write_table(table)
        found.append({"a.arrow": stream.getvalue()})
    return found


def _read_arrow(folder: Path):
    (path,) = folder.iterdir()
    read_table(path, 1)


def _read_choices(folder: Path):
    """A file of C3 or CHID, with or without its answers."""
    path = folder / "x.json"
    reads = [
        functools.partial(
            read_table,
            *(path, 3, fields, labelled),
            format=format,
            groups=groups,
            has_choices=True,
            skipped=skipped,
        )
        for format in ("c3", "chid")
        for fields, labelled in (((), True), ((), False))
        for groups in ((), ("context",))
        for skipped in (None, [])
    ]
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


def _read_corpus_vocabulary(folder: Path):
    (path,) = folder.iterdir()
    records = list(read_corpus(CorpusSource(files=(str(path),)), "all"))
    tokens, fields = build_vocabulary(records)
    tokenizer = RoFormerTokenizer(tokens, lower_case=fields.get("lower_case", True))
    for record in records[:3]:
        for text in record:
            _check_text(tokenizer, text[:200])
    if sum(map(len, itertools.chain(*records))) < 2000:
        tokens, _ = build_subword_vocabulary(records, max_size=200)
        RoFormerTokenizer(tokens)


def _read_examples(folder: Path):
    """Rows as every task reads their labels."""
    from roformer_keras import tasks
    from roformer_keras.training.finetuning_data import read_examples

    (path,) = folder.iterdir()

    def read(task, count, skips):
        task_class = getattr(tasks, task.class_name)
        examples = read_examples(str(path), task_class, {}, count, skips=skips)
        task_class.find_names(examples.labels, {})

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


_TOMLS = {
    "settings-pretrain": (PretrainingSettings, seeds.PRETRAINING),
    "settings-finetune": (FinetuningSettings, seeds.FINETUNING),
}
TARGETS = {
    "bert-config": Target(
        lambda _: [{"config.json": seeds.small_members()["bert_config.json"]}],
        mutate_files,
        _read_configs,
    ),
    "own-config": Target(
        _own_configs,
        mutate_files,
        _read_own_config(RoFormerConfig),
    ),
    "seq2seq-config": Target(
        _seq2seq_configs,
        mutate_files,
        _read_own_config(Seq2SeqConfig),
    ),
    **{
        name: Target(
            lambda _, text=text: seeds.texts({"x.toml": text}),
            mutate_files,
            _read_settings(cls),
        )
        for name, (cls, text) in _TOMLS.items()
    },
    "vocabulary": Target(_vocabularies, mutate_files, _read_vocabulary),
    "saved-tokenizer": Target(_saved_tokenizers, mutate_files, _read_saved_tokenizer),
    "tokenizer": Target(text_files, mutate_text_file, _read_text),
    "tables": Target(_tables, _mutate_table, _read_tables),
    "choices": Target(
        lambda _: [
            {"x.json": seeds.C3.encode()},
            {name: text.encode() for name, text in seeds.CHID.items()},
        ],
        mutate_files,
        _read_choices,
    ),
    "arrow-files": Target(_arrow_files, mutate_files, _read_arrow),
    "corpora": Target(_tables, _mutate_table, _read_corpora),
    "built-vocabulary": Target(_tables, _mutate_table, _read_corpus_vocabulary),
    "examples": Target(_labelled, _mutate_table, _read_examples, needs_keras=True),
}
