"""Exported models: what other runtimes compute of them, and what is refused."""

import json
from collections import Counter

import numpy as np
import onnx
import pytest
from common import CHARACTER, SIM, V2, tool_module
from common import run_main as run

from roformer_keras import RoFormerBackbone, RoFormerSim, RoFormerTokenizer
from roformer_keras.errors import ConfigurationError, OutputError, SourceError
from roformer_keras.serving import (
    FORMATS,
    ServedEncoder,
    export_model,
    load_exported,
)
from roformer_keras.serving.onnx_graph import join_operations
from roformer_keras.tasks.sentence_encoder import RoFormerSentenceEncoder
from roformer_keras.tasks.text_classifier import RoFormerTextClassifier

# Keras's own conversion, under NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")

TEXTS = ["今天天气不错", "北京", "我爱北京天安门，天安门上太阳升。"]
# Different ones, to calibrate with.
OTHERS = [
    before + text + behind
    for text in TEXTS
    for before in ("我说", "昨天", "天安门", "不错")
    for behind in ("。", "，北京", "了")
]


@pytest.fixture(scope="module")
def sim():
    return RoFormerSim.from_preset(SIM)


def inputs_of(folder, texts=TEXTS):
    """By the tokenizer that lies beside the model."""
    batch = RoFormerTokenizer.from_preset(folder)(texts)
    return {name: np.asarray(array, "int32") for name, array in batch.items()}


@pytest.mark.parametrize("format", FORMATS)
def test_vectors_are_those_of_encode(format, sim, tmp_path):
    folder = tmp_path / "served"
    facts = export_model(sim, folder, format)
    assert json.loads((folder / "export.json").read_text()) == facts
    assert facts["outputs"] == {"vectors": "float32 (batch, 32)"}
    assert 0 < facts["differences"]["vectors"]["largest"] < 1e-5
    served, expected = load_exported(folder, format), sim.encode(TEXTS, progress=False)
    np.testing.assert_allclose(
        served(inputs_of(folder))["vectors"], expected, atol=1e-5
    )
    encoder = ServedEncoder(folder)
    np.testing.assert_allclose(
        encoder.encode(TEXTS, progress=False), expected, atol=1e-5
    )
    np.testing.assert_allclose(encoder.encode(TEXTS[0]), expected[0], atol=1e-5)
    # Of any size, and in any order.
    inputs = inputs_of(folder, TEXTS[:1])
    found = served({name: inputs[name] for name in reversed(inputs)})["vectors"]
    np.testing.assert_allclose(found, expected[:1], atol=1e-5)


def test_integers_of_openvino_cost_little(sim, tmp_path, capsys):
    folder, lines = tmp_path / "integers", tmp_path / "lines.txt"
    lines.write_text("".join(f"{text}\n" for text in OTHERS), encoding="utf-8")
    flags = ("--format", "openvino", "--int8", "--calibrate", lines)
    code, out, err = run("export", SIM, folder, *flags, "--json", capsys=capsys)
    assert (code, err) == (0, "")
    facts = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    assert facts == json.loads(out)
    assert facts["int8"]
    assert 0.99 < facts["differences"]["vectors"]["least_cosine"] < 0.9999999
    integers = ' element_type="i8"'
    assert integers in (folder / "model.xml").read_text(encoding="utf-8")
    assert sorted(path.name for path in folder.glob("*.[bx]*")) == [
        "model.bin",
        "model.xml",
    ]


def test_vectors_of_integers_are_served(sim, tmp_path):
    export_model(sim, tmp_path / "x", "openvino", int8=True, calibration_texts=OTHERS)
    found = ServedEncoder(tmp_path / "x").encode(TEXTS, progress=False)
    cosines = np.sum(found * sim.encode(TEXTS, progress=False), axis=1)
    assert (cosines > 0.99).all()
    assert (cosines < 0.9999999).any()


def test_integers_cost_little(sim, tmp_path):
    folder, whole = tmp_path / "integers", tmp_path / "whole"
    facts = export_model(sim, folder, "onnx", int8=True)
    export_model(sim, whole, "onnx")
    vectors = load_exported(folder, "onnx")(inputs_of(folder))["vectors"]
    cosines = np.sum(vectors * sim.encode(TEXTS, progress=False), axis=1)
    assert (cosines > 0.99).all()
    assert 0.99 < facts["differences"]["vectors"]["least_cosine"] < 0.9999999
    # Embeddings stay; the rest takes a quarter.
    sizes = [(path / "model.onnx").stat().st_size for path in (folder, whole)]
    assert sizes[0] < sizes[1]
    kinds, layers = kinds_in(folder), sim.config.num_layers
    # The rest are rotations, scores and what is mixed by them.
    assert kinds["MatMulInteger"] == 6 * layers + 1
    assert kinds["MatMul"] == 4 * layers
    assert not (folder / "float32.onnx").exists()


def kinds_in(folder):
    graph = onnx.load(folder / "model.onnx").graph
    return Counter(node.op_type for node in graph.node)


def test_norms_and_activations_are_one_operation_each(sim, tmp_path):
    export_model(sim, tmp_path / "served", "onnx")
    kinds, layers = kinds_in(tmp_path / "served"), sim.config.num_layers
    assert kinds["LayerNormalization"] == 2 * layers + 1
    assert kinds["Gelu"] == layers
    # Of keys, queries, values, and what is mixed of them.
    assert kinds["Transpose"] == 4 * layers
    assert "Erf" not in kinds
    # Of the vectors' lengths.
    assert kinds["Sqrt"] == 1
    # A mask by arithmetic is taken for the rounding of integers by OpenVINO.
    assert kinds["Where"] == 1


def test_operations_in_another_form_stay():
    """Such as products with one half of another tensor, which are no GELU."""
    names = ["x", "y"]
    factors = {"root": 0.5**0.5, "one": 1.0, "half": 0.5}
    nodes = [
        ("Mul", ["x", "root"], "scaled"),
        ("Erf", ["scaled"], "erf"),
        ("Add", ["one", "erf"], "total"),
        ("Mul", ["half", "y"], "halved"),
        ("Mul", ["halved", "total"], "out"),
    ]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node(kind, ins, [out]) for kind, ins, out in nodes],
            "graph",
            [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in names],
            [onnx.helper.make_tensor_value_info("out", 1, [2])],
            [
                onnx.helper.make_tensor(name, 1, [], [value])
                for name, value in factors.items()
            ],
        )
    )
    join_operations(model)
    assert [node.op_type for node in model.graph.node] == [kind for kind, *_ in nodes]
    model.graph.node[3].input[1] = "x"
    join_operations(model)
    assert [node.op_type for node in model.graph.node] == ["Gelu"]
    assert not model.graph.initializer


def test_names_of_what_goes_in_and_out(tmp_path):
    model = RoFormerBackbone.from_preset(SIM, pooler_activation="linear")
    facts = export_model(model, tmp_path / "served", "onnx")
    assert facts["outputs"] == {
        "pooled_output": "float32 (batch, 32)",
        "sequence_output": "float32 (batch, length, 32)",
    }
    graph = onnx.load(tmp_path / "served" / "model.onnx").graph
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
    onnx.checker.check_model(str(tmp_path / "served" / "model.onnx"))


@pytest.mark.parametrize("format", FORMATS)
def test_a_fine_tuned_model_is_served(format, tmp_path, capsys):
    source, target = tmp_path / "preset", tmp_path / "served"
    model = RoFormerTextClassifier.from_preset(V2, classes=["坏", "好"])
    model.save_to_preset(source)
    code, out, err = run("export", source, target, "--format", format, capsys=capsys)
    assert (code, err) == (0, "")
    assert out.startswith(f"{target}\n  outputs ")
    facts = json.loads((target / "export.json").read_text(encoding="utf-8"))
    assert facts["model"] == "RoFormerTextClassifier"
    assert facts["options"]["classes"] == ["坏", "好"]
    logits = load_exported(target, format)(inputs_of(target))["outputs"]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        probabilities, model.predict(TEXTS, verbose=0), atol=1e-5
    )


def test_texts_are_cut_as_the_encoder_was_trained(tmp_path):
    encoder = RoFormerSentenceEncoder.from_preset(SIM, max_length=8)
    export_model(encoder, tmp_path / "served", "onnx")
    served = ServedEncoder(tmp_path / "served")
    text = TEXTS[2] * 3
    expected = encoder.encode([text], verbose=0)[0]
    np.testing.assert_allclose(served.encode(text), expected, atol=1e-5)
    assert np.abs(served.encode(text, max_length=20) - expected).max() > 1e-3


def test_an_encoder_needs_vectors(tmp_path):
    with pytest.raises(SourceError, match=r"there is no .*export\.json"):
        ServedEncoder(tmp_path)
    export_model(RoFormerBackbone.from_preset(SIM), tmp_path / "served")
    with pytest.raises(ConfigurationError, match=r"must give vectors, .*gives outputs"):
        ServedEncoder(tmp_path / "served")


def test_what_cannot_be_exported_leaves_nothing(sim, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "served"
    with pytest.raises(ConfigurationError, match=r"format must be one of .* 'pb'"):
        export_model(sim, folder, "pb")
    message = "int8 is for the formats 'onnx' and 'openvino', got 'saved_model'"
    with pytest.raises(ConfigurationError, match=message):
        export_model(sim, folder, int8=True)
    for texts, message in (
        ((), "at least 20 different ones; got 0: give some 100 with calibration_"),
        (["", " ", *TEXTS * 10], "got 3"),
        ("今天天气不错", "must be a list of str, got '今天天气不错'"),
        (iter(OTHERS), "must be a list of str, got <list_iterator"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            export_model(sim, folder, "openvino", int8=True, calibration_texts=texts)
    with pytest.raises(ConfigurationError, match="alone, got 'onnx' with int8=True"):
        export_model(sim, folder, "onnx", int8=True, calibration_texts=OTHERS)
    monkeypatch.setattr("roformer_keras.serving.export._LEAST_COSINE", 1.01)
    with pytest.raises(OutputError, match=r"a cosine of at least 1\.01 .* got 1\.0"):
        export_model(sim, folder, "onnx", int8=True)
    conditional = RoFormerBackbone.from_preset(CHARACTER, custom_position_ids=True)
    with pytest.raises(ConfigurationError, match="takes position_ids too"):
        export_model(conditional, folder)
    monkeypatch.setattr("roformer_keras.serving.export._TOLERANCE", 0)
    with pytest.raises(OutputError, match="vectors of the export must be within"):
        export_model(sim, folder, "onnx")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "served").mkdir()
    code, _, err = run("export", SIM, folder, capsys=capsys)
    assert code == 4
    assert "--overwrite" in err


def test_a_missing_library_is_named(sim, tmp_path, monkeypatch):
    monkeypatch.setitem(FORMATS, "onnx", ("model.onnx", ("no_such_library",)))
    message = "needs no_such_library, .* pip install 'roformer-keras\\[export\\]'"
    with pytest.raises(ConfigurationError, match=message):
        export_model(sim, tmp_path / "served", "onnx")


def test_what_fewer_bits_cost(tmp_path, monkeypatch, capsys):
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(OTHERS) + "\n", encoding="utf-8")
    with tool_module("measure_precision") as tool:
        monkeypatch.setattr(tool, "CALIBRATION", 20)
        tool.main([str(SIM), "--texts", str(lines), "--count", "3"])
    figures = json.loads(capsys.readouterr().out)
    for name in ("bfloat16", "int8, ONNX Runtime", "int8, OpenVINO"):
        assert (
            0 < figures[name]["mean difference"] < figures[name]["largest difference"]
        )
        assert 0.99 < figures[name]["least cosine"] < 1
    assert figures["cosines of different texts"] < 0.99
