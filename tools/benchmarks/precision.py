"""Errors of vectors in bfloat16 and in 8-bit integers, on real texts.

    python -m tools.benchmarks.precision

Prints differences of unit vectors, and their cosines, to the vectors in float32.
bfloat16 is `from_preset(..., dtype="bfloat16")`. Integers are
`export_model(..., int8=True)` on ONNX Runtime and on OpenVINO. OpenVINO is calibrated
with other texts of the same files.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from tools.benchmarks.texts import FILES, draw_texts
from tools.commands import Parser, command

SOURCE = "roformer-sim-char"
SIZES = {
    "count": (1000, 3, "texts to compare"),
    "calibration": (100, 10, "texts that calibrate OpenVINO"),
}


@command
def main(arguments=None):
    parser = Parser(__doc__, SIZES)
    parser.add_argument("--texts", nargs="+", type=Path, default=FILES)
    options = parser.parse_args(arguments)
    from roformer_keras import RoFormerSim

    texts = draw_texts(options.texts, options.count + options.calibration)
    texts, others = texts[: options.count], texts[options.count :]
    sim = RoFormerSim.from_preset(SOURCE)
    rounded = RoFormerSim.from_preset(SOURCE, dtype="bfloat16")
    expected = sim.encode(texts)
    found = {
        "bfloat16": rounded.encode(texts),
        "int8, ONNX Runtime": encode_int8(sim, texts, "onnx", ()),
        "int8, OpenVINO": encode_int8(sim, texts, "openvino", others),
    }
    figures = {name: differences(own, expected) for name, own in found.items()}
    cosines = expected @ expected.T
    different = cosines[~np.eye(len(texts), dtype=bool)]
    figures["median cosine of different texts"] = float(np.median(different))
    print(json.dumps(figures, indent=2))


def encode_int8(sim, texts, format, calibration_texts):
    from roformer_keras.serving import ServedEncoder, export_model

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "served"
        export_model(
            sim, folder, format, int8=True, calibration_texts=calibration_texts
        )
        return ServedEncoder(folder).encode(texts)


def differences(found, expected):
    gaps, cosines = np.abs(found - expected), np.sum(found * expected, axis=1)
    return {
        "largest difference": float(gaps.max()),
        "mean difference": float(gaps.mean()),
        "smallest cosine": float(cosines.min()),
        "mean cosine": float(cosines.mean()),
    }


if __name__ == "__main__":
    sys.exit(main())
