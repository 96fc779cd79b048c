"""What users wait for, measured in one run, and the tables of figures in the docs.

    python -m tools.benchmark                    measure all, write figures and tables
    python -m tools.benchmark --parts generate   measure one part again
    python -m tools.benchmark --table            write the tables from the figures

The figures are kept in tools/benchmarks/figures.json. recorded.json next to it has
tables of figures that other commands measured: each has its date, machine and command.
A page has a table between the lines `<!-- table: NAME -->` and
`<!-- end of the table -->`. Programs that are not installed, such as Hugging Face
transformers, are left out. All of it takes about 80 minutes on two cores without other
work.
"""

import datetime
import importlib
import json
import re
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from roformer_keras.errors import ConfigurationError
from tools import ROOT
from tools.benchmarks.harness import THEIRS, processor, ratios, show, show_ratios
from tools.benchmarks.scripts import RUNS, SCRIPTS
from tools.commands import Parser, command
from tools.tables import between, markdown, write_json, write_text

FIGURES = ROOT / "tools" / "benchmarks" / "figures.json"
RECORDED = FIGURES.with_name("recorded.json")
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BEGIN, END = "<!-- table: {} -->", "<!-- end of the table -->"
NAME = re.compile(BEGIN.format(r"(\S+)"))
# Part -> module of tools.benchmarks, and its arguments.
PARTS = {
    "keras": ("keras_paths", ()),
    "generate": (
        "generate",
        ("--parts", "engines", "mix", "--mix-prompts", "300", "--rounds", "3"),
    ),
    "step": ("finetune", ("--parts", "step")),
    "load": ("encode", ("--parts", "load")),
    "scripts": ("scripts", ()),
}
COLUMNS = (
    "float32",
    "bfloat16",
    "bert4keras",
    "transformers, float32",
    "bfloat16",
    "limit, float32",
    "bfloat16",
)

# Rows of the README, of at most eight.
MAIN_TITLES = (
    "`model.predict(ids)`, 32x128",
    "`model.predict(ids)`, 1x16",
    "GPT, 1 sample of 112 tokens",
    'GPT, 1 sample of 112 tokens, `engine="openvino-int8"`',
    "GPT, 16 samples",
    'GPT, 16 samples, `engine="openvino"`',
    "update of a classifier, 16x128",
    "load the zip; bert4keras: its folder",
)


class Row(NamedTuple):
    """A line of the table: its title and unit, where its runs are, and their names.

    There is a name for each of `COLUMNS`; a run that is not measured leaves its cell
    empty.
    """

    title: str
    unit: str
    place: tuple[str, ...]
    runs: tuple[str, ...]


def keras_row(title, unit, place, way, limit="", peer=""):
    """A row of `keras_paths`."""
    types = ("float32", "bfloat16")
    names = [f"{way} {dtype}" for dtype in types] + [THEIRS]
    names += [f"{peer} {dtype}" for dtype in types]
    return Row(title, unit, place, (*names, *(f"{limit} {dtype}" for dtype in types)))


def generation_rows(title, unit, name):
    """A row of `generate` for each engine."""
    types = ("float32", "bfloat16")
    place = ("generate", "engines", name) if name else ("generate", "mix")
    for engine, called in (
        ("keras", ""),
        ("openvino", ', `engine="openvino"`'),
        ("openvino-int8", ', `engine="openvino-int8"`'),
    ):
        ours = tuple(f"{engine} {dtype}" for dtype in types)
        peers = (THEIRS, *(f"transformers {dtype}" for dtype in types))
        limits = tuple(f"matrix products {dtype}, OpenVINO" for dtype in types)
        # Peers once.
        peers = peers if engine == "keras" else ("", "", "")
        yield Row(f"{title}{called}", unit, place, (*ours, *peers, *limits))


ROWS = (
    *(
        keras_row(
            f"`model.predict(ids)`, {shape}; limit: `predict_on_batch`",
            "tokens/s",
            ("keras", "predict", shape),
            "predict",
            "predict_on_batch",
        )
        for shape in ("32x128", "4x512")
    ),
    keras_row(
        "`model.predict(ids)`, 1x16; limit: `predict_on_batch`",
        "ms",
        ("keras", "latency", "1x16"),
        "predict",
        "predict_on_batch",
    ),
    keras_row(
        "`model(ids)`, 1x16; limit: `predict_on_batch`",
        "ms",
        ("keras", "latency", "1x16"),
        "call",
        "predict_on_batch",
        "transformers Bert",
    ),
    *generation_rows("GPT, 1 sample of 112 tokens", "tokens/s", "GPT, 1 sample"),
    *generation_rows("GPT, 16 samples", "tokens/s", "GPT, 16 samples"),
    *generation_rows("Sim, `paraphrase`, n=100", "s", "Sim, paraphrase n=100"),
    *generation_rows("GPT, 300 prompts of all lengths", "s", None),
    Row(
        "update of a classifier, 16x128",
        "tokens/s",
        ("step", "step"),
        (
            "roformer_keras float32",
            "roformer_keras mixed_bfloat16",
            THEIRS,
            "transformers float32",
            "transformers bfloat16",
            "matrix products float32",
            "matrix products bfloat16",
        ),
    ),
    Row(
        "load the zip; bert4keras: its folder",
        "s",
        ("load", "load"),
        ("roformer_keras, zip", "", "bert4keras, folder", "", "", "", ""),
    ),
)


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
        more = ("--quick",) if quick else ()
        if code := module.main([*arguments, *more, "--json", str(target)]):
            raise ConfigurationError(f"tools.benchmarks.{name} ended with {code}")
        found = json.loads(target.read_text(encoding="utf-8"))
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return {"date": date, "processor": processor(), **found}


def with_tables(text, figures, label):
    """The text of a page with the tables of today's figures.

    Raises:
        ConfigurationError: a table has no end, or a name that no table has.
    """
    for name in NAME.findall(text):
        text = between(text, BEGIN.format(name), END, table_of(name, figures), label)
    return text


def table_of(name, figures):
    """A table, and below it when, on what and by which command it was measured."""
    if name in TABLES:
        make, part, measured_by = TABLES[name]
        date, machine = figures[part]["date"], figures[part]["processor"]
        table = make(figures)
    else:
        recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
        if name not in recorded:
            raise ConfigurationError(f"no figures have the name {name!r}")
        kept = recorded[name]
        date, machine, measured_by = kept["date"], kept["processor"], kept["command"]
        table = markdown(kept["columns"], kept["rows"])
    day = datetime.date.fromisoformat(date)
    return f"{table}\n\n{day.day} {day:%B %Y}, {machine}: `{measured_by}`"


def make_table(figures, rows=ROWS, columns=COLUMNS):
    lines = []
    for row in rows:
        runs = figures
        for key in row.place:
            runs = runs.get(key, {})
        if runs:
            names = row.runs[: len(columns)]
            cells = [show_run(runs.get(name), row.unit) for name in names]
            lines.append([f"{row.title}, {row.unit}", *cells])
    return markdown(["", *columns], lines)


def main_table(figures):
    """The rows of the README: against bert4keras, where it takes part."""
    rows = [row._replace(title=row.title.partition("; limit")[0]) for row in ROWS]
    rows = [row for row in rows if row.title in MAIN_TITLES]
    return make_table(figures, rows, COLUMNS[:3])


def loading_table(figures):
    runs = figures["load"]["load"]
    lines = []
    for title, name, other in (
        ("from its folder, s", "folder", "folder"),
        (
            "from its zip, which users of bert4keras unpack first, s",
            "zip",
            "zip unpacked first",
        ),
        ("from its zip; bert4keras from its folder, s", "zip", "folder"),
    ):
        ours, theirs = f"roformer_keras, {name}", f"bert4keras, {other}"
        cells = [show_run(runs[run], "s") for run in (ours, theirs)]
        lines.append([title, *cells, show_ratios(ratios(runs, ours, theirs))])
    zips = [runs["roformer_keras, zip"], runs["bert4keras, zip unpacked first"]]
    lines.append(
        ["peak memory with the zip, MB", *(show(run["peak_mb"]) for run in zips), ""]
    )
    more = zips[0]["peak_mb"] - runs["TensorFlow imported, no more"]["peak_mb"]
    share = f"{more / zips[0]['weights_mb']:.2f}"
    lines.append(["peak above TensorFlow alone, of the weights", share, "", ""])
    return markdown(["the base model", "roformer_keras", "bert4keras", "ratio"], lines)


def scripts_table(figures):
    lines = []
    for script in SCRIPTS:
        theirs, ours = (figures["scripts"][script][run] for run in RUNS)
        times = [
            statistics.median(run["seconds"]) if first else run["again"]
            for first in (True, False)
            for run in (theirs, ours)
        ]
        whole, again = times[0] / times[1], times[2] / times[3]
        cells = [*map(show, times[:2]), f"{whole:.2f}x", *map(show, times[2:])]
        lines.append([f"`{script}`", *cells, f"{again:.2f}x"])
    both = ["bert4keras, s", "here, s", "ratio"]
    again = [f"once more: {both[0]}", *both[1:]]
    return markdown(["script", *both, *again], lines)


def show_run(run, unit):
    if run is None:
        return ""
    if unit == "tokens/s":
        return show(run["rate"])
    return show(statistics.median(run["seconds"]) * (1000 if unit == "ms" else 1))


# Name -> function, part of the figures with the date and the machine, command.
TABLES = {
    "main": (main_table, "keras", "python -m tools.benchmark"),
    "all": (make_table, "keras", "python -m tools.benchmark"),
    "loading": (loading_table, "load", "python -m tools.benchmark --parts load"),
    "scripts": (scripts_table, "scripts", "python -m tools.benchmark --parts scripts"),
}


if __name__ == "__main__":
    sys.exit(main())
