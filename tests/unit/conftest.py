"""The unit tier takes seconds: nothing in it may import a deep learning library."""

import sys
from contextlib import contextmanager

import pytest

REFUSED = {"tensorflow", "keras", "tf_keras", "jax", "torch"}


class Refusal:
    """A finder of modules that finds none and refuses some."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise AssertionError(f"the unit tier must not import {name}")


@contextmanager
def refusing():
    sys.meta_path.insert(0, Refusal)
    try:
        yield
    finally:
        sys.meta_path.remove(Refusal)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    with refusing():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with refusing():
        return (yield)
