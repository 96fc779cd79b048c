"""Downloads released zips: resumes, retries, and keeps only whole checkpoints."""

import hashlib
import http.client
import re
import shutil
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from tqdm import tqdm

from roformer_keras.errors import (
    CheckpointError,
    DownloadError,
    OutputError,
    RoFormerError,
    SourceError,
    refuse,
)
from roformer_keras.hub.catalog import (
    checkpoints_folder,
    download_url,
    downloaded,
    find,
)
from roformer_keras.io.atomic import make_folder, replacing
from roformer_keras.io.journal import (
    AppendedFile,
    finish,
    locked,
    read_record,
    run_metadata,
    write_record,
)
from roformer_keras.io.sources import verify_archive
from roformer_keras.progress import progress_bar

_CHUNK = 2**16
# What is on this machine cannot be replaced on the way.
_OWN_HOST = re.compile(r"http://(localhost|127\.0\.0\.1|\[::1\])[:/]")
# Answers of a server that another try may not get.
_TRANSIENT = (408, 429, 500, 502, 503, 504)


def download(
    name: str,
    folder: str | Path | None = None,
    base_url: str | None = None,
    *,
    verbose: int | str = "auto",
    retries: int = 4,
    wait: float = 1.0,
    timeout: float = 30.0,
) -> Path:
    """Downloads a zip of the catalogue to `<folder>/<name>.zip` and checks it.

    An interrupted download leaves `<name>.zip.partial`. The next call resumes it if the
    file on the server is the same, by its ETag or its date, else restarts it.

    `<name>.zip.sha256` keeps the SHA-256 of the first download: another file under that
    name is refused, whichever server sent it.

    Args:
        name: str. A name in the catalogue.
        folder: path, created if need be. Defaults to `checkpoints_folder()`.
        base_url: str or None. Folder of a mirror, http or https. Defaults to
            `$ROFORMER_KERAS_BASE_URL`, then to the publisher's.
        verbose: 0 for silence; 1 or `"auto"` for progress bars and messages on
            standard error.
        retries: int. How often a request is repeated after a transient failure.
        wait: float. Seconds before the first repetition; doubled for each next one.
        timeout: float. Seconds without data after which a connection counts as broken.

    Returns:
        Path of the zip. A whole zip that is already there is not downloaded again.

    Raises:
        SourceError: the name is not in the catalogue.
        DownloadError: the zip cannot be downloaded, is no whole checkpoint, or is
            another than at first.
        OutputError: the zip cannot be written, or another process is downloading it.

    Example:
        >>> name = "chinese_roformer-sim-char-ft_L-12_H-768_A-12"
        >>> roformer_keras.download(name, verbose=0).name
        'chinese_roformer-sim-char-ft_L-12_H-768_A-12.zip'
    """
    name = find(name).name
    url = download_url(name, base_url)
    refuse(
        not url.startswith(("http://", "https://")),
        f"a base URL must begin with http:// or https://, got {url}",
        error=DownloadError,
    )
    if url.startswith("http:") and not _OWN_HOST.match(url):
        _say(
            True,
            f"warning: {url} is not encrypted, so anyone on the way can replace the "
            "file: use https",
        )
    archive = downloaded(name) if folder is None else None
    if archive is not None and _is_whole(archive, verbose):
        return archive
    folder = checkpoints_folder() if folder is None else Path(folder)
    target = folder / f"{name}.zip"
    if target != archive and _is_whole(target, verbose):
        return target
    make_folder(folder)
    with locked(target):
        # Another process may have completed it before this one got the lock.
        if not _is_whole(target, verbose):
            transfer = _Transfer(url, target, verbose, timeout)
            try:
                transfer.run(retries, wait)
                transfer.complete()
            finally:
                transfer.close()
    return target


def _is_whole(target, verbose) -> bool:
    if not target.exists():
        return False
    try:
        _check(target, target, verbose)
    except (SourceError, CheckpointError) as error:
        _say(verbose, f"{error}; a new download will replace it")
        return False
    _say(verbose, f"{target} is already downloaded and whole")
    return True


def _check(path, target, verbose):
    """Reads a zip, and compares it with the SHA-256 of the first download.

    Raises:
        SourceError, CheckpointError: it is no whole checkpoint, or another one.
    """
    size = path.stat().st_size
    with _bar(verbose, desc=f"checking {path.name}", total=size) as bar:
        verify_archive(path, bar.update)
    with open(path, "rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    record = target.with_name(f"{target.name}.sha256")
    if not record.exists():
        # An administrator may have put the zip into a folder that others only read.
        with suppress(OutputError), replacing(record) as partial:
            partial.write_text(f"{checksum}  {target.name}\n", encoding="utf-8")
    elif record.read_bytes().split()[:1] != [checksum.encode()]:
        raise CheckpointError(
            f"{target.name} has the SHA-256 {checksum}, which is not that of the first "
            f"download in {record}; if the publisher has changed the file, delete the "
            "record"
        )


def _read_description(path) -> dict:
    """Headers of a file from the server; empty if the record is missing or damaged."""
    settings = (read_record(path) or {}).get("settings", {})
    kinds = {"etag": str, "last_modified": str, "length": int}
    is_whole = settings.keys() == kinds.keys() and all(
        value is None or type(value) is kinds[name] for name, value in settings.items()
    )
    return settings if is_whole else {}


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to web servers, and none from https to http."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        wanted = ("https",) if req.type == "https" else ("http", "https")
        if newurl.partition(":")[0].lower() not in wanted:
            raise urllib.error.HTTPError(
                req.full_url, code, f"{msg}, with a redirect to {newurl}", headers, fp
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Transfer:
    """A download in progress: the bytes so far, and of which file they are.

    The record holds what the server said of the file: ETag, date and length. A partial
    without a usable record could be of any file, and is discarded.
    """

    def __init__(self, url, target, verbose, timeout):
        self._url, self._target = url, target
        self._verbose, self._timeout = verbose, timeout
        self._partial = target.with_name(f"{target.name}.partial")
        self._record = target.with_name(f"{target.name}.partial.json")
        self._server = _read_description(self._record)
        self._file = AppendedFile(self._partial, None if self._server else 0)
        self._was_reached = False

    def run(self, retries, wait):
        """Requests the file until all of it is here."""
        for attempt in range(retries + 1):
            try:
                is_complete = 0 < self._file.size == self._server.get("length")
                if not is_complete:
                    self._request()
                return
            except RoFormerError:
                raise
            except (http.client.HTTPException, OSError, ValueError) as error:
                problem = self._transient_problem(error)
            if attempt < retries:
                _say(self._verbose, f"{problem}; trying again in {wait:g} s")
                time.sleep(wait)
                wait *= 2
        way_out = f"the same call resumes {self._partial}" if self._file.size else None
        raise self._error(f"{problem}, at try {retries + 1} of {retries + 1}", way_out)

    def complete(self):
        """Checks what has arrived, and gives it its final name."""
        try:
            _check(self._partial, self._target, self._verbose)
        except (SourceError, CheckpointError) as error:
            self._restart({})
            raise DownloadError(
                f"what {self._url} sent is not the checkpoint, and was deleted: {error}"
            ) from error
        self._file.close()
        finish(self._partial, self._record, self._target)
        _say(self._verbose, f"{self._target} is whole")

    def close(self):
        self._file.close()
        if not self._file.size:
            self._partial.unlink(missing_ok=True)
            self._record.unlink(missing_ok=True)

    # === One request ===

    def _request(self):
        headers = {"User-Agent": "roformer_keras"}
        # A weak ETag does not vouch for every byte.
        etag = self._server.get("etag")
        is_strong = etag and not etag.startswith("W/")
        validator = etag if is_strong else self._server.get("last_modified")
        if self._file.size and validator:
            headers |= {"Range": f"bytes={self._file.size}-", "If-Range": validator}
        request = urllib.request.Request(self._url, headers=headers)
        opener = urllib.request.build_opener(_Redirects)
        with opener.open(request, timeout=self._timeout) as response:
            self._was_reached = True
            if "html" in response.headers.get_content_type():
                raise self._error(
                    "this is a web page, not a zip: a login or an error page, or the "
                    "zip has moved"
                )
            if response.status != 206:
                self._restart(response.headers)
            elif not self._is_continuation(response.headers):
                self._restart({})
                raise ConnectionError("the file on the server has changed")
            self._receive(response)

    def _receive(self, response):
        length = self._server["length"]
        free = shutil.disk_usage(self._partial.parent).free
        if length is not None and length - self._file.size > free:
            raise DownloadError(
                f"no space left in {self._partial.parent.absolute()}: "
                f"{length - self._file.size:,} bytes are missing and {free:,} are "
                "free; free some, or choose another folder"
            )
        progress = {"desc": self._target.name, "initial": self._file.size}
        with _bar(self._verbose, total=length, **progress) as bar:
            # What has arrived, not full chunks: an interruption loses little.
            while chunk := response.read1(_CHUNK):
                self._file.append(chunk, sync=False)
                bar.update(len(chunk))
        if length is not None and self._file.size < length:
            raise ConnectionError(
                f"the connection ended at {self._file.size:,} of {length:,} bytes"
            )

    def _is_continuation(self, headers) -> bool:
        """True if an answer is the rest of the file whose beginning is here."""
        content_range = headers.get("Content-Range", "")
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", content_range)
        return (
            match is not None
            and int(match[1]) == self._file.size
            and self._server["length"] in (None, int(match[2]))
            and headers.get("ETag") in (None, self._server["etag"])
            and headers.get("Last-Modified") in (None, self._server["last_modified"])
        )

    def _restart(self, headers):
        """Discards what has arrived; `headers` describe the file that comes next."""
        length = headers.get("Content-Length", "")
        self._server = {
            "etag": headers.get("ETag"),
            "last_modified": headers.get("Last-Modified"),
            "length": int(length) if length.isdecimal() else None,
        }
        self._file.close()
        self._file = AppendedFile(self._partial, 0)
        write_record(self._record, run_metadata(self._server, {}))

    # === What goes wrong ===

    def _transient_problem(self, error) -> str:
        """Reason of a failure, if another try may help; else raises."""
        if isinstance(error, urllib.error.HTTPError):
            error.close()
            answer = f"the server answered {error.code} {error.reason}"
            if error.code == 416:
                self._restart({})
            elif error.code not in _TRANSIENT:
                raise self._error(answer) from error
            return answer
        if isinstance(error, ValueError | http.client.InvalidURL):
            raise DownloadError(f"{self._url} is not an address: {error}") from error
        reason = getattr(error, "reason", error)
        text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        if isinstance(reason, TimeoutError):
            text = "the server does not answer"
        # Waiting helps a connection that broke, not one that never was.
        if isinstance(error, urllib.error.URLError) and not self._was_reached:
            raise self._error(f"cannot be reached ({text})") from error
        return text

    def _error(self, problem, way_out=None) -> DownloadError:
        target = self._target.absolute()
        by_hand = f"download {self._url} on another machine, and put it at {target}"
        return DownloadError(f"{self._url}: {problem}; {way_out or by_hand}")


def _bar(verbose, **options) -> tqdm:
    options |= {"unit": "B", "unit_scale": True, "leave": False}
    return progress_bar(int(bool(verbose)), **options)


def _say(verbose, message: str):
    if verbose:
        tqdm.write(message, file=sys.stderr)
