"""From text to token ids and back, with the ids of bert4keras's `Tokenizer`.

    text -> normalise -> items -> pieces -> tokens -> ids

`normalise` lowers the case and strips accents, unless the vocabulary is cased. At word
level an item is a word of jieba's cut, kept whole if the vocabulary holds it; at
character level the whole text is one item. An item is split at spaces, punctuation and
CJK characters, and each piece is matched greedily against the vocabulary.

Source: bert4keras 0.11.5, `Tokenizer(vocabulary, do_lower_case=True)`, for words with
`pre_tokenize=lambda text: jieba.cut(text, HMM=False)`.
"""

import functools
import itertools
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import numpy as np

from roformer_keras.base.argument_names import explains_arguments
from roformer_keras.base.checks import (
    check_flag,
    check_instance,
    check_integer,
    check_iterable,
)
from roformer_keras.base.errors import ConfigurationError, VocabularyError
from roformer_keras.conversion.reader import read_tokenizer
from roformer_keras.conversion.writer import save_tokenizer
from roformer_keras.hub.catalog import resolve
from roformer_keras.io.atomic import replacing
from roformer_keras.io.blob import Blob, unreadable
from roformer_keras.io.vocabulary import (
    CLS,
    MASK,
    PAD,
    SEP,
    UNK,
    check_tokens,
    count_words,
    fitting_tokens,
    read_vocabulary,
    resolve_level,
    write_vocabulary,
)
from roformer_keras.text.characters import (
    ALONE,
    CJK_CHARACTER,
    PLAIN,
    RUNS,
    SPACING,
    is_punctuation,
    normalise,
    normalise_with_origins,
)
from roformer_keras.text.joining import join_tokens
from roformer_keras.text.truncation import begin, join, join_rows
from roformer_keras.text.words import default_segmenter

_MASK_TOKEN = re.compile(r"(\[MASK\])")
# bert4keras gives longer words whole the UNK id.
_LONGEST_WORD = 200
_CACHED_RUNS, _LONGEST_CACHED_RUN = 1 << 16, 64


class RoFormerTokenizer:
    """Tokens and ids of a RoFormer vocabulary of characters or of words.

    Special tokens are not recognised in a text ("[MASK]" becomes "[", "mask", "]"),
    unless `keep_mask` is set where a method has it.

    A tokenizer can be pickled and used from several threads.

    Args:
        vocabulary: path of a `vocab.txt` (UTF-8; the first field of a line is the
            token, the line number from 0 its id), or a list of tokens, or a dict from
            token to id.
        level: `"character"`, `"word"`, or None to infer it from the vocabulary.
        lower_case: bool. False for a cased vocabulary, to keep case and accents. The
            released ones are not cased; only a saved `tokenizer.json` says so.

    Raises:
        VocabularyError: the vocabulary is empty, not UTF-8, has duplicates or gaps,
            lacks `[PAD]` at id 0, `[UNK]`, `[CLS]` or `[SEP]`, or contradicts `level`.
        ConfigurationError: `level` is none of the above.
        SourceError: the file cannot be read.

    Example:
        >>> tokenizer = roformer_keras.RoFormerTokenizer.from_preset("roformer-char")
        >>> tokenizer.tokenize("今天天气不错")
        ['[CLS]', '今', '天', '天', '气', '不', '错', '[SEP]']
        >>> tokenizer(["今天天气不错", "北京"])["token_ids"].shape
        (2, 8)
    """

    def __init__(
        self,
        vocabulary: str | os.PathLike | Sequence[str] | Mapping[str, int],
        level: str | None = None,
        lower_case: bool = True,
    ):
        check_flag("lower_case", lower_case)
        self._tokens = _read_vocabulary(vocabulary)
        check_tokens(self._tokens)
        self._ids = {token: index for index, token in enumerate(self._tokens)}
        self.level = resolve_level(self._tokens, level)
        self.lower_case = lower_case
        self._longest_word = _LONGEST_WORD
        self._longest_token = max(map(len, self._tokens))
        self._cached_split = functools.lru_cache(_CACHED_RUNS)(self._split_run)

    # === Vocabulary ===

    @property
    def vocabulary(self) -> list[str]:
        """A new list of the tokens, in the order of their ids."""
        return list(self._tokens)

    @property
    def vocabulary_size(self) -> int:
        return len(self._tokens)

    @property
    def pad_id(self) -> int:
        return self._ids[PAD]

    @property
    def unk_id(self) -> int:
        return self._ids[UNK]

    @property
    def cls_id(self) -> int:
        return self._ids[CLS]

    @property
    def sep_id(self) -> int:
        return self._ids[SEP]

    @property
    def mask_id(self) -> int:
        """The id of `[MASK]`; VocabularyError if the vocabulary lacks it."""
        if MASK not in self._ids:
            raise VocabularyError(
                f"this vocabulary has no {MASK}; if it was simplified, name it in "
                "startswith to keep it"
            )
        return self._ids[MASK]

    def token_to_id(self, token: str) -> int:
        """The id of `token`; `unk_id` if the vocabulary lacks it.

        Args:
            token: str.
        """
        check_instance("a token", token, str)
        return self._ids.get(token, self.unk_id)

    def id_to_token(self, token_id: int) -> str:
        """The token of an id.

        Args:
            token_id: int.

        Raises:
            VocabularyError: it is not in the vocabulary.
        """
        check_integer("a token id", token_id)
        if not 0 <= token_id < len(self._tokens):
            raise VocabularyError(
                f"token ids of this vocabulary are 0 to {len(self._tokens) - 1}, got "
                f"{token_id}"
            )
        return self._tokens[token_id]

    def subset(self, keep_tokens: Iterable[int]) -> "RoFormerTokenizer":
        """The tokenizer whose id `i` is the id `keep_tokens[i]` of this one.

        A subset of a word vocabulary becomes a character vocabulary if it has no word.

        Args:
            keep_tokens: ids of this vocabulary, in their new order.
        """
        check_iterable("keep_tokens", keep_tokens, "a list of ids")
        tokens = [self.id_to_token(index) for index in keep_tokens]
        level = self.level if count_words(tokens) else None
        return RoFormerTokenizer(tokens, level, self.lower_case)

    def simplified(
        self, startswith: Sequence[str] = (PAD, UNK, CLS, SEP, MASK)
    ) -> tuple["RoFormerTokenizer", list[int]]:
        """Drops the tokens of several characters that hold CJK or punctuation.

        Those are words, and specials such as `[unused1]`, which character-level
        tokenization never yields.

        Args:
            startswith: tokens that come first and are kept in any case; `[PAD]` first.

        Returns:
            The tokenizer, and the ids of its tokens in this vocabulary: `keep_tokens`
            of a model.

        Raises:
            VocabularyError: a token of `startswith` is not in the vocabulary.

        Source: bert4keras 0.11.5, `load_vocab(simplified=True, startswith=[...])`.
        """
        for token in startswith:
            if token not in self._ids:
                raise VocabularyError(
                    f"startswith must name tokens of the vocabulary, got {token!r}"
                )
        first = dict.fromkeys(startswith)
        others = [t for t in self._tokens if t not in first and not _is_redundant(t)]
        keep_tokens = [self._ids[token] for token in [*startswith, *others]]
        return self.subset(keep_tokens), keep_tokens

    @classmethod
    def from_preset(
        cls,
        source: str | os.PathLike,
        level: str | None = None,
        vocabulary: str | os.PathLike | None = None,
    ) -> Self:
        """The tokenizer of a checkpoint: its vocabulary and level.

        Args:
            source: as in a model's `from_preset`, or a folder that `save_to_preset` or
                an export wrote.
            level: see the class; if not given, as saved or inferred.
            vocabulary: path of a `vocab.txt` to use instead.

        Raises:
            VocabularyError: the source has no vocabulary, or one that cannot be used.
            SourceError: there is no such source, or it cannot be used.
        """
        if vocabulary is not None:
            return cls(vocabulary, level)
        tokens, fields = read_tokenizer(resolve(source))
        return cls(
            list(tokens), level or fields.get("level"), fields.get("lower_case", True)
        )

    def save_to_preset(self, folder: str | os.PathLike) -> None:
        """Writes `tokenizer.json` and the vocabulary into a preset folder.

        The folder is made if there is none; each file is replaced in one step.

        Args:
            folder: path of the folder.
        """
        save_tokenizer(pathlib.Path(folder), self._tokens, self.to_dict())

    def save_vocabulary(self, path: str | os.PathLike) -> None:
        """Writes `vocab.txt`: UTF-8, a token a line; replaces `path` in one step.

        Args:
            path: of the file.
        """
        with replacing(path, overwrite=True) as partial:
            partial.write_bytes(write_vocabulary(self._tokens))

    def to_dict(self) -> dict:
        """The constructor's arguments besides the vocabulary, as plain JSON types."""
        return {"level": self.level, "lower_case": self.lower_case}

    def __reduce__(self):
        return type(self), (self._tokens, self.level, self.lower_case)

    # === Text to tokens ===

    def tokenize(self, text: str, *, keep_mask: bool = False) -> list[str]:
        """The tokens of a text, `[CLS]` and `[SEP]` included.

        A word without matching tokens stays whole; its id is `unk_id`.

        Args:
            text: str.
            keep_mask: bool. Whether each literal `[MASK]` in the text is the mask
                token, for filling masks; the text between them is tokenized separately.
        """
        tokens = [CLS]
        for position, section in enumerate(self._sections(text, keep_mask)):
            tokens += [section] if position % 2 else self._section_tokens(section)
        return [*tokens, SEP]

    def offsets(self, text: str, *, keep_mask: bool = False) -> list[tuple[int, int]]:
        """For each token of `tokenize`, its span `[start, end)` in the given text.

        Spans count code points and never decrease. `[CLS]` and `[SEP]` have `(0, 0)`.
        Tokens from one character (the jamo of a Hangul syllable, or spacing marks on
        it) have the same span.

        Args:
            text, keep_mask: as in `tokenize`.

        Example:
            >>> source = "roformer-char"
            >>> tokenizer = roformer_keras.RoFormerTokenizer.from_preset(source)
            >>> tokenizer.offsets("你好")
            [(0, 0), (0, 1), (1, 2), (0, 0)]
        """
        spans, offset = [(0, 0)], 0
        for position, section in enumerate(self._sections(text, keep_mask)):
            edge = [(0, len(section))]
            section_spans = edge if position % 2 else self._section_spans(section)
            spans += [(start + offset, end + offset) for start, end in section_spans]
            offset += len(section)
        return [*spans, (0, 0)]

    def _sections(self, text, keep_mask):
        """Splits a text so that the odd sections are `[MASK]` tokens."""
        if not isinstance(text, str):
            raise ConfigurationError(f"a text must be a str, got {_brief(text)}")
        if not keep_mask:
            return [text]
        _ = self.mask_id  # an error if there is none
        return _MASK_TOKEN.split(text)

    def _section_tokens(self, section):
        if self.level == "character" and PLAIN.fullmatch(section):
            return list(section)
        if self.lower_case:
            section = normalise(section)
        return self._normalised_tokens(section)

    def _normalised_tokens(self, text):
        tokens = []
        if self.level == "character":
            for alone, other in RUNS.findall(text):
                # Extending by a string appends its characters.
                tokens.extend(alone or self._split(other))
            return tokens
        for word in default_segmenter().cut(text):
            if word in self._ids:
                tokens.append(word)
            elif ALONE.fullmatch(word):
                tokens.extend(word)
            else:
                tokens.extend(self._split(word))
        return tokens

    def _section_spans(self, section):
        if self.lower_case:
            characters, origins = normalise_with_origins(section)
        else:
            characters = section
            origins = [(index, index + 1) for index in range(len(section))]
        spans = []
        position = 0
        for token in self._normalised_tokens(characters):
            first_index = None
            # The tokens spell the text, except for characters that were deleted.
            for character in token.removeprefix("##"):
                last_index = characters.index(character, position)
                first_index = last_index if first_index is None else first_index
                position = last_index + 1
            spans.append((origins[first_index][0], origins[last_index][1]))
        return spans

    def _split(self, run):
        if len(run) > _LONGEST_CACHED_RUN:
            return self._split_run(run)
        return self._cached_split(run)

    def _split_run(self, run):
        words = run.translate(SPACING).split()
        return tuple(itertools.chain.from_iterable(map(self._match, words)))

    def _match(self, word):
        """Greedy WordPiece: the longest tokens from the left, or the unchanged word."""
        if len(word) > self._longest_word:
            return [word]
        tokens = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(min(len(word), start + self._longest_token), start, -1):
                token = prefix + word[start:end]
                if token in self._ids:
                    break
            else:
                return [word]
            tokens.append(token)
            start = end
        return tokens

    # === Text to ids ===

    @explains_arguments
    def encode(
        self,
        first: str | Sequence[str],
        second: str | Sequence[str] | None = None,
        max_length: int | None = None,
        truncate_from: str | int = "right",
        *,
        keep_mask: bool = False,
    ) -> tuple[list[int], list[int]]:
        """The ids of `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`.

        Args:
            first: str, or a list of tokens with `[CLS]` and `[SEP]`, as `tokenize`
                returns it.
            second: the same, or None. It follows `first` without its first token.
            max_length: int, at least 1, or None. Tokens are removed one by one from the
                longer sequence, from `first` if they are equally long.
            truncate_from: which token to remove. `"right"` is the one before the last
                (`[SEP]`), `"left"` the one after the first; an int is an index as in
                `list.pop`.
            keep_mask: see `tokenize`.

        Returns:
            token_ids and segment_ids, two lists of one length; segment ids are 0 for
            `first`, 1 for `second`.

        Raises:
            ConfigurationError: a text is no str, or `max_length` is below 1.

        Example:
            >>> source = "roformer-char"
            >>> tokenizer = roformer_keras.RoFormerTokenizer.from_preset(source)
            >>> token_ids, segment_ids = tokenizer.encode("你好", "再见")
            >>> segment_ids
            [0, 0, 0, 0, 1, 1, 1]

        Source: bert4keras 0.11.5, `Tokenizer.encode`.
        """
        limits = max_length, truncate_from
        tokens_of = functools.partial(self._as_tokens, keep_mask, *limits)
        others = None if second is None else tokens_of(second)
        tokens, others = join(tokens_of(first), others, *limits)
        return self._as_ids(tokens + others), [0] * len(tokens) + [1] * len(others)

    @explains_arguments
    def __call__(
        self,
        texts: Iterable[str | Sequence[str]],
        pairs: Iterable[str | Sequence[str]] | None = None,
        max_length: int | None = None,
        padding: str = "longest",
        truncate_from: str | int = "right",
        *,
        keep_mask: bool = False,
        return_offsets: bool = False,
    ) -> dict[str, np.ndarray]:
        """Encodes a batch, padded with 0 on the right.

        Args:
            texts, pairs: the first texts of the rows, and as many second texts or None.
            max_length, truncate_from, keep_mask: as in `encode`.
            padding: `"longest"` pads to the longest row, `"max_length"` to
                `max_length`.
            return_offsets: bool. Whether to add the spans of `offsets`, for str only.

        Returns:
            dict of int32 arrays: token_ids `(batch, length)`, segment_ids
            `(batch, length)` and, on request, offsets `(batch, length, 2)`.

        Raises:
            ConfigurationError: an argument breaks its rule, or texts and pairs are not
                as many.

        Example:
            >>> source = "roformer-char"
            >>> tokenizer = roformer_keras.RoFormerTokenizer.from_preset(source)
            >>> tokenizer(["你好", "今天天气不错"], max_length=6)["token_ids"].shape
            (2, 6)
        """
        texts, pairs = _as_batch(texts, pairs)
        if padding not in ("longest", "max_length"):
            raise ConfigurationError(
                f"padding must be 'longest' or 'max_length', got {padding!r}"
            )
        if padding == "max_length" and max_length is None:
            raise ConfigurationError("padding='max_length' needs max_length, got None")
        limits = max_length, truncate_from
        tokens_of = functools.partial(self._as_tokens, keep_mask, *limits)
        rows = join_rows(tokens_of, texts, pairs, *limits)
        first_ends = np.array([len(first) for first, _ in rows], int)[:, None]
        ends = first_ends + np.array([len(second) for _, second in rows], int)[:, None]
        length = int(ends.max(initial=0))
        if padding == "max_length" and max_length is not None:
            length = max_length
        columns = np.arange(length)
        is_token = columns < ends
        token_ids = np.zeros((len(rows), length), "int32")
        token_ids[is_token] = self._as_ids(_flatten(rows))
        segment_ids = ((columns >= first_ends) & is_token).astype("int32")
        batch = {"token_ids": token_ids, "segment_ids": segment_ids}
        if return_offsets:
            spans_of = functools.partial(self.offsets, keep_mask=keep_mask)
            rows = join_rows(
                lambda text: begin(spans_of, text, *limits, self.level),
                texts,
                pairs,
                *limits,
            )
            batch["offsets"] = np.zeros((len(rows), length, 2), "int32")
            batch["offsets"][is_token] = np.reshape(_flatten(rows), (-1, 2))
        return batch

    def _as_ids(self, tokens):
        return list(map(self._ids.get, tokens, itertools.repeat(self.unk_id)))

    def _as_tokens(self, keep_mask, max_length, truncate_from, text):
        if isinstance(text, str):
            tokens_of = functools.partial(self.tokenize, keep_mask=keep_mask)
            return begin(tokens_of, text, max_length, truncate_from, self.level)
        if isinstance(text, list | tuple) and all(isinstance(t, str) for t in text):
            return list(text)
        raise ConfigurationError(
            f"a text must be a str or a list of tokens, got {_brief(text)}"
        )

    # === Ids to text ===

    @explains_arguments
    def decode(self, ids: Iterable[int]) -> str:
        """Readable text of a row of ids, with bert4keras's spaces.

        Tokens in square brackets, such as `[CLS]` and the padding, are dropped.

        Args:
            ids: `(length,)` integers, of any iterable.

        Example:
            >>> source = "roformer-char"
            >>> tokenizer = roformer_keras.RoFormerTokenizer.from_preset(source)
            >>> tokenizer.decode(tokenizer.encode("今天天气不错")[0])
            '今天天气不错'

        Source: bert4keras 0.11.5, `Tokenizer.decode`.
        """
        check_iterable("ids to decode", ids, "a list of ids")
        return join_tokens(map(self.id_to_token, ids))


def _read_vocabulary(vocabulary):
    """The tokens by id, from a path, a sequence or a mapping."""
    if isinstance(vocabulary, str | os.PathLike):
        try:
            data = Blob.of_file(pathlib.Path(vocabulary)).read()
        except OSError as error:
            raise unreadable(f"the vocabulary {vocabulary}", error) from error
        tokens = fitting_tokens(read_vocabulary(data, os.fspath(vocabulary)))
    elif isinstance(vocabulary, Mapping):
        if set(vocabulary.values()) != set(range(len(vocabulary))):
            raise VocabularyError(
                "the ids of a vocabulary must be 0, 1, 2, ..., each once; its "
                f"{len(vocabulary)} tokens have other ids"
            )
        tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    elif isinstance(vocabulary, Iterable):
        tokens = list(vocabulary)
    else:
        raise VocabularyError(
            "a vocabulary must be a path, a list of tokens or a dict from token to id, "
            f"got {_brief(vocabulary)}"
        )
    if not tokens:
        raise VocabularyError("a vocabulary must hold tokens, this one is empty")
    return tokens


def _is_redundant(token):
    return len(token) > 1 and any(
        is_punctuation(char) or CJK_CHARACTER.match(char)
        for char in token.removeprefix("##")
    )


def _as_batch(texts, pairs):
    for name, batch in (("texts", texts), ("pairs", pairs)):
        if isinstance(batch, str):
            raise ConfigurationError(
                f"{name} must be a batch, got one str; put it in a list: [{name}]"
            )
        if batch is not None:
            check_iterable(name, batch, "a list of texts")
    texts = list(texts)
    pairs = [None] * len(texts) if pairs is None else list(pairs)
    if len(texts) != len(pairs):
        raise ConfigurationError(
            "texts and pairs must be equally many, got "
            f"{len(texts)} texts and {len(pairs)} pairs"
        )
    return texts, pairs


def _flatten(rows):
    return list(itertools.chain.from_iterable(itertools.chain.from_iterable(rows)))


def _brief(value):
    return f"{type(value).__name__} {value!r:.60}"
