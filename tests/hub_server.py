"""A server that speaks the API of the Hugging Face Hub: repositories in memory."""

import base64
import hashlib
import json
import logging
import os
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from common import ROOT

OWNER, TOKEN = "someone", "hf_right"
SHA = "0123456789" * 4


def environment_of(url, cache):
    """Variables of a process that takes the server for the Hub."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_ENDPOINT": url,
        "HF_HOME": str(cache),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # The server speaks the LFS protocol, not that of Xet.
        "HF_HUB_DISABLE_XET": "1",
    }


class Hub(ThreadingHTTPServer):
    """Repositories that `TOKEN` may write; `OWNER` is the owner of all.

    Attributes:
        repositories: name -> files, as name -> bytes.
        lfs_from: bytes from which a file is sent by the LFS protocol.
        failures: list of (method, part of a path, status): the next request that fits
            the first of them gets that status, once.
        requests: what was asked, as "METHOD path".
        created, commits: the bodies of these requests.
    """

    daemon_threads = True

    def handle_error(self, request, client_address):
        """Clients that disconnect are part of the tests."""

    def __init__(self, repositories, lfs_from):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories, self.lfs_from = repositories, lfs_from
        self.failures, self.requests, self.created, self.commits = [], [], [], []
        self.objects = {}
        self.url = f"http://127.0.0.1:{self.server_port}"


@contextmanager
def used_hub(monkeypatch, cache):
    """An empty Hub that huggingface_hub takes for its own, with this cache.

    The library has read its variables already, so these are set.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    with hub({}) as server:
        for name, value in {
            "ENDPOINT": server.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": server.url
            + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(cache / "hub"),
            "HF_TOKEN_PATH": str(cache / "token"),
            "HF_HUB_DISABLE_PROGRESS_BARS": True,
            "HF_HUB_DISABLE_TELEMETRY": True,
            # The server speaks the LFS protocol, not that of Xet.
            "HF_HUB_DISABLE_XET": True,
        }.items():
            monkeypatch.setattr(constants, name, value)
        # Its logger writes to the standard error of the test that imported it.
        monkeypatch.setattr(logging, "raiseExceptions", False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


@contextmanager
def hub(repositories, lfs_from=10_000):
    """Serves these repositories until the block ends."""
    server = Hub(repositories, lfs_from)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


_REPO = r"(?P<repo>[\w-]+/[\w-]+)"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # A body follows its headers at once.
    disable_nagle_algorithm = True

    def answer(self):
        path = self.path.split("?")[0]
        self.server.requests.append(f"{self.command} {path}")
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        for failure in self.server.failures[:1]:
            method, part, status = failure
            if method == self.command and part in path:
                self.server.failures.remove(failure)
                return self.send(status, {"error": "as the test wants it"})
        is_open = path.startswith("/lfs/") or path == "/api/validate-yaml"
        is_read = self.command in ("GET", "HEAD")
        allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if not is_read and not is_open and not allowed:
            return self.send(401, {"error": "Invalid credentials in Authorization"})
        for pattern, name in _ROUTES:
            match = re.fullmatch(pattern, f"{self.command} {path}")
            if match is None:
                continue
            arguments = match.groupdict()
            if "repo" in arguments:
                repo = arguments.pop("repo")
                if repo not in self.server.repositories:
                    headers = {"X-Error-Code": "RepoNotFound"}
                    return self.send(404, {"error": "Repository not found"}, headers)
                arguments["files"] = self.server.repositories[repo]
                self.repo = repo
            return getattr(self, name)(body, **arguments)
        return self.send(404, {"error": "no such page"})

    do_GET = do_HEAD = do_POST = do_PUT = answer

    def send(self, status, content, headers=None):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments):
        pass

    # === Reading ===

    def info(self, body, files):
        names = [{"rfilename": name} for name in sorted(files)]
        about = {"id": self.repo, "modelId": self.repo, "sha": SHA}
        self.send(200, {**about, "siblings": names, "private": False})

    def tree(self, body, files):
        rows = [
            {"type": "file", "oid": SHA, "path": name, "size": len(files[name])}
            for name in sorted(files)
        ]
        self.send(200, rows)

    def resolve(self, body, files, name):
        if name not in files:
            headers = {"X-Error-Code": "EntryNotFound"}
            return self.send(404, {"error": "no such file"}, headers)
        etag = hashlib.sha256(files[name]).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": SHA}
        return self.send(200, files[name], headers)

    # === Writing ===

    def create(self, body):
        content = json.loads(body)
        self.server.created.append(content)
        repo = f"{content['organization']}/{content['name']}"
        if repo in self.server.repositories:
            error = "You already created this model repo"
            url = f"{self.server.url}/{repo}"
            return self.send(409, {"error": error, "url": url})
        if content["organization"] != OWNER:
            return self.send(403, {"error": "You don't have the rights"})
        self.server.repositories[repo] = {".gitattributes": b""}
        return self.send(200, {"url": f"{self.server.url}/{repo}", "name": repo})

    def validate(self, body):
        has_front = json.loads(body)["content"].startswith("---\n")
        errors = [] if has_front else [{"message": "there is no front matter"}]
        self.send(200, {"errors": errors, "warnings": []})

    def preupload(self, body, files):
        modes = [
            {
                "path": file["path"],
                "uploadMode": "lfs"
                if file["size"] >= self.server.lfs_from
                else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(body)["files"]
        ]
        self.send(200, {"files": modes})

    def batch(self, body, files):
        objects = []
        for wanted in json.loads(body)["objects"]:
            answer = dict(wanted)
            if wanted["oid"] not in self.server.objects:
                link = {"href": f"{self.server.url}/lfs/{wanted['oid']}"}
                answer["actions"] = {"upload": link}
            objects.append(answer)
        self.send(200, {"transfer": "basic", "objects": objects})

    def store(self, body, oid):
        if hashlib.sha256(body).hexdigest() != oid:
            return self.send(422, {"error": "the content has another hash"})
        self.server.objects[oid] = body
        return self.send(200, {})

    def commit(self, body, files):
        changes = [json.loads(line) for line in body.splitlines()]
        for change in changes:
            value = change["value"]
            if change["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif change["key"] == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
            elif change["key"] == "deletedFile":
                del files[value["path"]]
        self.server.commits.append(changes)
        url = f"{self.server.url}/{self.repo}/commit/{SHA}"
        self.send(200, {"commitUrl": url, "commitOid": SHA, "success": True})


_ROUTES = (
    (rf"GET /api/models/{_REPO}(/revision/\w+)?", "info"),
    (rf"GET /api/models/{_REPO}/tree/\w+", "tree"),
    (rf"(GET|HEAD) /{_REPO}/resolve/\w+/(?P<name>.+)", "resolve"),
    (r"POST /api/repos/create", "create"),
    (r"POST /api/validate-yaml", "validate"),
    (rf"POST /api/models/{_REPO}/preupload/\w+", "preupload"),
    (rf"POST /{_REPO}\.git/info/lfs/objects/batch", "batch"),
    (r"PUT /lfs/(?P<oid>\w+)", "store"),
    (rf"POST /api/models/{_REPO}/commit/\w+", "commit"),
)
