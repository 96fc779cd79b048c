"""tools/compare_finetuning.py: both begin alike, get the same batches, and go on."""

import argparse
import csv
import gzip
import importlib.util
import json

import numpy as np
import pytest
from common import CHARACTER, ROOT, reference_folder

from roformer_keras import convert

# TensorFlow variables do not know NumPy 2's `copy`.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")

GOOD, BAD = "好天美爱", "坏不没错"
OTHERS = "今北京安门上海人学习语言工作"


@pytest.fixture(scope="module")
def tool():
    path = ROOT / "tools" / "compare_finetuning.py"
    with pytest.MonkeyPatch.context() as patch:
        # It imports scripts beside it.
        patch.syspath_prepend(path.parent)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


@pytest.fixture
def data(tmp_path):
    """Files of texts of one length, which a character tells the class of."""
    generator = np.random.default_rng(0)
    paths = []
    for name, count in (("train.tsv.gz", 48), ("test.tsv", 24)):
        lines = []
        for number in range(count):
            text = list(generator.choice(list(OTHERS), 8))
            text[generator.integers(8)] = generator.choice(
                list((BAD, GOOD)[number % 2])
            )
            lines.append(f"{''.join(text)}\t{('bad', 'good')[number % 2]}\n")
        opened = gzip.open if name.endswith(".gz") else open
        with opened(tmp_path / name, "wt", encoding="utf-8") as file:
            file.writelines(lines)
        paths.append(tmp_path / name)
    return paths


@pytest.fixture
def trained(tool, tmp_path, monkeypatch):
    """Models and seeds of trainings, which are not done but made up."""
    trained = []

    def train(model, seed, options, records):
        trained.append((model, seed))
        accuracy = 0.5 + seed / 8 + (model == "bert4keras") / 4
        return {"accuracy": accuracy, "loss": 0.25, "seconds": 2.0}

    monkeypatch.setattr(tool, "train", train)
    (tmp_path / "reference" / "bert4keras").mkdir(parents=True)
    monkeypatch.setattr(tool, "BERT4KERAS", tmp_path / "reference")
    return trained


def arguments_of(data, folder, **changes):
    options = {"train": data[0], "test": data[1], "output": folder, **changes}
    arguments = []
    for name, value in options.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    return arguments


def runs_of(folder):
    with open(folder / "runs.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.skipif(reference_folder() is None, reason="needs bert4keras")
def test_without_dropout_both_learn_the_same(tool, data, tmp_path):
    """Their texts, weights, batches, rates and scores are one."""
    none = {"dropout": 0.0, "attention_dropout": 0.0}
    source = convert(CHARACTER, tmp_path / "source.zip", progress=False, **none)
    arguments = arguments_of(
        data,
        tmp_path / "run",
        source=source,
        epochs=3,
        batch_size=4,
        learning_rate=3e-3,
        seeds=1,
    )
    assert tool.main(arguments) == 0
    ours, theirs = runs_of(tmp_path / "run")
    assert [ours["model"], theirs["model"]] == list(tool.MODELS)
    assert float(ours["loss"]) == pytest.approx(float(theirs["loss"]), abs=1e-4)
    # They have learned, and not all there is.
    assert 0.1 < float(ours["loss"]) < 0.6
    assert ours["accuracy"] == theirs["accuracy"]


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
    assert "better by 0.2500, within the larger spread" in printed


def test_results_are_a_file_too(tool, data, tmp_path, trained, capsys):
    folder = tmp_path / "run"
    assert tool.main(arguments_of(data, folder, seeds=2)) == 0
    assert "better by 0.2500, beyond the larger spread" in capsys.readouterr().out
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["settings"]["classes"] == ["bad", "good"]
    assert results["settings"]["data"]["train"]["texts"] == 48
    assert results["runs"][1]["accuracy"] == 0.75
    assert results["summary"]["bert4keras"] == {
        "mean": 0.8125,
        "spread": 0.125,
        "seconds": 2.0,
    }


def test_a_folder_of_another_comparison_stays_as_it_is(
    tool, data, tmp_path, trained, capsys
):
    folder = tmp_path / "run"
    assert tool.main(arguments_of(data, folder, seeds=1)) == 0
    before = runs_of(folder)
    assert tool.main(arguments_of(data, folder, seeds=1, epochs=9)) != 0
    # Another content under the same name.
    data[1].write_text("好\tgood\n", encoding="utf-8")
    assert tool.main(arguments_of(data, folder, seeds=1)) != 0
    assert capsys.readouterr().err.count("hold a comparison of equal settings") == 2
    assert runs_of(folder) == before and len(trained) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("好\n", "must be text, tab, label, got '好' in line 1"),
        ("好\tgood\t1\n", "must be text, tab, label"),
        ("\n \n", "holds none"),
        ("好\tgood\n坏\tneither\n", "in the test 'neither'"),
    ],
)
def test_files_that_cannot_be_compared_on(
    tool, data, tmp_path, trained, capsys, text, message
):
    data[1].write_text(text, encoding="utf-8")
    assert tool.main(arguments_of(data, tmp_path / "run")) != 0
    assert message in capsys.readouterr().err
    assert not trained


def test_without_bert4keras_there_is_nothing_to_compare(
    tool, data, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(tool, "BERT4KERAS", tmp_path / "nowhere")
    assert tool.main(arguments_of(data, tmp_path / "run")) == 6
    assert "nowhere" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


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
    records = {"train": tool.read_records(data[0])}
    found = []
    for place, seed in enumerate((0, 0, 1)):
        tool.make_preset(options, records, seed, tmp_path / str(place))
        model = tool.make_classifier(tmp_path / str(place), options, 2, seed)
        found.append({v.path: np.array(v) for v in model.trainable_variables})
        assert model.config.layer_norm_epsilon == 1e-7
        assert model.config.dropout == 0.1 and model.config.num_layers == 1
    first, again, other = found
    for path, value in first.items():
        np.testing.assert_array_equal(value, again[path], err_msg=path)
        if path.endswith(("kernel", "embeddings")):
            assert not np.array_equal(value, other[path]), path
