"""`roformer-keras convert`."""

from typing import Literal

from roformer_keras.cli.terminal import shows_progress

EXAMPLES = (
    "convert roformer-char preset",
    "convert roformer-gpt-char gpt.safetensors",
    "convert roformer-char folder --format huggingface",
)


def run(
    source: str,
    target: str,
    *,
    format: Literal[
        "preset", "weights.h5", "keras", "safetensors", "bert4keras", "huggingface"
    ]
    | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    model: str | None = None,
    ignore: list[str] | None = None,
    config: str | None = None,
    vocabulary: str | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> None:
    """Write weights in another format.

    Args:
        target: NAME.zip (bert4keras), NAME.keras, NAME.weights.h5, NAME.safetensors,
            or a folder (preset, or huggingface with --format).
        format: of the target, if its name does not say it.
        dtype: of the weights.
        model: class of the result, such as RoFormerCausalLM.
        ignore: pattern of unexpected tensors to leave out, such as 'dense*'; may be
            repeated.
    """
    from roformer_keras.conversion.convert import convert

    print(
        convert(
            *(source, target),
            format=format,
            dtype=dtype,
            model=model,
            ignore=ignore or (),
            config=config,
            vocabulary=vocabulary,
            overwrite=overwrite,
            verbose=shows_progress(quiet),
        )
    )
