"""Finds the nearest texts by their vectors, and duplicates, and ranks texts.

Names are imported when they are first used; they are listed in `__init__.pyi`.
"""

from roformer_keras.base.keras_backend import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
