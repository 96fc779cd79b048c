"""Helpers of the tests of TensorFlow's checkpoint files; no backend is imported."""

import hashlib
from pathlib import Path

import numpy as np

from roformer_keras.io.tensor_bundle import TensorBundleReader


def described(array: np.ndarray) -> list:
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    return [array.dtype.name, list(array.shape), digest]


def open_bundle(prefix: Path) -> TensorBundleReader:
    shards = sorted(prefix.parent.glob(f"{prefix.name}.data-*"))
    return TensorBundleReader(
        prefix.with_name(f"{prefix.name}.index").read_bytes(),
        [shard.read_bytes() for shard in shards],
        prefix.name,
    )
