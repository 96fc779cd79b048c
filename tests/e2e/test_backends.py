"""The package on each of Keras's backends, each in its own process.

All other tests run on TensorFlow and hold the same of it.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
from common import SIM, output_of, reference_folder
from hub_server import TOKEN, environment_of, hub

TESTS = Path(__file__).parents[1]
SCRIPT = TESTS / "backend_checks.py"
CHECKS = re.findall(r"^def check_(\w+)", SCRIPT.read_text(encoding="utf-8"), re.M)
PAGE = TESTS.parent / "docs" / "features.md"
COLUMNS = {
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "torch": "PyTorch",
}
# What the page says of each check.
FEATURES = {
    "outputs_equal_bert4keras": "`predict`, equal to bert4keras",
    "mixed_bfloat16": "mixed_bfloat16",
    "saving": "presets and `.keras`, written and read",
    "text": "`encode`, `fill_mask`",
    "generation": "`generate` by every method, `stream`, `paraphrase`",
    "long_texts": "attention of long texts without stored scores",
    "linear_attention": "attention of linear cost: training and writing",
    "finetuning": "tasks on texts: `fit`, `predict`, `extract`",
    "adversarial_steps": "adversarial steps (FGM)",
    "partial_training": "LoRA, freezing, gradient checkpointing",
    "export": "`export_model` to ONNX and OpenVINO (a SavedModel needs TensorFlow)",
}
# The examples of docstrings name it: a released zip.
RELEASED = "checkpoints/chinese_roformer-sim-char-ft_L-12_H-768_A-12.zip"


def run(backend, folder):
    """Results of the checks, by name, in a folder of the files that examples need."""
    (folder / RELEASED).parent.mkdir()
    shutil.copyfile(SIM, folder / RELEASED)
    if reference := reference_folder():
        (folder / reference.name).symlink_to(reference)
    with hub({}) as server:
        variables = {
            **environment_of(server.url, folder / "cache"),
            "HF_TOKEN": TOKEN,
            "KERAS_BACKEND": backend,
            # Operations are small.
            "TF_NUM_INTRAOP_THREADS": "1",
        }
        output = output_of(SCRIPT, cwd=folder, timeout=1500, **variables)
    # The seconds of each check, and of each example.
    print(output)
    return json.loads(output.splitlines()[-1])


def column_of_page(name):
    """The column of a backend in the table of the docs, by feature."""
    _, _, table = PAGE.read_text(encoding="utf-8").partition("\n| | TensorFlow | ")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in f"| | TensorFlow | {table}".split("\n\n")[0].splitlines()
    ]
    at = rows[0].index(name)
    return {row[0]: row[at] for row in rows[2:]}


@pytest.mark.parametrize("backend", [name for name in COLUMNS if name != "tensorflow"])
def test_package_does_what_the_docs_say_on(backend, tmp_path):
    results = run(backend, tmp_path)
    assert list(results) == CHECKS
    assert column_of_page(COLUMNS[backend]) == {
        feature: "yes" if results[check] else "no"
        for check, feature in FEATURES.items()
    }


def test_the_docs_say_that_all_works_on_tensorflow():
    assert column_of_page("TensorFlow") == dict.fromkeys(FEATURES.values(), "yes")
