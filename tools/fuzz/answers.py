"""The target that asks models about any texts."""

import functools
import json
from pathlib import Path

from tools.fuzz import seeds, texts
from tools.fuzz.target import Target, expect

_SHORT = 200


@functools.cache
def _models():
    """A task of each kind with new heads, and how many texts a row of it has."""
    import keras

    import roformer_keras as package

    keras.utils.set_random_seed(0)
    options = {
        "RoFormerTextClassifier": ({"classes": ["坏", "好"]}, 1),
        "RoFormerTokenClassifier": ({"labels": ["人", "地"], "crf": True}, 1),
        "RoFormerSpanExtractor": ({"labels": ["人", "地"]}, 1),
        "RoFormerQuestionAnswerer": ({}, 2),
        "RoFormerSentenceEncoder": ({}, 2),
        "RoFormerTextRegressor": ({}, 1),
    }
    return [
        (getattr(package, name).from_preset(seeds.SMALL, **given), count)
        for name, (given, count) in options.items()
    ]


def _ask(folder: Path):
    text = (folder / "text.txt").read_bytes().decode("utf-8", "surrogatepass")
    text = text[:_SHORT]
    texts.try_each(
        functools.partial(_ask_one, model, (text[::-1], text)[-count:])
        for model, count in _models()
    )


def _ask_one(model, row):
    (found,) = model.to_json([row])
    # As a command writes it.
    json.dumps(found, allow_nan=False)
    spans = found.get("spans", [found["answer"]] if found.get("answer") else [])
    for span in spans:
        part = row[-1][span["start"] : span["end"]]
        expect(part and part == span["text"], "a span is of its text", row[-1], span)


TARGETS = {
    "answers": Target(
        texts.text_files,
        texts.mutate_text_file,
        _ask,
        seconds=120,
        needs_keras=True,
    )
}
