"""The current version reads what version 0.1.0 wrote, or says what to do."""

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from common import SMALL, run_main

import roformer_keras as rk
from roformer_keras import search
from roformer_keras.base.errors import ConfigurationError

EARLIER = Path(__file__).parents[1] / "data" / "earlier" / "0.1.0.zip"


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """A folder with the files of version 0.1.0."""
    folder = tmp_path_factory.mktemp("earlier")
    zipfile.ZipFile(EARLIER).extractall(folder)
    shutil.copyfile(SMALL, folder / "small.zip")
    return folder


@pytest.fixture(scope="module")
def texts(earlier):
    return (earlier / "lines.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def outputs(earlier):
    return np.load(earlier / "outputs.npz")


def test_a_preset_is_read(earlier, texts, outputs):
    model = rk.RoFormerTextClassifier.from_preset(str(earlier / "classifier"))
    np.testing.assert_allclose(
        model.predict(texts[:4], engine="keras"), outputs["classifier"], atol=1e-5
    )


def test_an_adapter_is_refused_with_advice(earlier):
    model = rk.RoFormerTextClassifier.from_preset(
        str(earlier / "small.zip"), classes=["坏", "好"]
    )
    with pytest.raises(ConfigurationError) as caught:
        model.load_lora(earlier / "adapter")
    assert "load a folder of version 0.1 with that version" in str(caught.value)


def test_a_preset_in_8_bits_is_refused_with_advice(earlier):
    for load in (rk.RoFormerSim.from_preset, rk.load_model):
        with pytest.raises(ConfigurationError) as caught:
            load(str(earlier / "int8"))
        assert "convert this one to .safetensors with version 0.1" in str(caught.value)


def test_a_run_predicts(earlier, texts, monkeypatch, capsys):
    monkeypatch.chdir(earlier)
    code, output, _ = run_main("predict", "run", "lines.txt", capsys=capsys)
    lines = output.splitlines()
    assert code == 0
    assert len(lines) == len(texts)
    assert all('"label"' in line for line in lines)


def test_an_index_is_searched(earlier, texts):
    model = rk.RoFormerSim.from_preset(str(earlier / "small.zip"))
    index = search.VectorIndex(earlier / "index", model)
    assert index.texts == texts
    assert all(hits[0].score > 0.9999 for hits in index.search(texts, top_k=1))
