"""Nearest vectors, duplicates, indexes and ranks, without a model."""

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
from common import change_json, read_json, write_file

from roformer_keras.base.errors import CheckpointError, ConfigurationError, SourceError
from roformer_keras.search import neighbours
from roformer_keras.search.cosines import unit_rows
from roformer_keras.search.index import VectorIndex, build_index, known_source
from roformer_keras.search.neighbours import cluster, paraphrase_mining, semantic_search
from roformer_keras.search.rerank import rerank

TEXTS = [f"第{number}句话" for number in range(300)]


def draws(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def encode(texts, seed=0):
    """Vectors that depend on nothing but the text and a seed."""
    rows = []
    for text in texts:
        digest = hashlib.sha256(f"{seed}{text}".encode()).digest()
        rows.append(draws(8, seed=int.from_bytes(digest[:8], "little")))
    return np.stack(rows)


@pytest.fixture(params=["large blocks", "small blocks", "small blocks of faiss"])
def blocks(request, monkeypatch):
    if "small" in request.param:
        monkeypatch.setattr(neighbours, "_COSINES", 49)
        monkeypatch.setattr(neighbours, "_BLOCK", 7)
        monkeypatch.setattr(neighbours, "_ROWS", 5)
    if "faiss" in request.param:
        pytest.importorskip("faiss")
    else:
        monkeypatch.setattr(neighbours, "is_installed", lambda name: False)


@pytest.fixture
def folder(tmp_path):
    return build_index(tmp_path / "x.index", TEXTS, encode, source="x")


# === Neighbours ===


@pytest.mark.parametrize("queries", [1, 6, 23])
@pytest.mark.parametrize(("texts", "top_k"), [(1, 3), (50, 1), (50, 10), (50, 99)])
def test_neighbours_are_those_of_all_cosines(blocks, queries, texts, top_k, tmp_path):
    corpus, asked = draws(texts, 4), draws(queries, 4, seed=1)
    # Some vectors are equal.
    corpus[texts // 2 :: 3] = corpus[0]
    cosines = unit_rows(asked) @ unit_rows(corpus).T
    expected = np.argsort(-cosines.round(5), axis=1, kind="stable")[:, :top_k]
    np.save(tmp_path / "corpus.npy", corpus)
    for given in (corpus, np.load(tmp_path / "corpus.npy", mmap_mode="r"), [*corpus]):
        found = semantic_search(asked, given, top_k)
        scores = np.take_along_axis(cosines, found.numbers, axis=1)
        np.testing.assert_allclose(found.scores, scores, atol=1e-6)
        best = np.take_along_axis(cosines, expected, axis=1)
        np.testing.assert_allclose(found.scores, best, atol=1e-5)
        assert all(len({*row}) == len(row) for row in found.numbers.tolist())
    one = semantic_search(asked[0], corpus, top_k)
    np.testing.assert_allclose(one.scores, found.scores[0], atol=1e-6)


def test_all_pairs_above_a_threshold_are_mined(blocks):
    vectors = draws(60, 4)
    vectors[50] = vectors[3] * 2
    cosines = np.triu(unit_rows(vectors) @ unit_rows(vectors).T, 1)
    found = paraphrase_mining(vectors, 0.7)
    expected = {*zip(*map(np.ndarray.tolist, np.nonzero(cosines >= 0.7)), strict=True)}
    assert {*zip(found.first.tolist(), found.second.tolist(), strict=True)} == expected
    assert len(found.first) == len(expected) > 20
    assert (np.diff(found.scores) <= 0).all()
    assert (found.first[0], found.second[0]) == (3, 50)
    few = paraphrase_mining(vectors, 0.7, max_pairs=5)
    np.testing.assert_allclose(few.scores, found.scores[:5], atol=1e-6)


def test_groups_are_near_to_their_centre(blocks):
    vectors = np.concatenate([draws(5, 6) * 9 + draws(5, 6, seed=n) for n in range(8)])
    cosines = unit_rows(vectors) @ unit_rows(vectors).T
    groups = cluster(vectors, 0.95)
    rows = np.concatenate(groups)
    assert len(rows) == len({*rows.tolist()}) > 20
    assert [len(group) for group in groups] == sorted(map(len, groups), reverse=True)
    for group in groups:
        assert len(group) >= 2
        assert (cosines[group[0], group] >= 0.95 - 1e-6).all()
    # What is left has no two that belong together.
    left = np.setdiff1d(np.arange(len(vectors)), rows)
    assert (np.triu(cosines[np.ix_(left, left)], 1) < 0.95).all()
    assert sum(map(len, cluster(vectors, 0.95, min_size=1))) == len(vectors)
    assert [len(group) for group in cluster(np.ones((9, 3)), 1.0)] == [9]


@pytest.mark.parametrize("function", [semantic_search, paraphrase_mining, cluster])
@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.ones(3), r"must be of the shape \(texts, dim\), got \(3,\)"),
        (np.full((2, 3), np.nan), "must be finite"),
        (["今天"], "must be vectors of numbers, got list"),
    ],
)
def test_what_is_no_vector_is_refused(function, vectors, message):
    arguments = [np.ones((1, 3))] if function is semantic_search else []
    with pytest.raises(ConfigurationError, match=message):
        function(*arguments, vectors)


def test_vectors_of_another_width_are_refused():
    with pytest.raises(ConfigurationError, match="of one width, got 3 and 4"):
        semantic_search(np.ones((1, 3)), np.ones((2, 4)))


# === Indexes ===


def test_an_index_finds_what_all_cosines_find(folder):
    found = VectorIndex(folder, encode)
    assert (len(found), found.texts, found.source) == (len(TEXTS), TEXTS, "x")
    queries = ["今天", TEXTS[7]]
    cosines = unit_rows(encode(queries)) @ unit_rows(encode(TEXTS)).T
    for hits, row in zip(found.search(queries, 5), cosines, strict=True):
        best = np.argsort(-row, kind="stable")[:5]
        assert [hit.number for hit in hits] == best.tolist()
        assert [hit.text for hit in hits] == [TEXTS[number] for number in best]
        np.testing.assert_allclose([hit.score for hit in hits], row[best], atol=1e-6)
    assert found.search(TEXTS[7], 1)[0].text == TEXTS[7]
    assert found.search([]) == []
    with pytest.raises(ConfigurationError):
        found.search(["今天", ""])


def test_another_model_is_refused(folder):
    with pytest.raises(ConfigurationError, match="was made by 'x', got a model with"):
        VectorIndex(folder, lambda texts: encode(texts, seed=1))
    with pytest.raises(ConfigurationError, match="with vectors of 4 numbers, not 8"):
        VectorIndex(folder, lambda texts: encode(texts)[:, :4])
    with pytest.raises(ConfigurationError, match="a model that encodes texts"):
        VectorIndex(folder, "x")
    # Weights in 8 bits change vectors so much.
    VectorIndex(folder, lambda texts: unit_rows(encode(texts)) + 0.02)


class Model:
    """Vectors of the first characters."""

    def encode(self, texts, *, max_length=8, verbose="auto"):
        assert verbose == 0
        return encode([text[:max_length] for text in texts])


def test_queries_are_cut_where_the_texts_were(tmp_path):
    model, texts = Model(), ["今天天气", "今天下雨", "明天天气"]
    for length, is_cut in ((2, True), (4, False), (None, False)):
        folder = tmp_path / f"{length}.index"
        build_index(folder, texts, model, max_length=length)
        record = read_json(folder / "index.json")
        assert record["max_length"] == length
        best, other, _ = VectorIndex(folder, model).search("今天天气", 3)
        assert best.score == pytest.approx(1, abs=1e-6)
        assert (other.score == pytest.approx(1, abs=1e-6)) == is_cut
    # Indexes that are older say nothing of it.
    content = {name: record[name] for name in ("source", "count", "probes")}
    write_file(folder / "index.json", content)
    assert VectorIndex(folder, model).search("今天天气", 1)[0].number == 0
    with pytest.raises(ConfigurationError, match="max_length must be an integer"):
        build_index(tmp_path / "x", texts, model, max_length=0)


def _of_record(**changes):
    return lambda folder: change_json(folder / "index.json", **changes)


def _array(array):
    return lambda folder: np.save(folder / "vectors.npy", array)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "index.json").unlink(), "there is no .*index.json"),
        (lambda folder: (folder / "vectors.npy").unlink(), "cannot read .*vectors.npy"),
        (lambda folder: (folder / "texts.jsonl").unlink(), "texts.jsonl"),
        (lambda folder: (folder / "vectors.npy").write_bytes(b"x"), "cannot read"),
        (lambda folder: (folder / "index.json").write_text("[]"), "index.json"),
        (_of_record(probes=[[1]]), "index.json is damaged"),
        (_of_record(probes=["今"] * 6), "index.json is damaged"),
        (_of_record(source=5), "index.json is damaged: 'source' must be str"),
        (_of_record(max_length="9"), "index.json: max_length must be an integer"),
        (_array(np.ones((300, 8))), r"must be float32 \(texts, dim\), got float64"),
        (
            _array(np.full((299, 8), 8**-0.5, "float32")),
            "must have 299 rows, as many as there are vectors, got 300",
        ),
        (_array(np.array([{}])), "cannot read .*vectors.npy"),
        (_array(np.ones((300, 8), "float32")), "must hold vectors of length 1"),
    ],
)
def test_a_damaged_index_is_refused(folder, change, message):
    change(folder)
    with pytest.raises((SourceError, CheckpointError, ConfigurationError)) as error:
        VectorIndex(folder, encode)
    assert error.match(message)


def test_an_index_is_not_asked_to_load_what_may_be_anybodys(folder, tmp_path):
    for source in ("", "hf://owner/name", "https://host/x.zip", "no-such-model"):
        _of_record(source=source)(folder)
        with pytest.raises(SourceError, match="give the model with --source"):
            known_source(folder)
    _of_record(source=str(tmp_path))(folder)
    assert known_source(folder) == str(tmp_path)


def test_an_index_appears_whole(tmp_path):
    def broken(texts):
        if TEXTS[299] in texts:
            raise RuntimeError("broken")
        return encode(texts)

    with pytest.raises(RuntimeError):
        build_index(tmp_path / "x.index", TEXTS, broken)
    assert [*tmp_path.iterdir()] == []
    with pytest.raises(ConfigurationError):
        build_index(tmp_path / "x.index", [], encode)
    assert [*tmp_path.iterdir()] == []


# === Ranks ===


class Classifier(SimpleNamespace):
    """Probabilities that are the lengths of texts."""

    text_counts = (1, 2)

    def classify(self, pairs, probabilities, verbose):
        assert probabilities
        lengths = np.array([len(text) for _, text in pairs], "float32")
        return np.stack([1 - lengths / 9, lengths / 9], axis=1)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (Classifier(classes=["否", "是"], num_classes=2), {}),
        (Classifier(classes=["否", "是"], num_classes=2), {"label": "是"}),
        (Classifier(classes=None, num_classes=2), {"label": 1}),
        (
            SimpleNamespace(
                text_counts=(1, 2),
                regress=lambda pairs, verbose: [len(text) for _, text in pairs],
            ),
            {},
        ),
        (
            SimpleNamespace(
                encode=lambda texts, verbose: (
                    np.array(
                        [[1, 0] if text == "问" else [len(text), 9] for text in texts]
                    )
                    / 100
                )
            ),
            {},
        ),
    ],
    ids=["second class", "by name", "by number", "regressor", "vectors"],
)
def test_texts_are_ranked(model, options):
    texts = ["一二三", "一", "一二三四五"]
    found = rerank(model, "问", texts, **options)
    assert [number for number, _ in found] == [2, 0, 1]
    assert rerank(model, "问", texts, top_k=1, **options) == found[:1]
    assert rerank(model, "问", [], **options) == []


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (Classifier(classes=["a", "b", "c"], num_classes=3), {}, "one of a, b, c"),
        (Classifier(classes=["a", "b"], num_classes=2), {"label": "c"}, "one of a, b"),
        (SimpleNamespace(encode=None), {"label": "c"}, "label is for classifiers"),
        (SimpleNamespace(), {}, "a classifier or a regressor of pairs"),
        (
            Classifier(classes=["a", "b"], num_classes=2, multi_label=True),
            {"label": "b"},
            "without multi_label",
        ),
        (
            Classifier(classes=["a", "b"], num_classes=2, text_counts=(1,)),
            {},
            "a regressor of pairs",
        ),
        (Classifier(classes=["a", "b"], num_classes=2), {"top_k": 0}, "top_k"),
    ],
)
def test_what_ranks_no_texts_is_refused(model, options, message):
    with pytest.raises(ConfigurationError, match=message):
        rerank(model, "问", ["一"], **options)
