"""The same promises by every reader of rows, of texts of models, and every command.

A property of a file is a row of the tables below. All containers that can hold it, and
all readers that a command uses, keep the same rule.
"""

import json
import re
import shutil
import zipfile

import pyarrow as pa
import pytest
from common import SMALL, run_main, write_file
from hostile.configurations import checkpoint
from hostile.tasks import write_preset
from huggingface_folders import FOLDER
from table_files import CELLS, KEYED, write_columns, write_rows

from roformer_keras import convert
from roformer_keras.base.errors import ConfigurationError, RoFormerError
from roformer_keras.cli.texts import read_rows
from roformer_keras.conversion.reader import read_tokenizer
from roformer_keras.distributed.files import _rows_of
from roformer_keras.io.json_file import MAX_DEPTH
from roformer_keras.tables.files import read_records, read_table
from roformer_keras.tasks.labels import parse_name

# === Rows ===

NAMES = ["text", "label"]
ROWS = [["今天", "好"], ["明天", "坏"]]
NESTED = ("squad",)
KINDS = (*CELLS, *KEYED, "saved", "bio", *NESTED)
TEXTS_OF_JSON = ("jsonl", "json", *NESTED)
COLUMNS = ("parquet", "arrow", "saved")


def texts_of(path, kind, labelled):
    count = 2 if kind == "squad" else 1
    format = kind if kind in NESTED else None
    return read_table(path, count, labelled=labelled, format=format).texts


def labelled(path, kind):
    """As `finetune` and `evaluate` read it."""
    return texts_of(path, kind, True)


def unlabelled(path, kind):
    """As `predict` and `similarity` read it."""
    return texts_of(path, kind, False)


def lines(path, kind):
    """As `embed`, `generate` and their like read it."""
    return [row for _, row in read_rows(str(path), 1, {"fields": ("text",)})]


def records(path, kind):
    """As `pretrain` reads it."""
    return [text for (text,), _ in read_records(str(path), ("text",))]


def pieces(path, kind):
    """As a job on Ray reads it."""
    item, layout = {"file": str(path), "at": 0}, {"fields": ("text",)}
    return [row["text"] for row in _rows_of(item, ("text",), layout, "error")]


READERS = {
    labelled: KINDS,
    unlabelled: KINDS,
    lines: [kind for kind in KINDS if kind not in ("bio", *NESTED)],
    records: [kind for kind in KINDS if kind not in ("txt", "bio", *NESTED)],
    pieces: ("csv", "semicolons.csv", "tsv", "quoted.tsv", "jsonl", "parquet"),
}


def make(folder, kind, text="今天", names=NAMES, label="好"):
    """A file with a first row of this text and label."""
    width = len(names)
    rows = [[text, label, "", ""][:width], ["明天", "坏", "", ""][:width]]
    if kind == "bio":
        return write_file(folder / "x.bio", f"{text} O\n\n明 O\n")
    if kind == "squad":
        questions = [{"question": "谁", "answers": []}]
        paragraphs = [{"context": text, "qas": questions}]
        return write_file(folder / "x.json", {"data": [{"paragraphs": paragraphs}]})
    return write_rows(folder, kind, [names, *rows])


def changed(path, old, new):
    """The file with other bytes."""
    content = path.read_bytes()
    assert content.count(old) == 1, content
    path.write_bytes(content.replace(old, new))
    return path


def nameless(folder, kind):
    """Two columns without a name."""
    return make(folder, kind, names=["text", "label", "", ""])


def with_member(member):
    """A writer of JSON whose first object has one more member."""

    def write(folder, kind):
        path = make(folder, kind)
        content = path.read_bytes()
        path.write_bytes(content.replace(b"{", b"{" + member.encode() + b", ", 1))
        return path

    return write


def with_text(text):
    return lambda folder, kind: make(folder, kind, text)


def half(folder, kind):
    """Half of a surrogate pair, as no program but a careless one writes it."""
    wrong = b"\xed\xa0\x80"
    if kind in COLUMNS:
        binary = pa.array([wrong, b"x"])
        column = pa.Array.from_buffers(pa.utf8(), 2, binary.buffers())
        table = pa.table({"text": column, "label": ["x", "y"]})
        return write_columns(folder, kind, table)
    if kind == "xlsx":
        path = make(folder, kind, "MARK")
        with zipfile.ZipFile(path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, part in parts.items():
                archive.writestr(name, part.replace(b"MARK", b"&#xD800;"))
        return path
    return changed(make(folder, kind, "MARK"), b"MARK", wrong)


def escaped_half(folder, kind):
    return changed(make(folder, kind, "MARK"), b"MARK", rb"\ud800")


def infinite(folder, kind):
    rows = {"text": ["今天", "明天"], "label": [1.5, float("inf")]}
    return write_columns(folder, kind, pa.table(rows))


def deep(folder, kind):
    """A list in a list, and so on: Arrow's own files have at most 64."""
    column = pa.array(["x", "y"])
    for _ in range(MAX_DEPTH + 1):
        column = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), column)
    table = pa.table({"text": ["今天", "明天"], "label": column})
    return write_columns(folder, kind, table)


def empty(folder, kind):
    if kind in COLUMNS:
        table = pa.table({name: pa.array([], pa.utf8()) for name in NAMES})
        return write_columns(folder, kind, table)
    if kind in CELLS:
        return write_rows(folder, kind, [NAMES])
    path = make(folder, kind)
    path.write_text({"squad": '{"data": []}', "json": "[]"}.get(kind, "\n"))
    return path


TEXTUAL = [kind for kind in KINDS if kind not in (*COLUMNS, "xlsx")]
NO_XLSX = [kind for kind in KINDS if kind != "xlsx"]
CONTROL = "今\x00\x1b天"
# What a file has, how it is made, the containers that can have it, and what readers do:
# words of the error, or the text of the first row.
PROPERTIES = {
    "two columns without a name": (nameless, [*CELLS, *COLUMNS], "今天"),
    "a name without a name twice": (
        with_member('"": 1, "": 2'),
        TEXTS_OF_JSON,
        "the key '' is there twice",
    ),
    "NaN": (with_member('"x": NaN'), TEXTS_OF_JSON, "NaN is no JSON"),
    "Infinity": (with_member('"x": -Infinity'), TEXTS_OF_JSON, "Infinity is no JSON"),
    "a number that is too large": (
        with_member('"x": [1e999]'),
        TEXTS_OF_JSON,
        "more than a float can be",
    ),
    "an infinite number": (infinite, COLUMNS, "row 2 of .* must be finite, got inf"),
    "half of a surrogate pair": (half, KINDS, "UTF|utf|Invalid|invalid|reference"),
    "half of one, escaped": (escaped_half, TEXTS_OF_JSON, "half of a surrogate pair"),
    "control characters": (with_text(CONTROL), NO_XLSX, CONTROL),
    "deep values": (
        with_member(f'"x": {"[" * 101}{"]" * 101}'),
        TEXTS_OF_JSON,
        "nested more than 100 deep|recursion",
    ),
    "very deep values": (
        with_member(f'"x": {"[" * 10**5}'),
        TEXTS_OF_JSON,
        "not valid JSON|a JSON object",
    ),
    "deep types": (deep, ["parquet"], "deeply nested"),
    "no row": (empty, KINDS, "no row|must name"),
}
# Readers to which a property is nothing: labels and columns that they do not read, and
# rows that are blank, of which a corpus is free. The output of a job on Ray keeps all
# columns by their names.
APART = {
    "an infinite number": (unlabelled, lines, records, pieces),
    "deep types": (unlabelled, lines, records, pieces),
    "two columns without a name": (pieces,),
    "no row": (records, pieces),
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_rows_of_every_container(name, tmp_path):
    make_file, kinds, expected = PROPERTIES[name]
    wrong = []
    for kind in kinds:
        folder = tmp_path / kind
        folder.mkdir()
        path = make_file(folder, kind)
        for reader, readable in READERS.items():
            if kind not in readable or reader in APART.get(name, ()):
                continue
            try:
                row = reader(path, kind)[0]
                texts = row if isinstance(row, tuple) else (row,)
                is_right = any(str(text).startswith(expected) for text in texts)
                outcome = f"no error, and {row}"
            except RoFormerError as error:
                outcome = str(error)
                is_right = re.search(expected, outcome)
            if not is_right:
                wrong.append(f"{kind}, {reader.__name__}: {outcome:.300}")
    assert wrong == []


@pytest.mark.parametrize("kind", [*CELLS, *KEYED])
def test_labels_of_several_types_are_the_same_classes(kind, tmp_path):
    """1 and "1" are one class; true is another."""
    if kind in ("parquet", "arrow"):
        columns = [[1, 0, 1], [True, False, True], [1.0, 0.0, 1.0]]
    else:
        columns = [[1, "1", 1.0, True, "true"]]
    for labels in columns:
        rows = [[f"第{at}", label] for at, label in enumerate(labels)]
        table = read_table(write_rows(tmp_path, kind, [NAMES, *rows]), 1)
        names = ["true" if y is True else "false" if y is False else y for y in labels]
        names = [name if isinstance(name, str) else str(int(name)) for name in names]
        assert list(map(parse_name, table.labels)) == names


@pytest.mark.parametrize("kind", KEYED)
def test_a_missing_number_is_none(kind, tmp_path):
    missing = float("nan") if kind in ("parquet", "arrow") else None
    path = write_rows(tmp_path, kind, [NAMES, ["今天", 1.5], ["明天", missing]])
    assert read_table(path, 1).labels == [1.5, None]


@pytest.mark.parametrize("names", [("",), (" ", "label"), ("text", "")])
def test_a_field_has_a_name(names, tmp_path):
    for kind in (*CELLS, *KEYED):
        path = write_rows(
            tmp_path, kind, [[*NAMES, ""], *([*row, "x"] for row in ROWS)]
        )
        with pytest.raises(ConfigurationError, match="names that are not empty"):
            read_table(path, 1, names, labelled=len(names) > 1)


# === Texts of models ===


def written(name, folder):
    """A source with texts in these files."""
    if name == "bert4keras":
        for file, content in checkpoint().items():
            path = folder / file.removeprefix("p/")
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    elif name == "huggingface":
        for path in (FOLDER / "masked-lm").iterdir():
            shutil.copy(path, folder)
        tokens = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
        vocabulary = {token: number for number, token in enumerate(tokens)}
        (folder / "tokenizer.json").write_text(
            json.dumps({"model": {"type": "WordPiece", "vocab": vocabulary}})
        )
        (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
        (folder / "vocab.txt").unlink()
    elif name == "task":
        folder.rmdir()
        write_preset(folder)
    else:
        folder.rmdir()
        convert(SMALL, folder, verbose=0)
    return folder


def member(text):
    return lambda content: content.replace("{", "{" + text + ", ", 1)


def token(text):
    """Another last token, in a file of lines or of JSON."""

    def change(content):
        if content.startswith("{"):
            fields = json.loads(content)
            vocabulary = fields["model"]["vocab"]
            last = max(vocabulary, key=vocabulary.get)
            vocabulary[text] = vocabulary.pop(last)
            return json.dumps(fields)
        lines = content.rstrip("\n").split("\n")
        return "\n".join([*lines[:-1], text]) + "\n"

    return change


def option(name, value):
    """Another argument of a task."""

    def change(content):
        fields = json.loads(content)
        fields["config"][name] = value
        return json.dumps(fields)

    return change


TASK = (("task", "task.json"),)
JSONS = (
    *(("bert4keras", "bert_config.json"), ("preset", "config.json")),
    *(("preset", "task.json"), ("preset", "tokenizer.json")),
    ("task", "task.json"),
    *(("huggingface", "config.json"), ("huggingface", "tokenizer.json")),
    ("huggingface", "tokenizer_config.json"),
)
VOCABULARIES = (
    *(("bert4keras", "vocab.txt"), ("huggingface", "tokenizer.json")),
    *(("preset", "assets/tokenizer/vocabulary.txt"),),
)
CONFIGURATIONS = (("bert4keras", "bert_config.json"), ("huggingface", "config.json"))


def segments(content):
    return json.dumps({**json.loads(content), "type_vocab_size": 10**15})


NO_JSON = "is not valid JSON: .*"
# A change of the text of a file, the files, words of the error, and the exit code if it
# is not 2.
TEXTS = {
    "many segments": (segments, CONFIGURATIONS, r"not fit .*\(10{15}, ", 3),
    "a key twice": (member('"x": 1, "x": 2'), JSONS, f"{NO_JSON}twice"),
    "NaN": (member('"x": NaN'), JSONS, f"{NO_JSON}NaN is no JSON"),
    "Infinity": (member('"x": Infinity'), JSONS, f"{NO_JSON}Infinity is no JSON"),
    "a large number": (member('"x": -1e999'), JSONS, f"{NO_JSON}more than a float"),
    "an escaped half": (member('"x": "\\ud800"'), JSONS, "half of a surrogate pair"),
    "half": (member('"x": "\udbff"'), JSONS, f"{NO_JSON}utf-8"),
    "deep values": (
        member(f'"x": {"[" * 101}{"]" * 101}'),
        JSONS,
        f"{NO_JSON}more than 100 deep",
    ),
    "many lists": (
        member(f'"x": [{"[]," * 2**19}[]]'),
        JSONS,
        "must take at most 24 times its size in memory",
    ),
    "half of a token": (token("\ud800"), VOCABULARIES, "surrogate pair|UTF-8 text"),
    "a long token": (token("x" * 10**5), VOCABULARIES, "at most 1000 characters"),
    "a token twice": (token("[UNK]"), VOCABULARIES[::2], "must hold a token once"),
    "many tokens": (
        lambda content: content + "\n" * 2**21,
        VOCABULARIES[::2],
        "at most 1,048,576 tokens, got 2,",
    ),
    "no token": (lambda content: "", VOCABULARIES[::2], "is empty"),
    "a class twice": (option("classes", ["好", "好"]), TASK, "different names"),
    "classes that are no list": (option("classes", "好坏"), TASK, "different names"),
    "classes of another number": (option("classes", ["好"]), TASK, "2, got 1"),
    "no number of classes": (option("num_classes", None), TASK, "an integer, got None"),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The folders of sources, which are copied."""
    folders = {}
    for name in ("bert4keras", "huggingface", "task", "preset"):
        folders[name] = written(name, tmp_path_factory.mktemp(name))
    return folders


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_models_by_every_command(name, sources, tmp_path, monkeypatch, capsys):
    """`inspect`, `convert` and `tokenize` say the same of each."""
    monkeypatch.chdir(tmp_path)
    change, files, expected, *other = TEXTS[name]
    expected_code = other[0] if other else 2
    wrong = []
    for source, file in files:
        shutil.rmtree("p", ignore_errors=True)
        path = tmp_path / "p" / file
        shutil.copytree(sources[source], "p")
        text = change(path.read_text(encoding="utf-8"))
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        commands = [("inspect", "p"), ("convert", "p", "out")]
        if (source, file) in VOCABULARIES or "tokenizer" in file:
            commands.append(("tokenize", "--source", "p", "今天"))
        errors = {}
        for words in commands:
            code, _, error = run_main(*words, capsys=capsys)
            errors[words[0]] = (code, error)
            if code != expected_code or not re.search(expected, error):
                wrong.append(f"{words[0]}, {source}/{file}: {code} {error:.300}")
        if errors["inspect"] != errors["convert"]:
            wrong.append(f"{source}/{file}: {errors}")
    assert wrong == []


def test_a_token_of_spaces_is_empty_in_every_file(sources, tmp_path):
    vocabularies = []
    for source, file in VOCABULARIES:
        folder = tmp_path / source
        shutil.copytree(sources[source], folder)
        path = folder / file
        path.write_text(token("\u2003")(path.read_text("utf-8")), encoding="utf-8")
        vocabularies.append(read_tokenizer(folder)[0][-1])
    assert vocabularies == [""] * 3


@pytest.mark.slow
@pytest.mark.parametrize("source", ["bert4keras", "huggingface", "task", "preset"])
def test_sources_are_read_as_they_are(source, sources, tmp_path, capsys):
    for words in (("inspect", sources[source]), ("convert", sources[source], "out")):
        words = [tmp_path / word if word == "out" else word for word in words]
        code, _, error = run_main(*words, capsys=capsys)
        assert code == 0, error
