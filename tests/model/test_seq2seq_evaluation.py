"""The evaluation of an encoder-decoder: BLEU, the loss of tokens, the command."""

import json
import sys

import keras
import numpy as np
import pytest
from common import CHARACTER, json_lines, run_main

from roformer_keras import RoFormerSeq2Seq, corpus_bleu, evaluate_seq2seq
from roformer_keras.errors import ConfigurationError, SourceError
from roformer_keras.training.bleu import tokenize_of
from roformer_keras.training.evaluate import (
    Seq2SeqEvaluation,
    cross_entropy,
    read_pairs,
)

pytestmark = pytest.mark.slow

sacrebleu = pytest.importorskip("sacrebleu")

SOURCES = ["天地玄", "黄宇宙洪荒", "日月", "天天天天", "玄黄", "a", "荒日月天地"]
TARGETS = ["玄地天", "荒洪宙宇黄", "月日", "天天天天", "黄", "天", "地天月日荒。"]
PAIRS = [pair for pair in zip(SOURCES, TARGETS, strict=True) if pair[0] != "a"]
BEAMS = {"num_beams": 3, "length_penalty": 0.6, "max_new_tokens": 7}
FLAGS = ["--num-beams", 3, "--length-penalty", 0.6, "--max-new-tokens", 7]


@pytest.fixture(scope="module")
def preset(seq2seq_preset):
    return seq2seq_preset


@pytest.fixture(scope="module")
def model(seq2seq):
    return seq2seq


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "test.tsv"
    rows = zip(SOURCES, TARGETS, strict=True)
    path.write_text("".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def expected(model):
    """The written texts, with sacrebleu's score and signature."""
    sources, references = zip(*PAIRS, strict=True)
    hypotheses = model.generate(list(sources), method="beam", **BEAMS, batch_size=64)
    metric = sacrebleu.metrics.BLEU(tokenize="zh")
    score = metric.corpus_score(hypotheses, [list(references)]).score
    assert 0 < score < 100
    return hypotheses, score, str(metric.get_signature())


def loss_of(model, pairs):
    """Row by row, without padding, in float64."""
    tokenizer, total, count = model.tokenizer, 0.0, 0
    for source, target in pairs:
        ids = tokenizer.encode(target)[0]
        logits = model(
            {
                "encoder_token_ids": np.array([tokenizer.encode(source)[0]], "int32"),
                "decoder_token_ids": np.array([ids[:-1]], "int32"),
            },
            training=False,
        )
        logits = keras.ops.convert_to_numpy(logits)[0].astype("float64")
        shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        total -= np.log(shares[np.arange(len(ids) - 1), ids[1:]]).sum()
        count += len(ids) - 1
    return total / count


# === BLEU ===


def test_bleu_is_that_of_sacrebleu():
    hypotheses = ["the cat sat on a mat.", "A dog, it runs in the rain today."]
    references = ["the cat sat on the mat.", "The dog runs in the rain today."]
    for tokenize in ("13a", "char", "zh", "none", "intl"):
        bleu = corpus_bleu(iter(hypotheses), iter(references), tokenize)
        plain = sacrebleu.corpus_bleu(hypotheses, [references], tokenize=tokenize)
        assert 0 < bleu.score < 100
        assert bleu.score == plain.score
        assert bleu.tokenize == tokenize
        assert f"|tok:{tokenize}|" in bleu.signature
        assert bleu.signature.endswith(f"version:{sacrebleu.__version__}")
    assert corpus_bleu(hypotheses, references).tokenize == "13a"
    with pytest.raises(ConfigurationError, match="got 1 hypotheses and 2 references"):
        corpus_bleu(hypotheses[:1], references)
    with pytest.raises(ConfigurationError, match="at least one, got 0"):
        corpus_bleu([], [])


def test_how_texts_are_cut_goes_by_their_letters():
    for references, tokenize in (
        (["天地玄黄"], "zh"),
        (["天地玄黄, 1234567890 ......"], "zh"),
        (["天地玄黄 RoFormer", "宇宙洪荒"], "13a"),
        (["ein Hund, 天"], "13a"),
        (["ひらがな と 日本"], "13a"),
        (["𠀀𠀁"], "zh"),
        (["12 34"], "13a"),
    ):
        assert tokenize_of(references) == tokenize, references


# === From Python ===


def test_metrics_are_of_what_the_model_writes(model, expected):
    hypotheses, score, signature = expected
    evaluation = evaluate_seq2seq(model, SOURCES, TARGETS, **BEAMS, verbose=False)
    assert evaluation.hypotheses == hypotheses
    assert evaluation.pairs == PAIRS
    assert evaluation.metrics() == {
        "pairs": 6,
        "left_out": 1,
        "bleu": score,
        "tokenize": "zh",
        "signature": signature,
        "loss": pytest.approx(loss_of(model, PAIRS), abs=1e-5),
    }
    # The model has learned something.
    assert score > 20


def test_the_loss_is_of_tokens_and_not_of_batches(model):
    sources, targets = zip(*PAIRS, strict=True)
    for batch_size in (1, 4):
        loss = cross_entropy(model, sources, targets, batch_size)
        assert loss == pytest.approx(loss_of(model, PAIRS), abs=1e-5)


def test_a_training_is_left_as_it_is(preset, monkeypatch):
    model = RoFormerSeq2Seq.from_preset(preset)
    model.compile(keras.optimizers.SGD(0.5), run_eagerly=True)
    model.fit(SOURCES, TARGETS, verbose=0)
    before = (model.optimizer, model.loss, int(model.optimizer.iterations))
    monkeypatch.setattr(model, "generate", lambda sources, **_: sources)
    result = evaluate_seq2seq(model, SOURCES, TARGETS, tokenize="none", verbose=0)
    assert (model.optimizer, model.loss, int(model.optimizer.iterations)) == before
    assert result.hypotheses == [source for source, _ in PAIRS]
    assert result.bleu.tokenize == "none"


def test_what_cannot_be_evaluated(model, monkeypatch):
    with pytest.raises(ConfigurationError, match="none of 2 has"):
        evaluate_seq2seq(model, ["a", "b c"], ["天", "地"], verbose=False)
    with pytest.raises(ConfigurationError, match="got 1 sources and 2 targets"):
        evaluate_seq2seq(model, ["天"], ["天", "地"])
    # Before anything is written.
    monkeypatch.setattr(RoFormerSeq2Seq, "generate", None)
    with pytest.raises(ConfigurationError, match=r"one of none, .*, got 'chars'"):
        evaluate_seq2seq(model, ["天"], ["天"], tokenize="chars")

    class Unusable:
        TOKENIZERS = ("13a",)

        def __init__(self, tokenize):
            raise RuntimeError("needs another package")

    with monkeypatch.context() as patch:
        patch.setattr(sacrebleu.metrics, "BLEU", Unusable)
        with pytest.raises(ConfigurationError, match="here: needs another package"):
            evaluate_seq2seq(model, ["a"], ["a"])
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ConfigurationError, match=r"'roformer-keras\[evaluate\]'"):
        evaluate_seq2seq(model, ["天"], ["天"])


def test_pairs_of_files(tmp_path, table):
    assert read_pairs(str(table)) == list(zip(SOURCES, TARGETS, strict=True))
    named = tmp_path / "named.csv"
    named.write_text("id,de,zh\n1,ein Hund,狗\n", encoding="utf-8")
    assert read_pairs(named, ("zh", "de")) == [("狗", "ein Hund")]
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"first": "天", "second": "地"}\n', encoding="utf-8")
    assert read_pairs(lines) == read_pairs(lines, ("first", "second")) == [("天", "地")]
    for fields in (("1",), ("1", "2", "3")):
        with pytest.raises(ConfigurationError, match="a source and a reference, got 1"):
            read_pairs(table, fields)
    with pytest.raises(SourceError, match="cannot read"):
        read_pairs(tmp_path / "none.tsv")


# === From the command line ===


@pytest.fixture
def evaluated(expected, monkeypatch):
    """The options of evaluations, each of which gives what the model has written."""
    hypotheses, *_ = expected
    calls = []

    def record(model, sources, references, *, tokenize=None, **options):
        calls.append(options)
        tokenize = tokenize or tokenize_of(references)
        bleu = corpus_bleu(hypotheses, [target for _, target in PAIRS], tokenize)
        left_out = len(sources) - len(PAIRS)
        return Seq2SeqEvaluation(bleu, 0.5, PAIRS, hypotheses, left_out)

    monkeypatch.setattr("roformer_keras.training.evaluate.evaluate_seq2seq", record)
    return calls


@pytest.mark.e2e
def test_the_command_writes_what_was_evaluated(
    preset, table, expected, evaluated, tmp_path, monkeypatch, capsys, cli
):
    hypotheses, score, signature = expected
    report = json.loads(cli("evaluate", preset, table, *FLAGS, "--json"))
    assert report == {
        "file": str(table),
        "pairs": 6,
        "left_out": 1,
        "bleu": score,
        "tokenize": "zh",
        "signature": signature,
        "loss": 0.5,
        "tokenize_by": "the letters of the references",
        **BEAMS,
    }
    target = tmp_path / "report"
    arguments = ["evaluate", preset, table, *FLAGS, "--output", target]
    out = cli(*arguments, "--quiet")
    assert f"bleu                   {score:.4f}\n" in out
    assert "tokenize               zh\n" in out
    assert f"signature              {signature}\n" in out
    assert "pairs                  6\nleft out               1\n" in out
    assert (target / "report.txt").read_text("utf-8") == out
    assert json.loads((target / "report.json").read_text("utf-8")) == {
        "evaluation": report
    }
    assert json_lines((target / "hypotheses.jsonl").read_text("utf-8")) == [
        {"source": source, "reference": reference, "hypothesis": hypothesis}
        for (source, reference), hypothesis in zip(PAIRS, hypotheses, strict=True)
    ]
    code, _, err = run_main(*arguments, capsys=capsys)
    assert code == 4 and "exists" in err
    report = json.loads(cli("evaluate", preset, table, "--tokenize", "char", "--json"))
    assert (report["tokenize"], report["tokenize_by"]) == ("char", "--tokenize")
    assert "max_new_tokens" not in report and report["num_beams"] == 4
    options = {**BEAMS, "batch_size": 64, "verbose": 0}
    assert evaluated[0] == evaluated[1] == options
    # Files are read as the flags say.
    path = tmp_path / "pairs.data"
    path.write_text("天地,地天\n日月\n", encoding="utf-8")
    flags = ("--format", "csv", "--on-bad-row", "skip", "--json")
    report = json.loads(cli("evaluate", preset, path, *flags))
    assert report["skipped"] == [{"line": 2, "reason": "must have 2 columns, got 1"}]


def test_what_the_command_refuses(preset, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for content, flags, message in (
        ("", [], "test.tsv has no row"),
        ("天地\n", [], "line 1 of test.tsv must have 2 columns, got 1"),
        ("天\t地\n天\t \n", [], "line 2 of test.tsv: a text must be a str that is not"),
        ("天\t地\n", ["--fields", "de,zh"], "must name the columns 'de', 'zh'"),
        ("天\t地\n", ["--length-penalty", "-1"], "length_penalty must be a number"),
    ):
        (tmp_path / "test.tsv").write_text(content, encoding="utf-8")
        code, out, err = run_main("evaluate", preset, "test.tsv", *flags, capsys=capsys)
        assert (code, out) == (2, "")
        assert message in err
    # Options of writing are for what writes.
    for source in (CHARACTER, tmp_path):
        code, out, err = run_main("evaluate", source, "test.tsv", *FLAGS, capsys=capsys)
        assert (code, out) == (2, "")
        assert "--num-beams, --length-penalty, --max-new-tokens must be left out" in err
