"""Worker processes: an object in another process, whose methods are called from here.

bert4keras replaces `sys.modules["keras"]`, so it needs a process without this package's
Keras; and memory is measured by the process. A worker is started as

    python -m tools.workers MODULE:CLASS OPTIONS

which makes `CLASS(**OPTIONS)`. Calls and answers are lines of JSON.
"""

import contextlib
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

from roformer_keras.base.errors import RoFormerError
from tools import ROOT

# Lines of its standard error that are shown when a worker fails.
SHOWN_LINES = 15


class WorkerFailed(RoFormerError):
    """A worker process ended before it answered."""


class Worker:
    """An object of a class, `"module:Class"`, in its own process."""

    def __init__(self, target: str, options: Mapping, environment=None):
        environment = dict(environment or os.environ)
        paths = [environment.get("PYTHONPATH"), str(ROOT)]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        # Closed by `close`.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.workers", target, json.dumps(options)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
        )

    def send(self, method: str, *arguments, **keywords):
        """Asks for a call without waiting for its answer."""
        # A worker that has ended is reported by `receive`.
        with contextlib.suppress(BrokenPipeError):
            job = json.dumps([method, arguments, keywords])
            print(job, file=self._process.stdin, flush=True)

    def receive(self) -> dict:
        """`result`, `seconds` and `peak_mb` of the call that was asked for first."""
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        raise WorkerFailed(
            f"a worker ended with exit code {code} (-9 means too little memory); the "
            "last lines of its standard error:\n" + "\n".join(lines[-SHOWN_LINES:])
        )

    def call(self, method: str, *arguments, **keywords):
        """The result of a method."""
        self.send(method, *arguments, **keywords)
        return self.receive()["result"]

    def measure(self, method: str, *arguments) -> dict:
        """`seconds` and `peak_mb` of a call, updated with the dict that it returns."""
        self.send(method, *arguments)
        answer = self.receive()
        return answer | (answer.pop("result") or {})

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


def peak_bytes() -> int:
    """The largest resident memory that this process has had."""
    # In KiB, except on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def serve(target: str, options: Mapping):
    # Libraries print; only answers may reach standard output.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module, name = target.split(":")
    served = getattr(importlib.import_module(module), name)(**options)
    for line in sys.stdin:
        method, arguments, keywords = json.loads(line)
        start = time.perf_counter()
        result = getattr(served, method)(*arguments, **keywords)
        seconds = time.perf_counter() - start
        peak = peak_bytes() / 2**20
        answer = {"result": result, "seconds": seconds, "peak_mb": peak}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]))
