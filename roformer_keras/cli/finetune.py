"""`roformer-keras finetune`."""

import sys
from pathlib import Path

from roformer_keras.checks import read_fields
from roformer_keras.cli.flags import merge_flags
from roformer_keras.cli.terminal import remark_source, shows_progress, training
from roformer_keras.errors import ConfigurationError

EXAMPLES = (
    "finetune text-classification --train reviews.tsv --valid held-out.tsv -o reviews",
    "finetune text-regression --train pairs.tsv --pairs --holdout 0.1 --lora-rank 8 "
    "--learning-rate 1e-3 -o sts",
    "finetune token-classification --train ner.bio --holdout 0.1 --crf --patience 2 "
    "-o ner",
)
SETTINGS = "roformer_keras.training.finetuning_settings.FinetuningSettings"


def run(
    task: str,
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
        config: settings in TOML.
        dropout: (default: the checkpoint's).
        overwrite: discard a training of other settings in that folder, once the new
            one is found to be possible.
    """
    if dropout is not None:
        flags["model.dropout"] = dropout
    # Checked before the backend is imported.
    settings = read_settings(task, config, flags)
    is_default = settings.source == type(settings).source
    if is_default and "source" not in flags and not quiet:
        remark_source(settings.source)
    with training(output) as callbacks:
        from roformer_keras.training.finetune import finetune

        finetune(
            *(settings, output),
            callbacks=callbacks,
            overwrite=overwrite,
            verbose=shows_progress(quiet),
        )
    report = Path(output, "report.txt")
    if report.is_file() and not quiet:
        print(report.read_text(encoding="utf-8"), file=sys.stderr)
    print(Path(output, "preset"))


def read_settings(task: str, config: str | None = None, flags=None):
    """`FinetuningSettings` of a file, changed by flags.

    Args:
        task: as in the command.
        config: path of a TOML file, or None.
        flags: values by name, with the table before it: `optimizer.ema`.

    Raises:
        SourceError, ConfigurationError: the file cannot be read, or a setting breaks
            its rule.
    """
    from roformer_keras.training.finetuning_settings import FinetuningSettings

    flags = flags or {}
    content = read_fields(FinetuningSettings, config) if config is not None else {}
    if content.setdefault("task", task) != task:
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
