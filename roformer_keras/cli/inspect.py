"""`roformer-keras inspect`."""

import math
from typing import Any

from roformer_keras.cli.texts import print_json
from roformer_keras.hub.catalog import resolve

EXAMPLES = ("inspect roformer-char", "inspect roformer-sim-char --json")


def run(
    source: str,
    *,
    config: str | None = None,
    vocabulary: str | None = None,
    as_json: bool = False,
) -> None:
    """Show what a checkpoint holds."""
    from roformer_keras.conversion.convert import model_of
    from roformer_keras.conversion.reader import open_checkpoint
    from roformer_keras.text.level import vocabulary_level

    with open_checkpoint(resolve(source), config, vocabulary) as checkpoint:
        tokens = checkpoint.vocabulary
        content: dict[str, Any] = {
            "source": str(source),
            "format": checkpoint.format,
            "model": model_of(checkpoint),
            "heads": list(checkpoint.heads),
            "config": checkpoint.config.to_dict(),
            "vocabulary_size": None if tokens is None else len(tokens),
            "level": None if tokens is None else vocabulary_level(tokens),
            "tensors": {
                name: {"shape": list(tensor.shape), "dtype": tensor.dtype}
                for name, tensor in checkpoint.tensors.items()
            },
            "unexpected": list(checkpoint.unexpected),
            "training_state": list(checkpoint.training_state),
        }
    if as_json:
        print_json(content)
        return
    tensors: dict[str, dict] = content["tensors"]
    fields: dict[str, Any] = content["config"]
    count = sum(math.prod(tensor["shape"]) for tensor in tensors.values())
    print(f"source       {content['source']}")
    print(f"format       {content['format']}")
    kind = fields.get("model_type", "encoder-decoder")
    print(f"model        {content['model']} ({kind})")
    print(f"heads        {', '.join(content['heads']) or 'none'}")
    size, level = content["vocabulary_size"], content["level"]
    print(f"vocabulary   {size or 'none'} {level or ''}")
    print(f"tensors      {len(tensors)}, {count:,} numbers")
    for name, tensor in tensors.items():
        mark = "  unexpected" if name in content["unexpected"] else ""
        print(f"  {name:<60} {tensor['dtype']:<9} {tuple(tensor['shape'])}{mark}")
    if content["training_state"]:
        print(f"ignored      {len(content['training_state'])} of an optimizer")
    print("configuration")
    for name, value in fields.items():
        print(f"  {name:<34} {value}")
