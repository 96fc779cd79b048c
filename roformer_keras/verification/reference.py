"""The real bert4keras or Transformers, run in a separate process."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roformer_keras.base.errors import CheckpointError, Hint, ReferenceUnavailable
from roformer_keras.base.extras import is_installed

_SCRIPT = Path(__file__).with_name("reference_process.py")
_INSTALL = Hint(
    """\
The real bert4keras runs in a separate process. Install it with

    pip install tf-keras setuptools
    pip install --no-deps --target bert4keras-0.11.5 bert4keras==0.11.5

(tf-keras must have TensorFlow's version) and name its folder: pass

    {bert4keras:'bert4keras-0.11.5'}

or set ROFORMER_KERAS_REFERENCE=bert4keras-0.11.5 in the environment. A reference file
that was saved before, passed as {reference}, needs none of this."""
)
_INSTALL_TRANSFORMERS = Hint(
    """\
The real Transformers runs in a separate process. Install it with

    pip install 'roformer-keras[transformers]'

or name an interpreter that can import transformers and torch: pass

    {python:'OTHER/bin/python'}"""
)


class Reference:
    """A running bert4keras; `close` it, or use it in a `with` statement.

    Args:
        bert4keras: folder that holds the package, as `pip install --target` makes it.
            By default `$ROFORMER_KERAS_REFERENCE`, or else the package that `python`
            imports.
        python: path of the interpreter; by default this one.

    Attributes:
        version: str, bert4keras's.
        layer_norm_epsilon: float of its embedding and block norms.
        versions: dict of the versions of the packages that it runs on.

    Raises:
        ReferenceUnavailable: bert4keras cannot be run; the message tells how to install
            it.
    """

    def __init__(
        self, bert4keras: str | os.PathLike | None = None, python: str | None = None
    ):
        info = self._begin(python, self.check_installed(python, bert4keras))
        self.layer_norm_epsilon = info["layer_norm_epsilon"]

    # A subclass replaces the packages of the process, the reference first, and the
    # instructions to install them.
    packages: tuple[str, ...] = ("bert4keras", "tensorflow", "tf_keras")
    install = _INSTALL
    # Environment variable with the folder of the first package.
    variable = "ROFORMER_KERAS_REFERENCE"

    @classmethod
    def check_installed(cls, python: str | None = None, folder: Any = None) -> Any:
        """Looks for the packages of this interpreter; returns the folder of the first.

        Args:
            python, folder: as `python` and `bert4keras` of the class.

        Raises:
            ReferenceUnavailable: a package is missing; the message tells how to install
                it.
        """
        reference, *others = cls.packages
        folder = folder or os.environ.get(cls.variable)
        if folder and not os.path.isdir(Path(folder, reference)):
            raise ReferenceUnavailable(
                f"there is no {reference} package in {folder}", hint=cls.install
            )
        for name in others if folder else cls.packages:
            if python is None and not is_installed(name):
                raise ReferenceUnavailable(f"{name} is not installed", hint=cls.install)
        return folder

    def _begin(self, python, folder=None):
        self._python, self._folder = python, folder
        self._process: Any = None
        ((_, info),) = self.run([{"op": "info"}])
        self.version = info[self.packages[0]]
        self.versions = {name: info[name] for name in self.packages}
        return info

    def run(self, jobs: Sequence[Mapping]) -> Iterator[tuple[Mapping, dict]]:
        """Yields each job with its answer, in order; see `reference_process.py`.

        The process computes the next jobs while the caller uses an answer.

        Args:
            jobs: dicts, which name the operation as `op`.

        Raises:
            ReferenceUnavailable: bert4keras cannot be run.
            CheckpointError: a job failed; the message quotes bert4keras.
        """
        if self._process is None:
            self._start()
        try:
            # The error of an ended process is read below.
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.writelines(f"{json.dumps(job)}\n" for job in jobs)
                self._process.stdin.flush()
            for job in jobs:
                answer = self._read()
                if not answer["ok"]:
                    raise self._failure(job, answer["error"])
                yield job, answer
        except BaseException:
            # The next caller must not get the remaining answers.
            self.close()
            raise

    def close(self) -> None:
        """Ends the process; `run` starts it again."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._log.close()
            self._process = None

    def __enter__(self) -> "Reference":
        return self

    def __exit__(self, *exception):
        self.close()

    def _start(self):
        environment = {
            **os.environ,
            "TF_KERAS": "1",
            "TF_USE_LEGACY_KERAS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        if self._folder:
            environment["PYTHONPATH"] = str(Path(self._folder).resolve())
        python = self._python or sys.executable
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [python, str(_SCRIPT), self.packages[0]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=environment,
                text=True,
            )
        except OSError as error:
            self._log.close()
            raise ReferenceUnavailable(
                f"cannot run {python}: {error.strerror}",
                hint=Hint("{python} must be the path of an interpreter"),
            ) from error

    def _read(self):
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._log.seek(0)
            tail = self._log.read()[-2000:].decode(errors="replace")
            raise ReferenceUnavailable(
                f"the reference process ended early, with code {code}; the end of its "
                f"output:\n{tail}",
                hint=self.install,
            )
        answer = json.loads(line)
        if answer["op"] is None:
            raise ReferenceUnavailable(answer["error"], hint=self.install)
        return answer

    def _failure(self, job, error):
        keywords = job.get("kwargs", {})
        model = keywords.get("model")
        if error == f"KeyError: {model!r}":
            return ReferenceUnavailable(
                f"bert4keras {self.version} has no model {model!r}: compare with a "
                "later version, such as 0.11.5"
            )
        what = keywords or job.get("architecture")
        return CheckpointError(
            f"{self.packages[0]} {self.version} could not do {job['op']} with {what}: "
            f"{error}"
        )


class TransformersReference(Reference):
    """A running Transformers; `close` it, or use it in a `with` statement.

    Args:
        python: path of an interpreter that can import transformers and torch; by
            default this one.

    Attributes:
        version, versions: as in `Reference`.
        is_causal: bool. Whether its causal model sees no future token.

    Raises:
        ReferenceUnavailable: it cannot be run; the message tells how to install it.
    """

    packages = ("transformers", "torch")
    install, variable = _INSTALL_TRANSFORMERS, ""

    def __init__(self, python: str | None = None):
        self.check_installed(python)
        self.is_causal = self._begin(python)["is_causal"]
