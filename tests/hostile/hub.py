"""A Hub that lies: what the server answers instead, and what must come of it.

A lie is a function of the handler of `hub_server.Hub`, which returns True if it has
answered. Its rows are `(name, lie, message)`; the message is of the error, or "" if the
lie is harmless.
"""

import json
import re
import time

from hub_server import SHA

OTHER_SHA = "76543210" * 5
# Replaced by an address of another server, and by a path outside the cache.
OTHER, OUTSIDE = "http://other", "/outside/evil"
CHANGED = "has changed meanwhile: run the same again"
UNEXPECTED = "not what huggingface_hub expects"
TOKEN_TO = "asks for your token to be sent to 127.0.0.1"


def is_at(handler, where):
    """True if a request, as "METHOD path", matches a pattern."""
    path = handler.path.split("?")[0]
    return re.search(where, f"{handler.command} {path}") is not None


def filled(handler, text):
    """A text with the address of the other server, and a path of this test."""
    other, outside = handler.server.other, str(handler.server.outside)
    if not isinstance(text, str):
        return text
    return text.replace(OTHER, other).replace(OUTSIDE, outside)


def answer(where, status=200, content=b"", **headers):
    """Answers such requests with this."""

    def lie(handler):
        if not is_at(handler, where):
            return False
        names = {
            key.replace("_", "-"): filled(handler, headers[key]) for key in headers
        }
        handler.send(status, content, names)
        return True

    return lie


def with_headers(where, **headers):
    """Adds headers to the true answers of such requests, or replaces theirs."""

    def lie(handler):
        if not is_at(handler, where):
            return False
        send = handler.send

        def send_more(status, content, true_headers=None):
            more = {key.replace("_", "-"): value for key, value in headers.items()}
            more = {key: filled(handler, value) for key, value in more.items()}
            send(status, content, {**(true_headers or {}), **more})

        handler.send = send_more
        return False

    return lie


def redirected(where, place, **headers):
    return answer(where, 302, Location=place, **headers)


def moved(where, **headers):
    """Redirects within the Hub, and lies there."""

    def lie(handler):
        if is_at(handler, where):
            handler.send(307, b"", {"Location": "/moved/x"})
            return True
        if is_at(handler, "HEAD /moved/"):
            names = {"ETag": '"5f"', "X-Repo-Commit": SHA}
            more = {key.replace("_", "-"): value for key, value in headers.items()}
            more = {key: filled(handler, value) for key, value in more.items()}
            handler.send(200, b"x", {**names, **more})
            return True
        return False

    return lie


def endless(where, *headers, end=2**31):
    """A body in chunks without an end."""

    def lie(handler):
        if not is_at(handler, where) or handler.command == "HEAD":
            return False
        handler.send_response(200)
        for header in headers or [("Transfer-Encoding", "chunked")]:
            handler.send_header(*header)
        handler.end_headers()
        chunk = b" " * 2**20
        size = b"%x\r\n" % len(chunk) if not headers else b""
        for _ in range(end // len(chunk)):
            handler.wfile.write(size + chunk + (b"\r\n" if size else b""))
        return True

    return lie


def dripping(where):
    """A byte now and then, without an end."""

    def lie(handler):
        if not is_at(handler, where):
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        for _ in range(1000):
            handler.wfile.write(b" ")
            time.sleep(0.02)
        return True

    return lie


def changed_body(where, change):
    """The true headers, and another body for requests that are no HEAD."""

    def lie(handler):
        if not is_at(handler, where) or handler.command == "HEAD":
            return False
        send = handler.send
        handler.send = lambda status, content, headers=None: send(
            status, change(content), headers
        )
        return False

    return lie


def changed_json(where, change):
    def edit(handler):
        if not is_at(handler, where):
            return False
        send = handler.send

        def send_other(status, content, headers=None):
            content = json.loads(json.dumps(content))
            content = change(content) or content
            text = filled(handler, json.dumps(content))
            send(status, text.encode(), headers)

        handler.send = send_other
        return False

    return edit


def cut_off(where):
    """A body that ends before its length, at each try."""

    def lie(handler):
        if not is_at(handler, where) or handler.command == "HEAD":
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        handler.wfile.write(b"x")
        handler.close_connection = True
        return True

    return lie


def pages(where, link):
    """Pages that name a next one, without an end."""
    count = iter(range(10**9))

    def lie(handler):
        if not is_at(handler, where):
            return False
        url = filled(handler, link.replace("#", str(next(count))))
        if url.startswith("/"):
            url = handler.server.url + url
        handler.send(200, [], {"Link": f'<{url}>; rel="next"'})
        return True

    return lie


INFO, TREE = "GET /api/models/[^/]+/[^/]+/revision", "GET .*/tree/"
INFO = "GET /api/models/[^/]+/[^/]+(/revision/[^/]+)?$"
FILE, WEIGHTS = "/resolve/.*/(config.json|model.safetensors)$", "/resolve/.*/model.safe"
HEAD, GET = f"HEAD .*{WEIGHTS}", f"GET .*{WEIGHTS}"


def listed(name):
    """The list of files names another one."""
    row = {"type": "file", "oid": SHA, "path": name, "size": 3}
    return changed_json(TREE, lambda rows: [*rows, row])


def of_commit(value):
    return changed_json(INFO, lambda content: content.update(sha=value))


_PATHS = (f"..{OUTSIDE}", "../" * 12 + "evil", OUTSIDE, "..", "a/b", "a\\b", "", " ")
_SCHEMES = {
    "file:///etc/passwd": "leads to file://",
    "ftp://127.0.0.1:1/x": "leads to ftp:",
    "data:text/plain,x": "Invalid URL in location header",
}
LOADS = [
    *(
        (f"commit {name!r}", of_commit(name), "the Hub names a commit")
        for name in _PATHS
    ),
    ("commit null", of_commit(None), "the Hub names a commit 'None'"),
    ("commit number", of_commit(3), "the Hub names a commit '3'"),
    ("other commit", of_commit(OTHER_SHA), CHANGED),
    ("no commit", changed_json(INFO, lambda c: {"id": c["id"]}), UNEXPECTED),
    *(
        (
            f"{field} {name!r}",
            with_headers(FILE, **{field: f'"{name}"'}),
            "Hub gives the",
        )
        for field in ("ETag", "X_Linked_Etag", "X_Repo_Commit")
        for name in (*_PATHS[:4], "a\\b")
    ),
    ("ETag W/..", with_headers(FILE, ETag='W/"../x"'), "gives the etag '../x'"),
    ("ETag a/..", with_headers(FILE, ETag='"a/../../../../x"'), "gives the etag"),
    ("ETag in base64", with_headers(WEIGHTS, ETag='W/"2d-Xk/+a=="'), ""),
    ("moved, ETag", moved(HEAD, ETag=f'"{OUTSIDE}"'), "Hub gives the etag"),
    ("moved, commit", moved(HEAD, X_Repo_Commit=OTHER_SHA), CHANGED),
    ("commit of a file", with_headers(HEAD, X_Repo_Commit=OTHER_SHA), CHANGED),
    *(
        (f"file {name!r}", listed(name), "lists a file")
        for name in (
            "model-../../../x-of-1.safetensors",
            "../model.safetensors",
            "/model-1-of-1.safetensors",
            "model-1\\..\\x-of-1.safetensors",
            f"{OUTSIDE}/model.safetensors",
        )
    ),
    ("other content", changed_body(GET, bytes.swapcase), "is not what its hash"),
    ("longer", changed_body(GET, lambda body: body + b"x"), "should be of size"),
    ("shorter", changed_body(GET, lambda body: body[:-1]), "should be of size"),
    ("empty", changed_body(GET, lambda body: b""), "should be of size"),
    ("hash of another", with_headers(FILE, ETag="0" * 64), "is not what its hash"),
    ("Git's of another", with_headers(FILE, ETag="0" * 40), "is not what its hash"),
    ("linked hash", with_headers(HEAD, X_Linked_Etag="0" * 64), "is not what its hash"),
    ("no hash", with_headers(WEIGHTS, ETag='"5f-abc"'), ""),
    ("linked size", with_headers(HEAD, X_Linked_Size="7"), "should be of size 7"),
    ("huge size", with_headers(HEAD, X_Linked_Size=str(2**60)), "cannot be fetched"),
    ("negative size", with_headers(HEAD, X_Linked_Size="-1"), "should be of size -1"),
    ("size of words", with_headers(HEAD, X_Linked_Size="many"), ""),
    *(
        (f"{place} for {where}", redirected(where, place), message)
        for where in (INFO, GET)
        for place, message in _SCHEMES.items()
    ),
    (
        "file at file:",
        redirected(HEAD, "file:///etc/passwd", ETag="1" * 64),
        "cannot be fetched",
    ),
    ("to nowhere", redirected(INFO, "http://127.0.0.1:1/x"), "cannot be fetched"),
    ("to itself", redirected(INFO, "/api/models/someone/tiny"), "cannot be fetched"),
    ("no address", redirected(INFO, "http://[::1"), "cannot be fetched"),
    ("list elsewhere", redirected(TREE, f"{OTHER}/x"), "holds no weights"),
    ("next elsewhere", pages(TREE, f"{OTHER}/#"), TOKEN_TO),
    ("endless pages", pages(TREE, "/api/models/someone/tiny/tree/x?#"), "requests"),
    ("the same page", pages(TREE, "/api/models/someone/tiny/tree/x"), "requests"),
    ("endless answer", endless(INFO), "bytes without a length"),
    ("endless list", endless(TREE), "bytes without a length"),
    ("endless file", endless(GET), "bytes without a length"),
    ("endless error", endless("HEAD x|GET .*tree", ("X", "y")), "without a length"),
    ("huge file", endless(GET, ("Content-Length", str(2**45))), "a file of 35,184,"),
    ("huge list", endless(TREE, ("Content-Length", str(2**45))), "without a length"),
    ("packed", with_headers(f"{INFO}|{GET}", Content_Encoding="gzip"), "body as gzip"),
    ("cut off", cut_off(GET), "cannot be fetched"),
    ("a page of HTML", answer(INFO, 200, b"<html>"), "cannot be fetched"),
    ("a list", answer(INFO, 200, []), UNEXPECTED),
    ("null", answer(INFO, 200, b"null"), UNEXPECTED),
    ("deep", answer(INFO, 200, b"[" * 10**5), "cannot be fetched"),
    ("no bytes", answer(INFO, 200), "cannot be fetched"),
    ("list of words", answer(TREE, 200, ["x"]), UNEXPECTED),
    ("list of numbers", answer(TREE, 200, [{"type": "file"}]), UNEXPECTED),
    ("teapot", answer(INFO, 418, {}), "418"),
    ("busy", answer(INFO, 503, {}), "503"),
    ("busy file", answer(WEIGHTS, 503, {}), "503"),
    ("too many", answer(INFO, 429, {}), "429"),
    ("too many files", answer(GET, 429, {}), "429"),
    ("wait", answer(INFO, 429, {}, Retry_After="86400"), "to wait 86,400 seconds"),
    ("wait long", answer(GET, 429, {}, Retry_After="9" * 30), "try again then"),
    ("wait, new", answer(INFO, 429, {}, RateLimit='"api";r=0;t=86400'), "86,400"),
    ("wait 1 s", answer(GET, 429, {}, Retry_After="1"), "429"),
]
SLOW_LOADS = [
    ("slow answer", dripping(INFO), "takes more than 0.2 s"),
    ("slow list", dripping(TREE), "takes more than 0.2 s"),
]
# With Xet, whose tokens another address gives.
XET = {"X_Xet_Hash": "a" * 64, "X_Xet_Refresh_Route": f"{OTHER}/xet", "ETag": "b" * 64}
LOADS_BY_XET = [("Xet elsewhere", with_headers(HEAD, **XET), TOKEN_TO)]

BATCH, COMMIT, PREUPLOAD = "POST .*/objects/batch", "POST .*/commit/", "/preupload/"
CREATE = "POST /api/repos/create"


def actions(**hrefs):
    """The addresses of an upload."""

    def change(content):
        for item in content["objects"]:
            links = {name: {"href": href} for name, href in hrefs.items()}
            item["actions"] = {**item.get("actions", {}), **links}

    return changed_json(BATCH, change)


PUSHES = [
    ("verified elsewhere", actions(verify=f"{OTHER}/y"), TOKEN_TO),
    ("a file address", actions(upload="file:///etc/x"), "leads to"),
    ("no address", actions(upload=3), "cannot be written"),
    ("no objects", answer(BATCH, 200, {}), "cannot be written"),
    ("objects of words", answer(BATCH, 200, {"objects": ["x"]}), "cannot be written"),
    ("batch elsewhere", redirected(BATCH, f"{OTHER}/x"), "cannot be written"),
    ("list elsewhere", pages(TREE, f"{OTHER}/#"), TOKEN_TO),
    ("endless pages", pages(TREE, "/api/models/someone/new/tree/x?#"), "requests"),
    ("endless list", endless(TREE), "bytes without a length"),
    ("endless answer", endless(CREATE), "bytes without a length"),
    ("endless commit", endless(COMMIT), "bytes without a length"),
    ("packed", with_headers(CREATE, Content_Encoding="gzip"), "sends a body as gzip"),
    ("created elsewhere", redirected(CREATE, f"{OTHER}/x"), "cannot be written"),
    ("created a list", answer(CREATE, 200, []), "cannot be written"),
    ("created HTML", answer(CREATE, 200, b"<html>"), "cannot be written"),
    ("a list for a commit", answer(COMMIT, 200, []), "cannot be written"),
    ("no commit", answer(COMMIT, 200, {}), "cannot be written"),
    (
        "a path to upload",
        answer(PREUPLOAD, 200, {"files": [{"path": "../x"}]}),
        "cannot",
    ),
    ("no modes", answer(PREUPLOAD, 200, {}), "cannot be written"),
    ("files in the list", listed("../x"), "lists a file '../x'"),
    ("wait", answer(CREATE, 429, {}, Retry_After="86400"), "try again then"),
    ("too many", answer(COMMIT, 429, {}), "429"),
    ("busy", answer(BATCH, 503, {}), "503"),
]
