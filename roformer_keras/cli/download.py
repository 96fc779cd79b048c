"""`roformer-keras download`."""

from roformer_keras.cli.terminal import shows_progress


def run(
    names: list[str],
    *,
    folder: str | None = None,
    base_url: str | None = None,
    quiet: bool = False,
) -> None:
    """Download released checkpoints.

    Args:
        names: see `list`.
        folder: where to (default: roformer-keras in the cache of the user, or
            $ROFORMER_KERAS_CHECKPOINTS).
        base_url: of a mirror.
    """
    from roformer_keras.hub.download import download

    for name in names:
        print(download(name, folder, base_url, verbose=int(shows_progress(quiet))))
