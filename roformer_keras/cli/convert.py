"""`roformer-keras convert`."""

from typing import Any, Literal

from roformer_keras.cli.terminal import shows_progress

EXAMPLES = (
    "convert roformer-char preset",
    "convert roformer-gpt-char gpt.safetensors",
    "convert roformer-char folder --format huggingface",
    "convert roformer-sim-char sentences --format sentence-transformers",
)


def run(
    source: str,
    target: str,
    *,
    format: Literal[
        "preset",
        "weights.h5",
        "keras",
        "safetensors",
        "bert4keras",
        "huggingface",
        "sentence-transformers",
    ]
    | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    model: str | None = None,
    ignore: list[str] | None = None,
    config: str | None = None,
    vocabulary: str | None = None,
    overwrite: bool = False,
    private: bool = False,
    quiet: bool = False,
) -> None:
    """Write weights in another format.

    Args:
        target: NAME.zip (bert4keras), NAME.keras, NAME.weights.h5, NAME.safetensors,
            or a folder (preset, or huggingface or sentence-transformers with
            --format); or hf://OWNER/NAME, a repository to upload such a folder to
            (huggingface by default).
        format: of the target, if its name does not say it.
        dtype: of the weights.
        model: class of the result, such as RoFormerCausalLM.
        ignore: pattern of unexpected tensors to leave out, such as 'dense*'; may be
            repeated.
        private: make a new repository private.
    """
    from roformer_keras.base.errors import refuse
    from roformer_keras.conversion.convert import convert
    from roformer_keras.conversion.push import push_to_hub
    from roformer_keras.hub.huggingface_hub import PREFIX

    options: dict[str, Any] = {
        "dtype": dtype,
        "model": model,
        "ignore": ignore or (),
        "config": config,
        "vocabulary": vocabulary,
        "verbose": shows_progress(quiet),
    }
    is_upload = target.startswith(PREFIX)
    refuse(
        overwrite and is_upload,
        f"--overwrite replaces files, and {target} gets a new commit: leave it out",
    )
    refuse(
        private and not is_upload,
        f"--private is for a repository at {PREFIX}OWNER/NAME, got {target}: leave "
        "it out",
    )
    if is_upload:
        options |= {"format": format or "huggingface", "private": private or None}
        print(push_to_hub(source, target, **options))
    else:
        print(convert(source, target, format=format, overwrite=overwrite, **options))
