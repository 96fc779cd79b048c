"""`hf://owner/name`, from a server that answers as the Hugging Face Hub does."""

import json
import os
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from common import ROOT, transformers_python
from huggingface_folders import FOLDER

PYTHON = transformers_python()
pytestmark = pytest.mark.skipif(PYTHON is None, reason="needs huggingface_hub")
SHA = "0123456789" * 4


@contextmanager
def hub(folder):
    """Serves one repository, `someone/tiny`, of the files in a folder."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(with_body=False)

        def do_GET(self):
            self.answer(with_body=True)

        def answer(self, with_body):
            requests.append(f"{self.command} {self.path}")
            path = self.path.split("?")[0]
            headers, body = {}, None
            if path.startswith("/api/models/someone/tiny/revision/"):
                names = [{"rfilename": file.name} for file in sorted(folder.iterdir())]
                facts = {"id": "someone/tiny", "modelId": "someone/tiny", "sha": SHA}
                body = json.dumps({**facts, "siblings": names}).encode()
            elif path.startswith("/api/models/someone/tiny/tree/"):
                files = [
                    {
                        "type": "file",
                        "oid": SHA,
                        "path": file.name,
                        "size": file.stat().st_size,
                    }
                    for file in sorted(folder.iterdir())
                ]
                body = json.dumps(files).encode()
            elif path.startswith(f"/someone/tiny/resolve/{SHA}/"):
                body = (folder / path.rsplit("/", 1)[1]).read_bytes()
                headers = {"ETag": f'"{len(body)}-{body[:4].hex()}"'}
                headers["X-Repo-Commit"] = SHA
            if body is None:
                headers = {"X-Error-Code": "RepoNotFound"}
            self.send_response(404 if body is None else 200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if with_body and body:
                self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


def roformer_keras(*arguments, url, cache, **environment):
    return subprocess.run(
        [PYTHON, "-m", "roformer_keras", *arguments],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_ENDPOINT": url,
            "HF_HOME": str(cache),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_model_is_fetched_once_and_then_read_offline(tmp_path):
    with hub(FOLDER / "masked-lm") as (url, requests):
        options = {"url": url, "cache": tmp_path}
        done = roformer_keras("inspect", "hf://someone/tiny", "--json", **options)
        assert done.returncode == 0, done.stderr
        content = json.loads(done.stdout)
        assert content["format"] == "huggingface"
        assert content["model"] == "RoFormerMaskedLM"
        assert content["vocabulary_size"] == 145
        fetched = [line for line in requests if line.startswith("GET /someone")]
        assert len(fetched) == len(list((FOLDER / "masked-lm").iterdir()))
    # The server is gone.
    done = roformer_keras("inspect", "hf://someone/tiny", **options, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert "RoFormerMaskedLM" in done.stdout


def test_only_one_format_of_the_weights_is_fetched(tmp_path):
    with hub(FOLDER / "causal-lm") as (url, requests):
        done = roformer_keras(
            *("convert", "hf://someone/tiny@main", str(tmp_path / "ours"), "--quiet"),
            url=url,
            cache=tmp_path / "cache",
        )
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "ours" / "model.weights.h5").is_file()
        assert any("pytorch_model.bin" in line for line in requests)


def test_what_cannot_be_fetched_is_said(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    with hub(tmp_path / "empty") as (url, _):
        options = {"url": url, "cache": tmp_path / "cache"}
        for source, code, message in (
            ("hf://someone/tiny", 2, "holds no weights: none of model.safetensors"),
            ("hf://someone/other", 5, "hf://someone/other cannot be fetched: "),
            ("hf://one", 2, "must be hf://owner/name"),
            ("hf://a/b/c", 2, "must be hf://owner/name"),
            ("hf://../x", 2, "must be hf://owner/name"),
        ):
            done = roformer_keras("inspect", source, **options)
            assert (done.returncode, "Traceback" in done.stderr) == (code, False)
            assert message in done.stderr, done.stderr
