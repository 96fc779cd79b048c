"""Memory that gradient checkpointing saves in training on long texts.

    python -m tools.benchmarks.checkpointing [--layers 12] [--length 2048]

Each case has its own process, which takes one optimizer step to compile and a second
one that is timed. The peak of memory is above that of the process with everything
imported; it includes the weights and the two moments of AdamW.
"""

import sys
import time

from tools.benchmarks.harness import (
    exit_with_error,
    make_config,
    make_parser,
    print_table,
)
from tools.tables import write_json
from tools.workers import Worker, peak_bytes

SIZES = {
    "layers": (12, "layers of the model"),
    "hidden": (768, "its width, 64 for each head"),
    "length": (2048, "tokens of a text"),
    "batch-size": (1, "texts of a step"),
}


def main(arguments=None):
    parser = make_parser(__doc__, SIZES)
    parser.add_argument("--dtype", default="float32", help="Keras dtype policy")
    options = vars(parser.parse_args(arguments))
    path, figures = options.pop("json"), {}
    for case in ("off", "on"):
        with Worker("tools.benchmarks.checkpointing:Training", options) as worker:
            figures[case] = worker.call("measure", case == "on")
    rows = [
        (case, f"{found['gigabytes']:.2f}", f"{found['seconds']:.1f}")
        for case, found in figures.items()
    ]
    print_table("checkpointing", ("peak memory, GB", "one step, s"), rows)
    on, off = figures["on"]["gigabytes"], figures["off"]["gigabytes"]
    # A tiny model stays below the peak of the imports.
    print(f"saved: {1 - on / off if off else 0:.0%} of the peak")
    if path:
        write_json(path, figures)


class Training:
    def __init__(self, layers, hidden, length, batch_size, dtype):
        self.layers, self.hidden = layers, hidden
        self.shape, self.dtype = (batch_size, length), dtype

    def measure(self, is_on):
        import keras
        import numpy as np

        from roformer_keras import RoFormerBackbone

        # TensorFlow starts its threads and libraries with the first operation.
        keras.ops.convert_to_numpy(keras.ops.ones((8, 8)) @ keras.ops.ones((8, 8)))
        start = peak_bytes()
        rates = {"dropout": 0.1, "attention_dropout": 0.1}
        config = make_config(self.layers, self.hidden, **rates)
        backbone = RoFormerBackbone(config, dtype=self.dtype)
        backbone.gradient_checkpointing = is_on
        first = backbone(backbone.input)[:, 0]
        outputs = keras.layers.Dense(2, dtype="float32", name="classes")(first)
        model = keras.Model(backbone.input, outputs)
        model.compile(
            keras.optimizers.AdamW(2e-5),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            # XLA on the CPU is slower, and needs other memory.
            jit_compile=False,
        )
        ids = np.random.default_rng(0).integers(1, 12_000, self.shape).astype("int32")
        inputs = {"token_ids": ids, "segment_ids": np.zeros_like(ids)}
        for _ in range(2):
            began = time.perf_counter()
            model.train_on_batch(inputs, np.zeros(len(ids), "int32"))
            seconds = time.perf_counter() - began
        return {"gigabytes": (peak_bytes() - start) / 1e9, "seconds": seconds}


if __name__ == "__main__":
    sys.exit(exit_with_error(main))
