"""What users wait for, measured in one run, and the tables of it in the docs.

    python -m tools.benchmark                    measure all, write figures and tables
    python -m tools.benchmark --parts generate   measure one part again
    python -m tools.benchmark --table            write the tables from the figures

The figures are kept in tools/benchmarks/figures.json. Programs that are not installed,
such as Hugging Face transformers, are left out. All of it takes about 80 minutes on two
cores without other work.
"""

import datetime
import importlib
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from roformer_keras.errors import ConfigurationError
from tools import ROOT
from tools.benchmarks.harness import THEIRS, processor, show
from tools.benchmarks.scripts import RUNS, SCRIPTS
from tools.commands import Parser, command
from tools.tables import between, markdown, write_json, write_text

FIGURES = ROOT / "tools" / "benchmarks" / "figures.json"
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "coming-from-bert4keras.md"
BEGIN, END = "<!-- table of tools/benchmark.py -->", "<!-- end of the table -->"
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
        "--readme", type=Path, default=README, help="where the table is"
    )
    parser.add_argument(
        "--page", type=Path, default=PAGE, help="where the table of scripts is"
    )
    options = parser.parse_args(arguments)
    figures = read_figures(options.json)
    for part in () if options.table else options.parts:
        figures[part] = measure(part, options.quick)
        write_json(options.json, figures)
    write_text(options.readme, with_table(options.readme, make_table(figures)))
    if "scripts" in figures:
        write_text(options.page, with_table(options.page, scripts_table(figures)))


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


def with_table(path, table):
    """The text of a page with another table.

    Raises:
        ConfigurationError: it has no place for the table.
    """
    return between(path.read_text(encoding="utf-8"), BEGIN, END, table, path)


def make_table(figures):
    lines = []
    for row in ROWS:
        runs = figures
        for key in row.place:
            runs = runs.get(key, {})
        if runs:
            cells = [show_run(runs.get(name), row.unit) for name in row.runs]
            lines.append([f"{row.title}, {row.unit}", *cells])
    return markdown(["", *COLUMNS], lines)


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


if __name__ == "__main__":
    sys.exit(main())
