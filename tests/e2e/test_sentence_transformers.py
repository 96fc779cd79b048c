"""The real sentence-transformers: what it reads of our folders, and writes itself.

It runs in a separate process, by the interpreter that can import Transformers.
"""

import json
import subprocess

import numpy as np
import pytest
from common import CHARACTER, SIM, WORD, transformers_python

import roformer_keras
from roformer_keras import RoFormerSentenceEncoder, RoFormerSim, convert

PYTHON = transformers_python()
pytestmark = pytest.mark.skipif(PYTHON is None, reason="needs sentence-transformers")

# Of different lengths, one beyond the maximum, and a batch with padding.
TEXTS = [
    "今天天气不错",
    "好",
    "太祖即位，大赦天下。" * 70,
    "A b 3",
    "天气真好，出去走走",
]
WITHOUT_LIBRARY = 77
CODE = f"""
import json, os, sys, warnings
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.simplefilter("ignore")
import numpy as np
import transformers
try:
    from sentence_transformers import SentenceTransformer
except ImportError:
    sys.exit({WITHOUT_LIBRARY})
transformers.utils.logging.disable_progress_bar()
texts = json.loads(sys.argv[1])
for folder in sys.argv[2:]:
    model = SentenceTransformer(folder, device="cpu")
    np.save(f"{{folder}}.npy", model.encode(texts, batch_size=3))
    model.save(f"{{folder}}-saved")
"""
ENCODERS = {
    "mean": (CHARACTER, {"pooling": "mean", "max_length": 40}),
    "first": (CHARACTER, {"pooling": "first"}),
    "words": (WORD, {"pooling": "mean"}),
    "max": (CHARACTER, {"pooling": "max"}),
    "last": (CHARACTER, {"pooling": "last"}),
    "sqrt": (CHARACTER, {"pooling": "sqrt_mean"}),
    "weighted": (CHARACTER, {"pooling": "weighted_mean"}),
    "two": (CHARACTER, {"pooling": "first+mean"}),
    "three": (CHARACTER, {"pooling": "mean+first+max"}),
    "pooler": (
        SIM,
        {"pooling": "pooler", "pooler_activation": "tanh", "max_length": 40},
    ),
    "whitened": (CHARACTER, {"pooling": "mean", "whitening_dim": 8}),
    "whitened two": (CHARACTER, {"pooling": "max+mean", "whitening_dim": 40}),
    "whitened first": (CHARACTER, {"pooling": "first", "whitening_dim": 32}),
    "whitened pooler": (SIM, {"pooling": "pooler", "whitening_dim": 16}),
}


def test_vectors_are_ours_and_what_it_saves_is_read(tmp_path):
    sources = {"sim": SIM, "shipped": "roformer-sim-char"}
    for name, (checkpoint, options) in ENCODERS.items():
        sources[name] = tmp_path / f"{name}-preset"
        encoder = RoFormerSentenceEncoder.from_preset(checkpoint, **options)
        if encoder.whitening_dim is not None:
            shapes = [weight.shape for weight in encoder.whitening.weights]
            random = np.random.default_rng(0)
            encoder.whitening.set_weights([random.normal(size=one) for one in shapes])
        encoder.save_to_preset(sources[name])
    sources["short sim"] = tmp_path / "sim-preset"
    RoFormerSim.from_preset(SIM, max_length=9).save_to_preset(sources["short sim"])
    flags = {"format": "sentence-transformers", "verbose": 0}
    folders = [convert(sources[name], tmp_path / name, **flags) for name in sources]
    command = [PYTHON, "-c", CODE, json.dumps(TEXTS), *folders]
    done = subprocess.run([str(word) for word in command], check=False)
    if done.returncode == WITHOUT_LIBRARY:
        pytest.skip("needs sentence-transformers")
    assert done.returncode == 0
    for name, source in sources.items():
        ours = roformer_keras.load_model(source)
        expected = ours.encode(TEXTS)
        vectors = np.load(tmp_path / f"{name}.npy")
        assert vectors.shape == expected.shape
        assert np.abs(vectors - expected).max() <= 1e-5, name
        # It saves no MLM head, without which RoFormer-Sim is a sentence encoder.
        saved = roformer_keras.load_model(tmp_path / f"{name}-saved")
        assert np.array_equal(saved.encode(TEXTS), expected), name
        assert saved.max_length == ours.max_length
        weights = {weight.path: weight.numpy() for weight in ours.weights}
        for weight in saved.weights:
            assert np.array_equal(weight.numpy(), weights[weight.path])
