"""The process in which inputs are tried: what is watched, and what is a finding.

A crash, a hang and a kill end this process, not the fuzzing: the input lies in the
folder `run`, and `trace` says where the process was.
"""

import faulthandler
import importlib
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

from roformer_keras.base.errors import RoFormerError
from tools import ROOT
from tools.fuzz.target import Finding, Target

# Inputs that reach new code join the corpus, up to so many.
_MAX_CORPUS = 400
# Files that Python and its libraries read for themselves.
_LIBRARIES = (sys.prefix, sys.base_prefix, str(ROOT), "/proc/", "/sys/", "/dev/")
_LIBRARIES += ("/usr/", "/lib", "/etc/", "<")
# TensorFlow deletes the code that it has compiled when the process ends.
_AT_EXIT = "__autograph_generated_file"
_WRITES = {f"os.{x}" for x in ("remove", "rename", "mkdir", "rmdir", "symlink")}
_WRITES |= {"os.truncate"}
_PROGRAMS = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen")


class Fuzzer:
    """Tries inputs of targets in this process.

    Args:
        scratch: folder of this process: `run` holds the input, `tmp` temporary files.
        made: folder of the presets that `seeds.py` made, or None.
        table: `"module:NAME"` of the dict of name to `Target`.
        memory: int. Bytes that may be allocated beyond what the process has.
        seconds: int or None. The limit of a run, in place of the target's.
        warm: bool. True loads Keras before memory and time are limited.
    """

    def __init__(
        self, scratch, made=None, table=None, memory=2**31, seconds=None, warm=False
    ):
        if warm:
            import roformer_keras.models  # noqa: F401
        module, name = (table or "tools.fuzz.targets:TARGETS").split(":")
        self._targets = getattr(importlib.import_module(module), name)
        self._made = None if made is None else Path(made)
        self._folder = Path(scratch, "run")
        self._temporary = Path(scratch, "tmp")
        self._temporary.mkdir(exist_ok=True)
        self._memory, self._seconds = memory, seconds
        # Open as long as the process lives, which ends while it writes there.
        self._trace = open(Path(scratch, "trace"), "w")  # noqa: SIM115
        faulthandler.enable(self._trace)
        tempfile.tempdir = str(self._temporary)
        warnings.simplefilter("ignore")
        self._touched: list[str] | None = None
        self._limited = False
        sys.addaudithook(self._audit)

    def fuzz(self, name: str, seconds: float, seed: str) -> dict:
        """Tries inputs of a target for some seconds.

        Returns:
            dict of `runs`, `outcomes` (class of error to count) and `findings`, a list
            of dicts of `error`, `where` and `files`, the folder of the input.
        """
        target: Target = self._targets[name]
        draw = random.Random(f"{name} {seed}")
        corpus = list(target.seeds(self._made))
        expected = [self._run(target, files) for files in corpus]
        if target.is_damage and any(run[0] != "read" for run in expected):
            raise ValueError(f"the seeds of {name} cannot be read: {expected!r:.500}")
        seen: set = set()
        outcomes: Counter = Counter()
        findings: dict[str, dict] = {}
        end = time.monotonic() + seconds
        # At least one run, however short the time is.
        while not outcomes or time.monotonic() < end:
            number = draw.randrange(len(corpus))
            files = target.mutate(draw, corpus[number])
            known = [expected[number][2]] if target.is_damage else None
            outcome, where, _ = self._run(target, files, known)
            outcomes[outcome.partition(":")[0]] += 1
            if ": " in outcome:
                self.note(findings, name, outcome, where, files)
            elif where not in seen and len(corpus) < _MAX_CORPUS:
                seen.add(where)
                # Damage is compared with a seed.
                corpus += [] if target.is_damage else [files]
        return {
            "runs": outcomes.total(),
            "outcomes": dict(outcomes),
            "findings": list(findings.values()),
        }

    def note(self, findings, name, outcome, where, files):
        """Adds a finding to a dict, and saves its input, unless it is known."""
        key = f"{outcome.partition(':')[0]} {where}"
        if key not in findings:
            saved = self._folder.with_name(f"finding-{len(findings)}-{name}")
            write_files(saved, files)
            error = {"error": outcome, "where": where, "files": str(saved)}
            findings[key] = {**error, "count": 0}
        findings[key]["count"] += 1

    def replay(self, name: str, folder: str) -> str | None:
        """The error of the files of a folder as an input; None if there is none.

        Damage is compared with each seed: it may be of any of them.
        """
        target, files = self._targets[name], read_files(Path(folder))
        known = None
        if target.is_damage:
            known = [self._run(target, x)[2] for x in target.seeds(self._made)]
        outcome, _, _ = self._run(target, files, known)
        return outcome if ": " in outcome else None

    def _run(self, target, files, known=None):
        """Outcome, place in the code, and what was read.

        An outcome is `"read"`, the class of an error that is allowed, or that of a
        finding with its message after a colon. What is read must be in `known`.
        """
        write_files(self._folder, files)
        self._limit_memory()
        before = os.getcwd()
        os.chdir(self._folder)
        self._trace.truncate(0)
        seconds = self._seconds or target.seconds
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._trace)
        self._touched = []
        content = None
        try:
            content = self._check(target)
            outcome, where = "read", ""
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            outcome, where = _judge(error, target.allowed)
        finally:
            touched, self._touched = self._touched, None
            faulthandler.cancel_dump_traceback_later()
            os.chdir(before)
        left = [n for n in os.listdir(self._temporary) if not n.startswith(_AT_EXIT)]
        if ": " not in outcome:
            if touched:
                outcome = f"Finding: touched {touched[0]}"
            elif left:
                outcome = f"Finding: left {left[0]} in the temporary folder"
            elif outcome == "read" and known is not None and content not in known:
                outcome = "Finding: other content was read in silence"
        for path in (self._temporary / name for name in left):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        return outcome, where, content

    def _check(self, target):
        return target.check(self._folder)

    def _limit_memory(self):
        """Limits memory once the seeds have loaded what they need."""
        if self._limited or not sys.platform.startswith("linux"):
            return
        self._limited = True
        limit = self._memory + self._used_memory()
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))

    def _used_memory(self):
        """Bytes of addresses that this process has."""
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return pages * resource.getpagesize()

    def _audit(self, event, arguments):
        """Notes files that are touched outside the folders of a run, and programs."""
        if self._touched is None:
            return
        path, writes = arguments[0] if arguments else None, event in _WRITES
        if event in _PROGRAMS or event == "pickle.find_class":
            self._touched.append(f"{event} {arguments!r:.200}")
        elif (writes or event == "open") and isinstance(path, bytes | str):
            if not writes:
                flags = arguments[2] or 0
                writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            if not self._is_ours(path, writes):
                self._touched.append(f"{os.fsdecode(path)[:200]!r} by {event}")

    def _is_ours(self, path, writes):
        path = os.path.normpath(os.path.join(os.getcwd(), os.fsdecode(path)))
        if path.startswith(f"{self._folder.parent}{os.sep}"):
            return True
        if writes:
            return path == os.devnull or "__pycache__" in path
        return path.startswith(_LIBRARIES)


def _judge(error, allowed):
    """The outcome of an error, and where in this package it came from."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    frames = [
        f"{Path(frame.filename).name}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if "roformer_keras" in frame.filename
    ]
    kinds = "<".join(type(link).__name__ for link in chain)
    where = f"{kinds} {' '.join(frames[-3:])}"
    name, said = type(error).__name__, str(error)
    if any(isinstance(link, MemoryError) for link in chain):
        return f"MemoryError: {said:.300}", where
    if isinstance(error, RoFormerError):
        if not said.strip():
            return "Finding: an error without a message", where
        if re.search(r"object at 0x[0-9a-f]{6}", said):
            return f"Finding: an error shows an address: {said:.300}", where
        return name, where
    if isinstance(error, allowed) and not isinstance(error, Finding):
        return name, where
    return f"{name}: {said:.300}", where


def write_files(folder: Path, files) -> None:
    """Makes a folder that holds these files and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def read_files(folder: Path) -> dict[str, bytes]:
    """The files of a folder, by path in it; `finding.txt` is left out."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "finding.txt"
    }
