"""Corpora: what a record is, and which records are held out."""

import gzip
import json
import lzma
import tracemalloc
from collections import Counter

import pytest
from common import to_json_lines, write_file, write_lines
from hostile.run import unrefused

from roformer_keras.base.errors import ConfigurationError, SourceError
from roformer_keras.tables.corpus import CorpusSource, read_corpus

LINES = [f"第{number}句。" for number in range(50)]


def source_of(*files, **options):
    return CorpusSource(files=tuple(map(str, files)), **options)


def whole(file, **options):
    return list(read_corpus(source_of(file, **options)))


# === Records ===


def test_kinds_of_files(tmp_path):
    """Of every extension with every packing; neither depends on the case."""
    for extension in (".txt", ".jsonl", ".tsv", ".csv", "", ".md"):
        lines = {
            ".jsonl": [json.dumps({"text": line, "more": 1}) for line in LINES],
            ".tsv": [f"{line}\t几" for line in LINES],
            ".csv": [f'"{line}",几' for line in LINES],
        }.get(extension, LINES)
        for packing in ("", ".gz", ".xz", ".GZ"):
            path = tmp_path / f"corpus{extension}{packing.lower()}"
            write_lines(path, lines)
            if packing.isupper():
                path = path.rename(tmp_path / f"corpus{extension.upper()}{packing}")
            assert whole(path) == [(line,) for line in LINES], path.name


def test_fields_of_json(tmp_path):
    record = {"lines": ["缀玉联珠六十年，", "谁教冥路作诗仙。"], "by": " 李忱 ", "n": 3}
    path = write_lines(tmp_path / "a.jsonl", ["", json.dumps(record), " "])
    assert whole(path, fields=("n", "lines", "by")) == [
        ("3", "缀玉联珠六十年，谁教冥路作诗仙。", "李忱")
    ]


def test_columns_of_tables(tmp_path):
    path = write_file(tmp_path / "a.tsv", " 古\t今 \t书\r\n\r\n\t\t空\n甲\t\t丙")
    assert whole(path, fields=("2", "1")) == [("今", "古"), ("", "甲")]
    assert whole(path) == [("古",), ("甲",)]
    # Or by the names in the first line.
    assert whole(path, fields=("书", "古")) == [("空", ""), ("丙", "甲")]


def test_lines_of_text(tmp_path):
    path = write_file(tmp_path / "a", "\ufeff一\t二 \r\n\n \u3000\n\x0b三\n四")
    assert whole(path) == [("一\t二",), ("三",), ("四",)]


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)]
)
def test_several_members_in_one_archive(tmp_path, suffix, pack):
    (tmp_path / f"a{suffix}").write_bytes(pack("一\n".encode()) + pack("二".encode()))
    assert whole(tmp_path / f"a{suffix}") == [("一",), ("二",)]


def test_patterns(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("b.txt", "a.txt", "c.md", "deep/er/d.txt", "[a].txt"):
        write_file(tmp_path / name, f"{name}\n")
    (tmp_path / "folder.txt").mkdir()

    def names(*patterns):
        source = source_of(*map(tmp_path.joinpath, patterns))
        return [text for (text,) in read_corpus(source)]

    assert names("*.txt") == ["[a].txt", "a.txt", "b.txt"]
    assert names("**/*.txt") == ["[a].txt", "a.txt", "b.txt", "deep/er/d.txt"]
    assert names("c.md", "?.txt", "a.txt") == ["c.md", "a.txt", "b.txt"]
    # What exists is no pattern.
    assert names("[a].txt") == ["[a].txt"]


def test_sources_come_in_the_order_of_their_files(tmp_path):
    write_lines(tmp_path / "b.txt", LINES[:25])
    write_lines(tmp_path / "a.jsonl", [f'{{"text": "{line}"}}' for line in LINES[25:]])
    sources = [source_of(tmp_path / "b.txt"), source_of(tmp_path / "a.jsonl")]
    assert list(read_corpus(sources)) == [(line,) for line in LINES]


# === Held out ===


def by_book(tmp_path, count=2000, **options):
    """A source of three sentences from each book, in two files."""
    rows = [f"第{n}句\t书{n % count}" for n in range(3 * count)]
    write_lines(tmp_path / "a.tsv", rows[: 2 * count])
    write_lines(tmp_path / "b.tsv", rows[2 * count :])
    options = {"fields": ("1", "2"), "group": "2", "holdout": 0.05, **options}
    return source_of(tmp_path / "*.tsv", **options)


def test_groups_are_held_out_whole(tmp_path):
    source = by_book(tmp_path)
    parts = {
        part: list(read_corpus(source, part)) for part in ("train", "held_out", "all")
    }
    books = {part: {book for _, book in rows} for part, rows in parts.items()}
    assert not books["train"] & books["held_out"]
    assert Counter(parts["train"] + parts["held_out"]) == Counter(parts["all"])
    assert len(parts["all"]) == 6000
    # Of 2,000 groups 100 are expected, with a standard deviation of 10.
    assert 70 <= len(books["held_out"]) <= 130


def test_what_is_held_out_depends_on_the_group_alone(tmp_path):
    """On nothing that changes between machines, versions, runs, files or seeds."""
    # Those below 0.05 * 2**64, by `printf 书57 | b2sum -l 64`.
    expected = {f"书{n}" for n in (10, 57, 61, 111, 130, 167, 176, 178, 187)}
    source = by_book(tmp_path, count=200)
    assert {book for _, book in read_corpus(source, "held_out")} == expected
    # A larger share takes more groups, and never gives one back.
    source = by_book(tmp_path, count=200, holdout=0.2)
    held_out_now = {book for _, book in read_corpus(source, "held_out")}
    assert expected < held_out_now


def test_groups_of_json(tmp_path):
    rows = [{"text": f"第{n}句", "title": [f"题{n % 50}"]} for n in range(200)]
    path = write_file(tmp_path / "a.jsonl", to_json_lines(rows))
    source = source_of(path, group="title", holdout=0.3)
    numbers = [
        {int(text[1:-1]) % 50 for (text,) in read_corpus(source, part)}
        for part in ("train", "held_out")
    ]
    assert not numbers[0] & numbers[1]
    assert 5 <= len(numbers[1]) <= 25
    assert len(numbers[0]) + len(numbers[1]) == 50


def test_without_a_group_texts_are_held_out(tmp_path):
    path = write_lines(tmp_path / "a.txt", [f"第{n % 1000}句" for n in range(3000)])
    source = source_of(path, holdout=0.1)
    train, held_out = (
        Counter(read_corpus(source, part)) for part in ("train", "held_out")
    )
    assert not train & held_out
    assert set((train | held_out).values()) == {3}
    assert 70 <= len(held_out) <= 130


def test_sources_that_hold_nothing_out_are_for_training(tmp_path):
    path = write_lines(tmp_path / "a.txt", ["只训练"] * 9)
    sources = [source_of(path), by_book(tmp_path, count=100, holdout=0.3)]
    held_out = list(read_corpus(sources, "held_out"))
    assert held_out
    assert ("只训练",) not in held_out
    assert ("只训练",) in list(read_corpus(sources))


# === Memory ===


@pytest.mark.parametrize("packing", ["", ".gz"])
def test_memory_does_not_grow_with_the_file(tmp_path, packing):
    """10 MB of lines of 1 kB."""
    path = tmp_path / f"a.txt{packing}"
    line = f"{'长' * 341}\n".encode()
    with (gzip.open if packing else open)(path, "wb") as file:
        for _ in range(10):
            file.write(line * 1000)
    records = read_corpus(source_of(path))
    next(records)
    tracemalloc.start()
    try:
        assert sum(1 for _ in records) == 9_999
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


# === Errors ===


BAD = [
    ("a.txt", b"\xe4\xb8\x80\n\xff\n", {}, "line 2 of .*a.txt must be UTF-8"),
    ("a.jsonl", '\n{"text": \n', {}, "line 2 of .* a JSON object: Expecting"),
    ("a.jsonl", '{"text": true}', {}, "line 1 of .* a list of strings.*, got True"),
    (
        "a.jsonl",
        '{"text": ""}',
        {"group": "by", "holdout": 0.1},
        "must have 'text', 'by'",
    ),
    ("a.tsv", "一\t二\n一\n", {"fields": ["2"]}, "line 2 .* 2 columns, got 1"),
    ("a.tsv", "一\t二\n", {"group": "3", "holdout": 0.1}, "line 1 .* 3 columns, got 2"),
    (
        "a.tsv",
        "一\t二\n",
        {"group": "book", "holdout": 0.1},
        "must have the column 'book', by which rows are grouped",
    ),
]


def test_bad_content(tmp_path):
    cases = []
    for number, (name, data, options, message) in enumerate(BAD):
        path = write_file(tmp_path / str(number) / name, data)
        cases.append(((source_of(path, **options),), message))
    wrong = unrefused(cases, lambda source: list(read_corpus(source)), SourceError)
    assert wrong == []


def test_absent_files(tmp_path):
    for name, message in (
        ("none.txt", "there is no file .*none.txt"),
        ("*.txt", r"must match a file, got .*\*.txt, which matches none"),
        ("", "is a folder: give a pattern such as .*txt"),
    ):
        with pytest.raises(SourceError, match=message):
            read_corpus(source_of(tmp_path / name))


def test_bad_sources():
    cases = [
        ({"files": "a.txt"}, "files must be a list of strings, got 'a.txt"),
        ({"files": ()}, "files must name a file, got none"),
        ({"fields": "text"}, "fields must be a list of strings"),
        ({"fields": (1.5,)}, "fields must be a list of strings, got (1.5,)"),
        ({"group": 0.5}, "group must be a string or None, got 0.5"),
        ({"group": ""}, "must be names that are not empty"),
        ({"holdout": 1}, "holdout must be a number in [0, 1), got 1"),
        *(({"holdout": x}, "holdout must be a number") for x in (-0.1, "5 %", True)),
    ]
    wrong = unrefused(
        [((fields,), message) for fields, message in cases],
        lambda fields: CorpusSource(**{"files": ("a.txt",), **fields}),
        ConfigurationError,
    )
    assert wrong == []


def test_bad_arguments(tmp_path):
    text = write_lines(tmp_path / "a.txt", LINES)
    for message, source, part in (
        ("a corpus needs a source", [], "all"),
        ("part must be one of 'train'.* got 'test'", source_of(text), "test"),
        ("needs a source with a holdout above 0", source_of(text), "held_out"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            read_corpus(source, part)
