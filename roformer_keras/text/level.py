"""The level of a vocabulary: characters or words."""

from collections.abc import Iterable

from roformer_keras.errors import ConfigurationError, VocabularyError
from roformer_keras.text.characters import CJK_WORD

_LEVELS = ("character", "word")
# Above this share of a vocabulary, words of several CJK characters make it one of
# words. The released ones hold none (characters) or 80 % (words).
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
    return sum(1 for token in tokens if CJK_WORD.search(token))


def resolve_level(tokens, level):
    if level is not None and level not in _LEVELS:
        raise ConfigurationError(
            f"level must be {' or '.join(map(repr, _LEVELS))} or None, got {level!r}"
        )
    found = vocabulary_level(tokens)
    count = f"{count_words(tokens)} of its {len(tokens)} tokens are Chinese words"
    if level is None and found is None:
        raise VocabularyError(
            f"the vocabulary does not show its level, for {count}; pass "
            "level='character' or level='word'"
        )
    if level is not None and found not in (None, level):
        raise VocabularyError(
            f"level={level!r} contradicts the vocabulary, which is of level {found!r}: "
            f"{count}; leave level out, or use the vocabulary of the checkpoint"
        )
    return level or found
