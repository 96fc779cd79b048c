"""A full-size checkpoint of random weights, written by the real bert4keras.

    python tools/full_size_checkpoint.py sim.zip
    python tools/full_size_checkpoint.py v2.zip --model roformer_v2

It has the layout of a released zip: 12 layers, hidden size 768, 12,000 tokens; v1 with
the heads of RoFormer-Sim, pooler and masked LM. Weights are drawn from a seed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "roformer_keras" / "verification" / "reference_process.py"
BERT4KERAS = Path(
    os.environ.get(
        "ROFORMER_KERAS_REFERENCE", ROOT / ".reference" / "bert4keras-0.11.5"
    )
)
MEMBERS = (
    "bert_config.json",
    "vocab.txt",
    "bert_model.ckpt.index",
    "bert_model.ckpt.data-00000-of-00001",
)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument(
        "--model", choices=["roformer", "roformer_v2"], default="roformer"
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=12000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_checkpoint(
            folder, options.model, options.layers, options.hidden, options.vocabulary
        )
        with zipfile.ZipFile(options.target, "w") as archive:
            for member in MEMBERS:
                archive.write(folder / member, f"{options.target.stem}/{member}")


def write_checkpoint(folder, model, layers, hidden, vocabulary):
    """Writes `MEMBERS` into a folder."""
    config = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden,
        "hidden_act": "gelu" if model == "roformer" else "relu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "type_vocab_size": 2,
    }
    (folder / "bert_config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("".join(f"{t}\n" for t in tokens(vocabulary)))
    kwargs = {"model": model, "application": "unilm"}
    if model == "roformer":
        kwargs["with_pool"] = "linear"
    job = {
        "op": "write",
        "bert_config": str(folder / "bert_config.json"),
        "kwargs": kwargs,
        "seed": 1,
        "output": str(folder / "bert_model.ckpt"),
    }
    request = folder / "request.json"
    request.write_text(json.dumps({"jobs": [job]}))
    subprocess.run(
        [sys.executable, SCRIPT, request],
        env=bert4keras_environment(),
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    request.unlink()


def tokens(count):
    """Special tokens where the released vocabularies have them, then characters."""
    specials = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
    for number in range(count):
        if number in specials:
            yield specials[number]
        elif number < 106:
            yield f"[unused{number}]"
        else:
            yield chr(0x4E00 + number)


def check_bert4keras(folder):
    """Refuses, before any work, a folder that does not hold the real bert4keras."""
    if not (folder / "bert4keras").is_dir():
        raise SystemExit(
            f"bert4keras is not in {folder}; run `python3 tools/dev.py setup`, or "
            "set ROFORMER_KERAS_REFERENCE"
        )


def bert4keras_environment(folder=BERT4KERAS):
    """The environment of a process in which bert4keras can be imported."""
    return {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_KERAS": "1",
        "TF_USE_LEGACY_KERAS": "1",
        "PYTHONPATH": str(folder),
    }


if __name__ == "__main__":
    main()
