"""Targets that resume what an earlier process left, which may be damaged."""

import hashlib
import json
import random
import struct
from pathlib import Path, PurePosixPath

from roformer_keras.hub.download import download
from roformer_keras.io.journal import run_metadata
from roformer_keras.jobs.output import open_output
from tools.fuzz import seeds
from tools.fuzz.formats import Files, mutate_file
from tools.fuzz.target import Target, expect

_NAME = "chinese_roformer-char_L-6_H-384_A-6"


def _download(folder: Path):
    """Resumes a download by files that another process may have left or changed."""
    # Nothing listens there.
    options = {"base_url": "http://127.0.0.1:9", "retries": 0, "wait": 0, "verbose": 0}
    download(_NAME, folder, timeout=1, **options)


def _downloads(_):
    """Parts of a zip, the whole one, and the whole one that was not moved yet."""
    content = seeds.SMALL.read_bytes()
    digest = f"{hashlib.sha256(content).hexdigest()}  {_NAME}.zip\n".encode()

    def partial(content):
        settings = {"validator": '"x"', "length": len(content)}
        record = json.dumps({"settings": settings, "inputs": {}}).encode()
        return {f"{_NAME}.zip.partial": content, f"{_NAME}.zip.partial.json": record}

    whole = {f"{_NAME}.zip": content, f"{_NAME}.zip.sha256": digest}
    return [partial(content[:200]), whole, partial(content)]


def _mutate_download(draw: random.Random, files: Files) -> Files:
    name = draw.choice(sorted(files))
    kind = PurePosixPath(name.replace(".sha256", ".txt")).suffix
    kind = ".zip" if kind == ".partial" else kind
    return {**files, name: mutate_file(draw, f"x{kind}", files[name])}


# === Jobs and trainings ===

_METADATA = run_metadata({"seed": 1}, {"source": [["a", 1, 2]]})
_TEXT = b'{"text": "1"}\n{"text": "2"}\n'


def _jobs(_):
    progress = {"done": 2, "seed": 1, "bytes": len(_TEXT)}
    record = json.dumps({**_METADATA, **progress}).encode()
    return [{"x.jsonl.job.json": record, "x.jsonl.partial": _TEXT}]


def _resume_job(folder: Path):
    with open_output(str(folder / "x.jsonl"), _METADATA, 1) as job:
        done = job.done
        job.append(b"end\n", 1)
    lines = (folder / "x.jsonl").read_bytes()
    expect(lines.endswith(b"end\n"), "the output is complete", lines)
    expect(done >= 0, "what is done is counted", done)


def _trainings(_):
    metadata = {"done": 2, "log": 30, "paths": {"model": ["w"]}}
    header = {
        "__metadata__": {"metadata": json.dumps(metadata)},
        "model/0": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    }
    text = json.dumps(header).encode()
    state = struct.pack("<Q", len(text)) + text + struct.pack("<2f", 1, 2)
    log = b"done,loss\n1,0.5\n2,0.25\n3,0.1\n"
    record = json.dumps(_METADATA).encode()
    return [{"settings.json": record, "state.safetensors": state, "log.csv": log}]


def _resume_training(folder: Path):
    import keras
    import numpy as np

    from roformer_keras.io.training_folder import LOG, STATE, is_new_run
    from roformer_keras.training.log import read_log
    from roformer_keras.training.state import load_metadata, load_variables

    if not is_new_run(folder, _METADATA, overwrite=False):
        load_metadata(folder / STATE)
        weight = keras.Variable(np.zeros(2, "float32"), name="w")
        load_variables(folder / STATE, {"model": [weight]})
    if (folder / LOG).exists():
        read_log(folder / LOG)


def _finetunings(made):
    settings = {"task": "text-classification", "train": "x.tsv"}
    record = json.dumps(run_metadata(settings, {})).encode()
    (files,) = seeds.presets(made, "RoFormerTextClassifier")
    preset = {f"preset/{name}": data for name, data in files.items()}
    return [{"settings.json": record, **preset}]


def _load_finetuned(folder: Path):
    import keras

    from roformer_keras import load_finetuned

    keras.backend.clear_session()
    load_finetuned(folder)


TARGETS = {
    "download": Target(_downloads, _download, _mutate_download),
    "job": Target(_jobs, _resume_job),
    "training": Target(_trainings, _resume_training, needs_keras=True),
    "finetuned": Target(
        _finetunings, _load_finetuned, seconds=60, needs_keras=True, needs_made=True
    ),
}
