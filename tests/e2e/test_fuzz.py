"""tools.fuzz: it finds planted faults, saves and repeats them, and ours has none."""

import os

import fuzz_plants
import planted_readers
import pytest
from common import ROOT
from fuzz_plants import FAULTS, OUTSIDE

from tools.fuzz import __main__ as fuzz
from tools.fuzz.worker import read_files


@pytest.fixture
def fuzzing(tmp_path, monkeypatch):
    """Fuzzing of the planted targets, whose workers find them too."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    OUTSIDE.unlink(missing_ok=True)
    yield fuzz.Fuzzing(
        tmp_path / "findings",
        targets=fuzz_plants.TARGETS,
        table="fuzz_plants:TARGETS",
        seconds=2,
        memory=2**30,
    )
    OUTSIDE.unlink(missing_ok=True)


def test_planted_faults_are_found_saved_and_repeated(fuzzing):
    reports = fuzzing.run(list(FAULTS), len(FAULTS), seed=0, tell=lambda line: None)
    folders = {}
    for name, report in reports.items():
        (folders[name],) = report.findings.values()
        text = (folders[name] / "finding.txt").read_text(encoding="utf-8")
        assert FAULTS[name] in text, name
        files = read_files(folders[name])
        assert files.keys() == {"x.bin"} and files["x.bin"] != fuzz_plants.SEED, name
    assert folders.keys() == FAULTS.keys()
    # One that ends its process, and one that does not.
    for name in ("crash", "silence"):
        assert FAULTS[name] in fuzzing.replay(name, folders[name])
        (folders[name] / "x.bin").write_bytes(fuzz_plants.SEED)
        assert fuzzing.replay(name, folders[name]) is None


def test_right_answers_are_no_findings(fuzzing, capsys):
    report = fuzzing.run(["good"], 1, seed=0)["good"]
    assert report.findings == {}
    assert report.runs == report.outcomes.total() > 10
    assert report.outcomes.keys() == {"read", "CheckpointError"}
    assert "no finding" in capsys.readouterr().out
    assert not fuzzing.folder.exists()


TRACE = """the process ended
Fatal Python error: Segmentation fault

Thread 0x1 (most recent call first):
  File "/lib/python3.11/site-packages/tqdm/_monitor.py", line 69 in run

Current thread 0x2 (most recent call first):
  File "/lib/python3.11/site-packages/{}/group.py", line 502 in __iter__
  File "/x/roformer_keras/io/hdf5.py", line 74 in _check_contents
"""


# Library of the code that ran last, version of HDF5, target, and if it is known.
CRASHES = (
    ("h5py/_hl", (1, 14, 6), "crash", True),
    ("h5py/_hl", (2, 0, 0), "crash", False),
    # The same input crashes again: HDF5 has nothing to do with it.
    ("numpy/core", (1, 14, 6), "crash", False),
    # It does not: what HDF5 broke came to light later.
    ("numpy/core", (1, 14, 6), "good", True),
)


def test_crashes_that_are_known_are_those_of_old_hdf5(fuzzing, monkeypatch):
    report = fuzzing.run(["crash"], 0.5, seed=0, tell=lambda line: None)["crash"]
    (folder,) = report.findings.values()
    files = read_files(folder)
    for library, version, name, is_known in CRASHES:
        monkeypatch.setattr(fuzz.h5py.version, "hdf5_version_tuple", version)
        said = TRACE.format(library)
        assert fuzzing._is_known(name, said, files) == is_known, (library, version)
        hang = said.replace("Fatal Python error", "Timeout (0:00:10)!")
        assert fuzzing._is_known(name, hang, files) == library.startswith("h5py")


def test_the_command_says_what_was_found(fuzzing, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fuzz, "TARGETS", fuzz_plants.TARGETS)
    monkeypatch.setattr(fuzz, "Fuzzing", lambda *arguments, **options: fuzzing)
    assert fuzz.main(["good", "promise", "--seconds", "0.5"]) == 1
    shown = capsys.readouterr().out
    assert "1 findings" in shown
    assert "Finding: a rule holds" in shown
    assert fuzz.main(["good", "--seconds", "1"]) == 0
    assert "no finding" in capsys.readouterr().out
    (finding,) = fuzzing.folder.iterdir()
    assert fuzz.main(["promise", "--replay", str(finding)]) == 1
    assert fuzz.main(["good", "--replay", str(finding)]) == 0
    assert fuzz.main(["no-such"]) == 2
    assert fuzz.main(["--replay", str(finding)]) == 2


def test_targets_without_keras_have_no_finding(tmp_path, capsys):
    """The weekly job fuzzes all targets."""
    made = [x for x, t in fuzz.TARGETS.items() if t.needs_keras or t.needs_made]
    names = [name for name in fuzz.TARGETS if name not in made]
    assert len(names) >= 20
    options = ["--seconds", "10", "--seed", "1", "--findings", str(tmp_path)]
    code = fuzz.main([*names, *options])
    shown = capsys.readouterr().out
    assert code == 0, shown
    for name in names:
        assert f"\n{name} " in f"\n{shown}"
    assert os.listdir(tmp_path) == []


# === By coverage ===


@pytest.mark.weekly
def test_faults_of_readers_are_found_by_coverage(tmp_path, monkeypatch):
    """A size and an index unchecked, an endless and a slow loop, a large array."""
    pytest.importorskip("atheris")
    # The library may be found by it too.
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"), prepend=os.pathsep)
    fuzzing = fuzz.Fuzzing(
        tmp_path,
        targets=planted_readers.TARGETS,
        table="planted_readers:TARGETS",
        by_coverage=True,
    )
    faults = planted_readers.FAULTS
    reports = fuzzing.run(list(faults), 60 * len(faults), 0, tell=lambda line: None)
    missed = {}
    for name, report in reports.items():
        texts = [(x / "finding.txt").read_text() for x in report.findings.values()]
        if not any(text.startswith(faults[name]) for text in texts):
            missed[name] = texts
        assert report.coverage > 100, name
    assert missed == {}


def test_what_coverage_needs(monkeypatch, capsys):
    monkeypatch.setattr(fuzz.importlib.util, "find_spec", lambda name: None)
    assert fuzz.main(["zip", "--coverage"]) == 2
    assert "pip install 'atheris<4'" in capsys.readouterr().err
    monkeypatch.setattr(fuzz.importlib.util, "find_spec", lambda name: name)
    for name in ("zip-damage", "examples"):
        assert fuzz.main(["zip", name, "--coverage"]) == 2
        assert f"coverage cannot guide {name}: " in capsys.readouterr().err
