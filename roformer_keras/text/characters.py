"""Characters of a text: normal forms, blocks, and characters that stand alone."""

import itertools
import re
import string
import unicodedata

from roformer_keras.io.vocabulary import CJK_BLOCKS

CJK_CHARACTER = re.compile(f"[{CJK_BLOCKS}]")
# Frequent punctuation.
_MARKS = "!-/:-@\\[-`{-~\u2010-\u2027\u3001-\u3003\u3008-\u3011，．：；？！（）"
# A text in normal form whose characters all stand alone.
PLAIN = re.compile(f"[\u3400-\u4dbf\u4e00-\u9fff{_MARKS}]*")
# In a normalised text: a run of characters that stand alone, or a run of other
# characters between spaces.
ALONE = re.compile(f"[{CJK_BLOCKS}{_MARKS}]+")
RUNS = re.compile(f"([{CJK_BLOCKS}{_MARKS}]+)|([^{CJK_BLOCKS}{_MARKS} \\t\\n\\r]+)")
# All characters but the most frequent blocks without combining marks.
_MAYBE_MARKS = re.compile(
    "[^\\u0000-\\u02ff\u2000-\u206f\u3000-\u3029\u4e00-\u9fff\uff00-\uffef]+"
)


class _Spacing(dict):
    """A table for `str.translate` that grows as it meets characters.

    Standalone characters get spaces around them, every kind of space becomes " ",
    and control characters are deleted.
    """

    def __missing__(self, code):
        character = chr(code)
        category = unicodedata.category(character)
        if is_punctuation(character) or CJK_CHARACTER.match(character):
            spaced = f" {character} "
        elif character in "\t\n\r" or category in ("Zs", "Zl", "Zp"):
            spaced = " "
        elif category in ("Cc", "Cf") or character == "\ufffd":
            spaced = None
        else:
            spaced = character
        self[code] = spaced
        return spaced


SPACING = _Spacing()


def lower_in_place(text: str) -> str:
    """The text in lower case, of the same length."""
    return "".join(
        low if len(low := letter.lower()) == 1 else letter for letter in text
    )


def normalise(text):
    """Lowercases and decomposes (NFD) a text, and drops combining marks."""
    text = unicodedata.normalize("NFD", text.lower())
    return _MAYBE_MARKS.sub(_drop_marks, text)


def _drop_marks(match):
    return "".join(c for c in match[0] if unicodedata.category(c) != "Mn")


def normalise_with_origins(text):
    """`normalise(text)`, and the original span of each of its characters."""
    # Only character by character do spans stay known. On a whole text, lower() also
    # looks at the context, but only to choose between two forms of sigma.
    owners = [index for index, char in enumerate(text) for _ in char.lower()]
    pieces = [
        (piece, owner, owner + 1)
        for char, owner in zip(text.lower(), owners, strict=True)
        for piece in unicodedata.normalize("NFD", char)
    ]
    ordered = []
    for are_marks, run in itertools.groupby(
        pieces, key=lambda piece: unicodedata.combining(piece[0]) > 0
    ):
        run = list(run)
        if are_marks:
            # NFD reorders the marks on a character, so their spans may cross.
            start, end = run[0][1], run[-1][2]
            marks = sorted((mark for mark, _, _ in run), key=unicodedata.combining)
            run = [(mark, start, end) for mark in marks]
        ordered.extend(run)
    unmarked = [piece for piece in ordered if unicodedata.category(piece[0]) != "Mn"]
    characters = "".join(char for char, _, _ in unmarked)
    return characters, [(start, end) for _, start, end in unmarked]


def is_punctuation(character):
    """True for Unicode punctuation and every ASCII symbol, such as `$`, `~` and `^`."""
    return character in string.punctuation or unicodedata.category(
        character
    ).startswith("P")
