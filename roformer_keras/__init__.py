"""The Chinese RoFormer family in Keras 3, with bert4keras's numbers.

Names are imported when they are first used, so that `import roformer_keras` and the
command line's `--help` do not wait for a backend. They are listed in `__init__.pyi`.
"""

import sys

import lazy_loader

from roformer_keras.backend import BackendHook

if "keras" not in sys.modules:
    sys.meta_path.insert(0, BackendHook())

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
