"""`hf://owner/name`, from a server that answers as the Hugging Face Hub does."""

import json
import subprocess
import textwrap

import numpy as np
import pytest
from common import CHARACTER, SIM, V2, transformers_python
from hub_server import OWNER, TOKEN, environment_of, files_of, hub
from huggingface_folders import FOLDER
from sources import assert_same, tensors_of

from roformer_keras import RoFormerBackbone

PYTHON = transformers_python()
pytestmark = pytest.mark.skipif(PYTHON is None, reason="needs huggingface_hub")
NEW = f"hf://{OWNER}/new"


def roformer_keras(*arguments, url, cache, **environment):
    return subprocess.run(
        [PYTHON, "-m", "roformer_keras", *arguments],
        env={**environment_of(url, cache), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_model_is_fetched_once_and_then_read_offline(tmp_path):
    with hub({"someone/tiny": files_of(FOLDER / "masked-lm")}) as server:
        options = {"url": server.url, "cache": tmp_path}
        done = roformer_keras("inspect", "hf://someone/tiny", "--json", **options)
        assert done.returncode == 0, done.stderr
        content = json.loads(done.stdout)
        assert content["format"] == "huggingface"
        assert content["model"] == "RoFormerMaskedLM"
        assert content["vocabulary_size"] == 145
        fetched = [line for line in server.requests if line.startswith("GET /someone")]
        assert len(fetched) == len(list((FOLDER / "masked-lm").iterdir()))
    # The server is gone.
    done = roformer_keras("inspect", "hf://someone/tiny", **options, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert "RoFormerMaskedLM" in done.stdout


def test_only_one_format_of_the_weights_is_fetched(tmp_path):
    with hub({"someone/tiny": files_of(FOLDER / "causal-lm")}) as server:
        done = roformer_keras(
            *("convert", "hf://someone/tiny@main", str(tmp_path / "ours"), "--quiet"),
            url=server.url,
            cache=tmp_path / "cache",
        )
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "ours" / "model.weights.h5").is_file()
        assert any("pytorch_model.bin" in line for line in server.requests)


def test_what_cannot_be_fetched_is_said(tmp_path):
    with hub({"someone/tiny": {"config.json": b"{}"}}) as server:
        options = {"url": server.url, "cache": tmp_path / "cache"}
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


# === Uploads ===


@pytest.mark.parametrize(
    ("source", "format", "lfs_from"),
    [
        (CHARACTER, "huggingface", 10_000),
        (SIM, "sentence-transformers", 10_000),
        (SIM, "sentence-transformers", 2**40),
        # Transformers has no RoFormerV2.
        (V2, "preset", 10_000),
    ],
)
def test_an_uploaded_model_is_read_back(source, format, lfs_from, tmp_path):
    with hub({}, lfs_from) as server:
        options = {"url": server.url, "cache": tmp_path / "cache", "HF_TOKEN": TOKEN}
        command = ["convert", str(source), NEW, "--format", format, "--private"]
        done = roformer_keras(*command, "--quiet", **options)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{server.url}/{OWNER}/new/commit/")
        (created,) = server.created
        assert created.get("visibility") == "private" or created["private"] is True
        (commit,) = server.commits
        assert commit[0]["value"]["summary"] == "Upload a RoFormer"
        keys = {change["key"] for change in commit[1:]}
        assert keys == ({"file", "lfsFile"} if lfs_from < 2**40 else {"file"})
        card = server.repositories[f"{OWNER}/new"]["README.md"].decode()
        assert card.startswith("---\nlanguage: zh\n")
        assert f"hf://{OWNER}/new" in card
        back = tmp_path / "back.safetensors"
        done = roformer_keras("convert", NEW, str(back), "--quiet", **options)
        assert done.returncode == 0, done.stderr
    assert_same(tensors_of(back), tensors_of(source))


def test_a_new_commit_replaces_the_model_and_nothing_else(tmp_path):
    mine = ("README.md", "notes.txt", "0_Other/model.bin", "assets/logo.png")
    mine = dict.fromkeys((*mine, "assets/tokenizer/notes.txt", "1_Pooling/x"), b"mine")
    old = ("modules.json", "1_Pooling/config.json", "2_Normalize/README.md")
    old = dict.fromkeys((*old, "task.json", "assets/tokenizer/vocabulary.txt"), b"{}")
    shard = {"model-00001-of-00002.safetensors": b"x", "pytorch_model.bin": b"x"}
    with hub({f"{OWNER}/new": {**mine, **old, **shard}}) as server:
        options = {"url": server.url, "cache": tmp_path / "cache", "HF_TOKEN": TOKEN}
        done = roformer_keras("convert", str(CHARACTER), NEW, "--quiet", **options)
        assert done.returncode == 0, done.stderr
        files = server.repositories[f"{OWNER}/new"]
        assert {name: files[name] for name in mine} == mine
        assert files.keys() & {*old, *shard} == set()
        assert {"model.safetensors", "config.json"} < files.keys()


def test_what_the_hub_refuses_is_said_in_plain_words(tmp_path):
    with hub({}) as server:
        options = {"url": server.url, "cache": tmp_path / "cache"}
        commit = "/commit/"
        for target, token, failures, message in (
            (NEW, "hf_wrong", [], "needs a valid token: run `hf auth login`"),
            ("hf://other/new", TOKEN, [], "the token may not write there"),
            (NEW, TOKEN, [("POST", commit, 409)], "run the same again"),
            (NEW, TOKEN, [("POST", commit, 400)], "hf://someone/new cannot be written"),
            (NEW, TOKEN, [("POST", "/repos/create", 409)], "it has no 'url'"),
            ("hf://new", TOKEN, [], "must be owner/name, got 'hf://new'"),
            (f"{NEW}@main", TOKEN, [], "must be owner/name"),
        ):
            server.failures = failures
            arguments = ("convert", str(CHARACTER), target, "--quiet")
            done = roformer_keras(*arguments, **options, HF_TOKEN=token)
            assert (done.returncode, "Traceback" in done.stderr) == (4, False)
            assert message in done.stderr, (target, done.stderr)
        assert server.commits == []
    done = roformer_keras("convert", str(CHARACTER), NEW, **options, HF_TOKEN=TOKEN)
    assert done.returncode == 4
    assert "cannot be written" in done.stderr


def test_a_failed_upload_is_tried_again_and_then_resumed(tmp_path):
    with hub({}) as server:
        options = {"url": server.url, "cache": tmp_path / "cache", "HF_TOKEN": TOKEN}
        arguments = ("convert", str(CHARACTER), NEW, "--quiet")
        server.failures = [("PUT", "/lfs/", 503), ("POST", "/commit/", 409)]
        done = roformer_keras(*arguments, **options)
        assert done.returncode == 4, done.stderr
        sent = [line for line in server.requests if line.startswith("PUT ")]
        assert len(sent) == len(set(sent)) + 1
        # What has arrived is not sent again.
        done = roformer_keras(*arguments, **options)
        assert done.returncode == 0, done.stderr
        assert [line for line in server.requests if line.startswith("PUT ")] == sent
        assert len(server.commits) == 1


def test_a_model_in_memory_is_uploaded(tmp_path):
    code = f"""
    import roformer_keras
    source = {str(CHARACTER)!r}
    model = roformer_keras.RoFormerTextClassifier.from_preset(source, num_classes=2)
    options = {{"format": "preset", "token": {TOKEN!r}, "commit_message": "Mine"}}
    roformer_keras.push_to_hub(model, "{OWNER}/new", **options)
    back = roformer_keras.load_model("{NEW}")
    assert type(back) is type(model)
    for ours, theirs in zip(model.weights, back.weights, strict=True):
        assert (ours.numpy() == theirs.numpy()).all()
    """
    with hub({}) as server:
        environment = environment_of(server.url, tmp_path)
        subprocess.run(
            [PYTHON, "-c", textwrap.dedent(code)], env=environment, check=True
        )
        assert server.commits[0][0]["value"]["summary"] == "Mine"


def test_a_task_on_the_hub_answers_and_is_measured(tmp_path):
    code = f"""
    import roformer_keras
    source = {str(CHARACTER)!r}
    options = {{"classes": ["a", "b"]}}
    model = roformer_keras.RoFormerTextClassifier.from_preset(source, **options)
    model.save_to_preset({str(tmp_path / "preset")!r})
    """
    options = {"url": "http://127.0.0.1:9", "cache": tmp_path / "cache"}
    environment = environment_of(options["url"], options["cache"])
    subprocess.run([PYTHON, "-c", textwrap.dedent(code)], env=environment, check=True)
    (tmp_path / "preset" / "baselines.json").write_text("{}")
    rows = tmp_path / "rows.tsv"
    rows.write_text("好\ta\n坏\tb\n", encoding="utf-8")
    with hub({f"{OWNER}/new": files_of(tmp_path / "preset")}) as server:
        options["url"] = server.url
        answers = [
            roformer_keras("predict", source, "--text", "好", "--quiet", **options)
            for source in (NEW, str(tmp_path / "preset"))
        ]
        assert answers[0].returncode == 0, answers[0].stderr
        assert answers[0].stdout == answers[1].stdout
        assert any("baselines.json" in line for line in server.requests)
        done = roformer_keras("evaluate", NEW, str(rows), "--json", **options)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["rows"] == 2


def test_an_adapter_on_the_hub_is_loaded(tmp_path):
    model = RoFormerBackbone.from_preset(CHARACTER)
    model.enable_lora(2)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.1)
    model.save_lora(tmp_path / "adapter")
    np.save(
        tmp_path / "weights.npy", np.concatenate(list(map(np.ravel, model.weights)))
    )
    code = f"""
    import numpy as np
    import roformer_keras
    from roformer_keras.errors import DownloadError, SourceError
    model = roformer_keras.RoFormerBackbone.from_preset({str(CHARACTER)!r})
    for name, message in (
        ("model", "none of adapter_model.safetensors, adapter_model.bin"),
        ("none", "hf://{OWNER}/none cannot be fetched"),
    ):
        try:
            model.load_lora(f"hf://{OWNER}/{{name}}")
        except (DownloadError, SourceError) as error:
            assert message in str(error), error
        else:
            raise AssertionError(name)
    model.load_lora("{NEW}")
    found = np.concatenate(list(map(np.ravel, model.weights)))
    assert (found == np.load({str(tmp_path / "weights.npy")!r})).all()
    """
    files = files_of(tmp_path / "adapter")
    models = {"model": files_of(FOLDER / "encoder"), "new": {**files, "other": b"x"}}
    with hub(
        {f"{OWNER}/{name}": content for name, content in models.items()}
    ) as server:
        environment = environment_of(server.url, tmp_path / "cache")
        code = textwrap.dedent(code)
        subprocess.run([PYTHON, "-c", code], env=environment, check=True)
        assert not any(line.endswith(("/other", ".bin")) for line in server.requests)
