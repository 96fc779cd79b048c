"""tools/experiments/compare_finetuning.py: both begin alike, get the same batches, and
go on."""

import argparse
import csv
import gzip
import json

import numpy as np
import pytest
from common import CHARACTER, SHARED, reference_folder, tool_module
from seqeval.metrics import f1_score

from roformer_keras import RoFormerTokenizer, convert
from roformer_keras.tasks.spans import SpanRows

# TensorFlow variables do not know NumPy 2's `copy`.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")

GOOD, BAD = "好天美爱", "坏不没错"
OTHERS = "今北京安门上海人学习语言工作"
UNLICENSED = SHARED / "data" / "unlicensed"
STS_B = [UNLICENSED / f"sts-b-zh.{part}.txt.gz" for part in ("train", "test")]
MSRA = [UNLICENSED / "msra-ner.test.bio.gz"]
needs_unlicensed = pytest.mark.skipif(not UNLICENSED.is_dir(), reason="needs its data")


@pytest.fixture(scope="module")
def tool():
    with tool_module("compare_finetuning") as module:
        yield module


@pytest.fixture
def data(tmp_path):
    """Files of texts of one length, which a character tells the class of."""
    generator = np.random.default_rng(0)
    return [
        written(tmp_path / name, [labelled_text(generator, n) for n in range(count)])
        for name, count in (("train.tsv.gz", 48), ("test.tsv", 24))
    ]


def written(path, lines):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8") as file:
        file.writelines(lines)
    return path


def labelled_text(generator, number):
    """A line of a text and its class."""
    text = list(generator.choice(list(OTHERS), 8))
    text[generator.integers(8)] = generator.choice(list((BAD, GOOD)[number % 2]))
    return f"{''.join(text)}\t{('bad', 'good')[number % 2]}\n"


def labelled_pair(generator, number):
    """A line of two texts and how many characters they have in common."""
    text, same = generator.permutation(list(OTHERS)), number % 5
    other = "".join(text[:same]) + "".join(generator.choice(text[8:], 4 - same))
    return f"{''.join(text[:4])}\t{other}\t{same}\n"


def tagged_text(generator, number):
    """Lines of a text of 5 to 8 characters, whose places are named by few of them."""
    lines = [f"{name}\tO" for name in generator.choice(list("人学习语言"), 6)]
    place = generator.choice(["北京", "上海", "安门"])
    lines[number % 5 : number % 5 + 1] = [f"{place[0]}\tB-LOC", f"{place[1]}\tI-LOC"]
    if number % 3:
        lines.append("工\tB-PER")
    return "\n".join(lines[number % 2 :]) + "\n\n"


@pytest.fixture
def trained(tool, tmp_path, monkeypatch):
    """Models and seeds of trainings, which are not done but made up."""
    trained = []

    def train(model, seed, options, records):
        trained.append((model, seed))
        score = 0.5 + seed / 8 + (model == "bert4keras") / 4
        return {"score": score, "first_loss": 0.75, "loss": 0.25, "seconds": 2.0}

    monkeypatch.setattr(tool, "train", train)
    (tmp_path / "reference" / "bert4keras").mkdir(parents=True)
    monkeypatch.setattr(tool, "BERT4KERAS", tmp_path / "reference")
    return trained


def arguments_of(data, folder, **changes):
    parts = dict(zip(("train", "test"), data, strict=False))
    options = {**parts, "output": folder, **changes}
    arguments = []
    for name, value in options.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    return arguments


def runs_of(folder):
    with open(folder / "runs.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.e2e
@pytest.mark.skipif(reference_folder() is None, reason="needs bert4keras")
@pytest.mark.parametrize(
    ("task", "line", "ending", "learned"),
    [
        ("classification", labelled_text, "tsv", 0.7),
        ("similarity", labelled_pair, "txt", 0.7),
        ("entities", tagged_text, "bio", 0.3),
    ],
)
def test_without_dropout_both_learn_the_same(
    tool, tmp_path, task, line, ending, learned
):
    """Their texts, weights, batches, rates and scores are one."""
    generator = np.random.default_rng(0)
    data = [
        written(
            tmp_path / f"{part}.{ending}", [line(generator, n) for n in range(size)]
        )
        for part, size in (("train", 48), ("test", 24))
    ]
    none = {"dropout": 0.0, "attention_dropout": 0.0}
    source = convert(CHARACTER, tmp_path / "source.zip", verbose=0, **none)
    arguments = arguments_of(
        data,
        tmp_path / "run",
        task=task,
        source=source,
        epochs=3,
        batch_size=4,
        learning_rate=3e-3,
        crf_rate=10,
        seeds=1,
    )
    assert tool.main(arguments) == 0
    ours, theirs = runs_of(tmp_path / "run")
    assert [ours["model"], theirs["model"]] == list(tool.MODELS)
    # That they begin with one loss, the tool itself makes sure of.
    assert float(ours["loss"]) == pytest.approx(float(theirs["loss"]), rel=1e-3)
    # They have learned, and not all there is.
    assert 0.05 < float(ours["loss"]) < learned * float(ours["first_loss"])
    assert float(ours["score"]) == pytest.approx(float(theirs["score"]), abs=1e-3)
    assert float(ours["score"]) > 0.3


@needs_unlicensed
@pytest.mark.e2e
@pytest.mark.skipif(reference_folder() is None, reason="needs bert4keras")
@pytest.mark.parametrize("task", ["similarity", "entities"])
def test_both_read_real_texts_alike(tool, tmp_path, task):
    """The ids of all rows, and the loss of the first batch, are compared on the way."""
    data = MSRA if task == "entities" else STS_B
    sizes = {"layers": 1, "hidden": 16, "heads": 2, "epochs": 1, "seeds": 1}
    arguments = arguments_of(data, tmp_path / "run", task=task, **sizes)
    assert tool.main(arguments) == 0
    assert len(runs_of(tmp_path / "run")) == 2


# === Resuming and reporting ===


def test_an_interrupted_comparison_goes_on(tool, data, tmp_path, trained, capsys):
    folder, made_up = tmp_path / "run", tool.train
    arguments = arguments_of(data, folder, seeds=2)

    def interrupted(model, seed, *rest):
        if seed == 1:
            raise KeyboardInterrupt
        return made_up(model, seed, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tool.main(arguments)
    first = runs_of(folder)
    assert [(run["model"], run["seed"]) for run in first] == [
        ("roformer_keras", "0"),
        ("bert4keras", "0"),
    ]
    assert tool.main(arguments) == 0
    assert trained[2:] == [("roformer_keras", 1), ("bert4keras", 1)]
    assert runs_of(folder)[:2] == first
    # Done is done, and more seeds are added.
    del trained[:]
    assert tool.main(arguments) == 0 and not trained
    capsys.readouterr()
    assert tool.main(arguments_of(data, folder, seeds=3)) == 0
    assert trained == [("roformer_keras", 2), ("bert4keras", 2)]
    printed = capsys.readouterr().out
    assert "| 1 | 0.6250 | 0.8750 | -0.2500 |" in printed
    assert "| mean | 0.6250 | 0.8750 | -0.2500 |" in printed
    assert "| spread | 0.2500 | 0.2500 | |" in printed
    assert "spread of the seeds: no (by the means +0.2500, the larger" in printed


def test_results_are_a_file_too(tool, data, tmp_path, trained, capsys):
    folder = tmp_path / "run"
    assert tool.main(arguments_of(data, folder, seeds=2)) == 0
    printed = capsys.readouterr().out
    assert "spread of the seeds: yes (by the means +0.2500, the larger" in printed
    assert "Accuracy on 24 rows of test.tsv" in printed
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["settings"]["classes"] == ["bad", "good"]
    assert results["settings"]["data"]["train"]["texts"] == 48
    assert results["runs"][1]["score"] == 0.75
    assert results["summary"]["bert4keras"] == {
        "mean": 0.8125,
        "spread": 0.125,
        "seconds": 2.0,
    }
    verdict = {"bert4keras_better_by": 0.25, "spread": 0.125, "beyond_spread": True}
    assert results["summary"]["verdict"] == verdict


def test_one_seed_has_no_spread(tool, data, tmp_path, trained, capsys):
    assert tool.main(arguments_of(data, tmp_path / "run", seeds=1)) == 0
    assert "one seed does not tell (by the means +0.2500" in capsys.readouterr().out


def test_a_folder_of_another_comparison_stays_as_it_is(
    tool, data, tmp_path, trained, capsys
):
    folder = tmp_path / "run"
    assert tool.main(arguments_of(data, folder, seeds=1)) == 0
    before = runs_of(folder)
    assert tool.main(arguments_of(data, folder, seeds=1, epochs=9)) != 0
    # Another task, and another content under the same name.
    written(data[1], ["好\t天\t1\n"])
    written(pairs := tmp_path / "pairs.txt", ["好\t天\t1\n"])
    similarity = arguments_of([pairs, pairs], folder, task="similarity", seeds=1)
    assert tool.main(similarity) != 0
    written(data[1], ["好\tgood\n"])
    assert tool.main(arguments_of(data, folder, seeds=1)) != 0
    assert capsys.readouterr().err.count("hold a comparison of equal settings") == 3
    assert runs_of(folder) == before and len(trained) == 2


@pytest.mark.parametrize(
    ("task", "name", "text", "message"),
    [
        ("classification", "test.tsv", "好\n", "line 1 of"),
        ("classification", "test.tsv", "\n\n", "has no row"),
        ("classification", "test.tsv", "好\tgood\n坏\tno\n", "in the test 'no'"),
        ("similarity", "test.tsv", "好\t坏\n", "must have 3 columns, got 2"),
        ("similarity", "test.tsv", "好\t坏\tgood\n", "label must be a number"),
        ("entities", "test.bio", "好 O\n坏 O\n", "at least 1 classes"),
        ("entities", "test.bio", "好 O\n坏 LOC\n", "a tag must be O, B-label or"),
    ],
)
def test_files_that_cannot_be_compared_on(
    tool, data, tmp_path, trained, capsys, task, name, text, message
):
    path = written(tmp_path / name, [text])
    both = [data[0] if task == "classification" else path, path]
    assert tool.main(arguments_of(both, tmp_path / "run", task=task)) != 0
    assert message in capsys.readouterr().err
    assert not trained and not (tmp_path / "run").exists()


def test_without_bert4keras_there_is_nothing_to_compare(
    tool, data, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(tool, "BERT4KERAS", tmp_path / "nowhere")
    assert tool.main(arguments_of(data, tmp_path / "run")) == 6
    assert "nowhere" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# === What is tested, and how it is scored ===


def test_without_a_file_to_test_on_the_last_fifth_is_held_out(
    tool, data, tmp_path, trained, capsys
):
    parts = parts_of(tool, data[0])
    everything = tool.read_records(data[0])
    assert parts == {"train": everything[:39], "test": everything[39:]}
    some = parts_of(tool, data[0], limit=9)
    assert [len(found) for found in some.values()] == [9, 9]
    assert all(record in parts["test"] for record in some["test"])
    written(data[1], ["好\tgood\n", "坏\tbad\n"] * 2)
    assert tool.main(arguments_of(data[1:], tmp_path / "run", train=data[1])) != 0
    assert "at least 5 rows for the last fifth" in capsys.readouterr().err


def parts_of(tool, train, test=None, task="classification", limit=None):
    options = argparse.Namespace(train=train, test=test, task=task, limit=limit)
    return tool.read_parts(options)


@needs_unlicensed
def test_what_is_read_of_real_files(tool):
    entities = parts_of(tool, *MSRA, task="entities")
    assert [len(found) for found in entities.values()] == [2754, 688]
    assert tool.Entities(None, entities).classes == ["LOC", "ORG", "PER"]
    pairs = parts_of(tool, *STS_B, task="similarity")
    assert [len(found) for found in pairs.values()] == [5231, 1361]
    assert pairs["train"][0] == ["一架飞机要起飞了。", "一架飞机正在起飞。", "5"]
    assert tool.Similarity(None, pairs).classes is None


def test_tags_of_tokens_are_scored_as_spans_of_characters(tool):
    """Where every tag is right, so is every entity, though a token is a year."""
    text, tags = "在1998年的北京", ["O"] + ["B-TIME"] + ["I-TIME"] * 4
    tags += ["O", "B-LOC", "I-LOC"]
    records = {"train": [[text, tags]], "test": [[text, tags]]}
    task = tool.Entities(None, records)
    tokenizer = RoFormerTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"在年的北京", "1998"]
    )
    rows = SpanRows(tokenizer, [(text,)], 16)
    model = argparse.Namespace(tags=["O", "B-LOC", "I-LOC", "B-TIME", "I-TIME"])
    answers = task.theirs(model, rows, [[0, 3, 4, 0, 1, 2]])
    found = [(span.label, span.text) for span in answers[0]]
    assert found == [("TIME", "1998年"), ("LOC", "北京")]
    assert task.score([tags], answers) == 1.0
    # An entity too short is wrong, and so is one that is not there.
    answers = task.theirs(model, rows, [[0, 3, 0, 2, 1, 2]])
    others = ["O"] + ["B-TIME"] + ["I-TIME"] * 3 + ["O", "I-LOC", "B-LOC", "I-LOC"]
    expected = f1_score([tags], [others])
    assert task.score([tags], answers) == pytest.approx(expected)
    assert 0 < expected < 1


def test_cosines_that_are_all_equal_score_nothing(tool):
    labels = ["0", "1", "5"]
    records = {"train": [["好", "坏", label] for label in labels], "test": []}
    task = tool.Similarity(None, records)
    assert task.score(labels, [0.1, 0.2, 0.9]) == pytest.approx(1.0)
    assert task.score(labels, [0.5, 0.5, 0.5]) == 0.0


# === What both begin with ===


def test_a_limit_draws_the_same_lines_again(tool, data):
    everything = tool.read_records(data[0])
    some = tool.read_records(data[0], 10)
    assert len(everything) == 48 and len(some) == 10
    assert some == tool.read_records(data[0], 10)
    assert some != everything[:10] and all(record in everything for record in some)


def test_an_epoch_holds_every_text_once_in_the_order_of_the_seed(tool):
    lengths = np.arange(10) + 4
    options = argparse.Namespace(batch_size=4, epochs=2)
    found = [tool.batches_of(lengths, options, seed) for seed in (0, 0, 1)]
    for batches in found:
        assert [len(batch) for batch in batches[:3]].count(2) == 1
        for epoch in (batches[:3], batches[3:]):
            assert sorted(np.concatenate(epoch)) == list(range(10))
    first, again, other = (np.concatenate(batches) for batches in found)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[:10], first[10:])


def test_a_seed_decides_fresh_weights(tool, data, tmp_path):
    options = argparse.Namespace(
        source=None, vocabulary=None, layers=1, hidden=16, heads=2, max_length=12
    )
    records = parts_of(tool, *data)
    task = tool.Classification(options, records)
    found = []
    for place, seed in enumerate((0, 0, 1)):
        tool.make_preset(options, records, seed, tmp_path / str(place))
        model = tool.make_model(task, tmp_path / str(place), seed)
        found.append({v.path: np.array(v) for v in model.trainable_variables})
        assert model.config.layer_norm_epsilon == 1e-7
        assert model.config.dropout == 0.1 and model.config.num_layers == 1
    first, again, other = found
    for path, value in first.items():
        np.testing.assert_array_equal(value, again[path], err_msg=path)
        if path.endswith(("kernel", "embeddings")):
            assert not np.array_equal(value, other[path]), path
