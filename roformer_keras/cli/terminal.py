"""Output on a terminal while a command works: progress, remarks, no noise."""

import itertools
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from roformer_keras.base.errors import BackendError, ConfigurationError
from roformer_keras.cli import interrupts


def remark(text: str) -> None:
    """Prints a message to standard error."""
    print(f"roformer-keras: {text}", file=sys.stderr)


def remark_source(source) -> None:
    """Says which checkpoint is used where none is named."""
    remark(f"using {source}, a small checkpoint that comes with this package")


def shows_progress(quiet: bool) -> bool:
    """True if progress bars are to be shown: only on a terminal."""
    return not quiet and sys.stderr.isatty()


def start_backend() -> None:
    """Imports Keras and its backend."""
    try:
        import keras

        keras.ops.zeros(())
    except BackendError:
        raise
    except (ImportError, ValueError) as error:
        raise ConfigurationError(
            f"Keras's backend {os.environ.get('KERAS_BACKEND', 'tensorflow')!r} cannot "
            f"be used: {error}"
        ) from error


@contextmanager
def log_to_stderr(quiet: bool):
    """Shows on standard error, above a progress bar, when a program is compiled."""
    from tqdm import tqdm

    class Handler(logging.Handler):
        def emit(self, record):
            tqdm.write(f"roformer-keras: {record.getMessage()}", file=sys.stderr)

    logger, handler = logging.getLogger("roformer_keras.generation"), Handler()
    before = logger.level
    if not quiet:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def print_stream(pieces: Iterator[str], quiet: bool) -> None:
    """Prints a text as it is written."""
    # The second piece compiles a program that the first does not need. A remark of it
    # would break the line of the text.
    with log_to_stderr(quiet):
        first = list(itertools.islice(pieces, 2))
    for piece in itertools.chain(first, pieces):
        interrupts.check()
        print(piece, end="", flush=True)
    print()


@contextmanager
def training(output: str):
    """Starts the backend for a training in a folder; yields its callbacks."""
    start_backend()
    import keras

    class Interruptible(keras.callbacks.Callback):
        """Ends a training at a Ctrl-C that a library has lost."""

        def on_train_batch_end(self, batch, logs=None):
            interrupts.check()

        on_test_batch_end = on_train_batch_end

    try:
        # Keras's bar would go to standard output.
        with redirect_stdout(sys.stderr):
            yield [Interruptible()]
    except KeyboardInterrupt:
        remark(
            f"what was saved is kept in {output}; run the same command again to resume"
        )
        raise
