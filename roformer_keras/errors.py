"""Everything that this package raises on purpose; see `base.errors`."""

from roformer_keras.base.errors import (
    BackendError,
    CheckpointError,
    ConfigurationError,
    DownloadError,
    OutputError,
    ProcessError,
    ReferenceUnavailable,
    RoFormerError,
    SourceError,
    VocabularyError,
    errors_at,
    printable,
)

__all__ = [
    "BackendError",
    "CheckpointError",
    "ConfigurationError",
    "DownloadError",
    "OutputError",
    "ProcessError",
    "ReferenceUnavailable",
    "RoFormerError",
    "SourceError",
    "VocabularyError",
    "errors_at",
    "printable",
]
