"""Where the time of a fine-tuning step goes, by TensorFlow's operations.

    python -m tools.benchmarks.step_profile

Updates a text classifier of random weights on one batch under TensorFlow's profiler,
and prints the operations that take longest and their shares of the time of all.
"""

import collections
import sys
import tempfile
from pathlib import Path

import numpy as np

from tools.benchmarks.harness import MODEL_SIZES, make_config, make_inputs, make_parser
from tools.commands import command
from tools.tables import print_table, write_json

PRODUCTS = "matrix products"
# Events that contain those of operations.
CALLS = "ExecutorState", "KernelAndDeviceFunc", "EagerLocalExecute"
SIZES = {
    **MODEL_SIZES,
    "vocabulary": (12000, 200, "its tokens"),
    "batch": (16, 2, "rows of a batch"),
    "length": (128, 8, "tokens of a row"),
    "steps": (3, 1, "updates that are measured"),
    "lines": (15, 5, "operations to print"),
}


@command
def main(arguments=None):
    options = make_parser(__doc__, SIZES).parse_args(arguments)
    figures = {}
    for dtype in ("float32", "mixed_bfloat16"):
        seconds = profile(options, dtype)
        total = sum(seconds.values())
        figures[dtype] = {name: own / total for name, own in seconds.most_common()}
        rows = [
            (name, f"{1000 * own / options.steps:.1f}", f"{own / total:.1%}")
            for name, own in seconds.most_common(options.lines)
        ]
        title = f"{dtype}, {options.batch}x{options.length}"
        print_table(title, ("ms a step", "share"), rows)
    if options.json:
        write_json(options.json, figures)


def profile(options, dtype) -> collections.Counter:
    """Name of an operation -> seconds in all updates."""
    import tensorflow as tf

    from roformer_keras import RoFormerBackbone, RoFormerTextClassifier
    from roformer_keras.optimizers import make_optimizer

    sizes = options.layers, options.hidden, options.vocabulary
    config = make_config(*sizes, dropout=0.1, attention_dropout=0.1)
    backbone = RoFormerBackbone(config, dtype=dtype)
    model = RoFormerTextClassifier(backbone, None, num_classes=2)
    model.compile(make_optimizer(2e-5))
    inputs = make_inputs(options.batch, options.length, options.vocabulary)
    labels = np.arange(options.batch) % 2
    # The first call compiles.
    model.train_on_batch(inputs, labels)
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            for _ in range(options.steps):
                model.train_on_batch(inputs, labels)
        (path,) = Path(folder).rglob("*.xplane.pb")
        return times_of_operations(path.read_bytes())


def times_of_operations(trace: bytes) -> collections.Counter:
    """Name of an operation -> seconds; events are named `name of the node:operation`.

    The executor and the call of the whole graph are events too, and are left out.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    found = collections.Counter()
    for plane in xplane_pb2.XSpace.FromString(trace).planes:
        for event in (event for line in plane.lines for event in line.events):
            name = plane.event_metadata[event.metadata_id].name
            node, _, operation = name.rpartition(":")
            if node.rstrip(":") in ("", *CALLS):
                continue
            kind = PRODUCTS if "MatMul" in operation else operation
            found[kind] += event.duration_ps / 1e12
    return found


if __name__ == "__main__":
    sys.exit(main())
