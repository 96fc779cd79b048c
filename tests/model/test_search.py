"""The commands, methods and engines of search, with models."""

import json

import numpy as np
import pytest
from common import CHARACTER, SIM, write_lines

from roformer_keras import (
    RoFormerSentenceEncoder,
    RoFormerSim,
    RoFormerTextClassifier,
    search,
)
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.cli import main
from roformer_keras.export import ServedEncoder, export_model
from roformer_keras.server.models import ServedModel

pytestmark = pytest.mark.slow
TEXTS = ["今天天气不错", "学而时习之，不亦说乎？", "床前明月光", "他在北京工作"] * 8
TEXTS = [f"{text}{number}" for number, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    file = write_lines(folder / "a.txt", TEXTS)
    command = ["index", str(file), "-o", str(folder / "a.index"), "--quiet"]
    assert main([*command, "--source", str(SIM)]) == 0
    return folder


@pytest.fixture(scope="module")
def model():
    return RoFormerSim.from_preset(SIM)


def test_a_command_finds_what_all_cosines_find(folder, model, capsys):
    queries = ["天气真好", "他在哪里"]
    file = write_lines(folder / "queries.txt", queries)
    index = str(folder / "a.index")
    assert main(["search", index, str(file), "--top-k", "3", "--quiet"]) == 0
    lines = list(map(json.loads, capsys.readouterr().out.splitlines()))
    assert [line["query"] for line in lines] == queries
    cosines = model.encode(queries, verbose=0) @ model.encode(TEXTS, verbose=0).T
    for line, row in zip(lines, cosines, strict=True):
        best = np.argsort(-row, kind="stable")[:3]
        assert [one["row"] for one in line["results"]] == best.tolist()
        assert [one["text"] for one in line["results"]] == [TEXTS[n] for n in best]
        scores = [one["score"] for one in line["results"]]
        np.testing.assert_allclose(scores, row[best], atol=2e-6)
    found = search.VectorIndex(index, model).search(queries, 3)
    assert [[hit.number for hit in hits] for hits in found] == [
        [one["row"] for one in line["results"]] for line in lines
    ]


@pytest.mark.parametrize("is_tuned", [False, True])
def test_queries_are_cut_as_the_texts_of_the_index_were(is_tuned, tmp_path, capsys):
    source, model = SIM, RoFormerSim.from_preset(SIM)
    if is_tuned:
        source = tmp_path / "encoder"
        RoFormerSentenceEncoder.from_preset(CHARACTER).save_to_preset(source)
        model = RoFormerSentenceEncoder.from_preset(source)
    texts = [text * 6 for text in TEXTS[:8]]
    file = write_lines(tmp_path / "a.txt", texts)
    index = str(tmp_path / "a.index")
    words = ["index", str(file), "-o", index, "--quiet", "--source", str(source)]
    assert main([*words, "--max-length", "24"]) == 0
    capsys.readouterr()
    vectors = model.encode(texts, max_length=24, verbose=0)
    words = ["search", index, "--text", texts[0], "--top-k", "8", "--quiet"]
    # Also shorter than the texts by which a model is known.
    for flags, length in (
        *(([], 24), (["--max-length", "40"], 40)),
        (["--max-length", "6"], 6),
    ):
        assert main([*words, *flags]) == 0
        (line,) = map(json.loads, capsys.readouterr().out.splitlines())
        scores = {one["row"]: one["score"] for one in line["results"]}
        cosines = vectors @ model.encode(texts[0], max_length=length, verbose=0)
        found = [scores[row] for row in range(len(texts))]
        np.testing.assert_allclose(found, cosines, atol=1e-5)
        assert (found[0] > 0.999) is not flags
    hit = search.VectorIndex(index, model).search(texts[0], 1)[0]
    assert hit.score == pytest.approx(1, abs=1e-5)
    served = ServedModel(source)
    served.open_index(index)
    (hits,) = served.answer(served.verbs["search"], [(texts[0],)])
    assert hits[0]["score"] == pytest.approx(1, abs=1e-5)


def test_one_text_is_not_taken_for_many_letters(tmp_path, model):
    for call in (
        lambda: search.build_index(tmp_path / "x", "今天天气", model),
        lambda: model.rerank("今天", "天气不错"),
    ):
        with pytest.raises(ConfigurationError, match="must be a list of str, got one"):
            call()
    assert not (tmp_path / "x").exists()


def test_another_model_than_that_of_the_index_is_refused(folder, capsys):
    words = ["search", str(folder / "a.index"), "--text", "今天", "--quiet"]
    assert main([*words, "--source", str(CHARACTER)]) == 2
    assert "was made by" in capsys.readouterr().err


def test_an_index_that_was_interrupted_is_resumed(folder, monkeypatch, capsys):
    from roformer_keras.jobs.output import ResumableOutput
    from roformer_keras.verbs.embed import Embed

    monkeypatch.setattr(Embed, "window", 10)
    append, written = ResumableOutput.append, []

    def interrupted(output, piece, inputs):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(inputs)
        append(output, piece, inputs)

    monkeypatch.setattr(ResumableOutput, "append", interrupted)
    words = ["index", str(folder / "a.txt"), "-o", str(folder / "b.index")]
    words += ["--source", str(SIM)]
    assert main(words) == 130
    assert not (folder / "b.index").exists()
    assert main(["search", str(folder / "b.index"), "--text", "今天"]) == 2
    monkeypatch.setattr(ResumableOutput, "append", append)
    assert main(words) == 0
    assert "resuming after 20 of 32" in capsys.readouterr().err
    one, other = (
        np.load(folder / name / "vectors.npy") for name in ("a.index", "b.index")
    )
    np.testing.assert_allclose(one, other, atol=1e-6)
    assert sorted(path.name for path in folder.glob("b.index*")) == ["b.index"]
    assert main(words) == 4


def test_an_index_answers_until_its_replacement_is_whole(tmp_path, monkeypatch):
    from roformer_keras.jobs.output import ResumableOutput

    words = ["index", str(tmp_path / "a.txt"), "-o", str(tmp_path / "a.index")]
    words += ["--source", str(SIM), "--quiet"]
    for texts, code in ((TEXTS[:9], 0), (TEXTS[9:], 130)):
        write_lines(tmp_path / "a.txt", texts)
        assert main([*words, "--overwrite"]) == code
        monkeypatch.setattr(ResumableOutput, "complete", interrupt)
    asked = ["search", str(tmp_path / "a.index"), "--text", TEXTS[0], "--quiet"]
    assert main(asked) == 0
    monkeypatch.undo()
    assert main([*words, "--overwrite"]) == 0
    lines = (tmp_path / "a.index" / "texts.jsonl").read_text(encoding="utf-8")
    assert len(lines.splitlines()) == len(TEXTS[9:])


def interrupt(*arguments):
    raise KeyboardInterrupt


@pytest.mark.parametrize("int8", [False, pytest.param(True, marks=pytest.mark.weekly)])
def test_an_export_searches_the_index_of_its_model(folder, model, int8):
    texts = {"calibration_texts": TEXTS} if int8 else {}
    export_model(model, folder / f"export{int8}", "openvino", int8=int8, **texts)
    served = ServedEncoder(folder / f"export{int8}")
    found = search.VectorIndex(folder / "a.index", served).search("天气真好", 3)
    expected = search.VectorIndex(folder / "a.index", model).search("天气真好", 3)
    assert found[0].number == expected[0].number


def test_pairs_are_ranked_by_a_classifier_and_by_vectors(folder, model, capsys):
    texts = ["天气真好", "学习了又时常温习", "他在北京"]
    ranks = model.rerank("今天天气不错", texts, verbose=0)
    cosines = model.similarity(["今天天气不错"] * 3, texts, verbose=0)
    assert [number for number, _ in ranks] == np.argsort(-cosines).tolist()
    classifier = RoFormerTextClassifier.from_preset(CHARACTER, classes=["否", "是"])
    pairs = [("今天", text) for text in texts]
    classifier.fit(pairs, ["是", "否", "是"], verbose=0)
    expected = classifier.classify(pairs, probabilities=True, verbose=0)[:, 1]
    ranks = classifier.rerank("今天", texts)
    assert [number for number, _ in ranks] == np.argsort(-expected).tolist()
    classifier.save_to_preset(folder / "pairs")
    file = write_lines(folder / "texts.txt", texts)
    words = ["rerank", str(file), "--query", "今天", "--quiet"]
    assert main([*words, "--source", str(folder / "pairs")]) == 0
    lines = list(map(json.loads, capsys.readouterr().out.splitlines()))
    assert [line["query"] for line in lines] == ["今天"] * 3
    np.testing.assert_allclose([one["score"] for one in lines], expected, atol=1e-5)
    rows = write_lines(folder / "pairs.tsv", [f"今天\t{text}" for text in texts])
    words = ["rerank", str(rows), "--source", str(folder / "pairs"), "--label", "否"]
    assert main([*words, "--quiet"]) == 0
    lines = list(map(json.loads, capsys.readouterr().out.splitlines()))
    scores = [1 - one["score"] for one in lines]
    np.testing.assert_allclose(scores, expected, atol=1e-5)
