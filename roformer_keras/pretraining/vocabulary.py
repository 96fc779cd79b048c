"""A character-level vocabulary from a corpus."""

from collections import Counter
from collections.abc import Iterable

from roformer_keras.errors import SourceError
from roformer_keras.tokenizer import RoFormerTokenizer
from roformer_keras.training.settings import check_integer

__all__ = ["build_vocabulary"]

# As in the released vocabularies: [UNK] has the id 100.
_SPECIALS = (
    "[PAD]",
    *(f"[unused{index}]" for index in range(1, 100)),
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "<S>",
    "<T>",
)


def build_vocabulary(
    corpus_records: Iterable[tuple[str, ...]],
    *,
    min_count: int = 1,
    max_size: int | None = None,
) -> tuple[list[str], dict]:
    """The tokens of a vocabulary of characters, by falling count.

    Special tokens come first, with the ids that they have in the released
    vocabularies, `[PAD]` 0 to `<T>` 105. Characters follow, those of one count in the
    order of their code points, as they are after `RoFormerTokenizer` has normalised a
    text. One that is part of longer words, such as a Latin letter or a digit, is there
    as `x` and as `##x`, so that every word of known characters can be split.

    Args:
        corpus_records: iterable of strs that ends, such as `Corpus.once()`.
        min_count: int, at least 1. What is rarer is left out.
        max_size: int above 106, or None. Of the whole vocabulary; the rarest
            characters are left out.

    Returns:
        The tokens, and facts: `characters` that were seen, `kept` of them, and
        `coverage`, the share of the running characters that are kept ones.

    Raises:
        ConfigurationError: `min_count` or `max_size` breaks its rule.
        SourceError: the records hold no character, or none that is frequent enough.
    """
    check_integer("min_count", min_count, 1)
    if max_size is not None:
        check_integer("max_size", max_size, len(_SPECIALS) + 1)
    # A vocabulary without characters leaves every word whole.
    tokenizer = RoFormerTokenizer(_SPECIALS)
    counts = Counter()
    for record in corpus_records:
        for text in record:
            counts.update("".join(tokenizer.tokenize(text)[1:-1]))
    tokens = list(_SPECIALS)
    kept = running = 0
    for character, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair)):
        forms = [character]
        is_part = tokenizer.tokenize(character * 2)[1:-1] == [character * 2]
        if is_part:
            forms.append(f"##{character}")
        if count < min_count or (
            max_size is not None and len(tokens) + len(forms) > max_size
        ):
            break
        tokens += forms
        kept += 1
        running += count
    if not kept:
        raise SourceError(
            f"a vocabulary needs a character that occurs {min_count} times, got "
            f"{len(counts)} characters, the most frequent "
            f"{max(counts.values(), default=0)} times"
        )
    facts = {
        "characters": len(counts),
        "kept": kept,
        "coverage": running / counts.total(),
    }
    return tokens, facts
