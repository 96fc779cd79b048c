"""Servers of `download`, whose answers are no checkpoint, and wrong names of it."""

import gzip
import io
import tarfile

from web_server import NAME, make_zip, status, whole

from hostile.archives import packed

ZIP = make_zip(size=9000)
HALF = len(ZIP) // 2
BUNDLE = {
    f"{NAME}/bert_config.json": b"{}",
    f"{NAME}/bert_model.ckpt.index": b"index",
    f"{NAME}/bert_model.ckpt.data-00000-of-00001": b"data",
}


def redirected(place):
    return status(302, Location=place)


def archived():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz"):
        pass
    return buffer.getvalue()


def head_of(headers, body=b""):
    return lambda handler: handler.send(200, headers, body)


# What the server answers, and the message.
ANSWERS = [
    *(
        (status(code), f"the server answered {code}")
        for code in (400, 401, 402, 403, 404, 405, 410, 451, 501, 505)
    ),
    *(
        (redirected(place), "the server answered 302")
        for place in (
            "file:///etc/passwd",
            "ftp://127.0.0.1:1/x",
            "gopher://127.0.0.1/",
            "data:text/plain,x",
        )
    ),
    (redirected(f"{NAME}.zip"), "would lead to an infinite loop"),
    (redirected("http://[::1"), "is not an address: Invalid IPv6 URL"),
    (redirected(""), "would lead to an infinite loop"),
    (whole(b""), "is empty"),
    (whole(b"\0"), "is not a checkpoint"),
    (whole(b"404 Not Found"), "is not a checkpoint"),
    (whole(b'{"error": "quota"}'), "is not a checkpoint"),
    (whole(b"<!DOCTYPE html>"), "is a web page"),
    (whole(b"\n  <HTML>"), "is a web page"),
    (whole(b"<?xml version='1.0'?><Error/>"), "is a web page"),
    (whole(b"x", **{"Content-Type": "text/html"}), "this is a web page, not a zip"),
    (whole(gzip.compress(ZIP)), "is a gzip archive"),
    (whole(archived()), "is a gzip archive"),
    (whole(b"Rar!\x1a\x07"), "is a rar archive"),
    (whole(b"7z\xbc\xaf\x27\x1c"), "is a 7z archive"),
    (whole(b"\xfd7zXZ\x00"), "is a xz archive"),
    (whole(b"BZh9"), "is a bzip2 archive"),
    (whole(b"\x89HDF\r\n\x1a\n"), "is not a checkpoint"),
    (whole(ZIP[:HALF]), "is a damaged or truncated zip"),
    (whole(ZIP[HALF:]), "has no header where"),
    (whole(ZIP[:-1]), "is a damaged or truncated zip"),
    (whole(ZIP[1:]), "has no header where"),
    (whole(ZIP[:HALF] + b"\0" + ZIP[HALF + 1 :]), "is corrupt"),
    (whole(packed({})), "it holds nothing"),
    (whole(packed({"readme": b"hi"})), "no checkpoint in"),
    (whole(packed({**BUNDLE, "../evil": b""})), "points outside the archive"),
    (whole(packed({**BUNDLE, "/etc/evil": b""})), "has an absolute path"),
    (whole(packed({**BUNDLE, "a\\..\\b": b""})), "backslash"),
    (whole(packed({**BUNDLE, "x.h5": b"\x89HDF\r\n\x1a\n"})), "holds 2 checkpoints"),
    (whole(packed({"x.zip": ZIP})), "it holds x.zip"),
    (whole(packed({f"{n}/": b"" for n in range(10_001)})), "10,001 members"),
]
# Words after `download`, and the message.
NAMES = [
    ("", "the following arguments are required: NAME"),
    ("''", "is not in the catalogue"),
    ("x", "is not in the catalogue"),
    ("../x", "is not in the catalogue"),
    ("/etc/passwd", "is not in the catalogue"),
    (f"{NAME}.zip.zip", "is not in the catalogue"),
    (f"{NAME}/../x", "is not in the catalogue"),
    (NAME.upper(), "is not in the catalogue"),
    ("x" * 5000, "is not in the catalogue"),
    ("http://127.0.0.1/x", "is not in the catalogue"),
    ("roformer-char", "comes with this package: use it by that name"),
]
