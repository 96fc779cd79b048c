"""Everything this package raises on purpose, as one tree.

    RoFormerError
    ├── ConfigurationError    a field or an option breaks a rule
    ├── VocabularyError       a vocabulary, or a token that is not in it
    ├── SourceError           a path or an archive that cannot be used
    ├── CheckpointError       tensors: missing, unexpected, mis-shaped, corrupt
    ├── OutputError           a result that could not be written
    ├── DownloadError         a file that could not be fetched whole
    └── ReferenceUnavailable  the real bert4keras cannot be run here

Each also derives from the built-in exception a caller would expect, so that
`except ValueError` keeps its meaning. `exit_code` is what the command line returns.
"""

__all__ = [
    "CheckpointError",
    "ConfigurationError",
    "DownloadError",
    "OutputError",
    "ReferenceUnavailable",
    "RoFormerError",
    "SourceError",
    "VocabularyError",
]


class RoFormerError(Exception):
    """Base of every error that this package raises on purpose."""

    exit_code = 2


class ConfigurationError(RoFormerError, ValueError):
    """A configuration field or an option breaks a rule."""


class VocabularyError(RoFormerError, ValueError):
    """A vocabulary cannot be used, or does not fit what it is used with."""


class SourceError(RoFormerError, OSError):
    """A source is absent, unsafe, or not something weights can be read from."""


class CheckpointError(RoFormerError, ValueError):
    """A tensor is missing, unexpected, mis-shaped or corrupt."""

    exit_code = 3


class OutputError(RoFormerError, OSError):
    """A result could not be written; nothing is left under its final name."""

    exit_code = 4


class DownloadError(RoFormerError, OSError):
    """A file could not be fetched whole."""

    exit_code = 5


class ReferenceUnavailable(RoFormerError, RuntimeError):
    """The real bert4keras cannot be run in this environment."""

    exit_code = 6
