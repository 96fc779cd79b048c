"""The notebooks run as they are, and are committed as they ran."""

import ast
import base64
import cmath
import os
import re

import nbformat
import pytest
from common import ROOT, reference_folder
from nbclient import NotebookClient

from roformer_keras import verify

FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
TOUR = FOLDER / "load_verify_convert.ipynb"
GENERATE = FOLDER / "generate.ipynb"
ROPE = FOLDER / "rope_from_two_dimensions.ipynb"
PAPER = FOLDER / "paper_experiments.ipynb"

# Cells that print what the experiments found.
EXPERIMENTS = ("translation", "performers", "lengths", "extrapolation")
# Cells of the tour that print the same on every machine.
REPRODUCIBLE = ("inspect", "tensors", "tokenizer", "sim", "decay", "labels")
PICTURES = ("differences", "decay-plot", "sinusoidal", "masks", "attention")

_ABSOLUTE_PATH = re.compile(
    r"(?<![\w.])(/(work|root|tmp|home|Users|usr|opt|mnt|private|var)/|[A-Z]:\\)"
)


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(notebook, cell_id):
    (cell,) = (cell for cell in notebook.cells if cell.id == cell_id)
    return "".join(o.text for o in cell.outputs if o.output_type == "stream")


def complaints(notebook):
    """Errors and whatever went to standard error."""
    return [
        output
        for cell in code_cells(notebook)
        for output in cell.outputs
        if output.output_type == "error" or output.get("name") == "stderr"
    ]


def pictures(notebook):
    """PNG bytes by the id of the cell that drew them."""
    return {
        cell.id: base64.b64decode(output.data["image/png"])
        for cell in code_cells(notebook)
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    }


def identities(notebook):
    """Differences by what is equal, as the notebook on RoPE prints them."""
    text = "".join(printed(notebook, cell.id) for cell in code_cells(notebook))
    found = re.findall(r"^(.+): difference (\S+)$", text, re.MULTILINE)
    assert len(found) == len(dict(found))
    return {what: float(difference) for what, difference in found}


def decay(notebook):
    """Relative distance to bound, as the tour prints them."""
    _, *lines = printed(notebook, "decay").splitlines()
    return {int(m): float(bound) for m, bound in map(str.split, lines)}


def decay_bound(distance, dim=128):
    """The mean of |S_1|, ..., |S_(d/2)|, written out; Su et al. 2021, section 3.4.3."""
    total, sums = 0j, []
    for pair in range(dim // 2):
        total += cmath.exp(1j * distance * 10000 ** (-2 * pair / dim))
        sums.append(abs(total))
    return sum(sums) / len(sums)


def run(path):
    """A copy in memory, executed in the notebooks' folder as Jupyter would."""
    # Otherwise the first one of a machine says that it builds a cache of fonts.
    import matplotlib.font_manager  # noqa: F401

    # ipykernel does not watch file descriptor 2 where it sees pytest's variable.
    ours = (
        "PYTEST_CURRENT_TEST",
        "ROFORMER_KERAS_NOTEBOOK_GPT",
        "ROFORMER_KERAS_NOTEBOOK_SOURCE",
        "XLA_FLAGS",
    )
    environment = {k: v for k, v in os.environ.items() if k not in ours}
    # Those that train do so on a few rows here.
    environment["ROFORMER_KERAS_NOTEBOOK_ROWS"] = "64"
    environment["PYTHONPATH"] = str(ROOT)
    reference = reference_folder()
    if reference is not None:
        environment["ROFORMER_KERAS_REFERENCE"] = str(reference.resolve())
    notebook = read(path)
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


@pytest.fixture(scope="module")
def executed():
    before = sorted(FOLDER.iterdir())
    notebooks = {path: run(path) for path in NOTEBOOKS}
    assert sorted(FOLDER.iterdir()) == before
    return notebooks


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestCommitted:
    def test_ran_once_from_top_to_bottom(self, path):
        cells = code_cells(read(path))
        counts = [cell.execution_count for cell in cells]
        assert counts == list(range(1, len(cells) + 1))
        for cell in cells:
            if "print(" in cell.source or "plt.show()" in cell.source:
                assert cell.outputs, f"{cell.id} has no output"

    def test_has_no_complaints(self, path):
        assert complaints(read(path)) == []

    def test_says_nothing_of_the_machine(self, path):
        text = re.sub(r'"image/png": "[^"]*"', "", path.read_text(encoding="utf-8"))
        assert _ABSOLUTE_PATH.findall(text) == []
        assert str(ROOT) not in text
        # Times of execution, which change in every commit, would stand here.
        assert all(cell.metadata == {} for cell in code_cells(read(path)))

    def test_is_thin(self, path):
        assert path.stat().st_size < 600_000
        for cell in code_cells(read(path)):
            defined = [
                node.name
                for node in ast.walk(ast.parse(cell.source))
                if isinstance(node, ast.ClassDef)
            ]
            assert defined == [], f"{cell.id} defines {defined}: import it instead"


def test_there_are_notebooks():
    assert TOUR in NOTEBOOKS


def test_committed_pictures_are_there():
    drawn = pictures(read(TOUR))
    assert tuple(drawn) == PICTURES
    assert tuple(pictures(read(GENERATE))) == ("heat-map", "speed-plot")
    assert all(png.startswith(b"\x89PNG") for png in drawn.values())


def test_committed_trainings_beat_what_needs_none():
    reviews = printed(read(FOLDER / "text_classification.ipynb"), "report")
    assert float(re.search(r"^accuracy +(\S+)", reviews, re.MULTILINE)[1]) > 0.8
    titles = read(FOLDER / "named_entities.ipynb")
    found = re.search(r"^f1 +(\S+)", printed(titles, "report"), re.MULTILINE)[1]
    looked_up = re.search(r"up: (\S+)", printed(titles, "baseline"))[1]
    assert float(found) > float(looked_up)


def test_decay_falls_and_is_that_of_the_paper():
    bounds = decay(read(TOUR))
    assert list(bounds) == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256]
    values = list(bounds.values())
    assert values == sorted(values, reverse=True)
    assert values[-1] < values[0] / 4
    for distance, bound in bounds.items():
        assert bound == pytest.approx(decay_bound(distance), abs=0.006)


def test_committed_identities_of_rope_hold():
    notebook = read(ROPE)
    differences = identities(notebook)
    source = "\n".join(cell.source for cell in code_cells(notebook))
    assert len(differences) == len(re.findall(r'^check\(\s*"', source, re.MULTILINE))
    assert len(differences) > 20
    assert max(differences.values()) < 1e-4
    # As the tour has them, of another width.
    sums = re.findall(
        r"^ +(\d+) +(\S+) +\S+$", printed(notebook, "decay"), re.MULTILINE
    )
    assert [int(m) for m, _ in sums] == [0, 1, 4, 16, 64, 256]
    for m, found in sums:
        assert float(found) == pytest.approx(decay_bound(int(m), dim=64), abs=0.006)


def test_page_of_the_experiments_has_their_tables():
    page = ROOT / "checkpoints" / "training" / "README.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    for cell_id in EXPERIMENTS:
        table = printed(read(PAPER), cell_id).splitlines()
        assert len(table) > 3
        begin = lines.index(table[0])
        assert lines[begin : begin + len(table)] == table


def test_saved_reference_is_of_the_default_checkpoint():
    report = verify(
        "roformer-sim-char", reference=FOLDER / "reference-0.11.5.npz", verbose=0
    )
    assert report.passed
    assert {c.length for c in report.comparisons} == {1, 3}
    assert {c.case for c in report.comparisons} >= {"encoder", "unilm", "pool-linear"}


@pytest.mark.e2e
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_without_complaints(executed, path):
    assert complaints(executed[path]) == []
    assert tuple(pictures(executed[path])) == tuple(pictures(read(path)))


@pytest.mark.e2e
def test_identities_of_rope_hold(executed):
    found, committed = identities(executed[ROPE]), identities(read(ROPE))
    assert list(found) == list(committed)
    assert max(found.values()) < 1e-4


@pytest.mark.e2e
def test_tour_prints_what_is_committed(executed):
    notebook, committed = executed[TOUR], read(TOUR)
    for cell_id in REPRODUCIBLE:
        assert printed(notebook, cell_id) == printed(committed, cell_id)


@pytest.mark.e2e
def test_tour_verifies_and_converts(executed):
    notebook = executed[TOUR]
    verified = printed(notebook, "verify")
    assert "passed: all 24 outputs within their bars" in verified
    assert ("as saved in" in verified) == (reference_folder() is None)
    _, _, *targets = printed(notebook, "convert").splitlines()
    assert len(targets) == 4
    for line in targets:
        equal, total = re.search(r"(\d+) of (\d+)$", line).groups()
        assert equal == total


@pytest.mark.e2e
def test_experiments_print_what_is_committed(executed):
    for cell_id in EXPERIMENTS:
        assert printed(executed[PAPER], cell_id) == printed(read(PAPER), cell_id)


@pytest.mark.e2e
def test_generation_prints_what_is_committed(executed):
    notebook, committed = executed[GENERATE], read(GENERATE)
    for cell_id in ("continue", "beam", "stream", "many", "paraphrase", "similarity"):
        assert printed(notebook, cell_id) == printed(committed, cell_id)
    assert "the same alone: True" in printed(notebook, "many")
    assert "the same 64 tokens: True" in printed(notebook, "speed")
