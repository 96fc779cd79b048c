"""Text generation by any model with a key-value cache or a recurrent state."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
