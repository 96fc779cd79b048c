"""`roformer-keras tokenize`."""

from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.cli.texts import read_texts
from roformer_keras.jobs.sinks import json_text
from roformer_keras.verbs.loading import load_tokenizer

EXAMPLES = ("tokenize 床前明月光", "tokenize --decode '101 102'")


def run(
    texts: list[str] | None = None,
    *,
    text: list[str] | None = None,
    source: str = "roformer-char",
    vocabulary: str | None = None,
    decode: bool = False,
    max_length: int | None = None,
    as_json: bool = False,
) -> None:
    """Turn texts into token ids, or back.

    Args:
        texts: to tokenize; - is the lines of standard input.
        text: the same as a flag, as other commands have it; may be repeated.
        decode: texts are ids: decode them.
        max_length: tokens to which texts are cut.
    """
    words = [*(texts or ()), *(text or ())]
    refuse(
        not words,
        "there must be a text to tokenize, or - for the lines of standard input",
    )
    tokenizer = load_tokenizer(source, vocabulary)
    for line in read_texts(words):
        if decode:
            print(tokenizer.decode(_parse_ids(line)))
            continue
        ids, _ = tokenizer.encode(line, max_length=max_length)
        if not as_json:
            print(" ".join(map(str, ids)))
            continue
        content = {"text": line, "token_ids": ids}
        if max_length is None:
            content["tokens"] = tokenizer.tokenize(line)
            content["offsets"] = tokenizer.offsets(line)
        print(json_text(content))


def _parse_ids(text):
    try:
        return [int(word) for word in text.split()]
    except ValueError as error:
        raise ConfigurationError(
            f"ids to decode must be integers between spaces, got {text!r}"
        ) from error
