"""A job on Ray in whose midst a worker and the command are killed."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from common import ROOT, json_lines, pids_of, write_lines

from roformer_keras import RoFormerSim

pytest.importorskip("ray")

# One of the checkpoints of the package, with which a piece takes a while.
SOURCE, PIECES, PIECE_ROWS, SECONDS = "roformer-sim-char", 24, 96, 240
WORKER = b"ray::MapWorker"


class Command:
    """The command in its own process, and the processes of its Ray."""

    def __init__(self, *words):
        # Its processes inherit it.
        self._mark = uuid.uuid4().hex
        self._process = subprocess.Popen(
            [sys.executable, "-m", "roformer_keras", *map(str, words)],
            cwd=ROOT,
            env={**os.environ, "MARK": self._mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def pids(self, title=b""):
        return pids_of(self._mark, title)

    def wait_until(self, condition):
        end = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < end
            assert self._process.poll() is None, self._process.communicate()
            time.sleep(0.05)

    def kill(self):
        self._process.kill()
        self._process.communicate()
        end = time.monotonic() + SECONDS
        # What Ray started ends with it.
        while self.pids() and time.monotonic() < end:
            time.sleep(0.1)
        assert self.pids() == []

    def finish(self):
        out, err = self._process.communicate(timeout=SECONDS)
        assert self._process.returncode == 0, err
        return out, err


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_killed_workers_and_commands_lose_and_repeat_nothing(tmp_path):
    texts = [
        f"第{number}首：{'床前明月光，疑是地上霜。' * 4}"
        for number in range(PIECES * PIECE_ROWS)
    ]
    file, folder = write_lines(tmp_path / "a.txt", texts), tmp_path / "out"
    words = ["embed", file, "-o", folder, "--source", SOURCE, "--engine", "ray"]
    words += ["--num-workers", 2, "--piece-rows", PIECE_ROWS]

    def parts():
        return {path.name: path.stat().st_mtime_ns for path in folder.glob("part-*")}

    command = Command(*words)
    command.wait_until(lambda: len(parts()) >= 1)
    first = command.pids(WORKER)
    os.kill(first[0], signal.SIGKILL)
    # Another one takes its place, and the job continues.
    command.wait_until(lambda: {*command.pids(WORKER)} - {*first})
    count = len(parts())
    command.wait_until(lambda: len(parts()) > count)
    command.kill()
    before = parts()
    assert 1 < len(before) < PIECES

    out, err = Command(*words).finish()
    assert out == f"{folder}\n" and "resuming after" in err
    after = parts()
    # What was written is not computed again.
    assert len(after) == PIECES and before.items() <= after.items()
    rows = [
        row
        for name in sorted(after)
        for row in json_lines((folder / name).read_text(encoding="utf-8"))
    ]
    assert [row["text"] for row in rows] == texts
    some = range(0, len(texts), 100)
    model = RoFormerSim.from_preset(SOURCE)
    expected = model.encode([texts[at] for at in some], verbose=0)
    vectors = np.array([rows[at]["vector"] for at in some])
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
