"""What scripts share that write golden files in a process with bert4keras."""

import argparse
import importlib.metadata
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from full_size_checkpoint import (
    BERT4KERAS,
    bert4keras_environment,
    check_bert4keras,
)

__all__ = ["versions", "write_with_bert4keras"]


def versions() -> dict[str, str]:
    """Of what golden numbers depend on."""
    names = ("bert4keras", "tensorflow", "tf-keras", "numpy")
    return {name: importlib.metadata.version(name) for name in names}


def write_with_bert4keras(
    script, description: str, output: Path, write: Callable[[Path], None]
):
    """The command line of a script, which starts itself again beside bert4keras.

    Args:
        script: path of it.
        description: its docstring.
        output: where golden files go, unless `--output` says otherwise.
        write: writes them, given where to; called in the process with bert4keras.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=output)
    # Given by a script to itself.
    parser.add_argument("--with-bert4keras", action="store_true", help="internal")
    options = parser.parse_args()
    if options.with_bert4keras:
        write(options.output)
        return
    check_bert4keras(BERT4KERAS)
    environment = {
        **bert4keras_environment(),
        "PYTHONWARNINGS": "ignore",
        # Golden numbers are a processor's.
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, script, "--with-bert4keras", "--output"]
    done = subprocess.run([*command, options.output], env=environment, check=False)
    sys.exit(done.returncode)
