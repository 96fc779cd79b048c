"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever it happens to be. Code that catches every
exception, as libraries do while they compile, loses it, and so do callbacks and
destructors, which cannot raise: the command would continue.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_came = False


@contextmanager
def watched() -> Iterator[None]:
    """Remembers a Ctrl-C that comes during the block, which also raises as usual."""
    global _came
    _came = False
    before = signal.getsignal(signal.SIGINT)
    # A caller that ignores or handles the signal keeps doing so, and only the main
    # thread may set a handler.
    is_main = threading.current_thread() is threading.main_thread()
    if before is not signal.default_int_handler or not is_main:
        yield
        return
    hook = sys.unraisablehook

    def note(number, frame):
        global _came
        _came = True
        raise KeyboardInterrupt

    def show(unraisable):
        # It is acted upon later, and needs no traceback here.
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
