"""Downloads from servers that behave, misbehave, or end half-way.

How a download is resumed after a kill, an exception or a full disk, and what a second
writer sees, is in tests/model/test_resumable_outputs.py.
"""

import errno
import hashlib
import json
import os
import socket
import ssl
import threading
import time
import urllib.error
import zipfile
from email.utils import formatdate
from pathlib import Path

import pytest
from common import write_file
from web_server import NAME, Server, make_zip, serving, status, whole

from roformer_keras.base.errors import DownloadError, OutputError, SourceError
from roformer_keras.hub import download as download_module
from roformer_keras.hub.download import download

ZIP = make_zip()
HALF = len(ZIP) // 2
DONE = [f"{NAME}.zip", f"{NAME}.zip.sha256"]
HALF_DONE = [f"{NAME}.zip.partial", f"{NAME}.zip.partial.json"]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    monkeypatch.delenv("ROFORMER_KERAS_BASE_URL", raising=False)


@pytest.fixture
def fetch(tmp_path):
    def run(server, **options):
        url = server if isinstance(server, str) else server.url
        defaults = {"verbose": 0, "wait": 0.01, "timeout": 10}
        return download(NAME, tmp_path, url, **{**defaults, **options})

    return run


def fail(message, call, *arguments, error=DownloadError, **options):
    with pytest.raises(error, match=message) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def left(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir())


def by_hand(url, tmp_path):
    target = tmp_path.absolute() / f"{NAME}.zip"
    return f"download {url}/{NAME}.zip on another machine, and put it at {target}"


# === Downloads that succeed ===


def test_folder_and_server_come_from_the_environment(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ROFORMER_KERAS_CHECKPOINTS", str(tmp_path / "a" / "b"))
    with serving(whole(ZIP)) as server:
        monkeypatch.setenv("ROFORMER_KERAS_BASE_URL", server.url + "/mirror/")
        path = download(f"{NAME}.zip")
        assert path == tmp_path / "a" / "b" / f"{NAME}.zip"
        assert path.read_bytes() == ZIP
        download(NAME)
        (request,) = server.requests
    assert "Range" not in request and request["Accept-Encoding"] == "identity"
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{NAME}.zip: " in captured.err and f"checking {NAME}.zip" in captured.err
    assert f"{path} is whole" in captured.err
    assert f"{path} is already downloaded and whole" in captured.err


def test_silence_on_request(fetch, capsys):
    with serving(status(500), whole(ZIP, stop=HALF), whole(ZIP)) as server:
        fetch(server)
    assert capsys.readouterr() == ("", "")


DATE = {"Last-Modified": formatdate(1e9, usegmt=True)}


@pytest.mark.parametrize(
    ("etag", "headers", "validator"),
    [
        ('"1"', {}, '"1"'),
        ('"1"', DATE, '"1"'),
        ('W/"1"', DATE, DATE["Last-Modified"]),
        (None, DATE, DATE["Last-Modified"]),
        ('W/"1"', {}, None),
        (None, {}, None),
    ],
)
def test_a_download_is_resumed_if_the_file_is_the_same(fetch, etag, headers, validator):
    answers = (
        whole(ZIP, etag=etag, stop=HALF, **headers),
        whole(ZIP, etag=etag, stop=HALF + 9, **headers),
        whole(ZIP, etag=etag, **headers),
    )
    with serving(*answers) as server:
        assert fetch(server).read_bytes() == ZIP
        asked_ranges = [(r.get("Range"), r.get("If-Range")) for r in server.requests]
    ranges = [(f"bytes={size}-", validator) for size in (HALF, HALF + 9)]
    assert asked_ranges == [
        (None, None),
        *(ranges if validator else [(None, None)] * 2),
    ]


def test_a_second_call_resumes_the_first(tmp_path, fetch):
    with serving(whole(ZIP, stop=HALF)) as server:
        text = fail(f"ended at {HALF:,} of {len(ZIP):,} ", fetch, server, retries=0)
    assert text.endswith(f"the same call resumes {tmp_path / HALF_DONE[0]}")
    assert left(tmp_path) == HALF_DONE
    with serving(whole(ZIP)) as server:
        assert fetch(server).read_bytes() == ZIP
        assert [r.get("Range") for r in server.requests] == [f"bytes={HALF}-"]
    assert left(tmp_path) == DONE


def careless(**changes):
    """Sends the rest of another file than was asked for."""

    def answer(handler):
        claimed = {"start": HALF, "length": len(ZIP), "etag": '"1"', **changes}
        handler.send(
            206,
            {
                "ETag": claimed["etag"],
                "Content-Length": str(len(ZIP) - HALF),
                "Content-Range": f"bytes {claimed['start']}-9/{claimed['length']}",
            },
            bytes(len(ZIP) - HALF),
        )

    return answer


OTHER = make_zip(seed=2)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([whole(ZIP, ranges=False)], ZIP),
        ([whole(OTHER, etag='"2"')], OTHER),
        ([careless(etag='"2"'), whole(ZIP)], ZIP),
        ([careless(length=len(ZIP) * 10), whole(ZIP)], ZIP),
        ([careless(start=HALF - 5), whole(ZIP)], ZIP),
        ([careless(start="x"), whole(ZIP)], ZIP),
        ([status(416), whole(ZIP)], ZIP),
    ],
)
def test_a_download_is_restarted_if_the_server_has_another_file(
    fetch, answers, expected
):
    with serving(whole(ZIP, stop=HALF), *answers) as server:
        assert fetch(server).read_bytes() == expected
        assert server.requests[1]["Range"] == f"bytes={HALF}-"
        assert "Range" not in server.requests[-1] or len(answers) == 1


def hang_up(handler):
    handler.connection.shutdown(socket.SHUT_RDWR)


def talk_nonsense(handler):
    handler.wfile.write(b"SSH-2.0-OpenSSH\r\n")


def test_transient_failures_pass(fetch):
    codes = [status(code) for code in (408, 429, 500, 502, 503)]
    with serving(talk_nonsense, hang_up, *codes, whole(ZIP)) as server:
        assert fetch(server, retries=len(codes) + 2).read_bytes() == ZIP


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
        serving(whole(ZIP)) as mirror,
        serving(status(302, Location=f"{mirror.url}/x.zip")) as server,
    ):
        assert fetch(server).read_bytes() == ZIP


def test_a_complete_partial_needs_no_server(tmp_path, fetch):
    (tmp_path / HALF_DONE[0]).write_bytes(ZIP)
    settings = {"validator": '"1"', "length": len(ZIP)}
    record = {"settings": settings, "inputs": {}}
    write_file(tmp_path / HALF_DONE[1], record)
    assert fetch("http://127.0.0.1:9").read_bytes() == ZIP
    assert left(tmp_path) == DONE


DESCRIPTION = {"validator": '"x"', "length": len(ZIP)}
# Records of a partial that say nothing of it, or lie.
RECORDS = [
    None,
    "",
    "[]",
    '{"etag": 3, "length": "x"}',
    "\0",
    "[" * 100_000,
    "{",
    *(
        json.dumps({"settings": settings, "inputs": {}})
        for settings in (
            {**DESCRIPTION, "validator": 0.5},
            {"etag": '"x"', "last_modified": None, "length": len(ZIP)},
            [],
        )
    ),
]


def test_a_partial_of_unknown_origin_is_discarded(tmp_path, fetch):
    for record in RECORDS:
        for name in DONE:
            (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / HALF_DONE[0]).write_bytes(ZIP[:HALF])
        if record is not None:
            (tmp_path / HALF_DONE[1]).write_text(record)
        with serving(whole(ZIP)) as server:
            assert fetch(server).read_bytes() == ZIP
            assert "Range" not in server.requests[0]
        assert left(tmp_path) == DONE


def test_a_damaged_zip_is_replaced_by_a_whole_one_only(tmp_path, fetch):
    (tmp_path / f"{NAME}.zip").write_bytes(ZIP[:-50])
    with serving(status(404), whole(ZIP)) as server:
        fail("404", fetch, server)
        assert (tmp_path / f"{NAME}.zip").read_bytes() == ZIP[:-50]
        assert fetch(server).read_bytes() == ZIP
    assert left(tmp_path) == DONE


# === Downloads that fail ===


def test_a_name_that_is_not_in_the_catalogue(tmp_path):
    with pytest.raises(SourceError, match="is not in the catalogue"):
        download("chinese_bert", tmp_path)


def test_a_refusal_is_final(tmp_path, fetch):
    with serving(status(404)) as server:
        text = fail(": the server answered 404 ", fetch, server)
        assert len(server.requests) == 1
    assert text.endswith(by_hand(server.url, tmp_path))
    assert left(tmp_path) == []


def test_the_number_of_tries_is_limited_and_waits_double(tmp_path, fetch, monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with serving(status(503)) as server:
        message = "answered 503 .*, at try 4 of 4; download"
        text = fail(message, fetch, server, retries=3, wait=0.5)
        assert len(server.requests) == 4
    assert waits == [0.5, 1, 2]
    assert text.endswith(by_hand(server.url, tmp_path))
    assert left(tmp_path) == []


def corrupt(data):
    damaged = bytearray(data)
    damaged[HALF] ^= 1
    return bytes(damaged)


def test_what_is_no_checkpoint_is_deleted(tmp_path, fetch):
    """Other files that are none are in `hostile.servers`."""
    page = whole(b"<html>log in", **{"Content-Type": "application/xhtml+xml"})
    damaged = whole(corrupt(make_zip(method=zipfile.ZIP_STORED)))
    for answer, message in (
        (page, "is a web page,"),
        (whole(b""), "was deleted: .*is empty"),
        (damaged, "was deleted: .* is corrup"),
    ):
        with serving(answer) as server:
            fail(message, fetch, server)
        assert left(tmp_path) == []


def test_a_length_that_never_comes(tmp_path, fetch):
    too_long = {"Content-Length": str(len(ZIP) + 1)}
    with serving(
        whole(ZIP, **too_long), whole(ZIP, ranges=False, **too_long)
    ) as server:
        fail(f"ended at {len(ZIP):,} of {len(ZIP) + 1:,}", fetch, server, retries=2)
    assert left(tmp_path) == HALF_DONE


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_server_that_cannot_be_reached_is_not_waited_for(tmp_path, fetch):
    for host in ("127.0.0.1", "no-such-host.invalid"):
        url = f"http://{host}:{closed_port()}/models"
        text = fail(f"{url}/{NAME}.zip: cannot be reached", fetch, url, wait=600)
        assert text.endswith(by_hand(url, tmp_path))
    assert left(tmp_path) == []


def test_a_connection_that_was_there_is_waited_for(tmp_path, fetch):
    def close_for_good(handler):
        whole(ZIP, stop=HALF)(handler)
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
        message = "the server does not answer, at try 1 of 1"
        fail(message, fetch, server, retries=0, timeout=0.2)
    assert left(tmp_path) == HALF_DONE


def test_a_certificate_that_is_not_valid(tmp_path, fetch, monkeypatch):
    # A real one needs a certificate authority; what urllib raises is known.
    error = ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed")

    def open_url(opener, request, timeout):
        raise urllib.error.URLError(error)

    opener = download_module.urllib.request.OpenerDirector
    monkeypatch.setattr(opener, "open", open_url)
    fail("cannot be reached .certificate verify failed: self-", fetch, "https://x")
    assert left(tmp_path) == []


def test_what_is_no_address(tmp_path, fetch):
    for url in ("file:///etc", "models", "http://"):
        fail("must begin with http:// or https://", fetch, url, wait=600)
    for url in ("http://[bad", "http://host:port", "http://a b"):
        fail("is not an address", fetch, url, wait=600)
    assert left(tmp_path) == []


def test_a_folder_that_is_a_file(tmp_path):
    Path(tmp_path, "x").touch()
    message = "x is a file: give the name of a folder"
    fail(message, download, NAME, tmp_path / "x", error=OutputError)


def test_another_file_than_at_first_is_refused(tmp_path, fetch, capsys):
    path, record = tmp_path / f"{NAME}.zip", tmp_path / f"{NAME}.zip.sha256"
    with serving(whole(ZIP)) as server:
        fetch(server)
    assert record.read_text() == f"{hashlib.sha256(ZIP).hexdigest()}  {NAME}.zip\n"
    other = make_zip(**{"other.txt": b"1"})
    path.write_bytes(other)
    with serving(whole(other), whole(ZIP)) as server:
        text = fail("but the first download had the one in", fetch, server, verbose=1)
        assert "was deleted" in text
        # What was there is kept, until the first file comes again.
        assert path.read_bytes() == other
        assert fetch(server).read_bytes() == ZIP
    record.unlink()
    path.write_bytes(other)
    with serving() as server:
        assert fetch(server).read_bytes() == other


def test_a_whole_zip_in_a_folder_that_is_only_read(tmp_path, fetch, monkeypatch):
    def refused(path, mode=0o777):
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / f"{NAME}.zip").write_bytes(ZIP)
    monkeypatch.setattr(Path, "mkdir", refused)
    with serving() as server:
        assert fetch(server).read_bytes() == ZIP
    assert os.listdir(tmp_path) == [f"{NAME}.zip"]


def test_a_record_of_a_first_download_that_is_damaged(tmp_path, fetch):
    for content in (b"\xed", b"", b"\0", b"0" * 64):
        (tmp_path / f"{NAME}.zip.sha256").write_bytes(content)
        with serving(whole(ZIP)) as server:
            fail("but the first download had the one in", fetch, server)


def test_a_mirror_without_encryption_is_warned_of(tmp_path, fetch, capsys):
    with pytest.raises(DownloadError):
        fetch("http://mirror.invalid/a", retries=0)
    assert "http://mirror.invalid/a" in capsys.readouterr().err
    with serving(whole(ZIP)) as server:
        fetch(server)
    assert capsys.readouterr().err == ""
