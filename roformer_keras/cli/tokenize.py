"""`roformer-keras tokenize`."""

from roformer_keras.cli.texts import json_line, read_texts
from roformer_keras.errors import ConfigurationError
from roformer_keras.verbs.sources import load_tokenizer

EXAMPLES = ("tokenize 床前明月光", "tokenize --decode '101 102'")


def run(
    texts: list[str],
    *,
    source: str = "roformer-char",
    vocabulary: str | None = None,
    decode: bool = False,
    max_length: int | None = None,
    as_json: bool = False,
) -> None:
    """Turn texts into token ids, or back.

    Args:
        texts: to tokenize; - is the lines of standard input.
        decode: texts are ids: decode them.
        max_length: tokens to which texts are cut.
    """
    tokenizer = load_tokenizer(source, vocabulary)
    for text in read_texts(texts):
        if decode:
            print(tokenizer.decode(_parse_ids(text)))
            continue
        ids, _ = tokenizer.encode(text, max_length=max_length)
        if not as_json:
            print(" ".join(map(str, ids)))
            continue
        content = {"text": text, "token_ids": ids}
        if max_length is None:
            content["tokens"] = tokenizer.tokenize(text)
            content["offsets"] = tokenizer.offsets(text)
        print(json_line(content))


def _parse_ids(text):
    try:
        return [int(word) for word in text.split()]
    except ValueError as error:
        raise ConfigurationError(
            f"ids to decode must be integers between spaces, got {text!r}"
        ) from error
