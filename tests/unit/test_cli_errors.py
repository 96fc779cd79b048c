"""Bad input that a command refuses before it starts a backend."""

import pytest
from cli_errors import check_error, fill_folder
from common import V2_EMBEDDING_SIZE, run_main

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
    (f"inspect {'x' * 5000}", 2, "must be a path or a name, got 5,000 characters"),
    (f"convert SIM {'y' * 300}", 4, "File name too long"),
    (f"embed --source SIM good -o {'y' * 300}.npy", 4, "File name too long"),
    ("convert LM x.zip", 2, "comes without a bert_config.json"),
    ("convert bad x.keras", 3, "does not match its checksum"),
    ("convert SIM nowhere/x.keras", 4, "nowhere is not a folder: make it"),
    ("convert GPT bad", 4, "bad is a file: give the name of a folder"),
    ("tokenize --source SIM '1 二' --decode", 2, "must be integers between spaces"),
    ("tokenize --source SIM 9999 --decode", 2, "are 0 to 668, got 9999"),
    ("tokenize --source LM 今", 2, "comes without a vocabulary"),
    ("tokenize --source SIM 今 --vocabulary texts", 2, "[PAD] must be the first"),
    ("embed --source SIM nowhere.txt", 2, "cannot read nowhere.txt: No such file"),
    ("embed --source SIM .", 2, "cannot read .: Is a directory"),
    ("embed --source SIM gbk", 2, "line 1 of gbk must be UTF-8"),
    ("embed --source SIM empty", 2, "line 1 of empty must be a text, got no line"),
    ("embed --source SIM texts -o x.csv", 2, "must end in .npy or .jsonl"),
    ("embed --source SIM texts -o no/x.npy", 4, "no is not a folder: make it"),
    ("embed --source SIM texts -o old.npy", 4, "exists: choose another name"),
    ("generate --source GPT", 2, "give a text file, or - for standard input, or --t"),
    ("generate --source GPT good --text 今", 2, "give a text file, or - for"),
    ("generate --source GPT 今天", 2, "No such file or directory; to give a text it"),
    ("generate --source nowhere.zip good", 2, "no file or folder nowhere.zip here"),
    ("generate --source no/where.zip good", 2, "no/where.zip"),
    ("generate --source GPT empty", 2, "line 1 of empty must be a text"),
    ("generate --source GPT gbk", 2, "gbk must be UTF-8"),
    ("generate --source GPT good -o x.txt", 2, "must end in .jsonl or .tsv"),
    ("generate --source GPT good -o no/x.tsv", 4, "no is not a folder: make"),
    ("generate --source GPT good -o old.tsv", 4, "exists: choose another name"),
    ("generate --source GPT good -o d.tsv", 4, "d.tsv is a folder: give the"),
    ("similarity --source SIM", 2, "give a file of pairs, or - for standard input"),
    ("similarity --source SIM one.tsv", 2, "line 1 of one.tsv must have 2 columns,"),
    ("similarity --source SIM half.tsv", 2, "line 1 of half.tsv: a text must be a s"),
    ("similarity --source SIM good", 2, "must be .csv, .tsv, .txt, .jsonl,"),
    ("similarity --source SIM bad.jsonl", 2, "line 2 of bad.jsonl must be a JSON ob"),
    ("similarity --source SIM one.jsonl", 2, "line 1 of one.jsonl must have 'first'"),
    ("similarity --source SIM nowhere.tsv", 2, "cannot read nowhere.tsv: No such"),
    ("similarity --source SIM one.tsv --fields 1", 2, "fields must name 2 texts"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fill_folder(tmp_path_factory.mktemp("errors"))


@pytest.mark.parametrize(("line", "code", "message"), CASES)
def test_an_error_is_one_line_with_a_code_and_leaves_nothing(
    line, code, message, folder, monkeypatch, capsys
):
    check_error(line, code, message, folder, monkeypatch, capsys)


def test_an_error_of_many_tensors_is_one_line_too(tmp_path, capsys):
    words = ("convert", V2_EMBEDDING_SIZE, tmp_path / "x")
    code, out, err = run_main(*words, "--model", "RoFormerMaskedLM", capsys=capsys)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "missing cls/predictions/output_mapping/kernel (24, 16)" in err
