"""Work in many processes of Ray: batch inference on Ray Data, and `train` on Ray Train.

Names are imported when they are first used. They are listed in `__init__.pyi`.
"""

from roformer_keras.base.keras_backend import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
