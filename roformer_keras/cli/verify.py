"""`roformer-keras verify`."""

from pathlib import Path
from typing import Literal

from roformer_keras.cli.terminal import shows_progress, start_backend
from roformer_keras.cli.texts import print_json
from roformer_keras.io.atomic import check_target

FILES = ("reference",)
EXAMPLES = ("verify roformer-char", "verify roformer-sim-char --lengths 1,2,64")


def run(
    source: str,
    *,
    against: Literal["bert4keras", "transformers"] = "bert4keras",
    bert4keras: str | None = None,
    python: str | None = None,
    reference: str | None = None,
    save_reference: str | None = None,
    published: bool = False,
    lengths: tuple[int, ...] = (1, 2, 512, 1536),
    config: str | None = None,
    quiet: bool = False,
    as_json: bool = False,
) -> int:
    """Compare a checkpoint with the real bert4keras or Transformers.

    Args:
        against: what it is compared with.
        bert4keras: folder that holds bert4keras.
        python: interpreter to run that with.
        reference: file that --save-reference wrote, instead of running that.
        save_reference: file to save its outputs to.
        published: compare with published values of these weights instead.
        lengths: of the batches.
    """
    from roformer_keras.verification.reference import Reference, TransformersReference

    # Before the backend is imported.
    if save_reference is not None:
        check_target(Path(save_reference), overwrite=True, folder=False)
    if reference is None and not published and against == "transformers":
        TransformersReference.check_installed(python)
    elif reference is None and not published:
        Reference.check_installed(python, bert4keras)
    start_backend()
    from roformer_keras.verification.verify import verify

    report = verify(
        source,
        against=against,
        bert4keras=bert4keras,
        python=python,
        reference=reference,
        save_reference=save_reference,
        published=published,
        lengths=lengths,
        config=config,
        verbose=shows_progress(quiet),
    )
    if as_json:
        print_json(report.to_dict())
    else:
        print(report)
    return 0 if report.passed else 1
