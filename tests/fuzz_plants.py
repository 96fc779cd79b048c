"""Targets with planted faults, which the fuzzing must find; see `e2e/test_fuzz.py`."""

import contextlib
import ctypes
import tempfile
import time
from pathlib import Path

from roformer_keras.errors import CheckpointError
from tools.fuzz.formats import damage_files, mutate_files
from tools.fuzz.target import Target, expect

# A file that no target may touch, unless the test removes it.
OUTSIDE = Path(tempfile.gettempdir(), "fuzz-plant-outside")


def is_hit(folder):
    """About one of four inputs, never the seed."""
    data = (folder / "x.bin").read_bytes()
    return data != SEED and (sum(data) + len(data)) % 4 == 0


def refuse(folder):
    if is_hit(folder):
        raise CheckpointError("x.bin must be good, got something else")
    return (folder / "x.bin").read_bytes() == SEED


def raise_type_error(folder):
    if is_hit(folder):
        raise TypeError("planted")


def hang(folder):
    while is_hit(folder):
        # What catches everything must not keep it alive.
        with contextlib.suppress(BaseException):
            time.sleep(1000)


def exhaust_memory(folder):
    if is_hit(folder):
        try:
            bytearray(2**33)
        except MemoryError as error:
            raise CheckpointError("there is not enough memory") from error


def crash(folder):
    if is_hit(folder):
        ctypes.string_at(0)


def end(folder):
    if is_hit(folder):
        raise SystemExit(3)


def read_in_silence(folder):
    return (folder / "x.bin").read_bytes()


def leave_a_file(folder):
    if is_hit(folder):
        # Nobody deletes it.
        tempfile.NamedTemporaryFile(delete=False).close()


def write_elsewhere(folder):
    if is_hit(folder):
        OUTSIDE.write_text("planted")


def break_a_promise(folder):
    expect(not is_hit(folder), "a rule holds", "planted")


SEED = bytes(range(64))


def _seeds(made):
    return [{"x.bin": SEED}]


FAULTS = {
    "type-error": (raise_type_error, "TypeError: planted"),
    "hang": (hang, "Timeout"),
    "memory": (exhaust_memory, "MemoryError: there is not enough memory"),
    "crash": (crash, "Segmentation fault"),
    "end": (end, "SystemExit: 3"),
    "leftover": (leave_a_file, "in the temporary folder"),
    "elsewhere": (write_elsewhere, "touched"),
    "promise": (break_a_promise, "Finding: a rule holds: 'planted'"),
}
TARGETS = {
    "good": Target(_seeds, mutate_files, refuse),
    "silence": Target(_seeds, damage_files, read_in_silence, is_damage=True),
    **{
        name: Target(_seeds, mutate_files, check) for name, (check, _) in FAULTS.items()
    },
}
FAULTS["silence"] = (read_in_silence, "other content was read in silence")
