"""`roformer-keras completion`."""

from typing import Literal

from roformer_keras.hub.catalog import CATALOG, SHIPPED

EXAMPLES = ("completion bash", "completion fish")


def run(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print what a shell needs to complete commands, flags, choices and checkpoints.

    Append it to ~/.bashrc or ~/.zshrc, or write it to
    ~/.config/fish/completions/roformer-keras.fish.

    Args:
        shell: that is to complete.
    """
    import argcomplete

    print(argcomplete.shellcode(["roformer-keras"], shell=shell))


def complete_released(prefix: str, **context) -> list[str]:
    """Names of checkpoints that can be downloaded, for `argcomplete`."""
    return [entry.name for entry in CATALOG if entry.name.startswith(prefix)]


def complete_source(prefix: str, **context) -> list[str]:
    """Names of checkpoints, and files, for `argcomplete`."""
    from argcomplete.completers import FilesCompleter

    shipped = [entry.alias for entry in SHIPPED if entry.alias.startswith(prefix)]
    return [*shipped, *complete_released(prefix), *FilesCompleter()(prefix)]
