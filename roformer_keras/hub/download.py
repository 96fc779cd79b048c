"""Downloads released zips: resumes, retries, and keeps only whole checkpoints."""

import hashlib
import http.client
import re
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from tqdm import tqdm

from roformer_keras.base.errors import (
    CheckpointError,
    DownloadError,
    OutputError,
    RoFormerError,
    SourceError,
    refuse,
)
from roformer_keras.base.progress import progress_bar
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

_CHUNK = 2**16
# A mirror cannot replace files of this machine in transit.
_OWN_HOST = re.compile(r"http://(localhost|127\.0\.0\.1|\[::1\])[:/]")
# Answers of a server that a repetition may change.
_TRANSIENT = (408, 429, 500, 502, 503, 504)
_CHANGED = "the file on the server has changed"


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
    file on the server is the same, by its ETag or its date, or else restarts it.

    `<name>.zip.sha256` keeps the SHA-256 of the first download: another file of that
    name is refused, whichever server sent it.

    Args:
        name: str. A name in the catalogue.
        folder: path, created if missing. Defaults to `checkpoints_folder()`.
        base_url: str or None. Folder of a mirror, http or https. Defaults to
            `$ROFORMER_KERAS_BASE_URL`, then to the publisher's.
        verbose: 0 for silence; 1 or `"auto"` for progress bars and messages on
            standard error.
        retries: int. Number of repetitions of a request after a transient failure.
        wait: float. Seconds before the first repetition; doubled for each next one.
        timeout: float. Seconds without data after which a connection counts as broken.

    Returns:
        Path of the zip. A whole zip in the folder is not downloaded again.

    Raises:
        SourceError: the name is not in the catalogue.
        DownloadError: the zip cannot be downloaded, is no whole checkpoint, or differs
            from the first download.
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
        # Another process may have completed it before this one acquired the lock.
        if not _is_whole(target, verbose):
            _fetch(url, target, verbose, retries, wait, timeout)
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
    """Reads a zip, and compares it with the SHA-256 of the first download."""
    size = path.stat().st_size
    with _bar(verbose, desc=f"checking {path.name}", total=size) as bar:
        verify_archive(path, bar.update)
    with open(path, "rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    record = target.with_name(f"{target.name}.sha256")
    if not record.exists():
        # An administrator may have put the zip into a read-only folder.
        with suppress(OutputError), replacing(record) as partial:
            partial.write_text(f"{checksum}  {target.name}\n", encoding="utf-8")
    elif record.read_bytes().split()[:1] != [checksum.encode()]:
        raise CheckpointError(
            f"{target.name} has the SHA-256 {checksum}, but the first download had "
            f"the one in {record}; if the publisher has changed the file, delete the "
            "record"
        )


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to web servers, but none from https to http."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        allowed = ("https",) if req.type == "https" else ("http", "https")
        if newurl.partition(":")[0].lower() not in allowed:
            raise urllib.error.HTTPError(
                req.full_url, code, f"{msg}, with a redirect to {newurl}", headers, fp
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetch(url, target, verbose, retries, wait, timeout):
    """Requests a zip until it is complete, checks it, and gives it its name."""
    partial, record = (
        target.with_name(f"{target.name}.partial{suffix}") for suffix in ("", ".json")
    )
    try:
        for attempt in range(retries + 1):
            try:
                _receive(url, partial, record, verbose, timeout)
                break
            except RoFormerError:
                raise
            except (http.client.HTTPException, OSError, ValueError) as error:
                problem, can_pass = _problem_of(error, is_first=not attempt)
                if problem == _CHANGED:
                    record.unlink(missing_ok=True)
                if can_pass and attempt == retries:
                    problem += f", at try {attempt + 1} of {attempt + 1}"
                if not can_pass or attempt == retries:
                    way_out = (
                        f"the same call resumes {partial}"
                        if can_pass and _size(partial)
                        else f"download {url} on another machine, and put it at "
                        f"{target.absolute()}"
                    )
                    raise DownloadError(f"{url}: {problem}; {way_out}") from error
            _say(verbose, f"{problem}; trying again in {wait:g} s")
            time.sleep(wait)
            wait *= 2
        try:
            _check(partial, target, verbose)
        except (SourceError, CheckpointError) as error:
            partial.unlink()
            raise DownloadError(
                f"the file from {url} is not the checkpoint, and was deleted: {error}"
            ) from error
        finish(partial, record, target)
        _say(verbose, f"{target} is whole")
    finally:
        if not _size(partial):
            partial.unlink(missing_ok=True)
            record.unlink(missing_ok=True)


def _receive(url, partial, record, verbose, timeout):
    """Appends the missing bytes to a partial file, or restarts it.

    The record holds the server's facts about the file: its ETag or date, and its
    length. A partial file without a usable record could belong to any file, and is
    discarded.
    """
    server = (read_record(record) or {}).get("settings")
    server = server if isinstance(server, dict) else {}
    validator, length = server.get("validator"), server.get("length")
    size, headers = _size(partial), {"User-Agent": "roformer_keras"}
    if 0 < size == length:
        return
    if size and isinstance(validator, str):
        headers |= {"Range": f"bytes={size}-", "If-Range": validator}
    request = urllib.request.Request(url, headers=headers)
    opener = urllib.request.build_opener(_Redirects)
    with opener.open(request, timeout=timeout) as response:
        if "html" in response.headers.get_content_type():
            raise DownloadError(
                f"{url}: this is a web page, not a zip: a login or an error page, or "
                "the zip has moved"
            )
        answered = _validator(response.headers)
        if response.status != 206:
            text = response.headers.get("Content-Length", "")
            size, length = 0, int(text) if text.isdecimal() else None
        else:
            content_range = response.headers.get("Content-Range", "")
            match = re.fullmatch(rf"bytes {size}-\d+/(\d+)", content_range)
            is_same = match is not None and length in (None, int(match[1]))
            if not is_same or answered not in (None, validator):
                raise ConnectionError(_CHANGED)
        options = {"desc": record.name.partition(".partial")[0], "initial": size}
        with (
            AppendedFile(partial, size) as file,
            _bar(verbose, total=length, **options) as bar,
        ):
            if not size:
                server = {"validator": answered, "length": length}
                write_record(record, run_metadata(server, {}))
            # Small reads: an interruption then loses little.
            while chunk := response.read1(_CHUNK):
                file.append(chunk, sync=False)
                bar.update(len(chunk))
    if length is not None and file.size < length:
        raise ConnectionError(
            f"the connection ended at {file.size:,} of {length:,} bytes"
        )


def _validator(headers) -> str | None:
    """The ETag, unless it is weak: a weak one does not cover every byte."""
    etag = headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")


def _problem_of(error, is_first) -> tuple[str, bool]:
    """The reason of a failure, and whether a repetition may help."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        if error.code == 416:
            return _CHANGED, True
        answer = f"the server answered {error.code} {error.reason}"
        return answer, error.code in _TRANSIENT
    if isinstance(error, ValueError | http.client.InvalidURL):
        return f"is not an address: {error}", False
    reason = getattr(error, "reason", error)
    text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    if isinstance(reason, TimeoutError):
        text = "the server does not answer"
    # Waiting helps a broken connection, but not one that never existed.
    if isinstance(error, urllib.error.URLError) and is_first:
        return f"cannot be reached ({text})", False
    return text, True


def _size(path) -> int:
    return path.stat().st_size if path.exists() else 0


def _bar(verbose, **options) -> tqdm:
    options |= {"unit": "B", "unit_scale": True, "leave": False}
    return progress_bar(int(bool(verbose)), **options)


def _say(verbose, message: str):
    if verbose:
        tqdm.write(message, file=sys.stderr)
