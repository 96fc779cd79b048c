"""The page of frequent errors quotes what this package says."""

import re
import sys
import zipfile

import pytest
from cli_errors import fill_folder
from common import (
    CHARACTER,
    GPT,
    ROOT,
    SAVED,
    SIM,
    config_of_saved,
    run_main,
    write_lines,
)

from roformer_keras import (
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerError,
    RoFormerMaskedLM,
    RoFormerSim,
    RoFormerTextClassifier,
)
from roformer_keras.base import keras_backend

PAGE = (ROOT / "docs" / "error-messages.md").read_text(encoding="utf-8")
FILES = {
    "header.tsv": ["review\tmood", *["好\t1", "坏\t0"] * 4],
    "columns.csv": ["干净,好", "便宜，干净,太吵,坏", "好,好", "贵,坏"],
    "empty.tsv": ["好\t好", "\t坏"],
}
FINETUNE = f"finetune text-classification --source {CHARACTER} -o run --train"
LM = SAVED / "lm.h5"


def choose_no_backend(monkeypatch):
    monkeypatch.delenv("KERAS_BACKEND")
    monkeypatch.setattr(keras_backend, "is_installed", lambda name: False)
    keras_backend.choose_backend()


def load_another_vocabulary(monkeypatch):
    with zipfile.ZipFile(CHARACTER) as archive:
        archive.extractall()
    (vocabulary,) = ROOT.cwd().glob("*/vocab.txt")
    write_lines(vocabulary, vocabulary.read_text("utf-8").splitlines()[:-9])
    RoFormerBackbone.from_preset(vocabulary.parent)


def load_own_layers(monkeypatch):
    name = "encoder-dense"
    RoFormerBackbone.from_preset(SAVED / f"{name}.h5", config=config_of_saved(name))


def make_classifier(source=CHARACTER):
    return RoFormerTextClassifier.from_preset(source, classes=["坏", "好"])


def save_lora(monkeypatch):
    model = RoFormerMaskedLM.from_preset(CHARACTER)
    model.enable_lora(2)
    model.save_to_preset("lora")


# Commands and calls, in the order of the page.
ERRORS = (
    choose_no_backend,
    f"serve {SIM}",
    "inspect nowhere.zip",
    "inspect chinese_roformer-char_L-12_H-768_A-12",
    f"inspect {LM}",
    f"fill-mask --source {LM} [MASK]",
    load_another_vocabulary,
    lambda _: RoFormerSim.from_preset(CHARACTER),
    load_own_layers,
    "convert bad x.keras",
    lambda _: make_classifier(GPT),
    f"{FINETUNE} gbk.tsv",
    f"{FINETUNE} header.tsv",
    f"{FINETUNE} columns.csv",
    f"{FINETUNE} empty.tsv",
    lambda _: make_classifier().fit(["还行"], ["中"], verbose=0),
    lambda _: make_classifier().compile("adam", "sparse_categorical_crossentropy"),
    f"convert {CHARACTER} old",
    save_lora,
    lambda _: RoFormerCausalLM.from_preset(GPT).generate("天" * 9, max_length=8),
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = fill_folder(tmp_path_factory.mktemp("errors"))
    for name, lines in FILES.items():
        write_lines(folder / name, lines)
    (folder / "gbk.tsv").write_bytes("今天\t好\n".encode("gbk"))
    (folder / "old").mkdir()
    return folder


@pytest.mark.slow
def test_the_page_quotes_twenty_messages(files, monkeypatch, capsys):
    """`...` and the numbers in a quoted message stand for others."""
    quoted = re.findall(r"^```text\n(.*?)^```", PAGE, re.M | re.S)
    assert len(quoted) == len(ERRORS) == 20
    wrong = []
    for expected, error in zip(quoted, ERRORS, strict=True):
        with monkeypatch.context() as patch:
            patch.chdir(files)
            patch.setenv("KERAS_BACKEND", "tensorflow")
            patch.setitem(sys.modules, "fastapi", None)
            message = message_of(error, patch, capsys)
        words = re.split(r"\s+", expected.strip())
        pattern = r"\s+".join(map(pattern_of, words))
        if not re.fullmatch(pattern, message):
            wrong.append((expected, message))
    assert wrong == []


def message_of(error, patch, capsys):
    if isinstance(error, str):
        _, _, shown = run_main(*error.split(), capsys=capsys)
        return shown.partition("roformer-keras: error: ")[2].strip()
    with pytest.raises(RoFormerError) as caught:
        error(patch)
    return str(caught.value)


def pattern_of(word):
    return re.sub(r"\\\.\\\.\\\.", ".*", re.sub(r"\d+", "[0-9,]+", re.escape(word)))
