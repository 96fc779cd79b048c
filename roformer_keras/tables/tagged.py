"""Tokens and their tags: of files (.bio, .conll) and of lists."""

import itertools
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from roformer_keras.base.checks import is_integer
from roformer_keras.base.errors import ConfigurationError, SourceError
from roformer_keras.tables.opening import File
from roformer_keras.tables.table import Value

_LOGGER = logging.getLogger(__name__)
_TAG = re.compile(r"([BIOMESLUW])(?:[-_](.+))?", re.IGNORECASE | re.DOTALL)
# Letters of BILOU and BMEWO by those of BIOES.
_LETTERS = {"L": "E", "U": "S", "W": "S"}
# Tags of schemes that are not read: a letter and a label, in either order.
_OTHER_SCHEMES = (
    re.compile(r"(?P<letter>[A-Z])[-_:./|](?P<label>.+)", re.IGNORECASE | re.DOTALL),
    re.compile(r"(?P<label>.+)[-_:./|](?P<letter>[A-Z])", re.IGNORECASE | re.DOTALL),
)
# Chinese and Japanese characters and punctuation: no blanks stand between their words.
_UNSPACED = re.compile(
    "[\u2e80-\u312f\u3190-\ua4cf\uf900-\ufaff\ufe10-\ufe1f\ufe30-\ufe6f"
    "\uff00-\uff9f\uffe0-\uffef\U0001b000-\U0001b16f\U00020000-\U0003ffff]"
)


# === Lists ===


def as_list(value: object) -> object:
    """An array of NumPy as a list; others unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


@dataclass(frozen=True)
class TokenTags:
    """Tokens of a text, and a tag for each."""

    tokens: tuple[str, ...]
    tags: tuple[str | int, ...]

    def of_characters(self, names: Sequence[str] = ()) -> list[str]:
        """A tag for each character of `join_tokens(tokens)`."""
        tags, is_plain = name_tags(self.tags, names), are_plain(names)
        found: list[str] = []
        blanks = _blanks(self.tokens)
        for token, tag, blank in zip(self.tokens, tags, blanks, strict=True):
            if blank:
                # A blank within a span belongs to it.
                kind, _, label = tag.partition("-")
                is_inside = kind in ("I", "M", "E") and found[-1][2:] == label
                inside = f"I-{label}"
                if is_plain:
                    is_inside, inside = found[-1] == tag, tag
                found.append(inside if is_inside else "O")
            found += [tag] * len(token) if is_plain else _tags_of(token, tag)
        return found


def join_tokens(tokens: Sequence[str]) -> str:
    """The text of tokens, with blanks between words of scripts that have blanks."""
    pairs = zip(tokens, _blanks(tokens), strict=True)
    return "".join(" " * blank + token for token, blank in pairs)


def _blanks(tokens: Sequence[str]) -> list[bool]:
    """True for each token with a blank before it."""
    # Without a word of several characters, a row is split into characters.
    has_words = any(
        len(token) > 1 and any(map(str.isalnum, token)) and not _UNSPACED.search(token)
        for token in tokens
    )
    pairs = itertools.pairwise(["", *tokens])
    return [
        has_words and bool(before) and not _UNSPACED.search(before[-1:] + token[:1])
        for before, token in pairs
    ]


def token_tags(tokens: object, label: object) -> object:
    """A label of a tag for each of several tokens as `TokenTags`; others unchanged."""
    tokens, label = as_list(tokens), as_list(label)
    if not isinstance(tokens, list) or not isinstance(label, list | tuple):
        return label
    is_tags = all(isinstance(one, str) or is_integer(one) for one in label)
    fits = is_tags and len(label) == len(tokens)
    return TokenTags(tuple(tokens), tuple(label)) if fits else label


def join_row(row: object) -> object:
    """The text of a row that is a list of tokens; other rows unchanged."""
    tokens = row_tokens(row)
    return row if tokens is None else join_tokens(tokens)


def row_tokens(row: object) -> list[str] | None:
    """The tokens of a row: a list of str, or a tuple of one; None of other rows."""
    if isinstance(row, tuple) and len(row) == 1:
        row = row[0]
    tokens = as_list(row)
    if not isinstance(tokens, list) or not tokens:
        return None
    return tokens if all(isinstance(token, str) for token in tokens) else None


def are_plain(names: Iterable[str]) -> bool:
    """True if names of tags are labels: one has no letter of a scheme."""
    names = list(names)
    if all(_is_of_scheme(_TAG.fullmatch(name)) for name in names):
        return False
    for scheme in _OTHER_SCHEMES:
        counts = Counter(m["label"] for m in map(scheme.fullmatch, names) if m)
        label = max(counts, key=counts.__getitem__, default="")
        if counts[label] > 1:
            raise ConfigurationError(
                "tags must be labels, or O and a letter of BIO, BIOES, BMES or BILOU "
                f"before each label, such as B-{label}, got {', '.join(names)}"
            )
    return True


def _is_of_scheme(match: re.Match[str] | None) -> bool:
    return match is not None and (match[1] in "Oo") != bool(match[2])


def name_tags(tags: Iterable[str | int], names: Sequence[str] = ()) -> list[str]:
    """Tags as str, in letters of BIOES: `b_LOC` is `B-LOC`, `L-LOC` is `E-LOC`.

    Plain tags, which are labels themselves, stay what they are.
    """
    names_found: list[str] = []
    is_plain = are_plain(names)
    for tag in tags:
        if is_integer(tag):
            if not 0 <= tag < len(names):
                known = f"one of 0 to {len(names) - 1}" if names else "one with a name"
                raise ConfigurationError(
                    f"a tag that is a number must be {known}, got {tag}",
                    hint="give the tags as names such as B-LOC, or the labels of the "
                    "spans as labels=, in the order of the numbers O, B, I, B, I, ...",
                )
            tag = names[int(tag)]
        tag = str(tag)
        match = _TAG.fullmatch(tag)
        if match is not None and _is_of_scheme(match) and not is_plain:
            letter = match[1].upper()
            letter = _LETTERS.get(letter, letter)
            tag = f"{letter}-{match[2]}" if match[2] else letter
        names_found.append(tag)
    return names_found


def _tags_of(token: str, tag: str) -> list[str]:
    """A tag for each character of a token."""
    kind, label, following = tag[:1], tag[1:], len(token) - 1
    if not following or label[:1] != "-":
        return [tag] * (following + 1)
    # The first and the last character of a token that begins and ends a span.
    first = {"S": "B", "E": "I"}.get(kind, kind)
    last = {"S": "E", "B": "I"}.get(kind, kind)
    return [first + label, *["I" + label] * (following - 1), last + label]


# === Files ===


def read_tagged(
    file: File, keys: Sequence[str]
) -> Iterator[tuple[int, Mapping[str, Value] | SourceError]]:
    """Line numbers, and the text and its tags, one of each character.

    In place of a text with a line that is no token and tag, or has another number of
    columns than most, its SourceError. Lines `-DOCSTART-`, between the documents of
    CoNLL, are left out.
    """
    texts: list[dict[int, list[str]]] = [{}]
    for line, text in file.lines():
        if text.strip() and not text.startswith("-DOCSTART-"):
            texts[-1][line] = _words_of(text)
        elif texts[-1]:
            texts.append({})
    texts = [lines for lines in texts if lines]
    widths = Counter(len(words) for lines in texts for words in lines.values())
    # A line without a tag is none of any width.
    del widths[1]
    width = max(widths, key=widths.__getitem__, default=0)
    good = [lines for lines in texts if {width} == {*map(len, lines.values())}]
    has_places = all(
        _have_places([words[0] for words in lines.values()]) for lines in good
    )
    if good and has_places:
        _LOGGER.info(
            "%s has a number after each character, its place in a word; it is left out",
            file.name,
        )
    for lines in texts:
        begin = next(iter(lines))
        wrong = next((line for line in lines if len(lines[line]) != width), None)
        if wrong is not None:
            yield begin, _line_error(str(file.place(wrong)), lines[wrong], width)
            continue
        tokens = [words[0][: 1 if has_places else None] for words in lines.values()]
        tags = TokenTags(tuple(tokens), tuple(words[-1] for words in lines.values()))
        yield begin, {"text": join_tokens(tokens), "label": tags.of_characters()}


def _line_error(place: str, words: list[str], width: int) -> SourceError:
    """The error of a line with another number of columns."""
    if len(words) < 2:
        return SourceError(f"{place} must be a token and its tag, got {words[0]!r:.60}")
    return SourceError(
        f"{place} must have {width} columns, as most lines, got {len(words)}",
        hint="a token with blanks needs tabs between the columns",
    )


def _words_of(text: str) -> list[str]:
    """The columns of a line, with tabs or else spaces between them.

    With tabs a token may have spaces, or be one.
    """
    text = text.rstrip()
    if "\t" not in text:
        return text.split()
    token, *others = text.split("\t")
    return [token.strip() or token, *(other.strip() for other in others)]


def _have_places(tokens: list[str]) -> bool:
    """True if each token is a character and its place in a word: 0, 1, 2, 0, 0, ...

    So is the first column of Weibo's corpus of entities.
    """
    if not all(len(token) > 1 and token[1:].isdecimal() for token in tokens):
        return False
    # int() takes no number of thousands of digits.
    token_numbers = [int(token[1:]) for token in tokens if len(token) < 10]
    pairs = itertools.pairwise([-1, *token_numbers])
    is_row = all(place in (0, before + 1) for before, place in pairs)
    return is_row and len(token_numbers) == len(tokens)
