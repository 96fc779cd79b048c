"""The tokenizer files next to a model's weights."""

from collections.abc import Mapping
from typing import Any

from roformer_keras.base.errors import refuse
from roformer_keras.io.blob import Blob
from roformer_keras.io.json_file import read_json
from roformer_keras.io.vocabulary import read_vocabulary


def saved_tokenizer(parts: Mapping[str, Blob]) -> dict:
    """The fields `vocabulary` and `tokenizer` of a `Checkpoint`, if files hold them."""
    saved: dict[str, Any] = {}
    if "vocabulary" in parts:
        saved["vocabulary"] = read_tokens(parts["vocabulary"])
    if "tokenizer" in parts:
        content = read_json(parts["tokenizer"])
        label = parts["tokenizer"].label
        saved["tokenizer"] = checked_tokenizer_fields(content.get("config"), label)
    return saved


def checked_tokenizer_fields(fields, label: str) -> dict:
    """The arguments of a tokenizer except its vocabulary."""
    kinds = {"level": str | None, "lower_case": bool}
    refuse(
        not isinstance(fields, dict)
        or not all(
            name in kinds and isinstance(value, kinds[name])
            for name, value in fields.items()
        ),
        f"{label} holds no tokenizer, which is an object with a 'level' and a "
        f"'lower_case', got {fields!r:.80}",
    )
    return fields


def read_tokens(blob: Blob) -> tuple[str, ...]:
    """The tokens of a `vocab.txt`."""
    return tuple(read_vocabulary(blob.read_small(), blob.label))
