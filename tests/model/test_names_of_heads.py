"""Names given to a saved head: those of its weights in their order, or refused."""

import json

import numpy as np
import pytest
from common import CHARACTER

import roformer_keras
from roformer_keras import RoFormerTextClassifier, RoFormerTokenizer, convert
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.cli import main

# The head of Transformers has a dense layer.
DENSE = {"head_activation": "gelu"}
# Name -> class, field, names, and other arguments.
HEADS = {
    "classes": ("RoFormerTextClassifier", "classes", ["a", "b"], DENSE),
    "numbers": ("RoFormerTextClassifier", "classes", [0, 1], DENSE),
    "multi": (
        "RoFormerTextClassifier",
        "classes",
        ["a", "b"],
        {"multi_label": True, **DENSE},
    ),
    "pairs": (
        "RoFormerSentenceEncoder",
        "classes",
        ["a", "b"],
        {"objective": "classification"},
    ),
    "spans": ("RoFormerTokenClassifier", "labels", ["a", "b"], {"crf": True}),
    "tags": ("RoFormerTokenClassifier", "tags", ["n", "v", "w"], {}),
    "pointer": ("RoFormerSpanExtractor", "labels", ["a", "b"], {"head_dim": 8}),
    "relations": ("RoFormerRelationExtractor", "labels", ["a", "b"], {"head_dim": 8}),
}
GIVEN = {
    "other order": lambda names: names[::-1],
    "more": lambda names: [*names, "c"],
    "fewer": lambda names: names[:-1],
    "others": lambda names: ["x", "y", "z"][: len(names)],
}
HUGGINGFACE = {"classes", "numbers", "multi", "tags"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The path of a head in a format; each is written once."""
    folder, models = tmp_path_factory.mktemp("heads"), {}

    def path_of(name, format):
        path = folder / f"{name}.{format}"
        if path.exists():
            return path
        if name not in models:
            cls, field, names, options = HEADS[name]
            models[name] = getattr(roformer_keras, cls).from_preset(
                CHARACTER, num_layers=1, **{field: names}, **options
            )
        if format == "keras":
            models[name].save(path)
        elif format == "preset":
            models[name].save_to_preset(path)
        else:
            convert(path_of(name, "preset"), path, format=format, verbose=0)
        return path

    return path_of


def load(name, path, names, field=None):
    cls, own_field, _, _ = HEADS[name]
    model = getattr(roformer_keras, cls).from_preset(
        path, **{field or own_field: names}
    )
    return list(getattr(model, own_field))


def formats(name):
    return ("preset", "keras", *(("huggingface",) if name in HUGGINGFACE else ()))


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ("multi", "numbers")))
        for name in HEADS
    ],
)
def test_other_names_are_refused(name, given, saved):
    names = HEADS[name][2]
    for format in formats(name):
        message = "in this order.* with a new head: .*RoFormerBackbone.from_preset"
        with pytest.raises(ConfigurationError, match=message):
            load(name, saved(name, format), GIVEN[given](names))


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_the_same_names_are_taken(name, saved):
    names = HEADS[name][2]
    for format, kind in zip(formats(name), (tuple, np.array, list), strict=False):
        assert load(name, saved(name, format), kind(names)) == names


def test_tags_and_labels_are_one_order(saved):
    tags = ["O", "B-a", "I-a", "B-b", "I-b"]
    assert load("spans", saved("spans", "preset"), tags, "tags") == ["a", "b"]
    with pytest.raises(ConfigurationError, match="in this order"):
        load("spans", saved("spans", "preset"), [*tags[3:], *tags[:3]], "tags")
    assert load("tags", saved("tags", "preset"), ["v"], "labels") == HEADS["tags"][2]


def test_classes_that_were_numbers_get_names(tmp_path):
    path = tmp_path / "preset"
    options = {"num_layers": 1, "num_classes": 2}
    RoFormerTextClassifier.from_preset(CHARACTER, **options).save_to_preset(path)
    named = RoFormerTextClassifier.from_preset(path, classes=["a", "b"])
    assert named.classes == ["a", "b"]
    for wrong in ({"classes": ["a", "b", "c"]}, {"num_classes": 3}):
        with pytest.raises(ConfigurationError, match="weights for 2 in this order"):
            RoFormerTextClassifier.from_preset(path, **wrong)


def test_a_token_keeps_its_id(saved):
    path = saved("classes", "preset")
    tokens = list(RoFormerTokenizer.from_preset(path).vocabulary)
    renamed = [*tokens[:200], "[new]", *tokens[201:]]
    for given in (tokens, renamed):
        tokenizer = RoFormerTokenizer(given, "character")
        model = RoFormerTextClassifier.from_preset(path, tokenizer=tokenizer)
        assert model.tokenizer is tokenizer
    tokens[200], tokens[201] = tokens[201], tokens[200]
    with pytest.raises(ConfigurationError, match="tokenizer must have the ids of"):
        tokenizer = RoFormerTokenizer(tokens, "character")
        RoFormerTextClassifier.from_preset(path, tokenizer=tokenizer)


@pytest.mark.slow
def test_finetune_goes_on_with_the_names_of_its_source(tmp_path):
    options = {"num_layers": 1, "classes": ["差", "好"]}
    source, data = tmp_path / "source", tmp_path / "train.jsonl"
    RoFormerTextClassifier.from_preset(CHARACTER, **options).save_to_preset(source)
    command = ["finetune", "text-classification", "--source", source, "--quiet"]
    command += ["--train", data, "--epochs", "1", "--output"]
    rows = [("好极了", "好"), ("太差了", "差")] * 4
    for folder, code in (("same", 0), ("more", 2)):
        lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
        data.write_text("\n".join(lines))
        assert main([*map(str, command), str(tmp_path / folder)]) == code
        rows.append(("今天", "中"))
    assert roformer_keras.load_model(tmp_path / "same").classes == ["差", "好"]
