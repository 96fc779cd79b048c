"""The properties of the files of a training do not apply to later files."""

import pytest
from common import SMALL, give_stdin, json_lines, to_json_lines, write_file
from finetuning_cases import BAD, GOOD, load_small

from roformer_keras.base.errors import SourceError
from roformer_keras.io.training_folder import SETTINGS
from roformer_keras.tasks import RoFormerTextClassifier, finetuned
from roformer_keras.tasks.finetuning_settings import FinetuningSettings

ROWS = [*((text, "好") for text in GOOD), *((text, "坏") for text in BAD)]
# Settings that describe the file of the training.
PROPERTIES = {
    "none": {},
    "gbk": {"encoding": "gbk"},
    "utf-16": {"encoding": "utf-16"},
    "swapped columns": {"fields": ("2", "1")},
    "later columns": {"fields": ("3", "2"), "header": "first"},
    "a header": {"header": "first"},
    "no header": {"header": "none"},
    "a format": {"format": "csv"},
    "names": {"fields": ("review", "mood")},
    "names and a header": {"fields": ("review", "mood"), "header": "first"},
}


def table(separator, *heads):
    rows = [*heads, *ROWS]
    return "".join(f"{separator.join(row)}\n" for row in rows)


def objects(text, label):
    return to_json_lines({text: row[0], label: row[1]} for row in ROWS)


# Files that come later, and whether their columns have the names of the training.
LATER = {
    "a.txt": (table("\t"), None),
    "a.tsv": (table("\t"), False),
    "a.csv": (table(",", ("text", "label")), False),
    "b.csv": (table(";", ("text", "label")), False),
    "a.jsonl": (objects("text", "label"), False),
    "c.csv": (table(",", ("review", "mood")), True),
    "b.jsonl": (objects("review", "mood"), True),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A classifier, and the folder of its training."""
    run, options = tmp_path_factory.mktemp("run"), {"classes": ["坏", "好"]}
    task = load_small(RoFormerTextClassifier, SMALL, **options)
    task.save_to_preset(run / "preset")
    return task, run


@pytest.fixture
def run_of(trained, tmp_path, monkeypatch):
    """A function from a property to the folder of a training."""
    task, run = trained
    monkeypatch.setattr(finetuned, "_load_task", lambda folder: task)

    def write(name):
        train = str(write_file(tmp_path / "train.csv", ""))
        settings = FinetuningSettings(
            task="text-classification", train=train, **PROPERTIES[name]
        )
        write_file(run / SETTINGS, settings.describe())
        return run

    return write


@pytest.mark.parametrize("name", PROPERTIES)
def test_later_files_have_their_own_properties(name, run_of, tmp_path, monkeypatch):
    run = run_of(name)
    tuned = finetuned.load_finetuned(run)
    monkeypatch.setattr(
        finetuned, "report_on", lambda task, examples, *_, **__: examples
    )
    wants_names = name.startswith("names")
    for file, (content, has_names) in LATER.items():
        path = str(write_file(tmp_path / file, content))
        is_right = has_names in (wants_names, None)
        fields = () if is_right or not has_names else ("review", "mood")
        if wants_names and has_names is False:
            # Errors name the columns; `--fields` gives others.
            for read in (tuned.read_rows, tuned.evaluate):
                with pytest.raises(SourceError, match="review"):
                    read(path)
            fields = ("1", "2") if file == "a.tsv" else ("text", "label")
        rows = [row for _, row in tuned.read_rows(path, fields[:1])]
        assert rows == [(text,) for text, _ in ROWS], file
        if file == "a.txt" and wants_names:
            fields = ("1", "2")
        examples = tuned.evaluate(path, fields)
        labelled = zip(examples.texts, examples.labels, strict=True)
        assert [(text, label) for (text,), label in labelled] == ROWS, file


@pytest.mark.parametrize("name", PROPERTIES)
def test_standard_input_is_utf_8_and_has_texts_alone(name, run_of, monkeypatch, cli):
    run = run_of(name)
    give_stdin(monkeypatch, "".join(f"{text}\n" for text in GOOD))
    lines = json_lines(cli("predict", run, "-", "--quiet"))
    assert [line["text"] for line in lines] == GOOD
