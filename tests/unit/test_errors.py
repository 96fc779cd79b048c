"""The attributes of errors, and how the command line shows them."""

import argparse
import pickle

import pytest

from roformer_keras import errors
from roformer_keras.cli.flags import show_flags
from roformer_keras.errors import ConfigurationError, RoFormerError, errors_at

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


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        ("pass overwrite=True to replace it", "pass --overwrite to replace it"),
        ("name them with fields=, such as 'x'", "name them with --fields, such as 'x'"),
        ("leave out fields=, or source=", "leave out --fields, or source="),
        ("fields=1,2 takes columns", "--fields 1,2 takes columns"),
        ("pass batch_size=8: it fits", "pass --batch-size 8: it fits"),
        ("set KERAS_BACKEND=tensorflow", "set KERAS_BACKEND=tensorflow"),
    ],
)
def test_the_command_line_shows_the_flags_that_it_has(hint, shown):
    parser = argparse.ArgumentParser()
    for flag in ("--overwrite", "--fields", "--batch-size"):
        parser.add_argument(flag)
    assert show_flags(hint, parser) == shown
