"""The attributes of errors, and how the command line shows them."""

import argparse
import pickle

import pytest

from roformer_keras.base import errors
from roformer_keras.base.errors import (
    ConfigurationError,
    Hint,
    RoFormerError,
    errors_at,
)
from roformer_keras.cli.flags import show_hint

CLASSES = [getattr(errors, name) for name in errors.__all__ if name[0].isupper()]


def test_row_and_hint_are_attributes_and_part_of_the_text():
    message = "a label must be 0 or 1, got 2"
    for kind in CLASSES:
        error = kind(message, row=7, hint="pass classes=")
        # Errors reach other processes whole.
        for one in (error, pickle.loads(pickle.dumps(error))):
            assert type(one) is kind
            assert str(one) == f"{message} in row 7: pass classes="
            assert (one.message, one.row, one.hint) == (message, 7, "pass classes=")
        plain = kind("wrong")
        assert (str(plain), plain.row, plain.hint) == ("wrong", None, None)


def test_long_hints_stand_below_the_message():
    assert str(RoFormerError("wrong", hint="do\nthis")) == "wrong\n\ndo\nthis"


def test_a_place_stands_before_the_message():
    with pytest.raises(ConfigurationError) as caught, errors_at("a.toml"):
        raise ConfigurationError("wrong", row=2, hint="leave it out")
    assert str(caught.value) == "a.toml: wrong in row 2: leave it out"


FIELDS = Hint("by {fields}", fields=["1", "{2}"])


@pytest.mark.parametrize(
    ("hint", "in_python", "shown"),
    [
        ("pass {overwrite:True}", "pass overwrite=True", "pass --overwrite"),
        ("{fields}, x=; {source}; y", "fields=, x=; source=; y", "--fields, x=; y"),
        ("{source:1} or so", "source=1 or so", None),
        ("{size:8}, {size:'4'}", "size=8, size='4'", "--size 8, --size 4"),
        (FIELDS, "by fields=['1', '{2}']", "by --fields '1,{2}'"),
    ],
)
def test_the_command_line_shows_the_flags_that_it_has(hint, in_python, shown):
    parser = argparse.ArgumentParser()
    for flag in ("--overwrite", "--fields", "--size"):
        parser.add_argument(flag)
    hint = hint if isinstance(hint, Hint) else Hint(hint)
    error = pickle.loads(pickle.dumps(RoFormerError("wrong", hint=hint).at("a")))
    assert str(error) == f"a: wrong: {in_python}"
    assert show_hint(error.hint, parser) == shown
    # Other text is as it is.
    assert show_hint("{overwrite:True} fields=", parser) == "{overwrite:True} fields="
