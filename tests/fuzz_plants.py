"""Targets with planted faults, which the fuzzing must find; see `e2e/test_fuzz.py`."""

import contextlib
import ctypes
import tempfile
import time
from pathlib import Path

from roformer_keras.base.errors import CheckpointError
from tools.fuzz.formats import damage_files
from tools.fuzz.target import Target, expect

# A file that no target may touch, unless the test removes it.
OUTSIDE = Path(tempfile.gettempdir(), "fuzz-plant-outside")
SEED = bytes(range(64))


def refuse():
    raise CheckpointError("x.bin must be good, got something else")


def raise_type_error():
    raise TypeError("planted")


def hang():
    while True:
        # What catches everything must not keep it alive.
        with contextlib.suppress(BaseException):
            time.sleep(1000)


def exhaust_memory():
    try:
        bytearray(2**33)
    except MemoryError as error:
        raise CheckpointError("there is not enough memory") from error


def end():
    raise SystemExit(3)


def leave_a_file():
    # Nobody deletes it.
    tempfile.NamedTemporaryFile(delete=False).close()


def target(action):
    """Does it for about one of four inputs, never for the seed."""

    def check(folder):
        data = (folder / "x.bin").read_bytes()
        if data != SEED and (sum(data) + len(data)) % 4 == 0:
            action()
        return data == SEED

    return Target(_seeds, check)


def read_in_silence(folder):
    return (folder / "x.bin").read_bytes()


def _seeds(made):
    return [{"x.bin": SEED}]


ACTIONS = {
    "type-error": raise_type_error,
    "hang": hang,
    "memory": exhaust_memory,
    "crash": lambda: ctypes.string_at(0),
    "end": end,
    "leftover": leave_a_file,
    "elsewhere": lambda: OUTSIDE.write_text("planted"),
    "promise": lambda: expect(False, "a rule holds", "planted"),
}
# What is said of each.
FAULTS = {
    "type-error": "TypeError: planted",
    "hang": "Timeout",
    "memory": "MemoryError: there is not enough memory",
    "crash": "Segmentation fault",
    "end": "SystemExit: 3",
    "leftover": "in the temporary folder",
    "elsewhere": "touched",
    "promise": "Finding: a rule holds: 'planted'",
    "silence": "other content was read in silence",
}
TARGETS = {
    "good": target(refuse),
    "silence": Target(_seeds, read_in_silence, damage_files, is_damage=True),
    **{name: target(action) for name, action in ACTIONS.items()},
}
