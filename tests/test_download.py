"""Downloads against servers that behave, misbehave, and die half-way."""

import json
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import zipfile
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import pytest
from common import interruptible, limited_file_size

from roformer_keras.conversion import download as download_module
from roformer_keras.conversion.download import download
from roformer_keras.errors import DownloadError, SourceError

ROOT = Path(__file__).parents[1]
NAME = "chinese_roformer-char_L-6_H-384_A-6"


def make_zip(seed=1, method=zipfile.ZIP_DEFLATED, **more):
    members = {
        "bert_config.json": b"{}",
        "vocab.txt": b"[PAD]\n",
        "bert_model.ckpt.index": b"index",
        "bert_model.ckpt.data-00000-of-00001": random.Random(seed).randbytes(900_000),
        **more,
    }
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(f"{NAME}/{name}", data)
    return buffer.getvalue()


ZIP = make_zip()
HALF = len(ZIP) // 2


class Server(ThreadingHTTPServer):
    """Answers the n-th request with `answers[n]`, and the last one ever after."""

    daemon_threads = True

    def __init__(self, *answers):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers
        self.requests = []
        self.release = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """Clients that go away are part of the tests."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        requests = self.server.requests
        requests.append(dict(self.headers))
        answers = self.server.answers
        answers[min(len(requests), len(answers)) - 1](self)
        self.close_connection = True

    def send(self, status, headers, body=b""):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@contextmanager
def serving(*answers):
    server = Server(*answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


def whole(body=ZIP, etag='"1"', stop=None, ranges=True, **more):
    """A file server: with ranges, validators, and a place to drop the connection."""

    def answer(handler):
        headers = {"Content-Type": "application/zip", **more}
        if etag:
            headers["ETag"] = etag
        start, status = 0, 200
        asked = handler.headers.get("Range")
        fresh = handler.headers.get("If-Range") in (etag, more.get("Last-Modified"))
        if ranges and asked and fresh:
            start, status = int(asked.removeprefix("bytes=").removesuffix("-")), 206
            if start >= len(body):
                handler.send(416, {"Content-Length": "0"})
                return
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        headers.setdefault("Content-Length", str(len(body) - start))
        handler.send(status, headers, body[start:stop])

    return answer


def status(code, **headers):
    return lambda handler: handler.send(code, {"Content-Length": "0", **headers})


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    monkeypatch.delenv("ROFORMER_KERAS_BASE_URL", raising=False)


@pytest.fixture
def fetch(tmp_path):
    def run(server, **options):
        url = server if isinstance(server, str) else server.url
        defaults = {"progress": False, "wait": 0.01, "timeout": 10}
        return download(NAME, tmp_path, url, **{**defaults, **options})

    return run


def fail(message, call, *arguments, **options):
    with pytest.raises(DownloadError, match=message) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def left(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir())


DONE = [f"{NAME}.zip"]
HALF_DONE = [f"{NAME}.zip.partial", f"{NAME}.zip.partial.json"]


# === Downloads that succeed ===


def test_a_complete_download(tmp_path, fetch):
    with serving(whole()) as server:
        path = fetch(server)
        assert path == tmp_path / f"{NAME}.zip"
        assert path.read_bytes() == ZIP
        assert left(tmp_path) == DONE
        assert "Range" not in server.requests[0]
        assert server.requests[0]["Accept-Encoding"] == "identity"
        # A second call asks for nothing.
        assert fetch(server) == path
        assert len(server.requests) == 1


def test_the_folder_is_made_and_the_environment_is_heard(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ROFORMER_KERAS_CHECKPOINTS", str(tmp_path / "a" / "b"))
    with serving(whole()) as server:
        monkeypatch.setenv("ROFORMER_KERAS_BASE_URL", server.url + "/mirror/")
        path = download(f"{NAME}.zip")
        assert path == tmp_path / "a" / "b" / f"{NAME}.zip"
        download(NAME)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{NAME}: " in captured.err and f"checking {NAME}: " in captured.err
    assert f"{path} is whole" in captured.err
    assert f"{path} is already downloaded and whole" in captured.err


def test_silence_on_request(fetch, capsys):
    with serving(status(500), whole(stop=HALF), whole()) as server:
        fetch(server)
    assert capsys.readouterr() == ("", "")


def test_a_dropped_connection_is_resumed(tmp_path, fetch):
    with serving(whole(stop=HALF), whole(stop=HALF + 9), whole()) as server:
        fetch(server)
        assert server.requests[1]["Range"] == f"bytes={HALF}-"
        assert server.requests[1]["If-Range"] == '"1"'
    assert (tmp_path / f"{NAME}.zip").read_bytes() == ZIP
    assert left(tmp_path) == DONE


def test_a_second_call_goes_on_where_the_first_stopped(tmp_path, fetch):
    with serving(whole(stop=HALF)) as server:
        text = fail(
            f"ended at {HALF:,} of {len(ZIP):,} bytes, at try 1 of 1",
            fetch,
            server,
            retries=0,
        )
    assert f"the same command goes on from the {HALF:,} bytes in" in text
    assert left(tmp_path) == HALF_DONE
    with serving(whole()) as server:
        assert fetch(server).read_bytes() == ZIP
        assert [r.get("Range") for r in server.requests] == [f"bytes={HALF}-"]
    assert left(tmp_path) == DONE


def test_a_modification_date_serves_where_the_etag_is_weak_or_absent(fetch, tmp_path):
    date = {"Last-Modified": formatdate(1e9, usegmt=True)}
    for etag in ('W/"1"', None):
        answers = whole(etag=etag, stop=HALF, **date), whole(etag=etag, **date)
        with serving(*answers) as server:
            assert fetch(server).read_bytes() == ZIP
            assert server.requests[1]["Range"] == f"bytes={HALF}-"
            assert server.requests[1]["If-Range"] == date["Last-Modified"]
        (tmp_path / f"{NAME}.zip").unlink()


def test_without_a_validator_a_download_starts_over(fetch):
    with serving(whole(etag=None, stop=HALF), whole(etag=None)) as server:
        assert fetch(server).read_bytes() == ZIP
        assert "Range" not in server.requests[1]


def test_a_server_that_ignores_ranges(fetch):
    with serving(whole(stop=HALF), whole(ranges=False)) as server:
        assert fetch(server).read_bytes() == ZIP
        assert server.requests[1]["Range"] == f"bytes={HALF}-"


def test_a_file_that_changed_in_between(fetch):
    other = make_zip(seed=2)
    with serving(whole(stop=HALF), whole(other, etag='"2"')) as server:
        assert fetch(server).read_bytes() == other


@pytest.mark.parametrize("change", ["etag", "length", "start", "no range"])
def test_a_server_that_sends_the_rest_of_another_file(fetch, change):
    def careless(handler):
        headers = {
            "ETag": '"2"' if change == "etag" else '"1"',
            "Content-Length": str(len(ZIP) - HALF),
        }
        start = HALF - 5 if change == "start" else HALF
        length = len(ZIP) * 10 if change == "length" else len(ZIP)
        if change != "no range":
            headers["Content-Range"] = f"bytes {start}-{len(ZIP) - 1}/{length}"
        handler.send(206, headers, bytes(len(ZIP) - HALF))

    with serving(whole(stop=HALF), careless, whole()) as server:
        assert fetch(server).read_bytes() == ZIP
        assert "Range" not in server.requests[2]


def test_a_file_that_became_shorter(fetch):
    with serving(whole(stop=HALF), status(416), whole()) as server:
        assert fetch(server).read_bytes() == ZIP
        assert "Range" not in server.requests[2]


@pytest.mark.parametrize("code", [500, 502, 503, 429])
def test_a_server_error_passes(fetch, code):
    with serving(status(code), whole()) as server:
        assert fetch(server).read_bytes() == ZIP


def hang_up(handler):
    handler.connection.shutdown(socket.SHUT_RDWR)


def test_a_server_that_hangs_up_or_talks_nonsense(fetch):
    def nonsense(handler):
        handler.wfile.write(b"SSH-2.0-OpenSSH\r\n")

    with serving(hang_up, nonsense, whole()) as server:
        assert fetch(server).read_bytes() == ZIP


def test_chunks_without_a_length(tmp_path, fetch):
    def chunked(last):
        def answer(handler):
            handler.send(200, {"Transfer-Encoding": "chunked", "ETag": '"1"'})
            for part in (ZIP[:HALF], *last):
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))

        return answer

    with serving(chunked([]), chunked([ZIP[HALF:], b""])) as server:
        assert fetch(server).read_bytes() == ZIP
        assert "Range" in server.requests[1]
    assert left(tmp_path) == DONE


def test_a_redirect_is_followed(fetch):
    with (
        serving(whole()) as mirror,
        serving(status(302, Location=f"{mirror.url}/x.zip")) as server,
    ):
        assert fetch(server).read_bytes() == ZIP


def test_a_complete_partial_file_needs_no_server(tmp_path, fetch):
    (tmp_path / HALF_DONE[0]).write_bytes(ZIP)
    state = {"etag": '"1"', "length": len(ZIP), "pid": 999_999_999}
    (tmp_path / HALF_DONE[1]).write_text(json.dumps(state))
    assert fetch("http://127.0.0.1:9").read_bytes() == ZIP
    assert left(tmp_path) == DONE


@pytest.mark.parametrize("state", ["", "[]", '{"etag": 3, "length": "x"}', "\0"])
def test_a_partial_file_of_unknown_origin_is_replaced(tmp_path, fetch, state):
    (tmp_path / HALF_DONE[0]).write_bytes(b"what is this")
    (tmp_path / HALF_DONE[1]).write_text(state)
    with serving(whole()) as server:
        assert fetch(server).read_bytes() == ZIP
        assert "Range" not in server.requests[0]


def test_a_damaged_zip_under_the_final_name_is_replaced(tmp_path, fetch):
    (tmp_path / f"{NAME}.zip").write_bytes(ZIP[:-50])
    with serving(status(404), whole()) as server:
        fail("404", fetch, server)
        assert (tmp_path / f"{NAME}.zip").read_bytes() == ZIP[:-50]
        assert fetch(server).read_bytes() == ZIP
    assert left(tmp_path) == DONE


# === Downloads that fail ===


def test_a_name_that_is_not_in_the_catalogue(tmp_path):
    with pytest.raises(SourceError, match="is not in the catalogue"):
        download("chinese_bert", tmp_path)


@pytest.mark.parametrize("code", [404, 403, 401, 410])
def test_a_refusal_is_final(tmp_path, fetch, code):
    with serving(status(code)) as server:
        text = fail(f"the server answered {code} ", fetch, server)
        assert len(server.requests) == 1
    url = f"{server.url}/{NAME}.zip"
    target = tmp_path.absolute() / f"{NAME}.zip"
    assert text.endswith(f"fetch {url} on a machine that can, and put it at {target}")
    assert left(tmp_path) == []


def test_server_errors_without_end(tmp_path, fetch):
    with serving(status(503)) as server:
        text = fail("answered 503 .*, at try 3 of 3; fetch", fetch, server, retries=2)
        assert len(server.requests) == 3
    assert "put it at" in text
    assert left(tmp_path) == []


def test_waits_double(tmp_path, fetch, monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with serving(status(500)) as server:
        fail("answered 500", fetch, server, retries=3, wait=0.5)
    assert waits == [0.5, 1, 2]


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/xhtml+xml"])
def test_a_web_page_by_its_type(tmp_path, fetch, kind):
    page = whole(b"<html>please log in", **{"Content-Type": kind})
    with serving(page) as server:
        fail("is a web page, not a zip: a login", fetch, server)
    assert left(tmp_path) == []


def test_a_web_page_in_disguise(tmp_path, fetch):
    with serving(whole(b"<!DOCTYPE html><p>gone")) as server:
        fail("is no whole checkpoint and was deleted: .* is a web page", fetch, server)
    assert left(tmp_path) == []


def test_a_length_that_never_comes(tmp_path, fetch):
    more = {"Content-Length": str(len(ZIP) + 1)}
    with serving(whole(**more), whole(ranges=False, **more)) as server:
        fail(f"ended at {len(ZIP):,} of {len(ZIP) + 1:,}", fetch, server, retries=2)
    assert left(tmp_path) == HALF_DONE


def test_a_file_that_is_truncated_on_the_server(tmp_path, fetch):
    with serving(whole(ZIP[:HALF])) as server:
        fail("was deleted: .*damaged or truncated zip", fetch, server)
    assert left(tmp_path) == []


def test_a_corrupt_member(tmp_path, fetch):
    damaged = bytearray(make_zip(method=zipfile.ZIP_STORED))
    damaged[HALF] ^= 1
    with serving(whole(bytes(damaged))) as server:
        fail("was deleted: .*data-00000-of-00001 is corrupt", fetch, server)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "is empty"),
        (make_zip(**{"../../evil": b"x"}), "points outside the archive"),
        (make_zip(**{"x.h5": b"\x89HDF\r\n\x1a\n"}), "holds 2 checkpoints"),
        (make_zip()[:22][:4] + b"nothing", "damaged or truncated zip"),
    ],
)
def test_what_is_no_checkpoint(tmp_path, fetch, body, message):
    with serving(whole(body)) as server:
        fail(f"was deleted: .*{message}", fetch, server)
    assert left(tmp_path) == []


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_offline(tmp_path, fetch, host):
    url = f"http://{host}:{closed_port()}/models"
    begun = time.monotonic()
    text = fail(f"cannot reach {url}/{NAME}.zip", fetch, url, wait=60)
    assert time.monotonic() - begun < 30
    assert text.endswith(
        f"fetch {url}/{NAME}.zip on a machine that can, and put it at "
        f"{tmp_path.absolute() / NAME}.zip"
    )
    assert left(tmp_path) == []


def test_a_connection_that_was_there_is_worth_waiting_for(tmp_path, fetch):
    def close_for_good(handler):
        whole(stop=HALF)(handler)
        handler.server.socket.close()

    server = Server(close_for_good)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    try:
        fail("Connection refused, at try 3 of 3; the same", fetch, server, retries=2)
    finally:
        thread.join()
        server.server_close()
    assert left(tmp_path) == HALF_DONE


def test_a_server_that_falls_silent(tmp_path, fetch):
    def silent(handler):
        handler.send(200, {"Content-Length": str(len(ZIP)), "ETag": '"1"'}, ZIP[:HALF])
        handler.server.release.wait(30)

    with serving(silent) as server:
        message = "the connection broke .the server does not answer., at try 1 of 1"
        fail(message, fetch, server, retries=0, timeout=0.2)
    assert left(tmp_path) == HALF_DONE


def test_a_certificate_that_is_not_valid(tmp_path, fetch, monkeypatch):
    # A real one takes a certificate authority; what urllib makes of it is known.
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"

    def urlopen(request, timeout):
        raise urllib.error.URLError(error)

    monkeypatch.setattr(download_module.urllib.request, "urlopen", urlopen)
    fail(
        r"certificate is not valid \(self-signed certificate\); fetch",
        fetch,
        "https://x",
    )
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file:///etc", "begins with http:// or https://"),
        ("ftp://host", "begins with http:// or https://"),
        ("models", "begins with http:// or https://"),
        ("http://[bad", "is not an address"),
        ("http://host:port", "is not an address"),
        ("http://a b", "is not an address"),
        ("http://", "begins with http:// or https://"),
    ],
)
def test_addresses_that_are_none(tmp_path, fetch, url, message):
    fail(message, fetch, url, wait=60)
    assert left(tmp_path) == []


def test_too_little_free_space(tmp_path, fetch, monkeypatch):
    usage = download_module.shutil._ntuple_diskusage(9, 4, 5)
    monkeypatch.setattr(download_module.shutil, "disk_usage", lambda path: usage)
    with serving(whole()) as server:
        fail(
            f"no space left in .*: {len(ZIP):,} bytes are to come and 5", fetch, server
        )
    assert left(tmp_path) == []


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "x").touch()
    fail("cannot write to .*x: File exists", download, NAME, tmp_path / "x")


DOWNLOAD = """
    import sys
    from roformer_keras.conversion.download import download
    from roformer_keras.errors import DownloadError
    try:
        download(sys.argv[1], sys.argv[2], sys.argv[3], progress=False)
    except DownloadError as error:
        print(error)
"""


def start(tmp_path, server, **options):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DOWNLOAD), NAME, tmp_path, server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        **options,
    )


def test_a_full_disk(tmp_path, fetch):
    with serving(whole()) as server:
        process = start(tmp_path, server, preexec_fn=limited_file_size)
        output, errors = process.communicate(timeout=60)
        message = f"cannot write to {tmp_path}: no space left; what has arrived is kept"
        assert output.startswith(message), errors
        assert left(tmp_path) == HALF_DONE
        assert (tmp_path / HALF_DONE[0]).stat().st_size == 100_000
        assert fetch(server).read_bytes() == ZIP
        assert server.requests[1]["Range"] == "bytes=100000-"


@pytest.fixture
def half_way():
    """A server that sends one half and waits; then serves the rest to whoever asks."""

    def first(handler):
        handler.send(200, {"Content-Length": str(len(ZIP)), "ETag": '"1"'}, ZIP[:HALF])
        handler.server.release.wait(30)
        handler.wfile.write(ZIP[HALF:])

    with serving(first, whole()) as server:
        yield server


def wait_for_half(tmp_path):
    partial = tmp_path / HALF_DONE[0]
    deadline = time.monotonic() + 30
    while not partial.exists() or partial.stat().st_size < HALF:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_interrupt_keeps_what_has_arrived(tmp_path, fetch, half_way):
    with start(tmp_path, half_way, preexec_fn=interruptible) as process:
        wait_for_half(tmp_path)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    # Not as an error of ours, which a loop over names might pass over.
    assert errors.rstrip().endswith("KeyboardInterrupt"), output
    assert left(tmp_path) == HALF_DONE
    assert fetch(half_way).read_bytes() == ZIP
    assert half_way.requests[1]["Range"] == f"bytes={HALF}-"


def test_kill_9_leaves_a_lock_that_is_taken_over(tmp_path, fetch, half_way):
    with start(tmp_path, half_way) as process:
        wait_for_half(tmp_path)
        process.kill()
    assert left(tmp_path) == HALF_DONE
    assert json.loads((tmp_path / HALF_DONE[1]).read_text())["pid"] == process.pid
    assert fetch(half_way).read_bytes() == ZIP
    assert half_way.requests[1]["Range"] == f"bytes={HALF}-"
    assert left(tmp_path) == DONE


def test_a_second_download_of_the_same_file_steps_back(tmp_path, fetch, half_way):
    with start(tmp_path, half_way) as process:
        wait_for_half(tmp_path)
        fail(f"process {process.pid} is downloading .*: wait for it", fetch, half_way)
        assert len(half_way.requests) == 1
        half_way.release.set()
        output, errors = process.communicate(timeout=30)
    assert (output, errors) == ("", "")
    assert left(tmp_path) == DONE
    assert (tmp_path / f"{NAME}.zip").read_bytes() == ZIP


@pytest.mark.parametrize("finished", [True, False])
def test_the_other_download_ends_just_before_the_lock_is_taken(
    tmp_path, fetch, monkeypatch, finished
):
    lock = download_module.fcntl.flock

    def flock(file, operation):
        lock(file, operation)
        monkeypatch.undo()
        (tmp_path / HALF_DONE[0]).unlink()
        if finished:
            (tmp_path / DONE[0]).write_bytes(ZIP)

    monkeypatch.setattr(download_module.fcntl, "flock", flock)
    with serving(whole()) as server:
        assert fetch(server).read_bytes() == ZIP
        assert len(server.requests) == (0 if finished else 1)
    assert left(tmp_path) == DONE


def test_many_at_once_leave_one_whole_file(tmp_path, fetch):
    outcomes = []

    def attempt():
        try:
            outcomes.append(fetch(server).read_bytes() == ZIP)
        except DownloadError as error:
            # The pid is not written yet in the moment after a lock is taken.
            found = re.search(r"process (\d+|unknown) is downloading", str(error))
            outcomes.append(found and found[1] in ("unknown", str(os.getpid())))

    with serving(whole()) as server:
        threads = [threading.Thread(target=attempt) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert outcomes == [True] * 8
    assert left(tmp_path) == DONE
