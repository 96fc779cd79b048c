"""Running the real bert4keras in a process of its own, from this side."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from roformer_keras.errors import CheckpointError, ReferenceUnavailable

__all__ = ["Reference", "find_reference"]

_SCRIPT = Path(__file__).with_name("reference_process.py")
_INSTALL = """\
The real bert4keras runs in a separate process. Install it with

    pip install tf-keras setuptools
    pip install --no-deps --target bert4keras-0.11.5 bert4keras==0.11.5

(tf-keras must have TensorFlow's version) and name its folder: pass

    bert4keras=bert4keras-0.11.5

or set ROFORMER_KERAS_REFERENCE=bert4keras-0.11.5 in the environment. A reference file
that was saved before, passed as reference=, needs none of this."""


class Reference:
    """A bert4keras that has answered.

    Attributes:
        version: str, of bert4keras.
        layer_norm_epsilon: float, of its embedding and block norms.
        versions: dict of the packages that it runs on.
    """

    def __init__(self, python: str, folder: Path | None, scratch: Path):
        self._python, self._folder, self._scratch = python, folder, scratch
        (info,) = self.run([{"op": "info"}])
        self.version = info["bert4keras"]
        self.layer_norm_epsilon = info["layer_norm_epsilon"]
        self.versions = {
            name: info[name] for name in ("bert4keras", "tensorflow", "tf_keras")
        }

    def run(self, jobs: Sequence[Mapping]) -> Iterator[dict]:
        """Answers to the jobs, in order, each as soon as it is there.

        Raises:
            ReferenceUnavailable: bert4keras cannot be run.
            CheckpointError: a job failed; says what bert4keras said.
        """
        request = self._scratch / "request.json"
        request.write_text(json.dumps({"jobs": list(jobs)}))
        environment = {
            **os.environ,
            "TF_KERAS": "1",
            "TF_USE_LEGACY_KERAS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        if self._folder is not None:
            environment["PYTHONPATH"] = str(self._folder.resolve())
        log = self._scratch / "stderr.txt"
        with (
            open(log, "w") as errors,
            self._start(str(request), errors, environment) as process,
        ):
            try:
                count = 0
                for line in process.stdout:
                    answer = json.loads(line)
                    if answer["job"] is None:
                        raise ReferenceUnavailable(answer["error"], hint=_INSTALL)
                    if not answer["ok"]:
                        raise self._failure(jobs[answer["job"]], answer["error"])
                    count += 1
                    yield answer
            finally:
                if process.poll() is None:
                    process.kill()
        if count < len(jobs):
            tail = log.read_text(errors="replace")[-2000:]
            raise ReferenceUnavailable(
                f"the reference process ended early, with code {process.returncode}; "
                f"the end of what it said:\n{tail}",
                hint=_INSTALL,
            )

    def _start(self, request, errors, environment) -> subprocess.Popen:
        try:
            return subprocess.Popen(
                [self._python, str(_SCRIPT), request],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
            )
        except OSError as error:
            raise ReferenceUnavailable(
                f"cannot run {self._python}: {error.strerror}",
                hint="python= must be the path of an interpreter",
            ) from error

    def _failure(self, job, error: str):
        model = job.get("kwargs", {}).get("model")
        if error == f"KeyError: {model!r}":
            return ReferenceUnavailable(
                f"bert4keras {self.version} has no model {model!r}: compare with a "
                "later version, such as 0.11.5"
            )
        return CheckpointError(
            f"bert4keras {self.version} could not do {job['op']} with "
            f"{job.get('kwargs')}: {error}"
        )


def find_reference(
    scratch: Path,
    bert4keras: str | os.PathLike | None = None,
    python: str | None = None,
) -> Reference:
    """Finds bert4keras and asks it for its version.

    Args:
        scratch: folder for requests and logs.
        bert4keras: folder that holds the package, as `pip install --target` makes it;
            `$ROFORMER_KERAS_REFERENCE` if not given, or else what `python` imports.
        python: path of the interpreter; this one if not given.

    Raises:
        ReferenceUnavailable: it cannot be run; says how to install it.
    """
    folder = bert4keras or os.environ.get("ROFORMER_KERAS_REFERENCE")
    folder = Path(folder) if folder else None
    if folder is not None and not (folder / "bert4keras").is_dir():
        raise ReferenceUnavailable(
            f"there is no bert4keras package in {folder}", hint=_INSTALL
        )
    return Reference(python or sys.executable, folder, scratch)
