"""Bad input that a command refuses before it starts a backend."""

import json
import shlex
import subprocess
import sys
import types

import pytest
from cli_errors import FINETUNE, PATHS, WITHOUT_MODELS, check_error, fill_folder
from common import V2_EMBEDDING_SIZE, run_main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fill_folder(tmp_path_factory.mktemp("errors"))


@pytest.mark.parametrize(("line", "code", "message"), WITHOUT_MODELS)
def test_an_error_is_one_line_with_a_code_and_leaves_nothing(
    line, code, message, folder, monkeypatch, capsys
):
    # It is looked for, and not imported.
    monkeypatch.setitem(sys.modules, "tensorflow", types.ModuleType("tensorflow"))
    check_error(line, code, message, folder, monkeypatch, capsys)


# What is no error: a first label that only the training data have, labels of columns
# that are not in order, a file without labels.
RIGHT = (
    f"{FINETUNE} --train odd.tsv --valid words.csv",
    f"{FINETUNE} --train names.csv --fields sentence,mood",
    f"{FINETUNE} --train names.csv --header first --test words.csv",
    "evaluate TRAINED words.csv",
    "predict TRAINED names.csv --fields mood,label --header first",
    "predict TRAINED good.txt",
    "pretrain mlm names.csv --fields mood -o run",
)


@pytest.mark.parametrize("line", RIGHT)
def test_files_that_a_model_can_use_are_not_refused(line, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    words = [str(PATHS.get(word, word)) for word in shlex.split(line)]
    monkeypatch.setitem(sys.modules, "keras", None)
    assert "import of keras halted" in run_main(*words, capsys=capsys)[2]


def test_an_error_of_many_tensors_is_one_line_too(tmp_path, capsys):
    words = ("convert", V2_EMBEDDING_SIZE, tmp_path / "x")
    code, out, err = run_main(*words, "--model", "RoFormerMaskedLM", capsys=capsys)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "missing cls/predictions/output_mapping/kernel (24, 16)" in err


MISSING = (
    "predict nothing missing.txt",
    "predict roformer-char missing.txt",
    "evaluate nothing missing.tsv",
    "evaluate roformer-char missing.tsv",
    "export nothing out",
    "finetune text-classification --train missing.tsv -o run",
    "finetune text-classification --source a/b.zip --train missing.tsv -o run",
    "pretrain mlm missing.txt -o run",
    "pretrain mlm missing.txt -o run --teacher nothing",
    "serve nothing",
    "verify nothing",
    "embed missing.txt",
    "fill-mask [MASK] --source nothing",
)


@pytest.mark.slow
def test_what_is_not_there_is_said_before_a_backend_is_imported(tmp_path):
    code = (
        "import json, sys; from roformer_keras.cli import main\n"
        "for line in json.loads(sys.argv[1]): print(main(line.split()), flush=True)\n"
        "print('keras' in sys.modules)"
    )
    words = [sys.executable, "-c", code, json.dumps(MISSING)]
    found = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert found.stdout.split() == ["2"] * len(MISSING) + ["False"]
    errors = [line for line in found.stderr.splitlines() if "error" in line]
    for line, error in zip(MISSING, errors, strict=True):
        missing = [name for name in ("missing.t", "nothing", "a/b.zip") if name in line]
        assert any(name in error for name in missing), (line, error)
    assert list(tmp_path.iterdir()) == []
