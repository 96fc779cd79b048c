"""Labels as a file has them, and numbers as JSON has them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Number, Real
from typing import Any

import numpy as np

from roformer_keras.base.checks import check_integer, check_number, is_integer
from roformer_keras.base.errors import ConfigurationError, Hint, refuse
from roformer_keras.io.json_file import strict_json
from roformer_keras.tables.arrow import ClassName
from roformer_keras.tables.files import is_missing
from roformer_keras.tables.memory import column_names, read_labels, read_rows

# The truth value that 0 and 1 are, and the number that a truth value is.
_TRUTH_NAMES = {"0": "false", "1": "true", "false": "0", "true": "1"}
# A number, and a truth value, as CSV has them.
_WHOLE, _TRUTH = re.compile(r"([-+]?\d+)\.0+"), re.compile(r"true|false", re.I)


def parse_name(value) -> str:
    """The name of a class: the same for 1, 1.0, "1" and "1.0", or True and "TRUE"."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, str) and (name := value.strip()):
        if match := _WHOLE.fullmatch(name):
            return match[1]
        return name.lower() if _TRUTH.fullmatch(name) else name
    # pandas makes a column of integers one of floats if a value is missing.
    is_whole = isinstance(value, float | np.floating) and float(value).is_integer()
    if is_whole or is_integer(value):
        return str(int(value))
    raise ConfigurationError(
        f"a label must be a name, an integer or a truth value, got {value!r}",
        hint=Hint(
            "write a one-hot row as the number of its class, or name several classes "
            "with {multi_label:True}"
        )
        if isinstance(value, list)
        else None,
    )


def label_kind(values: Iterable) -> type:
    """The type of the labels of a file: int or bool if all of them are, else str."""
    parts = (part if isinstance(part, list) else [part] for part in values)
    labels = (one for part in parts for one in part if not is_missing(one))
    kinds = {
        bool if isinstance(one, bool) else str if isinstance(one, str) else int
        for one in labels
    }
    return kinds.pop() if len(kinds) == 1 else str


def typed_names(names: Iterable[str], kind: type) -> list:
    """Names of `parse_name` as the labels that they were, see `label_kind`."""
    return [name == "true" if kind is bool else kind(name) for name in names]


def parse_number(value) -> float:
    """A finite number."""
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):
        number = float("nan")
    # Weights and losses are float32.
    if not abs(number) <= float(np.finfo("float32").max) or isinstance(value, bool):
        raise ConfigurationError(f"a label must be a finite number, got {value!r}")
    return number


def parse_spans(value) -> list:
    """Spans, or tags; in a cell of a table a JSON list, or tags with spaces between.

    CLUENER's objects too: of label to names to pairs of first and last character.
    """
    if isinstance(value, dict):
        try:
            return [
                [first, last + 1, label]
                for label, names in value.items()
                for places in names.values()
                for first, last in places
            ]
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigurationError(
                "spans in an object must be pairs of first and last character by label "
                f"and name, got {value!r:.80}"
            ) from error
    if isinstance(value, str) and not value.lstrip().startswith("["):
        value = value.split()
    elif isinstance(value, str):
        try:
            value = strict_json(value)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(
                f"spans in a cell must be a JSON list: {error}"
            ) from error
    if not isinstance(value, list):
        raise ConfigurationError(f"a label must be a list of spans, got {value!r}")
    return value


def parse_answers(value, text: str) -> list:
    """Answers to a question about a text, each once: places, or str; [] if none.

    Those of SQuAD are a list of objects with `text` and `answer_start`, or, as
    `datasets` has them, an object with a list of each. The text counts where a start is
    not its own. Any other value is one answer.
    """
    try:
        if isinstance(value, dict):
            pairs = list(zip(value["text"], value["answer_start"], strict=True))
        elif isinstance(value, list) and all(isinstance(one, dict) for one in value):
            pairs = [(one["text"], one["answer_start"]) for one in value]
        else:
            return [value]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"answers in objects must have text and answer_start, got {value!r:.80}"
        ) from error
    answers = []
    for answer, start in pairs:
        if not isinstance(answer, str) or not is_integer(start):
            raise ConfigurationError(
                "an answer must have a str as its text and an integer as its "
                f"answer_start, got {answer!r:.60} and {start!r:.60}"
            )
        stands = start >= 0 and answer and text.startswith(answer, start)
        answers.append((start, start + len(answer)) if stands else answer)
    return list(dict.fromkeys(answers))


def class_names(num_classes, classes, minimum: int) -> tuple[int, list | None]:
    """The number of classes, and their names if they have any; checked.

    Names that are integers, True or False stay what they are; others become str.
    """
    if classes is not None:
        is_list = isinstance(classes, Iterable) and not isinstance(classes, str | dict)
        classes = list(classes) if is_list else classes
        # A number is a name in JSON and in a column of pandas.
        refuse(
            not is_list or not all(isinstance(name, str | Number) for name in classes),
            f"classes must be a list of names, got {classes!r}",
        )
        classes = [_class_name(name) for name in classes]
    if num_classes is None and classes is not None:
        num_classes = len(classes)
    refuse(
        num_classes is None,
        f"a model needs its classes: pass {minimum} or more names as classes=, "
        "or their number as num_classes=",
    )
    check_integer("num_classes", num_classes, minimum=minimum)
    refuse(
        classes is not None and len(set(map(_alike, classes))) != num_classes,
        f"classes must be {num_classes} different names, got {classes!r}",
    )
    return int(num_classes), classes


def _class_name(name):
    name = _plain_label(name)
    return name if isinstance(name, bool | int) else str(name)


def _plain_label(label):
    """A label as a Python type; a whole float as int."""
    if isinstance(label, np.generic):
        label = label.item()
    # pandas makes a column of integers one of floats if a value is missing.
    return int(label) if isinstance(label, float) and label.is_integer() else label


def as_name(label: Any) -> str:
    """A class as str: the key of its probability in JSON."""
    return str(label).lower() if isinstance(label, bool) else str(label)


def plain_names(names: Any) -> list[str] | None:
    """Names of outputs as str, to compare them; None if this is no list of names."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        return None
    return [as_name(_plain_label(name)) for name in names]


def class_number(
    label, num_classes: int, classes: list | None, row=None, what="a label"
) -> int:
    """The number of a class, from its number or name.

    Integers are names if classes are integers; else the places of classes. If the
    classes are 0 and 1, or False and True, a label of the other kind is its value.
    """
    known = list(range(num_classes)) if classes is None else classes
    value = _plain_label(label)
    if type(value) is type(known[0]) and value in known:
        return known.index(value)
    names: list[Any] = list(map(_alike, known))
    name: Any = None
    if isinstance(value, bool | str) or is_integer(value):
        name = _alike(value)
    truth_name, are_truths = _TRUTH_NAMES.get(name), set(names) == {"false", "true"}
    if is_integer(value) and not (are_truths or all(map(is_integer, known))):
        clashes = {names.index(one) for one in (name, truth_name) if one in names}
        if value in range(num_classes) and clashes - {value}:
            raise ConfigurationError(
                f"a number is the place of a class, and {label!r} is also the name of "
                f"another one of {classes}",
                row=row,
                hint="give names as str, or classes in the order of their numbers",
            )
        if value in range(num_classes):
            return value
    elif name in names:
        # A name may be of another type, as in another file.
        return names.index(name)
    elif truth_name in names and (are_truths or set(names) == {"0", "1"}):
        return names.index(truth_name)
    or_names = f", or a name of {classes}" if classes else ""
    raise ConfigurationError(
        f"{what} must be an integer from 0 to {num_classes - 1}{or_names}, got "
        f"{label!r}",
        row=row,
        hint=_NAMED_HINT if isinstance(label, ClassName) else None,
    )


def table_labels(table: Any, num_classes: int | None, classes: list | None) -> Any:
    """Labels of a table: its one column, or 0 and 1 in a column for each class."""
    columns = column_names(table)
    classes = list(range(num_classes or 0)) if classes is None else classes
    by_name = {_alike(name): name for name in columns}
    names = list(map(_alike, classes))
    if by_name.keys() == set(names):
        return np.array(list(read_rows(table, [by_name[name] for name in names])))
    if len(columns) == 1:
        return read_labels(table, columns[0])
    if columns == list(range(len(classes))):
        return np.array(list(read_rows(table, columns)))
    what = f", or a column for each of {classes}" if classes else ""
    raise ConfigurationError(
        f"labels in a table must be one column{what}, got the columns "
        f"{', '.join(map(repr, columns))}",
        hint="name the columns as the classes, or give an array" if classes else None,
    )


_NAMED_HINT = (
    "it is the name of a class number in the data: make the model with these names as "
    "classes=, or cast the column to integers, which are places of classes"
)


def weights_by_number(
    class_weight: Mapping, num_classes: int, classes: list[str] | None
) -> np.ndarray:
    """Weights of classes, 1 where none is given: float32 `(num_classes,)`."""
    refuse(
        not isinstance(class_weight, Mapping),
        f"class_weight must be a dict of class to weight, got {class_weight!r:.60}",
    )
    weights = np.ones(num_classes, "float32")
    for label, weight in class_weight.items():
        what = "a label of class_weight"
        number = class_number(label, num_classes, classes, what=what)
        check_number(f"class_weight of {label!r}", weight, minimum=0)
        weights[number] = weight
    return weights


def _alike(label):
    """A label as `parse_name` writes it, the same for equal names of all types."""
    try:
        return parse_name(label)
    except ConfigurationError:
        # A blank name.
        return label


def single_labels(y: Any, num_classes: int) -> Any:
    """A label for each row; rows of one-hot become numbers, rows of one label this."""
    if getattr(y, "ndim", 1) == 2:
        y = np.asarray(y)
    labels_found = []
    for row, label in enumerate(y):
        if isinstance(label, list | tuple | np.ndarray) and np.ndim(label) == 1:
            values = list(label)
            if len(values) == num_classes > 1:
                if sorted(_numbers(values)) != [*[0] * (num_classes - 1), 1]:
                    raise ConfigurationError(
                        f"a row of {num_classes} numbers must have one 1, for its "
                        f"class, and 0 for the others, got {label!r}",
                        row=row,
                        hint=Hint("{multi_label:True} is for texts of several classes"),
                    )
                label = _numbers(values).index(1)
            elif len(values) == 1:
                label = values[0]
        labels_found.append(label)
    return labels_found


def _numbers(values):
    return [one if isinstance(one, Real | np.bool_) else -1 for one in values]


def choice_number(label, choices: Sequence[str], row: int | None = None) -> int:
    """The number of the right choice, from its number, from 0, or its text.

    Of equal choices the first counts.
    """
    number: Any = None
    if isinstance(label, str):
        name = label.strip()
        # int() takes no number of thousands of digits. Names of class numbers may
        # begin with 1.
        if name.isdecimal() and len(name) < 10 and not isinstance(label, ClassName):
            number = int(name)
        texts = [choice.strip() for choice in choices]
        if name in texts:
            if number in range(len(choices)) and number != texts.index(name):
                raise ConfigurationError(
                    f"{label!r} is the text of the choice {texts.index(name)}, and the "
                    f"number of another one of {list(choices)}",
                    row=row,
                    hint="give the number as an integer, in a file of JSON lines",
                )
            return texts.index(name)
    # pandas makes a column of integers one of floats if a value is missing.
    elif is_integer(label) or isinstance(label, float | np.floating):
        number = label
    if number not in range(len(choices)):
        raise ConfigurationError(
            f"a label must be the number of a choice, from 0 to {len(choices) - 1}, or "
            f"its text, got {label!r}",
            row=row,
            hint=_NAMED_HINT if isinstance(label, ClassName) else None,
        )
    return int(number)


def sorted_names(names: Iterable[str]) -> list[str]:
    """Each name once, in order; integers in the order of their values."""
    names = set(names)
    # Python refuses to convert thousands of digits.
    are_numbers = all(name.isdecimal() and len(name) < 20 for name in names)
    return sorted(names, key=int if are_numbers else None)


def rounded(number) -> float:
    """A float with as many digits as float32 is good for."""
    return round(float(number), 6)
