"""The real bert4keras at full size: 12 layers, hidden size 768, 12,000 tokens."""

import functools
import subprocess
import sys

import pytest
from common import reference_folder

from roformer_keras.verification.verify import verify

pytestmark = pytest.mark.e2e

TOOL = "tools.reference.full_size_checkpoint"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("full-size")

    @functools.cache
    def write(model):
        path = folder / f"{model}.zip"
        subprocess.run([sys.executable, "-m", TOOL, path, "--model", model], check=True)
        return path

    return write


@pytest.mark.parametrize(
    ("model", "version", "lengths", "cases"),
    [
        # Every output at one length; long rows in the encoder, which all outputs share.
        # Tiny models have every output at every length.
        ("roformer", "0.11.5", (64,), None),
        ("roformer", "0.11.5", (2, 512, 1536), ("encoder",)),
        ("roformer", "0.10.6", (64,), ("encoder", "mlm")),
        ("roformer_v2", "0.11.5", (64,), None),
        ("roformer_v2", "0.11.5", (512,), ("encoder",)),
    ],
)
def test_every_output_equals_bert4keras(checkpoint, model, version, lengths, cases):
    if reference_folder(version) is None:
        pytest.skip("bert4keras is not installed")
    report = verify(
        checkpoint(model),
        bert4keras=reference_folder(version),
        lengths=lengths,
        cases=cases,
        verbose=0,
    )
    assert report.passed, str(report)
    assert {comparison.length for comparison in report.comparisons} == set(lengths)
