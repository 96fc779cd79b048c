"""The real sentence-transformers: what it reads of our folders, and writes itself.

It runs in a separate process, by the interpreter that can import Transformers.
"""

import json
import subprocess

import numpy as np
import pytest
from common import CHARACTER, SIM, WORD, transformers_python

import roformer_keras
from roformer_keras import RoFormerSentenceEncoder, convert

PYTHON = transformers_python()
HAS_LIBRARY = (
    PYTHON is not None
    and subprocess.run(
        [PYTHON, "-c", "import sentence_transformers"], capture_output=True, check=False
    ).returncode
    == 0
)
pytestmark = pytest.mark.skipif(not HAS_LIBRARY, reason="needs sentence-transformers")

# Of different lengths, one beyond the maximum, and a batch with padding.
TEXTS = [
    "今天天气不错",
    "好",
    "太祖即位，大赦天下。" * 70,
    "A b 3",
    "天气真好，出去走走",
]
CODE = """
import json, os, sys, warnings
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.simplefilter("ignore")
import numpy as np
import transformers
from sentence_transformers import SentenceTransformer
transformers.utils.logging.disable_progress_bar()
folder, texts, target = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
model = SentenceTransformer(folder, device="cpu")
np.save(f"{target}.npy", model.encode(texts, batch_size=3))
model.save(target)
"""
ENCODERS = {
    "mean": (CHARACTER, {"pooling": "mean", "max_length": 40}),
    "first": (CHARACTER, {"pooling": "first"}),
    "words": (WORD, {"pooling": "mean"}),
}


@pytest.mark.parametrize("name", [*ENCODERS, "sim", "shipped"])
def test_vectors_are_ours_and_what_it_saves_is_read(name, tmp_path):
    if name in ENCODERS:
        source, options = ENCODERS[name]
        source, preset = tmp_path / "preset", source
        RoFormerSentenceEncoder.from_preset(preset, **options).save_to_preset(source)
    else:
        source = SIM if name == "sim" else "roformer-sim-char"
    flags = {"format": "sentence-transformers", "verbose": 0}
    folder = convert(source, tmp_path / "there", **flags)
    target = tmp_path / "theirs"
    command = [PYTHON, "-c", CODE, folder, json.dumps(TEXTS), target]
    subprocess.run([str(word) for word in command], check=True)
    ours = roformer_keras.load_model(source)
    expected = ours.encode(TEXTS)
    found = np.load(f"{target}.npy")
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-5
    # It saves no MLM head, without which RoFormer-Sim is its backbone.
    saved = roformer_keras.load_model(target)
    if name in ENCODERS:
        assert saved.max_length == ours.max_length
        assert np.array_equal(saved.encode(TEXTS), expected)
    weights = {weight.path: weight.numpy() for weight in ours.weights}
    for weight in saved.weights:
        assert np.array_equal(weight.numpy(), weights[weight.path])
