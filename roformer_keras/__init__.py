"""The Chinese RoFormer family in Keras 3, with bert4keras's numbers.

Names are imported when they are first used, so that `import roformer_keras` and the
command line's `--help` do not wait for a backend. They are listed in `__init__.pyi`.
"""

from typing import Any

from roformer_keras.base.keras_backend import lazy_names, prefer_installed

prefer_installed()

_load_name, __dir__, __all__ = lazy_names(__name__, __file__)


def __getattr__(name: str) -> Any:
    """A public name, or the version, which takes milliseconds to look up."""
    if name == "__version__":
        from roformer_keras.base.extras import installed_version

        return installed_version()
    return _load_name(name)
