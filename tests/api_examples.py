"""Runs the examples of the docstrings, in one process and in the current folder.

    python tests/api_examples.py [NAME ...]     all, or those of names that contain one

Each begins with the imports of docs/api/index.md. Repositories of `owner` are those of
`hub_server`. If the variable CHECKPOINTS names a folder, the checkpoints that come with
the package are read from there, see `one_layer.py`.
"""

import doctest
import os
import re
import sys
import time

from hub_server import OWNER
from one_layer import read_shipped_from

from tools.api_reference import PAGES, documented, load_package

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples():
    """What has examples in its docstring, by name."""
    return {
        found.path: found
        for found in documented(load_package())
        if ">>> " in found.docstring.value
    }


def imports():
    """The code before every example."""
    text = (PAGES / "index.md").read_text(encoding="utf-8")
    return re.search(r"^```python\n(.*?)^```", text, re.S | re.M)[1]


def run(names):
    start: dict = {}
    exec(imports(), start)
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=FLAGS)
    count = 0
    for path, found in examples().items():
        if names and not any(name in path for name in names):
            continue
        before = time.perf_counter()
        text = found.docstring.value.replace("owner/", f"{OWNER}/")
        line = found.docstring.lineno - 1
        test = parser.get_doctest(text, dict(start), path, str(found.filepath), line)
        failed = runner.run(test).failed
        seconds = time.perf_counter() - before
        print(f"=== {path}: {seconds:.1f} s, {failed} failed", flush=True)
        count += 1
    print(f"=== {count} done, {runner.failures} failed")
    return 1 if runner.failures else 0


if __name__ == "__main__":
    if folder := os.environ.get("CHECKPOINTS"):
        read_shipped_from(folder)
    raise SystemExit(run(sys.argv[1:]))
