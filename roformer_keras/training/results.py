"""The figures of a fine-tuning, as text, JSON and pictures."""

from pathlib import Path

from roformer_keras.io.atomic import replacing
from roformer_keras.io.json_file import json_bytes
from roformer_keras.tasks.reports import format_report
from roformer_keras.training.finetuning_plots import draw_comparison, draw_confusion

COMPARISON, CONFUSION = "comparison.png", "confusion.png"
REPORTS = ("report.txt", "report.json", COMPARISON, CONFUSION)


def write_reports(folder: Path, metadata: dict, reports: dict[str, dict]) -> str:
    """Writes figures as text, as JSON and as pictures."""
    text = format_page(metadata, reports)
    drawn = list(reports.values())[-1] if reports else {}
    if any(drawn.get("intervals", ())):
        draw_comparison(drawn, folder / COMPARISON)
    else:
        (folder / COMPARISON).unlink(missing_ok=True)
    if "confusion" in drawn:
        names = list(drawn["classes"])
        if not draw_confusion(drawn["confusion"], names, folder / CONFUSION):
            legend = (f"{number:>5}  {name}" for number, name in enumerate(names, 1))
            text += "\n".join(["", f"numbers in {CONFUSION}", *legend]) + "\n"
    content = json_bytes({**metadata, **reports})
    for name, written in (("report.txt", text.encode()), ("report.json", content)):
        with replacing(folder / name, overwrite=True) as partial:
            partial.write_bytes(written)
    return text


def format_page(metadata: dict, reports: dict[str, dict]) -> str:
    """Figures as text; arguments as in `write_reports`."""
    shown = {name: value for name, value in metadata.items() if name != "leaks"}
    lines = [f"{name:<22} {value}\n" for name, value in shown.items()]
    for name, leaks in metadata.get("leaks", {}).items():
        if leaks:
            rows = reports[name]["rows"]
            lines.append(
                f"! {leaks:,} of {rows:,} rows of {name} have a text that is also in "
                "the training data, so their figures may be too good: --holdout-by "
                "COLUMN keeps such rows on one side of --holdout; of separate files, "
                "take them out of one\n"
            )
    parts = ["".join(lines)]
    parts += [f"{name}\n{format_report(report)}" for name, report in reports.items()]
    return "\n".join(filter(None, parts))
