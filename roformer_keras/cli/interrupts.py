"""Ctrl-C and requests to end that are not lost.

Python raises KeyboardInterrupt wherever it happens to be. Code that catches every
exception, as libraries do while they compile, loses it, and so do callbacks and
destructors, which cannot raise: the command would continue. SIGTERM and SIGHUP end a
command in the same way, so that it leaves no temporary files.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Windows has no SIGHUP.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
_SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
_DEFAULTS = (signal.default_int_handler, signal.SIG_DFL)

_came: int | None = None


@contextmanager
def watched() -> Iterator[None]:
    """Remembers a signal that comes during the block, and raises KeyboardInterrupt."""
    global _came
    _came = None
    # A caller that ignores or handles a signal keeps doing so, and only the main
    # thread may set a handler.
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in _SIGNALS if is_main}
    before = {n: handler for n, handler in before.items() if handler in _DEFAULTS}
    if not before:
        yield
        return
    hook = sys.unraisablehook

    def note(number, frame):
        global _came
        _came = number
        raise KeyboardInterrupt

    def show(unraisable):
        # It is acted upon later, and needs no traceback here.
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)

    sys.unraisablehook = show
    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook


def came() -> bool:
    """True if a signal to end came since `watched` began."""
    return _came is not None


def exit_code() -> int:
    """Exit code of a command that the signal ended: 130 after Ctrl-C."""
    return 128 + (signal.SIGINT if _came is None else _came)


def check() -> None:
    """Raises KeyboardInterrupt if a signal came, even if it was lost."""
    if came():
        raise KeyboardInterrupt
