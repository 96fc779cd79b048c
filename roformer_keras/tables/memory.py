"""Tables in memory: pandas, polars, Arrow, and datasets of Hugging Face.

They are recognised by what they can do, so that none of these libraries is imported.
Their rows are read as they are needed.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from roformer_keras.base.errors import ConfigurationError, Hint, refuse
from roformer_keras.base.types import Texts
from roformer_keras.tables.arrow import ROWS_AT_A_TIME, stored_features, with_names
from roformer_keras.tables.files import LABEL, is_missing, text_names


def is_table(x: Texts) -> bool:
    """True if `x` has rows and named columns."""
    # The columns of a query are not to be asked for.
    refuse(
        hasattr(x, "collect_schema") and not hasattr(x, "iter_rows"),
        f"a table must have its rows, got a {type(x).__name__}: give x.collect()",
    )
    if isinstance(getattr(x, "column_names", None), Mapping):
        raise ConfigurationError(
            f"a table must be one split of a dataset, got the splits "
            f"{', '.join(map(repr, x.column_names))}: choose a split, as in "
            f"x[{next(iter(x.column_names), 'train')!r}]"
        )
    frames, others = ("itertuples", "iter_rows"), ("to_pylist", "select_columns")
    return any(hasattr(x, "columns") and hasattr(x, name) for name in frames) or any(
        hasattr(x, "column_names") and hasattr(x, name) for name in others
    )


def read_rows(x: Texts, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The values of some columns, row by row."""
    columns = list(columns)
    if hasattr(x, "itertuples"):
        yield from x[columns].itertuples(index=False, name=None)
    elif hasattr(x, "iter_rows"):
        yield from x.select(columns).iter_rows()
    elif hasattr(x, "to_pylist"):
        x = x.select(columns)
        for start in range(0, x.num_rows, ROWS_AT_A_TIME):
            rows = x.slice(start, ROWS_AT_A_TIME)
            yield from zip(*(one.to_pylist() for one in rows.columns), strict=True)
    else:
        # Values as they are, and not those of a format such as torch's.
        plain = x.with_format(None).select_columns(columns)
        for batch in plain.iter(ROWS_AT_A_TIME):
            yield from zip(*(batch[name] for name in columns), strict=True)


def column_names(x: Texts) -> list[str]:
    """The names of the columns of a table."""
    # Those of Arrow's `columns` are values.
    names = x.column_names if hasattr(x, "column_names") else x.columns
    if names is None:
        # A dataset made by a generator: its first row has them.
        names = next(iter(x.with_format(None)), {})
    return list(names)


def text_columns(
    names: Sequence[str],
    counts: Sequence[int],
    has_choices: bool = False,
    trained: Sequence[str] = (),
) -> list[str]:
    """The columns that hold the texts of a row.

    They are those that a model was trained on, or named `text`, or `first`, `second`
    and `third`, or as `text_names` says. A table without these holds nothing else but
    `label`, which is never a text; several texts then need a model that takes, or was
    trained on, as many.
    """
    if len(trained) in counts:
        if set(trained) <= set(names):
            return _single(trained, names)
        counts = (len(trained),)
    for count in sorted(counts, reverse=True):
        expected = text_names(count, has_choices)
        if set(expected) <= set(names):
            return _single(expected, names)
    texts = [name for name in names if name != LABEL]
    if len(texts) in counts and 1 in (len(texts), len(counts)):
        return _single(texts, names)
    is_sure = len(counts) == 1
    others = "as many columns as a row has texts" if is_sure else "one column of texts"
    wanted = " or ".join(", ".join(text_names(count, has_choices)) for count in counts)
    raise ConfigurationError(
        f"a table must have the columns {wanted}, or {others} next to {LABEL!r}, got "
        f"{', '.join(map(repr, names)) or 'none'}",
        hint=Hint(
            "select or rename the columns of the texts; {fields} names them in training"
        ),
    )


def _single(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Columns as a list; each name must be that of one column."""
    for name in columns:
        if names.count(name) > 1:
            raise ConfigurationError(
                f"a table must have one column {name!r}, got {names.count(name)}"
            )
    return list(columns)


def split_labels(
    x: Texts,
    counts: Sequence[int],
    fields: Sequence[str] = (),
    or_none: bool = False,
    has_choices: bool = False,
    trained: Sequence[str] = (),
) -> tuple["TextRows", list[Any]]:
    """The texts and the labels of a table."""
    names = column_names(x)
    if fields and (isinstance(fields, str) or len(fields) - 1 not in counts):
        raise ConfigurationError(
            f"fields must name {' or '.join(map(str, counts))} texts and a label, got "
            f"{fields!r}"
        )
    *columns, label = fields or (LABEL,)
    for name in (*columns, label):
        if name not in names:
            raise ConfigurationError(
                f"a table to learn from must have the column {name!r}, got "
                f"{', '.join(map(repr, names)) or 'none'}",
                hint=Hint(
                    "name texts and label with {fields}, or give the labels as y"
                ),
            )
    if not columns:
        columns = text_columns(names, counts, has_choices, trained)
    _single((*columns, label), names)
    labels = read_labels(x, label)
    for row, value in enumerate(labels):
        if is_missing(value):
            refuse(
                not or_none,
                f"a row to learn from must have a label, got {value!r} in the "
                f"column {label!r}",
                row=row,
                hint="leave such rows out",
            )
            labels[row] = None
    return TextRows(x, columns), labels


def read_labels(x: Texts, column: str) -> list[Any]:
    """The values of a column of a table, with the names of its class numbers."""
    # `datasets` has features; Arrow has what it stored of them.
    features = getattr(x, "features", None)
    if not isinstance(features, Mapping):
        features = stored_features(getattr(x, "schema", None))
    feature = features.get(column)
    return [with_names(value, feature) for (value,) in read_rows(x, [column])]


class TextRows:
    """The texts of a table, read again by each loop."""

    def __init__(self, table: Texts, columns: Sequence[str]):
        self._table, self.names = table, tuple(columns)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return read_rows(self._table, self.names)


def plain(values: Any) -> Any:
    """A column of Arrow as a list; other containers unchanged."""
    return values.to_pylist() if hasattr(values, "to_pylist") else values


def plain_labels(labels: Any) -> Any:
    """Labels of Arrow and `datasets` as a list; other containers unchanged."""
    refuse(
        isinstance(labels, Mapping | Set | str),
        f"labels must be a list, got a {type(labels).__name__}: give its values as "
        "a list, in the order of the texts",
    )
    is_column = type(labels).__module__.startswith("datasets.")
    if is_column and hasattr(labels, "features"):
        return [with_names(label, labels.features) for label in labels]
    # Those that are masked become None.
    return labels.tolist() if isinstance(labels, np.ma.MaskedArray) else plain(labels)
