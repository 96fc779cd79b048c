"""Rounds a trained checkpoint to the size in which the repository ships it.

    python -m tools.reference.round_checkpoint runs/char/NAME.zip checkpoints/NAME.zip

Weights are rounded to bfloat16 and stored as float32, as bert4keras expects. Half of
their bits are zeros then, which compression removes.
"""

import dataclasses
import sys
import zipfile
from pathlib import Path

import ml_dtypes

from roformer_keras.conversion.convert import prepare
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.conversion.writer import FORMATS
from roformer_keras.io.atomic import replacing
from tools.commands import Parser, command


@command
def main(arguments=None):
    parser = Parser(__doc__)
    parser.add_argument("source")
    parser.add_argument("target", type=Path)
    parser.add_argument("--overwrite", action="store_true")
    options = parser.parse_args(arguments)
    round_checkpoint(options.source, options.target, options.overwrite)
    print(f"{options.target}  {options.target.stat().st_size / 1e6:.1f} MB")


def round_checkpoint(source, target, overwrite=False):
    """Writes the zip; it appears whole or not at all."""

    def rounded(tensor):
        """The tensor, rounded when it is read."""
        return dataclasses.replace(
            tensor,
            read=lambda: tensor.read().astype(ml_dtypes.bfloat16).astype("float32"),
        )

    with replacing(target, overwrite) as partial:
        with open_checkpoint(source) as checkpoint:
            ready = prepare(checkpoint)
            tensors = {name: rounded(one) for name, one in ready.tensors.items()}
            ready = dataclasses.replace(ready, tensors=tensors)
            FORMATS["bert4keras"](partial, ready, "float32", lambda: None)
        deflate(partial)


def deflate(path):
    """Compresses the members of a zip, in place."""
    with zipfile.ZipFile(path) as archive:
        members = [(member, archive.read(member)) for member in archive.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for member, content in members:
            info = zipfile.ZipInfo(member.filename, member.date_time)
            archive.writestr(info, content, zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":
    sys.exit(main())
