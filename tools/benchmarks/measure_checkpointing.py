"""How much memory gradient checkpointing saves in training on long texts.

Each case is a process of its own: it builds a backbone with random weights, takes one
optimizer step on a batch to compile, and a second that is timed. Prints the peak of
resident memory above that of the process with everything imported, the weights and
AdamW's two moments in it, and the seconds of the second step.

    python -m tools.benchmarks.measure_checkpointing [--layers 12] [--hidden 768] \\
        [--length 2048]
"""

import argparse
import json
import subprocess
import sys
import time

from tools.benchmarks.reporting import peak_bytes


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768, help="64 a head")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a text")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--dtype", default="float32", help="Keras dtype policy")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(options)))
        return
    print("| checkpointing | peak memory, GB | one step, s |")
    print("|---|---|---|")
    peaks = []
    for case in CASES:
        command = [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--case", case]
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(result.stdout.splitlines()[-1])
        peaks.append(found["peak"])
        print(f"| {case} | {found['peak']:.2f} | {found['seconds']:.1f} |", flush=True)
    print(f"\nSaved: {1 - peaks[1] / peaks[0]:.0%} of the peak")


def measure(options):
    import keras
    import numpy as np

    from roformer_keras import RoFormerBackbone, RoFormerConfig

    # TensorFlow takes up its threads and libraries with the first operation.
    keras.ops.convert_to_numpy(keras.ops.ones((8, 8)) @ keras.ops.ones((8, 8)))
    start = peak_bytes()
    config = RoFormerConfig(
        vocabulary_size=12_000,
        hidden_dim=options.hidden,
        num_layers=options.layers,
        num_heads=options.hidden // 64,
        intermediate_dim=4 * options.hidden,
        dropout=0.1,
        attention_dropout=0.1,
    )
    backbone = RoFormerBackbone(config, dtype=options.dtype)
    backbone.gradient_checkpointing = options.case == "on"
    first = backbone(backbone.input)[:, 0]
    outputs = keras.layers.Dense(2, dtype="float32", name="classes")(first)
    model = keras.Model(backbone.input, outputs)
    model.compile(
        keras.optimizers.AdamW(2e-5),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        # XLA on the CPU is slower, and takes other memory.
        jit_compile=False,
    )
    shape = (options.batch_size, options.length)
    ids = np.random.default_rng(0).integers(1, 12_000, shape).astype("int32")
    inputs = {"token_ids": ids, "segment_ids": np.zeros(shape, "int32")}
    labels = np.zeros(options.batch_size, "int32")
    for _ in range(2):
        began = time.perf_counter()
        model.train_on_batch(inputs, labels)
        seconds = time.perf_counter() - began
    return {"peak": (peak_bytes() - start) / 1e9, "seconds": seconds}


CASES = ("off", "on")


if __name__ == "__main__":
    main()
