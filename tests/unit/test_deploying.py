"""The files of docs/deploying.md fit the server, and so does the Dockerfile."""

import configparser
import contextlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import tomllib

import httpx
import pytest
import yaml
from common import ROOT, parser_of

from roformer_keras.server.errors import Refusal
from roformer_keras.server.options import KEY_VARIABLE, ServerOptions

PAGE = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
LIMITS = ServerOptions()


@pytest.fixture(scope="module")
def parser():
    return parser_of("serve")


def block(language):
    """The only block of a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)
    return found


def test_flags_and_variables_are_those_of_the_server(parser):
    flags = {flag for action in parser._actions for flag in action.option_strings}
    # One belongs to `kubectl`.
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE + DOCKERFILE))
    others = {"--from-literal", "--no-cache-dir", "--create-home", "--start-period"}
    # These are `docker`'s, and of the program itself.
    others |= {"--build-arg", "--tags", "--version"}
    assert named - others <= flags
    assert KEY_VARIABLE in PAGE and KEY_VARIABLE in DOCKERFILE
    for line in re.findall(r"roformer-keras serve (.*)", PAGE):
        parser.parse_args(line.split())


def test_the_unit_ends_after_the_server_does():
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str
    unit.read_string(block("ini"))
    assert int(unit["Service"]["TimeoutStopSec"]) > LIMITS.timeout
    assert "api-key" not in unit["Service"]["ExecStart"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_accepts_the_unit(tmp_path):
    # It looks for the program.
    text = block("ini").replace(
        "/opt/roformer-keras/bin/roformer-keras", sys.executable
    )
    path = tmp_path / "roformer-keras.service"
    path.write_text(text, encoding="utf-8")
    words = ["systemd-analyze", "verify", path]
    found = subprocess.run(words, capture_output=True, text=True)
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


def test_proxies_wait_longer_and_keep_connections_for_less_time():
    for kept, waits in (
        (r"keepalive_timeout (\d+)s", r"proxy_read_timeout (\d+)s"),
        (r" keepalive (\d+)s", r"response_header_timeout (\d+)s"),
    ):
        assert int(re.search(kept, PAGE)[1]) < LIMITS.read_timeout
        assert int(re.search(waits, PAGE)[1]) > LIMITS.timeout
    assert LIMITS.max_body == 4 * 2**20
    assert "client_max_body_size 4m" in PAGE and "max_size 4MiB" in PAGE


def test_the_errors_of_nginx_have_the_form_of_the_servers():
    pages = dict(re.findall(r"error_page (\d+) (@\w+);", PAGE))
    answers = re.findall(r"location (@\w+) \{\n\s+return (\d+) '(.*)';\n", PAGE)
    assert pages == {status: name for name, status, _ in answers}
    assert pages.keys() == {"413", "502", "504"}
    assert "default_type application/json;" in PAGE
    for _, status, body in answers:
        content = json.loads(body)
        refusal = Refusal(int(status), content["error"]["message"])
        assert content == refusal.content
    assert "4 MiB" in answers[0][2]


CADDY_BLOCK = re.search(r"^embeddings.example.com \{.*?^\}", PAGE, re.M | re.S)[0]


def test_the_errors_of_caddy_have_the_form_of_the_servers():
    body = re.search(r"respond `(.*)`", CADDY_BLOCK)[1]
    content = json.loads(re.sub(r"\{http\.error\.\w+\}", "", body))
    assert content == Refusal(502, content["error"]["message"]).content


def nginx(program, folder, port, server):
    """The command that starts nginx with the file of the page, without TLS."""
    text = block("nginx").replace("127.0.0.1:8000", server)
    text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
    text = re.sub(r" *ssl_certificate.*\n", "", text)
    paths = "".join(
        f"{name}_temp_path {folder};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = f"events {{}} http {{ access_log off; {paths}\n{text} }}"
    (folder / "conf").write_text(f"daemon off; pid {folder}/pid;\n{text}")
    return [program, "-e", folder / "log", "-p", folder, "-c", folder / "conf"]


def caddy(program, folder, port, server):
    """The command that starts Caddy with the file of the page, without TLS."""
    text = CADDY_BLOCK.replace("127.0.0.1:8000", server)
    text = text.replace("embeddings.example.com", f"http://127.0.0.1:{port}")
    text = f"{{\n admin off\n auto_https off\n}}\n{text}"
    (folder / "conf").write_text(text)
    return [program, "run", "--config", folder / "conf", "--adapter", "caddyfile"]


@pytest.mark.parametrize(
    ("proxy", "cases"), [(nginx, [(10, 502), (5 * 2**20, 413)]), (caddy, [(10, 502)])]
)
def test_a_proxy_answers_json_where_the_server_does_not(proxy, cases, tmp_path):
    program = shutil.which(proxy.__name__)
    if program is None:
        pytest.skip(f"needs {proxy.__name__}")
    port, nobody = free_port(), f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        proxy(program, tmp_path, port, nobody),
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    try:
        for size, status in cases:
            answer = post(port, b"x" * size)
            assert answer.status_code == status
            assert answer.headers["Content-Type"] == "application/json"
            assert answer.json()["error"]["message"]
    finally:
        process.terminate()
        process.wait()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def post(port, body):
    """The answer of a server that may still be starting."""
    for _ in range(100):
        with contextlib.suppress(httpx.ConnectError):
            return httpx.post(f"http://127.0.0.1:{port}/v1/embeddings", content=body)
        time.sleep(0.1)
    raise AssertionError("the proxy has not started")


def test_the_page_names_one_version_in_one_place():
    found = re.findall(r"(?<![\d.])\d+\.\d+\.\d+(?![\d.])", PAGE + DOCKERFILE)
    assert found == re.findall(r"export VERSION=(\S+)\n", PAGE)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    fallback = settings["tool"]["setuptools_scm"]["fallback_version"]
    assert found == [fallback.partition(".dev")[0]]
    # What is built is what is pushed and what runs.
    image = "registry.example.com/roformer-keras"
    assert PAGE.count(f"{image}:$VERSION") == 2 and f"{image}:${{VERSION}}" in PAGE
    assert "--build-arg VERSION=$VERSION" in PAGE and "ARG VERSION" in DOCKERFILE


def test_the_objects_of_kubernetes_fit_each_other(parser):
    deployment, service = yaml.safe_load_all(block("yaml"))
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > LIMITS.timeout
    (container,) = pod["spec"]["containers"]
    assert container["args"][0] == "serve"
    options = parser.parse_args(container["args"][1:])
    (port,) = container["ports"]
    assert (options.host, options.port) == ("0.0.0.0", port["containerPort"])
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    for probe, path in (
        ("startupProbe", "/health"),
        ("readinessProbe", "/health"),
        ("livenessProbe", "/"),
    ):
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
    assert container["env"][0]["name"] == KEY_VARIABLE


@pytest.mark.parametrize(
    ("words", "port"),
    [
        (["serve", "--port", "9001"], "9001"),
        (["serve", "--port=9002", "--quiet"], "9002"),
        (["serve", "--host", "0.0.0.0"], "8000"),
    ],
)
def test_the_health_check_of_the_image_asks_the_port_of_the_command(
    words, port, monkeypatch
):
    check = re.search(r'HEALTHCHECK .*?python -c "(.*?)"\n', DOCKERFILE, re.S)[1]
    code = re.sub(r"\\\n *", "", check)
    line, asked = "\0".join(["python", "roformer-keras", *words, ""]), []
    monkeypatch.setattr("urllib.request.urlopen", asked.append)
    exec(code, {"open": lambda path: io.StringIO(line)})
    assert asked == [f"http://127.0.0.1:{port}/"]


def test_the_image_starts_with_flags_of_the_server(parser):
    words = json.loads(re.search(r"^CMD (\[.*\])$", DOCKERFILE, re.M)[1])
    assert words[0] == "serve"
    parser.parse_args(words[1:])
