"""The attributes of errors, and how the command line shows them."""

import argparse
import pickle

import pytest

from roformer_keras import errors
from roformer_keras.cli.flags import show_flags
from roformer_keras.errors import ConfigurationError, RoFormerError, errors_at

CLASSES = [getattr(errors, name) for name in errors.__all__ if name[0].isupper()]


@pytest.mark.parametrize("kind", CLASSES)
def test_row_and_hint_are_attributes_and_part_of_the_text(kind):
    error = kind("a label must be 0 or 1, got 2", row=7, hint="pass classes=")
    assert str(error) == "a label must be 0 or 1, got 2 in row 7: pass classes="
    assert (error.row, error.hint) == (7, "pass classes=")
    assert error.message == "a label must be 0 or 1, got 2"
    plain = kind("wrong")
    assert (str(plain), plain.row, plain.hint) == ("wrong", None, None)


@pytest.mark.parametrize("kind", CLASSES)
def test_errors_reach_other_processes_whole(kind):
    error = pickle.loads(pickle.dumps(kind("wrong", row=1, hint="leave it out")))
    assert type(error) is kind
    assert (error.message, error.row, error.hint) == ("wrong", 1, "leave it out")
    assert str(error) == "wrong in row 1: leave it out"


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
