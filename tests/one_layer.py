"""The checkpoints that come with the package, each of one layer, for short tests."""

import dataclasses
import shutil
from pathlib import Path

from roformer_keras.conversion.convert import save
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.conversion.weights import weight_table
from roformer_keras.hub import catalog


def write_one_layer(folder):
    """Writes them without their upper layers.

    But the whole poet: with one layer its poems do not end.
    """
    for entry in catalog.SHIPPED:
        if entry.alias == "roformer-gpt-char":
            shutil.copy(entry.path, folder)
            continue
        with open_checkpoint(entry.path) as checkpoint:
            config = checkpoint.config.replace(num_layers=1)
            kept = {row.name for row in weight_table(config)}
            tensors = checkpoint.tensors
            small = dataclasses.replace(
                checkpoint,
                config=config,
                tensors={name: tensors[name] for name in tensors if name in kept},
            )
            save(small, folder / entry.path.name, "bert4keras")


def read_shipped_from(folder):
    """The names of these checkpoints then mean the files in a folder."""
    catalog._SHIPPED_FOLDER = Path(folder)
