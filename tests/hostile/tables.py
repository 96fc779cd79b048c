"""Texts and labels: the files of `finetune`, and texts of other commands."""

import gzip
import io
import json
import lzma
import os
import tarfile

BOM8, BOM16 = b"\xef\xbb\xbf", b"\xff\xfe"
GOOD = "甲\t好\n乙\t坏\n"
LONG = "天" * 10**6


def jsonl(*rows):
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def labelled(*labels):
    """A `.jsonl` of texts with these labels, as JSON spells them."""
    return "".join(f'{{"text": "甲乙丙丁", "label": {one}}}\n' for one in labels)


def archived():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("x.tsv"), io.BytesIO())
    return buffer.getvalue()


def link(target):
    return lambda path: path.symlink_to(target)


GZ, XZ = gzip.compress(GOOD.encode()), lzma.compress(GOOD.encode())
CLASS, REGRESS = "text-classification", "text-regression"
TAGS, SPANS = "token-classification", "span-extraction"
ANSWERS, EMBED, RANK = "question-answering", "sentence-embedding", "triplet-ranking"
# Task, name of the file, content, message.
_TRAIN = [
    # What is no file, or none of these.
    (CLASS, "x.tsv", os.mkfifo, "x.tsv must be a file, and is a pipe: read it from"),
    (CLASS, "x.tsv", os.mkdir, "cannot read x.tsv: Is a directory"),
    (CLASS, "x.tsv", link("x.tsv"), "Too many levels of symbolic links"),
    (CLASS, "x.tsv", link("nowhere"), "cannot read x.tsv: No such file"),
    (
        CLASS,
        "x.tsv",
        link("/dev/zero"),
        "line 1 of x.tsv must be of at most 67,108,864 bytes,",
    ),
    (CLASS, "x.tsv", link("/dev/null"), "x.tsv has no row"),
    (
        CLASS,
        "x.jsonl",
        link("/dev/zero"),
        "line 1 of x.jsonl must be of at most 67,108,864 bytes,",
    ),
    (
        CLASS,
        "x.csv",
        link("/dev/zero"),
        "line 1 of x.csv must be of at most 67,108,864 bytes,",
    ),
    (
        CLASS,
        "x.bio",
        link("/dev/zero"),
        "line 1 of x.bio must be of at most 67,108,864 bytes,",
    ),
    (
        CLASS,
        "x.tsv.gz",
        link("/dev/zero"),
        "cannot read x.tsv.gz: Not a gzipped file (b'\\x00\\x00')",
    ),
    (CLASS, "x.xlsx", b"PK\3\4", "a file of labelled texts must be .csv"),
    (CLASS, "x.parquet", b"PAR1", "cannot read x.parquet as Parquet: "),
    (CLASS, "x.arrow", b"ARROW1", "cannot read x.arrow as Arrow: "),
    (CLASS, "x", GOOD, "a file of labelled texts must be .csv"),
    (CLASS, "x.json", labelled('"好"'), "a file of labelled texts must be .csv"),
    # Nothing in it.
    (CLASS, "x.tsv", "", "x.tsv has no row"),
    (CLASS, "x.tsv", "\n\n\n", "x.tsv has no row"),
    (CLASS, "x.tsv", BOM8, "x.tsv has no row"),
    (CLASS, "x.csv", "", "x.csv has no row"),
    (CLASS, "x.csv", "text,label\n", "x.csv has no row"),
    (CLASS, "x.csv", ",\n,\n", "x.csv has no row"),
    (CLASS, "x.jsonl", "", "x.jsonl has no row"),
    (CLASS, "x.jsonl", " \n\t\n", "x.jsonl has no row"),
    (TAGS, "x.bio", "", "x.bio has no row"),
    (TAGS, "x.bio", f"科{'9' * 5000} 地\n", "line 1 of x.bio: a tag must be O, or"),
    (TAGS, "x.bio", "\n \n", "x.bio has no row"),
    # Bytes.
    (CLASS, "x.tsv", GOOD.encode("utf-16"), "line 1 of x.tsv must be UTF-8"),
    (CLASS, "x.tsv", GOOD.encode("utf-32"), "line 1 of x.tsv must be UTF-8"),
    (CLASS, "x.tsv", GOOD.encode("gb18030"), "line 1 of x.tsv must be UTF-8"),
    (CLASS, "x.csv", GOOD.encode("big5"), "line 1 of x.csv must be UTF-8"),
    (CLASS, "x.jsonl", b"\xed\xa0\x80", "line 1 of x.jsonl must be UTF-8"),
    (CLASS, "x.tsv", GOOD.encode() + b"\xc0\x80\t1\n", "line 3 of x.tsv must be UTF-8"),
    (CLASS, "x.tsv", b"\0" * 1000, "line 1 of x.tsv must have 2 columns"),
    (
        CLASS,
        "x.csv",
        b"\0,\0\n",
        "x.csv must have labels of at least 2 names, got ['\\x00']",
    ),
    (CLASS, "x.bio", b"\x80 O\n", "line 1 of x.bio must be UTF-8"),
    (
        CLASS,
        "x.tsv.gz",
        GZ[:-9],
        "cannot read x.tsv.gz: Compressed file ended before the",
    ),
    (
        CLASS,
        "x.tsv.gz",
        GZ[:11],
        "cannot read x.tsv.gz: Compressed file ended before the",
    ),
    (
        CLASS,
        "x.tsv.gz",
        GZ[:-8] + b"\0" * 8,
        "cannot read x.tsv.gz: CRC check failed 0x0 != 0xc9a9a713",
    ),
    (
        CLASS,
        "x.tsv.gz",
        GZ[:12] + b"\xff" + GZ[13:],
        "cannot read x.tsv.gz: CRC check failed 0xc9a9a713 !=",
    ),
    (
        CLASS,
        "x.tsv.gz",
        GOOD,
        "cannot read x.tsv.gz: Not a gzipped file (b'\\xe7\\x94')",
    ),
    (CLASS, "x.tsv.gz", b"", "x.tsv.gz has no row"),
    (
        CLASS,
        "x.tsv.gz",
        GZ + b"rubbish",
        "cannot read x.tsv.gz: Not a gzipped file (b'ru')",
    ),
    (CLASS, "x.tsv.gz", archived(), "line 1 of x.tsv.gz must have 2 columns, got 1"),
    (
        CLASS,
        "x.tsv.xz",
        XZ[:-9],
        "cannot read x.tsv.xz: Compressed file ended before the",
    ),
    (
        CLASS,
        "x.tsv.xz",
        XZ[:30],
        "cannot read x.tsv.xz: Compressed file ended before the",
    ),
    (CLASS, "x.tsv.xz", GZ, "cannot read x.tsv.xz: Input format not supported by"),
    (CLASS, "x.tsv.gz.gz", GZ, "a file of labelled texts must be .csv"),
    # Tables.
    (CLASS, "x.tsv", "甲\t好\n乙\n", "line 2 of x.tsv must have 2 columns, got 1"),
    (CLASS, "x.tsv", "甲\n", "line 1 of x.tsv must have 2 columns, got 1"),
    (CLASS, "x.tsv", "\t好\n", "line 1 of x.tsv: a text must be a str"),
    (CLASS, "x.tsv", " \t好\n", "line 1 of x.tsv: a text must be a str"),
    (CLASS, "x.tsv", "\u3000\u2003\t好\n", "line 1 of x.tsv: a text must be a str"),
    (CLASS, "x.tsv", "甲\t\n", "line 1 of x.tsv: a label must be a name"),
    (CLASS, "x.tsv", "甲\t \n", "line 1 of x.tsv: a label must be a name"),
    (CLASS, "x.tsv", "甲\t好\n", "must have labels of at least 2 names"),
    (CLASS, "x.tsv", "text\tlabel\n甲\t好\n", "must have labels of at least 2 names"),
    (CLASS, "x.tsv", "甲\t好\n" * 1000, "must have labels of at least 2 names"),
    (CLASS, "x.tsv", "句子\t标签\n" + GOOD, "line 1 of x.tsv seems to be a header"),
    (CLASS, "x.csv", '"甲,好\n', "line 1 of x.csv is no CSV: unexpected end of data"),
    (CLASS, "x.csv", '"甲"x,好\n', "line 1 of x.csv is no CSV: ',' expected after"),
    (CLASS, "x.csv", f"{LONG},好\n", "must have labels of at least 2 names"),
    (CLASS, "x.csv", "甲,好\n乙\n", "line 2 of x.csv must have 2 columns, got 1"),
    (CLASS, "x.csv", '"甲\n\n乙",好\n丙\n', "line 4 of x.csv must have 2 columns"),
    (
        CLASS,
        "x.csv",
        "甲\r乙,好\r",
        "line 1 of x.csv is no CSV: new-line character seen in",
    ),
    (CLASS, "x.csv", "甲;好\n乙;坏\n", "line 1 of x.csv must have 2 columns, got 1"),
    # JSON.
    (CLASS, "x.jsonl", "[" * 10**5, "line 1 of x.jsonl must be a JSON object: max"),
    (CLASS, "x.jsonl", '{"a":' * 10**5, "line 1 of x.jsonl must be a JSON object"),
    (CLASS, "x.jsonl", '{"text": ' + "9" * 5000 + "}", "Exceeds the limit"),
    (CLASS, "x.jsonl", "[]\n", "line 1 of x.jsonl must be a JSON object, got []"),
    (CLASS, "x.jsonl", "NaN\n", "line 1 of x.jsonl must be a JSON object, got nan"),
    (CLASS, "x.jsonl", "null\n", "line 1 of x.jsonl must be a JSON object, got None"),
    (CLASS, "x.jsonl", '{"text": "甲"}\n', "must have 'text', 'label', got 'text'"),
    (CLASS, "x.jsonl", "{}\n", "must have 'text', 'label', got none"),
    (CLASS, "x.jsonl", '{"text": "甲",\n"label": 1}\n', "must be a JSON object"),
    (CLASS, "x.jsonl", '{"text": null, "label": 1}\n', "a text must be a str"),
    (CLASS, "x.jsonl", '{"text": 3, "label": 1}\n', "a text must be a str"),
    (CLASS, "x.jsonl", '{"text": ["甲", 1], "label": 1}\n', "a text must be a str"),
    (CLASS, "x.jsonl", '{"text": {}, "label": 1}\n', "a text must be a str"),
    (CLASS, "x.jsonl", '{"text": true, "label": 1}\n', "a text must be a str"),
    (
        CLASS,
        "x.jsonl",
        '{"text": "\\ud800", "label": 1}\n',
        "line 1 of x.jsonl must hold whole characters, got half",
    ),
    (CLASS, "x.jsonl", '{"text": "甲", "text": "", "label": 1}\n', "a text must be a"),
    # Labels of classes.
    (CLASS, "x.jsonl", labelled("null"), "a label must be a name, or an integer"),
    (CLASS, "x.jsonl", labelled("NaN"), "a label must be a name, or an integer"),
    (CLASS, "x.jsonl", labelled("1.5"), "a label must be a name, or an integer"),
    (CLASS, "x.jsonl", labelled("true"), "a label must be a name, or an integer"),
    (CLASS, "x.jsonl", labelled("[]"), "a label must be a name, or an integer"),
    (CLASS, "x.jsonl", labelled('["好"]'), "a label must be a name, or an integer"),
    (CLASS, "x.jsonl", labelled("{}"), "a label must be a name, or an integer"),
    (CLASS, "x.jsonl", labelled('""'), "a label must be a name, or an integer"),
    (
        CLASS,
        "x.jsonl",
        labelled('"\\ud800"', '"a"'),
        "line 1 of x.jsonl must hold whole characters, got half",
    ),
    (CLASS + " --multi-label", "x.jsonl", labelled("3"), "must be a list of classes"),
    (CLASS + " --multi-label", "x.jsonl", labelled("[[]]"), "a label must be a name"),
    (CLASS + " --multi-label", "x.jsonl", labelled("[null]"), "a label must be a name"),
    (
        CLASS + " --multi-label",
        "x.jsonl",
        labelled("[]"),
        "x.jsonl must have labels of at least 1 names, got []",
    ),
    (
        CLASS + " --multi-label",
        "x.jsonl",
        labelled('["a", "a"]', "[1]"),
        "line 1 of x.jsonl: a list of classes must name each",
    ),
    # Numbers.
    (REGRESS, "x.tsv", "甲\tx\n", "a label must be a finite number, got 'x'"),
    (REGRESS, "x.tsv", "甲\tnan\n", "a label must be a finite number, got 'nan'"),
    (REGRESS, "x.tsv", "甲\tinf\n", "a label must be a finite number, got 'inf'"),
    (REGRESS, "x.tsv", "甲\t1e400\n", "a label must be a finite number"),
    (REGRESS, "x.tsv", "甲\t\n", "a label must be a finite number, got ''"),
    (REGRESS, "x.tsv", "甲\t1,5\n", "a label must be a finite number, got '1,5'"),
    (
        REGRESS,
        "x.tsv",
        "甲\t1e300\n",
        "line 1 of x.tsv: a label must be a finite number, got",
    ),
    (REGRESS, "x.jsonl", labelled("true"), "a label must be a finite number, got True"),
    (REGRESS, "x.jsonl", labelled("null"), "a label must be a finite number, got None"),
    (REGRESS, "x.jsonl", labelled("NaN"), "a label must be a finite number, got nan"),
    (REGRESS, "x.jsonl", labelled("Infinity"), "a label must be a finite number"),
    (
        REGRESS,
        "x.jsonl",
        labelled("1" + "0" * 400),
        "line 1 of x.jsonl: a label must be a finite number, got",
    ),
    (REGRESS, "x.jsonl", labelled("[1]"), "a label must be a finite number, got [1]"),
    (REGRESS, "x.jsonl", labelled('"one"'), "a label must be a finite number"),
    # Spans.
    (SPANS, "x.jsonl", labelled("3"), "a label must be a list of spans, got 3"),
    (SPANS, "x.jsonl", labelled("null"), "a label must be a list of spans, got None"),
    (SPANS, "x.jsonl", labelled('{"甲": 1}'), "spans in an object must be"),
    (
        SPANS,
        "x.jsonl",
        labelled("[3]"),
        "line 1 of x.jsonl: a span must be (start, end, label),",
    ),
    (
        SPANS,
        "x.jsonl",
        labelled("[[]]"),
        "line 1 of x.jsonl: a span must be (start, end, label),",
    ),
    (
        SPANS,
        "x.jsonl",
        labelled("[[0, 1]]"),
        "line 1 of x.jsonl: a span must be (start, end, label),",
    ),
    (
        SPANS,
        "x.jsonl",
        labelled('[[0, 1, "a", 2]]'),
        "line 1 of x.jsonl: a span must be (start, end, label),",
    ),
    (
        SPANS,
        "x.jsonl",
        labelled('[[0, 9, "a"]]'),
        "line 1 of x.jsonl: a span must lie in its text, from 0",
    ),
    (
        SPANS,
        "x.jsonl",
        labelled('[[-1, 1, "a"]]'),
        "line 1 of x.jsonl: a span must lie in its text, from 0",
    ),
    (
        SPANS,
        "x.jsonl",
        labelled('[[2, 2, "a"]]'),
        "line 1 of x.jsonl: a span must lie in its text, from 0",
    ),
    (
        SPANS,
        "x.jsonl",
        labelled('[[3, 1, "a"]]'),
        "line 1 of x.jsonl: a span must lie in its text, from 0",
    ),
    (
        SPANS,
        "x.jsonl",
        labelled('[[0.0, 1, "a"]]'),
        "line 1 of x.jsonl: a span must be (start, end, label),",
    ),
    (
        SPANS,
        "x.jsonl",
        labelled('[[true, 2, "a"]]'),
        "line 1 of x.jsonl: a span must be (start, end, label),",
    ),
    (
        SPANS,
        "x.jsonl",
        labelled('[["0", "1", "a"]]'),
        "line 1 of x.jsonl: a span must be (start, end, label),",
    ),
    (
        SPANS,
        "x.jsonl",
        labelled('[[0, 1, ""]]'),
        "line 1 of x.jsonl: a span must be (start, end, label),",
    ),
    (
        SPANS,
        "x.jsonl",
        labelled("[[0, 1, null]]"),
        "line 1 of x.jsonl: a span must be (start, end, label),",
    ),
    (
        SPANS,
        "x.jsonl",
        labelled('[[0, 1, ["a"]]]'),
        "line 1 of x.jsonl: a span must be (start, end, label),",
    ),
    (
        SPANS,
        "x.jsonl",
        labelled('[[0, 1e999, "a"]]'),
        "line 1 of x.jsonl: a span must be (start, end, label),",
    ),
    (
        SPANS,
        "x.jsonl",
        labelled(f'[[0, {10**30}, "a"]]'),
        "line 1 of x.jsonl: a span must lie in its text, from 0",
    ),
    (
        SPANS,
        "x.jsonl",
        labelled('[{"start": 0}]'),
        "line 1 of x.jsonl: a span must be (start, end, label),",
    ),
    (
        SPANS,
        "x.jsonl",
        labelled('[{"start": 0, "end": 1, "label": {}}]'),
        "line 1 of x.jsonl: a span must be (start, end, label),",
    ),
    (SPANS, "x.tsv", "甲\t[[0, 1, 'a']]\n", "spans in a cell must be a JSON list"),
    (
        SPANS,
        "x.tsv",
        "甲\t" + "[" * 10**5 + "\n",
        "spans in a cell must be a JSON list",
    ),
    (
        TAGS,
        "x.jsonl",
        labelled('[[0, 2, "a"], [1, 3, "b"]]'),
        "line 1 of x.jsonl: spans must not overlap, got b from 1",
    ),
    (TAGS, "x.tsv", "甲乙\tO\n", "line 1 of x.tsv: there must be a tag for each"),
    (
        TAGS,
        "x.tsv",
        "甲乙\tO X\n",
        "line 1 of x.tsv: a tag must be O, or one of B, I, M, E",
    ),
    (
        TAGS,
        "x.tsv",
        "甲乙\tB- O\n",
        "line 1 of x.tsv: a tag must be O, or one of B, I, M, E",
    ),
    (
        TAGS,
        "x.tsv",
        "甲乙\tI-a B\n",
        "line 1 of x.tsv: a tag must be O, or one of B, I, M, E",
    ),
    (TAGS, "x.bio", "甲\n", "line 1 of x.bio must be a token and its tag, got '甲"),
    (TAGS, "x.bio", "甲 B-a\n乙\n", "line 2 of x.bio must be a token and its tag"),
    (
        TAGS,
        "x.bio",
        "甲 X-a\n",
        "line 1 of x.bio: a tag must be O, or one of B, I, M, E",
    ),
    (TAGS, "x.bio", "甲 B\n", "line 1 of x.bio: a tag must be O, or one of B, I, M, E"),
    (TAGS, "x.bio", "甲 O\n", "x.bio must have labels of at least 1 names, got []"),
    (
        TAGS,
        "x.bio",
        "甲 b-a\n",
        "line 1 of x.bio: a tag must be O, or one of B, I, M, E",
    ),
    # Questions.
    (ANSWERS, "x.json", '{"data": []}', "a file of labelled texts must be .csv, .tsv"),
    (f"{ANSWERS} --format squad", "x.json", "[" * 10**5, "x.json is not valid JSON"),
    (f"{ANSWERS} --format squad", "x.json", '{"data": 1}', "'data', a list, got 1"),
    (
        f"{ANSWERS} --format squad",
        "x.json",
        '{"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "b"}]}]}]}',
        "row 1 of x.json must have 'answers', got 'question'",
    ),
    (
        f"{ANSWERS} --format squad",
        "x.json",
        '{"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "b", '
        '"answers": [{"text": "FAKE_ANSWER_1", "answer_start": -1}]}]}]}]}',
        "row 1 of x.json: an answer must stand in its text, got 'FAKE_ANSWER_1'",
    ),
    (f"{CLASS} --format squad", "x.json", '{"data": 1}', "for tasks of two texts"),
    (ANSWERS, "x.jsonl", jsonl({"question": "a"}), "must have"),
    (ANSWERS, "x.tsv", "甲\t乙\n", "line 1 of x.tsv must have 3 columns, got 2"),
    (
        ANSWERS,
        "x.tsv",
        "甲？\t乙\t丙\n",
        "line 1 of x.tsv: an answer must stand in its text, got",
    ),
    (
        ANSWERS,
        "x.jsonl",
        '{"first": "a", "second": "b", "label": 3}\n',
        "line 1 of x.jsonl: an answer must be (start, end), a",
    ),
    (
        ANSWERS,
        "x.jsonl",
        '{"first": "a", "second": "b", "label": [0, 9]}\n',
        "line 1 of x.jsonl: a span must lie in its text, from 0",
    ),
    (
        ANSWERS,
        "x.jsonl",
        '{"first": "a", "second": "b", "label": [1, 0]}\n',
        "line 1 of x.jsonl: a span must lie in its text, from 0",
    ),
    (
        ANSWERS,
        "x.jsonl",
        '{"first": "a", "second": "b", "label": [0.5, 1]}\n',
        "line 1 of x.jsonl: a span must be (start, end, label),",
    ),
    (
        ANSWERS,
        "x.jsonl",
        '{"first": "a", "second": "b", "label": {}}\n',
        "line 1 of x.jsonl: answers in objects must have text and",
    ),
    (
        ANSWERS,
        "x.jsonl",
        '{"first": "a", "second": "b", "label": "c"}\n',
        "line 1 of x.jsonl: an answer must stand in its text,",
    ),
    # Pairs and triplets.
    (EMBED, "x.tsv", "甲\t乙\n", "line 1 of x.tsv must have 3 columns, got 2"),
    (EMBED, "x.tsv", "甲\t乙\tx\n", "a label must be a finite number"),
    (EMBED, "x.tsv", "甲\t\t1\n", "line 1 of x.tsv: a text must be a str"),
    (
        RANK,
        "x.tsv",
        "甲\t乙\t丙\tD\n",
        "line 1 of x.tsv: a label must be 0 or B if the first",
    ),
    (RANK, "x.tsv", "甲\t乙\t丙\n", "line 1 of x.tsv must have 4 columns, got 3"),
    (RANK, "x.jsonl", labelled("1"), "must have 'first', 'second', 'third', 'label'"),
    (
        TAGS,
        "x.csv",
        "甲,乙,丙\n",
        "line 1 of x.csv: a tag must be O, or one of B, I, M, E",
    ),
]
CASES = [
    (f"finetune {task} --train {name} -o run --source SMALL", {name: data}, 2, message)
    for task, name, data, message in _TRAIN
]
