"""`roformer-keras pretrain`."""

from pathlib import Path
from typing import Literal

from roformer_keras.base.checks import from_fields, read_fields
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.base.extras import require
from roformer_keras.cli.flags import Count, merge_flags
from roformer_keras.cli.libraries import check_libraries
from roformer_keras.cli.paths import is_small
from roformer_keras.cli.terminal import shows_progress, training
from roformer_keras.io.training_folder import is_new_run
from roformer_keras.tables.corpus import read_corpus

FILES = ("files",)
EXAMPLES = (
    "pretrain mlm corpus.txt -o run --source roformer-char --steps 100",
    "pretrain lm poems.jsonl.gz -o run --fields lines --num-layers 2",
    "pretrain unilm pairs.tsv -o run --subwords --max-vocabulary 8000 --no-lower-case",
)
SETTINGS = {"": "roformer_keras.training.pretraining_settings.PretrainingSettings"}
_STEPS = 10_000
_LENGTHS = {"mlm": 128, "lm": 128, "unilm": 64, "sim": 64}


def run(
    task: Literal["mlm", "lm", "unilm", "sim"],
    files: list[str] = (),  # type: ignore[assignment]  # It is not changed.
    *,
    output: str,
    config: str | None = None,
    num_layers: Count | None = None,
    hidden_dim: Count | None = None,
    num_heads: Count | None = None,
    whole_word: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    **flags,
) -> None:
    """Train a model on a corpus.

    Flags change the settings of the file of --config.

    Args:
        task: mlm (fill masks), lm (continue texts), unilm (write a second text from a
            first, as bert4keras does) or sim (sentence vectors and similar sentences).
        files: .txt, .jsonl, .json, .csv or .tsv, each also .gz or .xz; .xlsx, .parquet
            or .arrow; a folder of datasets.Dataset.save_to_disk; or a pattern such as
            'a/*.txt'.
        output: folder of the training; a training of the same settings that was
            interrupted there is resumed.
        config: settings in TOML.
        num_layers: of a new model (default: 4).
        hidden_dim: of a new model (default: 256).
        num_heads: of a new model (default: 4).
        whole_word: mask words instead of characters.
        overwrite: discard a training of other settings in that folder, once the new
            one is found to be possible.
    """
    sizes = {"num_layers": num_layers, "hidden_dim": hidden_dim, "num_heads": num_heads}
    flags |= {f"model.{name}": size for name, size in sizes.items() if size is not None}
    if whole_word:
        flags["options.whole_word"] = True
    # Checked before the backend is imported.
    require("a training")
    settings = read_settings(task, files, config, flags)
    check_libraries(vars(settings), ())
    for corpus in settings.data:
        check_libraries(vars(corpus), FILES)
    for corpus in settings.data:
        if all(map(is_small, corpus.paths())):
            # A field that is missing is found here.
            next(read_corpus(corpus, "all"), None)
    is_new_run(Path(output), settings.describe(), overwrite, settings.free)
    print(_train(settings, output, overwrite, quiet))


def _train(settings, output, overwrite, quiet):
    """Trains; returns the path of the result."""
    with training(output) as callbacks:
        from roformer_keras.training.pretrain import pretrain

        model = pretrain(
            settings,
            output,
            callbacks=callbacks,
            overwrite=overwrite,
            verbose=shows_progress(quiet),
        )
    has_zip = model.config.bert4keras_compatible
    return Path(output, f"{settings.name}.zip" if has_zip else "preset")


def read_settings(task: str, files=(), config: str | None = None, flags=None):
    """`PretrainingSettings` of a file, changed by flags."""
    from roformer_keras.training.pretraining_settings import (
        OBJECTIVES_OF,
        PretrainingSettings,
        TrainingStage,
    )

    flags = flags or {}
    content = read_fields(PretrainingSettings, config) if config is not None else {}
    content.setdefault("objective", OBJECTIVES_OF[task][0])
    objective = flags.get("objective", content["objective"])
    if objective not in OBJECTIVES_OF[task]:
        raise ConfigurationError(
            f"the objective of {task} must be {' or '.join(OBJECTIVES_OF[task])}, got "
            f"{objective!r}"
        )
    of_files = [name for name in flags if name.startswith("data.")]
    if files:
        # Records of two texts are in the first two columns of a table.
        fields = {"fields": ("1", "2")} if task == "unilm" else {}
        content["data"] = [{"files": files, **fields}]
    elif of_files:
        flags = ", ".join(f"--{name.rpartition('.')[2]}" for name in of_files)
        raise ConfigurationError(
            f"{flags} needs files of the corpus, got none: name them, or change the "
            "configuration file"
        )
    if "data" not in content:
        raise ConfigurationError(
            "name the files of the corpus, or a configuration file with --config"
        )
    stages = content.setdefault("stages", [{"steps": _STEPS, "length": _LENGTHS[task]}])
    for stage in stages if "stages.steps" in flags else ():
        if {"steps", "schedule"} <= stage.keys():
            before = from_fields(TrainingStage, stage, "stages")
            share = flags["stages.steps"] / before.steps
            # For points at the same step, use the last one.
            points = {round(step * share): factor for step, factor in before.schedule}
            stage["schedule"] = list(points.items())
    return PretrainingSettings.from_dict(merge_flags(content, flags))
