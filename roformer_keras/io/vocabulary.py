"""`vocab.txt`: one token a line, its id the number of the line."""

import io

from roformer_keras.errors import VocabularyError


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
