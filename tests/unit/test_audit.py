"""tools.audit, without the network: what it says of each answer of pip-audit."""

import configparser
import json
import subprocess

from common import ROOT, read_json

from tools import audit, extras_versions

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


def test_a_bill_of_materials(tmp_path, monkeypatch, capsys):
    bills = [{"bomFormat": "CycloneDX", "components": [{}, {}]}, {"components": []}]

    def run(*command, **options):
        if "environment" in command:
            bill = json.dumps(bills.pop(0))
            with open(command[-1], "w") as file:
                file.write(bill)

    monkeypatch.setattr(audit, "_run", run)
    monkeypatch.setattr(audit, "installed_versions", lambda names: VERSIONS)
    report = {"dependencies": [GOOD, {**BAD, "vulns": []}]}
    monkeypatch.setattr(audit, "ask", lambda versions: report)
    path = tmp_path / "bill.json"
    for code, text in ((0, "2 components"), (2, "wrote no bill of materials")):
        assert audit.main(["--bill", str(path)]) == code
        assert text in capsys.readouterr().out
        assert read_json(path)["components"] == [{}, {}]


def test_extras_are_tried_or_left_out(capsys):
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = {"base", *parser["options.extras_require"]}
    tried, left_out = extras_versions.SMOKE.keys(), extras_versions.LEFT_OUT.keys()
    assert tried | left_out == extras and not tried & left_out
    # Without a bound the lowest version is one that nobody has.
    unbounded = [
        line
        for extra in tried
        for line in extras_versions.requirements(extra)
        if ">=" not in line
    ]
    assert unbounded == []
    assert extras_versions.main(["nothing"]) == 2
    assert "an extra must be one of base, data" in capsys.readouterr().err


def test_ends_of_an_extra(monkeypatch, tmp_path):
    listed = [{"name": "pyarrow", "version": "1.0"}, {"name": "x", "version": "2"}]
    calls = []

    class Uv:
        folder = tmp_path

        def run(self, *words):
            calls.append(words)
            return json.dumps(listed)

    for name in ("run_smoke", "_add_metadata"):
        monkeypatch.setattr(extras_versions, name, lambda *arguments: None)
    found = extras_versions.try_extra(Uv(), "data", "lowest-direct")
    assert found == ("lowest-direct: pyarrow 1.0", "")
    assert any(
        words[-3:-1] == ("--resolution", "lowest-direct")
        and words[-1].startswith("pyarrow")
        for words in calls
    )

    def fail(*arguments):
        raise subprocess.CalledProcessError(1, ["x"], output="a\nb | c", stderr="")

    monkeypatch.setattr(extras_versions, "run_smoke", fail)
    found = extras_versions.try_extra(Uv(), "data", "highest")
    assert found == ("highest: pyarrow 1.0", "a b / c")
