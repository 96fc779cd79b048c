"""The record of a target that is fuzzed, and the error of a broken promise."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.fuzz.formats import Files, mutate_files

# Called before each of the reads of a run, whose time a fuzzer may limit.
before_read: list[Callable[[], None]] = []


class Finding(AssertionError):
    """A result that breaks a promise without an error of Python."""


@dataclass(frozen=True)
class Target:
    """Something that reads what users did not write.

    Args:
        seeds: returns the inputs to start from, given the folder of made presets.
        check: reads the files in a folder. It returns what was read, or raises: a
            `RoFormerError` is a right answer, anything else a finding.
        mutate: makes a new input of one.
        is_damage: bool. True if inputs are damaged where checksums can show it: what
            is read must then equal what is read of the seed.
        allowed: classes of errors that are right answers too.
        seconds: int. The limit of one run.
        needs_keras: bool. True if a run loads Keras: its process starts slowly.
        needs_made: bool. True if seeds need the folder of made presets.
    """

    seeds: Callable[[Path | None], Sequence[Files]]
    check: Callable[[Path], Any]
    mutate: Callable[[random.Random, Files], Files] = mutate_files
    is_damage: bool = False
    allowed: tuple[type[BaseException], ...] = ()
    seconds: int = 10
    needs_keras: bool = False
    needs_made: bool = False


def expect(holds: bool, rule: str, *values: object) -> None:
    """Raises Finding, with the values, unless a rule holds."""
    if not holds:
        raise Finding(f"{rule}: {', '.join(f'{value!r:.200}' for value in values)}")
