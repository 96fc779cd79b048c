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
FLOATS = (0.5, -0.0, 1e308, float("nan"), float("inf"))
STRINGS = ("", "x", "\ud800", "\0", "../x", "/etc/x")
CONTAINERS = ([], {}, [[]], [None], [0], ["x"], {"x": 0})
CONSTANTS = (None, True, False, *FLOATS, *STRINGS, *CONTAINERS)
JSON_VALUES = (*CONSTANTS, *INTEGERS, *LARGE_INTEGERS)
TOML_VALUES = ("1979-05-27", "nan", "-inf", "0x7f", "[" * 3000, "{ x = 0 }", "{}")
_TOML_VALUE = re.compile(r"(?<== ).+$", re.MULTILINE)


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
        changes = [
            bytes([part[0] ^ 1 << draw.randrange(8)]) + part[1:] if part else b"\0",
            draw.randbytes(len(part)),
            draw.choice((b"\0", b"\xff")) * len(part),
            b"",
            draw.randbytes(draw.choice((1, 4, 64))) + part,
        ]
        if draw.random() < 0.05:
            # Cut off.
            return data[:start] if data else b"\0"
        data = data[:start] + draw.choice(changes) + data[end:]
    return data


def _write_integer(draw, data):
    size = draw.choice((1, 2, 4, 8))
    value = draw.choice((*INTEGERS, *LARGE_INTEGERS)) % 2 ** (8 * size)
    start = draw.randrange(len(data) + 1)
    order = draw.choice(("little", "big"))
    return data[:start] + value.to_bytes(size, order) + data[start + size :]


def _repeat(draw, data):
    """A part of the data in another place, or many times."""
    start, target = (draw.randrange(len(data) + 1) for _ in range(2))
    part = data[start : start + draw.choice((1, 4, 16, 256))]
    times = draw.choice((1, 1, 2, 1000)) if len(part) < 17 else 1
    return data[:target] + part * times + data[target:]


def random_text(draw: random.Random, longest: int = 40, surrogates=True) -> str:
    """Characters at which tokenizers and readers have special cases, and any others."""
    known = CHARACTERS + (SURROGATES if surrogates else ()) + WORDS
    text = ""
    for _ in range(draw.randrange(longest + 1)):
        code = draw.randrange(0x110000 if draw.random() < 0.3 else 0x3000)
        is_half = 0xD800 <= code < 0xE000
        is_known = draw.random() < 0.8 or (is_half and not surrogates)
        text += draw.choice(known) if is_known else chr(code)
    return text


def mutate_text(draw: random.Random, text: str) -> str:
    """A text with some of it deleted, inserted, repeated or cut off."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        start, other = (draw.randrange(len(text) + 1) for _ in range(2))
        end = start + draw.choice((0, 0, 1, 2, 8, 64))
        changes = (
            "",
            random_text(draw, 8),
            text[start:end] * draw.choice((2, 3, 300)),
            draw.choice(CHARACTERS) * draw.choice((1, 2, 250, 5000)),
            text[other : other + 40],
        )
        text = text[:start] + draw.choice(changes) + text[end:]
    return text


def mutate_text_bytes(draw: random.Random, data: bytes) -> bytes:
    """A text file changed as a text, or as bytes."""
    if draw.random() < 0.2:
        return mutate_bytes(draw, data)
    text = mutate_text(draw, data.decode("utf-8", "surrogateescape"))
    if draw.random() < 0.03:
        return text.encode(draw.choice(("gb18030", "utf-16")), "ignore")
    return text.encode("utf-8", "surrogatepass")


def mutate_toml(draw: random.Random, data: bytes) -> bytes:
    """A TOML file with another value, or changed as a text."""
    text = data.decode("utf-8", "surrogateescape")
    matches = list(_TOML_VALUE.finditer(text))
    if not matches or draw.random() < 0.3:
        return mutate_text_bytes(draw, data)
    values = [x for x in JSON_VALUES if x is not None and not isinstance(x, dict)]
    # JSON has other names for NaN and infinity.
    value = json.dumps(draw.choice(values)).replace("NaN", "nan")
    value = value.replace("Infinity", "inf")
    changes = (value, value, draw.choice(TOML_VALUES), draw.choice(matches)[0])
    start, end = draw.choice(matches).span()
    text = text[:start] + draw.choice(changes) + text[end:]
    return text.encode("utf-8", "surrogateescape")


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
    how = draw.random()
    if isinstance(value, dict | list) and value and draw.random() < 0.9:
        items = list(value.items() if isinstance(value, dict) else enumerate(value))
        number = draw.randrange(len(items))
        key, inner = items[number]
        if how < 0.08:
            changed = []
        elif how < 0.16:
            other = draw.choice((f"{key}".upper(), f"{key}x", "", "x"))
            changed = [(key, inner), (other, inner)]
        elif how < 0.2:
            changed = [(key, draw.choice(items)[1])]
        else:
            changed = [(key, _change_value(draw, inner))]
        items[number : number + 1] = changed
        return dict(items) if isinstance(value, dict) else [x for _, x in items]
    if isinstance(value, int | float) and how < 0.4:
        return value + draw.choice((1, -1, 0.5, value, -2 * value))
    if isinstance(value, str) and how < 0.4:
        return mutate_text(draw, value)
    if how < 0.5:
        return draw.choice(([value], {"x": value}, str(value)[:200]))
    return draw.choice(JSON_VALUES)
