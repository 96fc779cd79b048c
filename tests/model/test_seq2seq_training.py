"""The training of an encoder-decoder: loss, rate, means, pairs, vocabulary."""

import itertools
import re

import keras
import numpy as np
import pytest
from common import json_lines, run_main
from interruptions import InterruptAfter, Interrupted
from keras import ops
from sources import assert_same_weights

from roformer_keras import RoFormerSeq2Seq, RoFormerTokenizer
from roformer_keras.data.corpus import read_corpus
from roformer_keras.data.encoders import PairEncoder
from roformer_keras.errors import CheckpointError, ConfigurationError, OutputError
from roformer_keras.losses import LabelSmoothing, smoothed_crossentropy
from roformer_keras.objectives import Seq2Seq
from roformer_keras.optimizers import InverseSquareRoot, make_optimizer
from roformer_keras.text.train_vocabulary import build_subword_vocabulary
from roformer_keras.training.averaging import LastCheckpoints
from roformer_keras.training.log import read_log
from roformer_keras.training.pretrain import PretrainingRun, pretrain
from roformer_keras.training.pretraining_settings import PretrainingSettings

# `tf.data` traces its functions in eager tests too, and warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:Even though the `tf.config")

CHARACTERS = "天地玄黄宇宙洪荒日月盈昃"
TOKENIZER = RoFormerTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *CHARACTERS])


# === Loss ===


def test_label_smoothing_is_a_cross_entropy():
    generator = np.random.default_rng(0)
    logits, labels = (
        generator.normal(size=(3, 4, 7)),
        generator.integers(7, size=(3, 4)),
    )
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for smoothing in (0.0, 0.1, 0.5):
        wanted = np.full((3, 4, 7), smoothing / 7)
        np.put_along_axis(wanted, labels[..., None], 1 - smoothing * 6 / 7, axis=-1)
        expected = -(wanted * np.log(shares)).sum(-1)
        losses = smoothed_crossentropy(labels, logits.astype("float32"), smoothing)
        np.testing.assert_allclose(ops.convert_to_numpy(losses), expected, atol=1e-5)
    # Rows of padding do not count.
    weights = (generator.random((3, 4)) > 0.5).astype("float32")
    loss = LabelSmoothing(0.5)(labels, logits.astype("float32"), weights)
    expected = (expected * weights).sum() / weights.sum()
    assert float(loss) == pytest.approx(expected, abs=1e-5)
    assert LabelSmoothing.from_config(LabelSmoothing(0.2).get_config()).options == {
        "smoothing": 0.2
    }


# === Rate ===


def test_the_rate_is_that_of_the_paper():
    dim, warmup = 512, 4000
    rate = InverseSquareRoot((dim * warmup) ** -0.5, warmup)
    for update in (1, 2, 100, 3999, 4000, 4001, 100_000):
        expected = dim**-0.5 * min(update**-0.5, update * warmup**-1.5)
        # An optimizer counts those before.
        assert float(rate(update - 1)) == pytest.approx(expected, rel=1e-5)
    again = InverseSquareRoot.from_config(rate.get_config())
    assert float(again(7)) == float(rate(7))


def test_a_rate_that_never_rises():
    for warmup, parts in ((0, 1), (2.5, 1), (4, 0)):
        with pytest.raises(ConfigurationError, match="an integer of at least 1"):
            InverseSquareRoot(0.1, warmup, parts)


def test_parts_of_an_update_have_its_rate():
    optimizer = make_optimizer(0.1, warmup=2, accumulation=2)
    rate = optimizer._learning_rate
    rates = [float(rate(part)) for part in range(8)]
    expected = [0.05, 0.1, 0.1 * (2 / 3) ** 0.5, 0.1 * 0.5**0.5]
    assert rates == pytest.approx(np.repeat(expected, 2), rel=1e-5)


# === Means ===


def test_the_mean_is_of_the_last_checkpoints(tmp_path):
    variables = [
        keras.Variable(np.zeros(shape, "float32"), name=f"v{number}")
        for number, shape in enumerate([(2, 3), (4,)])
    ]
    checkpoints = LastCheckpoints(tmp_path / "checkpoints", 3)
    generator, saved = np.random.default_rng(0), []
    for update in (9, 10, 100, 200, 1000):
        values = [generator.normal(size=v.shape).astype("float32") for v in variables]
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        checkpoints.add(update, variables)
        saved.append(values)
    # By number, not by name.
    assert checkpoints.updates() == [100, 200, 1000]
    # What is written again counts once.
    checkpoints.add(1000, variables)
    checkpoints.assign_mean(variables)
    for number, variable in enumerate(variables):
        expected = np.mean([values[number] for values in saved[2:]], axis=0)
        np.testing.assert_allclose(ops.convert_to_numpy(variable), expected, atol=1e-7)
    with pytest.raises(CheckpointError, match="must hold the variables of this model"):
        checkpoints.assign_mean(variables[:1])


# === Pairs ===


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A table of texts and their reverse."""
    path = tmp_path_factory.mktemp("corpus") / "pairs.tsv"
    generator = np.random.default_rng(0)
    texts = [
        "".join(generator.choice(list(CHARACTERS), generator.integers(2, 11)))
        for _ in range(400)
    ]
    path.write_text("\n".join(f"{t}\t{t[::-1]}" for t in texts), encoding="utf-8")
    return path


def test_each_token_is_predicted_from_those_before_it():
    objective = Seq2Seq(TOKENIZER, 12)
    encode = PairEncoder(TOKENIZER, 12)
    pairs = (("天地玄", "黄宇"), ("洪", "荒日月盈"))
    items = [item for pair in pairs for item in encode(pair)]
    inputs, targets, weights = objective.batch(items, None)
    cls, sep = TOKENIZER.cls_id, TOKENIZER.sep_id
    encoder, decoder = inputs.values()
    assert encoder.shape[1] == decoder.shape[1] == 5
    for row, ((source, target), *_) in enumerate(items):
        count = len(target) + 1
        assert encoder[row, : len(source) + 2].tolist() == [cls, *source, sep]
        assert not encoder[row, len(source) + 2 :].any()
        assert decoder[row, :count].tolist() == [cls, *target]
        assert targets[row, :count].tolist() == [*target, sep]
        assert weights[row].tolist() == [1] * count + [0] * (len(weights[row]) - count)
    with pytest.raises(ConfigurationError, match="label_smoothing must be a number in"):
        Seq2Seq(TOKENIZER, 12, label_smoothing=1)


# === Vocabulary ===


def test_a_vocabulary_of_parts_of_words():
    texts = [("lower lower lowest",), ("newer newer wider Über",), ("new Q.",)]
    tokens, facts = build_subword_vocabulary(
        texts, max_size=140, min_count=1, lower_case=False
    )
    assert len(tokens) == len(set(tokens)) <= 140
    assert facts["coverage"] == 1
    # "e" and "r" come together six times, and then "w" before them four times: nothing
    # does more often.
    start = tokens.index("##er")
    assert tokens[start + 1] == "##wer"
    assert {"lower", "newer"} <= set(tokens[start:])
    tokenizer = RoFormerTokenizer(tokens, lower_case=False)
    assert tokenizer.tokenize("lower wider")[1] == "lower"
    text = "newest Über Qow."
    assert tokenizer.unk_id not in tokenizer.encode(text)[0]
    assert tokenizer.decode(tokenizer.encode(text)[0]) == text
    # The order of the texts makes no difference.
    again, _ = build_subword_vocabulary(
        texts[::-1], max_size=140, min_count=1, lower_case=False
    )
    assert again == tokens
    lower, _ = build_subword_vocabulary(texts, max_size=140)
    assert "Ü" not in lower and "u" in lower
    # What is too rare is left out, and the words that have it.
    rare, _ = build_subword_vocabulary(texts, max_size=140, min_count=2)
    assert "q" not in rare


def test_merges_are_those_of_a_plain_count():
    """Against counting all pairs anew for each merge."""
    generator = np.random.default_rng(0)
    words = {
        "".join(generator.choice(list("abc"), generator.integers(1, 7))): int(count)
        for count in generator.integers(1, 20, 60)
    }
    text = " ".join(word for word, count in words.items() for _ in range(count))
    tokens, _ = build_subword_vocabulary([(text,)], max_size=150)
    spelt = {w: [w[0], *(f"##{c}" for c in w[1:])] for w in words}
    expected = []
    while len(expected) < 150 - 106 - 6:
        counts = {}
        for word, parts in spelt.items():
            for pair in itertools.pairwise(parts):
                counts[pair] = counts.get(pair, 0) + words[word]
        best = min(counts, key=lambda pair: (-counts[pair], pair), default=None)
        if best is None or counts[best] < 2:
            break
        merged = best[0] + best[1][2:]
        for word, parts in spelt.items():
            joined = []
            for part in parts:
                joined.append(part)
                is_free = len(joined) > 1 and tuple(joined[-2:]) == best
                if is_free:
                    joined[-2:] = [merged]
            spelt[word] = joined
        if merged not in expected:
            expected.append(merged)
    assert tokens[106 + 6 :] == expected


# === A whole training ===

MODEL = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16}


def settings_of(corpus, **changes):
    content = {
        "objective": "seq2seq",
        "name": "tiny",
        "data": [{"files": [str(corpus)], "fields": ["1", "2"], "holdout": 0.1}],
        "stages": [
            {"steps": 14, "length": 16, "batch_size": 8, "learning_rate": 0.01}
            | {"warmup": 4}
        ],
        "model": MODEL,
        "optimizer": {"beta_2": 0.98, "epsilon": 1e-9, "weight_decay": 0.0},
        "min_count": 1,
        "log_every": 2,
        "save_every": 4,
        "average_checkpoints": 3,
        "evaluation_batches": 3,
    }
    return PretrainingSettings.from_dict({**content, **changes})


@pytest.mark.e2e
@pytest.mark.usefixtures("eagerly")
def test_an_interrupted_training_ends_in_a_preset_of_means(
    corpus, tmp_path, monkeypatch
):
    settings, folder = settings_of(corpus), tmp_path / "whole"
    model = pretrain(settings, folder, verbose=False)
    assert type(model) is RoFormerSeq2Seq
    again = RoFormerSeq2Seq.from_preset(folder / "preset")
    assert_same_weights(again, model)
    assert again.tokenizer.vocabulary == model.tokenizer.vocabulary
    # There is nothing that bert4keras could compute.
    assert not list(folder.glob("*.zip"))
    checkpoints = LastCheckpoints(folder / "checkpoints", 3)
    assert checkpoints.updates() == [8, 12, 14]
    checkpoints.assign_mean(again.trainable_variables)
    assert_same_weights(again, model)
    rows = read_log(folder / "log.csv")
    assert float(rows[-1]["val_loss"]) > 0
    assert [float(row["learning_rate"]) for row in rows[:2]] == pytest.approx(
        # Of the update that comes next.
        [0.01 * 3 / 4, 0.01 * (4 / 5) ** 0.5],
        rel=1e-4,
    )
    # Tokens of both sides.
    assert int(rows[0]["tokens"]) > 2 * 8 * 2 * 3

    # After a checkpoint that the mean is taken of. It is saved every four updates.
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        pretrain(settings, run, callbacks=[InterruptAfter(9)], verbose=False)
    assert_same_weights(pretrain(settings, run, verbose=False), model)
    # No setting of saving is free where means are taken, and no checkpoint.
    with pytest.raises(OutputError, match="save_every was 4, now 2"):
        pretrain(settings_of(corpus, save_every=2), folder, verbose=False)
    first, *others = (folder / "checkpoints").iterdir()
    for count, paths in ((2, [first]), (0, others)):
        for path in paths:
            path.unlink()
        with pytest.raises(CheckpointError, match=f"at least 3 checkpoi.*got {count}"):
            pretrain(settings, folder, verbose=False)
    assert_same_weights(RoFormerSeq2Seq.from_preset(folder / "preset"), model)

    # A training may start from the preset.
    changes = {"source": str(folder / "preset"), "model": {"dropout": 0.3}}
    prepared = PretrainingRun(settings_of(corpus, **changes), tmp_path / "other")
    prepared.prepare()
    assert_same_weights(prepared.model, model)
    assert prepared.model.config.dropout == 0.3


def test_settings_that_break_a_rule(corpus, tmp_path):
    schedule = {"steps": 2, "warmup": 2, "schedule": [[1, 1.0]]}
    vocabulary = {"subwords": True, "max_vocabulary": 200, "vocabulary": "vocab.txt"}
    for changes, message in (
        ({"subwords": True}, "subwords are for a vocabulary that is built"),
        (vocabulary, "subwords counts only with a vocabulary that is built"),
        ({"stages": [schedule]}, "by schedule or by warmup"),
        ({"average_checkpoints": -1}, "average_checkpoints must be an integer"),
        ({"optimizer": {"beta_2": 1.0}}, "beta_2 must be a number"),
        ({"optimizer": {"ema": 0.9}}, "average_checkpoints=3 and ema=0.9"),
        ({"initialize_heads": True}, "seq2seq, which has no heads"),
        ({"packed": True}, "packed counts only with mlm and lm"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            settings_of(corpus, **changes)
    for changes, message in (
        ({"model": {**MODEL, "num_segments": 2}}, "has no field num_segments"),
        (
            {"source": "roformer-char", "model": {}, "min_count": 5},
            "holds no encoder-decoder",
        ),
        (
            {"options": {"whole_word": True, "rate": 0.1}},
            "seq2seq has no option rate, whole_word; it has label_smoothing",
        ),
    ):
        with pytest.raises(ConfigurationError, match=message):
            pretrain(settings_of(corpus, **changes), tmp_path / "run", verbose=False)
    assert not (tmp_path / "run" / "settings.json").exists()


def test_pairs_that_are_too_long_are_counted(corpus, tmp_path, capsys):
    stage = {"steps": 2, "length": 6, "batch_size": 4, "learning_rate": 0.01}
    texts = [line.split("\t")[0] for line in corpus.read_text("utf-8").splitlines()]
    settings = settings_of(corpus, stages=[stage])
    texts = set(texts) - {a for a, _ in read_corpus(settings.data, "held_out")}
    share = sum(len(text) > 4 for text in texts) / len(texts)
    PretrainingRun(settings, tmp_path / "run").prepare()
    (line,) = (x for x in capsys.readouterr().err.splitlines() if "left out" in x)
    match = re.match(r"(\S+)% of the first \d+ pairs are left out: .*length=6", line)
    assert float(match[1]) == pytest.approx(100 * share, abs=1)
    long = tmp_path / "long.tsv"
    pairs = itertools.product(CHARACTERS, CHARACTERS)
    long.write_text("".join(f"{a}天地玄{b}\t宙\n" for a, b in pairs), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="at most length=6 with"):
        PretrainingRun(settings_of(long, stages=[stage]), tmp_path / "run").prepare()


def test_the_vocabulary_of_a_training_is_of_parts_of_words(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"Lower {n}\tnewer {n}\n" for n in range(400)))
    changes = {"subwords": True, "max_vocabulary": 150, "lower_case": False}
    run = PretrainingRun(settings_of(path, **changes), tmp_path, verbose=False)
    run.prepare()
    assert {"##er", "Lower"} <= set(run.tokenizer.vocabulary)
    assert not run.tokenizer.lower_case


# === From the command line ===


@pytest.mark.e2e
def test_the_command_line_writes(seq2seq_preset, seq2seq, tmp_path, capsys, cli):
    flags = ("--method", "beam", "--length-penalty", 0.6, "--max-length", 8, "--quiet")
    path = tmp_path / "texts.txt"
    path.write_text("天地玄\n日月\n", encoding="utf-8")
    rows = json_lines(cli("generate", "--source", seq2seq_preset, path, *flags))
    options = {"method": "beam", "length_penalty": 0.6, "max_length": 8}
    assert [row["text"] for row in rows] == ["天地玄", "日月"]
    written = [row["outputs"][0]["text"] for row in rows]
    assert written == seq2seq.generate(["天地玄", "日月"], **options)
    paths = {"PRESET": seq2seq_preset, "TEXTS": path}
    for line, message in (
        ("generate --source PRESET --text 天 --unilm", "leave out --model and --unilm"),
        ("generate --source PRESET --text 天 --vocabulary TEXTS", "and --vocabulary"),
        ("convert PRESET new.zip", "only the format 'preset' can store"),
    ):
        words = [paths.get(word, word) for word in line.split()]
        code, out, err = run_main(*words, capsys=capsys)
        assert (code, out) == (2, "")
        assert message in err
