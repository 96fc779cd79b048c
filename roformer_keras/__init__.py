"""The Chinese RoFormer family in Keras 3, with bert4keras's numbers.

Names are imported when they are first used, so that `import roformer_keras` and the
command line's `--help` do not wait for a backend.
"""

import importlib

_EXPORTS = {
    "CATALOG": "roformer_keras.conversion.catalog",
    "RoFormerBackbone": "roformer_keras.models",
    "RoFormerCausalLM": "roformer_keras.models",
    "RoFormerConfig": "roformer_keras.config",
    "RoFormerError": "roformer_keras.errors",
    "RoFormerMaskedLM": "roformer_keras.models",
    "RoFormerSim": "roformer_keras.models",
    "RoFormerTokenizer": "roformer_keras.tokenizer",
    "convert": "roformer_keras.conversion.convert",
    "download": "roformer_keras.conversion.download",
    "verify": "roformer_keras.verification.verify",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name):
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
