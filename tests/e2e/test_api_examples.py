"""The examples of the docstrings run, in two processes."""

import re
import shutil
import subprocess
import sys

import api_examples
import pytest
from common import CHECKPOINTS, reference_folder
from hub_server import TOKEN, environment_of, hub
from one_layer import write_one_layer

# Stands in for a released zip that was downloaded.
RELEASED = "chinese_roformer-sim-char-ft_L-12_H-768_A-12.zip"
REFERENCE = reference_folder()
# Models are exported on this backend alone; on the other, nothing is compiled first.
BACKENDS = {True: "tensorflow", False: "torch"}


def needs_tensorflow(name):
    return ".serving." in name


@pytest.mark.parametrize(("is_export", "backend"), BACKENDS.items(), ids=str)
def test_the_examples_of_the_docstrings_run(is_export, backend, tmp_path):
    names = [
        name
        for name in api_examples.examples()
        if needs_tensorflow(name) == is_export
        and (REFERENCE or name != "roformer_keras.verification.verify.verify")
    ]
    (tmp_path / "checkpoints").mkdir()
    small = CHECKPOINTS / "chinese_roformer-sim-char_L-2_H-32_A-4.zip"
    shutil.copyfile(small, tmp_path / "checkpoints" / RELEASED)
    environment = {"HF_TOKEN": TOKEN, "KERAS_BACKEND": backend}
    if is_export:
        # The other examples show what the whole checkpoints answer.
        environment["CHECKPOINTS"] = str(tmp_path / "one-layer")
        (tmp_path / "one-layer").mkdir()
        write_one_layer(tmp_path / "one-layer")
    if REFERENCE:
        (tmp_path / REFERENCE.name).symlink_to(REFERENCE)
    with hub({}) as server:
        environment = environment_of(server.url, tmp_path / "cache") | environment
        done = subprocess.run(
            [sys.executable, api_examples.__file__, *names],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    assert len(re.findall(r"^=== roformer_keras", done.stdout, re.M)) == len(names)
    assert len(names) > (5 if is_export else 150)
