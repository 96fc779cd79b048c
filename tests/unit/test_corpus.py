"""Corpora: what a record is, the order of records, and going on where one was left."""

import gzip
import itertools
import json
import lzma
import tracemalloc
from collections import Counter

import pytest

from roformer_keras.data.corpus import Corpus, CorpusSource
from roformer_keras.errors import ConfigurationError, SourceError

LINES = [f"第{number}句。" for number in range(50)]


def write(path, data):
    """A file, packed as its extension says; its path as a str."""
    data = data if isinstance(data, bytes) else data.encode()
    packed = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(packed(data))
    return str(path)


def write_lines(path, lines):
    return write(path, "".join(f"{line}\n" for line in lines))


def source_of(*files, **options):
    return CorpusSource(files=tuple(map(str, files)), **options)


def take(corpus, count):
    return list(itertools.islice(corpus, count))


def whole(file, **options):
    return list(Corpus(source_of(file, **options)).once())


# === Records ===


@pytest.mark.parametrize("packing", ["", ".gz", ".xz", ".GZ"])
@pytest.mark.parametrize("extension", [".txt", ".jsonl", ".tsv", "", ".md"])
def test_kinds_of_files(tmp_path, extension, packing):
    lines = {
        ".jsonl": [json.dumps({"text": line, "more": 1}) for line in LINES],
        ".tsv": [f"{line}\t几" for line in LINES],
    }.get(extension, LINES)
    path = tmp_path / f"corpus{extension}{packing.lower()}"
    write_lines(path, lines)
    if packing.isupper():
        path = path.rename(tmp_path / f"corpus{extension.upper()}{packing}")
    assert whole(path) == [(line,) for line in LINES]


def test_fields_of_json(tmp_path):
    record = {"lines": ["缀玉联珠六十年，", "谁教冥路作诗仙。"], "by": " 李忱 ", "n": 3}
    path = write_lines(tmp_path / "a.jsonl", ["", json.dumps(record), " "])
    assert whole(path, fields=("n", "lines", "by")) == [
        ("3", "缀玉联珠六十年，谁教冥路作诗仙。", "李忱")
    ]


def test_columns_of_tables(tmp_path):
    path = write(tmp_path / "a.tsv", " 古\t今 \t书\r\n\r\n\t\t空\n甲\t\t丙")
    assert whole(path, fields=("2", "1")) == [("今", "古"), ("", "甲")]
    assert whole(path) == [("古",), ("甲",)]


def test_lines_of_text(tmp_path):
    path = write(tmp_path / "a", "\ufeff一\t二 \r\n\n \u3000\n\x0b三\n四")
    assert whole(path) == [("一\t二",), ("三",), ("四",)]


def test_several_members_in_one_archive(tmp_path):
    for suffix, pack in ((".gz", gzip.compress), (".xz", lzma.compress)):
        path = tmp_path / f"a{suffix}"
        path.write_bytes(pack("一\n".encode()) + pack("二\n".encode()))
        assert whole(path) == [("一",), ("二",)]


def test_patterns(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("b.txt", "a.txt", "c.md", "deep/er/d.txt", "[a].txt"):
        write(tmp_path / name, f"{name}\n")
    (tmp_path / "folder.txt").mkdir()

    def names(*patterns):
        return [text for (text,) in whole_of(*(tmp_path / name for name in patterns))]

    def whole_of(*files):
        return Corpus(source_of(*files)).once()

    assert names("*.txt") == ["[a].txt", "a.txt", "b.txt"]
    assert names("**/*.txt") == ["[a].txt", "a.txt", "b.txt", "deep/er/d.txt"]
    assert names("c.md", "?.txt", "a.txt") == ["c.md", "a.txt", "b.txt"]
    # What exists is no pattern.
    assert names("[a].txt") == ["[a].txt"]


# === Order ===


@pytest.mark.parametrize("buffer_size", [1, 7, 25, 50, 1000])
def test_every_record_comes_once_an_epoch(tmp_path, buffer_size):
    write_lines(tmp_path / "a.txt", LINES[:40])
    write_lines(tmp_path / "b.txt.gz", LINES[40:])
    corpus = Corpus(source_of(tmp_path / "*"), buffer_size=buffer_size)
    assert corpus.epoch == 0
    epochs = []
    for epoch in range(4):
        records = []
        for _ in LINES:
            records.append(next(corpus))
            assert corpus.epoch == epoch
        assert sorted(records) == sorted((line,) for line in LINES)
        epochs.append(records)
    assert len(set(map(tuple, epochs))) == 4


def test_the_seed_decides(tmp_path):
    path = write_lines(tmp_path / "a.txt", LINES)
    first, again, other = (
        take(Corpus(source_of(path), seed=seed), 120) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_files_are_mixed_by_their_size(tmp_path):
    """Also beyond the buffer, and all of them end at about the same time."""
    write_lines(tmp_path / "big.txt", ["大"] * 9000)
    write_lines(tmp_path / "small.txt", ["小"] * 3000)
    corpus = Corpus(source_of(tmp_path / "*.txt"), buffer_size=10)
    for _ in range(10):
        count = Counter(text for (text,) in take(corpus, 1000))
        assert 150 <= count["小"] <= 350


def test_more_files_than_are_open_at_a_time(tmp_path):
    for number, line in enumerate(LINES):
        write_lines(tmp_path / f"{number:02}.txt", [line, line])
    corpus = Corpus(source_of(tmp_path / "*.txt"), buffer_size=1)
    first, second = take(corpus, 100), take(corpus, 100)
    assert first != second
    for epoch in (first, second):
        assert Counter(epoch) == {(line,): 2 for line in LINES}


def test_once_is_in_order_and_leaves_the_state(tmp_path):
    write_lines(tmp_path / "b.txt", LINES[:25])
    write_lines(tmp_path / "a.jsonl", [f'{{"text": "{line}"}}' for line in LINES[25:]])
    sources = [source_of(tmp_path / "b.txt"), source_of(tmp_path / "a.jsonl")]
    corpus = Corpus(sources, buffer_size=7)
    take(corpus, 30)
    state = corpus.state()
    records = corpus.once()
    assert take(records, 10) == [(line,) for line in LINES[:10]]
    assert corpus.state() == state
    following = take(corpus, 100)
    assert list(records) == [(line,) for line in LINES[10:]]
    again = Corpus(sources, buffer_size=7)
    assert take(again, 130)[30:] == following


# === State ===


@pytest.mark.parametrize("packing", ["", ".gz", ".xz"])
@pytest.mark.parametrize("buffer_size", [1, 9, 25, 200])
def test_goes_on_with_the_same_records(tmp_path, buffer_size, packing):
    for number in range(12):
        lines = LINES[4 * number : 4 * number + 4]
        write_lines(tmp_path / f"{number}.txt{packing}", [*lines, "", "长" * 99])

    def corpus():
        return Corpus(source_of(tmp_path / "*"), seed=3, buffer_size=buffer_size)

    first = corpus()
    records, states, epochs = [], [], []
    for _ in range(200):
        states.append(json.loads(json.dumps(first.state())))
        records.append(next(first))
        epochs.append(first.epoch)
    used = corpus()
    for index in [*range(0, 190, 7), 59, 60, 61]:
        for again in (corpus(), used):
            again.restore(states[index])
            assert again.state() == states[index]
            assert take(again, 10) == records[index : index + 10]
            assert again.epoch == epochs[index + 9]


def test_a_state_holds_no_text(tmp_path):
    path = write_lines(tmp_path / "a.txt", [f"{n}{'长' * 1000}" for n in range(300)])
    corpus = Corpus(source_of(path), buffer_size=100)
    take(corpus, 150)
    state = json.dumps(corpus.state(), ensure_ascii=False)
    assert len(state) < 500
    assert "长" not in state


def test_a_closed_corpus_goes_on_after_restore(tmp_path):
    path = write_lines(tmp_path / "a.txt", LINES)
    corpus = Corpus(source_of(path), buffer_size=5)
    take(corpus, 12)
    corpus.close()
    state = corpus.state()
    corpus.restore(state)
    assert take(corpus, 50) == take(Corpus(source_of(path), buffer_size=5), 62)[12:]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("seed", {"seed": 1}),
        ("buffer_size", {"buffer_size": 9}),
        ("part", {"part": "all"}),
        ("files", {"holdout": 0.5}),
        ("files", {"names": ["a.txt", "b.txt"]}),
        ("files", {"lines": LINES[1:]}),
    ],
)
def test_a_state_is_of_one_corpus(tmp_path, name, change):
    def corpus(names=("a.txt",), lines=LINES, holdout=0.0, **options):
        files = [write_lines(tmp_path / name, lines) for name in names]
        return Corpus(source_of(*files, holdout=holdout), **options)

    state = corpus().state()
    corpus().restore(state)
    with pytest.raises(ConfigurationError, match=f"its state has {name}="):
        corpus(**change).restore(state)


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
        part: list(Corpus(source, part=part).once())
        for part in ("train", "held_out", "all")
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
    held_out = Corpus(source, seed=5, part="held_out")
    assert {book for _, book in take(held_out, 3 * len(expected))} == expected
    # A larger share takes more groups, and never gives one back.
    source = by_book(tmp_path, count=200, holdout=0.2)
    more = {book for _, book in Corpus(source, part="held_out").once()}
    assert expected < more


def test_groups_of_json(tmp_path):
    rows = [{"text": f"第{n}句", "title": [f"题{n % 50}"]} for n in range(200)]
    path = write_lines(tmp_path / "a.jsonl", map(json.dumps, rows))
    source = source_of(path, group="title", holdout=0.3)
    numbers = [
        {int(text[1:-1]) % 50 for (text,) in Corpus(source, part=part).once()}
        for part in ("train", "held_out")
    ]
    assert not numbers[0] & numbers[1]
    assert 5 <= len(numbers[1]) <= 25
    assert len(numbers[0]) + len(numbers[1]) == 50


def test_without_a_group_texts_are_held_out(tmp_path):
    path = write_lines(tmp_path / "a.txt", [f"第{n % 1000}句" for n in range(3000)])
    source = source_of(path, holdout=0.1)
    train, held_out = (
        Counter(Corpus(source, part=part).once()) for part in ("train", "held_out")
    )
    assert not train & held_out
    assert set((train | held_out).values()) == {3}
    assert 70 <= len(held_out) <= 130


def test_sources_that_hold_nothing_out_are_for_training(tmp_path):
    path = write_lines(tmp_path / "a.txt", ["只训练"] * 9)
    sources = [source_of(path), by_book(tmp_path, count=100, holdout=0.3)]
    held_out = list(Corpus(sources, part="held_out").once())
    assert held_out
    assert ("只训练",) not in held_out
    assert ("只训练",) in list(Corpus(sources).once())


# === Memory ===


@pytest.mark.parametrize("packing", ["", ".gz"])
def test_memory_does_not_grow_with_the_file(tmp_path, packing):
    """50 MB of lines of 1 kB, of which a hundred are shuffled at a time."""
    path = tmp_path / f"a.txt{packing}"
    line = f"{'长' * 341}\n".encode()
    with (gzip.open if packing else open)(path, "wb") as file:
        for _ in range(50):
            file.write(line * 1000)
    corpus = Corpus(source_of(path), buffer_size=100)
    next(corpus)
    tracemalloc.start()
    try:
        for _ in range(50_000):
            next(corpus)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert corpus.epoch == 1
    assert peak < 1_500_000


# === Errors ===


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        ("a.txt", b"\xe4\xb8\x80\n\xff\n", {}, "must be UTF-8, line 2 of .*a.txt"),
        ("a.jsonl", "{}\n", {}, "must have the key 'text', got none: line 1 of"),
        ("a.jsonl", '{"a": 1}\n', {}, "must have the key 'text', got a: line 1"),
        ("a.jsonl", '\n{"text": \n', {}, "a JSON object, got Expecting.*: line 2"),
        ("a.jsonl", "[1]\n", {}, r"a JSON object, got \[1\]: line 1 of .*a.jsonl"),
        ("a.jsonl", '{"text": null}', {}, "a string, a list.*, got None: line 1"),
        ("a.jsonl", '{"text": true}', {}, "a string, a list.*, got True: line 1"),
        ("a.jsonl", '{"text": [1]}', {}, r"a string, a list.*, got \[1\]: line 1"),
        ("a.jsonl", '{"text": ""}', {"group": "by"}, "must have the key 'by'"),
        ("a.tsv", "一\t二\n一\n", {"fields": ["2"]}, "2 columns, got 1: line 2 of"),
        ("a.tsv", "一\t二\n", {"group": "3"}, "3 columns, got 2: line 1 of"),
        ("a.txt", "\n \n", {}, "must hold a record, got none in 1 files"),
        ("a.txt", "", {}, "must hold a record, got none in 1 files"),
    ],
)
def test_bad_content(tmp_path, name, data, options, message):
    corpus = Corpus(source_of(write(tmp_path / name, data), **options))
    with pytest.raises(SourceError, match=message):
        next(corpus)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_broken_archives(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    write_lines(path, LINES * 1000)
    good = path.read_bytes()
    middle = len(good) // 2
    flipped = bytearray(good)
    flipped[-12 if suffix == ".xz" else -6] ^= 255
    for bad in (good[:middle], bytes(flipped), b"no archive\n" * 9):
        path.write_bytes(bad)
        with pytest.raises(SourceError, match=f"cannot read .*a.txt{suffix} beyond"):
            for _ in Corpus(source_of(path)).once():
                pass


def test_absent_files(tmp_path):
    for name, message in (
        ("none.txt", "there is no file .*none.txt"),
        ("*.txt", r"must match a file, got .*\*.txt, which matches none"),
        ("", "is a folder; give a pattern such as .*txt"),
    ):
        with pytest.raises(SourceError, match=message):
            Corpus(source_of(tmp_path / name))


@pytest.mark.parametrize("kind", ["json", "csv", "zip", "tar", "bz2", "zst", "parquet"])
@pytest.mark.parametrize("packing", ["", ".gz", ".XZ"])
def test_kinds_that_are_no_text(kind, packing, tmp_path):
    path = tmp_path / f"a.{kind}{packing}"
    path.write_bytes(b"[1,\n2]\n")
    with pytest.raises(SourceError, match=rf"\.jsonl, \.tsv or plain text .*a\.{kind}"):
        Corpus(source_of(path))


def test_a_file_that_goes_away(tmp_path):
    path = tmp_path / "a.txt"
    write_lines(path, LINES)
    corpus = Corpus(source_of(path))
    path.unlink()
    with pytest.raises(SourceError, match=r"cannot read .*a.txt beyond line 0"):
        next(corpus)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"files": "a.txt"}, "files must be a list of strings, got 'a.txt"),
        ({"files": ()}, "files must name a file, got none"),
        ({"fields": "text"}, "fields must be a list of strings"),
        ({"fields": (1.5,)}, r"fields must be a list of strings, got \(1.5,\)"),
        ({"group": 0.5}, "group must be a string or None, got 0.5"),
        ({"group": ""}, "must be names that are not empty"),
        ({"holdout": 1}, r"holdout must be a number in \[0, 1\), got 1"),
        ({"holdout": -0.1}, "holdout must be a number"),
        ({"holdout": "5 %"}, "holdout must be a number"),
        ({"holdout": True}, "holdout must be a number"),
    ],
)
def test_bad_sources(fields, message):
    with pytest.raises(ConfigurationError, match=message):
        CorpusSource(**{"files": ("a.txt",), **fields})


def test_bad_arguments(tmp_path):
    text = write_lines(tmp_path / "a.txt", LINES)
    table = write_lines(tmp_path / "a.tsv", LINES)
    for message, sources, options in (
        ("a corpus needs a source", [], {}),
        ("seed must be an integer of at least 0, got -1", text, {"seed": -1}),
        ("buffer_size must be .* at least 1, got 0", text, {"buffer_size": 0}),
        ("part must be one of 'train'.* got 'test'", text, {"part": "test"}),
        ("needs a source with a holdout above 0", text, {"part": "held_out"}),
        ("plain text has neither", source_of(text, fields=("1",)), {}),
        ("plain text has neither", source_of(text, group="1"), {}),
        ("a number from '1', got '0' for", source_of(table, fields=("0",)), {}),
        ("a number from '1', got 'text' for", source_of(table, fields=("text",)), {}),
        ("a number from '1', got 'book' for", source_of(table, group="book"), {}),
    ):
        source = source_of(sources) if isinstance(sources, str) else sources
        with pytest.raises(ConfigurationError, match=message):
            Corpus(source, **options)
