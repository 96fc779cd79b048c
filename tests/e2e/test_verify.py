"""`verify`: what it compares, that it can fail, and what it needs.

Most tests put a stand-in in the place of the real bert4keras: this package's own
models, on the files that were exported for it, and wrong on request. The matrix at the
end runs the real one, in one process for each version.
"""

import gc
import json
import shutil
import weakref
from dataclasses import dataclass, field

import keras
import numpy as np
import pytest
from common import (
    CHARACTER,
    NSP,
    SAVED,
    SIM,
    SMALL,
    V2,
    V2_EMBEDDING_SIZE,
    WORD,
    tiny_seq2seq,
    zipped_json,
)
from sources import (
    INPUTS,
    assert_same,
    copied,
    listing,
    tensors_of,
    unpacked,
    write_checkpoint,
)

import roformer_keras.layers.norms
from roformer_keras import RoFormerBackbone, convert, fast_model, verify
from roformer_keras.cli import main
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.errors import (
    CheckpointError,
    ConfigurationError,
    ReferenceUnavailable,
    SourceError,
)
from roformer_keras.layers import masks
from roformer_keras.verification.counterpart import counterpart, outputs_by_role
from roformer_keras.verification.reference import Reference
from roformer_keras.verification.verify import PUBLISHED, Report

MODULE = "roformer_keras.verification.verify"
CONFIG = zipped_json(SMALL)


ONE_LAYER = {**CONFIG, "num_hidden_layers": 1}


@pytest.fixture(autouse=True, scope="module")
def plain_calls():
    """Has `model(ids)` compute operation by operation, rather than trace a graph.

    Models at full size are compared as users call them, see `test_full_size.py`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_model, "_is_outside_graph", lambda inputs: False)
        yield


@dataclass
class StandIn:
    """Answers as bert4keras would, from the files that `verify` exports.

    Args:
        layer_norm_epsilon: what it says.
        computed_with: the epsilon that it computes with.
        distort: function of keywords, role and values, which it may change.
    """

    layer_norm_epsilon: float = 1e-7
    computed_with: float = 1e-7
    distort: object = lambda kwargs, role, values: None
    inputs: dict = field(default_factory=dict)

    version = "0.0.0"
    versions = {"bert4keras": version}  # noqa: RUF012

    def run(self, jobs):
        for job in jobs:
            model = counterpart(
                job["checkpoint"],
                job["kwargs"],
                config=job["bert_config"],
                layer_norm_epsilon=self.computed_with,
            )
            for batch in job["batches"]:
                with np.load(batch["inputs"]) as arrays:
                    inputs = dict(arrays)
                self.inputs[inputs["token_ids"].shape[1]] = inputs
                values = outputs_by_role(model, inputs)
                for role, value in values.items():
                    values[role] = np.array(value)
                    self.distort(job["kwargs"], role, values[role])
                np.savez(batch["outputs"], **values)
            yield job, {"ok": True}

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass


@pytest.fixture
def stand_in():
    return StandIn()


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """One layer of the small checkpoint, without heads: there is least to compare."""
    names = ("bert/embeddings", "bert/encoder/layer_0")
    tensors = {n: v for n, v in tensors_of(SMALL).items() if n.startswith(names)}
    folder = tmp_path_factory.mktemp("x") / "encoder"
    return write_checkpoint(folder, tensors, ONE_LAYER)


ENCODER = {("encoder", "sequence"), ("keep-tokens", "sequence")}


def check(source, bert4keras=None, lengths=(1, 2, 20), **options):
    return verify(source, bert4keras=bert4keras, lengths=lengths, verbose=0, **options)


def add(number, where=(...,)):
    """For `StandIn.distort`."""

    def distort(kwargs, role, values):
        values[where] += number

    return distort


def failed(report):
    return {(c.case, c.output) for c in report.comparisons if not c.passed}


# === What is compared ===


def test_the_same_numbers_have_no_difference(stand_in):
    report = check(SAVED / "lm", stand_in, config=CONFIG, cases=["mlm", "keep-tokens"])
    assert report.passed
    assert [(c.case, c.output, c.length) for c in report.comparisons] == [
        (case, "mlm", length)
        for case in ("mlm", "keep-tokens")
        for length in (1, 2, 20)
    ]
    for c in report.comparisons:
        assert c.largest == c.mean == 0
        assert c.same_top == 1
        assert c.bar >= 1e-4


def test_half_precision_is_compared_by_its_own_numbers(tmp_path, stand_in):
    half = convert(CHARACTER, tmp_path / "x.zip", dtype="float16", verbose=0)
    assert check(half, stand_in, lengths=(5,), cases=["mlm"]).passed


def test_options_of_a_preset_are_those_of_bert4keras(tmp_path, stand_in):
    source = convert(
        CHARACTER, tmp_path / "x", residual_attention_scores=True, verbose=0
    )
    seen = []
    stand_in.distort = lambda kwargs, role, value: seen.append(kwargs)
    cases = ["encoder", "keep-tokens"]
    assert check(source, stand_in, lengths=(5,), cases=cases).passed
    assert [kwargs["residual_attention_scores"] for kwargs in seen] == [True, True]


def test_other_inputs_and_cases_are_refused(tmp_path, stand_in):
    positions = tmp_path / "x.keras"
    convert(SMALL, positions, custom_position_ids=True, verbose=0)
    message = "has custom_position_ids, for which there are no inputs"
    with pytest.raises(ConfigurationError, match=message):
        check(positions, stand_in)
    with pytest.raises(ConfigurationError, match="has layer_norm_cond_size, for which"):
        check(SAVED / "condition.h5", stand_in, config=CONFIG)
    with pytest.raises(ConfigurationError, match=r"cases must be some of .* got 'x'"):
        check(CHARACTER, stand_in, cases=["mlm", "x"])
    with pytest.raises(ConfigurationError, match=r"cases must be some of .* got none"):
        check(CHARACTER, stand_in, cases=[])
    for lengths in ((), (0,), (5, -1)):
        with pytest.raises(
            ConfigurationError, match="lengths must be 1 or more, to 16"
        ):
            check(CHARACTER, stand_in, lengths=lengths)


def test_an_encoder_decoder_has_nothing_to_compare_with(tmp_path, stand_in):
    sizes = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 8}
    tiny_seq2seq("天地", **sizes).save_to_preset(tmp_path / "x")
    message = "an encoder-decoder, which neither bert4keras nor Transformers has"
    for against in ({"bert4keras": stand_in}, {"against": "transformers"}):
        with pytest.raises(ConfigurationError, match=message):
            verify(tmp_path / "x", verbose=0, **against)


def test_a_model_of_one_segment(tmp_path, stand_in):
    with open_checkpoint(SMALL) as checkpoint:
        config = checkpoint.config.replace(num_segments=1)
    RoFormerBackbone(config).save_to_preset(tmp_path / "x")
    assert check(tmp_path / "x", stand_in, lengths=(5,), cases=["encoder"]).passed
    assert stand_in.inputs[5]["segment_ids"].max() == 0


def test_inputs_hold_what_a_mask_can_get_wrong(encoder, stand_in):
    check(encoder, stand_in, lengths=(1, 2, 20, 512), cases=["encoder"])
    for length, inputs in stand_in.inputs.items():
        token_ids, segment_ids = inputs["token_ids"], inputs["segment_ids"]
        assert token_ids.shape == segment_ids.shape == (3, length)
        assert token_ids.max() < CONFIG["vocab_size"]
        assert (token_ids[0] != 0).all()
        assert token_ids[2, 0] == 0
        if length > 2:
            lengths = [np.flatnonzero(row)[-1] + 1 for row in token_ids]
            assert len(set(lengths)) == 3
            assert segment_ids[:2].any(axis=1).all()
            middle = token_ids[2, 1 : lengths[2]]
            assert (middle == 0).any() or length < 48


def test_large_models_are_in_memory_one_at_a_time(stand_in, encoder, monkeypatch):
    models = []

    def load(*arguments, **options):
        assert all(model() is None for model in models)
        model = counterpart(*arguments, **options)
        models.append(weakref.ref(model))
        return model

    monkeypatch.setattr(f"{MODULE}.counterpart", load)
    monkeypatch.setattr(f"{MODULE}._LARGE_MODEL", 0)
    # What other tests have left need not be searched.
    gc.freeze()
    try:
        assert check(encoder, stand_in, lengths=(1,)).passed
    finally:
        gc.unfreeze()
    assert len(models) == 2


# === It can fail ===


def test_a_difference_beyond_the_bar_fails_and_one_within_does_not(stand_in):
    def shifted_by(number, *lengths):
        stand_in.distort = add(number, (-1, -1, -1))
        return check(SMALL, stand_in, lengths=lengths, cases=["mlm"])

    assert shifted_by(9e-5, 1, 2, 20).passed
    report = shifted_by(-2e-4, 1, 512, 513)
    assert failed(report) == {("mlm", "mlm")}
    # Beyond 512 rounding is allowed for.
    assert {c.length for c in report.comparisons if not c.passed} == {1, 512}
    assert not shifted_by(6e-4, 513).passed


def test_another_best_token_shows(stand_in):
    def distort(kwargs, role, value):
        value[0, 0] = -value[0, 0]

    stand_in.distort = distort
    report = check(CHARACTER, stand_in, lengths=(20,), cases=["mlm"])
    assert report.comparisons[0].same_top == 59 / 60


def test_what_is_not_finite_fails(stand_in, encoder):
    by_length = {1: np.nan, 2: np.inf, 20: -np.inf}

    def distort(kwargs, role, values):
        if "keep_tokens" not in kwargs:
            values[0, 0, 0] = by_length[values.shape[1]]

    stand_in.distort = distort
    report = check(encoder, stand_in)
    assert failed(report) == {("encoder", "sequence")}
    assert "FAILED: 3 of 6 outputs are beyond their bars" in str(report)


def test_another_epsilon_fails(stand_in, encoder):
    stand_in.computed_with = 1e-3
    assert failed(check(encoder, stand_in)) == ENCODER
    # With the same on both sides there is no difference, whichever it is.
    stand_in.layer_norm_epsilon = 1e-3
    report = check(encoder, stand_in)
    assert report.passed
    assert report.layer_norm_epsilon == 1e-3


def use_tanh_gelu(monkeypatch):
    def tanh_gelu(x):
        return keras.activations.gelu(x, approximate=True)

    monkeypatch.setattr(roformer_keras.layers.norms, "erf_gelu", tanh_gelu)


def lose_the_mask(monkeypatch):
    real = masks.padding_mask
    monkeypatch.setattr(masks, "padding_mask", lambda ids: real(ids * 0 + 1))


@pytest.mark.parametrize("change", [use_tanh_gelu, lose_the_mask])
def test_another_model_fails(change, stand_in, encoder, monkeypatch):
    # Once the reference has answered, and before ours is built.
    stand_in.distort = lambda kwargs, role, value: change(monkeypatch)
    report = check(encoder, stand_in, lengths=(20,), cases=["encoder"])
    assert failed(report) == {("encoder", "sequence")}


def test_another_pooler_fails(stand_in):
    def distort(kwargs, role, value):
        if role == "pooled" and kwargs.get("with_pool") == "linear":
            value[...] = np.tanh(value)

    stand_in.distort = distort
    cases = ["encoder", "unilm", "pool-linear", "pool-tanh"]
    found = failed(check(SIM, stand_in, lengths=(5,), cases=cases))
    assert found == {("unilm", "pooled"), ("pool-linear", "pooled")}


def test_no_comparison_at_all_does_not_pass():
    assert not Report("x", "y", 1e-7, ()).passed


# === Reports ===


def test_a_report_is_a_table_and_plain_json(stand_in, encoder):
    report = check(encoder, stand_in)
    lines = str(report).splitlines()
    assert lines[0] == f"{encoder} against bert4keras 0.0.0 (layer_norm_epsilon 1e-07)"
    assert lines[2].split() == [
        *("case", "output", "length", "max", "diff", "mean", "diff", "same", "top"),
        "bar",
    ]
    assert len(lines) == 3 + len(report.comparisons) + 2
    assert lines[-1] == "passed: all 6 outputs within their bars"
    content = json.loads(json.dumps(report.to_dict()))
    assert len(content.pop("comparisons")) == len(report.comparisons)
    assert content == {
        "source": str(encoder),
        "reference": "bert4keras 0.0.0",
        "layer_norm_epsilon": 1e-7,
        "passed": True,
    }
    assert set(report.to_dict()["comparisons"][0]) == {
        *("case", "output", "length", "largest", "mean", "same_top", "bar", "passed")
    }


def test_the_command_line_speaks_by_exit_code_and_json(
    stand_in, encoder, monkeypatch, capsys
):
    monkeypatch.setattr(f"{MODULE}.Reference", lambda *arguments: stand_in)
    arguments = ["verify", str(encoder), "--lengths", "1,5", "--quiet"]
    for distort, code, text in (
        (add(0), 0, "passed: all 4 outputs"),
        (add(1), 1, "FAILED: 4 of 4 outputs"),
    ):
        stand_in.distort = distort
        assert main(arguments) == code
        assert text in capsys.readouterr().out
        assert main([*arguments, "--json"]) == code
        assert json.loads(capsys.readouterr().out)["passed"] is (code == 0)


# === A saved reference ===


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory, encoder):
    path = tmp_path_factory.mktemp("reference") / "reference.npz"
    report = check(encoder, StandIn(), save_reference=path)
    assert report.passed
    return path, report


@pytest.fixture
def saved(saved_once, tmp_path, monkeypatch):
    """A saved reference and its report; bert4keras is gone since."""

    def gone(*arguments):
        raise AssertionError("bert4keras must not be run")

    monkeypatch.setattr(f"{MODULE}.Reference", gone)
    path, report = saved_once
    return shutil.copy(path, tmp_path / "reference.npz"), report


def test_a_saved_reference_gives_the_same_report(saved, encoder, tmp_path):
    path, report = saved
    again = check(encoder, reference=path)
    assert again.comparisons == report.comparisons
    assert again.layer_norm_epsilon == report.layer_norm_epsilon
    assert again.reference == f"bert4keras 0.0.0, as saved in {path}"
    some = check(encoder, reference=path, cases=["encoder"]).comparisons
    assert some == tuple(c for c in report.comparisons if c.case == "encoder")
    with pytest.raises(ConfigurationError, match=r"cases must be some of .* got 'x'"):
        check(encoder, reference=path, cases=["x"])
    # Also for the same weights in another format.
    source = convert(encoder, tmp_path / "x.safetensors", verbose=0)
    assert check(source, reference=path).comparisons == report.comparisons


def test_a_saved_reference_still_fails_a_wrong_model(saved, encoder, monkeypatch):
    use_tanh_gelu(monkeypatch)
    assert failed(check(encoder, reference=saved[0])) == ENCODER


def test_a_saved_reference_with_other_outputs_fails(saved, encoder):
    path, _ = saved
    with np.load(path) as file:
        arrays = dict(file)
    arrays["outputs/encoder/2/sequence/values"][0, 1, 0] += 1e-3
    np.savez(path, **arrays)
    comparisons = check(encoder, reference=path).comparisons
    assert [(c.case, c.length) for c in comparisons if not c.passed] == [("encoder", 2)]


def test_a_saved_reference_is_refused_for_other_weights(saved, encoder, tmp_path):
    path, _ = saved
    changed, less = tensors_of(encoder), tensors_of(encoder)
    changed["bert/encoder/layer_0/output/dense/bias"][0] += 1e-6
    del less["bert/encoder/layer_0/output/dense/bias"]
    for tensors in (changed, less, tensors_of(SMALL)):
        other = write_checkpoint(tmp_path / "other", tensors, ONE_LAYER)
        message = "was saved for other weights than those in"
        with pytest.raises(CheckpointError, match=message):
            check(other, reference=path)


def test_large_outputs_are_saved_in_samples(tmp_path, stand_in, monkeypatch):
    whole, small = tmp_path / "whole.npz", tmp_path / "small.npz"
    check(CHARACTER, stand_in, cases=["mlm"], save_reference=whole)
    monkeypatch.setattr("roformer_keras.verification.answers._SAVED_SIZE", 2_000)
    report = check(CHARACTER, stand_in, cases=["mlm"], save_reference=small)
    assert small.stat().st_size < whole.stat().st_size / 4
    again = check(CHARACTER, reference=small)
    assert again.passed
    same_top = [c.same_top for c in report.comparisons]
    assert [c.same_top for c in again.comparisons] == same_top
    with np.load(small) as file:
        arrays = dict(file)
    assert arrays["outputs/mlm/20/mlm/values"].size < 3_000
    # The best token is still that of the whole vocabulary.
    top = arrays["outputs/mlm/20/mlm/top"]
    assert top.shape == (3, 20)
    assert top.max() > arrays["outputs/mlm/20/mlm/values"].shape[-1]
    arrays["outputs/mlm/20/mlm/values"][-1, -1, -1] += 1
    np.savez(small, **arrays)
    assert failed(check(CHARACTER, reference=small)) == {("mlm", "mlm")}


def test_a_reference_is_not_saved_from_a_saved_one(saved, encoder, tmp_path):
    before = listing(tmp_path)
    with pytest.raises(ConfigurationError, match="cannot be saved again: copy it"):
        check(encoder, reference=saved[0], save_reference=tmp_path / "again.npz")
    assert listing(tmp_path) == before


def _flip(data):
    data = bytearray(data)
    data[len(data) // 2] ^= 255
    return bytes(data)


DAMAGES = {
    "empty": lambda data: b"",
    "text": lambda data: b"no npz",
    "cut-early": lambda data: data[: len(data) // 5],
    "cut-late": lambda data: data[: len(data) * 9 // 10],
    "flipped": _flip,
    "hole": lambda data: data[:100] + data[4000:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_reference_file_says_so(damage, saved):
    path, _ = saved
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(SourceError, match="is not a whole reference file"):
        check(SMALL, reference=path)


def test_what_is_no_reference_file(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    np.savez(tmp_path / "y.npz", metadata=np.array("[1]"))
    np.savez(tmp_path / "z.npz", metadata=np.array("{}"))
    for name in ("x.npy", "x.npz", "y.npz", "z.npz", "."):
        with pytest.raises(SourceError, match="is not a whole reference file"):
            check(SMALL, reference=tmp_path / name)
    with pytest.raises(SourceError, match=r"there is no reference file .*nowhere"):
        check(SMALL, reference=tmp_path / "nowhere")


# === Published values ===

NAME = "chinese_roformer_L-12_H-768_A-12"


def test_published_values_fail_other_weights(tmp_path, capsys):
    source = copied(WORD, tmp_path).rename(tmp_path / f"{NAME}.zip")
    report = verify(source, published=True)
    assert not report.passed
    (comparison,) = report.comparisons
    assert (comparison.output, comparison.length) == ("mlm", 6)
    assert comparison.bar == 1e-4
    assert "Hugging Face" in report.reference
    assert main(["verify", str(source), "--published"]) == 1
    assert "FAILED" in capsys.readouterr().out
    with pytest.raises(ConfigurationError, match=f"nothing is published .*: {NAME}"):
        verify(SIM, published=True)


def test_published_values_pass_the_weights_they_are_of(tmp_path, monkeypatch):
    known = PUBLISHED[NAME]
    token_ids = np.array(known["token_ids"], "int32")
    inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
    model = counterpart(WORD, {"with_mlm": "linear"})
    logits = outputs_by_role(model, inputs)["mlm"][0, :3, :3]
    values = {**known, "mlm": logits.round(4).tolist()}
    monkeypatch.setitem(PUBLISHED, NAME, values)
    source = copied(WORD, tmp_path).rename(tmp_path / f"{NAME}.zip")
    report = verify(source, published=True)
    assert report.passed
    assert report.layer_norm_epsilon == 1e-12
    values["mlm"][2][1] += 2e-4
    assert not verify(source, published=True).passed


def test_the_published_values_are_those_that_are_known():
    assert PUBLISHED[NAME]["token_ids"] == [[0, 1, 2, 3, 4, 5]]
    assert PUBLISHED[NAME]["mlm"] == [
        [-0.1205, -1.0265, 0.2922],
        [-1.5134, 0.1974, 0.1519],
        [-5.0135, -3.9003, -0.8404],
    ]


# === Without bert4keras ===


def package(folder, code):
    """A `bert4keras` that is not the real one."""
    (folder / "bert4keras").mkdir(parents=True)
    (folder / "bert4keras" / "__init__.py").write_text(code)
    return folder


def test_without_bert4keras_the_error_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    failing = package(tmp_path / "a", "raise ImportError('not today')")
    ending = package(tmp_path / "b", "import os; os._exit(5)")
    for folder, message in (
        (tmp_path, "there is no bert4keras package in"),
        (failing, "ImportError: not today"),
        (ending, "the reference process ended early, with code 5"),
    ):
        with pytest.raises(ReferenceUnavailable) as caught:
            Reference(folder)
        assert message in str(caught.value)
        assert "pip install --no-deps --target bert4keras-0.11.5" in str(caught.value)
    message = "cannot run /no/such/python: No such file"
    with pytest.raises(ReferenceUnavailable, match=message):
        check(CHARACTER, python="/no/such/python")
    monkeypatch.setenv("ROFORMER_KERAS_REFERENCE", str(tmp_path / "c"))
    assert main(["verify", str(CHARACTER), "--quiet"]) == 6
    shown = capsys.readouterr()
    assert shown.out == ""
    first, rest = shown.err.split("\n", 1)
    assert first.startswith("roformer-keras: error: there is no bert4keras package in")
    assert "    pip install --no-deps --target" in rest
    assert "Traceback" not in shown.err


# === With the real one ===

VERSIONS = {"0.11.5": 1e-7, "0.10.6": 1e-12}
LM = ["encoder", "mlm", "lm", "unilm", "keep-tokens"]
POOLER = [*LM[:-1], "pool-linear", "pool-tanh", "keep-tokens"]
# What there are weights for, and which cases are compared with which version. Of the
# first three, each case of a source is compared once and each case with both versions.
NEW, OLD = VERSIONS
SOURCES = {
    CHARACTER: (LM, {NEW: ["encoder", "lm", "keep-tokens"], OLD: ["mlm", "unilm"]}),
    SIM: (
        POOLER,
        {
            NEW: ["mlm", "unilm", "pool-tanh"],
            OLD: ["encoder", "lm", "pool-linear", "keep-tokens"],
        },
    ),
    NSP: (
        [*POOLER[:-1], "nsp", "keep-tokens"],
        {
            NEW: ["encoder", "mlm", "pool-linear", "nsp"],
            OLD: ["lm", "unilm", "pool-tanh", "nsp", "keep-tokens"],
        },
    ),
    SAVED / "encoder.h5": (["encoder", "keep-tokens"], {NEW: ["encoder"]}),
    SAVED / "lm": (LM, {NEW: ["lm"]}),
    SAVED / "unilm-pool.h5": (POOLER, {NEW: ["unilm"]}),
    # bert4keras cannot load these: they are exported for it.
    "preset": (POOLER, {NEW: ["unilm"]}),
    "x.safetensors": (POOLER, {NEW: ["unilm"]}),
    "x.keras": (POOLER, {NEW: ["unilm"]}),
    V2_EMBEDDING_SIZE: (["encoder", "keep-tokens"], {NEW: ["encoder", "keep-tokens"]}),
    # The older version refuses it.
    V2: (LM, {NEW: ["mlm", "lm", "unilm", "keep-tokens"], OLD: ["mlm"]}),
}
MATRIX = [
    (source, version) for source, (_, cases) in SOURCES.items() for version in cases
]


def outputs_of(case, cases):
    """Outputs of a case, where these are all cases of a source."""
    with_mlm, with_pooler = "mlm" in cases, "pool-tanh" in cases
    outputs = {"encoder": ["sequence"], "nsp": ["nsp"]}
    outputs |= {"pool-linear": ["pooled"], "pool-tanh": ["pooled"]}
    outputs["unilm"] = ["pooled", "mlm"] if with_pooler else ["mlm"]
    return outputs.get(case, ["mlm"] if with_mlm else ["sequence"])


@pytest.mark.parametrize(
    ("source", "version"), MATRIX, ids=lambda value: getattr(value, "stem", value)
)
def test_the_real_bert4keras_computes_the_same(
    source, version, real_bert4keras, tmp_path
):
    reference = real_bert4keras(version)
    every, by_version = SOURCES[source]
    cases = by_version[version]
    options = {"cases": cases}
    if isinstance(source, str):
        source = convert(SMALL, tmp_path / source, verbose=0)
    elif source.parent == SAVED:
        options["config"] = CONFIG
    if source == V2 and version == OLD:
        with pytest.raises(ReferenceUnavailable, match="has no model 'roformer_v2'"):
            check(source, reference, **options)
        return
    with pytest.raises(ConfigurationError, match=f"some of {', '.join(every)}, got"):
        check(source, reference, **{**options, "cases": ["none"]})
    # The goldens have other lengths of the older version.
    lengths = (1, 2, 40) if version == NEW else (40,)
    report = check(source, reference, lengths=lengths, **options)
    print(report)
    assert report.passed
    assert report.reference == f"bert4keras {version}"
    assert report.layer_norm_epsilon == VERSIONS[version]
    assert {(c.case, c.output, c.length) for c in report.comparisons} == {
        (case, output, length)
        for case in cases
        for output in outputs_of(case, every)
        for length in lengths
    }
    assert all(c.largest < 1e-5 for c in report.comparisons)
    assert all((c.same_top is None) == (c.output != "mlm") for c in report.comparisons)


class OtherWeights:
    """A running bert4keras that is given another checkpoint."""

    def __init__(self, reference, checkpoint):
        self._reference, self._checkpoint = reference, str(checkpoint)

    def __getattr__(self, name):
        return getattr(self._reference, name)

    def run(self, jobs):
        return self._reference.run(
            [{**job, "checkpoint": self._checkpoint} for job in jobs]
        )


def test_the_real_bert4keras_fails_other_weights(real_bert4keras, tmp_path):
    tensors = tensors_of(SMALL)
    tensors["bert/encoder/layer_0/output/dense/bias"][0] += 0.01
    changed = write_checkpoint(tmp_path / "x", tensors, CONFIG)
    prefix = unpacked(SMALL, tmp_path / "small") / "bert_model.ckpt"
    reference = OtherWeights(real_bert4keras("0.11.5"), prefix)
    report = check(changed, reference, lengths=(5,), cases=["encoder"])
    assert failed(report) == {("encoder", "sequence")}


def files_of(source, folder):
    """`bert_config` and `checkpoint` of a job, unpacked from a zip."""
    files = unpacked(source, folder)
    names = {"bert_config": "bert_config.json", "checkpoint": "bert_model.ckpt"}
    return {field: str(files / name) for field, name in names.items()}


def predicted(reference, job, inputs, folder):
    """What bert4keras computes for a job, by role."""
    batch = {name: str(folder / f"{name}.npz") for name in ("inputs", "outputs")}
    np.savez(batch["inputs"], **inputs)
    ((_, answer),) = reference.run([{"op": "predict", "batches": [batch], **job}])
    with np.load(batch["outputs"]) as arrays:
        assert arrays.files == answer["outputs"]
        return dict(arrays)


CONVERTED = {
    SIM: (OLD, {"application": "unilm", "with_pool": "linear"}),
    NSP: (NEW, {"with_nsp": True, "with_mlm": "linear"}),
    V2: (NEW, {"model": "roformer_v2", "with_mlm": "linear"}),
}


@pytest.mark.parametrize("source", CONVERTED, ids=lambda path: path.stem)
def test_the_real_bert4keras_reads_what_is_converted(source, real_bert4keras, tmp_path):
    version, kwargs = CONVERTED[source]
    middle = convert(source, tmp_path / "x.safetensors", verbose=0)
    outputs = {}
    for dtype in ("original", "float32", "float16"):
        made = source
        if dtype != "original":
            made = convert(middle, tmp_path / f"{dtype}.zip", dtype=dtype, verbose=0)
        job = files_of(made, tmp_path / f"{dtype}-files")
        job["kwargs"] = {"model": "roformer", **kwargs}
        outputs[dtype] = predicted(real_bert4keras(version), job, INPUTS, tmp_path)
    assert_same(outputs["float32"], outputs["original"])
    for role, value in outputs["original"].items():
        np.testing.assert_allclose(outputs["float16"][role], value, atol=0.05)
        assert not np.array_equal(outputs["float16"][role], value)


def test_a_failed_job_says_what_bert4keras_said(real_bert4keras):
    with pytest.raises(
        CheckpointError, match=r"could not do none .* op must be one of"
    ):
        list(real_bert4keras("0.11.5").run([{"op": "none"}]))
