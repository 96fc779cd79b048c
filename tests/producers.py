"""Everything that can be resumed, with one interface, for the conformance suite.

A producer makes one output in a folder, in `STEPS` steps. It calls `at_step(number)`
before each step, and resumes what an earlier call left in that folder.
"""

import os
import shutil
import threading

import pytest
from web_server import NAME, make_zip, serving, whole

from roformer_keras.hub import download as download_module
from roformer_keras.hub.download import download
from roformer_keras.io.atomic import replacing
from roformer_keras.io.journal import digest, fingerprints, run_metadata
from roformer_keras.jobs.output import open_output

STEPS = 5


def do_nothing(number):
    """The default of the function that a producer calls before each step."""


class Producer:
    """The base of all producers.

    Attributes:
        lock: what takes the lock, for a test to replace.
        result: name of a file of a complete output.
        data: name of a file that grows.
        record: name of the file with settings and fingerprints, or None.
        refuses_finished: bool. Whether an output that exists is an error.
    """

    record = None
    refuses_finished = False

    def __init__(self, folder):
        self.input = folder / "input.txt"
        self.input.write_text("input")

    def tear(self, data):
        """Makes the file what a kill can leave: its end was not yet counted."""
        with open(data, "ab") as file:
            file.write(b'{"text": "\xe4')

    def close(self):
        """Ends what the producer needs."""


class LineJob(Producer):
    """Lines of a command; see `jobs.output`."""

    lock = "roformer_keras.jobs.output.locked"
    result, record = "out.jsonl", "out.jsonl.job.json"
    data = "out.jsonl.partial"
    refuses_finished = True

    def make(self, folder, at_step=do_nothing, seed=1, overwrite=False):
        metadata = run_metadata(
            {"seed": seed},
            {"source": fingerprints([self.input]), "texts": digest([0, 1])},
        )
        output = str(folder / "out.jsonl")
        with open_output(output, metadata, seed, overwrite) as job:
            while job.done < STEPS:
                at_step(job.done)
                line = f"{job.done} of seed {job.seed}; " * 30
                job.append(f"{line}\n".encode(), 1)


class RunFolder(Producer):
    """The folder of a training, with state, log and preset; see `training.folder`."""

    lock = "roformer_keras.io.training_folder.locked"
    result, record = "preset/weights", "settings.json"
    data = "log.csv"
    count = None

    def make(self, folder, at_step=do_nothing, seed=1, overwrite=False, workers=0):
        import keras
        import numpy as np

        from roformer_keras.io.training_folder import (
            LOG,
            PRESET,
            STATE,
            is_new_run,
            locked,
            reset_run,
        )
        from roformer_keras.training.averaging import LastCheckpoints
        from roformer_keras.training.log import LogFile
        from roformer_keras.training.state import (
            load_metadata,
            load_variables,
            save_state,
        )

        metadata = run_metadata(
            {"seed": seed, "workers": workers}, {"corpus": fingerprints([self.input])}
        )
        with locked(folder):
            if is_new_run(folder, metadata, overwrite, free=("workers",)):
                reset_run(folder, metadata, ("checkpoints",))
            weights = keras.Variable(np.zeros(100, "float32"), name="w")
            done, log_size = 0, 0
            if (folder / STATE).exists():
                state = load_metadata(folder / STATE)
                done, log_size = state["done"], state["log"]
                load_variables(folder / STATE, {"model": [weights]})
            log = LogFile(folder / LOG, log_size)
            last = LastCheckpoints(folder / "checkpoints", self.count or 1)
            last.drop_after(done)
            while done < STEPS:
                at_step(done)
                weights.assign(weights * 0.7 + seed + done)
                done += 1
                log.write({"done": done, "sum": float(keras.ops.sum(weights))})
                if self.count:
                    last.add(done, [weights])
                metadata = {"done": done, "log": log.size}
                save_state(folder / STATE, {"model": [weights]}, metadata)
            if self.count:
                last.assign_mean([weights], self.count)
            with replacing(folder / PRESET, overwrite=True, folder=True) as partial:
                (partial / "weights").write_bytes(np.asarray(weights).tobytes())


class Checkpoints(RunFolder):
    """A training that ends in the mean of its last checkpoints."""

    data = "checkpoints"
    count = 3

    def tear(self, data):
        (data / f"{STEPS + 1}.safetensors").write_bytes(b"of an update to come")


class Download(Producer):
    """The zip of a released checkpoint; see `hub.download`."""

    lock = "roformer_keras.hub.download.locked"
    result, data = f"{NAME}.zip", f"{NAME}.zip.partial"

    def __init__(self, folder):
        super().__init__(folder)
        self._serving = serving(whole(make_zip(size=2**16 * STEPS - 2**15)))
        self._server = self._serving.__enter__()
        self._patch = pytest.MonkeyPatch()
        self._thread = threading.local()
        producer = self

        class SteppedFile(download_module.AppendedFile):
            def append(self, data, sync=True):
                producer._take_step(self.size // 2**16)
                super().append(data, sync)

        self._patch.setattr(download_module, "AppendedFile", SteppedFile)
        # No read passes over a whole step.
        self._patch.setattr(download_module, "_CHUNK", 2**14)
        self._patch.setenv("no_proxy", "127.0.0.1")

    def _take_step(self, number):
        if number != self._thread.last:
            self._thread.last = number
            self._thread.at_step(number)

    def close(self):
        self._patch.undo()
        self._serving.__exit__(None, None, None)

    def tear(self, data):
        # All bytes count here, but the last ones may be missing.
        os.truncate(data, data.stat().st_size // 2)

    def make(self, folder, at_step=do_nothing):
        before = vars(self._thread).copy()
        self._thread.at_step, self._thread.last = at_step, None
        try:
            download(NAME, folder, self._server.url, verbose=0, wait=0.01)
        finally:
            # A step of an outer call may have made this one.
            vars(self._thread).update(before)


PRODUCERS = [LineJob, RunFolder, Checkpoints, Download]


def copied(folder, target):
    """A copy of a folder as the process left it that was killed there."""
    shutil.copytree(folder, target)
    # What lies in such a folder comes before it.
    for path in sorted(target.rglob(f".*-{os.getpid()}-*"), reverse=True):
        name = path.name.replace(f"-{os.getpid()}-", "-999999999-")
        path.rename(path.with_name(name))
    return target
