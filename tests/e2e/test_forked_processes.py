"""A child of `os.fork()` gets an error instead of waiting for ever."""

import subprocess
import sys

import pytest
from common import ROOT, SIM

from roformer_keras import RoFormerSim
from roformer_keras.serving import export_generator, export_model

SCRIPT = """
import os, sys
import roformer_keras
from roformer_keras.errors import BackendError

sim = roformer_keras.RoFormerSim.from_preset(sys.argv[1])
ids = sim.tokenizer(["今天天气不错"])
compute = {
    "encode": lambda: sim.encode("今天"),
    "predict": lambda: sim.predict(ids),
    "call": lambda: sim(ids),
    "load": lambda: roformer_keras.RoFormerSim.from_preset(sys.argv[1]),
}
child = os.fork()
if child == 0:
    try:
        compute[sys.argv[2]]()
        print("computed", flush=True)
    except BackendError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def run(script, *arguments):
    """What a new process prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("method", ["encode", "predict", "call", "load"])
def test_a_child_that_is_forked_after_loading_is_refused(method):
    assert "get_context('spawn')" in run(SCRIPT, SIM, method)


SERVED = """
import os, sys
from roformer_keras.errors import BackendError
from roformer_keras.generation import ServedGenerator
from roformer_keras.serving import ServedEncoder

generator, encoder = ServedGenerator(sys.argv[1]), ServedEncoder(sys.argv[2])
compute = {
    "generate": lambda: generator.generate("今天"),
    "encode": lambda: generator.encode("今天"),
    "load": lambda: ServedGenerator(sys.argv[1]),
    "vectors": lambda: encoder.encode("今天"),
    "load vectors": lambda: ServedEncoder(sys.argv[2]),
}
for name, call in compute.items():
    child = os.fork()
    if child == 0:
        try:
            call()
            print(name, "computed", flush=True)
        except BackendError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("format", ["openvino", "onnx"])
def test_a_child_of_a_process_that_serves_is_refused(format, tmp_path):
    """The thread pools of a runtime are not in the child either."""
    sim = RoFormerSim.from_preset(SIM)
    generator, encoder = tmp_path / "generator", tmp_path / "encoder"
    export_generator(sim, generator, format=format)
    export_model(sim, encoder, format)
    said = run(SERVED, generator, encoder)
    assert said.count("get_context('spawn')") == 5
    assert "computed" not in said
