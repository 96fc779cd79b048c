"""The unit tier takes seconds: nothing in it may import a deep learning library."""

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

# It looks for a backend, without an import of one.
import roformer_keras  # noqa: F401

REFUSED = {"tensorflow", "keras", "tf_keras", "jax", "torch"}


class Refusal:
    """A finder of modules that finds none and refuses some."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise AssertionError(f"the unit tier must not import {name}")


@contextmanager
def refusing(path):
    """Refuses the imports while something in this folder runs."""
    # pytest-xdist calls the hooks of every conftest for every test.
    is_unit = Path(__file__).parent in path.parents
    if is_unit:
        sys.meta_path.insert(0, Refusal)
    try:
        yield
    finally:
        if is_unit:
            sys.meta_path.remove(Refusal)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    with refusing(collector.path):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with refusing(item.path):
        return (yield)
