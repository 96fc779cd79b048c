"""Settings of a fine-tuning: a small TOML file, or keywords of the same names."""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import ClassVar

from roformer_keras.base.checks import (
    Only,
    Settings,
    check_number,
    choice,
    columns,
    file_paths,
    integer,
    number,
    option,
    source_path,
)
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.task_registry import TASKS, TaskOptions
from roformer_keras.hub.catalog import checkpoint_files
from roformer_keras.io.blob import Blob
from roformer_keras.io.journal import fingerprints, run_metadata
from roformer_keras.io.json_file import read_json
from roformer_keras.io.training_folder import SETTINGS, training_folder
from roformer_keras.tables.arrow import data_files
from roformer_keras.tables.files import ENCODINGS, HEADERS
from roformer_keras.tables.formats import FORMAT_CHOICES
from roformer_keras.tasks.optimizer_settings import (
    OptimizerSettings,
    dtype_policy,
    random_seed,
)

# Settings with which others count.
_LORA = Only("lora_rank above 0", bool, "lora_rank")
_TRAINS_EMBEDDINGS = Only(
    "embeddings that are trained, which lora_rank and freeze_embeddings freeze",
    lambda rank, frozen: not rank and not frozen,
    "lora_rank",
    "freeze_embeddings",
)
_HELD_OUT = Only(
    "data that are not trained on: valid, or holdout",
    lambda valid, holdout: valid is not None or holdout > 0,
    "valid",
    "holdout",
)
_CHOOSES_EPOCH = Only(
    f"{_HELD_OUT.words}, and keep_best or patience",
    lambda valid, holdout, keep_best, patience: (
        _HELD_OUT.holds(valid, holdout) and (keep_best or patience is not None)
    ),
    "valid",
    "holdout",
    "keep_best",
    "patience",
)


def _of_tasks(setting: str) -> Only:
    """The tasks that take a setting."""
    names = [name for name, task in TASKS.items() if setting in task.settings]
    return Only(f"task {' or '.join(names)}", lambda task: task in names, "task")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningSettings(Settings):
    """All settings of a fine-tuning but the folder of its output.

    Args:
        task: str of `TASKS`.
        train: str. File of labelled texts, but not standard input: a training that is
            resumed reads its files again. See `read_table`.
        source: str. The checkpoint to start from: a name, file or folder; a small one
            that this package ships by default. See `from_preset`.
        ignore: patterns of tensors of the source to pass over:
            `"bert/embeddings/position_embeddings"` to start from a BERT.
        valid: str or None. File to evaluate the model on after each epoch.
        test: str or None. File to report on at the end.
        holdout: float. Share of `train` to use as `valid`, drawn by the seed; from 0 to
            less than 1.
        holdout_by: columns or keys, as in `fields`: rows that share a value of one are
            on one side of `holdout`. With the columns of both texts of a pair, no text
            is on both sides.
        fields: columns or keys of the texts and of the label. Of multiple-choice, a
            context, a question or none, the choices, and the label. See `read_table`.
        format: for files whose extension does not say it.
        header: `"first"` if the first row of a table names its columns, `"none"` if it
            is a row as the others. See `read_table`.
        encoding: of text files: `"utf-8"`, `"gbk"`, `"gb18030"`, `"big5"`, `"utf-16"`,
            or `"auto"`, which looks for a byte-order mark, or tries UTF-8 and GB18030.
        on_bad_row: `"error"`, or `"skip"` to leave out rows that are not what the task
            takes, and to list them in the report.
        pairs: bool. Whether a row has two texts, if the task takes one or two.
        options: arguments of the task's class, such as `multi_label`, `crf`, `pooling`.
        model: fields of `RoFormerConfig` to change, such as `dropout`.
        max_length: int or None. Tokens to which rows are cut; by default the task's.
        epochs: int. Maximum of passes over `train`.
        batch_size: int. Rows of an update.
        accumulation: int. Parts of a batch that are computed one after the other, to
            save memory.
        learning_rate: float or None. By default 2e-5 for a model of width 768, and more
            for narrower ones. See `finetuning_rate`.
        warmup_ratio: float. Share of all updates in which the rate rises from 0; from 0
            to less than 1.
        schedule: `"linear"`: the rate then falls to 0; `"constant"`: it stays.
        optimizer: weight decay, clipping and a running mean of the weights.
        layer_decay: float. Factor of the rate from each block to the one below; above
            0, at most 1.
        lora_rank: int. Rank of additions to kernels; only these and the head are
            trained; 0 for none.
        lora_alpha: float or None. The additions are multiplied by it and divided by the
            rank; as much as the rank by default.
        lora_targets: kernels that get additions. See `enable_lora`.
        freeze_embeddings: bool. Whether embeddings are not trained.
        freeze_layers: int. How many of the lowest blocks are not trained.
        adversarial_epsilon: float. Length of the step of FGM; 0 for none.
        r_drop: float. Weight of the divergence of two passes; 0 for none.
        class_weights: `"balanced"` for the inverse of the frequency of a class in
            `train`, or a table of class to weight; all are 1 by default.
        dtype: in which the model computes: `"float32"`, `"mixed_bfloat16"` or
            `"mixed_float16"`, a policy of Keras.
        gradient_checkpointing: bool. Less memory, more time.
        monitor: str or None. The metric of `valid` that determines the best epoch: one
            of its report, or `"loss"`; of one class a row also `"matthews"`, and of two
            classes `"f1"`, that of the second. By default as the task does.
        patience: int or None. Epochs without a better metric after which to stop.
        keep_best: bool. Whether to keep the weights of the best epoch, not the last.
        seed: int from 0 to 2**32 - 1. Of new weights, the order of the data, what is
            held out, and dropout.

    Raises:
        ConfigurationError: a setting breaks its rule, or settings do not go together.

    Example:
        >>> settings = roformer_keras.FinetuningSettings(
        ...     task="text-classification", train="reviews.csv", epochs=1, max_length=16
        ... )
        >>> settings.source, settings.batch_size
        ('roformer-char', 32)
    """

    task: str = choice(choices=TASKS)
    train: str = file_paths()
    source: str = source_path("roformer-char")
    ignore: tuple[str, ...] = ()
    valid: str | None = file_paths(None)
    test: str | None = file_paths(None)
    holdout: float = number(0.0, minimum=0, below=1)
    holdout_by: tuple[str, ...] = columns((), only=Only("holdout", bool, "holdout"))
    fields: tuple[str, ...] = columns(())
    format: str | None = choice(None, choices=FORMAT_CHOICES)
    header: str | None = choice(None, choices=(None, *HEADERS))
    encoding: str = choice("utf-8", choices=ENCODINGS)
    on_bad_row: str = choice("error", choices=("error", "skip"))
    pairs: bool = False
    options: Mapping = dataclasses.field(
        default_factory=dict, metadata={"flags": TaskOptions}
    )
    model: Mapping = dataclasses.field(default_factory=dict)
    max_length: int | None = None
    epochs: int = integer(3, minimum=1, maximum=10**6)
    batch_size: int = integer(32, minimum=1, maximum=2**20)
    accumulation: int = integer(1, minimum=1, maximum=2**20)
    learning_rate: float | None = number(None, minimum=0, maximum=100)
    warmup_ratio: float = number(0.1, minimum=0, below=1)
    schedule: str = choice("linear", choices=("linear", "constant"))
    optimizer: OptimizerSettings = dataclasses.field(default_factory=OptimizerSettings)
    layer_decay: float = number(
        1.0,
        above=0,
        maximum=1,
        only=Only("optimizer adamw", lambda name: name == "adamw", "optimizer.name"),
    )
    lora_rank: int = integer(0, minimum=0, maximum=2**20)
    lora_alpha: float | None = option(None, _LORA)
    lora_targets: tuple[str, ...] = option(("query", "value"), _LORA)
    freeze_embeddings: bool = option(
        False,
        Only("lora_rank=0: LoRA freezes them", lambda rank: not rank, "lora_rank"),
    )
    freeze_layers: int = integer(0, minimum=0)
    adversarial_epsilon: float = number(0.0, minimum=0, only=_TRAINS_EMBEDDINGS)
    r_drop: float = number(0.0, minimum=0, only=_of_tasks("r_drop"))
    class_weights: str | Mapping | None = option(None, _of_tasks("class_weights"))
    dtype: str = dtype_policy()
    gradient_checkpointing: bool = False
    monitor: str | None = option(None, _CHOOSES_EPOCH)
    patience: int | None = integer(None, minimum=1, only=_HELD_OUT)
    keep_best: bool = option(True, _HELD_OUT)
    seed: int = random_seed()

    # Those that a resumed training may change.
    free: ClassVar[tuple[str, ...]] = ()

    def _check_files(self):
        for name in ("train", "valid", "test"):
            refuse(
                getattr(self, name) == "-",
                f"{name} must be a file, which a training that is resumed reads "
                "again, got '-': write standard input to a file",
            )
        refuse(
            self.valid is not None and self.holdout,
            f"give valid or holdout, not both: got valid={self.valid!r} and "
            f"holdout={self.holdout}",
        )
        refuse(
            self.pairs and set(TASKS[self.task].text_counts) != {1, 2},
            f"pairs are for tasks of one text or two, got task={self.task!r}",
        )
        refuse(
            self.pairs and self.fields and len(self.fields) != 3,
            "fields must name two texts and a label with pairs, got "
            f"{', '.join(self.fields)}",
        )

    def _check_together(self):
        refuse(
            self.batch_size % self.accumulation,
            "batch_size must be a multiple of accumulation, got "
            f"batch_size={self.batch_size}, accumulation={self.accumulation}",
        )
        self._check_files()
        refuse(
            self.class_weights is not None and self.options.get("multi_label"),
            "class_weights must be of one class a row, got multi_label=True",
        )
        refuse(
            isinstance(self.class_weights, str) and self.class_weights != "balanced",
            "class_weights must be 'balanced' or a table of class to weight, got "
            f"{self.class_weights!r}",
        )
        if isinstance(self.class_weights, Mapping):
            for label, weight in self.class_weights.items():
                check_number(f"class_weights of {label}", weight, minimum=0)
        compares_rows = TASKS[self.task].objective(self.options).compares_rows
        refuse(
            compares_rows and self.batch_size // self.accumulation < 2,
            "sentence vectors are compared within a part of a batch, so batch_size "
            f"must be at least 2 times accumulation, got {self.batch_size} and "
            f"{self.accumulation}",
        )

    def describe(self) -> dict:
        """Settings and files that identify a training, as `run_metadata` has them."""
        files: dict[str, Iterable] = {
            name: data_files(path)
            for name in ("train", "valid", "test")
            if (path := getattr(self, name)) is not None
        }
        files["source"] = checkpoint_files(self.source)
        inputs = {name: fingerprints(paths) for name, paths in files.items()}
        return run_metadata(self.to_dict(), inputs)

    @property
    def rows(self) -> int:
        """Rows that are computed together."""
        return self.batch_size // self.accumulation

    @property
    def text_count(self) -> int:
        """Texts of a row of the files."""
        counts = TASKS[self.task].objective(self.options).text_counts
        if self.fields and len(self.fields) - 1 in counts:
            return len(self.fields) - 1
        return counts[-1] if self.pairs else counts[0]

    @property
    def field_names(self) -> tuple[str, ...]:
        """`fields`, unless numbers of columns, which hold for their file alone."""
        is_named = not any(field.isdecimal() for field in self.fields)
        return self.fields if is_named else ()


def trained_settings(folder: str | os.PathLike) -> FinetuningSettings | None:
    """The settings of the training in a folder, or None if they are not there.

    Raises:
        ConfigurationError: they are not those of a fine-tuning.
    """
    path = training_folder(folder) / SETTINGS
    if not os.path.isfile(path):
        return None
    try:
        return FinetuningSettings.from_dict(read_json(Blob.of_file(path))["settings"])
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(
            f"{path} must be of a fine-tuning, and is not: {error}"
        ) from error
