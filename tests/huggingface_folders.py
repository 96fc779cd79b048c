"""Small folders that Transformers wrote, and changed copies of them."""

from pathlib import Path

from common import read_json, write_file
from safetensors.numpy import load_file, save_file
from sources import copied

FOLDER = Path(__file__).parent / "data" / "huggingface"
WORDS = "roformer.embeddings.word_embeddings.weight"


def changed(name, folder, config=None, tensors=None):
    """A copy of a golden folder with other fields and tensors; None removes one."""
    source = copied(FOLDER / name, folder)
    path = source / "config.json"
    fields = {**read_json(path), **(config or {})}
    write_file(path, {k: v for k, v in fields.items() if v is not ...})
    if tensors:
        path = source / "model.safetensors"
        merged = {**load_file(path), **tensors}
        save_file({k: v for k, v in merged.items() if v is not None}, path)
    return source
