"""Processes that work in turn, each when it is asked: what the benchmarks share."""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping

from tools.benchmarks.reporting import peak_bytes
from tools.reference.full_size_checkpoint import bert4keras_environment

# Of what a worker has said, those that are shown if it ends before it should.
LAST_LINES = 15


class Worker:
    """A script run as one side's process, with the side as its `--worker`.

    Args:
        script: path.
        side: name; that of bert4keras gets the environment that it needs.
        options: flags of the script by name, without the dashes.
    """

    def __init__(self, script, side: str, options: Mapping):
        command = [sys.executable, "-m", script, "--worker", side]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        # Closed with the process.
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            env=bert4keras_environment() if side == "bert4keras" else None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def ask(self, *what) -> dict:
        """Has a job done: its name, and its arguments; returns its figures."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(" ".join(map(str, what)) + "\n")
            self.process.stdin.flush()
        while line := self.process.stdout.readline():
            if line.startswith("{"):
                return json.loads(line)
        code = self.process.wait()
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").splitlines()[-LAST_LINES:]
        raise SystemExit(
            f"the worker ended at {what!r}, for want of memory if its exit code, "
            f"{code}, is -9; the last that it said:\n" + "\n".join(said)
        )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        # One that has ended, for want of memory perhaps, reads nothing more.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()


def serve(jobs: Mapping[str, Callable]):
    """Does the jobs that a `Worker` is asked for, until it is closed.

    Every answer has the seconds that the job took and the peak of the process's memory
    so far, besides what the job itself returns.
    """
    for line in sys.stdin:
        name, *arguments = line.split()
        start = time.perf_counter()
        figures = jobs[name](*arguments) or {}
        seconds = time.perf_counter() - start
        peak = peak_bytes() / 2**20
        print(json.dumps({"seconds": seconds, "peak_mb": peak, **figures}), flush=True)
