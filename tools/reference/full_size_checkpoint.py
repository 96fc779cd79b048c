"""A checkpoint with random weights at full size, written by the real bert4keras.

    python -m tools.reference.full_size_checkpoint sim.zip
    python -m tools.reference.full_size_checkpoint v2.zip --model roformer_v2

The zip has the layout of a released one: 12 layers, hidden size 768, 12,000 tokens; v1
has the heads of RoFormer-Sim, pooler and masked LM. The weights follow from a seed.
"""

import json
import sys
import tempfile
import zipfile
from pathlib import Path

from tools.commands import Parser, command
from tools.reference.bert4keras import make_config, run_jobs

MEMBERS = (
    "bert_config.json",
    "vocab.txt",
    "bert_model.ckpt.index",
    "bert_model.ckpt.data-00000-of-00001",
)


@command
def main(arguments=None):
    parser = Parser(__doc__)
    parser.add_argument("target", type=Path)
    models = ["roformer", "roformer_v2"]
    parser.add_argument("--model", choices=models, default=models[0])
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), options.model)
        write_zip(Path(folder), options.target)


def write_zip(folder, target, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(target, "w", compression) as archive:
        for member in MEMBERS:
            archive.write(folder / member, f"{target.stem}/{member}")


def write_checkpoint(
    folder: Path,
    model: str = "roformer",
    layers: int = 12,
    hidden: int = 768,
    vocabulary: int = 12000,
    heads: int | None = None,
):
    """Writes `MEMBERS` into a folder; heads have 64 features by default."""
    activation = {"hidden_act": "gelu" if model == "roformer" else "relu"}
    config = make_config(
        vocabulary, layers, hidden, heads or hidden // 64, **activation
    )
    (folder / "bert_config.json").write_text(json.dumps(config))
    tokens = make_vocabulary(vocabulary)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    keywords = {"model": model, "application": "unilm"}
    if model == "roformer":
        keywords["with_pool"] = "linear"
    job = {
        "op": "write",
        "bert_config": str(folder / "bert_config.json"),
        "kwargs": keywords,
        "seed": 1,
        "output": str(folder / "bert_model.ckpt"),
    }
    (answer,) = run_jobs([job])
    if not answer["ok"]:
        raise SystemExit(answer["traceback"])


def make_vocabulary(count: int) -> list[str]:
    """Special tokens with the ids of the released vocabularies, then characters."""
    tokens = [f"[unused{i}]" for i in range(106)]
    tokens += [chr(0x4E00 + i) for i in range(106, count)]
    special = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
    for token_id, token in special.items():
        tokens[token_id] = token
    return tokens[:count]


if __name__ == "__main__":
    sys.exit(main())
