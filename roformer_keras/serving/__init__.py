"""Models for serving, where neither this package nor Keras need be installed."""

from roformer_keras.serving.export import check_export, export_model
from roformer_keras.serving.runtime import FORMATS, ServedEncoder, load_exported

__all__ = [
    "FORMATS",
    "ServedEncoder",
    "check_export",
    "export_model",
    "load_exported",
]
