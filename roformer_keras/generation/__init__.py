"""Text generation by any model with a key-value cache or a recurrent state."""

from roformer_keras.base.keras_backend import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
