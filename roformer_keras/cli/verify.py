"""`roformer-keras verify`."""

from roformer_keras.cli.terminal import shows_progress, start_backend
from roformer_keras.cli.texts import print_json

__all__ = ["run"]

EXAMPLES = ("verify roformer-char", "verify roformer-sim-char --lengths 1,2,64")
FLAGS_OF = "roformer_keras.verification.verify.verify"


def run(source: str, *, quiet: bool = False, as_json: bool = False, **options) -> int:
    """Compare a checkpoint with the real bert4keras."""
    start_backend()
    from roformer_keras.verification.verify import verify

    report = verify(source, verbose=shows_progress(quiet), **options)
    if as_json:
        print_json(report.to_dict())
    else:
        print(report)
    return 0 if report.passed else 1
