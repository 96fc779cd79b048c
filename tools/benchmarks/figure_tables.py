"""Tables of the docs from the figures of `python -m tools.benchmark`."""

import statistics
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from tools.benchmarks.harness import LIMIT, THEIRS, ratios, show, show_ratios
from tools.benchmarks.long import RUNS as LONG_RUNS
from tools.benchmarks.scripts import RUNS, SCRIPTS
from tools.tables import markdown

TYPES = ("float32", "bfloat16")
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


def names(form, types=TYPES):
    """The names of a run in both types; empty ones for an empty form."""
    return tuple(form and form.format(dtype) for dtype in types)


def keras_row(title, unit, place, way, peer="", in_readme=False):
    """A row of the part `keras`, whose limit is `predict_on_batch`."""
    runs = *names(f"{way} {{}}"), THEIRS, *names(peer), *names("predict_on_batch {}")
    title = f"`{title}`, {place[-1]}; limit: `predict_on_batch`"
    return Row(title, unit, ("keras", *place), runs, in_readme)


def generation_rows(title, unit, *place, in_readme=()):
    """A row of `generate` for each engine; the README shows some of them too."""
    limits = names(f"{LIMIT} {{}}, OpenVINO")
    for engine in ("openvino", "openvino-int8", "keras"):
        # The default, where it is installed.
        is_default, ours = engine == "openvino", names(f"{engine} {{}}")
        peers = THEIRS, *names("transformers {}")
        row = title if is_default else f'{title}, `engine="{engine}"`'
        runs = (*ours, *peers, *limits)
        yield Row(row, unit, ("generate", *place), runs, engine in in_readme)


def text_rows(title, unit, *place):
    """A row of `encode` for each engine."""
    peers = THEIRS, *names("transformers Bert {}"), *names(f"{LIMIT} {{}}")
    where = ("texts", *place)
    default = (*names("roformer_keras {}"), *peers)
    yield Row(title, unit, where, default, in_readme=place[-1] != "4x512")
    int8 = ("roformer_keras openvino-int8", "", *peers)
    yield Row(f'{title}, `engine="openvino-int8"`', unit, where, int8)
    by_keras = (*names("roformer_keras {}, engine keras"), *peers)
    yield Row(f'{title}, `engine="keras"`', unit, where, by_keras)


PREDICT = "model.predict(ids)"
ROWS = (
    *text_rows("vectors of texts, 32x128", "tokens/s", "texts", "32x128"),
    *text_rows("vectors of texts, 4x512", "tokens/s", "texts", "4x512"),
    *text_rows("the vector of a text of 16 tokens", "ms", "text"),
    keras_row(PREDICT, "tokens/s", ("predict", "32x128"), "predict", in_readme=True),
    keras_row(PREDICT, "tokens/s", ("predict", "4x512"), "predict"),
    keras_row(PREDICT, "ms", ("calls", "1x16"), "predict"),
    keras_row("model(ids)", "ms", ("calls", "1x16"), "call", "transformers Bert {}"),
    *generation_rows(
        "GPT, 1 sample of 112 tokens",
        "tokens/s",
        "engines",
        "GPT, 1 sample",
        in_readme=("openvino",),
    ),
    *generation_rows(
        "GPT, 16 samples",
        "tokens/s",
        "engines",
        "GPT, 16 samples",
        in_readme=("openvino",),
    ),
    *generation_rows(
        "Sim, `paraphrase`, n=100", "s", "engines", "Sim, paraphrase n=100"
    ),
    *generation_rows("GPT, 300 prompts of all lengths", "s", "mix"),
    Row(
        "update of a classifier, 16x128",
        "tokens/s",
        ("step", "step"),
        (
            "roformer_keras float32",
            "roformer_keras mixed_bfloat16",
            THEIRS,
            *names("transformers {}"),
            *names(f"{LIMIT} {{}}"),
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
    """The rows of the README, next to bert4keras and Transformers."""
    return make_table(figures, README_ROWS, COLUMNS[:5])


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
    peak = zips[0]["peak_mb"] - runs["TensorFlow imported, no more"]["peak_mb"]
    share = f"{peak / zips[0]['weights_mb']:.2f}"
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


def long_table(figures):
    """Seconds and additional memory of one text, by its length."""
    lines = []
    for title, runs in figures["long"].items():
        if not title.endswith(" tokens"):
            continue
        cells = [
            f"{show_run(run, 's')}; {show(run['added'])}" if run else ""
            for name in LONG_RUNS
            for run in [runs.get(name)]
        ]
        lines.append([title, *cells])
    return markdown(["one text; s and MB", *LONG_RUNS], lines)


SERVING_COLUMNS = (
    "clients",
    "texts/s",
    "texts of a batch",
    "`encode`, texts/s",
    "share",
    "p50, p99 in ms",
    "CPU of server, clients, `encode`",
    "MB of the server",
)


def serving_row(title, case):
    """Medians of turns; each rate is compared with that of `encode` before it."""
    turns = case["turns"]

    def median(run, key):
        return show(statistics.median(turn[key] for turn in turns[run]))

    # Seconds for a text, as `ratios` takes them.
    figures = {
        run: {"seconds": [1 / turn["rate"] for turn in own]}
        for run, own in turns.items()
    }
    failed = Counter()
    for turn in turns["serve"]:
        failed.update(turn["statuses"])
    del failed["200"]
    rate = median("serve", "rate")
    cpus = [("serve", "server cpu"), ("serve", "cpu"), ("encode", "cpu")]
    return [
        title,
        case["clients"],
        f"{rate}, failed: {dict(failed)}" if failed else rate,
        show(case["texts of a batch"]),
        median("encode", "rate"),
        show_ratios(ratios(figures, "serve", "encode")),
        f"{median('serve', 'p50')}, {median('serve', 'p99')}",
        ", ".join(median(*cpu) for cpu in cpus),
        " to ".join(map(str, case["MB"])),
    ]


def serving_table(figures):
    """One text a request; without the times of the cores and the memory."""
    rows = [
        serving_row(title.rpartition(", ")[0], case)[:7]
        for part in ("lines", "small")
        for title, case in figures["serve"][part].items()
    ]
    models = {"lines": "`roformer-sim-char`, lines", "small": "4 layers of width 312"}
    for row in rows:
        part, comma, tokens = row[0].partition(", ")
        row[0] = f"{models[part]}{comma}{tokens}"
    return markdown(["model and texts", *SERVING_COLUMNS[:6]], rows)


FAIR_KEYS = ("p50", "p99")
FAIR_COLUMNS = (
    "alone, p50, p99 in ms",
    "next to it, p50, p99 in ms",
    "p99, times that alone",
)


def fair_rows(figures):
    """The rows of the part `fair`, which begin with the titles of both requests."""
    rows = []
    for title, turns in figures.items():
        together, alone = turns["next to it"], turns["alone"]
        times = [
            ", ".join(
                show(statistics.median(turn[key] for turn in part)) for key in FAIR_KEYS
            )
            for part in (alone, together)
        ]
        ratios = [x["p99"] / y["p99"] for x, y in zip(together, alone, strict=True)]
        rows.append([*title.split("; "), *times, show_ratios(ratios)])
    return rows


def fair_table(figures):
    columns = ["short request", "long request", *FAIR_COLUMNS]
    return markdown(columns, fair_rows(figures["serve"]["fair"]))


def show_run(run, unit):
    if run is None:
        return ""
    if unit == "tokens/s":
        return show(run["rate"])
    return show(statistics.median(run["seconds"]) * (1000 if unit == "ms" else 1))


def search_table(figures):
    runs = figures["search"]["search"]
    lines = [
        [
            name,
            show(run["rate"]),
            show_ratios(ratios(runs, name, "numpy")),
            f"{run['recall']:.3f}",
        ]
        for name, run in runs.items()
    ]
    columns = ["searching", "queries/s", "times numpy", "recall"]
    return markdown(columns, lines)


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
    "long-texts": table_of_part(long_table, "long"),
    "serving-now": table_of_part(serving_table, "serve"),
    "serving-fair": table_of_part(fair_table, "serve"),
    "searching": table_of_part(search_table, "search"),
}
