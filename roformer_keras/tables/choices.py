"""Multiple choice: the choices of a row."""

import re
from collections.abc import Sequence

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.io.json_file import check_unicode, strict_json
from roformer_keras.tables.table import Value

MIN_CHOICES, MAX_CHOICES = 2, 256


def wrong_text(text: object, may_be_empty: bool = False) -> str:
    """The rule that a text of a row breaks, in words; "" if it breaks none."""
    if isinstance(text, str) and (may_be_empty or text.strip()):
        return ""
    rule = "" if may_be_empty else " that is not empty"
    return f"a text must be a str{rule}, got {text!r:.60}"


def check_choices(value: object, row: int | None = None) -> tuple[str, ...]:
    """The choices of a row: at least 2 texts, in a list or the like."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise ConfigurationError(
            f"choices must be a list of texts, got {value!r:.80}", row=row
        )
    if not MIN_CHOICES <= len(value) <= MAX_CHOICES:
        raise ConfigurationError(
            f"a row must have from {MIN_CHOICES} to {MAX_CHOICES} choices, got "
            f"{len(value)}",
            row=row,
        )
    for choice in value:
        if not isinstance(choice, str) or not choice.strip():
            raise ConfigurationError(
                f"a choice must be a str that is not empty, got {choice!r:.60}",
                row=row,
            )
    return tuple(value)


def parse_choices(value: object) -> tuple[str, ...]:
    """The choices in a cell of a table, which is a JSON list; or in a list."""
    if isinstance(value, str):
        text = value
        try:
            value = strict_json(text)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(
                f"choices in one cell must be a JSON list, got {text!r:.60}",
                hint='write them as ["A", "B"], or in a table as the columns '
                "choice1,choice2",
            ) from error
        check_unicode(value, "choices", text=text)
    return check_choices(value)


def choice_columns(names: Sequence[str], field: str) -> list[int]:
    """The places of numbered columns of choices, in the order of their numbers.

    For a field `choices`, these are `choice1`, `choice2`, ..., or `Choices_0`,
    `Choices_1`, ...; none of a table that has the field itself.
    """
    lower_names = [name.strip().lower() for name in names]
    wanted = field.lower()
    pattern = re.compile(rf"{re.escape(wanted.removesuffix('s'))}s?_?(\d{{1,3}})")
    matches = [pattern.fullmatch(name) for name in lower_names]
    numbered = {place: int(one[1]) for place, one in enumerate(matches) if one}
    columns = sorted(numbered, key=numbered.__getitem__)
    return [] if len(columns) < MIN_CHOICES or wanted in lower_names else columns


def gather_choices(cells: Sequence[str], places: Sequence[int]) -> list[Value]:
    """Cells with those of some places as a list at the end.

    Empty cells at the end of the list are no choices.
    """
    choices = [cells[place] for place in places]
    while choices and not choices[-1].strip():
        choices.pop()
    taken = set(places)
    return [*(x for place, x in enumerate(cells) if place not in taken), choices]
