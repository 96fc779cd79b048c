"""tools/benchmark.py: the figures of a run, and the README's table of them."""

import json
from pathlib import Path

import pytest

from tools import benchmark


def test_a_part_is_measured_and_the_table_written(tmp_path, monkeypatch, capsys):
    runs = {"predict float32": {"rate": 1234.5, "seconds": [2.0]}}
    runs["call float32"] = {"rate": 10.0, "seconds": [0.1, 0.2, 0.3]}

    def main(arguments):
        found = {"predict": {"32x128": runs}, "latency": {"1x16": runs}}
        Path(arguments[-1]).write_text(json.dumps(found))
        return int("fail" in arguments)

    monkeypatch.setattr("tools.benchmarks.keras_paths.main", main)
    readme, target = tmp_path / "README.md", tmp_path / "figures.json"
    arguments = ["--parts", "keras", "--json", str(target), "--readme", str(readme)]
    readme.write_text("no place", encoding="utf-8")
    assert benchmark.main(arguments) == 2
    assert "must have the lines" in capsys.readouterr().err
    readme.write_text(f"a\n{benchmark.BEGIN}\nold\n{benchmark.END}\nb\n")
    assert benchmark.main([*arguments, "--table"]) == 0
    lines = readme.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "a" and lines[-1] == "b" and "old" not in lines
    rows = [line.split(" | ")[:3] for line in lines if line.startswith("| `")]
    assert rows[0][1:] == ["1,234", ""]
    assert rows[-1] == [
        "| `model(ids)`, 1x16; limit: `predict_on_batch`, ms",
        "200",
        "",
    ]
    found = json.loads(target.read_text(encoding="utf-8"))["keras"]
    assert found["predict"]["32x128"] == runs and "cores of" in found["processor"]
    monkeypatch.setitem(benchmark.PARTS, "keras", ("keras_paths", ("fail",)))
    assert benchmark.main(arguments) == 2


@pytest.mark.parametrize(
    ("path", "make"),
    [
        (benchmark.README, benchmark.make_table),
        (benchmark.PAGE, benchmark.scripts_table),
    ],
)
def test_the_tables_of_the_docs_are_those_of_the_figures(path, make):
    table = make(benchmark.read_figures(benchmark.FIGURES))
    assert benchmark.with_table(path, table) == path.read_text(encoding="utf-8")
