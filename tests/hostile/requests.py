"""Requests to the server that it refuses: bytes, status, and words of its answer.

`TO_SIM` are for a RoFormer-Sim without a key, `TO_GPT` for a RoFormer-GPT with the key
"secret". Both take at most 200 texts that wait, and 1 MiB of a body.
"""

import gzip
import json

JSON_TYPE = b"Content-Type: application/json\r\n"


def head(path, method="GET", headers=b"", host=b"localhost"):
    return (
        f"{method} {path} HTTP/1.1\r\n".encode() + b"Host: " + host + b"\r\n"
        b"Connection: close\r\n" + headers + b"\r\n"
    )


def body_of(body):
    if isinstance(body, bytes):
        return body
    text = body if isinstance(body, str) else json.dumps(body)
    return text.encode("utf-8", "surrogatepass")


def post(path, body, headers=JSON_TYPE):
    content = body_of(body)
    length = b"Content-Length: %d\r\n" % len(content)
    return head(path, "POST", headers + length) + content


def embed(body, headers=JSON_TYPE):
    return post("/v1/embeddings", body, headers)


def write(key=b"secret", **body):
    headers = JSON_TYPE + b"Authorization: Bearer " + key + b"\r\n"
    return post("/v1/completions", {"prompt": "今天", **body}, headers)


def key(sent):
    return head("/v1/models", headers=b"Authorization: " + sent + b"\r\n")


def chunked(content):
    headers = JSON_TYPE + b"Transfer-Encoding: chunked\r\n"
    return head("/similarity", "POST", headers) + content


NO_ROUTE, OBJECT = "no such route", "the body must be a JSON object"
NOT_HTTP = "Invalid HTTP request"
LONG = "长" * 600
TO_SIM = [
    # No HTTP.
    (b"\x00\x01\x02\r\n\r\n", 400, NOT_HTTP),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 40, 400, NOT_HTTP),
    (b"hello\r\n\r\n", 400, NOT_HTTP),
    (b"GET\r\n\r\n", 400, NOT_HTTP),
    (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", 400, NOT_HTTP),
    (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400, NOT_HTTP),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\0c\r\n\r\n", 400, NOT_HTTP),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\n : b\r\n\r\n", 400, NOT_HTTP),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, NOT_HTTP),
    ("GET /天气 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), 400, NOT_HTTP),
    (b"FETCH / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, NOT_HTTP),
    # Lengths of bodies.
    (head("/similarity", "POST", b"Content-Length: -1\r\n"), 400, NOT_HTTP),
    (head("/similarity", "POST", b"Content-Length: x\r\n"), 400, NOT_HTTP),
    (head("/similarity", "POST", b"Content-Length: 9" + b"9" * 30 + b"\r\n"), 400, ""),
    (head("/similarity", "POST", b"Content-Length: 1048577\r\n"), 413, "at most"),
    (head("/health", "GET", b"Content-Length: 99999999\r\n"), 413, "1048576 bytes"),
    (head("/similarity", "POST", b"Content-Length: 3\r\n" * 2), 400, NOT_HTTP),
    (
        head(
            "/similarity",
            "POST",
            b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        ),
        400,
        NOT_HTTP,
    ),
    (chunked(b"zz\r\n{}\r\n0\r\n\r\n"), 400, NOT_HTTP),
    (chunked(b"-1\r\n{}\r\n0\r\n\r\n"), 400, NOT_HTTP),
    (chunked(b"100001\r\n" + b" " * 0x100001 + b"\r\n0\r\n\r\n"), 413, "1048576"),
    (chunked(b"10000\r\n" + b" " * 0x10000 + b"\r\n0\r\n\r\n"), 422, OBJECT),
    (embed(b" " * 2**20), 422, OBJECT),
    (embed(b""), 422, OBJECT),
    # Paths and methods.
    (head("/../../etc/passwd"), 404, NO_ROUTE),
    (head("/%2e%2e/%2e%2e/etc/passwd"), 404, NO_ROUTE),
    (head("//etc/passwd"), 404, NO_ROUTE),
    (head("/page.css/../../app.py"), 404, NO_ROUTE),
    (head("/page.txt"), 404, NO_ROUTE),
    (head("/docs"), 404, NO_ROUTE),
    (head("/ready"), 404, "ask /health"),
    (head("/%00"), 404, NO_ROUTE),
    (head("/page.html%00.css"), 404, NO_ROUTE),
    (head("/%ff%fe"), 404, NO_ROUTE),
    (head("/" + "a" * 10_000), 404, NO_ROUTE),
    (head("/v1/models/../../x"), 404, "not '../../x'"),
    (head("/v1/models/" + "a" * 9000), 404, "this server has the model"),
    (head("/v1/completions", "POST", b"Content-Length: 0\r\n"), 404, NO_ROUTE),
    (head("/predict", "POST", b"Content-Length: 0\r\n"), 404, NO_ROUTE),
    (head("/similarity"), 405, "does not take this method"),
    (head("/similarity", "DELETE"), 405, "does not take this method"),
    (head("/health", "TRACE"), 405, "does not take this method"),
    (head("/health", "PUT", b"Content-Length: 0\r\n"), 405, "does not take"),
    (head("/health", host=b"evil.example"), 421, "by the name localhost"),
    (head("/health", host=b"localhost.evil.example"), 421, "by the name localhost"),
    (head("/health", host=b""), 421, "by the name localhost"),
    (head("/health", host=b"[::1"), 421, "by the name localhost"),
    (b"GET /health HTTP/1.1\r\n\r\n", 421, "by the name localhost"),
    # No JSON, or JSON of other things.
    (embed("{"), 422, OBJECT),
    (embed("null"), 422, OBJECT),
    (embed("3"), 422, OBJECT),
    (embed('"text"'), 422, OBJECT),
    (embed("[]"), 422, OBJECT),
    (embed("{}"), 422, "input"),
    (
        embed("input=text", b"Content-Type: application/x-www-form-urlencoded\r\n"),
        422,
        "",
    ),
    (embed({"input": "天气"}, b"Content-Type: text/plain\r\n"), 422, OBJECT),
    (embed(b'{"input": "\xff"}'), 422, "invalid unicode code point"),
    (embed(b"\xff\xfe{\x00}\x00"), 422, OBJECT),
    (embed(gzip.compress(b'{"input": "a"}')), 422, OBJECT),
    (embed('{"input": "\\ud800"}'), 422, "hex escape at line 1"),
    (embed('{"input": "a"} {"input": "b"}'), 422, OBJECT),
    (embed("[" * 100_000), 422, "recursion limit"),
    (embed('{"input": ' + "[" * 900 + "]" * 900 + "}"), 422, "recursion limit"),
    (embed('{"input": ' + "9" * 5000 + "}"), 422, "number out of range"),
    (embed('{"input": NaN}'), 422, "input"),
    # Wrong types and values.
    (embed({"input": 3}), 422, "input"),
    (embed({"input": None}), 422, "input"),
    (embed({"input": True}), 422, "input"),
    (embed({"input": {"text": "天气"}}), 422, "input"),
    (embed({"input": [[1, 2]]}), 422, "input"),
    (embed({"input": ["天气", None]}), 422, "input"),
    (embed({"input": [1] * 300_000}), 422, "input"),
    (embed({"input": []}), 400, "1 to 200 texts, got 0"),
    (embed({"input": ["长"] * 201}), 400, "got 201"),
    (embed({"input": ["长"] * 2049}), 422, "input"),
    (embed({"input": ""}), 400, "a text must be a str that is not empty"),
    (embed({"input": " \u3000\n"}), 400, "a text must be a str that is not empty"),
    (embed({"input": "长" * 10_001}), 400, "10000 characters, got 10001"),
    (embed({"input": "a", "model": "gpt-4"}), 404, "not 'gpt-4'"),
    (embed({"input": "a", "model": 4}), 422, "model"),
    (embed({"input": "a", "dimensions": 33}), 400, "from 1 to 32"),
    (embed({"input": "a", "dimensions": "many"}), 422, "dimensions"),
    (embed({"input": "a", "encoding_format": "hex"}), 422, "encoding_format"),
    (embed({"input": "a", "other": 3}), 422, "other"),
    (embed({"input": "a", "__class__": 3}), 422, "__class__"),
    (embed({"input": "a", "k" * 500_000: 1}), 422, "kkk"),
    (post("/similarity", {"pairs": [["a"]]}), 422, "pairs"),
    (post("/similarity", {"pairs": [["a", "b", "c"]]}), 422, "pairs"),
    (
        post("/similarity", {"pairs": [["a", ""]]}),
        400,
        "a text must be a str that is not empty",
    ),
    (post("/similarity", {"pairs": [[]] * 200_000}), 422, "pairs"),
    (post("/similarity", {"pairs": {}}), 422, "pairs"),
    (post("/paraphrase", {"texts": [LONG]}), 400, "512 tokens"),
    (post("/paraphrase", {"texts": ["a"], "n": 0}), 422, "n: "),
    (
        post("/paraphrase", {"texts": ["a"], "n": 1000, "max_tokens": 100}),
        400,
        "lower n or max_tokens",
    ),
    (post("/paraphrase", {"texts": ["a"], "n": 100_000}), 422, "n: "),
    (post("/paraphrase", {"texts": ["a"], "max_tokens": 4000}), 400, "at most 1024"),
    (post("/paraphrase", {"texts": ["a"], "top_p": 2}), 422, "top_p"),
    (post("/paraphrase", '{"texts": ["a"], "temperature": Infinity}'), 422, "temp"),
    (post("/paraphrase", {"texts": ["a"], "seed": 2**64}), 422, "seed"),
    (
        post("/search", {"queries": [""], "top_k": 3}),
        400,
        "a text must be a str that is not empty",
    ),
    (post("/search", {"queries": ["月"], "top_k": 10**9}), 422, "top_k: "),
]
TO_GPT = [
    (head("/v1/models"), 401, "Bearer KEY"),
    (head("/metrics"), 401, "Bearer KEY"),
    (head("/openapi.json"), 401, "Bearer KEY"),
    (head("/nothing"), 401, "Bearer KEY"),
    (key(b"Bearer"), 401, "Bearer KEY"),
    (key(b"Bearer Secret"), 401, "Bearer KEY"),
    (key(b"Bearer secret1"), 401, "Bearer KEY"),
    (key(b"bearer secret, Bearer secret"), 401, "Bearer KEY"),
    (key(b"Basic c2VjcmV0"), 401, "Bearer KEY"),
    (key(b"Bearer \xff\xfe"), 401, "Bearer KEY"),
    (key(b"Bearer " + b"x" * 50_000), 401, "Bearer KEY"),
    (write(key=b"wrong"), 401, "Bearer KEY"),
    (write(logprobs=3), 422, "logprobs"),
    (write(n=2, stream=True), 400, "n above 1"),
    (write(temperature=0, top_k=3), 400, "top_k counts only with"),
    (write(temperature=0, top_k=3, stream=True), 400, "top_k counts only with"),
    (write(stream_options={"include_usage": True}), 400, "needs stream=true"),
    (write(n=0), 422, "n: "),
    (write(n=10**9), 422, "n: "),
    (write(prompt=["a", "b"], stream=True), 400, "one prompt can be streamed"),
    (write(prompt=[1, 2, 3]), 422, "prompt"),
    (write(prompt=LONG), 400, "512 tokens"),
    (write(prompt=LONG, stream=True), 400, "512 tokens"),
    (write(stop="不是一个"), 400, "stop token must be in the vocabulary"),
    (write(stop=["。"] * 17), 422, "stop"),
    (write(max_tokens=0), 422, "max_tokens"),
    (write(max_tokens=2000), 400, "at most 1024"),
    (write(max_tokens=1024, n=128), 400, "lower n or max_tokens"),
    (write(max_tokens="many"), 422, "max_tokens"),
    (write(temperature=-1), 422, "temperature"),
    (write(seed=-1), 422, "seed"),
    (write(echo=True), 422, "echo"),
    (write(suffix="好"), 422, "suffix"),
]
