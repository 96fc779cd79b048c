"""Builds a vocabulary of characters, or of parts of words, from a corpus."""

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable

from roformer_keras.base.checks import check_integer
from roformer_keras.base.errors import SourceError
from roformer_keras.text.tokenizer import RoFormerTokenizer

# [UNK] has the id 100, as in the released vocabularies.
_UNUSED = [f"[unused{index}]" for index in range(1, 100)]
_MARKS = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "<S>", "<T>"]
_SPECIALS = ("[PAD]", *_UNUSED, *_MARKS)


def build_vocabulary(
    corpus_records: Iterable[tuple[str, ...]],
    *,
    min_count: int = 1,
    max_size: int | None = None,
    lower_case: bool = True,
) -> tuple[list[str], dict]:
    """The tokens of a character vocabulary, by falling count.

    Special tokens come first, with their ids in the released vocabularies, `[PAD]` 0 to
    `<T>` 105. Normalised characters follow; equally frequent ones are ordered by code
    point. A character within longer words, such as a Latin letter or a digit, has the
    tokens `x` and `##x`, so that every word of known characters can be split.
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

    Words and their parts follow the characters of `build_vocabulary`, in the order in
    which byte-pair encoding merges them: it repeatedly joins the most frequent pair of
    neighbouring parts. Parts inside a word begin with `##`, as in WordPiece, which
    splits words in the tokenizer.

    Source: Sennrich et al. 2016, arXiv:1508.07909, section 3.2.
    """
    check_integer("min_count", min_count, minimum=1)
    check_integer("max_size", max_size, minimum=len(_SPECIALS) + 1)
    words = _count_words(corpus_records, lower_case)
    tokens, metadata = _characters(words, min_count, max_size, lower_case)
    known_tokens = set(tokens)
    spellings, counts = [], []
    # Sorting makes ties independent of the order of the records.
    for word, count in sorted(words.items()):
        parts = [word[0], *(f"##{character}" for character in word[1:])]
        if known_tokens.issuperset(parts):
            spellings.append(parts)
            counts.append(count)
    merges = _merges(spellings, counts)
    return tokens + list(itertools.islice(merges, max_size - len(tokens))), metadata


def _merges(spellings, counts):
    """Merged parts, the most frequent pair first; changes the spellings."""
    pair_counts, words_with = Counter(), defaultdict(set)
    for word, (parts, count) in enumerate(zip(spellings, counts, strict=True)):
        for pair in itertools.pairwise(parts):
            pair_counts[pair] += count
            words_with[pair].add(word)
    heap = [(-count, pair) for pair, count in pair_counts.items()]
    heapq.heapify(heap)
    merged_parts = set()
    while heap:
        count, pair = heapq.heappop(heap)
        if -count != pair_counts[pair]:
            # The count has changed since this entry.
            continue
        if -count < 2:
            return
        merged = pair[0] + pair[1].removeprefix("##")
        changed = set()
        for word in words_with.pop(pair):
            before = list(itertools.pairwise(spellings[word]))
            spellings[word] = _joined(spellings[word], pair, merged)
            after = list(itertools.pairwise(spellings[word]))
            for pairs, sign in ((before, -1), (after, 1)):
                for changed_pair in pairs:
                    pair_counts[changed_pair] += sign * counts[word]
                    words_with[changed_pair].add(word)
            changed.update(before, after)
        changed.discard(pair)
        for changed_pair in changed:
            if pair_counts[changed_pair] > 0:
                heapq.heappush(heap, (-pair_counts[changed_pair], changed_pair))
        # Other pairs may merge into the same part.
        if merged not in merged_parts:
            merged_parts.add(merged)
            yield merged


def _joined(parts, pair, merged):
    joined, at = [], 0
    while at < len(parts):
        is_pair = tuple(parts[at : at + 2]) == pair
        joined.append(merged if is_pair else parts[at])
        at += 2 if is_pair else 1
    return joined


def _count_words(corpus_records, lower_case):
    """Counts of words, and of characters that stand alone."""
    # A vocabulary without characters leaves every word whole.
    tokenizer = RoFormerTokenizer(_SPECIALS, lower_case=lower_case)
    words = Counter()
    for record in corpus_records:
        for text in record:
            words.update(tokenizer.tokenize(text)[1:-1])
    return words


def _characters(words, min_count, max_size, lower_case):
    """Special tokens and characters, and metadata, as in `build_vocabulary`."""
    tokenizer = RoFormerTokenizer(_SPECIALS, lower_case=lower_case)
    counts = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    tokens = list(_SPECIALS)
    chosen = running = 0
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
        chosen += 1
        running += count
    if not chosen:
        raise SourceError(
            f"a vocabulary needs a character that occurs {min_count} times, got "
            f"{len(counts)} characters, the most frequent "
            f"{max(counts.values(), default=0)} times"
        )
    coverage = running / counts.total()
    return tokens, {"characters": len(counts), "kept": chosen, "coverage": coverage}
