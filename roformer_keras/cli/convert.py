"""`roformer-keras convert`."""

from roformer_keras.cli.terminal import shows_progress

__all__ = ["run"]

EXAMPLES = (
    "convert roformer-char preset",
    "convert roformer-gpt-char gpt.safetensors",
)
FLAGS_OF = "roformer_keras.conversion.convert.convert"


def run(source: str, target: str, *, quiet: bool = False, **options) -> None:
    """Write weights in another format.

    Args:
        target: NAME.zip (bert4keras), NAME.keras, NAME.weights.h5, NAME.safetensors,
            or a folder (preset).
    """
    from roformer_keras.conversion.convert import convert

    print(convert(source, target, verbose=shows_progress(quiet), **options))
