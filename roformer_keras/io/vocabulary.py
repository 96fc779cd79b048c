"""`vocab.txt`: one token a line, its id the number of the line."""

import io
from collections.abc import Sequence

from roformer_keras.errors import VocabularyError

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"


def read_vocabulary(data: bytes, label: str) -> list[str]:
    """Tokens by id: of each line the first field, as bert4keras reads it.

    Raises:
        VocabularyError: the bytes are not UTF-8, or there are none.
    """
    try:
        lines = list(io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise VocabularyError(
            f"a vocabulary must be a UTF-8 text, {label} is not: {error}"
        ) from error
    if not lines:
        raise VocabularyError(f"a vocabulary must hold tokens, {label} is empty")
    # A line of nothing but unusual spaces is the token "".
    return [next(iter(line.split()), "") for line in lines]


def write_vocabulary(tokens) -> bytes:
    """The content of a `vocab.txt` from which the same tokens are read."""
    return "".join(f"{token}\n" for token in tokens).encode()


def check_tokens(tokens: Sequence[str], label: str = "a vocabulary") -> None:
    """Raises VocabularyError unless tokens differ, and the special ones are there."""
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
    if missing:
        raise VocabularyError(
            f"{label} must hold {PAD}, {UNK}, {CLS} and {SEP}; this one lacks "
            f"{', '.join(missing)}"
        )
