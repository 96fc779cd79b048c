"""Finds the nearest texts and duplicates by vectors, and ranks texts.

Names are imported at first use; `__init__.pyi` lists them.
"""

from roformer_keras.base.keras_backend import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
