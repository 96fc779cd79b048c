"""Servers at `HF_ENDPOINT` that lie: what is written, sent and said."""

import re
import types
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import pytest
from hostile.hub import (
    LOADS,
    LOADS_BY_XET,
    OTHER,
    PUSHES,
    SLOW_LOADS,
    WEIGHTS,
    redirected,
)
from hub_server import OWNER, TOKEN, files_of, used_hub
from huggingface_folders import FOLDER
from web_server import serving, whole

from roformer_keras.errors import DownloadError, OutputError, SourceError
from roformer_keras.hub import guard, huggingface

constants = pytest.importorskip("huggingface_hub.constants")
FILES = files_of(FOLDER / "encoder")
NAME = f"{OWNER}/tiny"
# Earlier ones ask for other pages, keep parts of files, and say it in other words.
IS_NEW = int(version("huggingface_hub").partition(".")[0]) >= 2
# A few answers are long, some requests are many, and one of them is an old call.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Use 'content="),
]


@pytest.fixture
def waits(monkeypatch):
    """The seconds that huggingface_hub has waited, which take no time."""
    waits = []
    fake = types.SimpleNamespace(sleep=waits.append, time=lambda: 0.0)
    for module in ("file_download", "utils._http"):
        monkeypatch.setattr(f"huggingface_hub.{module}.time", fake)
    return waits


@pytest.fixture
def server(tmp_path, monkeypatch, waits):
    """A Hub with one model, and `other`, which notes who asks it."""
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr(guard, "_MAX_REQUESTS", 200)
    with used_hub(monkeypatch, cache) as hub, serving(whole(b"{}")) as other:
        hub.other, hub.outside, hub.asked = other.url, tmp_path / "evil", other.requests
        yield hub


def run(lie, server, call, kind, message):
    """What is wrong with a call while the server lies, or None."""
    server.repositories.clear()
    server.repositories[NAME] = dict(FILES)
    server.lie = lie
    try:
        call()
        said = ""
    except (kind, SourceError) as error:
        said = str(error)
        if "\n" in said or len(said) > 500:
            return f"{type(error).__name__}: {said}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    is_said = message in said if message else not said
    if not IS_NEW:
        return None
    return None if is_said else f"said {said or 'nothing'}"


def outside(server, tmp_path):
    """What is not in the cache, or was sent to others with the token."""
    paths = [path for path in tmp_path.iterdir() if path.name != "cache"]
    told = [headers for headers in server.asked if TOKEN in str(headers)]
    return paths + told


def unmet(cases, server, tmp_path, call, kind):
    """The rows of a table that end in another way than they say."""
    wrong = []
    for name, lie, message in cases:
        problem = run(lie, server, lambda name=name: call(name), kind, message)
        if problem := problem or outside(server, tmp_path):
            wrong.append(f"{name}: {problem}, not {message!r}")
    return wrong


def fetch_anew(tmp_path, monkeypatch):
    """A function that fetches the model into a new cache."""
    count = iter(range(10**6))

    def call(name):
        cache = tmp_path / "cache" / str(next(count)) / "a" / "b" / "c"
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        before = set((tmp_path / "cache").rglob("evil*"))
        try:
            folder = huggingface.fetch(f"hf://{NAME}")
            assert folder.is_relative_to(cache), folder
            assert files_of(folder) == FILES
        finally:
            assert set((tmp_path / "cache").rglob("evil*")) == before
            parts = [*cache.rglob("*.incomplete"), *cache.rglob("*.tmp")]
            assert parts == [] or not IS_NEW

    return call


def test_sources_of_a_hub_that_lies(server, tmp_path, monkeypatch, waits):
    call = fetch_anew(tmp_path, monkeypatch)
    assert (wrong := unmet(LOADS, server, tmp_path, call, DownloadError)) == [], (
        "\n".join(wrong)
    )
    assert max(waits, default=0) <= 120
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    assert (
        wrong := unmet(LOADS_BY_XET, server, tmp_path, call, DownloadError)
    ) == [], "\n".join(wrong)


def test_answers_that_drip(server, tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "_MAX_SECONDS", 0.2)
    call = fetch_anew(tmp_path, monkeypatch)
    wrong = unmet(SLOW_LOADS, server, tmp_path, call, DownloadError)
    assert wrong == [], "\n".join(wrong)


def test_a_file_may_be_on_another_server_that_gets_no_token(server, tmp_path):
    headers = {"X_Linked_Size": str(len(FILES["model.safetensors"]))}
    headers |= {"X_Repo_Commit": "0123456789" * 4, "ETag": '"5f-abc"'}
    with serving(whole(FILES["model.safetensors"])) as other:
        server.other = other.url
        lie = redirected(WEIGHTS, f"{OTHER}/model.safetensors", **headers)
        call = lambda: huggingface.fetch(f"hf://{NAME}")  # noqa: E731
        assert run(lie, server, call, DownloadError, "") is None
        assert other.requests
        assert not any("Authorization" in headers for headers in other.requests)


def test_uploads_to_a_hub_that_lies(server, tmp_path, waits):
    folder = FOLDER / "encoder"

    def call(name):
        huggingface.upload(folder, f"{OWNER}/new")

    assert (wrong := unmet(PUSHES, server, tmp_path, call, OutputError)) == [], (
        "\n".join(wrong)
    )
    assert max(waits, default=0) <= 120
    assert server.commits == []
    assert run(None, server, lambda: call(""), OutputError, "") is None
    assert len(server.commits) == 1


def test_wrong_files_do_not_stay_in_the_cache(server):
    """What was fetched with a wrong hash is fetched again, and is then right."""
    cases = {name: (lie, message) for name, lie, message in LOADS}
    lie, message = cases["other content"]
    call = lambda: huggingface.fetch(f"hf://{NAME}")  # noqa: E731
    assert run(lie, server, call, DownloadError, message) is None
    assert run(None, server, call, DownloadError, "") is None
    assert files_of(huggingface.fetch(f"hf://{NAME}")) == FILES


def test_models_that_are_fetched_at_the_same_time(server, tmp_path):
    """Each has its own commit, and files of the same names."""
    commits = {f"{OWNER}/m{number}": f"{number}" * 40 for number in range(6)}

    def answer(handler):
        name = next(name for name in commits if f"{name}/" in f"{handler.path}/")
        send = handler.send

        def send_own(status, content, headers=None):
            if isinstance(content, dict) and "sha" in content:
                content["sha"] = commits[name]
            more = {"X-Repo-Commit": commits[name]}
            send(status, content, {**(headers or {}), **more})

        handler.send = send_own
        return False

    server.lie = answer
    for name in commits:
        other = FILES["model.safetensors"] + name.encode()
        server.repositories[name] = {**FILES, "model.safetensors": other}
    with ThreadPoolExecutor(6) as pool:
        folders = list(
            pool.map(lambda name: huggingface.fetch(f"hf://{name}"), commits)
        )
    for name, folder in zip(commits, folders, strict=True):
        assert files_of(folder) == server.repositories[name]


@pytest.mark.parametrize(
    ("address", "has_token", "message"),
    [
        ("https://mirror.example/x", True, ""),
        ("https://mirror.example:443/x", True, ""),
        ("https://huggingface.co/x", True, ""),
        ("https://cdn.example/x", False, ""),
        ("https://cdn.example/x", True, "token to be sent to cdn.example"),
        ("https://mirror.example:8443/x", True, "token to be sent to mirror.example:8"),
        ("https://mirror.example.evil/x", True, "to be sent to mirror.example.evil"),
        ("https://mirror.example@evil/x", True, "sent to mirror.example@evil"),
        ("http://mirror.example/x", False, "no address of https"),
        ("http://huggingface.co/x", True, "no address of https"),
    ],
)
def test_requests_of_an_encrypted_hub(address, has_token, message):
    checks = guard.HubGuard("https://mirror.example", "a/b", DownloadError, "x")
    headers = {"authorization": "Bearer x"} if has_token else {}
    request = types.SimpleNamespace(
        url=address, method="GET", headers=headers, extensions={}
    )
    if message:
        with pytest.raises(DownloadError, match=re.escape(message)):
            checks.check_request(request)
        return
    checks.check_request(request)
    assert headers["Accept-Encoding"] == "identity"
    assert request.extensions["timeout"]["read"] == 120


def test_revisions_are_no_paths():
    for revision in ("../x", "a/../../x", "/etc/x", ".."):
        assert huggingface._NAME.fullmatch(f"a/b@{revision}") is None
        assert re.fullmatch(r"[\w./-]+", revision)
    assert huggingface._NAME.fullmatch("ab/b@refs/pr/1")["revision"] == "refs/pr/1"
