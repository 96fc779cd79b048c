"""`roformer-keras finetune`."""

import sys
from pathlib import Path

from roformer_keras.base.checks import read_fields, read_toml
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.base.extras import require
from roformer_keras.cli.flags import merge_flags
from roformer_keras.cli.libraries import check_libraries
from roformer_keras.cli.terminal import remark, remark_source, shows_progress, training
from roformer_keras.io.training_folder import is_new_run

FILES = ("train", "valid", "test")
EXAMPLES = (
    "finetune text-classification --train reviews.tsv --valid held-out.tsv -o reviews",
    "finetune text-regression --train pairs.tsv --pairs --holdout 0.1 --lora-rank 8 "
    "--learning-rate 1e-3 -o sts",
    "finetune token-classification --train ner.bio --holdout 0.1 --crf --patience 2 "
    "-o ner",
)
SETTINGS = {"": "roformer_keras.tasks.finetuning_settings.FinetuningSettings"}


def run(
    task: str | None = None,
    *,
    output: str,
    config: str | None = None,
    dropout: float | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    **flags,
) -> None:
    """Train a task on labelled texts.

    Flags change the settings of the file of --config.

    Args:
        output: folder of the training; a training of the same settings that was
            interrupted there is resumed.
        config: settings in TOML; each rate of a list of learning rates is tried, and
            the best on held-out data is kept.
        dropout: (default: the checkpoint's).
        overwrite: discard a training of other settings in that folder, once the new
            one is found to be possible.
    """
    if dropout is not None:
        flags["model.dropout"] = dropout
    # Checked before the backend is imported.
    require("a fine-tuning")
    rates = _rates(config, flags)
    trials = [{"learning_rate": rate} for rate in rates] or [{}]
    settings, *others = (read_settings(task, config, flags | trial) for trial in trials)
    check_libraries(vars(settings), FILES)
    from roformer_keras.tasks.labelled_files import read_files

    tables = read_files(settings)
    if not others:
        is_new_run(Path(output), settings.describe(), overwrite, settings.free)
    is_default = settings.source == type(settings).source
    if is_default and "source" not in flags and not quiet:
        remark_source(settings.source)
    if others:
        runs = {f"rate-{one.learning_rate:g}": one for one in (settings, *others)}
        output = str(_train("finetune_best", runs, output, tables, overwrite, quiet))
    else:
        _train("finetune_on", settings, output, tables, overwrite, quiet)
    _show_end(settings, output, quiet)


def _rates(config, flags):
    """The learning rates of a file that has a list of them, unless a flag has one."""
    if config is None or "learning_rate" in flags:
        return []
    rates = read_toml(config).get("learning_rate")
    return rates if isinstance(rates, list) else []


def _show_end(settings, output, quiet):
    """Shows the report, and prints the name of the preset."""
    report = Path(output, "report.txt")
    if report.is_file() and not quiet:
        print(report.read_text(encoding="utf-8"), file=sys.stderr)
    if not (settings.valid or settings.test or settings.holdout or quiet):
        remark(
            "no rows were held out, so nothing tells how good the model is: give "
            "--valid, --test, or --holdout 0.1"
        )
    print(Path(output, "preset"))


def _train(function, settings, output, tables, overwrite, quiet):
    """The result of a function of `training.finetune`."""
    with training(output) as callbacks:
        from roformer_keras.training import finetune

        return getattr(finetune, function)(
            settings,
            output,
            tables,
            callbacks=callbacks,
            overwrite=overwrite,
            verbose=shows_progress(quiet),
        )


def read_settings(task: str | None, config: str | None = None, flags=None):
    """`FinetuningSettings` of a file, changed by flags."""
    from roformer_keras.tasks.finetuning_settings import FinetuningSettings

    flags = flags or {}
    content = read_fields(FinetuningSettings, config) if config is not None else {}
    if task is None and "task" not in content:
        raise ConfigurationError(
            "name the task, or a configuration file that has it with --config"
        )
    if task is not None and content.setdefault("task", task) != task:
        raise ConfigurationError(
            f"{config} is for the task {content['task']!r}, the command for {task!r}"
        )
    for name, other in (("valid", "holdout"), ("holdout", "valid")):
        if name in flags and other not in flags:
            content.pop(other, None)
    content = merge_flags(content, flags)
    if "train" not in content:
        raise ConfigurationError(
            "name --train, or a configuration file that has it with --config"
        )
    return FinetuningSettings.from_dict(content)
