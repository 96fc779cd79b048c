"""A child of `os.fork()` gets an error instead of waiting for ever."""

from common import ROOT, SIM, output_of

from roformer_keras import RoFormerSim
from roformer_keras.export import export_generator, export_model

FORKING = """
import os, sys
from roformer_keras.base.errors import BackendError

def compute_in_children(calls):
    for name, call in calls.items():
        child = os.fork()
        if child == 0:
            try:
                call()
                print(name, "computed", flush=True)
            except BackendError as error:
                print(name, "refused", error, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
"""
MODEL = """
import roformer_keras

sim = roformer_keras.RoFormerSim.from_preset(sys.argv[1])
ids = sim.tokenizer(["今天天气不错"])
compute_in_children({
    "encode": lambda: sim.encode("今天"),
    "predict": lambda: sim.predict(ids),
    "call": lambda: sim(ids),
    "load": lambda: roformer_keras.RoFormerSim.from_preset(sys.argv[1]),
})
"""
SERVED = """
from roformer_keras.generation import ServedGenerator
from roformer_keras.export import ServedEncoder

writer = ServedGenerator(sys.argv[1])
encoder = ServedEncoder(sys.argv[2])
compute_in_children({
    "generate": lambda: writer.generate("今天"),
    "encode": lambda: writer.encode("今天"),
    "load": lambda: ServedGenerator(sys.argv[1]),
    "vectors": lambda: encoder.encode("今天"),
    "load vectors": lambda: ServedEncoder(sys.argv[2]),
})
"""


def assert_children_are_refused(code, count, *arguments):
    output = output_of("-W", "ignore", "-c", FORKING + code, *arguments, cwd=ROOT)
    assert output.count("get_context('spawn')") == count
    assert output.count("refused") == count
    assert "computed" not in output


def test_a_child_that_is_forked_after_loading_is_refused():
    assert_children_are_refused(MODEL, 4, SIM)


def test_a_child_of_a_process_that_serves_is_refused(tmp_path):
    """The thread pools of a runtime are not in the child either."""
    sim = RoFormerSim.from_preset(SIM)
    folders = [tmp_path / name for name in ("writer", "encoder")]
    export_generator(sim, folders[0])
    export_model(sim, folders[1], "onnx")
    assert_children_are_refused(SERVED, 5, *folders)
