"""Readable text from tokens."""

import itertools
import re

from roformer_keras.text.characters import CJK_CHARACTER, is_punctuation

_SPECIAL = re.compile(r"\[.*\]")
# bert4keras removes the spaces at these matches too.
_CLITIC = re.compile("' (re|m|s|t|ve|d|ll) ")
_GLUED_MARK = re.compile(
    "([\u00b7\u2013\u2014\u2018\u2019\u201b-\u201f\u2026\u2027\u3000-\u3003"
    "\u3008-\u3011\u3014-\u301f\u3030\u303e\u303f\ufe4f\ufe51\ufe54\uff01-\uff0d"
    "\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff64+\\-/={(<\\[]) "
)
_DECIMAL = re.compile(r"(\d\.) (\d)")


def join_tokens(tokens):
    """The text of tokens, without special tokens and with bert4keras's spaces."""
    text = ""
    for token in itertools.filterfalse(_SPECIAL.fullmatch, tokens):
        if token.startswith("##"):
            text += token[2:]
        elif len(token) == 1 and is_punctuation(token):
            text += token + " "
        elif CJK_CHARACTER.fullmatch(token) or CJK_CHARACTER.match(text[-1:]):
            text += token
        else:
            text += " " + token
    text = re.sub(" +", " ", text)
    text = _CLITIC.sub(r"'\1 ", text)
    text = _GLUED_MARK.sub(r"\1", text)
    return _DECIMAL.sub(r"\1\2", text).strip()
