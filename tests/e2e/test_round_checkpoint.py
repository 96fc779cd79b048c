"""tools/reference/round_checkpoint.py: a shipped zip is small, and of the released
layout."""

import zipfile

import ml_dtypes
import numpy as np
import pytest
from common import SIM, tool_module
from sources import tensors_of


@pytest.fixture(scope="module")
def tool():
    with tool_module("round_checkpoint") as module:
        yield module


def test_weights_are_rounded_and_deflated(tool, tmp_path, capsys):
    target = tmp_path / "chinese_roformer-sim-char_L-2_H-32_A-4.zip"
    assert tool.main([str(SIM), str(target)]) == 0
    assert str(target) in capsys.readouterr().out
    before, after = tensors_of(SIM), tensors_of(target)
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert after[name].dtype == "float32"
        np.testing.assert_array_equal(
            after[name], value.astype(ml_dtypes.bfloat16).astype("float32")
        )
    assert target.stat().st_size < 0.6 * SIM.stat().st_size
    with zipfile.ZipFile(target) as archive:
        folders = {name.partition("/")[0] for name in archive.namelist()}
    assert folders == {target.stem}
    # Not over another one.
    assert tool.main([str(SIM), str(target)]) == 4
    assert tool.main([str(SIM), str(target), "--overwrite"]) == 0


def test_what_cannot_be_read_leaves_nothing(tool, tmp_path, capsys):
    assert tool.main([str(tmp_path / "none.zip"), str(tmp_path / "x.zip")]) == 2
    assert "error: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
