"""SavedModels that users of bert4keras wrote: the real one writes them here."""

import shutil

import pytest
from common import SMALL, reference_folder
from sources import assert_same, tensors_of, unpacked

from roformer_keras import convert
from roformer_keras.conversion.reader import open_checkpoint
from tools.reference.bert4keras import run_jobs

pytestmark = pytest.mark.skipif(reference_folder() is None, reason="needs bert4keras")


def test_saved_models_of_bert4keras_are_read(tmp_path):
    """The variables keep their bits; optimizer, metrics and graphs are passed over."""
    folder = unpacked(SMALL, tmp_path / "zip")
    cases = {
        "sim": {"kwargs": {"application": "unilm", "with_pool": "linear"}},
        "nested": {"wrap": "nested", "train": True},
    }
    jobs = [
        {
            "op": "save_tf",
            "bert_config": str(folder / "bert_config.json"),
            "checkpoint": str(folder / "bert_model.ckpt"),
            "output": str(tmp_path / name),
            "seed": 0,
            **case,
            "kwargs": {"model": "roformer", **case.get("kwargs", {})},
        }
        for name, case in cases.items()
    ]
    assert all(answer["ok"] for answer in run_jobs(jobs))
    expected = tensors_of(SMALL)
    heads = {"sim": ("pooler", "mlm")}
    for name, case in cases.items():
        saved = tmp_path / name
        assert (saved / "saved_model.pb").is_file()
        for file in ("bert_config.json", "vocab.txt"):
            shutil.copy(folder / file, saved)
        with open_checkpoint(saved) as checkpoint:
            assert checkpoint.heads == heads.get(name, ())
            assert checkpoint.vocabulary is not None
            values = {
                name: tensor.read()
                for name, tensor in checkpoint.tensors.items()
                if name not in checkpoint.unexpected
            }
            assert_same(values, {name: expected[name] for name in values})
            assert len(values) == {"sim": 43, "nested": 36}[name]
            # The user's own layer.
            unread = [name.split("/")[1] for name in checkpoint.unexpected]
            assert unread == (["bias", "kernel"] if "wrap" in case else [])
            assert (len(checkpoint.training_state) > 36) == ("train" in case)
    path = convert(tmp_path / "sim", tmp_path / "back.zip", verbose=0)
    assert_same(tensors_of(path), expected)
