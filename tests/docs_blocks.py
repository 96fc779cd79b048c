"""Runs the blocks of pages, and the examples of docstrings, in one process.

    python tests/docs_blocks.py PAGE [CHECKPOINTS]
    python tests/docs_blocks.py [NAME ...]     examples of names that contain one

They run in the current folder. Lines of shell blocks are commands of this package, in
the process too; `pip` is passed over. Repositories of `owner` are in the server of
`hub_server`. If there is a folder of checkpoints, those that come with the package are
read from there, see `one_layer.py`. Models of these checkpoints are loaded once.
"""

import doctest
import functools
import re
import shlex
import sys
import time
import zlib
from pathlib import Path

import numpy as np
from common import ROOT
from hub_server import OWNER
from one_layer import read_shipped_from

from roformer_keras.cli import main
from roformer_keras.hub import catalog

# What is added to a command that has this word so that it is short.
SHORT = {
    "MRPC/recipe.toml": [
        *("--epochs", "1", "--learning-rate", "1e-3", "--max-length", "32")
    ],
    "--save-reference": ["--lengths", "1,9"],
    "lm": ["--num-layers", "1", "--hidden-dim", "32"],
}
# What a Python block has in place of what.
SHORT_CODE = {
    "num_layers=2,": "num_layers=1,",
    'cases=["encoder", "mlm"])': 'cases=["encoder", "mlm"], lengths=(1, 9))',
}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks_of(text):
    """Line, language and content of each block of a page."""
    for match in re.finditer(r"^```(shell|python)\n(.*?)^```", text, re.S | re.M):
        yield text.count("\n", 0, match.start()) + 2, match[1], match[2]


def commands_of(content):
    """The arguments of each command of this package in a shell block."""
    for line in content.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:2] == ["pip", "install"] or not words:
            continue
        command, *arguments = words
        assert command == "roformer-keras", line
        yield arguments


def run_command(arguments):
    for word, more in SHORT.items():
        arguments = [*arguments, *(more if word in arguments else ())]
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    assert code == 0, arguments


def run_page(path):
    text = path.read_text(encoding="utf-8").replace("owner/", f"{OWNER}/")
    names: dict = {"__name__": "page"}
    for line, language, content in blocks_of(text):
        print(f"=== {path.name}:{line}", flush=True)
        start = time.process_time()
        if language == "shell":
            for arguments in commands_of(content):
                run_command(arguments)
        else:
            for before, after in SHORT_CODE.items():
                content = content.replace(before, after)
            # Errors show line numbers of the page.
            code = compile("\n" * (line - 1) + content, str(path), "exec")
            exec(code, names)
        print(f"--- {time.process_time() - start:.1f} CPU seconds", flush=True)
    print("=== done")


def examples():
    """Modules, classes and functions with examples in their docstring, by name."""
    from tools.api_reference import documented, load_package

    return {
        member.path: member
        for member in documented(load_package())
        if ">>> " in member.docstring.value
    }


def run_examples(names):
    """The number of docstrings whose examples ran, and that of examples that failed.

    Each begins with the imports of docs/api/index.md.
    """
    start: dict = {}
    index = (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8")
    (_, _, imports), *_ = blocks_of(index)
    exec(imports, start)
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=FLAGS)
    count = 0
    for path, member in examples().items():
        if path not in names:
            continue
        before = time.process_time()
        text = member.docstring.value.replace("owner/", f"{OWNER}/")
        line = member.docstring.lineno - 1
        test = parser.get_doctest(text, dict(start), path, str(member.filepath), line)
        failed = runner.run(test).failed
        seconds = time.process_time() - before
        print(f"=== {path}: {seconds:.1f} CPU seconds, {failed} failed", flush=True)
        count += 1
    return count, runner.failures


# Path, class and arguments -> a model, and its state when it was loaded.
LOADED: dict = {}


def load_once(setattr=setattr):
    """Models of the package's checkpoints are loaded once; after a change, again."""
    from roformer_keras.models.preset import PresetModel

    load = PresetModel.from_preset.__func__

    # Its arguments are looked up.
    @functools.wraps(load)
    def from_preset(cls, source, **options):
        names = [entry.alias for entry in catalog.SHIPPED]
        if not isinstance(source, str) or source not in names:
            return load(cls, source, **options)
        key = (str(catalog.resolve(source)), cls, repr(options))
        model, state = LOADED.get(key, (None, None))
        if model is None or state_of(model) != state:
            model = load(cls, source, **options)
            LOADED[key] = model, state_of(model)
        return model

    setattr(PresetModel, "from_preset", classmethod(from_preset))


def state_of(model):
    weights = [
        (weight.path, weight.trainable, zlib.crc32(np.asarray(weight).tobytes()))
        for weight in model.weights
    ]
    return weights, model.compiled, id(model.tokenizer)


def leave_out_xla(setattr=setattr):
    """TensorFlow makes graphs of what writes texts, which XLA compiles for long."""
    from roformer_keras.base import compiled

    make = compiled._in_tensorflow

    def in_tensorflow(compiled, function):
        compiled._xla = False
        return make(compiled, function)

    setattr(compiled, "_in_tensorflow", in_tensorflow)


if __name__ == "__main__":
    load_once()
    if sys.argv[1:2] and sys.argv[1].endswith(".md"):
        page, *checkpoints = sys.argv[1:]
        for folder in checkpoints:
            read_shipped_from(folder)
        run_page(Path(page))
    else:
        chosen = [
            path
            for path in examples()
            if any(name in path for name in sys.argv[1:] or [""])
        ]
        count, failed = run_examples(chosen)
        raise SystemExit(f"=== {count} done, {failed} failed" if failed else 0)
