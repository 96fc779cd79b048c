"""Adapters of PEFT that are refused: their configurations and their files."""

import json
import pickle
import shutil
import zipfile

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from roformer_keras.conversion.peft import Adapter, read_adapter, write_adapter
from roformer_keras.errors import RoFormerError

QUERY = "encoder.layer.0.attention.self.query"
FACTORS = (np.ones((2, 32), "float32"), np.ones((32, 2), "float32"))


@pytest.fixture
def adapter(tmp_path):
    folder = tmp_path / "adapter"
    write_adapter(folder, Adapter(2, 3.0, {QUERY: FACTORS}))
    return folder


def refusal_of(folder):
    with pytest.raises(RoFormerError) as caught:
        read_adapter(folder)
    assert len(str(caught.value)) < 600
    return str(caught.value)


CONFIGS = [
    ({"peft_type": "LOHA"}, "peft_type must be 'LORA', got 'LOHA': merge"),
    ({"peft_type": None}, "peft_type must be 'LORA', got None"),
    ({"r": 0}, "r must be an integer from 1 to 65536, got 0"),
    ({"r": 10**30}, "r must be an integer from 1"),
    ({"r": "2"}, "r must be an integer from 1 to 65536, got '2'"),
    ({"r": 3}, "must be a matrix of 3 rows, got"),
    ({"lora_alpha": -1}, "lora_alpha must be a finite number above 0, got -1"),
    ({"lora_alpha": None}, "lora_alpha must be a finite number above 0, got None"),
    ({"use_dora": True}, "all that LoRA has here, got use_dora=True: merge the"),
    ({"bias": "all"}, "got bias='all'"),
    ({"modules_to_save": ["cls"]}, "got modules_to_save=['cls']"),
    ({"rank_pattern": {"query": 4}}, "got rank_pattern="),
    ({"init_lora_weights": "pissa"}, "got init_lora_weights='pissa'"),
    ({"init_lora_weights": []}, "got init_lora_weights="),
    ({"x" * 5000: 1}, "got xxx"),
]


def test_configurations(adapter):
    path = adapter / "adapter_config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    for fields, message in CONFIGS:
        path.write_text(json.dumps(content | fields), encoding="utf-8")
        assert message in refusal_of(adapter)
    path.write_text("[1]")
    assert "must hold one JSON object, got list" in refusal_of(adapter)


class Call:
    def __reduce__(self):
        return print, ("called",)


def harmful(path):
    with zipfile.ZipFile(path.with_suffix(".bin"), "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"x": Call()}))
    path.unlink()


def put(**tensors):
    """A change of tensors; those without numbers are removed."""

    def change(path):
        content = load_file(path)
        for name, value in tensors.items():
            content[f"base_model.model.{QUERY}.lora_{name.replace('_', '.')}"] = value
        save_file({name: value for name, value in content.items() if value.size}, path)

    return change


SQUARE = np.zeros((2, 2), "float32")
FILES = [
    (lambda path: path.unlink(), "adapter_model.safetensors cannot be read"),
    (lambda path: path.write_bytes(b"x"), "is damaged"),
    (lambda path: path.write_bytes(path.read_bytes()[:-9]), "is damaged"),
    (harmful, "adapter_model.bin asks for builtins.print, which no file"),
    (lambda path: save_file({}, path), "must have factors of a layer"),
    (
        lambda path: save_file({"x": SQUARE}, path),
        "lora_A and lora_B of an encoder's dense",
    ),
    (put(B_weight=SQUARE[:0]), f"lora_B of {QUERY} must be a matrix of 2 columns, got"),
    (put(A_weight=SQUARE[0]), "matrix of 2 rows"),
    (put(A_weight=SQUARE * np.nan), f"lora_A of {QUERY} must hold finite numbers"),
    (
        put(A_weight=SQUARE.astype("int64")),
        "must be a float tensor to be a weight, got",
    ),
    (put(A_default_weight=SQUARE), "has two tensors for lora_A"),
]


def test_files(adapter, tmp_path, capsys):
    for number, (damage, message) in enumerate(FILES):
        folder = shutil.copytree(adapter, tmp_path / str(number))
        damage(folder / "adapter_model.safetensors")
        assert message in refusal_of(folder)
    assert capsys.readouterr().out == ""
