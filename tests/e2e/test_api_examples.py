"""The examples of the docstrings run, in one process."""

import re
import shutil
import subprocess
import sys

import api_examples
from common import CHECKPOINTS, reference_folder
from hub_server import TOKEN, environment_of, hub

# Stands in for a released zip that was downloaded.
RELEASED = "chinese_roformer-sim-char-ft_L-12_H-768_A-12.zip"
REFERENCE = reference_folder()


def test_the_examples_of_the_docstrings_run(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    small = CHECKPOINTS / "chinese_roformer-sim-char_L-2_H-32_A-4.zip"
    shutil.copyfile(small, tmp_path / "checkpoints" / RELEASED)
    names = [
        name
        for name in api_examples.examples()
        if REFERENCE or name != "roformer_keras.verification.verify.verify"
    ]
    if REFERENCE:
        (tmp_path / REFERENCE.name).symlink_to(REFERENCE)
    with hub({}) as server:
        environment = environment_of(server.url, tmp_path / "cache")
        done = subprocess.run(
            [sys.executable, api_examples.__file__, *names],
            cwd=tmp_path,
            env={**environment, "HF_TOKEN": TOKEN},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    assert len(re.findall(r"^=== roformer_keras", done.stdout, re.M)) == len(names)
    assert len(names) > 140
