"""Files of questions as SQuAD and CMRC have them: one nested JSON object.

`data` is a list of articles, of which each has `paragraphs`; of these each has a
`context` and `qas`, its questions, with `question`, `id` and `answers`. Rows are the
questions, and their fields the keys of question, paragraph and article.
"""

import itertools
from collections import ChainMap
from collections.abc import Iterator, Sequence

from roformer_keras.base.errors import ConfigurationError, SourceError, name_list
from roformer_keras.io.json_file import parse_json
from roformer_keras.tables.lines import UTF_8, file_name, read_text

# The fields of the texts and of the label, unless others are given.
FIELDS = ("question", "context", "answers")
_LAYOUT = (
    "a file of questions has data, a list of articles with paragraphs, and these have "
    "a context and qas; a file with an object a line is of the format jsonl"
)


def read_questions(
    path: str, fields: Sequence[str], encoding: str = UTF_8
) -> Iterator[tuple[int, list | SourceError]]:
    """Numbers of the questions, from 1, and the values of some fields.

    In place of the values of a question that lacks some, its SourceError.
    """
    name = file_name(path)
    try:
        content = parse_json(read_text(path, encoding), name, trusted=True)
    except ConfigurationError as error:
        raise SourceError(error.message, hint=_LAYOUT) from error
    numbers = itertools.count(1)
    for article_place, article in _objects(content, "data", name):
        for place, paragraph in _objects(article, "paragraphs", article_place):
            for _, question in _objects(paragraph, "qas", place):
                number = next(numbers)
                record = ChainMap(question, paragraph, article)
                missing = [repr(field) for field in fields if field not in record]
                yield (
                    number,
                    SourceError(
                        f"row {number} of {name} must have {', '.join(missing)}, got "
                        f"{name_list(question)}"
                    )
                    if missing
                    else [record[field] for field in fields],
                )


def _objects(parent, key, place):
    """The places of the objects in a list of an object, and these."""
    children = parent.get(key)
    if not isinstance(children, list):
        raise SourceError(
            f"{place} must have {key!r}, a list, got {children!r:.60}", hint=_LAYOUT
        )
    for number, child in enumerate(children):
        item_place = f"{key}[{number}] of {place}"
        if not isinstance(child, dict):
            raise SourceError(f"{item_place} must be an object, got {child!r:.60}")
        yield item_place, child
