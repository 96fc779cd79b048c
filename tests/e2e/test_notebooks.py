"""The notebooks run without complaints, and their committed outputs hold.

Every run checks the outputs that are committed, the names that cells use and one short
notebook; the weekly job runs all.
"""

import ast
import cmath
import importlib
import inspect
import os
import re

import nbformat
import numpy as np
import pytest
from common import ROOT, reference_folder
from nbclient import NotebookClient

FOLDER = ROOT / "notebooks"
NOTEBOOKS = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
# The notebook that runs every time.
SHORT = "paper_experiments"
# Cells that print the same on every machine.
REPRODUCIBLE = {
    "load_verify_convert": "inspect tensors tokenizer sim decay labels",
    "generate": "continue beam stream many paraphrase similarity",
    "paper_experiments": "translation performers lengths extrapolation",
}
ABSOLUTE_PATH = re.compile(
    r"(?<![\w.])(/(work|root|tmp|home|Users|usr|opt|mnt|private|var)/|[A-Z]:\\)"
)


def read(name):
    return nbformat.read(NOTEBOOKS[name], as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(notebook, cell_id=None):
    """The printed text of a cell, or of all cells."""
    cells = [c for c in code_cells(notebook) if cell_id in (None, c.id)]
    outputs = [output for cell in cells for output in cell.outputs]
    return "".join(o.text for o in outputs if o.output_type == "stream")


def complaints(notebook):
    """Errors and standard error."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    return [
        output
        for output in outputs
        if output.output_type == "error" or output.get("name") == "stderr"
    ]


def pictures(notebook):
    """The ids of cells that draw."""
    return [
        cell.id
        for cell in code_cells(notebook)
        if any("image/png" in output.get("data", {}) for output in cell.outputs)
    ]


def identities(notebook):
    """Name of an identity -> difference, as the notebook on RoPE prints them."""
    differences = re.findall(
        r"^(.+): difference (\S+)$", printed(notebook), re.MULTILINE
    )
    return {name: float(difference) for name, difference in differences}


# What a copy of a notebook has in place of what, so that it is short.
SHORTER = {
    "generate": {
        "lengths = [16, 32, 64, 128, 256]": "lengths = [16, 64]",
        "for _ in range(3):": "for _ in range(1):",
        "num_layers=6": "num_layers=1",
    },
    "text_classification": {
        '"roformer-char"': "ONE_LAYER",
        "EPOCHS, BATCH = 4, 32": "EPOCHS, BATCH = 2, 16",
    },
    "named_entities": {
        '"roformer-char"': "ONE_LAYER",
        "EPOCHS, BATCH = 5, 32": "EPOCHS, BATCH = 2, 16",
    },
}


def run(name, one_layer):
    """A copy in memory, executed in the notebooks' folder as Jupyter would."""
    # The first import on a machine prints that it builds a cache of fonts.
    import matplotlib.font_manager  # noqa: F401

    # ipykernel does not watch file descriptor 2 with pytest's variable.
    prefix = "ROFORMER_KERAS_NOTEBOOK_"
    environment = {
        key: value
        for key, value in os.environ.items()
        if key != "PYTEST_CURRENT_TEST" and not key.startswith(prefix)
    }
    # Notebooks that train use a few rows.
    environment |= {f"{prefix}ROWS": "32", "PYTHONPATH": str(ROOT)}
    if (reference := reference_folder()) is not None:
        environment["ROFORMER_KERAS_REFERENCE"] = str(reference.resolve())
    notebook = read(name)
    for before, after in SHORTER.get(name, {}).items():
        (cell,) = (cell for cell in code_cells(notebook) if before in cell.source)
        path = one_layer / "chinese_roformer-char_L-4_H-192_A-6.zip"
        after = after.replace("ONE_LAYER", repr(str(path)))
        cell.source = cell.source.replace(before, after)
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(FOLDER)}},
    )
    return client.execute(env=environment)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_committed(name):
    """Each ran once from top to bottom, is thin, and shows nothing of the machine."""
    notebook = read(name)
    cells = code_cells(notebook)
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
    assert complaints(notebook) == []
    text = NOTEBOOKS[name].read_text(encoding="utf-8")
    text = re.sub(r'"image/png": "[^"]*"', "", text)
    assert not ABSOLUTE_PATH.findall(text) and str(ROOT) not in text
    assert NOTEBOOKS[name].stat().st_size < 600_000
    for cell in cells:
        # Times of execution would change with each commit.
        assert cell.metadata == {}
        if "print(" in cell.source or "plt.show()" in cell.source:
            assert cell.outputs, f"{cell.id} has no output"
        assert not re.search(r"^\s*class ", cell.source, re.MULTILINE)
    assert missing_names("\n".join(cell.source for cell in cells)) == []


def missing_names(source):
    """Names, methods and keyword arguments of this package that do not exist.

    Models are followed that a line makes by a class, as by `RoFormerSim.from_preset`.
    """
    known, models, missing = {}, set(), []

    def resolve(node):
        if isinstance(node, ast.Attribute):
            return getattr(resolve(node.value), node.attr, None)
        return known.get(node.id) if isinstance(node, ast.Name) else None

    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=module) if module.startswith("roformer_keras"):
                owner = importlib.import_module(module)
                for alias in node.names:
                    known[alias.name] = getattr(owner, alias.name, None)
                    if not hasattr(owner, alias.name):
                        missing.append(f"{module}.{alias.name}")
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=function)):
                callee = resolve(function)
                owner = getattr(callee, "__self__", callee)
                known[name] = owner if inspect.isclass(owner) else None
                models.add(name)
            case ast.Call(func=function):
                callee = resolve(function)
                if callee and getattr(function, "id", None) in models:
                    callee = callee.__call__
                if callee is None and resolve(getattr(function, "value", None)):
                    missing.append(ast.unparse(function))
                elif callee is not None:
                    parameters = inspect.signature(callee).parameters
                    kinds = {parameter.kind for parameter in parameters.values()}
                    names = {word.arg for word in node.keywords if word.arg}
                    if inspect.Parameter.VAR_KEYWORD not in kinds:
                        unknown = sorted(names - parameters.keys())
                        missing += [f"{ast.unparse(function)}: {k}" for k in unknown]
    return missing


def test_names_that_are_missing_are_seen():
    assert missing_names(
        "from roformer_keras import RoFormerSim, RoFormerSum\n"
        "sim = RoFormerSim.from_preset('x', keep_token=[1])\n"
        "sim.paraphrases('x'), sim.similarity('x', 'y', length=3)\n"
    ) == ["roformer_keras.RoFormerSum", "sim.paraphrases", "sim.similarity: length"]


def test_committed_figures():
    reviews = printed(read("text_classification"), "report")
    assert float(re.search(r"^accuracy +(\S+)", reviews, re.MULTILINE)[1]) > 0.8
    titles = read("named_entities")
    f1 = re.search(r"^f1 +(\S+)", printed(titles, "report"), re.MULTILINE)[1]
    assert float(f1) > float(re.search(r"up: (\S+)", printed(titles, "baseline"))[1])
    # The page of the experiments has their tables.
    page = ROOT / "checkpoints" / "training" / "README.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    for cell_id in REPRODUCIBLE["paper_experiments"].split():
        table = printed(read("paper_experiments"), cell_id).splitlines()
        start = lines.index(table[0])
        assert len(table) > 3 and lines[start : start + len(table)] == table


@pytest.mark.parametrize(
    ("name", "width", "line"),
    [
        ("load_verify_convert", 128, r"^ *(\d+) +(\S+)$"),
        ("rope_from_two_dimensions", 64, r"^ +(\d+) +(\S+) +\S+$"),
    ],
)
def test_decay_is_that_of_the_paper(name, width, line):
    """The mean of |S_1|, ..., |S_(d/2)|; Su et al. 2021, section 3.4.3."""
    bounds = re.findall(line, printed(read(name), "decay"), re.MULTILINE)
    assert len(bounds) >= 6
    for distance, bound in bounds:
        angles = int(distance) * 10000 ** (-2 * np.arange(width // 2) / width)
        sums = np.cumsum([cmath.exp(1j * angle) for angle in angles])
        assert float(bound) == pytest.approx(np.abs(sums).mean(), abs=0.006)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == SHORT else pytest.mark.weekly)
        for name in NOTEBOOKS
    ],
)
def test_runs_and_prints_what_is_committed(name, one_layer):
    before = sorted(FOLDER.iterdir())
    notebook, committed = run(name, one_layer), read(name)
    assert sorted(FOLDER.iterdir()) == before
    assert complaints(notebook) == []
    assert pictures(notebook) == pictures(committed)
    for cell_id in REPRODUCIBLE.get(name, "").split():
        assert printed(notebook, cell_id) == printed(committed, cell_id)
    assert list(identities(notebook)) == list(identities(committed))
    if name == "rope_from_two_dimensions":
        source = "\n".join(cell.source for cell in code_cells(notebook))
        checks = re.findall(r'^check\(\s*"', source, re.MULTILINE)
        assert len(identities(notebook)) == len(checks) > 20
        differences = {*identities(notebook).values(), *identities(committed).values()}
        assert max(differences) < 1e-4
    elif name == "load_verify_convert":
        assert "passed: all 24 outputs within" in printed(notebook, "verify")
        _, _, *targets = printed(notebook, "convert").splitlines()
        counts = [re.search(r"(\d+) of (\d+)$", line).groups() for line in targets]
        assert len(counts) == 4 and all(equal == total for equal, total in counts)
    elif name == "generate":
        assert "the same alone: True" in printed(notebook, "many")
        assert "the same 64 tokens: True" in printed(notebook, "speed")
