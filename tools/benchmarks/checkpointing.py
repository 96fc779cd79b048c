"""Memory that gradient checkpointing saves in training on long texts.

    python -m tools.benchmarks.checkpointing [--layers 12] [--length 2048]

Each case has its own process, which takes one step of AdamW to compile and times a
second one. The peak of memory is above that with everything imported.
"""

import sys
import time

from tools.benchmarks.harness import MODEL_SIZES, make_config, make_inputs, make_parser
from tools.commands import command
from tools.tables import print_table, write_json
from tools.workers import Worker, peak_bytes

SIZES = {**MODEL_SIZES, "length": (2048, 16, "tokens of a text")}


@command
def main(arguments=None):
    options, figures = make_parser(__doc__, SIZES).parse_args(arguments), {}
    for case in ("off", "on"):
        with Worker("tools.benchmarks.checkpointing:Training", {}) as worker:
            sizes = options.layers, options.hidden, options.length
            figures[case] = worker.call("measure", case == "on", *sizes)
    rows = [
        (case, f"{found['gigabytes']:.2f}", f"{found['seconds']:.1f}")
        for case, found in figures.items()
    ]
    print_table("checkpointing", ("peak memory, GB", "one step, s"), rows)
    on, off = figures["on"]["gigabytes"], figures["off"]["gigabytes"]
    # A tiny model stays below the peak of the imports.
    print(f"saved: {1 - on / off if off else 0:.0%} of the peak")
    if options.json:
        write_json(options.json, figures)


class Training:
    def measure(self, is_on, layers, hidden, length):
        import keras
        import numpy as np

        from roformer_keras import RoFormerBackbone

        # TensorFlow starts its threads and libraries with the first operation.
        keras.ops.convert_to_numpy(keras.ops.ones((8, 8)) @ keras.ops.ones((8, 8)))
        start = peak_bytes()
        rates = {"dropout": 0.1, "attention_dropout": 0.1}
        backbone = RoFormerBackbone(make_config(layers, hidden, **rates))
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
        # A step that makes variables is traced twice.
        model.optimizer.build(model.trainable_variables)
        inputs = make_inputs(1, length, 12_000)
        for _ in range(2):
            began = time.perf_counter()
            model.train_on_batch(inputs, np.zeros(1, "int32"))
            seconds = time.perf_counter() - began
        return {"gigabytes": (peak_bytes() - start) / 1e9, "seconds": seconds}


if __name__ == "__main__":
    sys.exit(main())
