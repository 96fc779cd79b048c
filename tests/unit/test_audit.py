"""tools.audit, without the network: what it says of each answer of pip-audit."""

import subprocess

from tools import audit

VERSIONS = {"a": "1.0", "b-c": "2.0"}
GOOD = {"name": "a", "version": "1.0", "vulns": []}
FLAW = {"id": "PYSEC-1", "fix_versions": ["2.1"]}
BAD = {"name": "B_C", "version": "2.0", "vulns": [FLAW]}
NEW = {**BAD, "vulns": [{**FLAW, "fix_versions": []}]}
SKIPPED = {"name": "b-c", "skip_reason": "Dependency not found on PyPI"}
REPORTS = (
    ([GOOD, {**BAD, "vulns": []}], 0, ["2 without known flaws"]),
    ([GOOD, BAD], 1, ["b-c 2.0: PYSEC-1, mended in 2.1"]),
    ([GOOD, NEW], 1, ["b-c 2.0: PYSEC-1, mended in no version yet"]),
    ([GOOD, SKIPPED], 2, ["could not look at 1 of 2, because", "advisories: b-c"]),
    ([BAD, {**SKIPPED, "name": "a"}], 1, ["PYSEC-1", "could not look at 1 of 2"]),
    ([], 2, ["could not look at 2 of 2", "a, b-c"]),
)
ERRORS = (
    subprocess.CalledProcessError(1, ["pip"], stderr="x\nno network"),
    OSError("no network"),
    ValueError("no network"),
)


def test_reports(monkeypatch, capsys):
    monkeypatch.setattr(audit, "installed_versions", lambda names: VERSIONS)
    for dependencies, code, texts in REPORTS:
        report = {"dependencies": dependencies}
        monkeypatch.setattr(audit, "ask", lambda versions, report=report: report)
        assert audit.main([]) == code
        shown = capsys.readouterr().out
        assert all(text in shown for text in texts), (dependencies, shown)


def test_a_look_that_could_not_be_done(monkeypatch, capsys):
    for error in ERRORS:

        def fail(versions, error=error):
            raise error

        monkeypatch.setattr(audit, "ask", fail)
        assert audit.main(["h5py"]) == 2
        shown = capsys.readouterr().out
        assert "could not look" in shown and "no network" in shown


def test_the_libraries_that_are_looked_at(capsys):
    versions = audit.installed_versions()
    assert {"h5py", "safetensors", "google-crc32c"} <= versions.keys()
    assert "roformer-keras" not in versions
    assert list(audit.installed_versions(["h5py"])) == ["h5py"]
    assert audit.main(["no-such-library"]) == 2
    assert "no-such-library must be installed" in capsys.readouterr().err
