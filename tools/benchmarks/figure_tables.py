"""Tables of the docs from the figures of `python -m tools.benchmark`."""

import statistics
from collections.abc import Callable
from typing import NamedTuple

from tools.benchmarks.harness import LIMIT, THEIRS, ratios, show, show_ratios
from tools.benchmarks.scripts import RUNS, SCRIPTS
from tools.tables import markdown

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
    empty. `in_readme`: the README shows the line too.
    """

    title: str
    unit: str
    place: tuple[str, ...]
    runs: tuple[str, ...]
    in_readme: bool = False


def keras_row(title, unit, place, way, limit="", peer="", in_readme=False):
    """A row of `keras_paths`."""
    types = ("float32", "bfloat16")
    names = [f"{way} {dtype}" for dtype in types] + [THEIRS]
    names += [f"{peer} {dtype}" for dtype in types]
    names += [f"{limit} {dtype}" for dtype in types]
    return Row(title, unit, place, tuple(names), in_readme)


def generation_rows(title, unit, name, in_readme=()):
    """A row of `generate` for each engine; the README shows some of them too."""
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
        names = (*ours, *peers, *limits)
        yield Row(f"{title}{called}", unit, place, names, engine in in_readme)


ROWS = (
    *(
        keras_row(
            f"`model.predict(ids)`, {shape}; limit: `predict_on_batch`",
            "tokens/s",
            ("keras", "predict", shape),
            "predict",
            "predict_on_batch",
            in_readme=shape == "32x128",
        )
        for shape in ("32x128", "4x512")
    ),
    keras_row(
        "`model.predict(ids)`, 1x16; limit: `predict_on_batch`",
        "ms",
        ("keras", "latency", "1x16"),
        "predict",
        "predict_on_batch",
        in_readme=True,
    ),
    keras_row(
        "`model(ids)`, 1x16; limit: `predict_on_batch`",
        "ms",
        ("keras", "latency", "1x16"),
        "call",
        "predict_on_batch",
        "transformers Bert",
    ),
    *generation_rows(
        "GPT, 1 sample of 112 tokens",
        "tokens/s",
        "GPT, 1 sample",
        in_readme=("keras", "openvino-int8"),
    ),
    *generation_rows(
        "GPT, 16 samples",
        "tokens/s",
        "GPT, 16 samples",
        in_readme=("keras", "openvino"),
    ),
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
        in_readme=True,
    ),
    Row(
        "load the zip; bert4keras: its folder",
        "s",
        ("load", "load"),
        ("roformer_keras, zip", "", "bert4keras, folder", "", "", "", ""),
        in_readme=True,
    ),
)
README_ROWS = tuple(
    row._replace(title=row.title.partition("; limit")[0])
    for row in ROWS
    if row.in_readme
)


def make_table(figures, rows=ROWS, columns=COLUMNS):
    """The rows that have figures of this package."""
    lines = []
    for row in rows:
        runs = figures
        for key in row.place:
            runs = runs.get(key, {})
        names = row.runs[: len(columns)]
        cells = [show_run(runs.get(name), row.unit) for name in names]
        if any(cells[:2]):
            lines.append([f"{row.title}, {row.unit}", *cells])
    return markdown(["", *columns], lines)


def readme_table(figures):
    """The rows of the README: against bert4keras, where it takes part."""
    return make_table(figures, README_ROWS, COLUMNS[:3])


def engines_table(figures):
    """Goals of the engines of generation."""
    engines, lines = figures["generate"]["engines"], []

    def add(title, goal, place, pair, form):
        ratio = median_ratio(engines.get(place, {}), *pair)
        if ratio is not None:
            lines.append([title, goal, form(ratio)])

    for name, dtype, goal in (
        ("1 sample", "float32", 75),
        ("1 sample", "bfloat16", 65),
        ("16 samples", "float32", 65),
        ("16 samples", "bfloat16", 60),
    ):
        title = f"`openvino` as a share of OpenVINO's products, {name}, {dtype}"
        pair = f"openvino {dtype}", f"{LIMIT} {dtype}, OpenVINO"
        add(title, f"{goal} %", f"GPT, {name}", pair, lambda x: f"{100 * x:.0f} %")
    title = "`openvino-int8` against `openvino`, 1 sample, bfloat16"
    pair = "openvino-int8 bfloat16", "openvino bfloat16"
    add(title, "", "GPT, 1 sample", pair, "{:.2f}x".format)
    for types, ours, theirs, goal in (
        ("both in float32", "float32", "float32", ""),
        ("both in bfloat16", "bfloat16", "bfloat16", ""),
        ("bfloat16 against float32", "bfloat16", "float32", "0.35"),
    ):
        title = "time of `paraphrase` with `openvino` as a share of the Keras engine's"
        # A share of time is the inverse ratio of speeds.
        pair = f"keras {theirs}", f"openvino {ours}"
        place = "Sim, paraphrase n=100"
        add(f"{title}, {types}", goal, place, pair, "{:.2f}".format)
    return markdown(["figure", "goal", "reached"], lines)


def updates_table(figures):
    runs, lines = figures["step"]["step"], []
    for dtype, policy, goal in (
        ("float32", "float32", "1.5x"),
        ("bfloat16", "mixed_bfloat16", "2.5x"),
    ):
        names = (f"roformer_keras {policy}", f"{LIMIT} {dtype}")
        found = [median_ratio(runs, name, THEIRS) for name in names]
        if None not in found:
            lines.append([dtype, goal, *(f"{ratio:.2f}x" for ratio in found)])
    title = "update of a classifier, against bert4keras"
    return markdown([title, "goal", "reached", "matrix products alone"], lines)


def openvino_backend_table(figures):
    keras, lines = figures["keras"], []
    for title, part, way, digits in (
        ("`predict` on Keras's OpenVINO backend", "predict", "predict", 2),
        ("`model(ids)` of the short text", "latency", "call", 1),
    ):
        cells = []
        for dtype in ("float32", "bfloat16"):
            pair = f"Keras on OpenVINO {dtype}", f"{way} {dtype}"
            found = [median_ratio(runs, *pair) for runs in keras[part].values()]
            found = sorted(ratio for ratio in found if ratio is not None)
            ends = dict.fromkeys(f"{x:.{digits}f}" for x in (*found[:1], *found[-1:]))
            cells.append(f"{' to '.join(ends)} times" if ends else "")
        if any(cells):
            lines.append([title, *cells])
    return markdown(["against TensorFlow", "float32", "bfloat16"], lines)


def median_ratio(runs, run, other):
    """How many times as fast as another run a run was; None if one was left out."""
    found = ratios(runs, run, other) if run in runs else []
    return statistics.median(found) if found else None


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
    lines.append(
        ["peak above TensorFlow alone, as a share of the weights", share, "", ""]
    )
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


class Table(NamedTuple):
    """A function of all figures, the parts that it needs, and the command."""

    make: Callable[[dict], str]
    parts: tuple[str, ...]
    command: str


def parts_of(rows):
    return tuple(dict.fromkeys(row.place[0] for row in rows))


def table_of_part(make, part):
    return Table(make, (part,), f"python -m tools.benchmark --parts {part}")


TABLES = {
    "main": Table(readme_table, parts_of(README_ROWS), "python -m tools.benchmark"),
    "all": Table(make_table, parts_of(ROWS), "python -m tools.benchmark"),
    "loading": table_of_part(loading_table, "load"),
    "scripts": table_of_part(scripts_table, "scripts"),
    "goals-of-engines": table_of_part(engines_table, "generate"),
    "goals-of-updates": table_of_part(updates_table, "step"),
    "openvino-backend": table_of_part(openvino_backend_table, "keras"),
}
