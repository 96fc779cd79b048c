"""The real bert4keras: where it is, processes that can import it, and golden files."""

import importlib.metadata
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from roformer_keras.base.errors import ReferenceUnavailable
from tools import ROOT
from tools.workers import Worker

VERSIONS = ("0.11.5", "0.10.6")
CHECKPOINTS = ROOT / "tests" / "checkpoints"


def require_bert4keras(version: str = VERSIONS[0]) -> Path:
    """The folder that a version of bert4keras is installed in.

    ROFORMER_KERAS_REFERENCE names that of 0.11.5; other versions are next to it.
    """
    folder = ROOT / ".reference" / f"bert4keras-{version}"
    if named := os.environ.get("ROFORMER_KERAS_REFERENCE"):
        folder = Path(named).resolve()
        if version != VERSIONS[0]:
            folder = folder.with_name(f"bert4keras-{version}")
    if not (folder / "bert4keras").is_dir():
        raise ReferenceUnavailable(
            f"bert4keras is not in {folder}: run `python3 tools/dev.py setup`, or set "
            "ROFORMER_KERAS_REFERENCE to its folder"
        )
    return folder


def environment(version: str = VERSIONS[0]) -> dict[str, str]:
    """The environment of a process that can import bert4keras, on the CPU."""
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(require_bert4keras(version)), str(ROOT)]),
        "PYTHONWARNINGS": "ignore",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_KERAS": "1",
        "TF_USE_LEGACY_KERAS": "1",
    }


def reference_worker(target: str, options: Mapping = {}) -> Worker:
    """A worker that can import bert4keras; see `Worker`."""
    return Worker(target, options, environment())


def run_jobs(jobs: Sequence[Mapping], version: str = VERSIONS[0]) -> list[dict]:
    """Answers of `tools.reference.process`; one "write" makes all run in graph mode."""
    graph = any(job["op"] == "write" for job in jobs)
    done = subprocess.run(
        [sys.executable, "-m", "tools.reference.process", *["--graph"] * graph],
        env=environment(version),
        input="".join(f"{json.dumps(job)}\n" for job in jobs),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if len(answers) != len(jobs):
        raise ReferenceUnavailable(f"bert4keras {version} answered {answers[-1:]}")
    return answers


def make_config(vocabulary, layers, hidden, heads, **fields) -> dict:
    """The content of a bert_config.json."""
    config = {
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "type_vocab_size": 2,
        "vocab_size": vocabulary,
    }
    return config | fields


def versions() -> dict[str, str]:
    """Versions of the packages that golden numbers depend on."""
    names = ("bert4keras", "tensorflow", "tf-keras", "numpy")
    return {name: importlib.metadata.version(name) for name in names}


def save_golden(path: Path, metadata: Mapping, arrays: Mapping):
    """Writes arrays as `.npz`, with `metadata` and the versions as JSON among them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = json.dumps({"versions": versions(), **metadata}, ensure_ascii=False)
    np.savez_compressed(path, metadata=metadata, **arrays)


def save_json(path: Path, value):
    """Writes JSON without spaces."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, separators=(",", ":"))
    path.write_text(f"{text}\n", encoding="utf-8")


def unzip(stem: str, folder: Path) -> Path:
    """Extracts a checkpoint of the tests; returns the folder of its files."""
    with zipfile.ZipFile(CHECKPOINTS / f"{stem}.zip") as archive:
        archive.extractall(folder)
    return folder / stem


# In the process that can import bert4keras:


def build_model(folder: Path, model: str = "roformer", **keywords):
    """bert4keras's model of the checkpoint in a folder."""
    from bert4keras.models import build_transformer_model

    config, checkpoint = folder / "bert_config.json", folder / "bert_model.ckpt"
    return build_transformer_model(
        str(config), str(checkpoint), model=model, **keywords
    )


def make_tokenizer(folder: Path):
    """bert4keras's tokenizer of the vocabulary in a folder."""
    from bert4keras.tokenizers import Tokenizer

    return Tokenizer(str(folder / "vocab.txt"), do_lower_case=True)


def import_optimizers():
    """The module `bert4keras.optimizers`."""
    from bert4keras.backend import keras

    # The real one is written for the optimizers that Keras had before TensorFlow 2.11.
    if legacy := getattr(keras.optimizers.legacy, "Optimizer", None):
        keras.optimizers.Optimizer = legacy
    from bert4keras import optimizers

    return optimizers
