"""Checks of what a server of the Hugging Face Hub answers, within its own library.

huggingface_hub joins commits and ETags to paths of its cache, sends the token to every
address that a page or an upload names, waits as long as `Retry-After` says, and reads
bodies of any length. `guarded` checks requests and answers before the library does so.
"""

import hashlib
import importlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from roformer_keras.errors import RoFormerError, printable
from roformer_keras.quirks import hub_client_factory

# Bytes of a file, and of all answers together that are no file or have no length.
_MAX_FILE, _MAX_ANSWERS = 16 * 2**30, 2**26
# Requests of one call, and how often one of them may be repeated.
_MAX_REQUESTS, _MAX_REPEATED = 5_000, 50
# Seconds that a server may tell a client to wait, those without a byte, and those of an
# answer that is no file.
_MAX_WAIT, _TIMEOUT, _TIMEOUT_OF_WRITING, _MAX_SECONDS = 120, 120, 600, 600
# Commits and ETags become paths in the cache. Some servers write ETags in base64.
_COMMIT = re.compile(r"(?!\.+$)[\w.-]{1,128}", re.ASCII)
_ETAG = re.compile(r"(?!/|(.*/)?\.*(/|$))[\w.+=/-]{1,128}", re.ASCII)
_HUB = ("https://huggingface.co", "https://hf.co")
_TO_MIRROR = "set HF_ENDPOINT to a server that you trust, or leave it out"

_lock = threading.Lock()
_guards: list["HubGuard"] = []


@contextmanager
def guarded(
    hub: Any, repository: str, kind: type[RoFormerError], what: str
) -> Iterator["HubGuard"]:
    """Checks what huggingface_hub sends and receives until the block ends.

    Its client is one for all threads, so requests of others meet the same checks
    meanwhile.

    Args:
        hub: the module `huggingface_hub`.
        repository: `owner/name`.
        kind: class of the errors.
        what: what an error begins with, such as `"hf://owner/name cannot be fetched"`.
    """
    # A module that the package does not import by itself.
    constants = importlib.import_module("huggingface_hub.constants")
    guard = HubGuard(constants.ENDPOINT, repository, kind, what)
    with _lock:
        _guards.append(guard)
        # The user may have set another factory since the last call.
        if not isinstance(factory := hub_client_factory(), _GuardedFactory):
            hub.set_client_factory(_GuardedFactory(factory))
    try:
        yield guard
    finally:
        with _lock:
            _guards.remove(guard)


class _GuardedFactory:
    """Makes clients that show their requests and responses to the guards.

    Args:
        make: the function that makes a client, which is the user's or the library's.
    """

    def __init__(self, make):
        self._make = make

    def __call__(self):
        client = self._make()
        hooks = client.event_hooks
        client.event_hooks = {
            "request": [*hooks["request"], _check_request],
            "response": [*hooks["response"], _check_response],
        }
        return client


def _check_request(request):
    for guard in tuple(_guards):
        guard.check_request(request)


def _check_response(response):
    for guard in tuple(_guards):
        guard.check_response(response)


class HubGuard:
    """Checks the requests and responses of one call of huggingface_hub.

    Args:
        endpoint: address of the Hub, which gets the token.
        repository, kind, what: as in `guarded`.

    Attributes:
        hashes: dict, the ETags of files by their names in the repository.
    """

    def __init__(
        self, endpoint: str, repository: str, kind: type[RoFormerError], what: str
    ):
        self._repository, self._kind, self._what = repository, kind, what
        self._is_encrypted = urlsplit(endpoint).scheme == "https"
        self._trusted = {_origin(address) for address in (endpoint, *_HUB)}
        self._repeated: Counter[str] = Counter()
        self._commit: str | None = None
        # Names of files by address, also by those to which the Hub redirects.
        self._files: dict[str, str] = {}
        self._budget = _MAX_ANSWERS
        self.hashes: dict[str, str] = {}

    def check_request(self, request: Any) -> None:
        """Raises an error if a request would tell another server the token."""
        address = str(request.url)
        with _lock:
            self._repeated[line := f"{request.method} {address}"] += 1
            count, repeated = self._repeated.total(), self._repeated[line]
        if count > _MAX_REQUESTS or repeated > _MAX_REPEATED:
            raise self._error(f"the Hub needs more than {count - 1:,} requests")
        schemes = ("https",) if self._is_encrypted else ("https", "http")
        if urlsplit(address).scheme not in schemes:
            text = " or ".join(schemes)
            raise self._error(f"the Hub leads to {address}, no address of {text}")
        has_token = "authorization" in request.headers
        if has_token and _origin(address) not in self._trusted:
            host = urlsplit(address).netloc
            raise self._error(f"the Hub asks for your token to be sent to {host}")
        # What is compressed may unpack to any length.
        request.headers["Accept-Encoding"] = "identity"
        reads = request.method in ("GET", "HEAD")
        timeout = _TIMEOUT if reads else _TIMEOUT_OF_WRITING
        limits = request.extensions.get("timeout") or {}
        keys = ("connect", "read", "write", "pool")
        request.extensions["timeout"] = {
            key: limits.get(key) or timeout for key in keys
        }

    def check_response(self, response: Any) -> None:
        """Raises an error if an answer names a path, waits, or has too many bytes."""
        headers, address = response.headers, str(response.request.url)
        path = urlsplit(address).path
        wait = _seconds_to_wait(headers)
        if response.status_code in (408, 429) and wait > _MAX_WAIT:
            raise self._error(
                f"the Hub asks to wait {wait:,} seconds", "try again then"
            )
        before, slash, place = path.partition("/resolve/")
        if slash and before.endswith(f"/{self._repository}"):
            self._files[address] = unquote(place.partition("/")[2])
        if (name := self._files.get(address)) and "location" in headers:
            self._files[urljoin(address, headers["location"])] = name
        is_ours = name is not None or f"/{self._repository}/" in f"{path}/"
        # The library takes what it needs of a file from the answer to HEAD.
        if response.request.method == "HEAD":
            self._check_file(headers, name, is_ours)
            return
        is_file = bool(slash) or name is not None
        self._limit(response, is_file and response.status_code in (200, 206))
        if "/api/models/" in path and response.status_code == 200:
            response.read()
            with suppress(ValueError, RecursionError):
                self._check_listing(json.loads(response.content), is_ours)

    def _check_file(self, headers, name, is_ours):
        found = {}
        rules = {"x-repo-commit": _COMMIT, "x-linked-etag": _ETAG, "etag": _ETAG}
        for field, rule in rules.items():
            if field in headers:
                value = headers[field].removeprefix("W/").strip('"')
                if not rule.fullmatch(value):
                    raise self._error(f"the Hub gives the {field} {value[:80]!r}")
                found[field] = value
        if is_ours:
            self._check_commit(found.get("x-repo-commit"))
        etag = found.get("x-linked-etag") or found.get("etag")
        if name and etag:
            self.hashes[name] = etag

    def _check_commit(self, commit):
        if commit is None:
            return
        with _lock:
            self._commit = self._commit or commit
        if commit != self._commit:
            raise self._error(
                "the repository has changed meanwhile", "run the same again"
            )

    def _check_listing(self, content, is_ours):
        """Checks the commit of a repository, or the names of its files."""
        if isinstance(content, dict) and "sha" in content:
            commit = content["sha"]
            if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
                raise self._error(f"the Hub names a commit {str(commit)[:80]!r}")
            if is_ours:
                self._check_commit(commit)
            content = content.get("siblings")
        for entry in content if isinstance(content, list) else ():
            row = entry if isinstance(entry, dict) else {}
            name = str(row.get("path", row.get("rfilename", "x")))
            if {"", ".."} & {*re.split(r"[/\\]", name)}:
                raise self._error(f"the Hub lists a file {name[:80]!r}")

    def _limit(self, response, is_content):
        """Ends a body that is longer than it may be or unpacks to more."""
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise self._error(f"the Hub sends a body as {encoding[:20]}")
        length = response.headers.get("content-length", "")
        # A body of a declared length ends there.
        if is_content and length.isdecimal():
            if int(length) > _MAX_FILE:
                raise self._error(f"the Hub sends a file of {int(length):,} bytes")
            return
        # httpx or httpx2, by the version of huggingface_hub.
        library = importlib.import_module(type(response).__module__.partition(".")[0])
        response.stream = _limited(library, response.stream, self._spend)

    def _spend(self, count, seconds):
        with _lock:
            self._budget -= count
        if self._budget < 0:
            raise self._error(
                f"the Hub sends more than {_MAX_ANSWERS:,} bytes without a length"
            )
        if seconds > _MAX_SECONDS:
            raise self._error(f"an answer of the Hub takes more than {_MAX_SECONDS} s")

    def check_hashes(self, folder: Path) -> None:
        """Compares the files that were fetched with their hashes; deletes wrong ones.

        An ETag of the Hub is the SHA-256 of a file, or Git's SHA-1 of it.
        """
        for name, etag in self.hashes.items():
            path = folder / name
            if path.is_file() and not _has_hash(path, etag):
                for wrong in {path.resolve(), path}:
                    wrong.unlink(missing_ok=True)
                raise self._error(
                    f"{name} is not what its hash on the Hub says", "run the same again"
                )

    def _error(self, problem, hint=_TO_MIRROR):
        return self._kind(printable(f"{self._what}: {problem}")[:300], hint=hint)


def _limited(library, stream, spend):
    """A stream of an HTTP library whose bytes and seconds a function limits."""

    class LimitedStream(library.SyncByteStream):
        def __iter__(self):
            start = time.monotonic()
            for chunk in stream:
                spend(len(chunk), time.monotonic() - start)
                yield chunk

        def close(self):
            stream.close()

    return LimitedStream()


def _origin(address):
    parts = urlsplit(address)
    ports = {"http": 80, "https": 443}
    return parts.scheme, parts.hostname, parts.port or ports.get(parts.scheme)


def _seconds_to_wait(headers):
    """What a server tells a client to wait, by the headers that the library reads."""
    texts = [headers.get("retry-after", "").strip()]
    texts += re.findall(r";\s*t\s*=\s*(\d+)", headers.get("ratelimit", ""))
    return max(int(text) if text.isdecimal() else 0 for text in texts)


def _has_hash(path, etag):
    """False if an ETag is a hash, and not that of a file."""
    if re.fullmatch("[0-9a-f]{64}", etag):
        digest = hashlib.sha256()
    elif re.fullmatch("[0-9a-f]{40}", etag):
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    else:
        return True
    with open(path, "rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest() == etag
