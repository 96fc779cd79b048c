"""`vocab.txt`: one token a line, with the line number as its id."""

import io
import re
from collections.abc import Iterable, Sequence

from roformer_keras.base.errors import ConfigurationError, VocabularyError, refuse

# Larger than every vocabulary of a model, and longer than every token.
_MAX_TOKENS, _MAX_LENGTH = 2**20, 1000
PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"

# The blocks that BERT calls CJK; neither kana nor 々 and 〇 are among them.
CJK_BLOCKS = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df"
    "\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
)
_CJK_WORD = re.compile(f"[{CJK_BLOCKS}]{{2}}")


def read_vocabulary(data: bytes, label: str) -> list[str]:
    """Tokens by id, the first field of each line, as bert4keras reads them.

    A byte-order mark does not belong to the first token.
    """
    # A list of tokens takes 30 times the memory of the bytes.
    _check_count(max(data.count(b"\n"), data.count(b"\r")), label)
    lines = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig")
    try:
        tokens = list(map(token_of_line, lines))
    except UnicodeDecodeError as error:
        raise VocabularyError(
            f"a vocabulary must be a UTF-8 text, {label} is not: {error}"
        ) from error
    _check_count(len(tokens), label)
    refuse(
        not tokens,
        f"a vocabulary must hold tokens, {label} is empty",
        error=VocabularyError,
    )
    return tokens


def token_of_line(line: str) -> str:
    """The token of a line, or `""` if it has only spaces."""
    return next(iter(line.split(None, 1)), "")


def fitting_tokens(tokens: Sequence[str], rows: int = 0) -> Sequence[str]:
    """The tokens without empty last lines, if the embedding has no row for them."""
    count = len(tokens)
    while count and not tokens[count - 1]:
        count -= 1
    # bert4keras counts all empty lines as one token.
    if rows == count + 1:
        return tokens[:rows]
    return tokens[:count] if rows in (0, count) else tokens


def _check_count(count, label):
    refuse(
        count > _MAX_TOKENS,
        f"{label} must hold at most {_MAX_TOKENS:,} tokens, got {count:,}",
        error=VocabularyError,
    )


def write_vocabulary(tokens) -> bytes:
    """The content of a `vocab.txt` that gives the same tokens when read."""
    text = "".join(f"{token}\n" for token in tokens)
    return text.encode("utf-8-sig" if text.startswith("\ufeff") else "utf-8")


def check_tokens(tokens: Sequence[str], label: str = "a vocabulary") -> None:
    """Raises VocabularyError unless tokens make a vocabulary that can be written.

    Tokens must be short, different texts without spaces, with the special tokens.
    """
    _check_count(len(tokens), label)
    for index, token in enumerate(tokens):
        if not isinstance(token, str) or any(map(str.isspace, token)):
            raise VocabularyError(
                f"a token must be a str without spaces, got {token!r:.80} with id "
                f"{index}"
            )
        if len(token) > _MAX_LENGTH:
            raise VocabularyError(
                f"a token of {label} must have at most {_MAX_LENGTH} characters, got "
                f"{len(token):,} of the one with id {index}"
            )
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError as error:
        raise VocabularyError(
            f"{label} must hold whole characters, got half of a surrogate pair"
        ) from error
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        index = next(i for i, token in enumerate(tokens) if ids[token] != i)
        raise VocabularyError(
            f"{label} must hold a token once, got {tokens[index]!r} with the ids "
            f"{index} and {ids[tokens[index]]}"
        )
    if ids.get(PAD) != 0:
        raise VocabularyError(
            f"{PAD} must be the first token of {label}, whose id is 0; got "
            f"{tokens[0]!r} there"
        )
    missing = [token for token in (UNK, CLS, SEP) if token not in ids]
    refuse(
        missing,
        f"{label} must hold {PAD}, {UNK}, {CLS} and {SEP}; this one lacks "
        f"{', '.join(missing)}",
        error=VocabularyError,
    )


# === Characters or words ===

_LEVELS = ("character", "word")
# Above this share of words of several CJK characters, a vocabulary counts as a word
# vocabulary. In the released vocabularies the share is 0 (characters) or 80 % (words).
_WORD_SHARE = 0.01


def vocabulary_level(tokens: Iterable[str]) -> str | None:
    """`"word"`, `"character"`, or None for a vocabulary with hardly any word.

    A word is a token with two CJK characters side by side: no character-level
    tokenization yields it.
    """
    tokens = list(tokens)
    words = count_words(tokens)
    if not words:
        return "character"
    return "word" if words >= _WORD_SHARE * len(tokens) else None


def count_words(tokens):
    return sum(1 for token in tokens if _CJK_WORD.search(token))


def resolve_level(tokens, level):
    if level is not None and level not in _LEVELS:
        raise ConfigurationError(
            f"level must be {' or '.join(map(repr, _LEVELS))} or None, got {level!r}"
        )
    actual = vocabulary_level(tokens)
    count = f"{count_words(tokens)} of its {len(tokens)} tokens are Chinese words"
    refuse(
        level is None and actual is None,
        f"the vocabulary does not show its level, for {count}; pass "
        "level='character' or level='word'",
        error=VocabularyError,
    )
    refuse(
        level is not None and actual not in (None, level),
        f"level={level!r} contradicts the vocabulary, which is of level "
        f"{actual!r}: "
        f"{count}; leave level out, or use the vocabulary of the checkpoint",
        error=VocabularyError,
    )
    return level or actual
