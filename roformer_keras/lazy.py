"""Names of a package that are imported when they are first used."""

import importlib
import sys
from collections.abc import Callable, Mapping

__all__ = ["lazily"]


def lazily(package: str, modules: Mapping[str, str]) -> tuple[Callable, Callable]:
    """`__getattr__` and `__dir__` of a package.

    Args:
        package: str. Its `__name__`.
        modules: dict of public name to the module that has it.
    """

    def get(name):
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names():
        return sorted({*vars(sys.modules[package]), *modules})

    return get, names
