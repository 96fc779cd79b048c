"""Old names work, and warn once with the new name, where they are called."""

import pytest

from roformer_keras.deprecation import renamed, renamed_arguments
from roformer_keras.errors import ConfigurationError


@renamed_arguments("0.3", maxlen="max_length", topk="top_k")
def write(text, *, max_length=9, top_k=None):
    """Writes."""
    return text, max_length, top_k


def test_an_argument_has_its_old_name_too():
    message = r"^maxlen= of write is now max_length=: .* gone in version 0\.3$"
    with pytest.warns(FutureWarning, match=message) as warned:
        assert write("a", maxlen=2, top_k=3) == ("a", 2, 3)
    assert [one.filename for one in warned] == [__file__]
    with pytest.raises(ConfigurationError, match="got both: leave topk out"):
        write("a", topk=1, top_k=2)
    # Warnings are errors here: the new names have none.
    assert write("a", max_length=1) == ("a", 1, None)
    assert (write.__name__, write.__doc__) == ("write", "Writes.")
    with pytest.raises(TypeError, match="unexpected keyword"):
        write("a", other=1)


def test_a_function_has_its_old_name_too():
    old = renamed(write, "compose", "0.3")
    with pytest.warns(FutureWarning, match="^compose is now write: ") as warned:
        assert old("a", max_length=1) == ("a", 1, None)
    assert [one.filename for one in warned] == [__file__]
    assert old.__name__ == "compose"
