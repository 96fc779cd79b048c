"""`bert4keras.tokenizers`: its interface to this package's tokenizer; without Keras."""

import functools
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from roformer_keras.base.checks import check_file
from roformer_keras.base.errors import (
    SourceError,
    VocabularyError,
    refuse,
)
from roformer_keras.base.keras_backend import name_error
from roformer_keras.base.types import Unchecked
from roformer_keras.bert4keras.text_functions import (
    convert_to_unicode,
    is_string,
    lowercase_and_normalize,
    open,
    truncate_sequences,
)
from roformer_keras.io.atomic import replacing
from roformer_keras.io.vocabulary import MASK, PAD, UNK, read_vocabulary
from roformer_keras.text import tokenizer as _tokenizer
from roformer_keras.text.characters import (
    CJK_CHARACTER,
    is_punctuation,
    normalise,
    normalise_with_origins,
)

__all__ = [
    "Tokenizer",
    "TokenizerBase",
    "convert_to_unicode",
    "is_py2",
    "is_string",
    "load_vocab",
    "lowercase_and_normalize",
    "open",
    "save_vocab",
    "truncate_sequences",
]

is_py2 = False


def load_vocab(
    dict_path: str | os.PathLike,
    encoding: str = "utf-8",
    simplified: bool = False,
    startswith: Sequence[str] | None = None,
) -> Any:
    """Reads a vocabulary: the first field of each line is a token.

    Args:
        dict_path: path of a `vocab.txt`.
        encoding: of the file.
        simplified: bool. Whether to drop tokens of several characters that hold CJK or
            punctuation.
        startswith: tokens that come first then, and are kept.

    Returns:
        dict from token to id; with `simplified` also the list of ids to keep, for
        `build_transformer_model(keep_tokens=)`.

    Raises:
        SourceError: the file cannot be read.
        VocabularyError: it is empty, or a token of `startswith` is not there.
    """
    check_file(dict_path)
    try:
        data = Path(dict_path).read_bytes().decode(encoding).encode()
    except OSError as error:
        raise SourceError(f"cannot read the vocabulary {dict_path}: {error}") from error
    except UnicodeDecodeError as error:
        raise VocabularyError(
            f"the vocabulary {dict_path} must be in {encoding}, it is not: {error}"
        ) from error
    ids: dict[str, int] = {}
    for token in read_vocabulary(data, os.fspath(dict_path)):
        ids[token] = len(ids)
    if not simplified:
        return ids
    first = list(startswith or [])
    if missing := [token for token in first if token not in ids]:
        raise VocabularyError(
            f"startswith must name tokens of {dict_path}, got {missing[0]!r}"
        )
    others = [token for token in ids if token not in first]
    tokens = [*first, *(x for x in others if not Tokenizer._is_redundant(x))]
    return {x: i for i, x in enumerate(tokens)}, [ids[token] for token in tokens]


def save_vocab(
    dict_path: str | os.PathLike, token_dict: Mapping[str, int], encoding: str = "utf-8"
) -> None:
    """Writes a vocabulary: a token a line, in the order of ids."""
    tokens = sorted(token_dict, key=token_dict.__getitem__)
    text = "".join(f"{token}\n" for token in tokens)
    with replacing(dict_path, overwrite=True) as partial:
        partial.write_bytes(text.encode(encoding))


class TokenizerBase:
    """Base of tokenizers; a subclass defines `_tokenize` and the two conversions.

    Args:
        token_start, token_end: tokens around a text, or None.
        pre_tokenize: function from a text to words.
        token_translate: dict of tokens to replace.
    """

    def __init__(
        self,
        token_start: str | None = "[CLS]",
        token_end: str | None = "[SEP]",
        pre_tokenize: Callable[[str], Iterable[str]] | None = None,
        token_translate: Mapping[str, str] | None = None,
    ):
        self._token_pad = PAD
        self._token_unk = UNK
        self._token_mask = MASK
        self._token_start = token_start
        self._token_end = token_end
        self._pre_tokenize = pre_tokenize
        self._token_translate = dict(token_translate or {})
        self._token_translate_inv = {v: k for k, v in self._token_translate.items()}

    def tokenize(self, text: str, maxlen: int | None = None) -> list[str]:
        """The tokens of a text, with those around it.

        Args:
            text: str.
            maxlen: int. How many tokens are kept; those at the end go.
        """
        pieces = self._tokenize(text)
        tokens = [self._token_translate.get(one) or one for one in pieces]
        if self._token_start is not None:
            tokens.insert(0, self._token_start)
        if self._token_end is not None:
            tokens.append(self._token_end)
        if maxlen is not None:
            truncate_sequences(maxlen, -1 - (self._token_end is not None), tokens)
        return tokens

    def token_to_id(self, token: str) -> int:
        """The id of a token."""
        raise NotImplementedError

    def tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """The ids of tokens."""
        return [self.token_to_id(token) for token in tokens]

    def id_to_token(self, i: int) -> str:
        """The token of an id."""
        raise NotImplementedError

    def ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """The tokens of ids."""
        return [self.id_to_token(i) for i in ids]

    def encode(
        self,
        first_text: str | list[str],
        second_text: str | list[str] | None = None,
        maxlen: int | None = None,
        pattern: str = "S*E*E",
        truncate_from: str | int | Sequence[int] = "right",
    ) -> tuple[list[int], list[int]]:
        """The ids of one or two texts, and their segment ids.

        Args:
            first_text: str, or its tokens; a list is truncated in place.
            second_text: the same, or None.
            maxlen: int. How many tokens there are at most; the longer text loses them.
            pattern: `"S*E*E"`, or another str to keep the start of the second text.
            truncate_from: `"right"`, `"left"`, an index as in `list.pop`, or an index
                for each text.

        Returns:
            Two lists of int: token ids, and 0 or 1 for the text.
        """
        has_second = second_text is not None
        is_joined = has_second and pattern == "S*E*E"
        first, second = (
            self.tokenize(text) if isinstance(text, str) else text
            for text in (first_text, second_text)
        )
        if maxlen is not None:
            ends: dict[str, int] = {
                "right": -1 - (self._token_end is not None),
                "left": int(self._token_start is not None),
            }
            index: Any = truncate_from
            if isinstance(truncate_from, str):
                refuse(
                    truncate_from not in ends,
                    "truncate_from must be 'right', 'left', an index or a list of "
                    f"indices, got {truncate_from!r}",
                )
                index = ends[truncate_from]
            truncate_sequences(maxlen + is_joined, index, first, second)
        if is_joined:
            second = second[bool(self._token_start) :]  # type: ignore[index]
        ids = self.tokens_to_ids(first or [])
        others = self.tokens_to_ids(second or []) if has_second else []
        return ids + others, [0] * len(ids) + [1] * len(others)

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text of ids."""
        raise NotImplementedError

    def _tokenize(self, text: str) -> list[str]:
        raise NotImplementedError


class _Splitter(_tokenizer.RoFormerTokenizer):
    """The package's rules of splitting and joining, for any vocabulary."""

    def __init__(self, ids, word_maxlen):
        self._ids = ids
        self.level = "character"
        self._longest_word = word_maxlen
        self._longest_token = max(map(len, ids), default=1)
        self._cached_split = functools.lru_cache(1 << 16)(self._split_run)

    def split(self, text: str) -> list[str]:
        return self._normalised_tokens(text)

    def id_to_token(self, token_id):
        """The token itself: `decode` is given tokens."""
        return token_id

    def __reduce__(self):
        return _Splitter, (self._ids, self._longest_word)


class Tokenizer(TokenizerBase):
    """WordPiece, with the ids of bert4keras.

    Args:
        token_dict: dict from token to id, or path of a `vocab.txt`.
        do_lower_case: bool. Whether case and accents go.
        word_maxlen: int. Longer words are not split.
        kwargs: of `TokenizerBase`.
    """

    def __init__(
        self,
        token_dict: str | os.PathLike | Mapping[str, int],
        do_lower_case: bool = False,
        word_maxlen: int = 200,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        tokens: Any = token_dict
        if isinstance(tokens, str | os.PathLike):
            tokens = load_vocab(tokens)
        self._do_lower_case = do_lower_case
        self._token_dict: dict[str, int] = tokens
        self._token_dict_inv = {v: k for k, v in self._token_dict.items()}
        self._vocab_size = len(self._token_dict)
        self._word_maxlen = word_maxlen
        self._splitter = _Splitter(self._token_dict, word_maxlen)
        for name in ("pad", "unk", "mask", "start", "end"):
            token = getattr(self, f"_token_{name}")
            if token in self._token_dict:
                setattr(self, f"_token_{name}_id", self._token_dict[token])

    def token_to_id(self, token: str) -> int:
        number = self._token_dict.get(token)
        # Only a vocabulary without UNK has no id for it.
        return self._token_unk_id if number is None else number  # type: ignore[attr-defined]

    def id_to_token(self, i: int) -> str:
        return self._token_dict_inv[i]

    def decode(self, ids: Iterable[int], tokens: Sequence[str] | None = None) -> str:
        """Readable text of ids, or of tokens in their place.

        Tokens in square brackets are dropped.
        """
        given: Any = tokens or self.ids_to_tokens(ids)
        return self._splitter.decode(given)

    def _tokenize(self, text: str, pre_tokenize: bool = True) -> list[str]:
        if self._do_lower_case:
            text = normalise(text)
        if not pre_tokenize or self._pre_tokenize is None:
            return self._splitter.split(text)
        tokens: list[str] = []
        for word in self._pre_tokenize(text):
            if word in self._token_dict:
                tokens.append(word)
            else:
                tokens += self._tokenize(word, False)
        return tokens

    def _word_piece_tokenize(self, word: str) -> list[str]:
        return self._splitter._match(word)

    def rematch(self, text: str, tokens: Iterable[str]) -> list[list[int]]:
        """For each token the places of its characters in the text.

        Args:
            text: str.
            tokens: as `tokenize` returns them.

        Returns:
            lists of int; empty for a token that is not in the text.
        """
        characters, origins = text, list(range(len(text)))
        if self._do_lower_case:
            characters, spans = normalise_with_origins(text)
            origins = [start for start, _ in spans]
        shown = [
            (one, place)
            for one, place in zip(characters, origins, strict=True)
            if not (one == "\ufffd" or self._is_control(one))
        ]
        characters = "".join(one for one, _ in shown)
        found: list[list[int]] = []
        offset = 0
        for token in tokens:
            spelled = self.stem(self._token_translate_inv.get(token, token))
            start = -1
            if spelled and not self._is_special(token):
                start = characters.find(spelled, offset)
            if start < 0:
                found.append([])
                continue
            offset = start + len(spelled)
            found.append([place for _, place in shown[start:offset]])
        return found

    @staticmethod
    def stem(token: str) -> str:
        """The token without its `##`."""
        return token.removeprefix("##")

    @staticmethod
    def _is_space(ch: str) -> bool:
        return ch in " \n\r\t" or unicodedata.category(ch) == "Zs"

    _is_punctuation = staticmethod(is_punctuation)

    @staticmethod
    def _is_cjk_character(ch: str) -> bool:
        return bool(CJK_CHARACTER.match(ch))

    @staticmethod
    def _is_control(ch: str) -> bool:
        return unicodedata.category(ch) in ("Cc", "Cf")

    @staticmethod
    def _is_special(ch: str) -> bool:
        return bool(re.fullmatch(r"\[.*\]", ch, re.DOTALL))

    _is_redundant = staticmethod(_tokenizer._is_redundant)


def __getattr__(name: str) -> Unchecked:
    raise name_error(__name__, name, __all__)
