"""Tokenizers of Hugging Face; tokenizers that this package cannot match are refused."""

from collections.abc import Mapping
from typing import Any

from roformer_keras.base.errors import Hint, VocabularyError
from roformer_keras.conversion.huggingface_config import check_values, pair_template
from roformer_keras.io.blob import Blob
from roformer_keras.io.json_file import read_json
from roformer_keras.io.vocabulary import (
    CLS,
    MASK,
    PAD,
    SEP,
    UNK,
    fitting_tokens,
    read_vocabulary,
    token_of_line,
    vocabulary_level,
)

_ROLES = {
    "pad_token": PAD,
    "unk_token": UNK,
    "cls_token": CLS,
    "sep_token": SEP,
    "mask_token": MASK,
}
# RoFormerTokenizer cuts words by jieba, whatever its file says. A RoFormer's
# `config.json` without a tokenizer's name implies it.
_JIEBA = ("RoFormerTokenizer", "RoFormerTokenizerFast")
_BERT = ("BertTokenizer", "BertTokenizerFast")
_BY_FILE = (None, "PreTrainedTokenizerFast", "TokenizersBackend")
_WAY_OUT = (
    "cut texts by the library that saved the tokenizer and give ids to the model, or "
    "delete the setting if the model was trained without it"
)


def huggingface_tokenizer(parts: Mapping[str, Blob]) -> dict[str, Any]:
    """The fields `vocabulary` and `tokenizer` of a `Checkpoint`, if files hold them."""
    if "given_vocabulary" in parts:
        others = {"tokenizer_file", "special_tokens", "added_tokens"}
        parts = {role: blob for role, blob in parts.items() if role not in others}
    files = {role: read_json(parts[role]) for role in _ADDING if role in parts}
    settings = files.get("tokenizer_config", {})
    saved: dict[str, Any] = {}
    tokens = None
    if "vocabulary" in parts:
        blob = parts["vocabulary"]
        tokens = tuple(read_vocabulary(blob.read_small(), blob.label))
    if "tokenizer_file" in parts:
        label = parts["tokenizer_file"].label
        listed = read_vocabulary_file(files["tokenizer_file"], label)
        if tokens is not None and fitting_tokens(tokens) != fitting_tokens(listed):
            raise VocabularyError(
                f"{parts['vocabulary'].label} and {label} must hold the same tokens, "
                f"got {len(tokens):,} and {len(listed):,}: delete the one that is not "
                "the model's"
            )
        tokens = tokens or listed
    if tokens is not None:
        if "given_vocabulary" not in parts:
            labels = {role: parts[role].label for role in files}
            tokens = _with_special(tokens, files, labels)
        saved["vocabulary"] = tokens
    is_lower = _check_settings(parts, settings, tokens)
    if "tokenizer_file" in parts:
        content = files["tokenizer_file"]
        is_lower = _check_file(content, settings, tokens, is_lower, label)
    # sentence-transformers may lowercase text that its tokenizer does not.
    sentences = parts.get("sentence_config")
    if sentences is not None and read_json(sentences).get("do_lower_case") is True:
        is_lower = True
    if is_lower is not None:
        saved["tokenizer"] = {"lower_case": is_lower}
    return saved


def read_vocabulary_file(content: Mapping, label: str) -> tuple[str, ...]:
    """The tokens of a `tokenizer.json` by id."""
    model = content.get("model")
    ids = model.get("vocab") if isinstance(model, dict) else None
    if (
        not isinstance(ids, dict)
        or not all(type(number) is int for number in ids.values())
        or sorted(ids.values()) != list(range(len(ids)))
    ):
        raise VocabularyError(
            f"{label} must have a WordPiece vocabulary with an id from 0 on for each "
            "token, and has none: put the vocab.txt next to the weights"
        )
    return tuple(map(token_of_line, sorted(ids, key=ids.__getitem__)))


# === Added tokens ===


def _listed(value):
    """The tokens of a list, or of an object from names to tokens."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else [] if value is None else [value]


def _from_file(content):
    for token in _listed(content.get("added_tokens")):
        number = token.get("id") if isinstance(token, dict) else None
        yield None, token, number if type(number) is int else -1


def _from_settings(content):
    decoder = content.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        decoder = {"": decoder}
    for number, token in decoder.items():
        yield None, token, int(number) if number.isdecimal() else -1
    for name, value in content.items():
        if name in ("additional_special_tokens", "extra_special_tokens"):
            for token in _listed(value):
                yield None, token, None
        elif name.endswith("_token") and isinstance(value, str | dict):
            yield name, value, None


def _from_list(content):
    for token, number in content.items():
        yield None, token, number if type(number) is int else -1


# File's role -> function that yields role, token and id of each token in it.
_ADDING = {
    "tokenizer_file": _from_file,
    "tokenizer_config": _from_settings,
    "special_tokens": _from_settings,
    "added_tokens": _from_list,
}


def _with_special(tokens, files, labels) -> tuple[str, ...]:
    """The tokens, followed by special tokens from other files; refuses other tokens."""
    added = [
        (role, token.get("content") if isinstance(token, dict) else token, number, name)
        for name in sorted(_ADDING.keys() & files.keys())
        for role, token, number in _ADDING[name](files[name])
    ]
    # New tokens follow in the order of their ids.
    added.sort(key=lambda row: -1 if row[2] is None else row[2])
    tokens = list(tokens)
    for role, token, number, name in added:
        if role in _ROLES and token != _ROLES[role]:
            raise VocabularyError(
                f"{labels[name]}: {role} must be {_ROLES[role]}, got {token!r:.80}",
                hint=_WAY_OUT,
            )
        is_special = token in _ROLES.values()
        if is_special and token not in tokens and number == len(tokens):
            tokens.append(token)
        if is_special and (number is None or tokens[number : number + 1] == [token]):
            continue
        raise VocabularyError(
            f"{labels[name]} adds the token {token!r:.80}, which Transformers finds in "
            "a text before it cuts words, but this package does not",
            hint=Hint(
                "if no text needs it, convert the folder with {vocabulary}, a "
                "vocab.txt with a line for each id"
            ),
        )
    return tuple(tokens)


# === Settings ===


def _check_settings(parts, settings, tokens) -> bool | None:
    """True if texts are lowercased; None if `tokenizer_config.json` does not say."""
    if "tokenizer_config" not in parts:
        return None
    kind = settings.get("tokenizer_class")
    by_file = kind in _BY_FILE and "tokenizer_file" in parts
    is_lower = settings.get("do_lower_case", None if by_file else True)
    is_word = tokens is not None and vocabulary_level(tokens) == "word"
    never = settings.get("never_split") or []
    is_special = isinstance(never, list) and {*map(str, never)} <= {*_ROLES.values()}
    _check(
        parts["tokenizer_config"].label,
        settings,
        tokenizer_class=(*_JIEBA, *_BY_FILE, *(() if is_word else _BERT)),
        do_lower_case=(True, False, None),
        strip_accents=(None, is_lower),
        tokenize_chinese_chars=(True, None, *((False,) if kind in _JIEBA else ())),
        do_basic_tokenize=(True, None),
        truncation_side=("right", None),
        never_split=(never if is_special else None, None),
    )
    return is_lower


def _check_file(content, settings, tokens, is_lower, label) -> bool | None:
    """True if texts are lowercased, after a check of a `tokenizer.json`'s steps."""
    kind = settings.get("tokenizer_class")
    is_word = vocabulary_level(tokens) == "word"
    is_jieba = kind in _JIEBA or (kind is None and is_word)
    # Files that the library saved have all of these keys.
    if "normalizer" in content:
        normalizer = _single(content["normalizer"], "normalizers")
        _check(f"{label}: normalizer", normalizer, type=("BertNormalizer",))
        lowers = (True, False) if is_lower is None else (is_lower,)
        is_lower = normalizer.get("lowercase")
        _check(
            f"{label}: normalizer",
            normalizer,
            lowercase=lowers,
            clean_text=(True,),
            handle_chinese_chars=(True, *((False,) if is_jieba else ())),
            strip_accents=(None, is_lower),
        )
    if "pre_tokenizer" in content:
        splitter = _single(content["pre_tokenizer"], "pretokenizers")
        _check(f"{label}: pre_tokenizer", splitter, type=("BertPreTokenizer",))
    _check(
        f"{label}: model",
        content["model"],
        type=("WordPiece", None),
        unk_token=(UNK, None),
        continuing_subword_prefix=("##", None),
        # bert4keras leaves words of 201 characters and more whole.
        max_input_chars_per_word=(100, 200, None),
    )
    truncation = content.get("truncation") or {}
    _check(f"{label}: truncation", truncation, direction=("Right", None))
    # BERT's and RoFormer's classes have these steps without the file.
    if "post_processor" in content and kind not in (*_BERT, *_JIEBA):
        ids = {token: tokens.index(token) for token in (CLS, SEP) if token in tokens}
        bert = {"type": "BertProcessing", "sep": [SEP, ids.get(SEP)]}
        bert["cls"] = [CLS, ids.get(CLS)]
        _check(label, content, post_processor=(bert, pair_template(ids)))
    return is_lower


def _single(step, name):
    """The only step of a sequence of one step."""
    steps = step.get(name) if isinstance(step, dict) else None
    return steps[0] if isinstance(steps, list) and len(steps) == 1 else step


def _check(label: str, fields: Any, **allowed: tuple) -> None:
    reason = "as this package cuts texts"
    check_values(fields, allowed, reason, f"{label}: ", _WAY_OUT)
