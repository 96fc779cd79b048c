"""Fetches a released zip whole: resumes, restarts, and never keeps a bad one."""

import errno
import fcntl
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from roformer_keras.conversion.catalog import checkpoints_folder, download_url, find
from roformer_keras.conversion.files import verify_archive
from roformer_keras.conversion.outputs import is_space_error
from roformer_keras.errors import CheckpointError, DownloadError, SourceError

__all__ = ["download"]

_CHUNK = 2**18
_TRY_AGAIN = (408, 429, 500, 502, 503, 504)


class _Dropped(Exception):
    """The server failed in a way that may pass: worth another try."""


def download(
    name: str,
    folder: str | os.PathLike | None = None,
    base_url: str | None = None,
    progress: bool = True,
    *,
    retries: int = 4,
    wait: float = 1.0,
    timeout: float = 30.0,
) -> Path:
    """Fetches a catalogue zip into `<folder>/<name>.zip` and checks that it is whole.

    What has arrived is kept as `<name>.zip.partial`, with what the server said of the
    file beside it, so that a later call goes on where this one stopped if the server's
    file is still the same one.

    Args:
        name: str. A catalogue name.
        folder: where to put it; made if need be. Defaults to `checkpoints_folder()`.
        base_url: str or None. Folder of a mirror, http or https. Defaults to
            `$ROFORMER_KERAS_BASE_URL`, then the publisher's.
        progress: bool. Whether to show bars and say what happens, on stderr.
        retries: int. How often a dropped connection or a server error is tried again.
        wait: float. Seconds before the first of these; doubled each time.
        timeout: float. Seconds without a byte after which a connection is dropped.

    Returns:
        Path of the zip; at once if it is there and whole.

    Raises:
        SourceError: the name is not in the catalogue.
        DownloadError: it could not be fetched whole; says what to do about it.
    """
    name = find(name).name
    url = download_url(name, base_url)
    if not url.startswith(("http://", "https://")):
        raise DownloadError(f"a base URL begins with http:// or https://, got {url}")
    folder = Path(folder) if folder is not None else checkpoints_folder()
    target = folder / f"{name}.zip"
    say = _say if progress else lambda message: None
    try:
        if _is_there(target, progress, say):
            return target
        folder.mkdir(parents=True, exist_ok=True)
        with _partial_of(target) as partial:
            # Another process may have finished it before the lock was ours.
            if not _is_there(target, progress, say):
                job = _Job(url, target, partial, progress, timeout)
                _fetch(job, retries, wait, say)
                _put_in_place(job)
                say(f"{target} is whole")
    except KeyboardInterrupt:
        say(f"interrupted: the same command goes on from what is in {target}.partial")
        raise
    except DownloadError:
        raise
    except OSError as error:
        reason = "no space left" if is_space_error(error) else error.strerror or error
        raise DownloadError(
            f"cannot write to {folder}: {reason}; what has arrived is kept, and the "
            "same command goes on from there once that is put right"
        ) from error
    return target


@dataclass
class _Job:
    url: str
    target: Path
    partial: "_Partial"
    progress: bool
    timeout: float
    was_reached: bool = False


# === The partial file ===


class _Partial:
    """`<name>.zip.partial`, and beside it what the server said of the file.

    A resumed download must continue the same file: `etag` or `last_modified` says
    whether it is, and `length` when it is complete.
    """

    def __init__(self, path: Path, file):
        self.path = path
        self.file = file
        self._state_path = path.with_name(f"{path.name}.json")
        state = _read_state(self._state_path)
        self.etag = _text(state.get("etag"))
        self.last_modified = _text(state.get("last_modified"))
        self.length = state.get("length")
        if not isinstance(self.length, int):
            self.length = None
        self.size = self.file.seek(0, os.SEEK_END)
        self._save()

    @property
    def validator(self) -> str | None:
        """What `If-Range` may hold: a weak ETag does not vouch for every byte."""
        if self.etag and not self.etag.startswith("W/"):
            return self.etag
        return self.last_modified

    @property
    def is_complete(self) -> bool:
        """Whether all that the server promised is here."""
        return self.length is not None and self.size == self.length > 0

    def restart(self, headers=None):
        """Throws away what has arrived; `headers` describe the file that will come."""
        self.file.truncate(0)
        self.file.seek(0)
        self.size = 0
        headers = headers or {}
        self.etag = headers.get("ETag")
        self.last_modified = headers.get("Last-Modified")
        self.length = _as_length(headers.get("Content-Length"))
        self._save()

    def write(self, data: bytes):
        rest = memoryview(data)
        while rest:
            written = self.file.write(rest)
            self.size += written
            rest = rest[written:]

    def forget_state(self):
        self._state_path.unlink(missing_ok=True)

    def _save(self):
        state = {
            "etag": self.etag,
            "last_modified": self.last_modified,
            "length": self.length,
            "pid": os.getpid(),
        }
        self._state_path.write_text(json.dumps(state))


def _read_state(path: Path) -> dict:
    # Whatever else lies there is as good as nothing: the download starts over.
    with suppress(OSError, ValueError):
        state = json.loads(path.read_text())
        if isinstance(state, dict):
            return state
    return {}


def _text(value) -> str | None:
    return value if isinstance(value, str) else None


def _as_length(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdecimal() else None


@contextmanager
def _partial_of(target: Path) -> Iterator[_Partial]:
    """Opens the partial file under a lock, which a dying process gives up by itself.

    An empty one is deleted at the end.
    """
    path = target.with_name(f"{target.name}.partial")
    with _locked(path, target) as file:
        partial = _Partial(path, file)
        try:
            yield partial
        finally:
            if partial.size == 0:
                partial.forget_state()
                path.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path, target: Path):
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        with open(descriptor, "r+b", buffering=0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = _read_state(path.with_name(f"{path.name}.json")).get("pid")
                raise DownloadError(
                    f"process {holder or 'unknown'} is downloading {target} already: "
                    "wait for it, or end it and try again"
                ) from error
            # The holder before us may have renamed or deleted the file between our
            # opening and our locking it: then the lock is on nothing.
            if _is_at(path, descriptor):
                yield file
                return


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


# === The transfer ===


def _fetch(job: _Job, retries: int, wait: float, say):
    """Brings the partial file to its full length."""
    partial = job.partial
    for attempt in range(retries + 1):
        if partial.is_complete:
            return
        try:
            _request(job, say)
            return
        except _Dropped as dropped:
            if attempt == retries:
                hint = (
                    f"the same command goes on from the {partial.size:,} bytes in "
                    f"{partial.path}"
                )
                raise DownloadError(
                    f"{job.url}: {dropped}, at try {retries + 1} of {retries + 1}; "
                    f"{hint if partial.size else _elsewhere(job)}"
                ) from dropped
            say(f"{dropped}; trying again in {wait:g} s")
            time.sleep(wait)
            wait *= 2


def _request(job: _Job, say):
    partial = job.partial
    headers = {"User-Agent": "roformer_keras"}
    if partial.size and partial.validator:
        headers["Range"] = f"bytes={partial.size}-"
        headers["If-Range"] = partial.validator
    with _open(job, headers) as response:
        job.was_reached = True
        _check_type(job, response)
        if response.status == 206 and _continues(partial, response.headers):
            say(f"resuming at {partial.size:,} bytes")
        elif response.status == 206:
            partial.restart()
            raise _Dropped("the file on the server has changed")
        else:
            partial.restart(response.headers)
        _check_free_space(partial)
        _receive(job, response)


@contextmanager
def _open(job: _Job, headers: dict[str, str]):
    """The response; every way in which there is none becomes an error of ours."""
    try:
        request = urllib.request.Request(job.url, headers=headers)
        response = urllib.request.urlopen(request, timeout=job.timeout)
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(job, error) from error
    except urllib.error.URLError as error:
        raise _unreachable(job, error.reason) from error
    except (http.client.InvalidURL, ValueError) as error:
        raise DownloadError(f"{job.url} is not an address: {error}") from error
    except (http.client.HTTPException, OSError) as error:
        raise _Dropped(_drop_reason(error)) from error
    with response:
        yield response


def _refusal(job: _Job, error: urllib.error.HTTPError) -> Exception:
    if error.code in _TRY_AGAIN:
        return _Dropped(f"the server answered {error.code} {error.reason}")
    if error.code == 416:
        job.partial.restart()
        return _Dropped("the file on the server has become shorter")
    return DownloadError(
        f"{job.url}: the server answered {error.code} {error.reason}; {_elsewhere(job)}"
    )


def _unreachable(job: _Job, reason) -> Exception:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return DownloadError(
            f"{job.url}: the server's certificate is not valid "
            f"({reason.verify_message}); {_elsewhere(job)}"
        )
    # Waiting helps a connection that was there a moment ago, not one that never was.
    if not job.was_reached and _is_offline(reason):
        return DownloadError(
            f"cannot reach {job.url} ({_drop_reason(reason)}); {_elsewhere(job)}"
        )
    return _Dropped(_drop_reason(reason))


def _is_offline(reason) -> bool:
    kinds = (socket.gaierror, ConnectionRefusedError, TimeoutError)
    numbers = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)
    return (
        not isinstance(reason, OSError)
        or isinstance(reason, kinds)
        or reason.errno in numbers
    )


def _drop_reason(error) -> str:
    if isinstance(error, TimeoutError):
        return "the server does not answer"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _elsewhere(job: _Job) -> str:
    return (
        f"fetch {job.url} on a machine that can, and put it at {job.target.absolute()}"
    )


def _check_type(job: _Job, response):
    if response.headers.get_content_type() in ("text/html", "application/xhtml+xml"):
        raise DownloadError(
            f"{response.url} is a web page, not a zip: a login or an error page stands "
            f"before it, or it has moved; {_elsewhere(job)}"
        )


def _continues(partial: _Partial, headers) -> bool:
    """Whether a 206 is the rest of the very file whose beginning is here."""
    where = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", headers.get("Content-Range", ""))
    return (
        where is not None
        and int(where[1]) == partial.size
        and partial.length in (None, int(where[2]))
        and headers.get("ETag") in (None, partial.etag)
        and headers.get("Last-Modified") in (None, partial.last_modified)
    )


def _check_free_space(partial: _Partial):
    free = shutil.disk_usage(partial.path.parent).free
    missing = (partial.length or 0) - partial.size
    if missing > free:
        raise DownloadError(
            f"no space left in {partial.path.parent.absolute()}: {missing:,} bytes are "
            f"to come and {free:,} are free; free some, or choose another folder"
        )


def _receive(job: _Job, response):
    partial = job.partial
    with _bar(job.progress, job.target.stem, partial.length, partial.size) as bar:
        while chunk := _read(response):
            partial.write(chunk)
            bar.update(len(chunk))
    if partial.length is not None and partial.size < partial.length:
        raise _Dropped(
            f"the connection ended at {partial.size:,} of {partial.length:,} bytes"
        )


def _read(response) -> bytes:
    try:
        # What there is, not a full chunk: nothing that arrived is lost by a stop.
        return response.read1(_CHUNK)
    except (http.client.HTTPException, OSError) as error:
        raise _Dropped(f"the connection broke ({_drop_reason(error)})") from error


# === What has arrived ===


def _put_in_place(job: _Job):
    partial = job.partial
    try:
        _verify(partial.path, job.target.stem, job.progress)
    except (SourceError, CheckpointError) as error:
        partial.restart()
        raise DownloadError(
            f"what {job.url} sent is no whole checkpoint and was deleted: {error}"
        ) from error
    os.fsync(partial.file)
    partial.forget_state()
    os.replace(partial.path, job.target)


def _is_there(target: Path, progress: bool, say) -> bool:
    if not target.exists():
        return False
    try:
        _verify(target, target.stem, progress)
    except (SourceError, CheckpointError) as error:
        say(f"{error}; it is replaced once a whole one is there")
        return False
    say(f"{target} is already downloaded and whole")
    return True


def _verify(path: Path, title: str, progress: bool):
    with _bar(progress, f"checking {title}", path.stat().st_size, 0) as bar:
        verify_archive(path, bar.update)


def _bar(progress: bool, title: str, total: int | None, initial: int) -> tqdm:
    return tqdm(
        desc=title,
        total=total,
        initial=initial,
        disable=not progress,
        file=sys.stderr,
        unit="B",
        unit_scale=True,
        unit_divisor=1000,
        leave=False,
    )


def _say(message: str):
    tqdm.write(message, file=sys.stderr)
