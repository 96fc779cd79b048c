"""`roformer-keras evaluate`."""

import contextlib
from pathlib import Path
from typing import Literal

from roformer_keras.base.errors import RoFormerError
from roformer_keras.base.extras import require
from roformer_keras.base.task_registry import TASKS
from roformer_keras.base.types import Engine
from roformer_keras.cli import interrupts, layouts
from roformer_keras.cli.terminal import shows_progress, start_backend
from roformer_keras.cli.texts import print_json
from roformer_keras.io.atomic import check_target, replacing
from roformer_keras.io.training_folder import PRESET, training_folder

FILES = ("file",)
EXAMPLES = (
    "evaluate reviews held-out.tsv",
    "evaluate reviews held-out.tsv --json -o report",
)
OPTIONS = (layouts.TableLayout,)


def run(
    source: str,
    file: str,
    *,
    fields: tuple[str, ...] = (),
    on_bad_row: Literal["error", "skip"] = "error",
    output: str | None = None,
    engine: Engine = "auto",
    as_json: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    **layout,
) -> None:
    """Measure a fine-tuned model on labelled texts.

    Args:
        source: folder of `finetune`, or a preset folder of a task, or its
            hf://OWNER/NAME.
        file: as `finetune --train` takes it.
        fields: columns or keys of texts and label (default: the names of the training).
        on_bad_row: skip leaves out rows that the task cannot use, and lists them.
        output: folder for the report and its pictures.
        engine: what computes, as in `embed`.
    """
    from roformer_keras.conversion.reader import open_checkpoint
    from roformer_keras.tasks.finetuning_settings import trained_settings
    from roformer_keras.tasks.labelled_files import known_classes, read_labelled

    require("an evaluation")
    if output is not None:
        require("drawing")
    table, trained = None, trained_settings(source)
    if trained is not None:
        # Errors of the file are raised before the backend starts, and those of the
        # model after it.
        classes = None
        with (
            contextlib.suppress(RoFormerError),
            open_checkpoint(training_folder(source) / PRESET) as checkpoint,
        ):
            classes = known_classes(checkpoint.model_options)
        table = read_labelled(
            file,
            TASKS[trained.task],
            trained.text_count,
            trained.field_names,
            fields,
            skips=on_bad_row == "skip",
            classes=classes,
            **layout,
        )
    if output is not None:
        check_target(Path(output), overwrite, folder="report.txt")
    start_backend()
    from roformer_keras.tasks.finetuned import evaluate_on, load_finetuned
    from roformer_keras.training.results import format_page, write_reports

    # An output that cannot be written is refused before the work.
    target: contextlib.AbstractContextManager = contextlib.nullcontext()
    if output is not None:
        target = replacing(output, overwrite, folder="report.txt")
    with target as partial:
        tuned = load_finetuned(source)
        tuned.task.engine = engine
        show = shows_progress(quiet)
        if table is None:
            report = tuned.evaluate(
                file, fields, on_bad_row=on_bad_row, **layout, verbose=show
            )
        else:
            report = evaluate_on(table, tuned, file, fields, on_bad_row, show)
        interrupts.check()
        page = format_page({}, {"evaluation": report})
        if partial is not None:
            page = write_reports(partial, {}, {"evaluation": report})
    if as_json:
        print_json(report)
    else:
        print(page, end="")
