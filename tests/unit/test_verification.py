"""Cases, inputs, bars, reports and saved references of `verify`; no model is built."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from common import CHARACTER, GPT, NSP, SAVED, SIM, SMALL, V2, V2_EMBEDDING_SIZE
from common import zipped_json as config_of
from sources import tensors_of, write_checkpoint

from roformer_keras.base.errors import (
    CheckpointError,
    ConfigurationError,
    ReferenceUnavailable,
    SourceError,
)
from roformer_keras.conversion.convert import convert
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.verification import answers, reference
from roformer_keras.verification.answers import LiveAnswers, Output, SavedAnswers
from roformer_keras.verification.reference import Reference, TransformersReference
from roformer_keras.verification.report import Comparison, Report
from roformer_keras.verification.transformers_answers import TransformersAnswers

# === Cases and inputs ===

LM = ["encoder", "mlm", "lm", "unilm", "keep-tokens"]
POOLER = [*LM[:-1], "pool-linear", "pool-tanh", "keep-tokens"]


def test_cases_are_what_there_are_weights_for():
    expected = {
        CHARACTER: LM,
        SIM: POOLER,
        NSP: [*POOLER[:-1], "nsp", "keep-tokens"],
        SAVED / "encoder.h5": ["encoder", "keep-tokens"],
        SAVED / "lm": LM,
        SAVED / "unilm-pool.h5": POOLER,
        V2_EMBEDDING_SIZE: ["encoder", "keep-tokens"],
        V2: LM,
    }
    wrong = []
    for source, names in expected.items():
        config = config_of(SMALL) if source.parent == SAVED else None
        with open_checkpoint(source, config) as checkpoint:
            cases = answers.find_cases(checkpoint)
        models = {"roformer_v2" if "-v2-" in source.name else "roformer"}
        if list(cases) != names or {c["model"] for c in cases.values()} != models:
            wrong.append((source, cases))
    assert wrong == []


def test_sources_that_need_other_inputs_are_refused(tmp_path):
    positions = convert(
        SMALL, tmp_path / "x.safetensors", custom_position_ids=True, verbose=0
    )
    refused = [
        (LiveAnswers, positions, None, "has custom_position_ids, for which"),
        (LiveAnswers, SAVED / "condition.h5", None, "has layer_norm_cond_size, for"),
        (LiveAnswers, CHARACTER, ["mlm", "x"], r"cases must be some of .* got 'x'"),
        (LiveAnswers, CHARACTER, [], r"cases must be some of encoder, .* got none"),
        (TransformersAnswers, V2, None, "has model_type='roformer_v2'"),
        (TransformersAnswers, NSP, None, "has with_nsp=True"),
    ]
    for make, source, names, message in refused:
        config = config_of(SMALL) if source.parent == SAVED else None
        with pytest.raises(ConfigurationError, match=message):
            make(source, config, (5,), names, tmp_path)


def test_inputs_hold_what_a_mask_can_get_wrong():
    for length in (1, 2, 20, 512):
        inputs = answers._inputs(length, 260, 2)
        token_ids, segment_ids = inputs["token_ids"], inputs["segment_ids"]
        assert token_ids.shape == segment_ids.shape == (3, length)
        assert token_ids.max() < 260
        assert (token_ids[0] != 0).all()
        assert token_ids[2, 0] == 0
        if length > 2:
            lengths = [np.flatnonzero(row)[-1] + 1 for row in token_ids]
            assert len(set(lengths)) == 3
            assert segment_ids[:2].any(axis=1).all()
            middle = token_ids[2, 1 : lengths[2]]
            assert (middle == 0).any() or length < 48
    assert not answers._inputs(20, 260, 1)["segment_ids"].any()


# === Bars and reports ===


@pytest.mark.parametrize(
    ("difference", "length", "bar", "scale", "passed"),
    [
        (9e-5, 512, None, 0, True),
        (-2e-4, 512, None, 0, False),
        # Beyond 512 rounding is allowed for.
        (4e-4, 513, None, 0, True),
        (6e-4, 513, None, 0, False),
        # Another bar is relative to outputs above 1.
        (9e-6, 5, 1e-5, 0.5, True),
        (2e-5, 5, 1e-5, 0.5, False),
        (2e-5, 5, 1e-5, 3, True),
        (np.nan, 5, None, 0, False),
        (np.inf, 5, None, 0, False),
        (-np.inf, 5, None, 0, False),
    ],
)
def test_a_difference_beyond_the_bar_fails(difference, length, bar, scale, passed):
    theirs = np.full((2, length, 3), scale, "float64")
    ours = theirs.copy()
    ours[-1, -1, -1] += difference
    comparison = Output(theirs).compare("mlm", "mlm", length, ours, bar)
    assert comparison.passed is passed
    np.testing.assert_allclose(comparison.largest, abs(difference), rtol=1e-6)


def test_another_best_token_shows():
    theirs = np.random.default_rng(0).normal(size=(3, 20, 7))
    ours = theirs.copy()
    ours[0, 0] = -ours[0, 0]
    output = Output(theirs, theirs.argmax(-1))
    assert output.compare("mlm", "mlm", 20, ours).same_top == 59 / 60


def test_large_outputs_are_saved_in_samples(monkeypatch):
    theirs = np.random.default_rng(0).normal(size=(3, 20, 400)).astype("float32")
    theirs[0, 0, 398] = 9
    output = Output(theirs, theirs.argmax(-1))
    assert len(output.to_arrays("x")) == 2
    monkeypatch.setattr(answers, "_SAVED_SIZE", 2_000)
    arrays = output.to_arrays("x")
    assert 1_000 < arrays["x/values"].size < 3_000
    # The best token is still that of the whole vocabulary.
    assert arrays["x/top"][0, 0] == 398 > arrays["x/values"].shape[-1]
    again = Output.from_arrays(arrays, "x")
    comparison = again.compare("mlm", "mlm", 20, theirs)
    assert (comparison.largest, comparison.same_top) == (0, 1)
    arrays["x/values"][-1, -1, -1] += 1
    assert not Output.from_arrays(arrays, "x").compare("", "", 20, theirs).passed


def test_a_report_is_a_table_and_plain_json():
    comparisons = (
        Comparison("mlm", "mlm", 20, 2e-6, 1e-7, 0.5, 1e-4),
        Comparison("encoder", "sequence", 20, 2e-3, 1e-7, None, 1e-4),
    )
    report = Report("x.zip", "bert4keras 0.0.0", 1e-7, comparisons)
    lines = str(report).splitlines()
    assert lines[0] == "x.zip against bert4keras 0.0.0 (layer_norm_epsilon 1e-07)"
    header = "case output length max diff mean diff same top bar"
    assert lines[2].split() == header.split()
    assert lines[3].split()[-3:] == ["1.0e-07", "50.00%", "1.0e-04"]
    assert lines[4].endswith("FAILED")
    assert lines[-1] == "FAILED: 1 of 2 outputs are beyond their bars"
    content = json.loads(json.dumps(report.to_dict()))
    first, second = content.pop("comparisons")
    assert (first["passed"], second["passed"]) == (True, False)
    assert set(first) == {
        *("case", "output", "length", "largest", "mean", "same_top", "bar", "passed")
    }
    assert content == {
        "source": "x.zip",
        "reference": "bert4keras 0.0.0",
        "layer_norm_epsilon": 1e-7,
        "passed": False,
    }
    report = Report("x", "y", 1e-7, comparisons[:1])
    assert str(report).endswith("\n\npassed: all 1 outputs within their bars")
    assert not Report("x", "y", 1e-7, ()).passed


# === Saved references ===


def write_reference(path, source):
    """A reference file of a source that holds no outputs."""
    with open_checkpoint(source) as checkpoint:
        metadata = {
            "name": "bert4keras 0.0.0",
            "cases": {"encoder": {}, "mlm": {}},
            "lengths": [2],
            "layer_norm_epsilon": 1e-7,
            "fingerprint": answers._fingerprint(checkpoint),
        }
    noise = np.random.default_rng(0).normal(size=2_000)
    np.savez(path, metadata=json.dumps(metadata), noise=noise)
    return path


def test_a_saved_reference_is_refused_for_other_weights(tmp_path):
    path = write_reference(tmp_path / "reference.npz", SMALL)
    saved = SavedAnswers(SMALL, path, None, ["mlm"])
    assert saved.name == f"bert4keras 0.0.0, as saved in {path}"
    assert list(saved.metadata["cases"]) == ["mlm"]
    with pytest.raises(ConfigurationError, match=r"cases must be some of .* got 'x'"):
        SavedAnswers(SMALL, path, None, ["x"])
    # The same weights in another format are accepted.
    SavedAnswers(convert(SMALL, tmp_path / "x.safetensors", verbose=0), path, None)
    changed = tensors_of(SMALL)
    changed["bert/encoder/layer_0/output/dense/bias"][0] += 1e-6
    other = write_checkpoint(tmp_path / "other", changed, config_of(SMALL))
    for source in (other, SIM):
        with pytest.raises(CheckpointError, match="saved for other weights than those"):
            SavedAnswers(source, path, None)


def flip(data):
    data = bytearray(data)
    data[len(data) // 2] ^= 255
    return bytes(data)


def test_what_is_no_whole_reference_file_is_refused(tmp_path):
    whole = write_reference(tmp_path / "whole.npz", SMALL).read_bytes()
    damaged = {
        "empty": b"",
        "text": b"no npz",
        "cut early": whole[: len(whole) // 5],
        "cut late": whole[: len(whole) * 9 // 10],
        "flipped": flip(whole),
        "hole": whole[:100] + whole[4000:],
    }
    for name, data in damaged.items():
        (tmp_path / name).write_bytes(data)
    np.save(tmp_path / "x.npy", np.zeros(3))
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    np.savez(tmp_path / "y.npz", metadata=np.array("[1]"))
    np.savez(tmp_path / "z.npz", metadata=np.array("{}"))
    for name in (*damaged, "x.npy", "x.npz", "y.npz", "z.npz", "."):
        with pytest.raises(SourceError, match="is not a whole reference file"):
            SavedAnswers(SMALL, tmp_path / name, None)
    with pytest.raises(SourceError, match=r"there is no reference file .*nowhere"):
        SavedAnswers(SMALL, tmp_path / "nowhere", None)


# === Running references ===


@pytest.mark.parametrize("kind", [Reference, TransformersReference])
def test_a_package_that_is_not_installed_is_named_before_a_process(kind, monkeypatch):
    monkeypatch.delenv("ROFORMER_KERAS_REFERENCE", raising=False)
    for missing in kind.packages:
        monkeypatch.setattr(reference, "is_installed", missing.__ne__)
        with pytest.raises(ReferenceUnavailable, match=f"^{missing} is not installed"):
            kind()


def test_without_bert4keras_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "is_installed", lambda name: True)
    for name, code in (
        ("failing", "raise ImportError('not today')"),
        ("ending", "import os; os._exit(5)"),
    ):
        (tmp_path / name / "bert4keras").mkdir(parents=True)
        (tmp_path / name / "bert4keras" / "__init__.py").write_text(code)
    for folder, message in (
        (tmp_path, "there is no bert4keras package in"),
        (tmp_path / "failing", "ImportError: not today"),
        (tmp_path / "ending", "the reference process ended early, with code 5"),
    ):
        with pytest.raises(ReferenceUnavailable) as caught:
            Reference(folder)
        assert message in str(caught.value)
        assert "pip install --no-deps --target bert4keras-0.11.5" in str(caught.value)
    with pytest.raises(ReferenceUnavailable, match="cannot run /no/such/python: No su"):
        Reference(python="/no/such/python")


def test_a_failed_job_says_what_the_reference_said():
    running = object.__new__(Reference)
    running.version = "0.10.6"
    job = {"op": "predict", "kwargs": {"model": "roformer_v2"}}
    error = running._failure(job, "KeyError: 'roformer_v2'")
    assert isinstance(error, ReferenceUnavailable)
    assert "bert4keras 0.10.6 has no model 'roformer_v2'" in str(error)
    error = running._failure(job, "ValueError: x")
    assert isinstance(error, CheckpointError)
    assert "bert4keras 0.10.6 could not do predict with {'model'" in str(error)


def test_a_causal_model_that_sees_the_future_is_no_reference(tmp_path):
    leaking = SimpleNamespace(version="1.0", versions={}, is_causal=False)
    with pytest.raises(ReferenceUnavailable, match=r"1\.0 sees future tokens"):
        TransformersAnswers(GPT, None, (5,), None, tmp_path).ask(leaking)
    again = tmp_path / "again"
    again.mkdir()
    encoder = TransformersAnswers(GPT, None, (5,), ["encoder"], again)
    encoder.ask(leaking)
    assert encoder.metadata["bar"] == 1e-5
