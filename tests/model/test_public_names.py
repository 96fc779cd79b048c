"""Public names exist, and their arguments and results have types."""

import inspect

import keras

import roformer_keras
from roformer_keras.inference.fast_model import FastModel
from roformer_keras.models.preset import PresetModel


def functions(name, value):
    """The functions that a user reaches by a name, with their names."""
    if inspect.ismodule(value):
        for inner in getattr(value, "__all__", ()):
            yield from functions(f"{name}.{inner}", getattr(value, inner))
    elif inspect.isclass(value):
        for base in value.__mro__:
            members = vars(base) if base.__module__.startswith("roformer_keras") else {}
            for member, attribute in members.items():
                wrapped = getattr(attribute, "__func__", attribute)
                function = getattr(attribute, "fget", wrapped)
                is_public = member in ("__init__", "__call__") or member[0] != "_"
                if is_public and inspect.isfunction(function):
                    yield f"{name}.{member}", function
    elif inspect.isfunction(value):
        yield name, value


def test_public_names_and_their_signatures():
    """Arguments and results are annotated, as mypy wants them."""
    assert {*roformer_keras.__all__} <= {*dir(roformer_keras)}
    wrong, names = [], set()
    for name in roformer_keras.__all__:
        for path, function in functions(name, getattr(roformer_keras, name)):
            names.add(path)
            signature = inspect.signature(function)
            arguments = [
                argument
                for argument in signature.parameters.values()
                if argument.name not in ("self", "cls")
            ]
            # A constructor with annotated arguments returns None.
            is_annotated = signature.return_annotation is not signature.empty
            is_annotated |= path.endswith(".__init__") and bool(arguments)
            if not is_annotated or signature.empty in (
                argument.annotation for argument in arguments
            ):
                wrong.append(f"{path}{signature}")
    assert wrong == []
    assert len(names) > 600
    assert {
        "layers.causal_mask",
        "RoFormerCausalLM.generate",
        "RoFormerSim.from_preset",
        "RoFormerTextClassifier.__init__",
        "RoFormerTokenizer.__call__",
        "finetune",
    } <= names


def test_texts_are_fitted_in_one_place():
    """`fit` on texts is written once; below it is Keras's `fit`, without its waits.

    A model is at most five classes of this package.
    """
    models = [
        value
        for name in roformer_keras.__all__
        if inspect.isclass(value := getattr(roformer_keras, name))
        and issubclass(value, keras.Model)
    ]
    assert len(models) > 10
    for model in models:
        bases = [x for x in model.__mro__ if x.__module__.startswith("roformer_keras")]
        assert len(bases) <= 5, model
        for method in ("fit", "evaluate", "train_on_batch", "test_on_batch"):
            home = PresetModel if issubclass(model, PresetModel) else FastModel
            assert getattr(model, method) is getattr(home, method), (model, method)
