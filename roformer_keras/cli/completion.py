"""`roformer-keras completion`."""

from typing import Literal

EXAMPLES = ("completion bash", "completion fish")


def run(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print what a shell needs to complete commands, flags and their choices.

    Append it to ~/.bashrc or ~/.zshrc, or write it to
    ~/.config/fish/completions/roformer-keras.fish.

    Args:
        shell: that is to complete.
    """
    import argcomplete

    print(argcomplete.shellcode(["roformer-keras"], shell=shell))
