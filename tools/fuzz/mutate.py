"""Changes of bytes, texts and JSON; each draws from a `random.Random`."""

import json
import random
import re

# Where readers compare, add and allocate.
INTEGERS = (0, 1, -1, 2, 7, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1)
LARGE_INTEGERS = (2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 10**30)
CHARACTERS = (
    *"aZ019 .,:;'\"[]{}()#=-_/\\|*?!\t\n\r\0\x0b\x0c\x1c\x7f\x85\xa0\xad",
    *"今天，。？《》·İßſﬁÅé\u0300\u0301\u0345가ᄀ\u11a8각\u200b\u200d\u202e\u2028\ufeff",
    *"\ufffd\uffff\U0001f468\U0001f1e8\U00020000\U0010ffffﷺΣςǅ½²𝒜",
)
# Half of a pair: JSON and file names can hold it, UTF-8 cannot.
SURROGATES = ("\ud800", "\udc80", "\udfff")
WORDS = ("[MASK]", "[CLS]", "[PAD]", "##", "text", "label", "B-A", "I-A", "null")

JSON_VALUES = (
    *(None, True, False, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "x"),
    *([], {}, [[]], [None], [0], ["x"], {"x": 0}, "\ud800", "\0", "../x", "/etc/x"),
    *INTEGERS,
    *LARGE_INTEGERS,
)


def mutate_bytes(draw: random.Random, data: bytes) -> bytes:
    """Bytes changed in one to four places."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        data = draw.choice((damage, damage, _write_integer, _repeat))(draw, data)
    return data


def damage(draw: random.Random, data: bytes) -> bytes:
    """Bytes changed in one place, as transfers, disks and editors do; never equal."""
    before = data
    while data == before:
        start = draw.randrange(len(data)) if data else 0
        end = start + draw.choice((1, 1, 2, 4, 16, 512))
        part = data[start:end]
        how = draw.randrange(6)
        if how == 0 and part:
            part = bytes([part[0] ^ 1 << draw.randrange(8)]) + part[1:]
        elif how == 1:
            part = draw.randbytes(len(part))
        elif how == 2:
            part = draw.choice((b"\0", b"\xff")) * len(part)
        elif how == 3:
            part = b""
        elif how == 4:
            part = draw.randbytes(draw.choice((1, 4, 64))) + part
        elif how == 5 and draw.random() < 0.3:
            return data[:start] if data else b"\0"
        data = data[:start] + part + data[end:]
    return data


def _write_integer(draw, data):
    size = draw.choice((1, 2, 4, 8))
    value = draw.choice((*INTEGERS, *LARGE_INTEGERS)) % 2 ** (8 * size)
    start = draw.randrange(len(data) + 1)
    order = draw.choice(("little", "big"))
    return data[:start] + value.to_bytes(size, order) + data[start + size :]


def _repeat(draw, data):
    """A part of the data in another place, or many times."""
    start, place = (draw.randrange(len(data) + 1) for _ in range(2))
    part = data[start : start + draw.choice((1, 4, 16, 256))]
    times = draw.choice((1, 1, 2, 1000)) if len(part) < 17 else 1
    return data[:place] + part * times + data[place:]


def random_text(draw: random.Random, longest: int = 40, surrogates=True) -> str:
    """Characters at which tokenizers and readers have special cases, and any others."""
    known = CHARACTERS + (SURROGATES if surrogates else ()) + WORDS
    count = draw.randrange(longest + 1)
    return "".join(
        draw.choice(known) if draw.random() < 0.8 else _any_character(draw, surrogates)
        for _ in range(count)
    )


def _any_character(draw, surrogates):
    code = draw.randrange(0x110000 if draw.random() < 0.3 else 0x3000)
    return "x" if 0xD800 <= code < 0xE000 and not surrogates else chr(code)


def mutate_text(draw: random.Random, text: str) -> str:
    """A text with some of it deleted, inserted, repeated or cut off."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        start = draw.randrange(len(text) + 1)
        end = start + draw.choice((0, 0, 1, 2, 8, 64))
        how = draw.randrange(5)
        new = ""
        if how == 1:
            new = random_text(draw, 8)
        elif how == 2:
            new = text[start:end] * draw.choice((2, 3, 300))
        elif how == 3:
            new = draw.choice(CHARACTERS) * draw.choice((1, 2, 250, 5000))
        elif how == 4:
            other = draw.randrange(len(text) + 1)
            new = text[other : other + 40]
        text = text[:start] + new + text[end:]
    return text


def mutate_text_bytes(draw: random.Random, data: bytes) -> bytes:
    """A text file changed as a text, or as bytes."""
    if draw.random() < 0.2:
        return mutate_bytes(draw, data)
    text = mutate_text(draw, data.decode("utf-8", "surrogateescape"))
    encoding = "utf-8" if draw.random() < 0.97 else draw.choice(("gb18030", "utf-16"))
    return text.encode(encoding, "ignore" if encoding != "utf-8" else "surrogatepass")


_TOML_VALUE = re.compile(r"(?<== ).+$", re.MULTILINE)


def mutate_toml(draw: random.Random, data: bytes) -> bytes:
    """A TOML file with another value or key, or changed as a text."""
    text = data.decode("utf-8", "surrogateescape")
    places = list(_TOML_VALUE.finditer(text))
    if not places or draw.random() < 0.3:
        return mutate_text_bytes(draw, data)
    start, end = draw.choice(places).span()
    value = draw.choice(places)[0] if draw.random() < 0.2 else _toml_value(draw)
    return (text[:start] + value + text[end:]).encode("utf-8", "surrogateescape")


def _toml_value(draw):
    value = draw.choice(JSON_VALUES)
    if isinstance(value, dict):
        return "{ x = 0 }" if value else "{}"
    if draw.random() < 0.1:
        return draw.choice(("1979-05-27", "nan", "-inf", "0x7f", "[" * 3000))
    return (
        json.dumps("null" if value is None else value, allow_nan=False)[:100]
        if (value == value and value not in (float("inf"), [None]))
        else "inf"
    )


def mutate_json(draw: random.Random, data: bytes) -> bytes:
    """JSON in which a value, a key or the nesting is another."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return mutate_text_bytes(draw, data)
    if draw.random() < 0.15:
        return mutate_text_bytes(draw, data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        content = _change_value(draw, content)
    text = json.dumps(content, ensure_ascii=draw.random() < 0.5)
    if draw.random() < 0.02:
        text = text.replace("0", "[" * 100_000, 1)
    return text.encode("utf-8", "surrogatepass")


def _change_value(draw, value):
    """A copy of a value in which one value, at any depth, is another."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        how = draw.random()
        if how < 0.08:
            return {k: v for k, v in value.items() if k != key}
        if how < 0.14:
            return {**value, draw.choice((key.upper(), f"{key}x", "", "x")): value[key]}
        if how < 0.18:
            return {**value, key: value[draw.choice(list(value))]}
        return {**value, key: _change_value(draw, value[key])}
    if isinstance(value, list) and value and draw.random() < 0.9:
        place = draw.randrange(len(value))
        how = draw.random()
        if how < 0.1:
            return value[:place] + value[place + 1 :]
        if how < 0.2:
            return value[:place] + value[place : place + 1] * 2 + value[place + 1 :]
        changed = _change_value(draw, value[place])
        return [*value[:place], changed, *value[place + 1 :]]
    how = draw.random()
    if isinstance(value, int | float) and how < 0.4:
        return value + draw.choice((1, -1, 0.5, value, -2 * value))
    if isinstance(value, str) and how < 0.4:
        return mutate_text(draw, value)
    if how < 0.5:
        return draw.choice(([value], {"x": value}, str(value)[:200]))
    return draw.choice(JSON_VALUES)
