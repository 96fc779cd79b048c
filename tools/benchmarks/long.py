"""Time and memory of one long text, next to Hugging Face's attention.

    python -m tools.benchmarks.long

Each turn is a process of its own, because memory is measured by the process; a short
text comes first. `added`: what its peak is above that after the short text, in MB.
Transformers' BERT of the same size uses PyTorch's `scaled_dot_product_attention`, which
its RoFormer cannot.
"""

import sys

from tools.benchmarks.harness import (
    MODEL_SIZES,
    Benchmark,
    Run,
    compare,
    make_parser,
)
from tools.benchmarks.sides import SHORT, RoFormer, Transformers, installed
from tools.commands import command
from tools.workers import peak_bytes

LENGTHS = (512, 2048, 8192, 16384)
SIZES = {
    **MODEL_SIZES,
    "vocabulary": (12000, 200, "its tokens"),
    "longest": (LENGTHS[-1], LENGTHS[0], "tokens of the longest text"),
    "rounds": (1, 1, "turns of each run"),
}
# Name of a run -> side and what `encode` takes after the shape.
RUNS = {
    "roformer_keras float32": ("float32", ("auto",)),
    "roformer_keras float32, engine keras": ("float32", ("keras",)),
    "transformers float32": ("transformers", ("Bert", "float32")),
    "roformer_keras bfloat16": ("bfloat16", ("auto",)),
    "transformers bfloat16": ("transformers", ("Bert", "bfloat16")),
}


@command
def main(arguments=None):
    options = make_parser(__doc__, SIZES).parse_args(arguments)
    with Benchmark(options, __spec__.name, SIDES) as benchmark:
        benchmark.write_checkpoint()
        for length in LENGTHS:
            if length > options.longest:
                continue
            runs = {
                name: Run(
                    side,
                    "read",
                    (f"1x{length}", *arguments),
                    ("read", SHORT, *arguments),
                )
                for name, (side, arguments) in RUNS.items()
            }
            title = f"{length} tokens"
            figures = compare(
                benchmark, installed(runs), title, "s", theirs=None, fresh=True
            )
            benchmark.save(title, figures)


class LongText:
    """A side that reads one text."""

    def read(self, shape, *arguments):
        before = peak_bytes()
        numbers = self.encode(shape, *arguments) or {}
        return numbers | {"added": (peak_bytes() - before) / 2**20}


class RoFormerOfLongTexts(LongText, RoFormer):
    pass


class TransformersOfLongTexts(LongText, Transformers):
    def model(self, name, dtype="float32", **fields):
        fields["max_position_embeddings"] = LENGTHS[-1]
        return super().model(name, dtype, **fields)


SIDES = {
    "float32": RoFormerOfLongTexts,
    "bfloat16": RoFormerOfLongTexts,
    "transformers": TransformersOfLongTexts,
}


if __name__ == "__main__":
    sys.exit(main())
