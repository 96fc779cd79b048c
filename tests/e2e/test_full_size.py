"""The real bert4keras at full size: 12 layers, hidden size 768, 12,000 tokens."""

import subprocess
import sys

import pytest
from common import reference_folder

from roformer_keras.verification.verify import DEFAULT_LENGTHS, verify

pytestmark = pytest.mark.e2e

TOOL = "tools.reference.full_size_checkpoint"


@pytest.fixture(scope="module", params=["roformer", "roformer_v2"])
def checkpoint(request, tmp_path_factory):
    if reference_folder() is None:
        pytest.skip("bert4keras is not installed")
    path = tmp_path_factory.mktemp("full-size") / f"{request.param}.zip"
    subprocess.run(
        [sys.executable, "-m", TOOL, path, "--model", request.param], check=True
    )
    return path


@pytest.mark.parametrize("version", ["0.11.5", "0.10.6"])
def test_every_output_equals_bert4keras(checkpoint, version):
    if "v2" in checkpoint.name and version == "0.10.6":
        pytest.skip("bert4keras 0.10.6 has no RoFormerV2")
    report = verify(
        checkpoint,
        bert4keras=reference_folder(version),
        lengths=DEFAULT_LENGTHS,
        verbose=0,
    )
    assert report.passed, str(report)
    for comparison in report.comparisons:
        # The bars of the project, whatever the scale of an output.
        assert comparison.largest <= (1e-4 if comparison.length <= 512 else 5e-4)
