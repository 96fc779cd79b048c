"""A library that is not installed is named before a backend is imported.

In this tier an import of one fails the test.
"""

import sys
import types

import pytest
from common import SIM, parser_of, run_main, write_file

from roformer_keras.base import extras
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.cli.main import find_commands

# A line of each command that needs no library; {} is where an option goes.
LINES = {
    "completion": "bash",
    "convert": "SIM out",
    "download": "name",
    "embed": "texts.txt",
    "evaluate": "SIM rows.tsv",
    "export": "SIM out",
    "fill-mask": "[MASK]",
    "finetune": "text-classification --train rows.tsv -o run",
    "generate": "--text 今",
    "index": "texts.txt -o index",
    "inspect": "SIM",
    "list": "",
    "paraphrase": "texts.txt",
    "port": "script.py",
    "predict": "SIM rows.tsv",
    "pretrain": "mlm texts.txt -o run",
    "rerank": "texts.txt --query 今",
    "search": "index --text 今",
    "serve": "SIM",
    "similarity": "rows.tsv",
    "tokenize": "今",
    "verify": "SIM",
}
# Options that need a library, of every command that has them: name, what is typed.
OPTIONS = (
    ("engine", "--engine ray", "ray"),
    ("engine", "--engine ray", "pyarrow"),
    ("engine", "--engine openvino", "openvino"),
    ("worker_engine", "--worker-engine openvino-int8", "openvino"),
    ("source", "hf://owner/name", "huggingface_hub"),
    ("teacher", "--teacher hf://owner/name", "huggingface_hub"),
    ("target", "hf://owner/name", "huggingface_hub"),
    ("FILES", "rows.parquet", "pyarrow"),
    ("FILES", "rows.feather", "pyarrow"),
    ("FILES", "rows.xlsx", "openpyxl"),
    ("format", "--format onnx", "onnx"),
    ("format", "--format onnx", "onnxruntime"),
    ("format", "--format openvino", "openvino"),
    ("format", "--format arrow", "pyarrow"),
    ("format", "--format xlsx", "openpyxl"),
)
# What the commands need for other reasons.
OTHERS = (
    ("embed", "texts.txt -o x.parquet", "pyarrow"),
    ("evaluate", "SIM rows.tsv", "scipy"),
    ("evaluate", "SIM rows.tsv", "sklearn"),
    ("evaluate", "SIM rows.tsv -o out", "matplotlib"),
    ("export", "SIM out", "tensorflow"),
    ("export", "SIM out --format openvino --int8", "nncf"),
    ("export", "SIM out --generator", "openvino"),
    ("finetune", f"{LINES['finetune']} --config hub.toml", "huggingface_hub"),
    ("finetune", "text-classification --config table.toml -o run", "pyarrow"),
    *(("finetune", LINES["finetune"], name) for name in extras.NEEDS["a fine-tuning"]),
    ("pretrain", "mlm --config corpus.toml -o run", "openpyxl"),
    *(("pretrain", LINES["pretrain"], name) for name in extras.NEEDS["a training"]),
    *(("serve", "SIM", name) for name in extras.NEEDS["roformer-keras serve"]),
)
CONFIGS = {
    "hub.toml": 'source = "hf://owner/name"',
    "table.toml": 'task = "text-classification"\ntrain = "rows.parquet"',
    "corpus.toml": '[[data]]\nfiles = ["rows.xlsx"]',
}


def cells():
    """Command, words after it, and the library that is missing."""
    for command, module in find_commands().items():
        actions = {action.dest: action for action in parser_of(command)._actions}
        for name, typed, library in OPTIONS:
            words = LINES[command].split()
            if name == "FILES":
                for file in getattr(module, "FILES", ()):
                    if file == "index" or file not in actions:
                        continue
                    flags = actions[file].option_strings
                    if flags and flags[0] in words:
                        words[words.index(flags[0]) + 1] = typed
                    elif flags:
                        words += [flags[0], typed]
                    else:
                        words = [one for one in words if ".t" not in one] + [typed]
                    yield command, " ".join(words), library
                continue
            action = actions.get(name)
            value = typed.split()[-1]
            if action is None or (action.choices and value not in action.choices):
                continue
            if typed.startswith("--"):
                words.append(typed)
            elif action.option_strings:
                words += ["--source", typed]
            else:
                at = 0 if name == "source" else 1
                words[at] = typed
            yield command, " ".join(words), library
    yield from OTHERS


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("rows.tsv", "texts.txt", "rows.parquet", "rows.feather", "rows.xlsx"):
        (tmp_path / name).write_text("好\t差\n")
    for name, lines in CONFIGS.items():
        (tmp_path / name).write_text(lines, encoding="utf-8")
    (tmp_path / "index").mkdir()
    record = {"source": "roformer-sim-char", "count": 1, "probes": []}
    write_file(tmp_path / "index" / "index.json", record)
    # Those of this table, none of which is imported.
    for name in {library for names in extras.NEEDS.values() for library in names}:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))


def test_a_missing_library_is_named_first(here, monkeypatch, capsys):
    assert LINES.keys() == find_commands().keys()
    wrong, named = [], set()
    for command, line, library in cells():
        words = [str(SIM) if word == "SIM" else word for word in line.split()]
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, library, None)
            try:
                code, out, err = run_main(command, *words, capsys=capsys)
            except (AssertionError, ImportError, AttributeError) as error:
                code, out, err = None, "", repr(error)
        extra = f"pip install 'roformer-keras[{extras._EXTRA_OF[library]}]'\n"
        message = f" needs {library}, which cannot be imported"
        named.add((command, library))
        if (code, out) != (2, "") or message not in err or not err.endswith(extra):
            wrong.append((command, line, library, code, err))
    assert wrong == []
    assert len(named) > 70


def test_a_name_of_the_package_that_needs_a_library_names_its_extra(
    tmp_path, monkeypatch
):
    from roformer_keras import server

    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "roformer_keras.server.app", raising=False)
    monkeypatch.delitem(vars(server), "create_app", raising=False)
    message = (
        r"roformer_keras\.server\.create_app needs fastapi, which cannot be imported "
        r"\(.*\); run: pip install 'roformer-keras\[serve\]'"
    )
    with pytest.raises(ConfigurationError, match=message):
        _ = server.create_app
    with pytest.raises(ConfigurationError, match=message):
        from roformer_keras.server import create_app  # noqa: F401
    # Any other module that is missing is a fault of this package.
    monkeypatch.setitem(sys.modules, "fastapi", types.ModuleType("fastapi"))
    monkeypatch.setitem(sys.modules, "roformer_keras.server.app", None)
    with pytest.raises(ModuleNotFoundError, match=r"server\.app"):
        _ = server.create_app
