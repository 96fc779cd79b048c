"""Writes the golden files of the tests again, by the real bert4keras.

    python -m tools.reference
    python -m tools.reference layers losses --output FOLDER

Without --output they replace the committed files in tests/; with it they are written
below FOLDER, to compare. Each writer runs in its own process, with bert4keras 0.11.5;
`checkpoints` also runs 0.10.6, and needs half a minute. `python3 tools/dev.py setup`
installs both, and Transformers, which `huggingface` runs. What each file holds is in
the docstring of its writer.

Equal versions of TensorFlow and NumPy on the same processor give the same bytes, except
the one `.meta` in the checkpoints, because Keras orders its nodes differently every
time, and `*-model.h5`: its contents are equal, its layout is not.
"""

import importlib
import sys
from pathlib import Path

from tools import ROOT
from tools.commands import Parser, command
from tools.reference.bert4keras import reference_worker

# In the order in which they depend on each other: the others read the checkpoints.
WRITERS = (
    *("checkpoints", "layers", "losses", "finetuning", "generation", "tokenizer"),
    *("huggingface", "optimizers", "snippets", "interface", "functions", "masks"),
    "relations",
)


@command
def main(arguments=None):
    parser = Parser(__doc__)
    help = f"{', '.join(WRITERS)}; all of them by default"
    parser.add_argument("writers", nargs="*", metavar="WRITER", help=help)
    parser.add_argument("--output", type=Path, default=ROOT / "tests")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.writers if name not in WRITERS]:
        parser.error(f"{unknown} are not among {', '.join(WRITERS)}")
    for name in options.writers or WRITERS:
        print(f"{name} ...", flush=True)
        write(name, options.output)


def write(name, output):
    """Writes the files of one writer below a folder, in a process with bert4keras."""
    with reference_worker("tools.reference.__main__:Writer") as worker:
        worker.call("write", name, str(output))


class Writer:
    """Writes in the process of one writer."""

    def write(self, name, output):
        importlib.import_module(f"tools.reference.{name}").write(Path(output))


if __name__ == "__main__":
    sys.exit(main())
