"""tools/benchmark.py: the figures of a run, and the tables of them in the docs."""

import datetime
import json
from pathlib import Path

import pytest

from tools import ROOT, benchmark, pictures

PLACE = f"{benchmark.BEGIN.format('all')}\nold\n{benchmark.END}\n"


def test_a_part_is_measured_and_the_table_written(tmp_path, monkeypatch, capsys):
    runs = {"predict float32": {"rate": 1234.5, "seconds": [2.0]}}
    runs["call float32"] = {"rate": 10.0, "seconds": [0.1, 0.2, 0.3]}

    def main(arguments):
        found = {"predict": {"32x128": runs}, "latency": {"1x16": runs}}
        Path(arguments[-1]).write_text(json.dumps(found))
        return int("fail" in arguments)

    monkeypatch.setattr("tools.benchmarks.keras_paths.main", main)
    page, target = tmp_path / "page.md", tmp_path / "figures.json"
    arguments = ["--parts", "keras", "--json", str(target), "--pages", str(page)]
    page.write_text(benchmark.BEGIN.format("all"), encoding="utf-8")
    assert benchmark.main(arguments) == 2
    assert "must have the lines" in capsys.readouterr().err
    page.write_text(f"a\n{PLACE}b\n")
    assert benchmark.main([*arguments, "--table"]) == 0
    lines = page.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "a" and lines[-1] == "b" and "old" not in lines
    rows = [line.split(" | ")[:3] for line in lines if line.startswith("| `")]
    assert rows[0][1:] == ["1,234", ""]
    assert rows[-1] == [
        "| `model(ids)`, 1x16; limit: `predict_on_batch`, ms",
        "200",
        "",
    ]
    assert "cores of" in lines[-3] and lines[-3].endswith("`python -m tools.benchmark`")
    found = json.loads(target.read_text(encoding="utf-8"))["keras"]
    assert found["predict"]["32x128"] == runs and "cores of" in found["processor"]
    monkeypatch.setitem(benchmark.PARTS, "keras", ("keras_paths", ("fail",)))
    assert benchmark.main(arguments) == 2


def test_a_table_without_figures_is_an_error(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(PLACE.replace("all", "no-such-table"), encoding="utf-8")
    assert benchmark.main(["--table", "--pages", str(page)]) == 2
    assert "no-such-table" in capsys.readouterr().err


@pytest.mark.parametrize(
    "path", benchmark.PAGES, ids=lambda path: str(path.relative_to(benchmark.ROOT))
)
def test_the_tables_of_a_page_are_those_of_the_figures(path):
    """If not, run python -m tools.benchmark --table."""
    figures = benchmark.read_figures(benchmark.FIGURES)
    text = path.read_text(encoding="utf-8")
    assert benchmark.with_tables(text, figures, path) == text


def test_recorded_figures_have_a_date_a_machine_and_a_page():
    text = "".join(path.read_text(encoding="utf-8") for path in benchmark.PAGES)
    recorded = json.loads(benchmark.RECORDED.read_text(encoding="utf-8"))
    for name, table in recorded.items():
        assert datetime.date.fromisoformat(table["date"]).year >= 2026, name
        assert "cores of" in table["processor"] and table["command"], name
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}, name
    assert not recorded.keys() & benchmark.TABLES.keys()
    shown = set(benchmark.NAME.findall(text))
    assert shown == recorded.keys() | benchmark.TABLES.keys()


def test_the_readme_has_at_most_eight_rows_of_speed():
    table = benchmark.main_table(benchmark.read_figures(benchmark.FIGURES))
    assert 5 < len(table.splitlines()) - 2 <= 8


def test_pictures_are_drawn_from_the_recorded_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "FOLDER", tmp_path / "pictures")
    pictures.main([])
    for name in pictures.PICTURES:
        drawn = (tmp_path / "pictures" / f"{name}.png").read_bytes()
        kept = (ROOT / "docs" / "pictures" / f"{name}.png").read_bytes()
        # Bytes differ with the version of Matplotlib; sizes do not.
        assert drawn[:24] == kept[:24]
