"""The object graph in TensorFlow's checkpoints of objects, and in SavedModels.

Source: tensorflow/core/protobuf/trackable_object_graph.proto.
"""

import re
from collections.abc import Sequence

from roformer_keras.io.protobuf import Malformed, read_message

_LAYER = re.compile(r"layer_with_weights-\d+")
# Attributes that are lists, or hold layers.
_OTHERS = re.compile(r"\d+|layer(_with_weights)?-\d+|layers|\w*variables|keras_api")
# A model and its optimizer have some thousands of objects.
_MAX_NODES = 100_000


def parse_object_graph(data: bytes) -> dict[str, tuple[str, str]]:
    """The name of each variable, and the attributes that lead to it from its layer."""
    _, parts = read_message(data)
    if len(parts[1]) > _MAX_NODES:
        raise Malformed(f"it has more than {_MAX_NODES:,} objects")
    nodes = [read_message(node)[1] for node in parts[1]]
    names: dict[str, str] = {}
    # The keys of each object; a variable has one.
    keys: list[list[str]] = []
    for node in nodes:
        keys.append([])
        for attribute in node[2]:
            _, fields = read_message(attribute)
            if fields[2] and fields[3]:
                keys[-1].append(fields[3][-1].decode())
                names[keys[-1][-1]] = fields[2][-1].decode()
    paths = _paths_in_layers([_read_children(node, len(nodes)) for node in nodes])
    by_key = {key: path for number, path in paths.items() for key in keys[number]}
    return {key: (name, by_key.get(key, "")) for key, name in names.items()}


def _read_children(node: dict[int, list[bytes]], count: int) -> dict[str, int]:
    """Name -> number of each child of a TrackableObject."""
    children = {}
    for child in node[1]:
        numbers, fields = read_message(child)
        if numbers[1] >= count or not fields[2]:
            raise Malformed("an object refers to none")
        children[fields[2][-1].decode()] = numbers[1]
    return children


def _paths_in_layers(children: Sequence[dict[str, int]]) -> dict[int, str]:
    """For each object in a layer, the names that lead to it from the layer."""
    layers = {
        number
        for attributes in children
        for name, number in attributes.items()
        if _LAYER.fullmatch(name)
    }
    paths: dict[int, str] = {}
    # A layer holds its variables directly, or one layer further down. Each object is
    # visited once, so that a hostile graph takes no longer than its file.
    visited = set(layers)
    for layer in sorted(layers):
        for name, number in children[layer].items():
            if number in visited or _OTHERS.fullmatch(name):
                continue
            visited.add(number)
            paths.setdefault(number, name)
            for child_name, child in children[number].items():
                if not _OTHERS.fullmatch(child_name):
                    paths.setdefault(child, f"{name}/{child_name}")
    return paths
