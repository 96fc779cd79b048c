"""The checkpoints that come with the package, each of one layer, for short tests."""

import dataclasses
from pathlib import Path

from roformer_keras.conversion.convert import save
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.conversion.weights import weight_table
from roformer_keras.hub import catalog


def write_one_layer(folder):
    """Writes them without their upper layers."""
    for entry in catalog.SHIPPED:
        write_lowest_layer(entry.path, folder / entry.path.name)


def write_lowest_layer(source, target):
    """Writes a checkpoint zip without its upper layers."""
    with open_checkpoint(source) as checkpoint:
        config = checkpoint.config.replace(num_layers=1)
        names = {row.name for row in weight_table(config)}
        tensors = checkpoint.tensors
        small = dataclasses.replace(
            checkpoint,
            config=config,
            tensors={name: tensors[name] for name in tensors if name in names},
        )
        save(small, target, "bert4keras")


def read_shipped_from(folder, setattr=setattr):
    """The names of these checkpoints then mean the files in a folder.

    Texts are short by default, for a poet of one layer does not end its poems.
    """
    # It brings Keras, which those that only write checkpoints do without.
    from roformer_keras.generation.prompts import DefaultLengths
    from roformer_keras.models import RoFormerCausalLM

    setattr(catalog, "_SHIPPED_FOLDER", Path(folder))
    setattr(RoFormerCausalLM, "default_lengths", DefaultLengths(max_length=32))
