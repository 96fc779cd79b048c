"""What fewer bits cost: vectors of real texts, to those in float32.

    python -m tools.benchmarks.measure_precision
    python -m tools.benchmarks.measure_precision sim.zip --texts lines.txt --count 1000

The texts are some of each file, drawn by a seed, as tools/benchmarks/benchmark.py
draws its mix.
Of each way of computing the differences of the numbers of unit vectors are told, and
cosines to the vectors in float32. Integers are those of `export_model(..., int8=True)`
on ONNX Runtime, and on OpenVINO, which is calibrated by other texts of the same files;
bfloat16 is `from_preset(..., dtype="bfloat16")`.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from roformer_keras import RoFormerSim
from roformer_keras.serving import ServedEncoder, export_model
from tools.benchmarks.benchmark import TEXTS, drawn_texts

# Texts that calibrate.
CALIBRATION = 100


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", nargs="?", default="roformer-sim-char")
    parser.add_argument("--texts", nargs="+", type=Path, default=TEXTS)
    parser.add_argument("--count", type=int, default=1000, help="texts; 1000")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    texts = drawn_texts(options.texts, options.count + CALIBRATION)
    texts, others = texts[: options.count], texts[options.count :]
    sim = RoFormerSim.from_preset(options.source)
    expected = sim.encode(texts)
    figures = {}
    rounded = RoFormerSim.from_preset(options.source, dtype="bfloat16")
    for name, found in (
        ("bfloat16", rounded.encode(texts)),
        ("int8, ONNX Runtime", in_integers(sim, texts, "onnx", ())),
        ("int8, OpenVINO", in_integers(sim, texts, "openvino", others)),
    ):
        figures[name] = differences(found, expected)
    # Cosines of texts that have nothing to do with each other.
    apart = expected @ expected.T
    figures["cosines of different texts"] = float(
        np.median(apart[~np.eye(len(texts), dtype=bool)])
    )
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def in_integers(sim, texts, format, others):
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "served"
        export_model(sim, folder, format, int8=True, calibration_texts=others)
        return ServedEncoder(folder).encode(texts)


def differences(found, expected):
    gaps, cosines = np.abs(found - expected), np.sum(found * expected, axis=1)
    return {
        "largest difference": float(gaps.max()),
        "mean difference": float(gaps.mean()),
        "least cosine": float(cosines.min()),
        "mean cosine": float(cosines.mean()),
    }


if __name__ == "__main__":
    main()
