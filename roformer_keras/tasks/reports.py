"""Pages of the figures that `tasks.measures` computes."""

from collections.abc import Mapping

# Rows that were left out, of which a page shows so many.
_MAX_SKIPPED = 5
# Columns of a confusion matrix on a page, and confusions where there are more.
_MAX_COLUMNS, _MAX_CONFUSIONS = 8, 20
# Characters of a text on a page.
_MAX_TEXT = 40
_TEXTS = ("text", "first", "second", "third", "context", "question", "choices")


def format_report(report: dict) -> str:
    """The figures of a report, as a page."""
    lines = []
    for name, value in report.items():
        name = name.replace("_", " ")
        if isinstance(value, int):
            lines.append(f"{name:<22} {value:,}")
        elif isinstance(value, str):
            lines.append(f"{name:<22} {value}")
        elif not isinstance(value, dict | list):
            shown = (
                "undefined (all values are equal)" if value is None else f"{value:.4f}"
            )
            lines.append(f"{name:<22} {shown}")
    skipped = report.get("skipped", [])
    if skipped:
        lines.append(f"{'skipped':<22} {len(skipped):,}")
    lines += [
        f"  {_take_place(own)}: {own['reason']}"
        for own in map(dict, skipped[:_MAX_SKIPPED])
    ]
    if len(skipped) > _MAX_SKIPPED:
        lines.append(f"  and {len(skipped) - _MAX_SKIPPED} more, see report.json")
    for part in (
        _comparison(report),
        [f"! {remark}" for remark in report.get("remarks", [])],
        _class_table(report),
        _confusion(report),
        _worst_rows(report),
    ):
        lines += ["", *part] if part else []
    return "\n".join(lines) + "\n"


def _class_table(report):
    classes = report.get("classes")
    if not classes:
        return []
    width = max(5, *map(width_of, classes))
    lines = [_padded("class", width) + "  precision  recall      f1    count"]
    for name, own in classes.items():
        lines.append(
            f"{_padded(name, width)}  {own['precision']:>9.4f}  "
            f"{own['recall']:>6.4f}  {own['f1']:>6.4f}  {own['count']:>7,}"
        )
    return lines


def compared(report: Mapping) -> tuple[dict[str, Mapping], list[str]]:
    """The model and its baselines by name, and the figures that have intervals."""
    rows = {"model": report, **report.get("baselines", {})}
    names = (name for own in rows.values() for name in own.get("intervals", {}))
    return rows, list(dict.fromkeys(names))


def _comparison(report):
    """The figures of the model and its baselines side by side, with intervals."""
    if "baselines" not in report:
        return []
    rows, figures = compared(report)
    width = max(map(width_of, rows))
    lines = [
        _padded("with 95 % intervals", width)
        + "".join(f"  {name.replace('_', ' '):<22}" for name in figures)
    ]
    for name, own in rows.items():
        cells = [_cell(own.get(f), own.get("intervals", {}).get(f)) for f in figures]
        lines.append(_padded(name, width) + "".join(f"  {cell:<22}" for cell in cells))
    for name, own in report["baselines"].items():
        if "threshold" in own:
            lines.append(
                f"  {name}: {own['above']} from {own['threshold']:.4f}, "
                f"{own['below']} below"
            )
        if "rows" in own:
            lines.append(f"  {name}: of {own['rows']:,} rows")
    return [line.rstrip() for line in lines]


def _cell(value, ends):
    if value is None:
        return "-"
    shown = "" if ends is None else f"  {ends[0]:.4f}-{ends[1]:.4f}"
    return f"{value:.4f}{shown}"


def _confusion(report):
    """Counts, and which share of a true class they are."""
    counts = report.get("confusion")
    if not counts:
        return []
    names, totals = list(report["classes"]), [max(1, sum(row)) for row in counts]
    if len(names) > _MAX_COLUMNS:
        wrong = sorted(
            (-count, row, column)
            for row, own in enumerate(counts)
            for column, count in enumerate(own)
            if count and row != column
        )
        lines = ["most frequent confusions (true, predicted, count, share of the true)"]
        return lines + [
            f"  {names[row]} -> {names[column]}: {-count:,} "
            f"({-count / totals[row]:.1%})"
            for count, row, column in wrong[:_MAX_CONFUSIONS]
        ]
    cells = [
        [f"{count:,} ({count / total:.1%})" for count in row]
        for row, total in zip(counts, totals, strict=True)
    ]
    title = "true \\ predicted"
    first = max(map(width_of, (title, *names)))
    widths = [max(map(width_of, own)) for own in zip(names, *cells, strict=True)]
    lines = []
    for name, row in ((title, names), *zip(names, cells, strict=True)):
        padded = (
            " " * (width - width_of(cell)) + cell
            for cell, width in zip(row, widths, strict=True)
        )
        lines.append("  ".join([_padded(name, first), *padded]))
    return lines


def _worst_rows(report):
    errors = report.get("errors")
    if not errors:
        return []
    lines = [f"worst errors ({len(errors)}; report.json has the whole texts)"]
    for row in errors:
        others = dict(row)
        texts = [others.pop(name) for name in _TEXTS if name in others]
        row_place = _take_place(others)
        expected, predicted = map(others.pop, ("expected", "predicted"))
        details = "".join(
            f", {name.replace('_', ' ')} {_cut(n)}" for name, n in others.items()
        )
        shown = " | ".join(_cut(text) for text in texts)
        answer = f"{_cut(expected)} -> {_cut(predicted)}"
        lines.append(f"  {row_place}: {answer}{details}: {shown}")
    return lines


def _take_place(row):
    """Removes the line or the row of a file from what is said of it, and names it."""
    unit = "row" if "row" in row else "line"
    return f"{unit} {row.pop(unit)}"


def _cut(value):
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list):
        # Names, or spans.
        parts = ["{2} {0}-{1}".format(*p) if isinstance(p, list) else p for p in value]
        value = ", ".join(parts) or "none"
    text = " ".join(str(value).split())
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def width_of(text: str) -> int:
    """Columns on a terminal: Chinese characters take two."""
    return sum(2 if ord(character) > 0x2E7F else 1 for character in text)


def _padded(text, width):
    return text + " " * (width - width_of(text))
