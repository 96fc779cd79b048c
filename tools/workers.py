"""Processes that work in turn, each when it is asked: what the benchmarks share."""

import contextlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from full_size_checkpoint import bert4keras_environment


class Worker:
    """A script run as one side's process, with the side as its `--worker`.

    Args:
        script: path.
        side: name; that of bert4keras gets the environment that it needs.
        options: flags of the script by name, without the dashes.
    """

    def __init__(self, script, side: str, options: Mapping):
        command = [sys.executable, script, "--worker", side]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        self.process = subprocess.Popen(
            command,
            env=bert4keras_environment() if side == "bert4keras" else None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
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
        raise SystemExit(
            f"the worker ended at {what!r}, for want of memory if its exit code, "
            f"{self.process.wait()}, is -9"
        )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        # One that has ended, for want of memory perhaps, reads nothing more.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


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
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": seconds, "peak_mb": peak, **figures}), flush=True)
