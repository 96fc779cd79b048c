"""Spans of a user's text, in characters, in every form that labels have."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from roformer_keras.base.checks import is_integer
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.tables.tagged import TokenTags, are_plain, name_tags
from roformer_keras.tasks.labels import parse_spans, rounded

# The type of a span in JSON, without its label.
SPAN_KIND = {"start": int, "end": int, "text": str, "score": float}


@dataclass(frozen=True)
class Span:
    """A labelled piece of a text.

    Attributes:
        start, end: ints. `text[start:end]` of the text as it was given.
        label: str.
        text: str. That piece.
        score: float. How sure the model is; see the task for its meaning.

    Example:
        >>> tasks.Span(start=2, end=4, label="LOC", text="北京", score=0.98).to_json()
        {'start': 2, 'end': 4, 'label': 'LOC', 'text': '北京', 'score': 0.98}
    """

    start: int
    end: int
    label: str
    text: str
    score: float

    def to_json(self) -> dict:
        """The attributes as plain JSON types."""
        return {**asdict(self), "score": rounded(self.score)}


def as_spans(
    labels, text: str, row: int | None, tags: Sequence[str] = ()
) -> list[tuple[int, int, str]]:
    """The labels of one text as (start, end, label), checked.

    Blanks at the edges of a span are removed, because no answer of a model has them.
    """
    try:
        if isinstance(labels, TokenTags):
            labels = labels.of_characters(tags)
        if isinstance(labels, Mapping):
            labels = parse_spans(dict(labels))
    except ConfigurationError as error:
        raise ConfigurationError(error.message, row=row, hint=error.hint) from error
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise ConfigurationError(
            f"labels of a text must be a list of spans or of tags, got {labels!r:.60}",
            row=row,
        )
    labels = list(labels)
    are_numbers = len(labels) == len(text) and all(map(is_integer, labels))
    if labels and (are_numbers or all(isinstance(label, str) for label in labels)):
        if len(labels) != len(text):
            raise ConfigurationError(
                f"there must be a tag for each character, got {len(labels)} tags for "
                f"{len(text)} characters",
                row=row,
            )
        labels = spans_of_tags(labels, row, tags)
    return [_span(label, text, row) for label in labels]


def _span(label, text, row):
    if isinstance(label, Span):
        label = (label.start, label.end, label.label)
    elif isinstance(label, dict):
        label = _triple(label, text, row)
    if (
        not isinstance(label, list | tuple)
        or len(label) != 3
        or not all(is_integer(place) for place in label[:2])
        or not isinstance(label[2], str)
        or not label[2].strip()
    ):
        raise ConfigurationError(
            f"a span must be (start, end, label), or a dict of these, got {label!r}",
            row=row,
        )
    start, end, name = label
    if not 0 <= start < end <= len(text):
        raise ConfigurationError(
            f"a span must lie in its text, from 0 to {len(text)}, and be at least one "
            f"character long, got {start} to {end}",
            row=row,
        )
    visible = [place for place in range(start, end) if not _is_blank(text[place])]
    if not visible:
        raise ConfigurationError(
            f"a span must hold more than blanks, got {start} to {end}, "
            f"{text[start:end]!r}",
            row=row,
        )
    return visible[0], visible[-1] + 1, name


def _triple(label, text, row):
    """Start, end and label of a dict."""
    for names in (("start", "end", "label"), ("start_offset", "end_offset", "label")):
        if names[0] in label:
            return tuple(label.get(name) for name in names)
    start, end, name, entity = map(
        label.get, ("start_idx", "end_idx", "type", "entity")
    )
    if is_integer(start) and is_integer(end) and isinstance(entity, str) and start >= 0:
        # Versions of CMeEE count the last character in `end_idx`, or do not.
        for last in (end, end + 1):
            if text[start:last] == entity:
                return start, last, name
        raise ConfigurationError(
            f"the entity of a span must be its piece of the text, got {entity!r:.40} "
            f"from {start} to {end}, where {text[max(start, 0) : end + 1]!r:.40} is",
            row=row,
        )
    return label


def _is_blank(character):
    """Spaces, and controls that show nothing: a tokenizer drops them."""
    return character.isspace() or unicodedata.category(character) in ("Cc", "Cf")


def spans_of_tags(
    tags: Iterable, row: int | None = None, names: Sequence[str] = ()
) -> list[tuple[int, int, str]]:
    """Spans of tags in BIO, BIOES, BMES or BILOU: `O`, or a letter, `-` and a label.

    Letters may be small, `-` may be `_`, and tags numbers of `names`. B begins a span,
    I and M are inside, E and L end it, S, U and W are one by itself. Another letter
    than B that follows no span of its label begins one, as it does for `seqeval`.
    Where `names` are plain, without such letters, a tag is the label, and neighbours
    with one tag are one span.
    """
    spans, start, label = [], 0, None
    is_plain = are_plain(names)
    try:
        tags = name_tags(tags, names)
    except ConfigurationError as error:
        raise ConfigurationError(error.message, row=row, hint=error.hint) from error
    for place, tag in enumerate([*tags, "O"]):
        kind, _, name = tag.partition("-")
        if is_plain and tag != "O":
            kind, name = ("I", tag) if tag in names else ("", "")
        if kind not in tuple("BIOMES") or (kind == "O") == bool(name):
            raise ConfigurationError(
                f"a tag must be O, or one of {', '.join(names)}, got {tag!r}"
                if is_plain
                else "a tag must be O, or a letter of BIO, BIOES, BMES or BILOU with a "
                f"label, such as B-PER; got {tag!r}",
                row=row,
            )
        if label is not None and (kind in "BOS" or name != label):
            spans.append((start, place, label))
            label = None
        if kind != "O" and label is None:
            start, label = place, name
        if kind in "ES":
            spans.append((start, place + 1, name))
            label = None
    return spans
