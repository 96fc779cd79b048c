"""Labelled texts of files; errors name file and line."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from roformer_keras import tasks
from roformer_keras.data.files import read_table
from roformer_keras.data.rows import draw_held_out
from roformer_keras.errors import ConfigurationError, SourceError
from roformer_keras.training.finetuning_settings import FinetuningSettings

# With more rows than these, classes must come again.
_FEW_ROWS = 20


@dataclasses.dataclass(frozen=True)
class Examples:
    """Labelled rows of a file.

    Attributes:
        path: str. Of the file.
        texts, lines: as in `Table`.
        labels: as `TextTask.parse_label` returns them.
    """

    path: str
    texts: list
    labels: list
    lines: list

    def select(self, numbers: Sequence[int]) -> "Examples":
        """Some of the rows."""
        columns = ([own[n] for n in numbers] for own in self._columns())
        return Examples(self.path, *columns)

    def _columns(self):
        return self.texts, self.labels, self.lines

    @contextmanager
    def named(self) -> Iterator[None]:
        """Within it, errors name the line of the file instead of the row."""
        try:
            yield
        except ConfigurationError as error:
            if error.row is None:
                raise
            raise _error(self.path, self.lines[error.row], error) from error


@dataclasses.dataclass(frozen=True)
class Data:
    """What a fine-tuning reads.

    Attributes:
        task_class: subclass of `TextTask`.
        names: names of the labels, given or of `train`; None if they have none.
        train: `Examples`.
        valid, test: `Examples` or None.
    """

    task_class: type
    names: list[str] | None
    train: Examples
    valid: Examples | None
    test: Examples | None


def read_data(settings: FinetuningSettings) -> Data:
    """Reads all files of a fine-tuning.

    Raises:
        SourceError: one cannot be read, or a row is not what the task takes: names
            file and line. Or the classes of most rows of `train` are unique, and the
            settings do not name the classes.
        ConfigurationError: too little would be left by `holdout`.
    """
    task_class = getattr(tasks, tasks.TASKS[settings.task].class_name)
    options = settings.options
    how = (task_class, options, settings.text_count, settings.fields)
    train = read_examples(settings.train, *how)
    names = options.get("classes", options.get("labels"))
    if names is None:
        names = task_class.find_names(train.labels, options)
        if names is not None:
            _check_classes(train)
    min_names = 1 if options.get("multi_label") else task_class.min_names
    if names is not None and len(names) < min_names:
        raise SourceError(
            f"{train.path} must have labels of at least {min_names} names, got {names}"
        )
    valid, test = (
        read_examples(path, *how) if path else None
        for path in (settings.valid, settings.test)
    )
    if settings.holdout:
        train, valid = _split(train, settings.holdout, settings.seed)
    return Data(task_class, names, train, valid, test)


def read_examples(
    path: str, task_class, options: Mapping, count: int, fields: Sequence[str] = ()
) -> Examples:
    """Reads one file for a task with these options; see `read_table`."""
    table = read_table(path, count, fields)
    assert table.labels is not None
    labels = []
    for value, texts, line in zip(table.labels, table.texts, table.lines, strict=True):
        try:
            labels.append(task_class.parse_label(value, texts, options))
        except ConfigurationError as error:
            raise _error(path, line, error) from error
    return Examples(str(path), table.texts, labels, table.lines)


def _check_classes(examples):
    """Refuses texts in the column of the classes."""
    labels = examples.labels
    if len(labels) <= _FEW_ROWS or not isinstance(labels[0], str):
        return
    alone = sum(count == 1 for count in Counter(labels).values())
    if alone > len(labels) / 2:
        raise SourceError(
            f"{examples.path} must have classes that come again, and those of {alone} "
            f"of {len(labels)} rows do not, such as {labels[0]!r:.40}",
            hint="if texts and labels are swapped, name their columns with fields=",
        )


def _error(path, line, error):
    return SourceError(f"line {line} of {path}: {error.message}", hint=error.hint)


def _split(examples, share, seed):
    """Two parts, the second of that share, drawn from the seed."""
    count = len(examples.texts)
    held_out = draw_held_out(count, share, seed)
    if held_out.all() or not held_out.any():
        raise ConfigurationError(
            f"holdout must leave rows on both sides, got {share} of {count}"
        )
    return tuple(
        examples.select(np.flatnonzero(mask)) for mask in (~held_out, held_out)
    )
