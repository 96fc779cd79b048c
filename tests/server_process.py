"""A server in its own process, and its clients."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from common import ROOT

KEY = {"Authorization": "Bearer secret"}
# Seconds for what takes a moment, unless the machine has much else to do.
PATIENCE = 300


class Server:
    """A process that runs `serve`, at a free port; as a context it ends with it.

    Args:
        source: of the model.
        flags: more words of the command, such as another `--port`.
        environment: more variables of the process.
    """

    def __init__(self, source, *flags, **environment):
        words = (sys.executable, "-m", "roformer_keras", "serve", source, "--port", "0")
        self.folder = tempfile.TemporaryDirectory()
        # Not a pipe, which would fill up.
        self.said = Path(self.folder.name) / "stderr"
        with self.said.open("w", encoding="utf-8") as stderr:
            self.process = subprocess.Popen(
                [*map(str, words), *flags],
                stderr=stderr,
                cwd=ROOT,
                env={**os.environ, **environment},
            )
        try:
            until(self.is_ready)
        except BaseException:
            self.__exit__()
            raise

    def is_ready(self):
        said = self.said.read_text(encoding="utf-8")
        assert self.process.poll() is None, said
        address = re.search(r" at (http://.*:(\d+))\n", said)
        if not address:
            return False
        self.url, self.port = address[1], int(address[2])
        with contextlib.suppress(httpx.TransportError):
            return self.get("/health").status_code == 200
        return False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def get(self, path):
        return httpx.get(self.url + path, headers=KEY, timeout=PATIENCE)

    def post(self, path, body):
        return httpx.post(self.url + path, json=body, headers=KEY, timeout=PATIENCE)

    def count_of(self, name):
        """A number of `/metrics`."""
        text = self.get("/metrics").text
        return float(text.partition(f"\nroformer_{name} ")[2].split()[0])


def until(is_so):
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)
