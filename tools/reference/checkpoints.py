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
import zipfile
from pathlib import Path

import h5py
import numpy as np

from tools.reference.bert4keras import VERSIONS, run_jobs

ZIP_TIME = (2021, 5, 1, 0, 0, 0)

# === Vocabularies ===

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
WORD_VOCABULARY = [*CHARACTER_VOCABULARY, *WORDS.split()]
SMALL_VOCABULARY = CHARACTER_VOCABULARY[:240] + list(dict.fromkeys(CHARACTERS))[:20]

# === Zips: name -> what it is written from ===


def _checkpoint(
    vocabulary,
    hidden=32,
    heads=4,
    layers=2,
    config=None,
    stored=False,
    meta=False,
    **keywords,
):
    config = {
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "type_vocab_size": 2,
        "vocab_size": len(vocabulary),
        **(config or {}),
    }
    return {
        "vocabulary": vocabulary,
        "config": config,
        "kwargs": {"model": "roformer", **keywords},
        "stored": stored,
        "meta": meta,
    }


POOL = {"with_pool": True, "with_mlm": True}
# Real configurations carry fields that nobody reads, or lack what others have.
CARGO = {
    "directionality": "bidi",
    "initializer_range": 0.02,
    "max_position_embeddings": 512,
    "pooler_fc_size": 32,
    "pooler_type": "first_token_transform",
}
CHECKPOINTS = {
    "chinese_roformer_L-2_H-32_A-4": _checkpoint(
        WORD_VOCABULARY, config=CARGO, stored=True, with_mlm=True
    ),
    "chinese_roformer-char_L-2_H-32_A-4": _checkpoint(
        CHARACTER_VOCABULARY, config=CARGO, meta=True, with_mlm=True
    ),
    "chinese_roformer-gpt-char_L-2_H-32_A-4": _checkpoint(
        CHARACTER_VOCABULARY, application="lm"
    ),
    "chinese_roformer-sim-char_L-2_H-32_A-4": _checkpoint(
        CHARACTER_VOCABULARY, config=CARGO, stored=True, **POOL
    ),
    "chinese_roformer-v2-char_L-2_H-32_A-4": _checkpoint(
        CHARACTER_VOCABULARY,
        config={"hidden_act": "relu"},
        model="roformer_v2",
        with_mlm=True,
    ),
    "roformer-nsp_L-2_H-24_A-4": _checkpoint(
        SMALL_VOCABULARY, hidden=24, with_nsp=True, **POOL
    ),
    "roformer-embedding-size_L-2_H-24_A-4": _checkpoint(
        SMALL_VOCABULARY,
        hidden=24,
        config={"embedding_size": 16},
        stored=True,
        with_mlm=True,
    ),
    "roformer-v2-embedding-size_L-3_H-24_A-4": _checkpoint(
        SMALL_VOCABULARY,
        hidden=24,
        layers=3,
        config={"embedding_size": 16, "hidden_act": "relu"},
        model="roformer_v2",
    ),
    "roformer-key-size_L-3_H-24_A-4": _checkpoint(
        SMALL_VOCABULARY,
        hidden=24,
        layers=3,
        config={"attention_key_size": 10},
        with_mlm=True,
    ),
    "roformer-small_L-2_H-8_A-2": _checkpoint(
        SMALL_VOCABULARY, hidden=8, heads=2, **POOL
    ),
}
WORD, CHAR, GPT, SIM, V2, NSP, EMBEDDING, V2_EMBEDDING, KEY, SMALL = CHECKPOINTS

# === What users save themselves ===

_UNILM = {"application": "unilm", "with_pool": "linear"}
_CONDITION = {"layer_norm_cond": 5}
_CONDITION_HIDDEN = {
    "layer_norm_cond": 5,
    "layer_norm_cond_hidden_size": 7,
    "layer_norm_cond_hidden_act": "tanh",
    "with_mlm": "linear",
}


def _saved(op, checkpoint=SMALL, wrap=None, **kwargs):
    return {"op": op, "checkpoint": checkpoint, "wrap": wrap, "kwargs": kwargs}


SAVED = {
    "encoder.h5": _saved("save_h5"),
    "encoder-dense.h5": _saved("save_h5", wrap="dense"),
    "encoder-nested.h5": _saved("save_h5", wrap="nested"),
    "lm.h5": _saved("save_h5", application="lm"),
    "unilm-pool.h5": _saved("save_h5", **_UNILM),
    "unilm-pool.weights.h5": _saved("save_h5", **_UNILM),
    "encoder-model.h5": _saved("save_model_h5"),
    "encoder-dense-model.h5": _saved("save_model_h5", wrap="dense"),
    "encoder-nested-model.h5": _saved("save_model_h5", wrap="nested"),
    "unilm-pool-model.h5": _saved("save_model_h5", **_UNILM),
    "encoder/best_model.weights": _saved("save_object"),
    "encoder-dense/best_model.weights": _saved("save_object", wrap="dense"),
    "encoder-nested/best_model.weights": _saved("save_object", wrap="nested"),
    "lm/best_model.weights": _saved("save_object", application="lm"),
    "unilm-pool/best_model.weights": _saved("save_object", **_UNILM),
    "condition.h5": _saved("save_h5", **_CONDITION),
    "condition-hidden.h5": _saved("save_h5", **_CONDITION_HIDDEN),
    "v2-embedding-size-mlm.h5": _saved(
        "save_h5", V2_EMBEDDING, model="roformer_v2", with_mlm="linear"
    ),
}

# === Golden cases: name -> (checkpoint, keywords); a saved file gives its weights ===

_V2 = {"model": "roformer_v2"}
_KEEP = [0, 100, 101, 102, 103, *range(250, 200, -1)]
_COMPOUND = [[300, 301, 302], [[310, 311], [1.0, 3.0]]]
CASES = {
    "encoder": (CHAR, {}),
    "encoder-word": (WORD, {}),
    "encoder-small": (SMALL, {}),
    "mlm": (CHAR, {"with_mlm": True}),
    "mlm-linear": (CHAR, {"with_mlm": "linear"}),
    "mlm-word": (WORD, {"with_mlm": True}),
    "pool-tanh": (SIM, {"with_pool": True}),
    "pool-linear": (SIM, {"with_pool": "linear"}),
    "pool-relu": (SIM, {"with_pool": "relu"}),
    "pool-mlm": (SIM, {"with_pool": True, "with_mlm": "linear"}),
    "lm": (GPT, {"application": "lm"}),
    "lm-linear": (GPT, {"application": "lm", "with_mlm": "linear"}),
    "unilm": (SIM, {"application": "unilm"}),
    "unilm-pool": (SIM, {**_UNILM, "with_mlm": "linear"}),
    "unilm-pool-small": (SMALL, _UNILM),
    "nsp": (NSP, {"with_nsp": True}),
    "nsp-mlm": (NSP, {"with_nsp": True, "with_mlm": "linear"}),
    "nsp-pool-linear": (NSP, {"with_nsp": True, "with_pool": "linear"}),
    "keep-tokens": (CHAR, {"keep_tokens": _KEEP, "with_mlm": "linear"}),
    "keep-tokens-unilm-pool": (SIM, {"keep_tokens": _KEEP, **_UNILM}),
    "compound-tokens": (CHAR, {"compound_tokens": _COMPOUND, "with_mlm": "linear"}),
    "keep-and-compound-tokens": (
        CHAR,
        {
            "keep_tokens": _KEEP,
            "compound_tokens": [[10, 11], [[20, 21], [1.0, 3.0]]],
            "with_mlm": "linear",
        },
    ),
    "custom-position-ids": (CHAR, {"custom_position_ids": True}),
    "custom-position-ids-unilm": (
        SIM,
        {"custom_position_ids": True, **_UNILM, "with_mlm": "linear"},
    ),
    "shared-segment-embeddings": (CHAR, {"shared_segment_embeddings": True}),
    "shared-segment-embeddings-unilm": (
        SIM,
        {"shared_segment_embeddings": True, **_UNILM, "with_mlm": "linear"},
    ),
    # Three layers tell scores of the layer before from those of all layers before.
    "residual-attention-scores": (KEY, {"residual_attention_scores": True}),
    "residual-attention-scores-lm": (
        KEY,
        {"residual_attention_scores": True, "application": "lm", "with_mlm": "linear"},
    ),
    "residual-attention-scores-unilm": (
        KEY,
        {
            "residual_attention_scores": True,
            "application": "unilm",
            "with_mlm": "linear",
        },
    ),
    "layer-norm-cond": ("condition.h5", {}),
    "layer-norm-cond-hidden": ("condition-hidden.h5", {}),
    "embedding-size": (EMBEDDING, {}),
    "embedding-size-mlm": (EMBEDDING, {"with_mlm": "linear"}),
    "attention-key-size": (KEY, {}),
    "attention-key-size-unilm": (KEY, {"application": "unilm", "with_mlm": "linear"}),
    "v2-encoder": (V2, _V2),
    "v2-mlm": (V2, {**_V2, "with_mlm": True}),
    "v2-mlm-linear": (V2, {**_V2, "with_mlm": "linear"}),
    "v2-lm": (V2, {**_V2, "application": "lm", "with_mlm": "linear"}),
    "v2-unilm": (V2, {**_V2, "application": "unilm", "with_mlm": "linear"}),
    "v2-pool-is-ignored": (V2, {**_V2, "with_pool": True}),
    "v2-keep-tokens": (V2, {**_V2, "keep_tokens": _KEEP, "with_mlm": "linear"}),
    "v2-custom-position-ids": (V2, {**_V2, "custom_position_ids": True}),
    "v2-residual-attention-scores": (
        V2_EMBEDDING,
        {**_V2, "residual_attention_scores": True},
    ),
    "v2-embedding-size": (V2_EMBEDDING, _V2),
    "v2-embedding-size-mlm": ("v2-embedding-size-mlm.h5", {}),
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


# === Writing ===


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


def write_bert_config(scratch, name):
    path = scratch / f"{name}.json"
    path.write_text(json.dumps(CHECKPOINTS[name]["config"], indent=2) + "\n")
    return str(path)


def write_checkpoints(scratch, output):
    jobs = []
    for seed, (name, checkpoint) in enumerate(CHECKPOINTS.items()):
        (scratch / name).mkdir()
        jobs.append(
            {
                "op": "write",
                "bert_config": write_bert_config(scratch, name),
                "kwargs": checkpoint["kwargs"],
                "seed": seed,
                "output": str(scratch / name / "bert_model.ckpt"),
            }
        )
    run_all(jobs)
    for name in CHECKPOINTS:
        write_zip(scratch, output, name)


def write_zip(scratch, output, name):
    """Writes a zip with the layout of the released ones."""
    checkpoint = CHECKPOINTS[name]
    parts = ["data-00000-of-00001", "index", *(["meta"] if checkpoint["meta"] else [])]
    members = {
        f"bert_model.ckpt.{part}": (
            scratch / name / f"bert_model.ckpt.{part}"
        ).read_bytes()
        for part in parts
    }
    members["bert_config.json"] = Path(write_bert_config(scratch, name)).read_bytes()
    vocabulary = "".join(f"{token}\n" for token in checkpoint["vocabulary"])
    members["vocab.txt"] = vocabulary.encode()
    # TensorFlow's Saver writes an absolute path; this one exists on no machine.
    members["checkpoint"] = (
        b'model_checkpoint_path: "/root/roformer/training/bert_model.ckpt"\n'
        b'all_model_checkpoint_paths: "/root/roformer/training/bert_model.ckpt"\n'
    )
    compression = zipfile.ZIP_STORED if checkpoint["stored"] else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(output / f"{name}.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo(f"{name}/", ZIP_TIME), b"")
        for key, content in sorted(members.items()):
            member = zipfile.ZipInfo(f"{name}/{key}", ZIP_TIME)
            archive.writestr(member, content, compress_type=compression)


def write_saved(scratch, saved):
    """Writes what users save themselves, from the models in the zips."""
    jobs = []
    for seed, (name, fields) in enumerate(SAVED.items(), 100):
        (saved / name).parent.mkdir(parents=True, exist_ok=True)
        output = str(saved / name)
        jobs.append(saved_job(scratch, name, fields["op"], seed=seed, output=output))
    run_all(jobs)
    for name, fields in SAVED.items():
        if fields["op"] == "save_model_h5":
            remove_paths(saved / name)


def saved_job(scratch, name, op, **fields):
    """A job on the model that a saved file comes from."""
    source = SAVED[name]
    return {
        "op": op,
        "bert_config": write_bert_config(scratch, source["checkpoint"]),
        "checkpoint": str(scratch / source["checkpoint"] / "bert_model.ckpt"),
        "wrap": source["wrap"],
        "kwargs": {"model": "roformer", **source["kwargs"]},
        **fields,
    }


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
            paths = {
                key: str(scratch / f"{case}-{batch}-{key}.npz")
                for key in ("inputs", "outputs")
            }
            np.savez(paths["inputs"], **arrays)
            job["batches"].append(paths)
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
            found = {**inputs[case][batch], **np.load(paths["outputs"])}
            select_columns(found)
            for key, value in found.items():
                arrays[f"{case}/{batch}/{key}"] = value
    names = ("bert4keras", "tensorflow", "tf_keras", "layer_norm_epsilon")
    metadata = {
        **{name: info[name] for name in names},
        "cases": cases,
        "unsupported": unsupported,
    }
    arrays["metadata"] = np.array(json.dumps(metadata))
    np.savez_compressed(output / f"golden-{version}.npz", **arrays)


def case_job(scratch, output, source, keywords):
    if source in SAVED:
        weights = str(output / "saved" / source)
        return saved_job(scratch, source, "predict", weights=weights)
    return {
        "op": "predict",
        "bert_config": write_bert_config(scratch, source),
        "checkpoint": str(scratch / source / "bert_model.ckpt"),
        "kwargs": {"model": "roformer", **keywords},
    }


def case_inputs(source, keywords, rng):
    if source in SAVED:
        source, keywords = SAVED[source]["checkpoint"], SAVED[source]["kwargs"]
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
