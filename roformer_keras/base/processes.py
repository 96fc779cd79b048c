"""The process: its cores and signals, and whether it was forked."""

import functools
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from roformer_keras.base.errors import BackendError

# The process that made the first model.
_process_of_models: int | None = None


def refuse_forked_process() -> None:
    """Raises BackendError in a child of `os.fork()`, which would wait forever.

    Making a model starts threads of a backend or runtime, and the child lacks them.
    """
    global _process_of_models
    if _process_of_models is None:
        _process_of_models = os.getpid()
    elif _process_of_models != os.getpid():
        raise BackendError(
            "a process must not be forked once a model is made or loaded, and process "
            f"{os.getpid()} is a child of {_process_of_models}: start processes by "
            "multiprocessing.get_context('spawn'), or fork before"
        )


def available_cores() -> int:
    """Cores that this process may use, at most OMP_NUM_THREADS if it is set."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(count, int(limit)) if limit.isdecimal() and int(limit) else count


@functools.cache
def has_amx() -> bool:
    """True if the processor multiplies bfloat16 in tiles; False if not on Linux."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return "amx_bf16" in file.read().split()
    except OSError:
        return False


@contextmanager
def restored_handlers(
    signals: Sequence[int] = (signal.SIGINT, signal.SIGTERM),
) -> Iterator[dict[int, Any]]:
    """Restores the handlers of signals at the end; yields them by signal.

    Only the main thread may set handlers; another thread gets none.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in signals if is_main}
    try:
        yield before
    finally:
        for number, handler in before.items():
            # A handler in C reads as None.
            signal.signal(number, handler or signal.SIG_DFL)
