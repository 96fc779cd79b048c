"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever it happens to be. Code that catches every
exception, as libraries do while they compile, loses it, and so do callbacks and
destructors, which cannot raise: the command would go on as if nobody had asked.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["came", "check", "watched"]

_came = False


@contextmanager
def watched() -> Iterator[None]:
    """Remembers a Ctrl-C that comes meanwhile, beside raising KeyboardInterrupt."""
    global _came
    _came = False
    before = signal.getsignal(signal.SIGINT)
    # Who ignores the signal, or handles it in another way, goes on to do so; and only
    # the main thread may set a handler.
    if (
        before is not signal.default_int_handler
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return
    hook = sys.unraisablehook

    def note(number, frame):
        global _came
        _came = True
        raise KeyboardInterrupt

    def show(unraisable):
        # It is acted upon later, so that it was ignored is not worth a traceback.
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)

    sys.unraisablehook = show
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = hook


def came() -> bool:
    """Whether Ctrl-C was pressed since `watched` began."""
    return _came


def check() -> None:
    """Raises KeyboardInterrupt if one came, even if it was lost."""
    if _came:
        raise KeyboardInterrupt
