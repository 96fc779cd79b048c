"""Labelled texts of files; errors name file and line."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from roformer_keras.base.errors import ConfigurationError, SourceError
from roformer_keras.tables.files import LABEL, is_missing, read_table
from roformer_keras.tables.table import Place
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
        """Within it, errors name the line of the file instead of the row."""
        try:
            yield
        except ConfigurationError as error:
            if error.row is None:
                raise
            raise _error(self.places[error.row], error) from error


def read_examples(
    path: str,
    task_class,
    options: Mapping,
    count: int,
    fields: Sequence[str] = (),
    skips: bool = False,
    format: str | None = None,
    groups: Sequence[str] = (),
    header: str | None = None,
    encoding: str = "utf-8",
    classes: Sequence | None = None,
) -> Examples:
    """Reads one file for a task with these options; see `read_table`.

    `classes` are the ones of the training, if known; `skips` leaves out rows without a
    text or a label, instead of raising an error.
    """
    skipped: list[tuple[int, str]] | None = [] if skips else None
    classes = options.get("classes") if classes is None else classes
    table = read_table(
        path,
        count,
        fields,
        format=format,
        groups=groups,
        skipped=skipped,
        has_choices=task_class.has_choices,
        has_tokens=task_class.has_tokens,
        classes=list(map(as_name, classes))
        if isinstance(classes, list | tuple)
        else (),
        header=header,
        encoding=encoding,
    )
    assert table.labels is not None
    columns: list | None = None if table.groups is None else []
    kind = label_kind(table.labels)
    examples = Examples(str(path), [], [], [], columns, kind=kind)
    examples.skipped.extend(skipped or [])
    for row, (value, texts, place) in enumerate(
        zip(table.labels, table.texts, table.places, strict=True)
    ):
        try:
            label = task_class.files_class.parse_label(value, texts, options)
        except ConfigurationError as error:
            if is_missing(value):
                column = fields[-1] if len(fields) > count else LABEL
                error = ConfigurationError(f"{error.message} in {column!r}")
            if not skips:
                raise _error(place, error) from error
            examples.skipped.append((place.number, error.message))
            continue
        examples.texts.append(texts)
        examples.labels.append(label)
        examples.places.append(place)
        if examples.groups is not None and table.groups is not None:
            examples.groups.append(table.groups[row])
    if not examples.texts:
        line, reason = examples.skipped[0]
        raise SourceError(
            f"{path} has no row with a label; {place.unit} {line}: {reason}"
        )
    return examples


def _error(place, error):
    return SourceError(f"{place}: {error.message}", hint=error.hint)
