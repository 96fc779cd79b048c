"""Exports models for serving, which then need neither this package nor Keras."""

from roformer_keras.export.generator import check_generator_export, export_generator
from roformer_keras.export.model import check_export, export_model
from roformer_keras.export.runtime import FORMATS, ServedEncoder, load_exported
from roformer_keras.generation.served import ServedGenerator

__all__ = [
    "FORMATS",
    "ServedEncoder",
    "ServedGenerator",
    "check_export",
    "check_generator_export",
    "export_generator",
    "export_model",
    "load_exported",
]
