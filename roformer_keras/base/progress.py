"""The progress bar of every function that takes `verbose`."""

from typing import Any

from tqdm import tqdm

_DELAY = 1.0
# With two items or fewer, the first takes most of the time.
_FEW = 2


def progress_bar(verbose: int | str, **options: Any) -> "tqdm[Any]":
    """A progress bar on standard error."""
    if verbose == "auto":
        if options.get("total") is not None and options["total"] <= _FEW:
            return tqdm(disable=True, **options)
        # None lets tqdm check for a terminal.
        return tqdm(disable=None, delay=_DELAY, **options)
    return tqdm(disable=not verbose, **options)
