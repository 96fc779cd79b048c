"""`verify` with models: a stand-in for bert4keras, and the real one.

The stand-in is this package's own models, on the files that were exported for
bert4keras, and wrong on request. `tests/unit/test_verification.py` has the rules.
The real bert4keras computes each class of models once at small size and one of base
size; `tools/reference/matrix.py` compares everything, once a week.
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
    NSP,
    SAVED,
    SIM,
    SMALL,
    V2,
    WORD,
    zipped_json,
)
from sources import copied, listing, tensors_of, unpacked, write_checkpoint

import roformer_keras.layers.norms
from roformer_keras import RoFormerBackbone, RoFormerConfig, convert, verify
from roformer_keras.base import visible_keys
from roformer_keras.base.errors import CheckpointError, ConfigurationError
from roformer_keras.cli import main
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.conversion.weights import weight_table
from roformer_keras.inference import fast_model
from roformer_keras.verification.counterpart import counterpart, outputs_by_role
from roformer_keras.verification.verify import PUBLISHED
from tools.reference import matrix

MODULE = "roformer_keras.verification.verify"
CONFIG = zipped_json(SMALL)
ONE_LAYER = {**CONFIG, "num_hidden_layers": 1}
IS_OUTSIDE_GRAPH = fast_model._is_outside_graph
pytestmark = pytest.mark.usefixtures("plain_calls")


@pytest.fixture
def graphs(monkeypatch):
    """`model(ids)` traces a graph, as it does for users."""
    monkeypatch.setattr(fast_model, "_is_outside_graph", IS_OUTSIDE_GRAPH)


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


def check(source, bert4keras=None, lengths=(1, 2, 20), cases=("encoder",), **options):
    options |= {"lengths": lengths, "cases": cases, "verbose": 0}
    return verify(source, bert4keras=bert4keras, **options)


def failed(report):
    return {(c.case, c.output) for c in report.comparisons if not c.passed}


def compared(report):
    return [(c.case, c.output, c.length) for c in report.comparisons]


# === What is compared ===


def test_the_same_numbers_have_no_difference(stand_in):
    cases = ["mlm", "keep-tokens"]
    report = check(SAVED / "lm", stand_in, config=CONFIG, cases=cases)
    assert report.passed
    assert compared(report) == [
        (case, "mlm", length) for case in cases for length in (1, 2, 20)
    ]
    for c in report.comparisons:
        assert c.largest == c.mean == 0
        assert c.same_top == 1


def test_options_of_a_preset_are_those_of_bert4keras(encoder, tmp_path, stand_in):
    source = convert(encoder, tmp_path / "x", residual_attention_scores=True, verbose=0)
    seen = []
    stand_in.distort = lambda kwargs, role, value: seen.append(kwargs)
    assert check(source, stand_in, lengths=(5,)).passed
    assert [kwargs["residual_attention_scores"] for kwargs in seen] == [True]


def test_lengths_are_refused(stand_in):
    for lengths in ((), (0,), (5, -1)):
        with pytest.raises(ConfigurationError, match="lengths must be 1 or more, to 1"):
            check(SIM, stand_in, lengths=lengths)


def test_a_model_of_one_segment(tmp_path, stand_in):
    with open_checkpoint(SMALL) as checkpoint:
        config = checkpoint.config.replace(num_segments=1)
    RoFormerBackbone(config).save_to_preset(tmp_path / "x")
    assert check(tmp_path / "x", stand_in, lengths=(5,)).passed
    assert stand_in.inputs[5]["segment_ids"].max() == 0


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
        assert check(encoder, stand_in, lengths=(1,), cases=None).passed
    finally:
        gc.unfreeze()
    assert len(models) == 2


# === It can fail ===


def test_another_epsilon_fails(stand_in, encoder):
    stand_in.computed_with = 1e-3
    report = check(encoder, stand_in, cases=None)
    assert failed(report) == {("encoder", "sequence"), ("keep-tokens", "sequence")}
    # With the same on both sides there is no difference, whichever it is.
    stand_in.layer_norm_epsilon = 1e-3
    report = check(encoder, stand_in, lengths=(5,))
    assert report.passed
    assert report.layer_norm_epsilon == 1e-3


def use_tanh_gelu(monkeypatch):
    def tanh_gelu(x):
        return keras.activations.gelu(x, approximate=True)

    monkeypatch.setattr(roformer_keras.layers.norms, "erf_gelu", tanh_gelu)


def lose_the_mask(monkeypatch):
    real = visible_keys.is_token
    monkeypatch.setattr(
        visible_keys, "is_token", lambda xp, ids, order: real(xp, ids * 0 + 1, order)
    )


@pytest.mark.parametrize("change", [use_tanh_gelu, lose_the_mask])
def test_another_model_fails(change, stand_in, encoder, monkeypatch):
    # Once the reference has answered, and before ours is built.
    stand_in.distort = lambda kwargs, role, value: change(monkeypatch)
    report = check(encoder, stand_in, lengths=(20,))
    assert failed(report) == {("encoder", "sequence")}


def test_another_pooler_fails(stand_in):
    def distort(kwargs, role, value):
        if role == "pooled" and kwargs.get("with_pool") == "linear":
            value[...] = np.tanh(value)

    stand_in.distort = distort
    cases = ["unilm", "pool-linear", "pool-tanh"]
    report = check(SMALL, stand_in, lengths=(5,), cases=cases)
    assert failed(report) == {("unilm", "pooled"), ("pool-linear", "pooled")}


# === The command line ===


def test_the_command_line_speaks_by_exit_code_and_json(
    stand_in, encoder, monkeypatch, capsys
):
    monkeypatch.setattr(f"{MODULE}.Reference", lambda *arguments: stand_in)
    installed = "roformer_keras.verification.reference.is_installed"
    monkeypatch.setattr(installed, lambda name: True)
    arguments = ["verify", str(encoder), "--lengths", "1,5", "--quiet"]
    assert main(arguments) == 0
    assert "passed: all 4 outputs" in capsys.readouterr().out

    def distort(kwargs, role, values):
        values += 1

    stand_in.distort = distort
    assert main([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["passed"] is False


def test_without_bert4keras_the_command_line_says_how_to_get_it(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("ROFORMER_KERAS_REFERENCE", str(tmp_path / "c"))
    assert main(["verify", str(SIM), "--quiet"]) == 6
    shown = capsys.readouterr()
    assert shown.out == ""
    first, details = shown.err.split("\n", 1)
    assert first.startswith("roformer-keras: error: there is no bert4keras package in")
    assert "    pip install --no-deps --target" in details
    assert "Traceback" not in shown.err


# === A saved reference ===


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory, encoder):
    path = tmp_path_factory.mktemp("reference") / "reference.npz"
    report = check(encoder, StandIn(), cases=None, save_reference=path)
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
    again = check(encoder, reference=path, cases=None)
    assert again.comparisons == report.comparisons
    assert again.layer_norm_epsilon == report.layer_norm_epsilon
    assert again.reference == f"bert4keras 0.0.0, as saved in {path}"
    # Also for the same weights in another format.
    source = convert(encoder, tmp_path / "x.safetensors", verbose=0)
    some = check(source, reference=path).comparisons
    assert some == tuple(c for c in report.comparisons if c.case == "encoder")


def test_a_saved_reference_fails_a_wrong_model_and_wrong_outputs(
    saved, encoder, monkeypatch
):
    path, _ = saved
    with np.load(path) as file:
        arrays = dict(file)
    arrays["outputs/encoder/2/sequence/values"][0, 1, 0] += 1e-3
    np.savez(path, **arrays)
    comparisons = check(encoder, reference=path).comparisons
    assert [c.length for c in comparisons if not c.passed] == [2]
    use_tanh_gelu(monkeypatch)
    comparisons = check(encoder, reference=path).comparisons
    assert [c.length for c in comparisons if not c.passed] == [1, 2, 20]


def test_a_reference_is_not_saved_from_a_saved_one(saved, encoder, tmp_path):
    before = listing(tmp_path)
    with pytest.raises(ConfigurationError, match="cannot be saved again: copy it"):
        check(encoder, reference=saved[0], save_reference=tmp_path / "again.npz")
    assert listing(tmp_path) == before


# === Published values ===

NAME = "chinese_roformer_L-12_H-768_A-12"


def test_published_values_pass_the_weights_they_are_of(tmp_path, monkeypatch, capsys):
    source = copied(WORD, tmp_path).rename(tmp_path / f"{NAME}.zip")
    report = verify(source, published=True)
    assert not report.passed
    (comparison,) = report.comparisons
    assert (comparison.output, comparison.length) == ("mlm", 6)
    assert comparison.bar == 1e-4
    assert "Hugging Face" in report.reference
    with pytest.raises(
        ConfigurationError, match=f"no published values for .*, only for {NAME}"
    ):
        verify(SIM, published=True)
    known = PUBLISHED[NAME]
    token_ids = np.array(known["token_ids"], "int32")
    inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
    logits = outputs_by_role(counterpart(WORD, {"with_mlm": "linear"}), inputs)["mlm"]
    values = {**known, "mlm": logits[0, :3, :3].round(4).tolist()}
    monkeypatch.setitem(PUBLISHED, NAME, values)
    report = verify(source, published=True)
    assert report.passed
    assert report.layer_norm_epsilon == 1e-12
    values["mlm"][2][1] += 2e-4
    assert main(["verify", str(source), "--published"]) == 1
    assert "FAILED" in capsys.readouterr().out


# === With the real one ===

# A source, its name after a conversion, options of that, and the cases that are
# compared. A converted zip is what bert4keras reads; for other formats one is written.
CLASSES = [
    (NSP, "x.safetensors", {}, ["encoder", "mlm", "lm", "pool-tanh", "nsp"]),
    (SIM, "x.zip", {"dtype": "float16"}, ["unilm", "keep-tokens"]),
    (V2, None, {}, ["mlm", "lm"]),
]
OUTPUTS = {
    "encoder": ["sequence"],
    "unilm": ["pooled", "mlm"],
    "pool-tanh": ["pooled"],
    "nsp": ["nsp"],
}


def test_the_real_bert4keras_computes_the_same(real_bert4keras, tmp_path):
    reference, lengths = real_bert4keras("0.11.5"), (1, 40)
    for source, name, options, cases in CLASSES:
        path = source
        if name:
            path = convert(source, tmp_path / name, verbose=0, **options)
        report = check(path, reference, lengths=lengths, cases=cases)
        assert report.reference == "bert4keras 0.11.5"
        assert report.layer_norm_epsilon == 1e-7
        assert sorted(compared(report)) == sorted(
            (case, output, length)
            for case in cases
            for output in OUTPUTS.get(case, ["mlm"])
            for length in lengths
        )
        (row,) = matrix.summarize(source.stem, report, matrix.SMALL_BAR)
        assert row.passed, str(report)


def test_a_base_model_equals_the_real_bert4keras(real_bert4keras, graphs, tmp_path):
    """12 layers of 768 features, at the largest length that has the strict bar."""
    config = RoFormerConfig(
        vocabulary_size=1_000,
        num_layers=12,
        num_heads=12,
        hidden_dim=768,
        intermediate_dim=3072,
        pooler_activation="linear",
    )
    rng = np.random.default_rng(0)
    tensors = {
        row.name: random_weight(rng, row.name, row.checkpoint_shape)
        for row in weight_table(config, ["pooler", "mlm"])
    }
    source = write_checkpoint(tmp_path / "base", tensors, config.to_bert_config())
    del tensors
    report = check(source, real_bert4keras("0.11.5"), lengths=(512,), cases=["unilm"])
    assert report.passed, str(report)
    assert compared(report) == [("unilm", "pooled", 512), ("unilm", "mlm", 512)]


def random_weight(rng, name, shape):
    """Kernels keep the variance of inputs, no bias is 0, no scale is 1."""
    values = rng.standard_normal(shape, "float32")
    if name.endswith("gamma"):
        return 1 + 0.1 * values
    if len(shape) == 1:
        return 0.05 * values
    return 0.02 * values if "embeddings" in name else values / shape[0] ** 0.5


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
    report = check(changed, reference, lengths=(5,))
    assert failed(report) == {("encoder", "sequence")}
    with pytest.raises(CheckpointError, match=r"not do none .* op must be one of"):
        list(reference.run([{"op": "none"}]))
