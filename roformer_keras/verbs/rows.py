"""Types of the rows and the answers of a verb."""

from collections.abc import Callable, Mapping, Sequence

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.tables.choices import wrong_text

# The texts of a row; choices are a tuple.
Texts = tuple[str | tuple[str, ...], ...]
Rows = Sequence[Texts]
# The number of each row in the whole job.
Numbers = Sequence[int]
# Columns of answers by name, with a value for each row.
Answers = Mapping[str, Sequence[object]]
# What is called between the steps of a text that is written.
OnStep = Callable[[], None] | None


def only_texts(rows: Rows) -> list[str]:
    """The texts of rows that have one each."""
    return [str(text) for (text,) in rows]


def check_texts(row: Texts, count: int) -> None:
    """Raises ConfigurationError unless a row has so many texts that are not empty."""
    if len(row) != count:
        raise ConfigurationError(f"a row must have {count} texts, got {len(row)}")
    for text in row:
        if problem := wrong_text(text):
            raise ConfigurationError(problem)
