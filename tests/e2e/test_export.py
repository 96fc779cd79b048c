"""Exported models: what other runtimes compute, and what is refused.

Exports take long, so each is made once: `exports` holds those of `sim`.
"""

import contextlib
import functools
import io
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from common import CHARACTER, SIM, V2, read_json
from finetuning_cases import load_small

from roformer_keras import RoFormerBackbone, RoFormerSim, RoFormerTokenizer, tasks
from roformer_keras.base.errors import ConfigurationError, OutputError, SourceError
from roformer_keras.cli import main
from roformer_keras.export import (
    FORMATS,
    ServedEncoder,
    export_model,
    load_exported,
)
from roformer_keras.export import model as exported_model
from roformer_keras.tasks.multiple_choice import RoFormerMultipleChoice
from roformer_keras.tasks.sentence_encoder import RoFormerSentenceEncoder
from roformer_keras.tasks.text_classifier import RoFormerTextClassifier

CPU = Path("/proc/cpuinfo")
# Without these instructions sums of pairs of products are cut at 16 bits.
HAS_VNNI = not CPU.exists() or "vnni" in CPU.read_text(encoding="utf-8")
CLOSE = 0.99 if HAS_VNNI else 0.9

TEXTS = ["今天天气不错", "北京", "我爱北京天安门，天安门上太阳升。"]
# Others to calibrate with.
CALIBRATION = [
    before + text + after
    for text in TEXTS
    for before in ("我说", "昨天", "天安门", "不错")
    for after in ("。", "，北京", "了")
]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The folder of a RoFormer-Sim of one block, which is converted sooner."""
    folder = tmp_path_factory.mktemp("sim") / "sim"
    load_small(RoFormerSim, SIM).save_to_preset(folder)
    return folder


@pytest.fixture(scope="module")
def sim(source):
    return RoFormerSim.from_preset(source)


@pytest.fixture(scope="module")
def exports(sim, source, tmp_path_factory):
    """`exports(format, int8)`: the folder of an export of `sim`."""
    root = tmp_path_factory.mktemp("exports")
    lines = root / "lines.txt"
    lines.write_text("".join(f"{text}\n" for text in CALIBRATION), encoding="utf-8")

    @functools.cache
    def export(format, int8=False):
        folder = root / f"{format}-{int8}"
        if format == "openvino" and int8:
            # By the command line, which prints JSON alone.
            flags = ["--format", format, "--int8", "--json"]
            flags += ["--calibration-texts", str(lines)]
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                assert main(["export", str(source), str(folder), *flags]) == 0
            metadata = json.loads(shown.getvalue())
        else:
            metadata = export_model(sim, folder, format, int8=int8)
        assert metadata == metadata_of(folder)
        return folder

    return export


def metadata_of(folder):
    return read_json(folder / "export.json")


def inputs_of(folder, texts=TEXTS):
    """Ids of texts by the tokenizer that is exported with the model."""
    batch = RoFormerTokenizer.from_preset(folder)(texts)
    return {name: np.asarray(array, "int32") for name, array in batch.items()}


def operations(folder):
    graph = onnx.load(folder / "model.onnx").graph
    return Counter(node.op_type for node in graph.node)


@pytest.mark.parametrize("format", FORMATS)
def test_vectors_are_those_of_encode(format, sim, exports):
    folder = exports(format)
    metadata = metadata_of(folder)
    assert metadata["outputs"] == {"vectors": "float32 (batch, 32)"}
    # TensorFlow may compute the very same bits from its own format.
    smallest = 0 if format == "saved_model" else 1e-12
    assert smallest <= metadata["differences"]["vectors"]["largest"] < 1e-5
    served, expected = load_exported(folder, format, trust=True), sim.encode(TEXTS)
    encoder = ServedEncoder(folder, trust=True)
    for vectors in (served(inputs_of(folder))["vectors"], encoder.encode(TEXTS)):
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
    np.testing.assert_allclose(encoder.encode(TEXTS[0]), expected[0], atol=1e-5)
    # Inputs of another shape, in another order.
    inputs = inputs_of(folder, TEXTS[:1])
    vectors = served({name: inputs[name] for name in reversed(inputs)})["vectors"]
    np.testing.assert_allclose(vectors, expected[:1], atol=1e-5)


@pytest.mark.parametrize("format", ["onnx", "openvino"])
def test_vectors_of_integers(format, sim, exports):
    folder = exports(format, True)
    metadata = metadata_of(folder)
    assert metadata["int8"]
    assert CLOSE < metadata["differences"]["vectors"]["min_cosine"] < 0.9999999
    cosines = np.sum(ServedEncoder(folder).encode(TEXTS) * sim.encode(TEXTS), axis=1)
    assert (cosines > CLOSE).all()
    assert (cosines < 0.9999999).any()
    # Nothing else is left of the conversion.
    names = {"onnx": ["model.onnx"], "openvino": ["model.bin", "model.xml"]}
    files = [p.name for p in folder.iterdir() if p.suffix in (".onnx", ".bin", ".xml")]
    assert sorted(files) == names[format]


def test_scores_of_choices_are_those_of_rows(tmp_path):
    model = load_small(RoFormerMultipleChoice)
    row = ("今天天气不错", "天气？", ("不错", "不", "北京"))
    metadata = export_model(model, tmp_path / "x", "onnx")
    assert metadata["outputs"] == {"outputs": "float32 (batch, 1)"}
    ids = {name: one[0] for name, one in model.make_rows([row]).batch([0]).items()}
    scores = load_exported(tmp_path / "x", "onnx")(ids)["outputs"]
    (expected,) = model.predict([row], verbose=0)
    np.testing.assert_allclose(scores[:, 0], expected, atol=1e-5)


# Heads that exclude places: their scores are compared where both give some.
EXPORTED_TASKS = {
    "RoFormerTokenClassifier": {"labels": ["人", "地"], "crf": True},
    "RoFormerSpanExtractor": {"labels": ["人", "地"]},
    "RoFormerRelationExtractor": {"labels": ["在", "是"]},
    "RoFormerQuestionAnswerer": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED_TASKS)
def test_an_export_of_a_task_is_checked_where_it_gives_scores(
    name, tmp_path, monkeypatch
):
    model = load_small(getattr(tasks, name), **EXPORTED_TASKS[name])
    metadata = export_model(model, tmp_path / "x", "onnx")
    differences = metadata["differences"]
    # What excludes all places would be as near.
    assert 0 < differences["outputs"]["largest"] < 1e-4
    assert 0.99 < differences["outputs"]["min_cosine"] < 1.01
    if "crf" in EXPORTED_TASKS[name]:
        transitions = metadata["options"]["transitions"]
        np.testing.assert_allclose(transitions, model.crf.transitions, atol=1e-6)
    compute = onnxruntime.InferenceSession.run

    def run_wrongly(session, *arguments):
        return [values + 0.1 for values in compute(session, *arguments)]

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", run_wrongly)
    with pytest.raises(OutputError, match=r"must be within .* got 0\.1:"):
        export_model(model, tmp_path / "y", "onnx")


def test_differences_leave_out_what_both_exclude():
    expected = np.array([[1.0, -np.inf], [-np.inf, -np.inf], [-1e9, 2.0]])
    outputs = expected + 1e-5
    found_differences = exported_model._compare(
        "outputs", outputs, expected, "onnx", True
    )
    differences = {"largest": 1e-5, "mean": 1e-5, "min_cosine": 1.0}
    assert found_differences == pytest.approx(differences)
    for wrong in (np.inf, np.nan, -1e9):
        outputs[0, 0] = wrong
        with pytest.raises(OutputError, match="got 1 of 6 positions that differ"):
            exported_model._compare("outputs", outputs, expected, "onnx", True)


def test_int8_models_compute_in_integers(sim, exports):
    assert ' element_type="i8"' in (exports("openvino", True) / "model.xml").read_text()
    folder, layers = exports("onnx", True), sim.config.num_layers
    sizes = [(f / "model.onnx").stat().st_size for f in (folder, exports("onnx"))]
    assert sizes[0] < sizes[1]
    counts = operations(folder)
    assert counts["MatMulInteger"] == 6 * layers + 1
    # Scores and their products with values stay in float32.
    assert counts["MatMul"] == 2 * layers


def test_norms_and_activations_are_one_operation_each(sim, exports):
    counts, layers = operations(exports("onnx")), sim.config.num_layers
    expected = {
        "LayerNormalization": 2 * layers + 1,
        "Gelu": layers,
        # Keys twice, queries, values and outputs of attention.
        "Transpose": 5 * layers,
        # The norm of the vectors.
        "Sqrt": 1,
        # OpenVINO takes a mask by arithmetic for the rounding of integers.
        "Where": 1,
    }
    assert {name: counts[name] for name in expected} == expected


def test_a_backbone_has_named_outputs_and_no_vectors(tmp_path):
    folder = tmp_path / "served"
    model = load_small(RoFormerBackbone, SIM, pooler_activation="linear")
    assert export_model(model, folder, "onnx")["outputs"] == {
        "pooled_output": "float32 (batch, 32)",
        "sequence_output": "float32 (batch, length, 32)",
    }
    graph = onnx.load(folder / "model.onnx").graph
    shapes = {
        value.name: [
            axis.dim_param or axis.dim_value
            for axis in value.type.tensor_type.shape.dim
        ]
        for value in (*graph.input, *graph.output)
    }
    assert shapes == {
        "token_ids": ["batch", "length"],
        "segment_ids": ["batch", "length"],
        "pooled_output": ["batch", 32],
        "sequence_output": ["batch", "length", 32],
    }
    onnx.checker.check_model(str(folder / "model.onnx"))
    with pytest.raises(
        ConfigurationError, match=r"must give vectors, .* gives sequence"
    ):
        ServedEncoder(folder)
    with pytest.raises(SourceError, match=r"there is no .*export\.json"):
        ServedEncoder(tmp_path)


def test_a_fine_tuned_model_is_served(tmp_path, cli):
    model = RoFormerTextClassifier.from_preset(V2, classes=["坏", "好"])
    preset, target = tmp_path / "preset", tmp_path / "served"
    model.save_to_preset(preset)
    out = cli("export", preset, target, "--format", "onnx")
    assert out.startswith(f"{target}\n  outputs ")
    metadata = metadata_of(target)
    assert metadata["model"] == "RoFormerTextClassifier"
    assert metadata["options"]["classes"] == ["坏", "好"]
    inputs = inputs_of(target)
    outputs = load_exported(target, "onnx")(inputs)["outputs"]
    np.testing.assert_allclose(outputs, np.asarray(model(inputs)), atol=1e-5)


def test_texts_are_cut_as_the_encoder_was_trained(tmp_path):
    encoder = load_small(RoFormerSentenceEncoder, SIM, max_length=8)
    export_model(encoder, tmp_path / "served")
    with pytest.raises(ConfigurationError, match=r"is a program, .* pass trust=True"):
        ServedEncoder(tmp_path / "served")
    served = ServedEncoder(tmp_path / "served", trust=True)
    text = TEXTS[2] * 3
    expected = encoder.encode([text], verbose=0)[0]
    np.testing.assert_allclose(served.encode(text), expected, atol=1e-5)
    assert np.abs(served.encode(text, max_length=20) - expected).max() > 1e-3


INT8 = {"format": "openvino", "int8": True}
REFUSED = [
    ({"format": "pb"}, "format must be one of .* 'pb'"),
    ({"int8": True}, "int8 is for the formats 'onnx' and 'openvino', got 'saved_model"),
    (INT8, "at least 20 different texts like those to serve, got 0: give about 100"),
    ({**INT8, "calibration_texts": ["", " ", *TEXTS * 10]}, "got 3"),
    ({**INT8, "calibration_texts": "今天"}, "must be a list of str, got '今天'"),
    ({**INT8, "calibration_texts": iter(TEXTS)}, "must be a list of str, got <list_it"),
    (
        {"format": "onnx", "int8": True, "calibration_texts": CALIBRATION},
        "alone, got 'onnx' with int8",
    ),
]


def test_options_that_are_refused(sim, tmp_path):
    for options, message in REFUSED:
        with pytest.raises(ConfigurationError, match=message):
            export_model(sim, tmp_path / "served", **options)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_leaves_nothing(sim, tmp_path, monkeypatch, refused):
    folder = tmp_path / "served"
    conditional = RoFormerBackbone.from_preset(CHARACTER, custom_position_ids=True)
    with pytest.raises(ConfigurationError, match="takes position_ids too"):
        export_model(conditional, folder)
    monkeypatch.setattr("roformer_keras.export.model._MIN_COSINE", 1.01)
    with pytest.raises(OutputError, match=r"a cosine of at least 1\.01 .* got \d"):
        export_model(sim, folder, "onnx", int8=True)
    monkeypatch.setattr("roformer_keras.export.model._TOLERANCE", -1)
    with pytest.raises(OutputError, match="vectors of the export must be within"):
        export_model(sim, folder, "onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    message = "needs onnxruntime, .* pip install 'roformer-keras\\[export\\]'"
    with pytest.raises(ConfigurationError, match=message):
        export_model(sim, folder, "onnx")
    assert list(tmp_path.iterdir()) == []
    folder.mkdir()
    assert "--overwrite" in refused("export", SIM, folder, code=4)


@pytest.mark.filterwarnings("ignore:In the future:FutureWarning")
def test_keras_exports_a_model_that_was_not_called(source, tmp_path):
    model = RoFormerSim.from_preset(source)
    model.export(tmp_path / "sim.onnx", format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "sim.onnx")
    inputs = model.tokenizer(["你好", "白日依山尽"])
    names = [x.name for x in session.get_inputs()]
    assert sorted(names) == ["segment_ids", "token_ids"]
    outputs = session.run(None, {n: inputs[n].astype("int32") for n in names})
    expected = model.predict(inputs, verbose=0)["pooled_output"]
    vectors = next(x for x in outputs if x.shape == expected.shape)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
