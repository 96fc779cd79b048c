"""`verify`: what it compares, that it can fail, and what it needs.

Fast tests put a stand-in in the place of the real bert4keras: this package's own
models, on the files that were exported for it, and wrong on request. The slow ones run
the real one.
"""

import importlib
import json
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
from common import (
    CHARACTER,
    NSP,
    SAVED,
    SHARED,
    SIM,
    SMALL,
    V2,
    V2_EMBEDDING_SIZE,
    WORD,
    reference_folder,
    zipped_json,
)
from sources import copied, listing, tensors_of, write_checkpoint

import roformer_keras.layers.block
from roformer_keras import convert, verify
from roformer_keras.cli import main
from roformer_keras.errors import (
    CheckpointError,
    ConfigurationError,
    ReferenceUnavailable,
    SourceError,
)
from roformer_keras.verification.counterpart import counterpart, outputs_by_role

# The package exports the function under the name of its module.
module = importlib.import_module("roformer_keras.verification.verify")
LENGTHS = (1, 2, 20)
CONFIG = zipped_json(SMALL)


@dataclass
class StandIn:
    """Answers as bert4keras would, from the files that `verify` exports."""

    layer_norm_epsilon: float = 1e-7
    computed_with: float = 1e-7
    distort: object = None

    version = "0.0.0"

    @property
    def versions(self):
        return {"bert4keras": self.version}

    def run(self, jobs):
        for number, job in enumerate(jobs):
            model = counterpart(
                job["checkpoint"],
                job["kwargs"],
                config=job["bert_config"],
                layer_norm_epsilon=self.computed_with,
            )
            for batch in job["batches"]:
                with np.load(batch["inputs"]) as inputs:
                    values = outputs_by_role(model, dict(inputs))
                for role, value in values.items():
                    values[role] = np.array(value)
                    if self.distort is not None:
                        self.distort(job["kwargs"], role, values[role])
                np.savez(batch["outputs"], **values)
            yield {"job": number, "ok": True}


@pytest.fixture
def stand_in(monkeypatch):
    """Puts a stand-in in bert4keras's place; returns it."""
    reference = StandIn()
    monkeypatch.setattr(module, "find_reference", lambda *arguments: reference)
    return reference


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """The small checkpoint without its heads, of which there is least to compare."""
    tensors = {n: v for n, v in tensors_of(SMALL).items() if n.startswith("bert/e")}
    return write_checkpoint(tmp_path_factory.mktemp("x") / "encoder", tensors, CONFIG)


ENCODER = [("encoder", "sequence"), ("keep-tokens", "sequence")]


@pytest.fixture
def only(monkeypatch):
    """Leaves out all cases but those that it is called with: models take time."""
    every = module._cases

    def cases(*names):
        monkeypatch.setattr(
            module,
            "_cases",
            lambda checkpoint: {name: every(checkpoint)[name] for name in names},
        )

    return cases


def check(source, **options):
    return verify(source, verbose=0, **{"lengths": LENGTHS, **options})


# === What is compared ===

LM = [("encoder", "sequence"), ("mlm", "mlm"), ("lm", "mlm"), ("unilm", "mlm")]
KEPT = ("keep-tokens", "mlm")
POOLS = [("pool-linear", "pooled"), ("pool-tanh", "pooled")]
COMPARED = {
    CHARACTER: [*LM, KEPT],
    V2: [*LM, KEPT],
    SIM: [*LM, ("unilm", "pooled"), *POOLS, KEPT],
    NSP: [*LM, ("unilm", "pooled"), *POOLS, ("nsp", "nsp"), KEPT],
    V2_EMBEDDING_SIZE: [("encoder", "sequence"), ("keep-tokens", "sequence")],
    SAVED / "encoder.h5": [("encoder", "sequence"), ("keep-tokens", "sequence")],
    SAVED / "lm": [*LM, KEPT],
}


@pytest.mark.parametrize("source", COMPARED, ids=lambda path: path.stem)
def test_everything_that_there_are_weights_for_is_compared(source, stand_in):
    given = {"config": CONFIG} if source.parent == SAVED else {}
    report = check(source, **given)
    assert report.passed
    assert {(c.case, c.output) for c in report.comparisons} == set(COMPARED[source])
    assert len(report.comparisons) == len(COMPARED[source]) * len(LENGTHS)
    assert {c.length for c in report.comparisons} == set(LENGTHS)
    for c in report.comparisons:
        # The same numbers: the stand-in has read back what was exported.
        assert c.largest == c.mean == 0
        assert c.same_top == (1 if c.output == "mlm" else None)
        assert c.bar >= 1e-4


@pytest.mark.parametrize("name", ["preset", "x.safetensors", "x.keras"])
def test_what_bert4keras_cannot_load_is_exported_for_it(name, tmp_path, stand_in, only):
    only("mlm", "nsp")
    source = convert(NSP, tmp_path / name, verbose=0)
    report = check(source, lengths=(5,))
    assert report.passed
    assert {c.output for c in report.comparisons} == {"mlm", "nsp"}


def test_half_precision_is_compared_by_its_own_numbers(tmp_path, stand_in, only):
    only("mlm")
    half = convert(CHARACTER, tmp_path / "x.zip", dtype="float16", verbose=0)
    assert check(half, lengths=(5,)).passed


def test_options_of_a_preset_are_those_of_bert4keras(tmp_path, stand_in, only):
    only("encoder", "keep-tokens")
    source = convert(
        CHARACTER, tmp_path / "x", residual_attention_scores=True, verbose=0
    )
    seen = []
    stand_in.distort = lambda kwargs, role, value: seen.append(kwargs)
    assert check(source, lengths=(5,)).passed
    assert all(kwargs["residual_attention_scores"] for kwargs in seen)


@pytest.mark.parametrize(
    ("source", "option"),
    [("condition.h5", "layer_norm_cond_size"), ("x.keras", "custom_position_ids")],
)
def test_what_needs_other_inputs_is_refused(source, option, tmp_path, stand_in):
    given = {}
    if source == "x.keras":
        source = convert(SMALL, tmp_path / source, custom_position_ids=True, verbose=0)
    else:
        source, given = SAVED / source, {"config": CONFIG}
    with pytest.raises(ConfigurationError, match=f"has {option}, for which there are"):
        check(source, **given)


def test_inputs_hold_what_a_mask_can_get_wrong():
    for length in (1, 2, 20, 512):
        inputs = module._inputs(length, 100)
        token_ids, segment_ids = inputs["token_ids"], inputs["segment_ids"]
        assert token_ids.shape == segment_ids.shape == (3, length)
        assert token_ids.max() < 100
        assert (token_ids[0] != 0).all()
        assert token_ids[2, 0] == 0
        if length > 2:
            lengths = [np.flatnonzero(row)[-1] + 1 for row in token_ids]
            assert len(set(lengths)) == 3
            assert segment_ids[:2].any(axis=1).all()
            middle = token_ids[2, 1 : lengths[2]]
            assert (middle == 0).any() or length < 48


# === It can fail ===


def failed(report):
    return {(c.case, c.output) for c in report.comparisons if not c.passed}


def test_a_difference_beyond_the_bar_fails_and_one_within_does_not(stand_in, only):
    only("mlm")

    def shift(by):
        def distort(kwargs, role, value):
            value[-1, -1, -1] += by

        return distort

    stand_in.distort = shift(9e-5)
    assert check(CHARACTER).passed
    stand_in.distort = shift(-2e-4)
    report = check(CHARACTER)
    assert not report.passed
    assert failed(report) == {("mlm", "mlm")}
    # Beyond 512 rounding is allowed for.
    report = check(SMALL, lengths=(512, 513))
    assert {c.length for c in report.comparisons if not c.passed} == {512}
    stand_in.distort = shift(6e-4)
    assert not check(SMALL, lengths=(513,)).passed


def test_another_best_token_shows(stand_in, only):
    only("mlm")

    def distort(kwargs, role, value):
        value[0, 0] = -value[0, 0]

    stand_in.distort = distort
    (comparison,) = check(CHARACTER, lengths=(20,)).comparisons
    assert comparison.same_top == 59 / 60


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_fails(value, stand_in, encoder):
    def distort(kwargs, role, values):
        if "keep_tokens" not in kwargs:
            values[0, 0, 0] = value

    stand_in.distort = distort
    report = check(encoder)
    assert failed(report) == {("encoder", "sequence")}
    assert "FAILED: 3 of 6 outputs are beyond their bars" in str(report)


def test_another_epsilon_fails(stand_in, encoder):
    stand_in.computed_with = 1e-3
    assert failed(check(encoder)) == set(ENCODER)
    # With the same on both sides there is no difference, whichever it is.
    stand_in.layer_norm_epsilon = 1e-3
    report = check(encoder)
    assert report.passed
    assert report.layer_norm_epsilon == 1e-3


def after_the_reference(stand_in, change):
    """Calls `change` once the reference has answered, and before ours is built."""
    stand_in.distort = lambda kwargs, role, value: change()


def test_another_gelu_fails(stand_in, encoder, monkeypatch):
    import keras

    def tanh_gelu(x):
        return keras.activations.gelu(x, approximate=True)

    after_the_reference(
        stand_in,
        lambda: monkeypatch.setattr(roformer_keras.layers.block, "erf_gelu", tanh_gelu),
    )
    report = check(encoder, lengths=(5,))
    assert not report.passed
    # By the second case the stand-in has the other one too.
    assert failed(report) == {("encoder", "sequence")}


def test_a_mask_that_is_lost_fails(stand_in, encoder, monkeypatch):
    from roformer_keras.layers import masks

    real = masks.padding_mask
    after_the_reference(
        stand_in,
        lambda: monkeypatch.setattr(
            masks, "padding_mask", lambda token_ids: real(token_ids * 0 + 1)
        ),
    )
    report = check(encoder, lengths=(20,))
    assert failed(report) == {("encoder", "sequence")}


def test_another_pooler_fails(stand_in, only):
    only("encoder", "unilm", "pool-linear", "pool-tanh")

    def distort(kwargs, role, value):
        if role == "pooled" and kwargs.get("with_pool") == "linear":
            value[...] = np.tanh(value)

    stand_in.distort = distort
    report = check(SIM)
    assert failed(report) == {("unilm", "pooled"), ("pool-linear", "pooled")}


def test_no_comparison_at_all_does_not_pass():
    assert not module.Report("x", "y", 1e-7, ()).passed


# === Reports ===


def test_a_report_is_a_table_and_plain_json(stand_in, encoder):
    report = check(encoder)
    lines = str(report).splitlines()
    assert lines[0] == f"{encoder} against bert4keras 0.0.0 (layer_norm_epsilon 1e-07)"
    assert lines[2].split() == [
        *("case", "output", "length", "max", "diff", "mean", "diff", "same", "top"),
        "bar",
    ]
    assert len(lines) == 3 + len(report.comparisons) + 2
    assert lines[-1] == "passed: all 6 outputs within their bars"
    content = json.loads(json.dumps(report.to_dict()))
    assert content["passed"] is True
    assert content["reference"] == "bert4keras 0.0.0"
    assert content["layer_norm_epsilon"] == 1e-7
    assert len(content["comparisons"]) == len(report.comparisons)
    assert set(content["comparisons"][0]) == {
        *("case", "output", "length", "largest", "mean", "same_top", "bar", "passed")
    }


def test_the_command_line_speaks_by_exit_code_and_json(stand_in, encoder, capsys):
    arguments = ["verify", str(encoder), "--lengths", "1,5", "--quiet"]
    assert main(arguments) == 0
    assert "passed: all 4 outputs" in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True

    def distort(kwargs, role, value):
        value += 1

    stand_in.distort = distort
    assert main(arguments) == 1
    assert "FAILED: 4 of 4 outputs" in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["passed"] is False


@pytest.mark.parametrize("lengths", [(), (0,), (5, -1)])
def test_lengths_must_be_lengths(lengths, stand_in):
    with pytest.raises(ConfigurationError, match="lengths must be 1 or more, got"):
        check(CHARACTER, lengths=lengths)


def test_a_length_that_is_no_number_is_wrong_usage(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["verify", str(CHARACTER), "--lengths", "1,x"])
    assert "lengths must be integers between commas" in capsys.readouterr().err


# === A saved reference ===


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory, encoder):
    path = tmp_path_factory.mktemp("reference") / "reference.npz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "find_reference", lambda *arguments: StandIn())
        report = check(encoder, save_reference=path)
    assert report.passed
    return path, report


@pytest.fixture
def saved(saved_once, tmp_path, monkeypatch):
    """A saved reference and its report; bert4keras is gone since."""

    def gone(*arguments):
        raise AssertionError("bert4keras must not be run")

    monkeypatch.setattr(module, "find_reference", gone)
    path, report = saved_once
    return shutil.copy(path, tmp_path / "reference.npz"), report


def test_a_saved_reference_gives_the_same_report(saved, encoder):
    path, report = saved
    again = check(encoder, reference=path)
    assert again.comparisons == report.comparisons
    assert again.layer_norm_epsilon == report.layer_norm_epsilon
    assert again.reference == f"bert4keras 0.0.0, as saved in {path}"


def test_a_saved_reference_serves_the_same_weights_in_any_format(
    saved, encoder, tmp_path
):
    path, report = saved
    source = convert(encoder, tmp_path / "x.safetensors", verbose=0)
    assert check(source, reference=path).comparisons == report.comparisons


def test_a_saved_reference_still_fails_a_wrong_model(saved, encoder, monkeypatch):
    import keras

    monkeypatch.setattr(
        roformer_keras.layers.block,
        "erf_gelu",
        lambda x: keras.activations.gelu(x, approximate=True),
    )
    assert failed(check(encoder, reference=saved[0])) == set(ENCODER)


def test_a_saved_reference_with_other_outputs_fails(saved, encoder):
    path, _ = saved
    with np.load(path) as file:
        arrays = dict(file)
    arrays["outputs/encoder/2/sequence/values"][0, 1, 0] += 1e-3
    np.savez(path, **arrays)
    report = check(encoder, reference=path)
    assert [(c.case, c.length) for c in report.comparisons if not c.passed] == [
        ("encoder", 2)
    ]


def test_a_saved_reference_is_refused_for_other_weights(saved, encoder, tmp_path):
    path, _ = saved
    changed, less = tensors_of(encoder), tensors_of(encoder)
    changed["bert/encoder/layer_0/output/dense/bias"][0] += 1e-6
    del less["bert/encoder/layer_0/output/dense/bias"]
    for tensors in (changed, less, tensors_of(SMALL)):
        other = write_checkpoint(tmp_path / "other", tensors, CONFIG)
        message = "was saved for other weights than those in"
        with pytest.raises(CheckpointError, match=message):
            check(other, reference=path)


def test_large_outputs_are_saved_in_samples(tmp_path, stand_in, monkeypatch, only):
    only("mlm")
    whole, small = tmp_path / "whole.npz", tmp_path / "small.npz"
    check(CHARACTER, save_reference=whole)
    monkeypatch.setattr(module, "_SAVED_SIZE", 2_000)
    report = check(CHARACTER, save_reference=small)
    assert small.stat().st_size < whole.stat().st_size / 4
    again = check(CHARACTER, reference=small)
    assert again.passed
    assert [c.same_top for c in again.comparisons] == [
        c.same_top for c in report.comparisons
    ]
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
    path, _ = saved
    before = listing(tmp_path)
    with pytest.raises(ConfigurationError, match="cannot be saved again: copy it"):
        check(encoder, reference=path, save_reference=tmp_path / "again.npz")
    assert listing(tmp_path) == before


def _cut(data, share):
    return data[: int(len(data) * share)]


def _flip(data):
    data = bytearray(data)
    data[len(data) // 2] ^= 255
    return bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"no npz",
        lambda data: _cut(data, 0.2),
        lambda data: _cut(data, 0.9),
        _flip,
        lambda data: data[:100] + data[4000:],
    ],
    ids=["empty", "text", "cut-early", "cut-late", "flipped", "hole"],
)
def test_a_damaged_reference_file_says_so(damage, saved, capsys):
    path, _ = saved
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SourceError, match="is not a whole reference file"):
        check(SMALL, reference=path)
    assert main(["verify", str(SMALL), "--reference", str(path), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("roformer-keras: error: ")
    assert error.count("\n") == 1


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


def test_published_values_pass_the_weights_they_are_of(tmp_path, monkeypatch):
    known = module.PUBLISHED[NAME]
    token_ids = np.array(known["token_ids"], "int32")
    inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
    model = counterpart(WORD, {"with_mlm": "linear"})
    logits = outputs_by_role(model, inputs)["mlm"][0, :3, :3]
    values = {**known, "mlm": logits.round(4).tolist()}
    monkeypatch.setitem(module.PUBLISHED, NAME, values)
    source = copied(WORD, tmp_path).rename(tmp_path / f"{NAME}.zip")
    report = verify(source, published=True)
    assert report.passed
    assert report.layer_norm_epsilon == 1e-12
    values["mlm"][2][1] += 2e-4
    assert not verify(source, published=True).passed


def test_nothing_is_published_of_other_checkpoints():
    with pytest.raises(ConfigurationError, match=f"nothing is published .*: {NAME}"):
        verify(SIM, published=True)


def test_the_published_values_are_those_that_are_known():
    assert module.PUBLISHED[NAME]["token_ids"] == [[0, 1, 2, 3, 4, 5]]
    assert module.PUBLISHED[NAME]["mlm"] == [
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
    for options, message in (
        ({"bert4keras": tmp_path}, "there is no bert4keras package in"),
        (
            {"bert4keras": package(tmp_path / "a", "raise ImportError('not today')")},
            "ImportError: not today",
        ),
        (
            {"bert4keras": package(tmp_path / "b", "import os; os._exit(5)")},
            "the reference process ended early, with code 5",
        ),
        ({"python": "/no/such/python"}, "cannot run /no/such/python: No such file"),
    ):
        with pytest.raises(ReferenceUnavailable) as caught:
            check(CHARACTER, **options)
        assert message in str(caught.value)
        if "python" not in options:
            assert "pip install --no-deps --target bert4keras-0.11.5" in str(
                caught.value
            )
    monkeypatch.setenv("ROFORMER_KERAS_REFERENCE", str(tmp_path / "c"))
    assert main(["verify", str(CHARACTER), "--quiet"]) == 6
    shown = capsys.readouterr()
    assert shown.out == ""
    first, rest = shown.err.split("\n", 1)
    assert first.startswith("roformer-keras: error: there is no bert4keras package in")
    assert "    pip install --no-deps --target" in rest
    assert "Traceback" not in shown.err


# === With the real one ===


def real(version):
    folder = reference_folder(version)
    if folder is None:
        message = f"needs bert4keras {version} in .reference"
        (pytest.fail if SHARED.is_dir() else pytest.skip)(message)
    return folder


@pytest.mark.e2e
@pytest.mark.parametrize("version", ["0.11.5", "0.10.6"])
@pytest.mark.parametrize("source", [CHARACTER, SIM, NSP, V2], ids=lambda p: p.stem)
def test_the_real_bert4keras_computes_the_same(source, version):
    options = {"bert4keras": real(version), "lengths": (1, 2, 40)}
    if source == V2 and version == "0.10.6":
        with pytest.raises(ReferenceUnavailable, match="has no model 'roformer_v2'"):
            check(source, **options)
        return
    report = check(source, **options)
    print(report)
    assert report.passed
    assert report.reference == f"bert4keras {version}"
    assert report.layer_norm_epsilon == {"0.11.5": 1e-7, "0.10.6": 1e-12}[version]
    assert {(c.case, c.output) for c in report.comparisons} == set(COMPARED[source])
    assert all(c.largest < 1e-5 for c in report.comparisons)
    assert any(c.largest > 0 for c in report.comparisons)


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["preset", "x.safetensors", "unilm-pool.h5"])
def test_the_real_bert4keras_computes_the_same_of_other_sources(name, tmp_path):
    folder = real("0.11.5")
    given = {}
    if name.endswith(".h5"):
        source, given = SAVED / name, {"config": CONFIG}
    else:
        source = convert(SMALL, tmp_path / name, verbose=0)
    report = check(source, bert4keras=folder, lengths=(1, 2, 40), **given)
    assert report.passed
    assert len(report.comparisons) == 8 * 3
    assert all(c.largest < 1e-5 for c in report.comparisons)


@pytest.mark.e2e
def test_the_real_bert4keras_fails_other_weights(tmp_path, monkeypatch):
    # Ours loads what is not what bert4keras is given.
    folder = real("0.11.5")
    tensors = tensors_of(SMALL)
    tensors["bert/encoder/layer_0/output/dense/bias"][0] += 0.01
    changed = write_checkpoint(tmp_path / "x", tensors, CONFIG)
    export = module._export
    monkeypatch.setattr(
        module,
        "_export",
        lambda path, checkpoint, scratch: export(SMALL, checkpoint, scratch),
    )
    report = check(changed, bert4keras=folder, lengths=(5,))
    assert not report.passed
    assert ("encoder", "sequence") in failed(report)
