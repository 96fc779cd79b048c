"""Labelled texts of files; errors name file and line."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from roformer_keras.base.errors import ConfigurationError, SourceError
from roformer_keras.tables.files import is_missing, place, read_table, row_unit
from roformer_keras.tables.memory import LABEL
from roformer_keras.tasks.labels import as_name, label_kind

# With more rows than these, classes must come again.
_FEW_ROWS = 20
_PAIRS_HINT = "; if a row has two texts and a label, pass {pairs:True}"
# Rows that are tried together where bad ones are left out.
_ROWS_AT_A_TIME = 256


@dataclasses.dataclass(frozen=True)
class Examples:
    """Labelled rows of a file."""

    path: str
    texts: list
    labels: list
    lines: list
    groups: list | None = None
    skipped: list = dataclasses.field(default_factory=list)
    format: str | None = None
    kind: type = str

    @property
    def unit(self) -> str:
        """Unit of `lines`: `"line"`, or `"row"` of a file that has no lines."""
        return row_unit(self.path, self.format)

    def select(self, numbers: Sequence[int]) -> "Examples":
        """Some of the rows."""
        columns = {
            name: [getattr(self, name)[n] for n in numbers]
            for name in ("texts", "labels", "lines", "groups")
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
                    line = self.lines[part.pop(error.row)]
                    skipped.append((line, error.message))
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
            line = self.lines[error.row]
            raise _error(self.path, line, error, self.format) from error


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
    examples = Examples(str(path), [], [], [], columns, format=format, kind=kind)
    examples.skipped.extend(skipped or [])
    for row, (value, texts, line) in enumerate(
        zip(table.labels, table.texts, table.lines, strict=True)
    ):
        try:
            label = task_class.files_class.parse_label(value, texts, options)
        except ConfigurationError as error:
            if is_missing(value):
                column = fields[-1] if len(fields) > count else LABEL
                error = ConfigurationError(f"{error.message} in {column!r}")
            if not skips:
                raise _error(path, line, error, format) from error
            examples.skipped.append((line, error.message))
            continue
        examples.texts.append(texts)
        examples.labels.append(label)
        examples.lines.append(line)
        if examples.groups is not None and table.groups is not None:
            examples.groups.append(table.groups[row])
    if not examples.texts:
        line, reason = examples.skipped[0]
        raise SourceError(
            f"{path} has no row with a label; {examples.unit} {line}: {reason}"
        )
    return examples


def _error(path, line, error, format):
    where = place(line, path, format)
    return SourceError(f"{where}: {error.message}", hint=error.hint)
