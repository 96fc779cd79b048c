"""Commands that end with an error: files for them, and how such an end is checked."""

import io
import re
import shlex

import numpy as np
from common import (
    CHARACTER,
    GPT,
    ROOT,
    SAVED,
    SIM,
    SMALL,
    V2_EMBEDDING_SIZE,
    run_main,
    write_lines,
)
from sources import listing

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
FINETUNE = "finetune text-classification --source SMALL -o run"
# Lines, exit codes and words of the error: one for each way in which a command ends
# before it starts a backend, and then for those that need a model.
WITHOUT_MODELS = [
    ("inspect nowhere.zip", 2, "no file or folder nowhere.zip here"),
    ("inspect TOML", 2, "is not a checkpoint"),
    ("inspect LM", 2, "comes without a bert_config.json"),
    ("inspect SMALL --config nowhere", 2, "there is no file nowhere"),
    ("inspect chinese_roformer_L-6_H-384_A-6", 2, "is not downloaded: run `r"),
    ("download chinese_robert", 2, "is not in the catalogue"),
    ("convert SIM x.h5", 2, "no format goes with '.h5'"),
    ("convert SIM x.keras --model GPT2", 2, "model must be one of"),
    (f"inspect {'x' * 5000}", 2, "must be a path or a name, got 5,000 characters"),
    (f"convert SIM {'y' * 300}", 4, "File name too long"),
    ("convert bad x.keras", 3, "does not match its checksum"),
    ("convert SIM nowhere/x.keras", 4, "nowhere is not a folder: make it"),
    ("convert GPT bad", 4, "bad is a file: give the name of a folder"),
    ("embed --source SIM twice.csv --fields text", 2, "must name each column once"),
    ("similarity --source SIM twice.csv --fields text,y", 2, "must name each column"),
    ("tokenize --source SIM '1 二' --decode", 2, "must be integers between spaces"),
    ("tokenize --source SIM 9999 --decode", 2, "are 0 to 668, got 9999"),
    ("tokenize --source SIM 今 --vocabulary texts", 2, "[PAD] must be the first"),
    ("embed --source SIM nowhere.txt", 2, "cannot read nowhere.txt: No such file"),
    ("embed --source SIM .", 2, ". must be a file, and is a folder"),
    ("embed --source SIM gbk", 2, "line 1 of gbk must be UTF-8"),
    ("embed --source SIM texts -o no/x.npy", 4, "no is not a folder: make it"),
    ("generate --source GPT", 2, "give a file, or - for standard input, or --t"),
    ("generate --source GPT good -o x.txt", 2, "must end in .jsonl or .tsv"),
    ("generate --source GPT good -o d.tsv", 4, "d.tsv is a folder: give the"),
    ("similarity --source SIM", 2, "give a file, or - for standard input"),
    ("similarity --source SIM one.tsv", 2, "line 1 of one.tsv must have 2 columns,"),
    ("similarity --source SIM one.tsv", 2, "got 1: its columns are 'first', 'second',"),
    ("similarity --source SIM one.tsv --fields 1", 2, "fields must name 2 texts"),
    (
        "tokenize --source SIM 今 --vocabulary ''",
        2,
        "vocabulary : . must be a file, and",
    ),
    ("tokenize --source SIM --decode -1", 2, "are 0 to 668, got -1"),
    ("tokenize --source SIM --decode NaN", 2, "must be integers between spaces"),
    (f"tokenize --source SIM --decode {'9' * 5000}", 2, "must be integers between sp"),
    ("tokenize --source SIM 今 --max-length 0", 2, "max_length must be an integer of"),
    ("verify SMALL --bert4keras .", 6, "there is no bert4keras package"),
    ("verify SMALL --reference no", 2, "cannot read no: No such file"),
    ("verify SMALL --save-reference no/x", 4, "no is not a folder: make it first"),
    ("export SMALL old.tsv", 4, "old.tsv is a file: give the name of a folder"),
    ("export SMALL y --int8", 2, "int8 is for the formats 'onnx' and 'openvino', got"),
    (
        "export SMALL y --calibration-texts good",
        2,
        "texts to calibrate with are for int8 and the format",
    ),
    (
        "export SMALL y --format openvino --int8",
        2,
        "int8 in OpenVINO is calibrated with at least 20 different",
    ),
    ("export SMALL d.tsv", 4, "d.tsv exists: choose another name, or pass --overwrite"),
    (
        "export SMALL y --generator --calibration-texts good",
        2,
        "need no texts to calibrate with: leave out --calibration-texts",
    ),
    *(
        (f"{words} {file}", 2, message)
        for words in (
            "predict TRAINED",
            "evaluate TRAINED",
            f"{FINETUNE} --train",
        )
        for file, message in (
            ("names.csv --fields text,y", "must name the columns 'text'"),
            ("twice.csv --fields text,y", "must name each column once"),
            ("names.csv --fields 1,1", "must name different columns, got '1', '1'"),
        )
    ),
    (
        "generate --source GPT blank",
        2,
        "line 2 of blank: a text must be a str that is not empty",
    ),
    (
        "generate --source GPT --text ''",
        2,
        "text 1: a text must be a str that is not empty, got",
    ),
    (
        "generate --source GPT --text ' '",
        2,
        "text 1: a text must be a str that is not empty, got",
    ),
    ("generate --source GPT good --stop ''", 2, "a stop token must be in the voc"),
    (
        "paraphrase --source SIM blank",
        2,
        "line 2 of blank: a text must be a str that is not empty",
    ),
    *(
        (f"{words} {file}", 2, message)
        for words in (
            "index --source SIM -o i",
            "search INDEX --source SIM",
            "rerank --source SIM --query 今",
        )
        for file, message in (
            (
                "blank",
                "line 2 of blank: a text must be a str that is not empty, got ''",
            ),
            (
                "spaces",
                "line 2 of spaces: a text must be a str that is not empty, got ' '",
            ),
            ("empty", "empty has no row"),
        )
    ),
    *(
        (f"{words} names.csv{fields}", 2, message)
        for words in (
            "embed --source SIM",
            "index --source SIM -o i",
            "search INDEX --source SIM",
        )
        for fields, message in (
            (
                "",
                "name the columns of its texts with --fields; if it is a row, pass",
            ),
            (" --fields sentence,mood", "--fields must name 1 column, got sentence, m"),
        )
    ),
    ("index good --source SIM -o good", 4, "good is a file: give the name of a folder"),
    ("inspect EXPORT", 2, "EXPORT holds an export, which is no checkpoint: give the"),
    ("convert EXPORT x", 2, "or run it by ServedEncoder, ServedGenerator or load_expo"),
    ("predict TRAINED names.csv", 2, "seems to be a header: its label 'mood' is on no"),
    (f"{FINETUNE} --train names.csv", 2, "seems to be a header: its label 'mood' is"),
    (f"{FINETUNE} --train odd.tsv --valid one.tsv", 2, "one.tsv must have 2 columns"),
    (f"{FINETUNE} --train odd.tsv --test empty", 2, "a table must be"),
    ("evaluate TRAINED one.tsv", 2, "line 1 of one.tsv must have 2 columns, got 1"),
    ("evaluate TRAINED odd.tsv -o TRAINED", 4, "TRAINED exists: choose another name"),
    ("pretrain mlm names.csv --fields text -o run", 2, "must name the columns 'text'"),
    *(
        (f"{words} -o {folder}", 4, message)
        for words in (FINETUNE + " --train odd.tsv", "pretrain mlm texts")
        for folder, message in (
            ("good", "good is a file: give the name of a folder"),
            ("BROKEN", "BROKEN holds no training but other files: choose another fo"),
            ("DONE", "DONE holds another run: "),
        )
    ),
    ("verify SMALL --python here --reference no", 2, "cannot read no: No such file"),
    ("serve SMALL --host 203.0.113.1", 2, "the server cannot listen at 203.0.113.1"),
]
WITH_MODELS = [
    ("verify SMALL --python here --lengths 0", 2, "lengths must be 1 or more"),
    ("verify SMALL --published", 2, "there are no published values for"),
    ("fill-mask --source GPT 今天", 2, "a text to fill must hold [MASK], got '今天'"),
    ("fill-mask --source V2 [MASK]", 3, "no mlm head"),
    ("fill-mask --source LM [MASK]", 2, "comes without a vocabulary"),
    ("embed --source LM texts", 2, "comes without a bert_config.json"),
    ("generate --source GPT strange", 2, "line 3 of strange: a prompt must have tok"),
    ("generate --source GPT long", 2, "line 2 of long: a prompt must be shorter tha"),
    ("generate --source GPT good --stop 今天", 2, "a stop token must be in the"),
    ("generate --source GPT good --min-length 999", 2, "line 1 of good: at least"),
    ("generate --source GPT good --min-length -1", 2, "error: min_length must be an"),
    (
        "generate --source GPT good --max-length 4 --max-new-tokens 4",
        2,
        "a text is limited by max_length or by max_new_tokens, got",
    ),
    *(
        (f"{words} --source {source}", 3, hint)
        for words in (
            "paraphrase good",
            "rerank one.tsv --query 今",
            "similarity --pair 今 天",
        )
        for source, hint in (
            ("roformer-gpt-char", "it holds a RoFormerCausalLM, for `roformer-keras g"),
            ("roformer-char", "it holds a RoFormerMaskedLM, for `roformer-keras fill-"),
        )
    ),
    ("fill-mask --source V2 [MASK]", 3, "it holds a RoFormerBackbone, for `roformer-k"),
    ("embed --source EXPORT good", 2, "EXPORT holds an export, which is no checkpoint"),
    ("index good -o i --source LM", 2, "comes without a bert_config.json"),
    ("paraphrase --source SIM long --max-length 64", 2, "line 2 of long: a prompt mus"),
    (
        "paraphrase --source SIM good --masked-positions 2",
        2,
        "line 2 of good: masked_positions must be integers from 1 to 1",
    ),
    (
        "similarity --source SIM --pair 今 ''",
        2,
        "pair 1: a text must be a str that is",
    ),
    (
        "similarity --source ENCODER --pair 你好 ' '",
        2,
        "pair 1: a text must be a str that is",
    ),
    (
        "similarity --source ENCODER --pair 你好 好 --vocabulary good",
        2,
        "leave out --config and --vocabulary",
    ),
    ("verify SMALL --reference gbk", 2, "gbk is not a whole reference file"),
    ("verify SMALL --python nowhere", 6, "cannot run nowhere: No such file"),
    ("evaluate SMALL half.tsv", 2, "must be a preset folder that a task was s"),
    ("evaluate CLASSES half.tsv", 2, "line 1 of half.tsv: a label must be a name"),
    (
        "evaluate CLASSES half.tsv --on-bad-row skip",
        2,
        "half.tsv has no row with a lab",
    ),
    ("evaluate CLASSES odd.tsv --on-bad-row skip", 2, "odd.tsv must have rows that"),
    ("evaluate CLASSES odd.tsv -o no/x", 4, "no is not a folder: make it first"),
    ("generate --source CLASSES --text 今", 2, "ask it by roformer-keras predict"),
    (
        "similarity --source CLASSES odd.tsv",
        2,
        "must hold one of RoFormerSentenceEncoder, RoFormerSim, got a RoFormerTextC",
    ),
    ("predict CLASSES old.tsv --fields 7", 2, "line 1 of old.tsv must have 7 columns"),
    ("predict CLASSES -", 2, "standard input has no row"),
    ("evaluate CLASSES --fields text,y twice.csv", 2, "must name each column once"),
    (
        "generate --source BROKEN --text 天",
        2,
        "must have the field 'model' of type str",
    ),
    (
        "finetune text-classification --train odd.tsv -o run --source no.zip",
        2,
        "no file or folder no.zip here",
    ),
    (
        "finetune text-classification --train half.tsv -o run --source SMALL",
        2,
        "line 1 of half.tsv: a label must be a name",
    ),
]
# Files of the folder in which the commands run.
FILES = {
    "texts": ["今天"],
    "good": ["今天", "我"],
    "good.txt": ["今天", "我"],
    "blank": ["今天", "", "我"],
    "spaces": ["今天", " ", "我"],
    "INDEX/index.json": ['{"source": "x", "count": 0, "probes": []}'],
    "strange": ["今天", "我", "\U0001f44d\U0001f44d"],
    "long": ["今天", "我" * 300],
    "one.tsv": ["今天"],
    "half.tsv": ["今\t"],
    "bad.jsonl": ['{"first": "今", "second": "天"}', "今"],
    "one.jsonl": ['{"first": "今", "third": "天"}'],
    "old.tsv": ["old"],
    "twice.csv": ["text,y,text", "今,天,气", "天,今,气"],
    "odd.tsv": ["今\t妙", "天\t不"],
    "names.csv": ["sentence,mood", "今,妙", "天,不", "气,妙", "天,不"],
    "words.csv": ["今,妙", "天,不", "气,不", "天,不"],
    "TRAINED/settings.json": [
        '{"settings": {"task": "text-classification", "train": "x"}, "inputs": {}}'
    ],
    "DONE/settings.json": ['{"settings": {"task": "x"}, "inputs": {}}'],
    "DONE/state.safetensors": [],
    "EXPORT/export.json": ["{}"],
    "BROKEN/export.json": ['{"generator": {}}'],
    "empty": [],
}


def fill_folder(folder):
    """Writes files that commands can read, and others that they cannot."""
    for name, lines in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_lines(folder / name, lines)
    (folder / "gbk").write_bytes("今天\n".encode("gbk"))
    (folder / "d.tsv").mkdir()
    np.save(folder / "old.npy", np.zeros(1))
    damaged = bytearray(SIM.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (folder / "bad").write_bytes(damaged)
    return folder


def check_error(line, code, message, folder, monkeypatch, capsys):
    """Runs a line in a folder: it is one line of error, and writes nothing."""
    monkeypatch.chdir(folder)
    # Standard input is empty, whatever the tests run in.
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    before = listing(folder)
    words = [str(PATHS.get(word, word)) for word in shlex.split(line)]
    exit_code, out, err = run_main(*words, capsys=capsys)
    assert (exit_code, out) == (code, "")
    lines = err.splitlines()
    assert lines[0].startswith("roformer-keras: error: ")
    assert message in lines[0]
    # Arguments of Python are no way out here.
    assert not re.search(r"\w=(True|False|None|['\[(]|$)|\w+= ", lines[0])
    # Advice may follow an empty line; nothing else may follow.
    assert len(lines) == 1 or lines[1] == ""
    assert listing(folder) == before
