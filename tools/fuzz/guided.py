"""Fuzzing that the coverage of this package's code guides: libFuzzer, by atheris.

It tries the same targets as `worker.Fuzzer`. An input that reaches new code, or
compares with new values, joins the corpus and is changed again. Every input has a
budget of processor time and of memory.
"""

import contextlib
import faulthandler
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import time
from collections import Counter

import atheris

from roformer_keras.base.errors import RoFormerError

# Modules that are imported from here on, whenever that is, count their branches.
_COUNTED = ("roformer_keras", "planted_readers", "pickle", "pickletools", "zipfile")
atheris.instrument_imports(include=_COUNTED).__enter__()

from tools.fuzz.formats import Files  # noqa: E402
from tools.fuzz.target import before_read  # noqa: E402
from tools.fuzz.worker import Fuzzer, write_files  # noqa: E402

# Processor time in seconds, and bytes that an input may take.
_SECONDS, _MEMORY = 1.0, 300 * 2**20
# What one input may last if the processor is shared, or a library does not return.
_WALL_SECONDS = 10
_MAX_INPUT = 2**20
# The exit code of libFuzzer: an input has ended the process, or an error of ours.
_EXCEPTION = 77
# Share of inputs that libFuzzer changes by what was compared, without their format.
_BYTES_SHARE = 0.3
# Share of inputs that are made of a seed: what joins the corpus is often broken.
_SEED_SHARE = 0.3
# libFuzzer ends at a signal, a leak or a limit, which are left to `Fuzzer`.
_SIGNALS = ("segv", "bus", "abrt", "ill", "fpe", "int", "term", "xfsz")
_FLAGS = (
    *(f"-handle_{name}=0" for name in _SIGNALS),
    *("-timeout=3600", "-rss_limit_mb=0", "-malloc_limit_mb=0", "-detect_leaks=0"),
    *("-mutate_depth=1", "-len_control=0", f"-max_len={_MAX_INPUT}", "-reload=0"),
)


class TooSlow(BaseException):
    """An input took more than its processor time."""


class GuidedFuzzer(Fuzzer):
    """Tries inputs that libFuzzer chooses, in a copy of this process.

    What was found is kept in the scratch folder, so that a target goes on in the next
    process when an input ends this one. Arguments are those of `Fuzzer`.
    """

    def __init__(self, memory=_MEMORY, seconds=_WALL_SECONDS, **options):
        super().__init__(memory=memory, seconds=seconds, **options)
        self._is_running = False
        signal.signal(signal.SIGPROF, self._end_input)
        before_read.append(self._restart)

    def fuzz(self, name: str, seconds: float, seed: str) -> dict:
        """As that of `Fuzzer`, with `coverage`, the number of branches reached."""
        state = self._folder.with_name(f"{name}.json")
        log = self._folder.with_name(f"{name}.log")
        corpus = self._folder.with_name(f"corpus-{name}")
        seeds = self._run_seeds(name)
        if not corpus.exists():
            write_files(corpus, {f"{i}": pack(files) for i, files in enumerate(seeds)})
        process = os.fork()
        if not process:
            run = _Run(self, name, seeds, state, seconds)
            flags = (*_FLAGS, f"-seed={random.Random(seed).randrange(1, 2**31)}")
            flags += (f"-artifact_prefix={log.parent}/",)
            run.start(log, [name, *flags, str(corpus)])
        _, status = os.waitpid(process, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == _EXCEPTION and not os.path.getsize(self._trace.name):
            raise RuntimeError(log.read_text(errors="replace")[-3000:])
        if code:
            # As the input ended the copy.
            os._exit(abs(code))
        counts = re.findall(r" cov: (\d+)", log.read_text(errors="replace"))
        answer = json.loads(state.read_text())
        for path in (state, log):
            path.unlink()
        shutil.rmtree(corpus)
        return {**answer, "coverage": max(map(int, counts), default=0)}

    def replay(self, name: str, folder: str) -> str | None:
        self._run_seeds(name)
        return super().replay(name, folder)

    def note(self, findings, name, outcome, where, files):
        if outcome.startswith(TooSlow.__name__):
            # A loop is stopped at any of its lines.
            where = re.sub(r":\d+", "", where)
        super().note(findings, name, outcome, where, files)

    def _run_seeds(self, name):
        """The seeds, which are read so that what they need is loaded."""
        target = self._targets[name]
        seeds = list(target.seeds(self._made))
        for files in seeds:
            write_files(self._folder, files)
            with contextlib.suppress(RoFormerError):
                super()._check(target)
        return seeds

    def _limit_memory(self):
        """Leaves it to `_check`: the corpus takes memory too."""

    def _check(self, target):
        limit = self._memory + self._used_memory()
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        self._is_running = True
        self._restart()
        try:
            return super()._check(target)
        finally:
            self._is_running = False
            signal.setitimer(signal.ITIMER_PROF, 0)
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)

    def _restart(self):
        """Begins the time of a read: some targets read an input dozens of times."""
        if self._is_running:
            signal.setitimer(signal.ITIMER_PROF, _SECONDS, _SECONDS)
            seconds, trace = self._seconds, self._trace
            faulthandler.dump_traceback_later(seconds, exit=True, file=trace)

    def _end_input(self, *_):
        if self._is_running:
            raise TooSlow(f"more than {_SECONDS} s of processor time")


class _Run:
    """libFuzzer on one target; the process ends with it."""

    def __init__(self, fuzzer, name, seeds, state, seconds):
        self._fuzzer, self._name, self._seeds = fuzzer, name, seeds
        self._target = fuzzer._targets[name]
        self._state, self._end = state, time.monotonic() + seconds
        self._saved = 0.0
        self._outcomes: Counter = Counter()
        self._findings: dict[str, dict] = {}
        if state.exists():
            before = json.loads(state.read_text())
            self._outcomes.update(before["outcomes"])
            self._findings = {x["key"]: x for x in before["findings"]}

    def start(self, log, arguments):
        # Answers of the worker go to another file.
        with open(log, "ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        atheris.Setup(arguments, self.try_input, custom_mutator=self.mutate)
        atheris.Fuzz()

    def mutate(self, data: bytes, max_size: int, seed: int) -> bytes:
        draw = random.Random(seed)
        files = unpack(data) if draw.random() > _SEED_SHARE else {}
        files = files or draw.choice(self._seeds)
        if draw.random() < _BYTES_SHARE:
            name = draw.choice(sorted(files))
            size = len(files[name])
            changed = atheris.Mutate(files[name], size + draw.choice((1, 16, 64)))
            files = {**files, name: bytes(changed)}
        else:
            files = self._target.mutate(draw, files)
        packed = pack(files)
        return packed if len(packed) <= max_size else data

    def try_input(self, data: bytes):
        fuzzer, target = self._fuzzer, self._target
        if files := unpack(data):
            outcome, where, _ = fuzzer._run(target, files)
            self._outcomes[outcome.partition(":")[0]] += 1
            if ": " in outcome:
                fuzzer.note(self._findings, self._name, outcome, where, files)
                self._saved = 0
        # An input may end the process at any time.
        if time.monotonic() > self._saved + 1:
            self._save()
        if time.monotonic() > self._end and self._outcomes:
            self._save()
            os._exit(0)

    def _save(self):
        self._saved = time.monotonic()
        findings = [{**x, "key": key} for key, x in self._findings.items()]
        answer = {"runs": self._outcomes.total(), "outcomes": self._outcomes}
        self._state.write_text(json.dumps({**answer, "findings": findings}))


def pack(files: Files) -> bytes:
    """Files as one run of bytes."""
    parts = []
    for name, content in sorted(files.items()):
        encoded = name.encode()
        sizes = struct.pack("<HI", len(encoded), len(content))
        parts += [sizes, encoded, content]
    return b"".join(parts)


def unpack(data: bytes) -> dict[str, bytes]:
    """The files of which `pack` made this; {} if it did not."""
    files, at = {}, 0
    while at < len(data):
        if at + 6 > len(data):
            return {}
        name_size, size = struct.unpack_from("<HI", data, at)
        start = at + 6 + name_size
        if start + size > len(data):
            return {}
        try:
            files[data[at + 6 : start].decode()] = data[start : start + size]
        except UnicodeDecodeError:
            return {}
        at = start + size
    return files
