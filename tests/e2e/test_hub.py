"""`hf://owner/name`, from a server that answers as the Hugging Face Hub does."""

import json

import pytest
from common import CHARACTER, SIM, V2, output_of, read_files
from hub_server import OWNER, TOKEN, environment_of, used_hub
from huggingface_folders import FOLDER
from sources import assert_same, assert_same_weights, tensors_of

import roformer_keras
from roformer_keras import RoFormerTextClassifier
from roformer_keras.base.errors import OutputError

constants = pytest.importorskip("huggingface_hub.constants")
NEW = f"hf://{OWNER}/new"
# Of the library's own requests.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=")
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def server(tmp_path, monkeypatch):
    with used_hub(monkeypatch, tmp_path / "cache") as server:
        yield server


def test_a_model_is_fetched_once_and_then_read_offline(server, cli, tmp_path):
    server.repositories["someone/tiny"] = read_files(FOLDER / "masked-lm")
    content = json.loads(cli("inspect", "hf://someone/tiny", "--json"))
    assert content["format"] == "huggingface"
    assert content["model"] == "RoFormerMaskedLM"
    assert content["vocabulary_size"] == 145
    fetched = [line for line in server.requests if line.startswith("GET /someone")]
    assert len(fetched) == len(list((FOLDER / "masked-lm").iterdir()))
    # No server is at this address.
    variables = environment_of(NOWHERE, tmp_path / "cache") | {"HF_HUB_OFFLINE": "1"}
    words = ("roformer_keras", "inspect", "hf://someone/tiny")
    assert "RoFormerMaskedLM" in output_of("-m", *words, **variables)


def test_only_one_format_of_the_weights_is_fetched(server, cli, tmp_path):
    server.repositories["someone/tiny"] = read_files(FOLDER / "causal-lm")
    cli("convert", "hf://someone/tiny@main", tmp_path / "ours", "--quiet")
    assert (tmp_path / "ours" / "model.weights.h5").is_file()
    assert any("pytorch_model.bin" in line for line in server.requests)


def test_what_cannot_be_fetched_is_said(server, refused):
    server.repositories["someone/tiny"] = {"config.json": b"{}"}
    for source, code, message in (
        ("hf://someone/tiny", 2, "holds no weights: none of model.safetensors"),
        ("hf://someone/other", 5, "hf://someone/other cannot be fetched: "),
        ("hf://one", 2, "must be hf://owner/name"),
        ("hf://a/b/c", 2, "must be hf://owner/name"),
        ("hf://../x", 2, "must be hf://owner/name"),
    ):
        assert message in refused("inspect", source, code=code)


# === Uploads ===


@pytest.mark.parametrize(
    ("source", "format", "lfs_from"),
    [
        (CHARACTER, "huggingface", 10_000),
        (SIM, "sentence-transformers", 2**40),
        # Transformers has no RoFormerV2.
        (V2, "preset", 10_000),
    ],
)
def test_an_uploaded_model_is_read_back(
    source, format, lfs_from, server, cli, tmp_path
):
    server.lfs_from = lfs_from
    command = ["convert", source, NEW, "--format", format, "--private", "--quiet"]
    address = cli(*command)
    assert address.startswith(f"{server.url}/{OWNER}/new/commit/")
    (created,) = server.created
    assert created.get("visibility") == "private" or created["private"] is True
    (commit,) = server.commits
    assert commit[0]["value"]["summary"] == "Upload a RoFormer"
    keys = {change["key"] for change in commit[1:]}
    assert keys == ({"file", "lfsFile"} if lfs_from < 2**40 else {"file"})
    card = server.repositories[f"{OWNER}/new"]["README.md"].decode()
    assert card.startswith("---\nlanguage: zh\n")
    assert f"hf://{OWNER}/new" in card
    cli("convert", NEW, tmp_path / "back.safetensors", "--quiet")
    assert_same(tensors_of(tmp_path / "back.safetensors"), tensors_of(source))


def test_a_new_commit_replaces_the_model_and_nothing_else(server, cli):
    mine = ("README.md", "notes.txt", "0_Other/model.bin", "assets/logo.png")
    mine = dict.fromkeys((*mine, "assets/tokenizer/notes.txt", "1_Pooling/x"), b"mine")
    old = ("modules.json", "1_Pooling/config.json", "2_Normalize/README.md")
    old = dict.fromkeys((*old, "task.json", "assets/tokenizer/vocabulary.txt"), b"{}")
    shard = {"model-00001-of-00002.safetensors": b"x", "pytorch_model.bin": b"x"}
    server.repositories[f"{OWNER}/new"] = files = {**mine, **old, **shard}
    cli("convert", CHARACTER, NEW, "--quiet")
    assert {name: files[name] for name in mine} == mine
    assert files.keys() & {*old, *shard} == set()
    assert {"model.safetensors", "config.json"} < files.keys()


def test_what_the_hub_refuses_is_said_in_plain_words(server, refused, monkeypatch):
    commit = "/commit/"
    for target, token, failures, message in (
        (NEW, "hf_wrong", [], "needs a valid token: run `hf auth login`"),
        ("hf://other/new", TOKEN, [], "the token may not write there"),
        (NEW, TOKEN, [("POST", commit, 409)], "run the same again"),
        (NEW, TOKEN, [("POST", commit, 400)], "hf://someone/new cannot be written"),
        ("hf://new", TOKEN, [], "must be owner/name, got 'hf://new'"),
        (f"{NEW}@main", TOKEN, [], "must be owner/name"),
    ):
        server.failures = failures
        monkeypatch.setenv("HF_TOKEN", token)
        assert message in refused("convert", CHARACTER, target, "--quiet", code=4), (
            target
        )
    assert server.commits == []
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    with pytest.raises(OutputError, match="cannot be written"):
        roformer_keras.push_to_hub(CHARACTER, f"{OWNER}/new")


def test_a_failed_upload_is_tried_again_and_then_resumed(server, cli, refused):
    words = ("convert", CHARACTER, NEW, "--quiet")
    server.failures = [("PUT", "/lfs/", 503), ("POST", "/commit/", 409)]
    refused(*words, code=4)
    sent = [line for line in server.requests if line.startswith("PUT ")]
    assert len(sent) == len(set(sent)) + 1
    # What has arrived is not sent again.
    cli(*words)
    assert [line for line in server.requests if line.startswith("PUT ")] == sent
    assert len(server.commits) == 1


def test_a_task_in_memory_is_uploaded_answers_and_is_measured(server, cli, tmp_path):
    model = RoFormerTextClassifier.from_preset(CHARACTER, classes=["a", "b"])
    options = {"format": "preset", "token": TOKEN, "commit_message": "Mine"}
    roformer_keras.push_to_hub(model, f"{OWNER}/new", **options)
    assert server.commits[0][0]["value"]["summary"] == "Mine"
    back = roformer_keras.load_model(NEW)
    assert type(back) is type(model)
    assert_same_weights(back, model)
    preset = tmp_path / "preset"
    model.save_to_preset(preset)
    (preset / "baselines.json").write_text("{}")
    rows = tmp_path / "rows.tsv"
    rows.write_text("好\ta\n坏\tb\n", encoding="utf-8")
    server.repositories[f"{OWNER}/task"] = read_files(preset)
    there = f"hf://{OWNER}/task"
    answers = [
        cli("predict", source, "--text", "好", "--quiet") for source in (there, preset)
    ]
    assert answers[0] == answers[1]
    assert any("baselines.json" in line for line in server.requests)
    assert json.loads(cli("evaluate", there, rows, "--json"))["rows"] == 2
