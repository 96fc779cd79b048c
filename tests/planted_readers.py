"""Readers of this package with planted faults, which fuzzing by coverage must find."""

import dataclasses
import pickletools
from contextlib import ExitStack
from unittest import mock

import h5py

from roformer_keras.conversion import reader
from roformer_keras.conversion.weights import weight_table
from roformer_keras.io import hdf5, protobuf, pytorch, tensor_bundle
from tools.fuzz.readers import TARGETS as READERS
from tools.fuzz.readers import read_all


def _unchecked_layers(label, found, config):
    """A configuration may have more layers than there are tensors."""
    return weight_table(config)


def _varint_without_end(data, at):
    """As `read_varint`, which does not see where the bytes end."""
    value, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 and value < 2**64:
            return value, at
        shift += 7
        if shift > 63:
            raise protobuf.Malformed("a number is longer than 64 bits")


def _groups_without_memory(blob, file):
    """As `_check_contents`, which follows a group that holds itself forever."""
    pending = [file]
    while pending:
        group = pending.pop()
        for name in group:
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                raise hdf5._lies_elsewhere(name)
            if isinstance(link, h5py.HardLink):
                node = group[name]
                if isinstance(node, h5py.Group):
                    pending.append(node)
                elif isinstance(node, h5py.Dataset):
                    hdf5._check_storage(name, node)


def _quadratic_opcodes(stream):
    """As `_check_opcodes`, which counts what came before at each operation."""
    names = []
    for opcode, _, _ in pickletools.genops(stream):
        names.append(opcode.name)
        if opcode.name not in pytorch._OPCODES:
            raise pytorch._Refused(f"asks for {opcode.name}")
        counts = [sum(name == one for name in names) for one in ("MARK", "PUT", "GET")]
        if max(counts) > 10**9:
            raise pytorch._Refused("asks for too much")


def _unchecked_storage(what, dataset):
    """A dataset may declare more numbers than it stores."""


def _planted(name, patches):
    """A target that reads all tensors; `patches` are functions of its reader."""

    def check(folder):
        with ExitStack() as stack:
            for holder, attribute, function in patches:
                stack.enter_context(mock.patch.object(holder, attribute, function))
            return read(folder)

    read = READERS[name].check if name == "pickle" else read_all
    return dataclasses.replace(READERS[name], check=check)


_PLANTS = {
    "size": ("tensor-bundle", (reader, "_table", _unchecked_layers)),
    "index": (
        "tensor-bundle",
        (protobuf, "read_varint", _varint_without_end),
        (tensor_bundle, "read_varint", _varint_without_end),
    ),
    "endless": ("hdf5", (hdf5, "_check_contents", _groups_without_memory)),
    "quadratic": ("pickle", (pytorch, "_check_opcodes", _quadratic_opcodes)),
    "allocation": ("hdf5", (hdf5, "_check_storage", _unchecked_storage)),
}
# What is said of each.
FAULTS = {
    "size": ("MemoryError: ", "TooSlow: "),
    "index": "IndexError: ",
    "endless": "TooSlow: ",
    "quadratic": "TooSlow: ",
    "allocation": "MemoryError: ",
}
TARGETS = {
    name: _planted(target, patches) for name, (target, *patches) in _PLANTS.items()
}
