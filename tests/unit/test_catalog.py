"""The facts of the twelve zips, and what a source's name resolves to."""

import json
import math
from pathlib import Path

import pytest
from common import SHARED, read_json

from roformer_keras.base.config import RoFormerConfig
from roformer_keras.base.errors import SourceError
from roformer_keras.hub.catalog import (
    CATALOG,
    checkpoints_folder,
    download_url,
    find,
    resolve,
)

BASE = "chinese_roformer-sim-char-ft_L-12_H-768_A-12"
DATA = SHARED / "data"


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    monkeypatch.delenv("ROFORMER_KERAS_CHECKPOINTS", raising=False)
    monkeypatch.delenv("ROFORMER_KERAS_BASE_URL", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_the_names_are_those_released():
    assert [entry.name for entry in CATALOG] == [
        "chinese_roformer_L-12_H-768_A-12",
        "chinese_roformer_L-6_H-384_A-6",
        "chinese_roformer-char_L-12_H-768_A-12",
        "chinese_roformer-char_L-6_H-384_A-6",
        "chinese_roformer-gpt-char_L-12_H-768_A-12",
        "chinese_roformer-sim-char_L-12_H-768_A-12",
        "chinese_roformer-sim-char_L-6_H-384_A-6",
        "chinese_roformer-sim-char-ft_L-12_H-768_A-12",
        "chinese_roformer-sim-char-ft_L-6_H-384_A-6",
        "chinese_roformer-v2-char_L-6_H-384_A-6",
        "chinese_roformer-v2-char_L-12_H-768_A-12",
        "chinese_roformer-v2-char_L-24_H-1024_A-16",
    ]


def test_facts_make_a_configuration():
    for entry in CATALOG:
        config = RoFormerConfig(
            vocabulary_size=entry.vocabulary_size,
            num_layers=entry.num_layers,
            num_heads=entry.num_heads,
            hidden_dim=entry.hidden_dim,
            intermediate_dim=entry.intermediate_dim,
            model_type=entry.model_type,
        )
        assert config.intermediate_dim == 4 * config.hidden_dim
        assert (entry.vocabulary_size == 12_000) == (entry.level == "character")
        assert (entry.level == "character") == ("-char" in entry.name)
        assert entry.url.endswith(f"/nlp/models/zhuiyi/{entry.name}.zip")
        assert json.loads(json.dumps(entry.to_dict()))["url"] == entry.url


def weight_shapes(entry):
    """Every variable of the checkpoint, written out as BERT names them."""
    hidden, inner = entry.hidden_dim, entry.intermediate_dim
    biased = entry.model_type == "roformer"
    norm = [(hidden,), (hidden,)] if biased else []

    def dense(rows, columns):
        return [(rows, columns)] + ([(columns,)] if biased else [])

    shapes = [(entry.vocabulary_size, hidden), (2, hidden), *norm]
    for _ in range(entry.num_layers):
        for _ in ("query", "key", "value", "output"):
            shapes += dense(hidden, hidden)
        shapes += [*dense(hidden, inner), *dense(inner, hidden), *norm, *norm]
    if biased:
        shapes += [*dense(hidden, hidden), *norm, (entry.vocabulary_size,)]
    if entry.model_class == "RoFormerSim":
        shapes += dense(hidden, hidden)
    return shapes


def test_parameters_are_counted_from_the_shapes():
    for entry in CATALOG:
        count = sum(map(math.prod, weight_shapes(entry)))
        assert entry.parameters == count, entry.name
        assert entry.download_megabytes == round(count * 4 / 1e6), entry.name


def test_configurations_that_were_seen_agree():
    folder = DATA / "configs"
    if not DATA.parent.exists():
        pytest.skip("no shared folder next to the checkout")
    for path in folder.glob("*.json"):
        entry = find(path.stem)
        seen = RoFormerConfig.from_bert_config(read_json(path), entry.model_type)
        again = RoFormerConfig.from_bert_config(seen.to_bert_config(), entry.model_type)
        assert again == seen
        assert seen.activation == {"roformer": "gelu"}.get(entry.model_type, "relu")
        assert (seen.num_segments, seen.initializer_range) == (2, 0.02)
        for field in ("vocabulary_size", "num_layers", "hidden_dim", "num_heads"):
            assert getattr(seen, field) == getattr(entry, field)
        assert seen.intermediate_dim == entry.intermediate_dim


def test_find():
    assert find(BASE).name == BASE
    assert find(f"{BASE}.zip").name == BASE
    with pytest.raises(SourceError, match=f"did you mean .*{BASE}"):
        find("chinese-roformer-sim-char-ft_L-12_H-768_A-12")
    with pytest.raises(SourceError, match="is not in the catalogue; `roformer-keras"):
        find("?")


def test_places(monkeypatch):
    assert download_url(BASE) == find(BASE).url
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert checkpoints_folder() == Path("/cache/roformer-keras")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert checkpoints_folder() == Path.home() / ".cache" / "roformer-keras"
    monkeypatch.setenv("ROFORMER_KERAS_BASE_URL", "http://mirror/a/")
    monkeypatch.setenv("ROFORMER_KERAS_CHECKPOINTS", "/data/zips")
    assert download_url(BASE) == f"http://mirror/a/{BASE}.zip"
    assert download_url(BASE, "http://b") == f"http://b/{BASE}.zip"
    assert checkpoints_folder() == Path("/data/zips")


def test_resolve_returns_what_exists_as_it_is(tmp_path):
    (tmp_path / BASE).mkdir()
    assert resolve(BASE) == Path(BASE)
    assert resolve(tmp_path) == tmp_path
    (tmp_path / "best_model.weights.index").touch()
    assert resolve("best_model.weights") == Path("best_model.weights")
    # Whether a longer path exists is for open_source to say.
    assert resolve("no/such/file") == Path("no/such/file")


def test_resolve_takes_the_folder_of_a_training_for_its_preset(tmp_path):
    preset = tmp_path / "preset"
    preset.mkdir()
    assert resolve(tmp_path) == tmp_path
    (preset / "config.json").touch()
    assert resolve(tmp_path) == resolve(preset) == preset
    # A preset in the folder itself comes before one in a folder below.
    (tmp_path / "config.json").touch()
    assert resolve(tmp_path) == tmp_path


def test_resolve_finds_a_download(tmp_path, monkeypatch):
    archive = tmp_path / "mine" / f"{BASE}.zip"
    archive.parent.mkdir()
    archive.touch()
    assert resolve(BASE, checkpoints=archive.parent) == archive
    monkeypatch.setenv("ROFORMER_KERAS_CHECKPOINTS", str(archive.parent))
    assert resolve(BASE) == archive
    assert resolve(f"{BASE}.zip") == archive


def test_downloads_of_earlier_versions_are_found(tmp_path):
    former = tmp_path / "checkpoints" / f"{BASE}.zip"
    former.parent.mkdir()
    former.touch()
    assert resolve(BASE) == former.relative_to(tmp_path)
    # One in the cache comes first.
    archive = checkpoints_folder() / f"{BASE}.zip"
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert resolve(BASE) == archive


def test_resolve_says_what_to_fetch_and_where_to_put_it(tmp_path):
    with pytest.raises(SourceError) as caught:
        resolve(BASE)
    text = str(caught.value)
    assert f"`roformer-keras download {BASE}`" in text
    assert find(BASE).url in text
    assert text.endswith(str(tmp_path / "cache" / "roformer-keras" / f"{BASE}.zip"))
    with pytest.raises(SourceError, match=r"no file or folder rofrmer here, and 'rof"):
        resolve("rofrmer")
