"""The Chinese RoFormer family in Keras 3, with bert4keras's numbers.

Names are imported when they are first used, so that `import roformer_keras` and the
command line's `--help` do not wait for a backend. They are listed in `__init__.pyi`.
"""

from roformer_keras.backend import lazy_names, prefer_installed

prefer_installed()

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
