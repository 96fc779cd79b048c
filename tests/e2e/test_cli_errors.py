"""Bad input of every command: one line, an exit code, and nothing written."""

import shlex

import numpy as np
import pytest
from common import (
    CHARACTER,
    GPT,
    ROOT,
    SAVED,
    SIM,
    SMALL,
    V2_EMBEDDING_SIZE,
    write_lines,
)
from common import run_main as run
from sources import listing

from roformer_keras import RoFormerSentenceEncoder
from roformer_keras.cli import generate, models, paraphrase, similarity

# Keras's own saving, under NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")

# Words of the tables below that are paths.
PATHS = {
    "GPT": GPT,
    "SIM": SIM,
    "SMALL": SMALL,
    "V2": V2_EMBEDDING_SIZE,
    "CHARACTER": CHARACTER,
    "LM": SAVED / "lm.h5",
    "TOML": ROOT / "pyproject.toml",
}
# Files of the folder in which the commands run.
FILES = {
    "texts": ["今天"],
    "good": ["今天", "我"],
    "blank": ["今天", "", "我"],
    "strange": ["今天", "我", "\U0001f44d\U0001f44d"],
    "long": ["今天", "我" * 300],
    "one.tsv": ["今天"],
    "half.tsv": ["今\t"],
    "bad.jsonl": ['{"first": "今", "second": "天"}', "今"],
    "one.jsonl": ['{"first": "今", "third": "天"}'],
    "old.tsv": ["old"],
    "empty": [],
}

CASES = [
    ("inspect nowhere.zip", 2, "no file or folder nowhere.zip here"),
    ("inspect TOML", 2, "is not a checkpoint"),
    ("inspect LM", 2, "comes without a bert_config.json"),
    ("inspect SMALL --config nowhere", 2, "there is no file nowhere"),
    ("inspect SMALL --vocabulary nowhere", 2, "there is no file nowhere"),
    ("inspect chinese_roformer_L-6_H-384_A-6", 2, "is not downloaded: run `r"),
    ("download chinese_robert", 2, "is not in the catalogue"),
    ("convert SIM x.h5", 2, "no format goes with '.h5'"),
    ("convert SIM x.keras --model GPT2", 2, "model must be one of"),
    ("convert LM x.zip", 2, "comes without a bert_config.json"),
    ("convert bad x.keras", 3, "does not match its checksum"),
    ("convert SIM nowhere/x.keras", 4, "nowhere is not a folder: make it"),
    ("convert GPT bad", 4, "bad is a file: give the name of a folder"),
    ("verify SMALL --bert4keras .", 6, "there is no bert4keras package"),
    ("verify SMALL --reference no", 2, "there is no reference file no"),
    ("verify SMALL --published", 2, "nothing is published of"),
    ("verify SMALL --lengths 0", 2, "lengths must be 1 or more"),
    ("fill-mask --source GPT 今天", 2, "a text to fill must hold [MASK], got '今天'"),
    ("fill-mask --source V2 [MASK]", 3, "no mlm head"),
    ("fill-mask --source LM [MASK]", 2, "comes without a vocabulary"),
    ("tokenize --source SIM '1 二' --decode", 2, "must be integers between spaces"),
    ("tokenize --source SIM 9999 --decode", 2, "are 0 to 668, got 9999"),
    ("tokenize --source LM 今", 2, "comes without a vocabulary"),
    ("tokenize --source SIM 今 --vocabulary texts", 2, "[PAD] must be the first"),
    ("embed --source SIM nowhere.txt", 2, "cannot read nowhere.txt: No such file"),
    ("embed --source SIM .", 2, "cannot read .: Is a directory"),
    ("embed --source SIM gbk", 2, "must be UTF-8 text"),
    ("embed --source SIM empty", 2, "holds no text"),
    ("embed --source SIM texts -o x.csv", 2, "must end in .npy or .jsonl"),
    ("embed --source SIM texts -o no/x.npy", 4, "no is not a folder: make it"),
    ("embed --source SIM texts -o old.npy", 4, "exists: choose another name"),
    ("embed --source LM texts", 2, "comes without a bert_config.json"),
    ("generate --source GPT", 2, "give a text file, or - for standard input, or --t"),
    ("generate --source GPT good --text 今", 2, "give a text file, or - for"),
    ("generate --source GPT 今天", 2, "No such file or directory; to give a text it"),
    ("generate --source nowhere.zip good", 2, "no file or folder nowhere.zip here"),
    ("generate --source no/where.zip good", 2, "no/where.zip"),
    ("generate --source GPT blank", 2, "line 2 of blank: a prompt must hold text"),
    ("generate --source GPT strange", 2, "line 3 of strange: a prompt must have tok"),
    ("generate --source GPT long", 2, "line 2 of long: a prompt must be shorter tha"),
    ("generate --source GPT --text ''", 2, "text 1: a prompt must hold text, got"),
    ("generate --source GPT empty", 2, "empty holds no text"),
    ("generate --source GPT gbk", 2, "gbk must be UTF-8 text"),
    ("generate --source GPT good --stop 今天", 2, "a stop token must be in the"),
    ("generate --source GPT good --min-length 999", 2, "error: min_length must be an"),
    ("generate --source GPT good --min-length -1", 2, "error: min_length must be an"),
    ("generate --source GPT good -o x.txt", 2, "must end in .jsonl or .tsv"),
    ("generate --source GPT good -o no/x.tsv", 4, "no is not a folder: make"),
    ("generate --source GPT good -o old.tsv", 4, "exists: choose another name"),
    ("generate --source GPT good -o d.tsv", 4, "d.tsv is a folder: give the"),
    ("paraphrase --source GPT good", 3, "no pooler head"),
    ("paraphrase --source SIM blank", 2, "line 2 of blank: a prompt must hold text"),
    ("paraphrase --source SIM long", 2, "line 2 of long: a prompt must be no longer"),
    (
        *("paraphrase --source SIM good --masked-positions 2", 2),
        "line 2 of good: masked_positions must be integers from 1 to 1",
    ),
    ("similarity --source SIM", 2, "give a file of pairs, or - for standard input"),
    ("similarity --source SIM one.tsv", 2, "line 1 of one.tsv must have 2 columns,"),
    ("similarity --source SIM half.tsv", 2, "line 1 of half.tsv: a text must be a s"),
    ("similarity --source SIM good", 2, "must be .csv, .tsv, .txt, .jsonl,"),
    ("similarity --source SIM --pair 今 ''", 2, "pair 1: a text to compare must "),
    ("similarity --source SIM bad.jsonl", 2, "line 2 of bad.jsonl must be a JSON ob"),
    ("similarity --source SIM one.jsonl", 2, "line 1 of one.jsonl must have 'first'"),
    ("similarity --source SIM nowhere.tsv", 2, "cannot read nowhere.tsv: No such"),
    ("similarity --source SIM one.tsv --fields 1", 2, "fields must name 2 texts"),
    ("similarity --source ENCODER --pair 你好 ' '", 2, "pair 1: a text must not be em"),
    (
        *("similarity --source ENCODER --pair 你好 好 --vocabulary good", 2),
        "leave --config and --vocabulary out",
    ),
]


@pytest.fixture(scope="module", autouse=True)
def load_once():
    """Each model is loaded once."""
    cache = {}

    def cached(load):
        def found(*arguments, **options):
            key = (load, arguments, *options.items())
            if key not in cache:
                cache[key] = load(*arguments, **options)
            return cache[key]

        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "load_model", cached(generate.load_model))
        for command in (paraphrase, similarity):
            patch.setattr(command, "load_sim", cached(models.load_sim))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with files that commands can read, and others that they cannot."""
    folder = tmp_path_factory.mktemp("errors")
    for name, lines in FILES.items():
        write_lines(folder / name, lines)
    (folder / "gbk").write_bytes("今天\n".encode("gbk"))
    (folder / "d.tsv").mkdir()
    np.save(folder / "old.npy", np.zeros(1))
    damaged = bytearray(SIM.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (folder / "bad").write_bytes(damaged)
    encoder = RoFormerSentenceEncoder.from_preset(CHARACTER, max_length=8)
    encoder.save_to_preset(folder / "ENCODER")
    return folder


@pytest.mark.parametrize(
    ("line", "code", "message"), CASES, ids=lambda value: str(value)[:48]
)
def test_an_error_is_one_line_with_a_code_and_leaves_nothing(
    line, code, message, folder, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    before = listing(folder)
    words = [str(PATHS.get(word, word)) for word in shlex.split(line)]
    found, out, err = run(*words, capsys=capsys)
    assert (found, out) == (code, "")
    lines = err.splitlines()
    assert lines[0].startswith("roformer-keras: error: ")
    assert message in lines[0]
    # Advice may follow an empty line; nothing else may follow.
    assert len(lines) == 1 or lines[1] == ""
    assert listing(folder) == before


def test_an_error_of_many_tensors_is_one_line_too(tmp_path, capsys):
    words = (
        "convert",
        V2_EMBEDDING_SIZE,
        tmp_path / "x",
        "--model",
        "RoFormerMaskedLM",
    )
    code, out, err = run(*words, capsys=capsys)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "missing cls/predictions/output_mapping/kernel (24, 16)" in err
