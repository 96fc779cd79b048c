"""A child of `os.fork()` gets an error instead of waiting for ever."""

import subprocess
import sys

import pytest
from common import ROOT, SIM

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


@pytest.mark.parametrize("method", ["encode", "predict", "call", "load"])
def test_a_child_that_is_forked_after_loading_is_refused(method):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, SIM, method],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "get_context('spawn')" in done.stdout
