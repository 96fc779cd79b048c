"""Fuzzes everything that reads what users did not write.

    python -m tools.fuzz --seconds 600              all targets, 600 seconds together
    python -m tools.fuzz zip hdf5 --seed 7          two of them
    python -m tools.fuzz TARGET --replay FOLDER     a finding again
    python -m tools.fuzz --coverage                 the readers of files, by coverage

A target reads mutated files, from small files of the tests. It must answer with a
result or a `RoFormerError`. Findings are anything else: other errors, crashes, hangs,
memory beyond a limit, files that are touched or left, and damage that is read in
silence where there are checksums. Each is saved in `fuzz-findings/TARGET-HASH`, with
`finding.txt` that says what happened and how to repeat it. The exit code is 1 if there
are any.

The mutators are this project's own: Hypothesis neither mutates files nor survives a
crash or a hang of HDF5's C code. An input that ends in new code joins the corpus. With
`--coverage` libFuzzer chooses among them and changes of its own, by the branches that
an input reaches, and each input has 1 s of processor time and 300 MB; this needs
atheris, `pip install 'atheris<4'`, which has wheels for Linux only.
"""

import functools
import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import h5py

from roformer_keras.base.errors import ConfigurationError
from tools import ROOT
from tools.commands import Parser, command
from tools.fuzz.targets import TARGETS
from tools.fuzz.worker import read_files, write_files
from tools.workers import Worker, WorkerFailed

# What coverage guides by default: the readers of files, which run without Keras.
COVERED = (
    *("pickle", "tensor-bundle", "hdf5", "safetensors", "zip", "tables", "corpora"),
    *("vocabulary", "settings-finetune"),
)
# A target that ends its process so often is left.
_MAX_DEATHS = 10
_SHOWN_LINES = 12
# HDF5 hangs, and before 2.0 crashes, on some crafted files, as SECURITY.md says.
# TensorFlow 2.21 takes no h5py that has a later one.
_KNOWN = f"crash or hang of HDF5 {h5py.version.hdf5_version}"
# Work on one core is measured by `jobs`, and each thread takes memory.
_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS")
# Each thread of its own arena takes 64 MB of addresses, which are limited.
_QUIET = {
    "MALLOC_ARENA_MAX": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    **dict.fromkeys(_THREADS, "1"),
}
# Every run writes files, for which no disk is needed.
_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass
class Report:
    """The results of a target."""

    runs: int = 0
    seconds: float = 0.0
    coverage: int = 0
    outcomes: Counter = field(default_factory=Counter)
    findings: dict[str, Path] = field(default_factory=dict)

    def __str__(self):
        shown = ", ".join(f"{name} {n}" for name, n in self.outcomes.most_common())
        rate = self.runs / max(self.seconds, 1e-9)
        count = f"{len(self.findings)} findings" if self.findings else "no finding"
        reached = f", {self.coverage:,} branches" if self.coverage else ""
        return f"{self.runs:>8,} runs {rate:>8.1f}/s{reached}  {count}; {shown}"


class Fuzzing:
    """Fuzzes targets in worker processes, which findings may end.

    Args:
        folder: where findings are saved.
        made: folder of made presets, or None.
        targets: dict of name to `Target`.
        table: str. Where workers find the targets, as `Fuzzer` takes it.
        by_coverage: bool. True for a `GuidedFuzzer`.
        limits: more arguments of `Fuzzer`.
    """

    def __init__(
        self,
        folder,
        made=None,
        targets=TARGETS,
        table=None,
        by_coverage=False,
        **limits,
    ):
        self.folder = Path(folder)
        self._targets, self._by_coverage = targets, by_coverage
        self._options = {"made": made and str(made), "table": table, **limits}

    def run(self, names, seconds: float, seed: int, jobs: int = 1, tell=print):
        """Fuzzes targets for some seconds together; returns `Report` by name."""
        share, reports = seconds * jobs / len(names), {}
        # Processes that start slowly are needed last.
        waiting = sorted(names, key=lambda name: self._targets[name].needs_keras)[::-1]

        def work(_):
            with _Process(self._options, self._by_coverage) as process:
                while waiting:
                    name = waiting.pop()
                    reports[name] = self._fuzz(process, name, share, seed)
                    tell(f"{name:<22} {reports[name]}")

        with ThreadPoolExecutor(jobs) as pool:
            # An error of the fuzzing itself is raised here.
            list(pool.map(work, range(jobs)))
        return reports

    def replay(self, name: str, folder: Path) -> str | None:
        """The finding if an input is tried again; None without one."""
        with _Process(self._options, self._by_coverage) as process:
            try:
                worker = process.start(self._targets[name].needs_keras)
                return worker.call("replay", name, str(folder.absolute()))
            except WorkerFailed as error:
                return process.describe(error)

    def _fuzz(self, process, name, seconds, seed):
        report, deaths, left = Report(), 0, seconds
        while (left > 0 or not report.runs) and report.outcomes["death"] < _MAX_DEATHS:
            start = time.monotonic()
            try:
                worker = process.start(self._targets[name].needs_keras)
                start = time.monotonic()
                answer = worker.call("fuzz", name, max(0, left), f"{seed} {deaths}")
            except WorkerFailed as error:
                if process.is_our_fault(error):
                    raise
                deaths += 1
                report.runs += 1
                said, files = process.describe(error), read_files(process.input)
                process.close()
                is_known = self._is_known(name, said, files)
                report.outcomes[_KNOWN if is_known else "death"] += 1
                if not is_known:
                    key = re.sub("0x[0-9a-f]+", "", said)
                    self._save(name, key, said, files, report)
            else:
                report.runs += answer["runs"]
                report.coverage = answer.get("coverage", 0)
                report.outcomes.update(answer["outcomes"])
                for finding in answer["findings"]:
                    error, where = finding["error"], finding["where"]
                    files = read_files(Path(finding["files"]))
                    said = f"{error}\n{where}, {finding['count']} times"
                    key = f"{error.partition(':')[0]} {where}"
                    self._save(name, key, said, files, report)
                    shutil.rmtree(finding["files"])
            passed = time.monotonic() - start
            report.seconds += passed
            left -= passed
        return report

    def _is_known(self, name, said, files):
        """True if HDF5 hung, or if an HDF5 that is known to crash did so."""
        if "Timeout (" in said:
            return _find_library(said) == "h5py"
        if h5py.version.hdf5_version_tuple >= (2, 0) or "Fatal Python" not in said:
            return False
        if _find_library(said) == "h5py":
            return True
        # It breaks memory in silence, and the process ends anywhere after that.
        with tempfile.TemporaryDirectory() as folder:
            write_files(Path(folder, "x"), files)
            return self.replay(name, Path(folder, "x")) is None

    def _save(self, name, key, said, files, report):
        if key in report.findings:
            return
        content = json.dumps({n: d.hex() for n, d in files.items()}, sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:12]
        target = self.folder / f"{name}-{digest}"
        write_files(target, files)
        way = f"python -m tools.fuzz {name} --replay {shlex.quote(str(target))}"
        way += " --coverage" * self._by_coverage
        text = f"{said}\n\nRepeat it by\n\n    {way}\n"
        (target / "finding.txt").write_text(text, encoding="utf-8", errors="replace")
        report.findings[key] = target


def _find_library(said: str) -> str | None:
    """The library whose code ran last, by what a process said at its end."""
    # The thread that crashed, or hangs, comes last.
    libraries = re.findall(r'first\):\n  File "[^"]*site-packages/(\w+)/', said)
    return libraries[-1] if libraries else None


class _Process:
    """A worker process with its scratch folder, which is started anew when it ends."""

    def __init__(self, options, by_coverage):
        self._options = options
        name = "guided:GuidedFuzzer" if by_coverage else "worker:Fuzzer"
        self._fuzzer = f"tools.fuzz.{name}"
        self._worker: Worker | None = None
        self._has_keras = False
        self._scratch = tempfile.TemporaryDirectory(prefix="fuzz-", dir=_MEMORY)

    @property
    def input(self) -> Path:
        """The folder with the input that is tried."""
        return Path(self._scratch.name, "run")

    def start(self, needs_keras: bool) -> Worker:
        """The process; another one if that one has loaded Keras, or has not."""
        if self._has_keras != needs_keras:
            self.close()
        if self._worker is None:
            options = {**self._options, "scratch": self._scratch.name}
            if needs_keras:
                options["memory"] = 4 * options.get("memory", 2**31)
                options["warm"] = True
            self._worker = Worker(self._fuzzer, options, {**os.environ, **_QUIET})
            self._has_keras = needs_keras
        return self._worker

    def is_our_fault(self, error: WorkerFailed) -> bool:
        """True if an error of the fuzzing itself ended the process."""
        # That of an exception; a hang has it too, but leaves a trace.
        return not self._trace() and "exit code 1 " in str(error)

    def _trace(self):
        path = Path(self._scratch.name, "trace")
        return path.read_text(errors="replace").strip() if path.exists() else ""

    def describe(self, error: WorkerFailed) -> str:
        """Why the process ended, and where it was."""
        lines = self._trace().splitlines()[:_SHOWN_LINES]
        return "\n".join(["the process ended", *(lines or [str(error)])])

    def close(self):
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()
        self._scratch.cleanup()


@command
def main(arguments=None):
    parser = Parser(__doc__)
    help = f"{', '.join(TARGETS)}; all of them by default"
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=help)
    parser.add_argument("--seconds", type=float, default=600, help="of all together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--replay", type=Path, metavar="FOLDER", help="of a finding")
    help = "choose inputs by the coverage of this package's code"
    parser.add_argument("--coverage", action="store_true", help=help)
    findings = ROOT / "fuzz-findings"
    parser.add_argument("--findings", type=Path, default=findings, metavar="FOLDER")
    options = parser.parse_args(arguments)
    names = options.targets or list(COVERED if options.coverage else TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        raise ConfigurationError(f"there are no targets {', '.join(unknown)}")
    if options.coverage:
        _check_coverage(names)
    if options.replay and len(names) != 1:
        raise ConfigurationError("to replay a finding, name its one target")
    with tempfile.TemporaryDirectory(prefix="fuzz-seeds-") as made:
        if any(TARGETS[name].needs_made for name in names):
            with Worker("tools.fuzz.seeds:Maker", {}) as maker:
                maker.call("make", made)
        fuzzing = Fuzzing(options.findings, made, by_coverage=options.coverage)
        if options.replay:
            finding = fuzzing.replay(names[0], options.replay)
            print(finding or "no finding")
            return int(finding is not None)
        return fuzz_all(fuzzing, names, options)


def _check_coverage(names):
    if importlib.util.find_spec("atheris") is None:
        raise ConfigurationError(
            "--coverage needs atheris, which has wheels for Linux only: "
            "pip install 'atheris<4'"
        )
    for name in names:
        if TARGETS[name].is_damage or TARGETS[name].needs_keras:
            raise ConfigurationError(
                f"coverage cannot guide {name}: its inputs are one change of a seed, "
                "or need Keras; leave it out"
            )


def fuzz_all(fuzzing, names, options):
    """Fuzzes, and says what was found; returns the exit code."""
    start = time.monotonic()
    tell = functools.partial(print, flush=True)
    reports = fuzzing.run(names, options.seconds, options.seed, options.jobs, tell)
    paths = [path for report in reports.values() for path in report.findings.values()]
    runs = sum(report.runs for report in reports.values())
    seconds = time.monotonic() - start
    print(f"\n{len(names)} targets, {runs:,} runs in {seconds:.0f} s")
    if crashes := sum(report.outcomes[_KNOWN] for report in reports.values()):
        print(f"{crashes} times a {_KNOWN}, which is known: see SECURITY.md")
    for path in paths:
        said = (path / "finding.txt").read_text(encoding="utf-8").splitlines()
        print(f"{path}: {said[0][:200]}")
    print(f"{len(paths)} findings" if paths else "no finding")
    return int(bool(paths))


if __name__ == "__main__":
    sys.exit(main())
