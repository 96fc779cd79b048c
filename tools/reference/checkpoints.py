"""tests/checkpoints: small checkpoints and their outputs by the real bert4keras.

bert4keras 0.11.5 writes the zips and what users save themselves; 0.11.5 and 0.10.6 each
compute `golden-VERSION.npz`. tests/checkpoints/README.md says what each file holds.
"""

import base64
import json
import marshal
import shutil
import string
import tempfile
import tomllib
import zipfile
from pathlib import Path

import h5py
import numpy as np

from tools.reference.bert4keras import VERSIONS, make_config, run_jobs

ZIP_TIME = (2021, 5, 1, 0, 0, 0)

ALPHANUMERIC = "0123456789abcdefghijklmnopqrstuvwxyz"
_TEXT = Path(__file__).with_name("vocabulary.txt").read_text(encoding="utf-8")
ENGLISH, CHINESE_PUNCTUATION, CHARACTERS, WORDS = _TEXT.splitlines()
CHARACTER_VOCABULARY = [
    "[PAD]",
    *(f"[unused{i}]" for i in range(1, 100)),
    *("[UNK]", "[CLS]", "[SEP]", "[MASK]", "<S>", "<T>"),
    *string.punctuation,
    *ALPHANUMERIC,
    *(f"##{character}" for character in ALPHANUMERIC),
    *ENGLISH.split(),
    *CHINESE_PUNCTUATION,
    *dict.fromkeys(CHARACTERS),
]
VOCABULARIES = {
    "character": CHARACTER_VOCABULARY,
    "word": [*CHARACTER_VOCABULARY, *WORDS.split()],
    "small": CHARACTER_VOCABULARY[:240] + list(dict.fromkeys(CHARACTERS))[:20],
}

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
# What `keep_tokens = "kept"` means.
_KEPT = [0, 100, 101, 102, 103, *range(250, 200, -1)]
STEMS = {row["name"]: stem for stem, row in _TABLE["zips"].items()}


def _checkpoint(row):
    vocabulary = VOCABULARIES[row["vocabulary"]]
    fields = (_TABLE["unread"] if row.get("unread") else {}) | row.get("config", {})
    config = make_config(len(vocabulary), *row["sizes"], **fields)
    return {**row, "vocabulary": vocabulary, "config": config}


CHECKPOINTS = {name: _checkpoint(row) for name, row in _TABLE["zips"].items()}
# Name -> op, stem of a zip, wrap, keywords.
SAVED = {
    name: (op, STEMS[zip], wrap or None, keywords)
    for name, (op, zip, wrap, keywords) in _TABLE["saved"].items()
}
# Name -> stem of a zip or name of a saved file, and keywords.
CASES = {
    name: (
        STEMS.get(source, source),
        {k: _KEPT if value == "kept" else value for k, value in keywords.items()},
    )
    for name, (source, keywords) in _TABLE["cases"].items()
}

# Segment ids of the main batch: encoder pairs, UniLM, ones that go back to zero.
_SEGMENTS = [
    [0, 0, 0, 0, 0, 1, 1, 1, 1],
    [0, 0, 1, 1, 1, 1],
    [0, 1, 0, 0, 1, 0, 1],
    [0, 1],
    [0],
    [0, 0, 0, 1, 1],
]


def batches(vocabulary_size, rng):
    """Padded batches: unequal lengths, zeros in the middle and first, lengths 1, 2."""
    low = 104 if vocabulary_size > 110 else 1
    main = np.zeros((len(_SEGMENTS), 9), "int32")
    segments = np.zeros_like(main)
    for row, ids in enumerate(_SEGMENTS):
        main[row, : len(ids)] = rng.integers(low, vocabulary_size, len(ids))
        segments[row, : len(ids)] = ids
    main[2, [2, 4]] = 0
    main[5, 0] = 0
    short = rng.integers(low, vocabulary_size, (2, 2), "int32")
    short[1, 1] = 0
    return {
        "main": {"token_ids": main, "segment_ids": segments},
        "length-2": {"token_ids": short, "segment_ids": np.int32([[0, 1], [0, 0]])},
        "length-1": {"token_ids": short[:, :1], "segment_ids": np.int32([[0], [1]])},
    }


def write(output):
    output = output / "checkpoints"
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        written = scratch / "output"
        written.mkdir()
        write_checkpoints(scratch, written)
        write_saved(scratch, written / "saved")
        for version in VERSIONS:
            write_golden(scratch, written, version)
        for path in [*output.glob("*.zip"), *output.glob("golden-*.npz")]:
            path.unlink()
        shutil.rmtree(output / "saved", ignore_errors=True)
        shutil.copytree(written, output, dirs_exist_ok=True)


def run_all(jobs):
    """Runs jobs of which none may fail."""
    for answer in run_jobs(jobs):
        if not answer["ok"]:
            raise SystemExit(answer["traceback"])


def make_job(scratch, op, source, keywords, **fields):
    """A job on the model of a zip."""
    config = scratch / f"{source}.json"
    config.write_text(json.dumps(CHECKPOINTS[source]["config"], indent=2) + "\n")
    keywords = {"model": "roformer", **keywords}
    return {"op": op, "bert_config": str(config), "kwargs": keywords, **fields}


def write_checkpoints(scratch, output):
    jobs = []
    for seed, (name, checkpoint) in enumerate(CHECKPOINTS.items()):
        (scratch / name).mkdir()
        prefix = str(scratch / name / "bert_model.ckpt")
        fields = {"seed": seed, "output": prefix}
        jobs.append(make_job(scratch, "write", name, checkpoint["keywords"], **fields))
    run_all(jobs)
    for name in CHECKPOINTS:
        write_zip(scratch, output, name)


def write_zip(scratch, output, name):
    """Writes a zip with the layout of the released ones."""
    checkpoint = CHECKPOINTS[name]
    parts = ["data-00000-of-00001", "index", *(["meta"] * checkpoint.get("meta", 0))]
    files = [f"bert_model.ckpt.{part}" for part in parts]
    members = {file: (scratch / name / file).read_bytes() for file in files}
    members["bert_config.json"] = (scratch / f"{name}.json").read_bytes()
    vocabulary = "".join(f"{token}\n" for token in checkpoint["vocabulary"])
    members["vocab.txt"] = vocabulary.encode()
    # TensorFlow's Saver writes an absolute path; this one exists on no machine.
    members["checkpoint"] = (
        b'model_checkpoint_path: "/root/roformer/training/bert_model.ckpt"\n'
        b'all_model_checkpoint_paths: "/root/roformer/training/bert_model.ckpt"\n'
    )
    is_stored = checkpoint.get("stored")
    compression = zipfile.ZIP_STORED if is_stored else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(output / f"{name}.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo(f"{name}/", ZIP_TIME), b"")
        for key, content in sorted(members.items()):
            member = zipfile.ZipInfo(f"{name}/{key}", ZIP_TIME)
            archive.writestr(member, content, compress_type=compression)


def write_saved(scratch, saved):
    """Writes what users save themselves, from the models in the zips."""
    jobs = []
    for seed, (name, (op, *_)) in enumerate(SAVED.items(), 100):
        (saved / name).parent.mkdir(parents=True, exist_ok=True)
        output = str(saved / name)
        jobs.append(saved_job(scratch, name, op, seed=seed, output=output))
    run_all(jobs)
    for name, (op, *_) in SAVED.items():
        if op == "save_model_h5":
            remove_paths(saved / name)


def saved_job(scratch, name, op, **fields):
    """A job on the model that a saved file comes from."""
    _, source, wrap, keywords = SAVED[name]
    fields |= {"checkpoint": str(scratch / source / "bert_model.ckpt"), "wrap": wrap}
    return make_job(scratch, op, source, keywords, **fields)


def remove_paths(path):
    """Removes this machine's folders from the Lambda functions of a saved model."""

    def visit(item):
        if isinstance(item, dict):
            function = item.get("function")
            if isinstance(function, list):
                code = marshal.loads(base64.b64decode(function[0]))
                code = code.replace(co_filename=Path(code.co_filename).name)
                function[0] = base64.encodebytes(marshal.dumps(code)).decode()
            item = list(item.values())
        if isinstance(item, list):
            for value in item:
                visit(value)

    with h5py.File(path, "r+") as file:
        model_config = json.loads(file.attrs["model_config"])
        visit(model_config)
        file.attrs["model_config"] = json.dumps(model_config)


def write_golden(scratch, output, version):
    """Writes inputs and outputs of every case, as this version computes them."""
    jobs, inputs = [{"op": "info"}], {}
    for seed, (case, (source, keywords)) in enumerate(CASES.items()):
        inputs[case] = case_inputs(source, keywords, np.random.default_rng(seed))
        job = case_job(scratch, output, source, keywords)
        job["batches"] = []
        for batch, arrays in inputs[case].items():
            paths = [f"{scratch / case}-{batch}-{key}.npz" for key in ("in", "out")]
            np.savez(paths[0], **arrays)
            job["batches"].append(dict(zip(("inputs", "outputs"), paths, strict=True)))
        jobs.append(job)
    info, *answers = run_jobs(jobs, version)
    arrays, cases, unsupported = {}, {}, {}
    for job, answer, case in zip(jobs[1:], answers, CASES, strict=True):
        if not answer["ok"]:
            unsupported[case] = answer["error"]
            continue
        cases[case] = {
            "source": CASES[case][0],
            "kwargs": job["kwargs"],
            "outputs": answer["outputs"],
        }
        for batch, paths in zip(inputs[case], job["batches"], strict=True):
            golden = {**inputs[case][batch], **np.load(paths["outputs"])}
            select_columns(golden)
            for key, value in golden.items():
                arrays[f"{case}/{batch}/{key}"] = value
    info = {key: x for key, x in info.items() if key not in ("op", "ok", "seconds")}
    metadata = {**info, "cases": cases, "unsupported": unsupported}
    arrays["metadata"] = np.array(json.dumps(metadata))
    np.savez_compressed(output / f"golden-{version}.npz", **arrays)


def case_job(scratch, output, source, keywords):
    if source in SAVED:
        weights = str(output / "saved" / source)
        return saved_job(scratch, source, "predict", weights=weights)
    checkpoint = str(scratch / source / "bert_model.ckpt")
    return make_job(scratch, "predict", source, keywords, checkpoint=checkpoint)


def case_inputs(source, keywords, rng):
    if source in SAVED:
        _, source, _, keywords = SAVED[source]
    size = len(keywords.get("keep_tokens", CHECKPOINTS[source]["vocabulary"]))
    compound = len(keywords.get("compound_tokens", []))
    inputs = batches(size + compound, rng)
    if compound:
        inputs["main"]["token_ids"][0, 1 : 1 + compound] = size + np.arange(compound)
    for arrays in inputs.values():
        shape = arrays["token_ids"].shape
        if "custom_position_ids" in keywords:
            arrays["position_ids"] = rng.uniform(0, 12, shape).astype("float32")
        if "layer_norm_cond" in keywords:
            condition = rng.standard_normal((shape[0], keywords["layer_norm_cond"]))
            arrays["layer_norm_cond"] = condition.astype("float32")
    return inputs


def select_columns(arrays):
    """Keeps some vocabulary columns of MLM outputs, and the best token of each row."""
    mlm = arrays.get("mlm")
    if mlm is not None and mlm.shape[-1] > 64:
        size = mlm.shape[-1]
        columns = np.unique([0, *range(100, 106), *range(3, size, 24), size - 1])
        arrays["mlm_top"] = mlm.argmax(-1).astype("int32")
        arrays["mlm_columns"] = columns.astype("int32")
        arrays["mlm"] = mlm[..., columns]
