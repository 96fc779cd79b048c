"""Models to fine-tune: texts in, answers out.

Names are imported when they are first used. They are listed in `__init__.pyi`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
