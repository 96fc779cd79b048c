"""What the table in docs/features.md says of each check of `backend_checks.py`.

python tests/backend_features.py     run the checks on each backend, print the table
"""

import json
import os
import subprocess
import sys
from pathlib import Path

COLUMNS = {
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "torch": "PyTorch",
    "openvino": "OpenVINO",
}
FEATURES = {
    "outputs_equal_bert4keras": "`predict`, equal to bert4keras",
    "mixed_bfloat16": "mixed_bfloat16",
    "saving": "presets and `.keras`, written and read",
    "text": "`encode`, `fill_mask`",
    "generation": "`generate` by every method, `stream`, `paraphrase`",
    "linear_attention": "attention of linear cost: training and writing",
    "encoder_decoder": "`RoFormerSeq2Seq`: training and writing",
    "finetuning": "tasks on texts: `fit`, `predict`, `extract`",
    "adversarial_steps": "adversarial steps (FGM)",
    "partial_training": "LoRA, freezing, gradient checkpointing",
    "quantization": "Keras's `quantize`: int8 and int4",
    "export": "`export_model`",
}


def main():
    found = {backend: results_on(backend) for backend in COLUMNS}
    print(f"| | {' | '.join(COLUMNS.values())} |\n|---{'|---' * len(COLUMNS)}|")
    for check, feature in FEATURES.items():
        cells = ("yes" if found[backend][check] else "no" for backend in COLUMNS)
        print(f"| {feature} | {' | '.join(cells)} |")


def results_on(backend):
    """What a process with a backend finds of each check, by name."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("backend_checks.py")],
        env={**os.environ, "KERAS_BACKEND": backend},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
