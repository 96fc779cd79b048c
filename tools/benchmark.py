"""Measures what users wait for, and writes the tables of figures in the docs.

    python -m tools.benchmark                    measure all, write figures and tables
    python -m tools.benchmark --parts generate   measure one part again
    python -m tools.benchmark --table            write the tables from the figures

The figures are kept in tools/benchmarks/figures.json. recorded.json next to it has
tables of figures that other commands measured: each has its date, machine and command,
and the commit that had this command, if it is gone.
A page has a table between the lines `<!-- table: NAME -->` and
`<!-- end of the table -->`; on a Chinese page it is in Chinese. A table stays as it is
if a part that it shows was not measured. Programs that are not installed, such as
Hugging Face transformers, are left out. All of it takes about 100 minutes on two cores
without other work.
"""

import datetime
import importlib
import json
import re
import sys
import tempfile
from pathlib import Path

from roformer_keras.base.errors import ConfigurationError
from tools import ROOT
from tools.benchmarks import chinese
from tools.benchmarks.figure_tables import TABLES
from tools.benchmarks.harness import processor
from tools.commands import Parser, command
from tools.tables import between, markdown, write_json, write_text

FIGURES = ROOT / "tools" / "benchmarks" / "figures.json"
RECORDED = FIGURES.with_name("recorded.json")
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BEGIN, END = "<!-- table: {} -->", "<!-- end of the table -->"
NAME = re.compile(BEGIN.format(r"(\S+)"))
# Part -> module of tools.benchmarks, and its arguments.
PARTS = {
    "texts": ("encode", ("--parts", "texts", "text", "--rounds", "3")),
    "keras": ("encode", ("--parts", "predict", "calls", "--rounds", "7")),
    "generate": (
        "generate",
        ("--parts", "engines", "mix", "--mix-prompts", "300", "--rounds", "3"),
    ),
    "step": ("finetune", ()),
    "long": ("long", ()),
    "serve": ("serve", ("--parts", "lines", "small", "fair", "--seconds", "2")),
    "search": ("search", ("--rounds", "3")),
    "load": ("encode", ("--parts", "load")),
    "scripts": ("scripts", ()),
}


@command
def main(arguments=None):
    parser = Parser(__doc__, parts=PARTS)
    parser.add_argument("--quick", action="store_true", help="tiny, to try it")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--json", type=Path, default=FIGURES, help="where figures are")
    parser.add_argument(
        "--pages", type=Path, nargs="+", default=PAGES, help="where tables are"
    )
    options = parser.parse_args(arguments)
    figures = read_figures(options.json)
    for part in () if options.table else options.parts:
        figures[part] = measure(part, options.quick)
        write_json(options.json, figures)
    for path in options.pages:
        text = path.read_text(encoding="utf-8")
        if (filled := with_tables(text, figures, path)) != text:
            write_text(path, filled)


def read_figures(path):
    if not path.exists():
        return {}
    return json.loads(path.read_text(encoding="utf-8"))


def measure(part, quick):
    """The figures of a part, with its date and the processor."""
    name, arguments = PARTS[part]
    module = importlib.import_module(f"tools.benchmarks.{name}")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "figures.json")
        flags = ["--quick"] if quick else []
        if code := module.main([*arguments, *flags, "--json", str(target)]):
            raise ConfigurationError(f"tools.benchmarks.{name} ended with {code}")
        figures = json.loads(target.read_text(encoding="utf-8"))
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return {"date": date, "processor": processor(), **figures}


def with_tables(text, figures, label):
    """The text of a page with the tables of today's figures.

    A table stays as it is if the figures lack a part of it.

    Raises:
        ConfigurationError: a table has no end, or a name that no table has.
    """
    for name in NAME.findall(text):
        parts = TABLES[name].parts if name in TABLES else ()
        if missing := [part for part in parts if part not in figures]:
            reason = f"not measured: {', '.join(missing)}"
            print(f"{label}: the table {name} stays; {reason}", file=sys.stderr)
            continue
        is_chinese = Path(label).stem.endswith(".zh")
        table = table_of(name, figures, is_chinese)
        text = between(text, BEGIN.format(name), END, table, label)
    return text


def table_of(name, figures, is_chinese=False):
    """A table, and below it when, on what and by which command it was measured."""
    if name in TABLES:
        make, parts, by = TABLES[name]
        sources, table, commit = [figures[part] for part in parts], make(figures), ""
    else:
        recorded = read_figures(RECORDED)
        if name not in recorded:
            raise ConfigurationError(f"no figures have the name {name!r}")
        source = recorded[name]
        sources, by, commit = [source], source["command"], source.get("commit")
        table = markdown(source["columns"], source["rows"])
    dates = sorted({source["date"] for source in sources})
    days = map(datetime.date.fromisoformat, dict.fromkeys((dates[0], dates[-1])))
    machines = dict.fromkeys(source["processor"] for source in sources)
    if is_chinese:
        return f"{chinese.table(table)}\n\n{chinese.origin(days, machines, by, commit)}"
    when = " to ".join(f"{day.day} {day:%B %Y}" for day in days)
    machines = "; ".join(machines)
    how = f": `{by}`" if by else ", measured by hand"
    at = f" at commit `{commit}`" if commit else ""
    return f"{table}\n\n{when}, {machines}{how}{at}"


if __name__ == "__main__":
    sys.exit(main())
