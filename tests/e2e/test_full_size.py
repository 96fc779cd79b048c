"""The real bert4keras at full size: 12 layers, hidden size 768, 12,000 tokens."""

import dataclasses
import subprocess
import sys

import pytest

from roformer_keras.conversion.convert import save
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.conversion.weights import weight_table
from roformer_keras.verification.verify import verify

pytestmark = pytest.mark.e2e

TOOL = "tools.reference.full_size_checkpoint"


@pytest.fixture(scope="module")
def roformer(tmp_path_factory):
    """The checkpoint that bert4keras writes."""
    path = tmp_path_factory.mktemp("full-size") / "roformer.zip"
    subprocess.run([sys.executable, "-m", TOOL, path], check=True)
    return path


@pytest.fixture(scope="module")
def roformer_v2(roformer):
    """Those of its weights that RoFormerV2 has too."""
    path = roformer.with_name("roformer_v2.zip")
    with open_checkpoint(roformer) as checkpoint:
        config = checkpoint.config.replace(model_type="roformer_v2", activation="relu")
        names = [row.name for row in weight_table(config, heads=["mlm"])]
        tensors = {name: checkpoint.tensors[name] for name in names}
        save(
            dataclasses.replace(
                checkpoint, config=config, tensors=tensors, bert_config=None
            ),
            path,
            "bert4keras",
        )
    return path


@pytest.mark.parametrize(
    ("model", "version", "lengths", "cases"),
    [
        # Every output, and every mask, once; long rows in the encoder, which all
        # outputs share. Tiny models have every case at every length.
        ("roformer", "0.11.5", (2, 512, 1536), ("encoder",)),
        ("roformer", "0.11.5", (64,), ("lm", "unilm", "pool-tanh")),
        ("roformer", "0.10.6", (64,), ("mlm",)),
        ("roformer_v2", "0.11.5", (512,), ("encoder",)),
        ("roformer_v2", "0.11.5", (64,), ("unilm", "keep-tokens")),
    ],
)
def test_every_output_equals_bert4keras(
    request, real_bert4keras, model, version, lengths, cases
):
    report = verify(
        request.getfixturevalue(model),
        bert4keras=real_bert4keras(version),
        lengths=lengths,
        cases=cases,
        verbose=0,
    )
    assert report.passed, str(report)
    assert {comparison.length for comparison in report.comparisons} == set(lengths)
