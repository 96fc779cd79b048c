"""Exports by others: no file but their own is read, and no program is run."""

import numpy as np
import pytest
from hostile.exports import ONNX, OPENVINO, SECRET, WEIGHTS

from roformer_keras import export
from roformer_keras.base.errors import ConfigurationError, RoFormerError, SourceError
from roformer_keras.export import ServedEncoder, ServedGenerator, load_exported
from roformer_keras.export.runtime import check_runtime

X = {"x": np.ones(8, "float32")}
EXPORT = '{"model": "RoFormerSim", "dim": %s, "format": "%s", "int8": false%s}'


def outcome(folder, format):
    """The error of loading an export, or "" if it computes what it should."""
    try:
        outputs = load_exported(folder, format)(X)
    except SourceError as error:
        text = str(error)
        assert "\n" not in text and len(text) < 600
        return text
    np.testing.assert_array_equal(outputs["y"], X["x"] + WEIGHTS)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "rows"),
    [("openvino", OPENVINO), ("onnx", ONNX)],
    ids=["openvino", "onnx"],
)
def test_networks_that_name_other_files(format, rows, tmp_path):
    wrong = []
    for name, make, message in rows:
        folder = tmp_path / name.replace("'", "") / "export"
        folder.mkdir(parents=True)
        (folder / SECRET).write_bytes(WEIGHTS.tobytes())
        make(folder)
        said = outcome(folder, format)
        if message not in said or bool(message) != bool(said):
            wrong.append(f"{name}: {said or 'it computes'}, not {message!r}")
    assert wrong == [], "\n".join(wrong)


@pytest.mark.slow
def test_a_saved_model_is_run_only_if_it_is_trusted(tmp_path):
    """One that writes a file when it is called, as each SavedModel may."""
    tf = pytest.importorskip("tensorflow")
    written = tmp_path / "written"

    class Program(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], "float32", name="x")])
        def serve(self, x):
            tf.io.write_file(str(written), "evil")
            return {"y": x}

    program = Program()
    tf.saved_model.save(program, str(tmp_path / "saved_model"), program.serve)
    written.unlink(missing_ok=True)
    (tmp_path / "export.json").write_text(EXPORT % (4, "saved_model", ""))
    for load in (
        lambda: load_exported(tmp_path, "saved_model"),
        lambda: load_exported(tmp_path, "saved_model", trust=False),
    ):
        with pytest.raises(
            ConfigurationError, match=r"is a program, .* pass trust=True"
        ):
            load()
    assert not written.exists()
    run = load_exported(tmp_path, "saved_model", trust=True)
    assert run(X)["y"].tolist() == X["x"].tolist()
    assert written.exists()


def test_versions_of_onnx_runtime():
    for version in ("1.24.1", "1.25.0", "1.24.1.dev1", "2.0.0rc1"):
        check_runtime(version)
    for version in ("1.24.0", "1.23.2", "1.9.9", "0.9"):
        with pytest.raises(ConfigurationError, match=f"got {version}; run: pip"):
            check_runtime(version)


def test_an_export_does_not_choose_to_be_trusted(tmp_path):
    """Its own description says how it is loaded, and is not trusted either."""
    more = ', "trust": true, "outputs": {"vectors": ""}, "options": {}'
    (tmp_path / "export.json").write_text(EXPORT % (4, "saved_model", more))
    with pytest.raises(ConfigurationError, match="is a program"):
        ServedEncoder(tmp_path)
    with pytest.raises(SourceError, match=r"has no export\.json of one"):
        ServedGenerator(tmp_path)


@pytest.mark.parametrize("dim", [0, -1, 2**20 + 1, 10**30])
def test_widths_of_exports(dim, tmp_path):
    (tmp_path / "export.json").write_text(EXPORT % (dim, "onnx", ""))
    with pytest.raises(
        ConfigurationError, match="dim must be an integer from 1 to 1048"
    ):
        ServedEncoder(tmp_path)


# A function, arguments that are right by name, and wrong values of them.
PATHS = (3, 3.5, object(), ["a"], None, b"x", np.zeros(2))
FLAGS = ("yes", 1, 0.5, None, [True], np.zeros(2))
CHOICES = ("x", "", 3, None, ["onnx"], {}, object(), np.array(["onnx", "x"]), b"onnx")
TEXTS = ("今天", 3, object(), [3] * 30, [None] * 30, {"a"}, np.zeros(30))
RIGHT = {"folder": "x", "format": "openvino"}
CALLS = [
    (
        export.load_exported,
        RIGHT,
        {"folder": PATHS, "format": CHOICES, "bfloat16": FLAGS, "trust": FLAGS},
    ),
    (
        export.ServedEncoder,
        {"folder": "x"},
        {"folder": PATHS, "bfloat16": FLAGS[:3], "trust": FLAGS},
    ),
    (export.ServedGenerator, {"folder": "x"}, {"folder": PATHS, "bfloat16": FLAGS}),
    (
        export.check_export,
        {"format": "openvino", "int8": True, "calibration_texts": ()},
        {"format": CHOICES, "int8": FLAGS, "calibration_texts": TEXTS},
    ),
    (
        export.check_generator_export,
        {"format": "openvino"},
        {"format": CHOICES, "calibration_texts": TEXTS},
    ),
    (
        export.export_model,
        {"model": None, **RIGHT},
        {"model": PATHS, "folder": PATHS, "format": CHOICES},
    ),
    (
        export.export_generator,
        {"model": None, **RIGHT},
        {
            "model": PATHS,
            "folder": PATHS,
            "format": CHOICES,
            "int8": FLAGS,
            "overwrite": FLAGS,
        },
    ),
]


def test_wrong_types_are_errors_of_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    functions = {function.__name__ for function, *_ in CALLS}
    assert functions == {*export.__all__} - {"FORMATS"}
    wrong = []
    for function, right, kinds in CALLS:
        for name, values in kinds.items():
            for value in values:
                try:
                    function(**{**right, name: value})
                    error = None
                except Exception as caught:
                    error = caught
                if not isinstance(error, RoFormerError):
                    call = f"{function.__name__}({name}={value!r:.40})"
                    wrong.append(f"{call}: {type(error).__name__} {error}")
    assert wrong == [], "\n".join(wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_long_description(tmp_path):
    with open(tmp_path / "export.json", "wb") as file:
        file.truncate(2**23 + 1)
    for load in (ServedEncoder, ServedGenerator):
        with pytest.raises(RoFormerError, match="must have at most 8,388,608 bytes"):
            load(tmp_path)
