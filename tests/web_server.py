"""A web server for downloads, which behaves, misbehaves, or ends half-way."""

import random
import threading
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO

NAME = "chinese_roformer-char_L-6_H-384_A-6"


def make_zip(seed=1, size=900_000, method=zipfile.ZIP_DEFLATED, **more):
    """The bytes of a zip that looks like a released checkpoint."""
    members = {
        "bert_config.json": b"{}",
        "vocab.txt": b"[PAD]\n",
        "bert_model.ckpt.index": b"index",
        "bert_model.ckpt.data-00000-of-00001": random.Random(seed).randbytes(size),
        **more,
    }
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(f"{NAME}/{name}", data)
    return buffer.getvalue()


class Server(ThreadingHTTPServer):
    """Answers the n-th request with `answers[n]`, and all later ones with the last."""

    daemon_threads = True

    def __init__(self, *answers):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers
        self.requests = []
        self.release = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """Clients that disconnect are part of the tests."""


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


def whole(body, etag='"1"', stop=None, ranges=True, **more):
    """A file server with ranges and validators, which may stop after `stop` bytes."""

    def answer(handler):
        headers = {"Content-Type": "application/zip", **more}
        if etag:
            headers["ETag"] = etag
        start, status = 0, 200
        asked = handler.headers.get("Range")
        is_same = handler.headers.get("If-Range") in (etag, more.get("Last-Modified"))
        if ranges and asked and is_same:
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
