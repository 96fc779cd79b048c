"""Joint truncation of the two sequences of an input."""

import re

from roformer_keras.base.checks import check_integer, is_integer
from roformer_keras.base.errors import ConfigurationError

# The tokens before such a character do not depend on the text after it. Jieba looks
# ideographs up in its dictionary together with their neighbours.
_LAST_BREAK = {
    "character": re.compile("(?s).*(?=[ \n\t，。\u4e00-\u9fff])"),
    "word": re.compile("(?s).*(?=[ \n\t，。])"),
}


def begin(sequence_of, text, max_length, truncate_from, level):
    """The tokens or spans of a text, cut early to as many as truncation needs."""
    is_cut_short = is_integer(max_length) and truncate_from in ("right", -2)
    if isinstance(text, str) and is_cut_short:
        size = 4 * (needed := max_length + 1)
        while size < len(text):
            if last_break := _LAST_BREAK[level].match(text, size // 2, size):
                sequence = sequence_of(text[: last_break.end()])
                if len(sequence) >= needed:
                    return sequence
            size *= 2
    return sequence_of(text)


def join(first, second, max_length, truncate_from):
    """The two sequences of an input, truncated together; `second` lacks `[CLS]`."""
    if max_length is not None:
        check_integer("max_length", max_length, minimum=1)
        index = {"right": -2, "left": 1}.get(truncate_from, truncate_from)
        if not is_integer(index):
            raise ConfigurationError(
                "truncate_from must be 'right', 'left' or an integer, got "
                f"{truncate_from!r}"
            )
        # The first token of `second` is not counted: it is dropped below.
        budget = max_length + (second is not None)
        sizes = _truncated_sizes(len(first), len(second or ()), budget)
        first = _without(first, index, sizes[0])
        second = second and _without(second, index, sizes[1])
    return first, (second or [])[1:]


def _truncated_sizes(first, second, budget):
    """Two lengths after cuts of 1 from the longer one, or from the first."""
    excess = max(first + second - budget, 0)
    level = min(excess, abs(first - second))
    if first > second:
        first -= level
    else:
        second -= level
    excess -= level
    return first - (excess + 1) // 2, second - excess // 2


def join_rows(sequence_of, texts, pairs, *limits):
    """The rows of `join`, of texts and of their pairs or None."""
    seconds = (second if second is None else sequence_of(second) for second in pairs)
    rows = zip(map(sequence_of, texts), seconds, strict=True)
    return [join(first, second, *limits) for first, second in rows]


def _without(sequence, index, size):
    """`sequence` after repeated `pop(index)`, until `size` elements are left."""
    surplus = len(sequence) - size
    if not surplus:
        return sequence
    if not -size - 1 <= index <= size:
        raise ConfigurationError(
            f"cannot truncate to {size} tokens by taking the one at index {index}, for "
            "there is none in the end; raise max_length or move truncate_from"
        )
    start = index if index >= 0 else len(sequence) + index - surplus + 1
    return sequence[:start] + sequence[start + surplus :]
