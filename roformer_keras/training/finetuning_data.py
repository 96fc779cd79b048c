"""The training rows of a fine-tuning, and its held-out rows."""

import dataclasses
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from roformer_keras import tasks
from roformer_keras.base.errors import Hint, SourceError, refuse
from roformer_keras.base.extras import import_extra
from roformer_keras.base.task_registry import TASKS
from roformer_keras.tables.files import LABEL, TextTable
from roformer_keras.tasks.finetuning_settings import FinetuningSettings
from roformer_keras.tasks.labelled_files import Examples, parse_examples, read_files
from roformer_keras.tasks.labels import typed_names
from roformer_keras.text.rows import draw_held_out

# With more rows, a class must occur several times.
_FEW_ROWS = 20
_PAIRS_HINT = "; if a row has two texts and a label, pass {pairs:True}"


@dataclasses.dataclass(frozen=True)
class Data:
    """The examples of a fine-tuning."""

    task_class: type
    names: list[str] | None
    train: Examples
    valid: Examples | None
    test: Examples | None

    def usable_by(self, task) -> "Data":
        """The data without rows that a task cannot use; see `Examples.usable_by`."""
        names = ("train", "valid", "test")
        parts = {name: examples for name in names if (examples := getattr(self, name))}
        return dataclasses.replace(
            self, **{name: examples.usable_by(task) for name, examples in parts.items()}
        )


def read_data(
    settings: FinetuningSettings, tables: Mapping[str, TextTable] | None = None
) -> Data:
    """The examples of a fine-tuning; `tables` holds its files if already read."""
    tables = tables or read_files(settings)
    task_class = getattr(tasks, TASKS[settings.task].class_name)
    options = settings.options
    column = settings.fields[-1] if settings.fields else LABEL
    skips = settings.on_bad_row == "skip"

    def parse(name):
        path = getattr(settings, name)
        return parse_examples(path, tables[name], task_class, options, column, skips)

    train = parse("train")
    names = options.get("classes", options.get("labels"))
    if names is None:
        names = task_class.files_class.find_names(train.labels, options)
        if names is not None:
            _check_classes(train, settings)
        if _are_classes(task_class, names, options):
            names = typed_names(names, train.kind)
    names = list(names) if isinstance(names, tuple) else names
    refuse(
        names is not None and not isinstance(names, list),
        f"names of labels must be a list, got {names!r}",
    )
    min_names = 1 if options.get("multi_label") else task_class.files_class.min_names
    if names is not None and len(names) < min_names:
        raise SourceError(
            f"{train.path} must have labels of at least {min_names} names, got {names}"
        )
    valid, test = (
        parse(name) if name in tables else None for name in ("valid", "test")
    )
    if settings.holdout:
        train, valid = _split(train, settings)
    return Data(task_class, names, train, valid, test)


def _are_classes(task_class, names, options):
    """True if the names belong to classes, and not to spans."""
    return names is not None and "classes" in task_class.files_class.name_options(
        names, options
    )


def _check_classes(examples, settings):
    """Refuses texts in the column of classes, and numbers next to truth values."""
    labels = examples.labels
    if labels and all(isinstance(label, str) for label in labels):
        names = set(labels)
        if names & {"true", "false"} and names & {"0", "1"}:
            raise SourceError(
                f"{examples.path} must have labels of one kind, got numbers and truth "
                f"values: {', '.join(sorted(names)):.80}"
            )
    if len(labels) <= _FEW_ROWS or not isinstance(labels[0], str):
        return
    task = TASKS[settings.task]
    alone = sum(count == 1 for count in Counter(labels).values())
    if alone > len(labels) / 2:
        raise SourceError(
            f"{examples.path} must have several rows for a class, but {alone} of "
            f"{len(labels)} rows have a class of one row, such as {labels[0]!r:.40}",
            hint=Hint(
                "if texts and labels are swapped, name their columns with {fields}"
                + _PAIRS_HINT * (2 in task.text_counts and not settings.pairs)
            ),
        )


def _split(examples, settings):
    """Splits examples; the second part has the share `holdout`, drawn by the seed."""
    share, count = settings.holdout, len(examples.texts)
    if examples.groups is None:
        held_out = draw_held_out(count, share, settings.seed)
    else:
        held_out = draw_groups(examples.groups, share, settings.seed)
    refuse(
        held_out.all() or not held_out.any(),
        f"holdout must leave rows on both sides, got {share} of {count}",
    )
    return tuple(
        examples.select(np.flatnonzero(mask)) for mask in (~held_out, held_out)
    )


def draw_groups(
    values: Sequence[Sequence[Hashable]], share: float, seed: int
) -> np.ndarray:
    """Mask of the rows to hold out; rows that share a value are on the same side.

    Rows that are linked through other rows are one group. The seed draws the order of
    the groups, and each group that fits into the share is held out.
    """
    sparse = import_extra("scipy.sparse", "holdout_by")
    graph = import_extra("scipy.sparse.csgraph", "holdout_by")
    numbers: dict[Hashable, int] = {}
    links = np.array(
        [
            (row, numbers.setdefault(value, len(numbers)))
            for row, row_values in enumerate(values)
            for value in row_values
        ],
        "int64",
    ).reshape(-1, 2)
    # A graph of rows and values.
    rows, size = len(values), len(values) + len(numbers)
    edges = (links[:, 0], rows + links[:, 1])
    linked = sparse.coo_array((np.ones(len(links)), edges), shape=(size, size))
    _, groups = graph.connected_components(linked, directed=False)
    names, groups, sizes = np.unique(
        groups[:rows], return_inverse=True, return_counts=True
    )
    target_rows, free_rows, chosen = round(share * rows), round(share * rows), []
    for group in np.random.default_rng([seed, 0]).permutation(len(names)):
        if sizes[group] <= free_rows:
            chosen.append(group)
            free_rows -= sizes[group]
    smallest = int(sizes.min())
    # A group that exceeds the share a little is better than none.
    if not chosen and target_rows and len(names) > 1 and smallest <= 2 * target_rows:
        chosen = [sizes.argmin()]
    refuse(
        not chosen,
        f"holdout_by must leave rows on both sides, but of its {len(names)} groups "
        f"of {rows} rows the smallest has {smallest}, and holdout={share} is "
        f"{target_rows}",
        hint="raise holdout, or name fewer columns in holdout_by: rows that share "
        "a value with the same row are one group",
    )
    return np.isin(groups, chosen)


def count_leaks(train: Examples, other: Examples) -> int:
    """Number of rows of another file with a text that is also in the training data.

    For rows with choices only the context counts: questions and choices repeat.
    """
    train_texts = {text.strip() for row in train.texts for text in _own_texts(row)}
    return sum(
        any(text.strip() in train_texts for text in _own_texts(row))
        for row in other.texts
    )


def _own_texts(row):
    return row if isinstance(row[-1], str) else row[:1]
