"""tools/benchmark.py: the figures of a run, and the tables of them in the docs."""

import datetime
import importlib.util
import json
from pathlib import Path

import pytest
from common import read_json, write_file

from roformer_keras.base.errors import ConfigurationError
from tools import benchmark
from tools.benchmarks import chinese, figure_tables

PLACE = f"{benchmark.BEGIN.format('all')}\nold\n{benchmark.END}\n"


def test_a_part_is_measured_and_the_table_written(tmp_path, monkeypatch, capsys):
    runs = {"predict float32": {"rate": 1234.5, "seconds": [2.0]}}
    runs["call float32"] = {"rate": 10.0, "seconds": [0.1, 0.2, 0.3]}

    def main(arguments):
        figures = {"predict": {"32x128": runs}, "calls": {"1x16": runs}}
        Path(arguments[-1]).write_text(json.dumps(figures))
        return int("fail" in arguments)

    monkeypatch.setattr("tools.benchmarks.encode.main", main)
    page, target = tmp_path / "page.md", tmp_path / "figures.json"
    arguments = ["--parts", "keras", "--json", str(target), "--pages", str(page)]
    page.write_text(f"a\n{PLACE}b\n")
    # The other parts are not measured yet.
    assert benchmark.main(arguments) == 0
    assert page.read_text(encoding="utf-8") == f"a\n{PLACE}b\n"
    assert "not measured: texts, generate, step, load" in capsys.readouterr().err
    figures = read_json(target)
    others = {"date": "2026-11-01", "processor": "3 cores of X"}
    figures |= dict.fromkeys(("texts", "generate", "step", "load"), others)
    write_file(target, figures)
    page.write_text(benchmark.BEGIN.format("all"), encoding="utf-8")
    assert benchmark.main([*arguments, "--table"]) == 2
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
    assert lines[-3].startswith("1 November 2026 to ")
    assert "3 cores of X; " in lines[-3]
    assert lines[-3].endswith(": `python -m tools.benchmark`")
    measured = read_json(target)["keras"]
    assert measured["predict"]["32x128"] == runs and "cores of" in measured["processor"]
    monkeypatch.setitem(benchmark.PARTS, "keras", ("encode", ("fail",)))
    assert benchmark.main(arguments) == 2


def test_a_table_without_figures_is_an_error(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(PLACE.replace("all", "no-such-table"), encoding="utf-8")
    assert benchmark.main(["--table", "--pages", str(page)]) == 2
    assert "no-such-table" in capsys.readouterr().err


def test_the_tables_of_all_pages_are_those_of_the_figures():
    """If not, run python -m tools.benchmark --table."""
    figures, stale = benchmark.read_figures(benchmark.FIGURES), []
    for path in benchmark.PAGES:
        text = path.read_text(encoding="utf-8")
        if benchmark.with_tables(text, figures, path) != text:
            stale.append(path)
    assert not stale


def test_a_chinese_page_has_chinese_tables(tmp_path):
    for cell, expected in (
        ("2.25x (1.29 to 2.25)", "2.25 倍（1.29 至 2.25）"),
        ("4 layers of width 312, 32 tokens", "4 层，隐藏维度 312，32 个 token"),
        (
            "update of a classifier, against bert4keras",
            "更新一次分类器，与 bert4keras 相比",
        ),
        ("`paraphrase`, n=100, texts/s", "`paraphrase`，n=100，条/s"),
        ("`f(a, b)`, float32", "`f(a, b)`，float32"),
        ("1,362, 3,010", "1,362, 3,010"),
    ):
        assert chinese.translated(cell) == expected
    for cell in ("32 nonsenses", "GPT, nonsense", "nonsense"):
        with pytest.raises(ConfigurationError, match=r"no Chinese for '.*nonsense"):
            chinese.translated(cell)
    page = tmp_path / "page.zh.md"
    page.write_text(PLACE.replace("all", "serving-peer"), encoding="utf-8")
    assert benchmark.main(["--table", "--pages", str(page)]) == 0
    lines = page.read_text(encoding="utf-8").splitlines()
    assert lines[1].startswith("| 客户端数 | 本服务器，条/s | ")
    assert lines[-2].startswith(
        "2026 年 11 月 26 日，AMD EPYC (Zen 3)，2 核：`python -m "
    )


def test_recorded_figures_have_a_date_a_machine_and_a_page():
    text = "".join(path.read_text(encoding="utf-8") for path in benchmark.PAGES)
    recorded = read_json(benchmark.RECORDED)
    for name, table in recorded.items():
        assert datetime.date.fromisoformat(table["date"]).year >= 2026, name
        assert "cores of" in table["processor"], name
        if (command := table["command"]) and "commit" not in table:
            module = command.removeprefix("python -m ").split()[0]
            assert importlib.util.find_spec(module), name
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}, name
    assert not recorded.keys() & figure_tables.TABLES.keys()
    shown = set(benchmark.NAME.findall(text))
    assert shown == recorded.keys() | figure_tables.TABLES.keys()


def test_the_readme_has_at_most_eight_rows_of_speed():
    table = figure_tables.readme_table(benchmark.read_figures(benchmark.FIGURES))
    assert len(table.splitlines()) - 2 == len(figure_tables.README_ROWS) <= 8
