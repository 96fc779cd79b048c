"""The command line; see `cli.main`."""

from roformer_keras.cli.main import main

__all__ = ["main"]
