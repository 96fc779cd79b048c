"""Tries the extras of setup.cfg at the lowest and the highest versions they allow.

    python -m tools.extras_versions                 all extras that are light
    python -m tools.extras_versions data hub        some of them

uv makes an environment for each extra and end, in a temporary folder: this package's
own requirements at their highest, and those of the extra at their lowest or highest.
Then a smoke test of the extra runs in it. `base` are the requirements of the package.
Exit code 0: all work; 1: some do not.
"""

import configparser
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from roformer_keras.base.errors import ConfigurationError
from tools.commands import Parser, command

ROOT = Path(__file__).parents[1]
_UV = "uv>=0.5,<1"
_ENDS = ("lowest-direct", "highest")
_SHOWN_LINES = 2
# Gigabytes, or only for those who develop: their versions are those of `.[test]`.
LEFT_OUT = {
    "tensorflow": "gigabytes",
    "jax": "gigabytes",
    "torch": "gigabytes",
    "transformers": "with torch",
    "reference": "with TensorFlow",
    "ray": "starts servers and workers",
    "docs": "for developers",
    "notebook": "with TensorFlow",
    "test": "for developers",
}
# What smoke tests need. JAX is the lightest backend of Keras.
_FOR_SMOKE = ("pytest", "hypothesis", "jax")
_METADATA = "Metadata-Version: 2.1\nName: roformer-keras\nVersion: 0\n"
_PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-m", "not weekly")
_FIGURES = """
import tempfile, pathlib
import numpy as np
from roformer_keras.tasks.intervals import wilson_interval
from roformer_keras.training.plots import drawing
import scipy.sparse, sklearn.metrics, tensorboard, tensorboardX
assert wilson_interval(np.array([True, False]))
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "x.png")
    with drawing(path, 3, 2) as figure:
        figure.subplots().plot([1, 2])
    assert path.stat().st_size
    tensorboardX.SummaryWriter(folder).add_scalar("loss", 1.0, 1)
"""
_EXCEL = """
import os, tempfile, openpyxl
from roformer_keras.tables.files import read_table
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "x.xlsx")
    book = openpyxl.Workbook()
    for row in (("text", "label"), ("甲", "好"), ("乙", "坏")):
        book.active.append(row)
    book.save(path)
    table = read_table(path, 1, ("text", "label"))
    assert list(table.labels) == ["好", "坏"], table
"""
# One small network by the writers of exports, computed by the runtimes.
_NETWORK = """
import pathlib, sys, tempfile
import numpy as np
from roformer_keras.engines.openvino_graph import OpenVINOGraph
from roformer_keras.engines.programs import OpenVINOProgram

def write(graph):
    x = graph.input("x", "float32", (None, None, 8))
    y = graph.linear(x, np.eye(8, dtype="float32"), np.ones(8, "float32"))
    y = graph.layer_norm(y, np.ones(8, "float32"), np.zeros(8, "float32"), 1e-12)
    y = graph.activations["gelu"](graph, graph.activations["mish"](graph, y))
    graph.output("y", graph.rms_norm(y, 1e-6), (None, None, 8))

x = {"x": np.random.default_rng(0).normal(size=(2, 3, 8)).astype("float32")}
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "model.xml")
    for int8 in (False, True):
        graph = OpenVINOGraph(int8=int8)
        write(graph)
        graph.save(path)
        outputs = OpenVINOProgram(str(path)).outputs(x)["y"]
        assert outputs.shape == (2, 3, 8) and np.isfinite(outputs).all()
    if "export" in sys.argv:
        import nncf, onnxruntime
        from roformer_keras.engines.onnx_graph import OnnxGraph
        graph = OnnxGraph()
        write(graph)
        graph.save(path.with_suffix(".onnx"))
        session = onnxruntime.InferenceSession(
            path.with_suffix(".onnx"), providers=["CPUExecutionProvider"]
        )
        np.testing.assert_allclose(session.run(None, x)[0], outputs, atol=0.1)
        from hostile.exports import ONNX, OPENVINO
        for name, make, message in ONNX:
            inner = pathlib.Path(folder, name.replace("'", ""), "in")
            inner.mkdir(parents=True)
            (inner / "../secret").write_bytes(b"\\0" * 32)
            make(inner)
            try:
                session = onnxruntime.InferenceSession(
                    inner / "model.onnx", providers=["CPUExecutionProvider"]
                )
                session.run(None, {"x": np.ones(8, "float32")})
                refused = False
            except Exception:
                refused = True
            assert refused == bool(message), f"{name} is {refused}"
"""
SMOKE: dict[str, tuple[tuple[str, ...], ...]] = {
    "base": ((*_PYTEST, "tests/unit/test_convert.py", "tests/unit/test_tokenizer.py"),),
    "data": ((*_PYTEST, "tests/unit/test_arrow_files.py"),),
    "excel": (("-c", _EXCEL),),
    "export": (("-c", _NETWORK, "export"),),
    "hub": ((*_PYTEST, "-m", "", "tests/e2e/test_hub.py"),),
    "openvino": (("-c", _NETWORK, "openvino"),),
    "search": ((*_PYTEST, "tests/unit/test_vector_search.py"),),
    "serve": (
        (*_PYTEST, "tests/unit/test_server_protection.py"),
        ("-c", "import roformer_keras.server.app, roformer_keras.server.requests"),
    ),
    "train": (("-c", _FIGURES),),
}


@command
def main(arguments=None):
    parser = Parser(__doc__)
    help = f"{', '.join(SMOKE)}; all by default"
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=help)
    extras = parser.parse_args(arguments).extras or list(SMOKE)
    if unknown := [extra for extra in extras if extra not in SMOKE]:
        raise ConfigurationError(
            f"an extra must be one of {', '.join(SMOKE)}, got {', '.join(unknown)}"
        )
    works = True
    print("| extra | versions | result |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        uv = Uv(Path(folder))
        for extra in extras:
            for end in _ENDS:
                versions, problem = try_extra(uv, extra, end)
                print(f"| `{extra}` | {versions} | {problem or 'works'} |", flush=True)
                works = works and not problem
    return 0 if works else 1


def requirements(extra: str) -> list[str]:
    """The requirements of an extra in setup.cfg; of the package itself for `base`."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    text = parser["options"]["install_requires"]
    if extra != "base":
        text = parser["options.extras_require"][extra]
    return [line for line in text.splitlines() if line and not line.startswith("#")]


class Uv:
    """uv, which is installed into a folder, with its cache there.

    Args:
        folder: Path of an empty folder.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--target")
        subprocess.run([*pip, str(folder / "uv"), _UV], check=True)
        paths = str(folder / "uv"), os.environ.get("PYTHONPATH")
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "UV_CACHE_DIR": str(folder / "cache"),
        }

    def run(self, *words: str) -> str:
        """The output of a command of uv.

        Raises:
            CalledProcessError: it fails.
        """
        command = [sys.executable, "-m", "uv", *words]
        return subprocess.run(
            command, env=self._environment, check=True, capture_output=True, text=True
        ).stdout


def try_extra(uv: Uv, extra: str, end: str) -> tuple[str, str]:
    """The versions of an extra's libraries, and what does not work with them, or "".

    Args:
        end: the resolution of uv, such as `"highest"`.
    """
    place = uv.folder / f"{extra}-{end}"
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    install = ("pip", "install", "--python", str(python))
    ours, versions = requirements(extra), "none"
    try:
        uv.run("venv", "--python", sys.executable, str(place))
        if extra != "base":
            uv.run(*install, *requirements("base"))
        uv.run(*install, "--resolution", end, *ours)
        uv.run(*install, *_FOR_SMOKE)
        _add_metadata(place)
        listed = uv.run("pip", "list", "--python", str(python), "--format", "json")
        versions = versions_of(ours, json.loads(listed))
        for words in SMOKE[extra]:
            run_smoke(python, words)
    except subprocess.CalledProcessError as error:
        lines = ((error.stderr or "") + (error.stdout or "")).strip().splitlines()
        said = " ".join(line.strip() for line in lines[-_SHOWN_LINES:])
        return f"{end}: {versions}", said.replace(
            "|", "/"
        ) or f"exit {error.returncode}"
    return f"{end}: {versions}", ""


def _add_metadata(place):
    """Makes an environment think that this package is installed: its own is copied."""
    (site,) = place.rglob("site-packages")
    (site / "roformer_keras-0.dist-info").mkdir()
    (site / "roformer_keras-0.dist-info/METADATA").write_text(_METADATA)


def run_smoke(python: Path, words: Iterable[str]) -> None:
    """Runs a smoke test in an environment; raises CalledProcessError."""
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    environment["KERAS_BACKEND"] = "jax"
    subprocess.run(
        [str(python), *words],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )


def versions_of(requirements: Iterable[str], listed: Iterable[dict]) -> str:
    """The libraries of requirements with the versions that are installed."""
    installed = {
        row["name"].lower().replace("_", "-"): row["version"] for row in listed
    }
    names = [re.split(r"[\[<>=!~; ]", line)[0] for line in requirements]
    found = [(name, installed.get(name.lower().replace("_", "-"))) for name in names]
    return ", ".join(f"{name} {version}" for name, version in found if version)


if __name__ == "__main__":
    sys.exit(main())
