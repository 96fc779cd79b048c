"""`roformer-keras inspect`."""

import math
from typing import Any

from roformer_keras.base.errors import printable
from roformer_keras.base.task_registry import TASKS
from roformer_keras.cli.texts import print_json
from roformer_keras.hub.catalog import resolve

EXAMPLES = (
    "inspect roformer-char",
    "inspect roformer-char --tensors",
    "inspect roformer-sim-char --json",
)


def run(
    source: str,
    *,
    config: str | None = None,
    vocabulary: str | None = None,
    tensors: bool = False,
    as_json: bool = False,
) -> None:
    """Show what a checkpoint holds.

    Args:
        tensors: list every tensor and every field of the configuration
    """
    from roformer_keras.conversion.checkpoint import (
        check_saved_tokenizer,
        check_shapes,
        check_size,
        model_of,
    )
    from roformer_keras.conversion.reader import open_checkpoint
    from roformer_keras.io.vocabulary import vocabulary_level

    with open_checkpoint(resolve(source), config, vocabulary) as checkpoint:
        check_shapes(checkpoint)
        check_size(checkpoint, checkpoint.config)
        check_saved_tokenizer(checkpoint)
        tokens = checkpoint.vocabulary
        model = model_of(checkpoint)
        tasks = [name for name, one in TASKS.items() if one.class_name == model]
        content: dict[str, Any] = {
            "source": str(source),
            "format": checkpoint.format,
            "model": model,
            "heads": [*checkpoint.heads, *tasks],
            "config": checkpoint.config.to_dict(),
            "vocabulary_size": None if tokens is None else len(tokens),
            "level": None if tokens is None else vocabulary_level(tokens),
            "tensors": {
                name: {"shape": list(tensor.shape), "dtype": tensor.dtype}
                for name, tensor in checkpoint.tensors.items()
            },
            "unexpected": list(checkpoint.unexpected),
            "training_state": list(checkpoint.training_state),
            "left_out": list(checkpoint.left_out),
        }
    if as_json:
        print_json(content)
        return
    found: dict[str, dict] = content["tensors"]
    fields: dict[str, Any] = content["config"]
    count = sum(math.prod(tensor["shape"]) for tensor in found.values())
    dtypes = ", ".join(sorted({tensor["dtype"] for tensor in found.values()}))
    print(f"source       {content['source']}")
    print(f"format       {content['format']}")
    print(f"model        {content['model']} ({fields['model_type']})")
    size = ("num_layers", "hidden_dim", "num_heads")
    print(f"size         {' x '.join(str(fields[name]) for name in size)} heads")
    print(f"heads        {', '.join(content['heads']) or 'none'}")
    tokens_of, level = content["vocabulary_size"], content["level"]
    print(f"vocabulary   {tokens_of or 'none'} {level or ''}")
    print(f"tensors      {len(found)}, {count:,} numbers, {dtypes}")
    unexpected = dict.fromkeys(content["unexpected"])
    for name in found if tensors else unexpected:
        tensor = found[name]
        mark = "  unexpected" if name in unexpected else ""
        shape = tuple(tensor["shape"])
        print(f"  {printable(name):<60} {tensor['dtype']:<9} {shape}{mark}")
    if content["training_state"]:
        print(f"ignored      {len(content['training_state'])} of an optimizer")
    if content["left_out"]:
        print(f"left out     {len(content['left_out'])} of a head")
    if tensors:
        print("configuration")
        for name, value in fields.items():
            print(f"  {name:<34} {value}")
