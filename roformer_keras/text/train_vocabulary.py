"""A vocabulary of characters, or of parts of words, from a corpus."""

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable

from roformer_keras.checks import check_integer
from roformer_keras.errors import SourceError
from roformer_keras.text.tokenizer import RoFormerTokenizer

__all__ = ["build_subword_vocabulary", "build_vocabulary"]

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
    lower_case: bool = True,
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
        lower_case: bool. Of the tokenizer that it is for.

    Returns:
        The tokens, and facts: `characters` that were seen, `kept` of them, and
        `coverage`, the share of the running characters that are kept ones.

    Raises:
        ConfigurationError: `min_count` or `max_size` breaks its rule.
        SourceError: the records hold no character, or none that is frequent enough.
    """
    check_integer("min_count", min_count, minimum=1)
    if max_size is not None:
        check_integer("max_size", max_size, minimum=len(_SPECIALS) + 1)
    words = _count_words(corpus_records, lower_case)
    return _characters(words, min_count, max_size, lower_case)


def build_subword_vocabulary(
    corpus_records: Iterable[tuple[str, ...]],
    *,
    max_size: int,
    min_count: int = 1,
    lower_case: bool = True,
) -> tuple[list[str], dict]:
    """The tokens of a vocabulary of characters and of parts of words.

    Behind the characters, as `build_vocabulary` has them, come whole words and parts,
    in the order in which they were found: again and again the two neighbouring parts
    that are found most often together become one (byte-pair encoding). Those that
    begin no word are written with `##` before, as in WordPiece, whose way to split a
    word the tokenizer has.

    Args:
        corpus_records: as of `build_vocabulary`.
        max_size: int above 106. Of the whole vocabulary; there are fewer tokens if no
            two parts come together twice any more.
        min_count: int, at least 1. Characters that are rarer are left out, and so are
            words that have one.
        lower_case: bool. Of the tokenizer that it is for.

    Returns:
        The tokens, and facts as of `build_vocabulary`.

    Raises:
        ConfigurationError: `min_count` or `max_size` breaks its rule.
        SourceError: the records hold no character, or none that is frequent enough.

    Source: Sennrich et al. 2016, arXiv:1508.07909, section 3.2.
    """
    check_integer("min_count", min_count, minimum=1)
    check_integer("max_size", max_size, minimum=len(_SPECIALS) + 1)
    words = _count_words(corpus_records, lower_case)
    tokens, facts = _characters(words, min_count, max_size, lower_case)
    known = set(tokens)
    spellings, counts = [], []
    # In an order of their own, so that ties do not depend on that of the records.
    for word, count in sorted(words.items()):
        parts = [word[0], *(f"##{character}" for character in word[1:])]
        if known.issuperset(parts):
            spellings.append(parts)
            counts.append(count)
    merges = _merges(spellings, counts)
    for token in itertools.islice(merges, max_size - len(tokens)):
        tokens.append(token)
    return tokens, facts


def _merges(spellings, counts):
    """What two parts become, the most frequent two first; spellings change."""
    found, places = Counter(), defaultdict(set)
    for place, (parts, count) in enumerate(zip(spellings, counts, strict=True)):
        for pair in itertools.pairwise(parts):
            found[pair] += count
            places[pair].add(place)
    heap = [(-count, pair) for pair, count in found.items()]
    heapq.heapify(heap)
    seen = set()
    while heap:
        count, pair = heapq.heappop(heap)
        if -count != found[pair]:
            # What was pushed before its count changed.
            continue
        if -count < 2:
            return
        merged = pair[0] + pair[1].removeprefix("##")
        changed = set()
        for place in places.pop(pair):
            before = list(itertools.pairwise(spellings[place]))
            spellings[place] = _joined(spellings[place], pair, merged)
            after = list(itertools.pairwise(spellings[place]))
            for pairs, sign in ((before, -1), (after, 1)):
                for one in pairs:
                    found[one] += sign * counts[place]
                    places[one].add(place)
            changed.update(before, after)
        changed.discard(pair)
        for one in changed:
            if found[one] > 0:
                heapq.heappush(heap, (-found[one], one))
        # Two ways may lead to the same.
        if merged not in seen:
            seen.add(merged)
            yield merged


def _joined(parts, pair, merged):
    joined, at = [], 0
    while at < len(parts):
        is_pair = tuple(parts[at : at + 2]) == pair
        joined.append(merged if is_pair else parts[at])
        at += 2 if is_pair else 1
    return joined


def _count_words(corpus_records, lower_case):
    """How often there is each word, and each character that stands alone."""
    # A vocabulary without characters leaves every word whole.
    tokenizer = RoFormerTokenizer(_SPECIALS, lower_case=lower_case)
    words = Counter()
    for record in corpus_records:
        for text in record:
            words.update(tokenizer.tokenize(text)[1:-1])
    return words


def _characters(words, min_count, max_size, lower_case):
    """Special tokens and characters, and facts, as of `build_vocabulary`."""
    tokenizer = RoFormerTokenizer(_SPECIALS, lower_case=lower_case)
    counts = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
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
