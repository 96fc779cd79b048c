"""Labelled texts of files; errors name file and line."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from roformer_keras.base.errors import ConfigurationError, SourceError
from roformer_keras.base.task_registry import TASKS
from roformer_keras.tables.files import LABEL, TextTable, is_missing, read_table
from roformer_keras.tables.table import Place
from roformer_keras.tasks.finetuning_settings import FinetuningSettings
from roformer_keras.tasks.labels import as_name, label_kind

# Rows that are tried together where bad ones are left out.
_ROWS_AT_A_TIME = 256


@dataclasses.dataclass(frozen=True)
class Examples:
    """Labelled rows of a file."""

    path: str
    texts: list
    labels: list
    places: list[Place]
    groups: list | None = None
    skipped: list = dataclasses.field(default_factory=list)
    kind: type = str

    @property
    def lines(self) -> list[int]:
        """The number of the line, or of the row, of each."""
        return [place.number for place in self.places]

    @property
    def unit(self) -> str:
        """Unit of `lines`: `"line"`, or `"row"` of a file that has no lines."""
        return self.places[0].unit

    def select(self, numbers: Sequence[int]) -> "Examples":
        """Some of the rows."""
        columns = {
            name: [getattr(self, name)[n] for n in numbers]
            for name in ("texts", "labels", "places", "groups")
            if getattr(self, name) is not None
        }
        return dataclasses.replace(self, **columns)  # type: ignore[arg-type]

    def usable_by(self, task) -> "Examples":
        """The rows that a task can learn from or be measured on."""
        good: list[int] = []
        skipped = list(self.skipped)
        for start in range(0, len(self.texts), _ROWS_AT_A_TIME):
            part = list(range(start, min(start + _ROWS_AT_A_TIME, len(self.texts))))
            while part:
                some = self.select(part)
                try:
                    task.labelled(some.texts, some.labels)
                    break
                except ConfigurationError as error:
                    if error.row is None:
                        break
                    place = self.places[part.pop(error.row)]
                    skipped.append((place.number, error.message))
            good += part
        if not good:
            line, reason = skipped[0]
            raise SourceError(
                f"{self.path} must have rows that {type(task).__name__} takes, but "
                f"none is, for instance {self.unit} {line}: {reason}"
            )
        return dataclasses.replace(self.select(good), skipped=sorted(skipped))

    @contextmanager
    def named(self) -> Iterator[None]:
        """A context in which errors name the line of the file instead of the row."""
        try:
            yield
        except ConfigurationError as error:
            if error.row is None:
                raise
            raise _error(self.places[error.row], error) from error


def read_files(settings: FinetuningSettings) -> dict[str, TextTable]:
    """The tables of a fine-tuning by the names of their settings.

    No backend is imported for it.
    """
    task = TASKS[settings.task]
    tables: dict[str, TextTable] = {}
    classes = known_classes(settings.options)
    for name in ("train", "valid", "test"):
        path = getattr(settings, name)
        if path is None:
            continue
        tables[name] = read_table(
            path,
            settings.text_count,
            settings.fields,
            format=settings.format,
            groups=settings.holdout_by if name == "train" else (),
            skipped=[] if settings.on_bad_row == "skip" else None,
            has_choices=task.has_choices,
            has_tokens=task.has_tokens,
            header=settings.header,
            encoding=settings.encoding,
            classes=classes,
        )
        # Labels of the other files are known from the first.
        classes = classes or {as_name(label) for label in tables["train"].labels or ()}
    return tables


def known_classes(options: Mapping) -> Collection[str]:
    """The names of classes in options of a task, which are no names of columns."""
    classes = options.get("classes")
    if not isinstance(classes, list | tuple):
        return ()
    return {as_name(label) for label in classes}


def read_unlabelled(
    path: str,
    task,
    count: int,
    trained_fields: Sequence[str],
    fields: Sequence[str] = (),
    **layout: Any,
) -> list[tuple[str, tuple]]:
    """Rows of a file to answer: the place of each, and its texts.

    `task` is a record of the tasks or a model: either tells what a row has. For the
    other arguments see `FinetunedTask.read_rows`.
    """
    # The fields of a training end with its label.
    has_label = len(fields) > 1 and (
        fields[-1] == LABEL or tuple(fields) == tuple(trained_fields)
    )
    table = read_table(
        path,
        len(fields) - has_label or count,
        fields or (trained_fields if path != "-" else ()),
        labelled=False,
        may_be_empty=True,
        or_first=not fields,
        has_choices=task.has_choices,
        has_tokens=task.has_tokens,
        **layout,
    )
    return list(zip(map(str, table.places), table.texts, strict=True))


def read_labelled(
    path: str,
    task,
    count: int,
    trained_fields: Sequence[str],
    fields: Sequence[str] = (),
    *,
    skips: bool = False,
    **layout: Any,
) -> TextTable:
    """Rows of a file to measure a model on; arguments as in `read_unlabelled`.

    `skips` leaves out bad rows, instead of raising an error.
    """
    return read_table(
        path,
        len(fields) - 1 if fields else count,
        fields or trained_fields,
        skipped=[] if skips else None,
        has_choices=task.has_choices,
        has_tokens=task.has_tokens,
        **layout,
    )


def parse_examples(
    path: str,
    table: TextTable,
    task_class,
    options: Mapping,
    column: str = LABEL,
    skips: bool = False,
) -> Examples:
    """Labels of a table as a task with these options takes them.

    `skips` leaves out rows with another label, instead of raising an error.
    """
    assert table.labels is not None
    numbers, labels, skipped = [], [], [*table.skipped]
    rows = zip(table.labels, table.texts, table.places, strict=True)
    for number, (value, texts, place) in enumerate(rows):
        try:
            labels.append(task_class.files_class.parse_label(value, texts, options))
            numbers.append(number)
        except ConfigurationError as error:
            if is_missing(value):
                error = ConfigurationError(f"{error.message} in {column!r}")
            if not skips:
                raise _error(place, error) from error
            skipped.append((place.number, error.message))
    kind = label_kind(table.labels)
    examples = Examples(
        str(path), table.texts, table.labels, table.places, table.groups, skipped, kind
    )
    if not labels:
        line, reason = skipped[0]
        raise SourceError(
            f"{path} has no row with a label; {examples.unit} {line}: {reason}"
        )
    return dataclasses.replace(examples.select(numbers), labels=labels)


def _error(place, error):
    return SourceError(f"{place}: {error.message}", hint=error.hint)
