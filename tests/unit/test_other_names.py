"""Names that users of other libraries type, and what the error says."""

import inspect
import re

import pytest

import roformer_keras
from roformer_keras import RoFormerTokenizer, server
from roformer_keras.base import other_names
from roformer_keras.base.errors import ConfigurationError

PUBLIC = set(roformer_keras.__all__)


@pytest.mark.parametrize("library", other_names.CLASSES)
def test_names_of_other_libraries_are_explained(library):
    for name, ours in other_names.CLASSES[library].items():
        assert name not in PUBLIC
        # What is named is there.
        named = re.findall(r"RoFormer\w+|\b(?:load_model|finetune)\b|\w+Settings", ours)
        assert named and set(named) <= PUBLIC, (name, named)
        message = f"^roformer_keras has no {name}: that of {library} is {ours} here$"
        with pytest.raises(AttributeError, match=message):
            getattr(roformer_keras, name)
        # Python replaces the message of an AttributeError here.
        with pytest.raises(ImportError, match=message):
            exec(f"from roformer_keras import {name}")
        assert not hasattr(roformer_keras, name)


TYPED = [
    ("RoFormerBackbon", ": did you mean RoFormerBackbone?"),
    ("load_models", ": did you mean load_model?"),
    ("nothing_like_it", ""),
]


@pytest.mark.parametrize(("name", "hint"), TYPED)
def test_the_nearest_name_is_named(name, hint):
    message = re.escape(f"roformer_keras has no attribute {name!r}{hint}") + "$"
    with pytest.raises(AttributeError, match=message):
        getattr(roformer_keras, name)
    with pytest.raises(ImportError, match=message):
        exec(f"from roformer_keras import {name}")


def test_modules_are_imported_as_ever():
    with pytest.raises(ImportError, match=r"did you mean create_app\?"):
        from roformer_keras.server import creat_app  # noqa: F401
    assert not hasattr(server, "create_apps")
    # No name of the stub, but a module.
    from roformer_keras.base import other_names as module

    assert module is other_names


ARGUMENTS = {
    "return_tensors": "results are NumPy arrays",
    "truncation": "max_length=",
    "add_special_tokens": r"rows have \[CLS\]",
    "skip_special_tokens": "they are left out",
    "return_offsets_mapping": "return_offsets=",
    "text_pair": "pairs=, or second= of encode",
}


@pytest.mark.parametrize("method", ["__call__", "encode", "decode"])
def test_arguments_of_tokenizers_of_transformers_are_explained(method):
    call = getattr(RoFormerTokenizer.from_preset("roformer-char"), method)
    for name, ours in ARGUMENTS.items():
        message = (
            f"^RoFormerTokenizer.{method} has no argument {name}: {name}= of "
            f"Transformers is .*{ours}.* here"
        )
        with pytest.raises(ConfigurationError, match=message):
            call(["今天"], **{name: True})
    with pytest.raises(ConfigurationError, match="has no argument lenght; it has"):
        call(["今天"], lenght=3)
    # As the function itself.
    assert "self" not in inspect.signature(call).parameters
    assert call.__doc__ == getattr(RoFormerTokenizer, method).__doc__
