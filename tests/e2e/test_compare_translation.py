"""tools/experiments/compare_translation.py: models that differ in positions and
nothing else."""

import csv
import gzip
import json
import shutil

import numpy as np
import pytest
from common import tool_module
from interruptions import InterruptAfter, Interrupted
from matplotlib import image

from roformer_keras.training.pretrain import Run

# TensorFlow variables do not know NumPy 2's `copy`.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")

sacrebleu = pytest.importorskip("sacrebleu")

WORDS = ["ein", "Haus", "Büsche", "rot", "der", "Mann", "geht", "im", "Regen", "grün"]
SETTINGS = """
subwords = true
lower_case = false
max_vocabulary = 160
min_count = 1
log_every = 3
save_every = 3
evaluate_every = 6
average_checkpoints = 2
{more}
[comparison]
tokenize = "13a"
max_length = 12
{comparison}
[model]
num_layers = 1
num_heads = 2
hidden_dim = 16

[[stages]]
steps = 15
length = 16
batch_size = 8
learning_rate = 0.01
warmup = 4
"""
FILES = """
folder = "files"
train = ["train.a.gz", "train.b.gz"]
valid = ["valid.a", "valid.b"]
test = ["valid.b", "valid.a"]
valid_pairs = 5
test_pairs = 4
"""


@pytest.fixture(scope="module")
def tool():
    with tool_module("compare_translation") as module:
        yield module


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("translation"))


def write_config(folder, comparison=FILES, more=""):
    """Sentences of words, and the same words the other way round."""
    generator = np.random.default_rng(0)
    (folder / "files").mkdir(exist_ok=True)
    for part, count, opened in (("train", 120, gzip.open), ("valid", 8, open)):
        lines = [
            generator.choice(WORDS, generator.integers(2, 6)) for _ in range(count)
        ]
        for side, step in (("a", 1), ("b", -1)):
            name = f"{part}.{side}" + (".gz" if opened is gzip.open else "")
            with opened(folder / "files" / name, "wt", encoding="utf-8") as file:
                file.write("".join(" ".join(line[::step]) + " .\n" for line in lines))
    rows = [
        f"{i}\t{' '.join(generator.choice(WORDS, 3))}\tTeil\tBand {i % 10}"
        for i in range(200)
    ]
    (folder / "files" / "table.tsv").write_text("\n".join(rows), encoding="utf-8")
    path = folder / "translation.toml"
    path.write_text(SETTINGS.format(comparison=comparison, more=more), encoding="utf-8")
    return path


def arguments_of(config, folder, seeds=2):
    return ["--config", str(config), "--output", str(folder), "--seeds", str(seeds)]


@pytest.fixture(scope="module")
def whole(tool, config, tmp_path_factory):
    """A comparison that was interrupted in its second training."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    trained, plain = [], tool.pretrain

    def pretrain(settings, own, callbacks, **options):
        trained.append((settings.model["position_embedding"], settings.seed))
        if len(trained) == 2:
            callbacks = [*callbacks, InterruptAfter(11)]
        return plain(settings, own, callbacks=callbacks, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool, "pretrain", pretrain)
        with pytest.raises(Interrupted):
            tool.main(arguments_of(config, folder))
        assert tool.main(arguments_of(config, folder)) == 0
    return folder, trained


def results_of(folder):
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def test_what_is_missing_is_trained_and_nothing_twice(whole):
    _, trained = whole
    assert trained == [
        ("sinusoidal", 0),
        ("rotary", 0),
        ("rotary", 0),
        ("sinusoidal", 1),
        ("rotary", 1),
    ]


def test_table_and_results_say_the_same(whole, tool):
    folder, _ = whole
    found = results_of(folder)
    lines = (folder / "table.md").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("| | seed 0 | seed 1 | mean | spread |")
    for line, kind in zip(lines[2:4], ("sinusoidal", "rotary"), strict=True):
        label, *cells = line.strip("| ").split(" | ")
        assert label == tool.KINDS[kind][0]
        scores = [run["test_bleu"] for run in found["runs"] if run["kind"] == kind]
        expected = [*scores, np.mean(scores), np.ptp(scores)]
        assert [float(cell) for cell in cells[:4]] == pytest.approx(expected, abs=0.006)
        assert found["summary"][kind]["test_bleu"] == pytest.approx(np.mean(scores))
    for run in found["runs"]:
        assert [row["update"] for row in run["curve"]] == [6, 12, 15]
        losses = [row["valid_loss"] for row in run["curve"]]
        assert losses[-1] < losses[0]
        assert run["tokens_per_second"] > 0
        assert len(run["examples"]) == 4
    assert min(image.imread(folder / "curves.png").shape[:2]) > 400
    curves, runs = (
        list(csv.DictReader((folder / f"{name}.csv").read_text("utf-8").splitlines()))
        for name in ("curves", "runs")
    )
    for run, row in zip(found["runs"], runs, strict=True):
        assert row == {name: str(run[name]) for name in tool.RUN_COLUMNS}
        mine = {"kind": run["kind"], "seed": run["seed"]}
        expected = [{**mine, **point} for point in run["curve"]]
        for point in expected:
            assert {k: str(v) for k, v in point.items()} in curves
    assert len(curves) == sum(len(run["curve"]) for run in found["runs"])


def test_bleu_is_of_the_test_by_the_mean_of_checkpoints(whole, tool):
    folder, _ = whole
    model = tool.RoFormerSeq2Seq.from_preset(folder / "rotary-1" / "preset")
    sources, references = zip(*tool.read_pairs(folder / "test.tsv"), strict=True)
    assert len(sources) == 4
    written = model.generate(
        list(sources),
        method="beam",
        length_penalty=0.6,
        max_length=12,
        progress=False,
    )
    (run,) = (
        run
        for run in results_of(folder)["runs"]
        if (run["kind"], run["seed"]) == ("rotary", 1)
    )
    expected = sacrebleu.corpus_bleu(written, [list(references)], tokenize="13a").score
    assert run["test_bleu"] == pytest.approx(expected)
    assert run["examples"][0]["written"] == written[0]


def test_the_two_of_a_seed_begin_alike_and_get_the_same_batches(
    whole, tool, config, tmp_path
):
    folder, _ = whole
    _, training = tool.load(config)
    found = {}
    for kind in tool.KINDS:
        settings = tool.settings_of(training, folder / "train.tsv", kind, 1)
        run = Run(settings, tmp_path / kind)
        run.prepare()
        objective = run._make_objective(16)
        examples = run._examples(objective, 0)
        items = [next(examples) for _ in range(20)]
        examples.close()
        found[kind] = (
            [(v.path, np.array(v)) for v in run.model.trainable_weights],
            [np.array(v) for v in run.model.weights if "seed" in v.path],
            items,
        )
    for one, other in zip(*(weights for weights, _, _ in found.values()), strict=True):
        assert one[0] == other[0]
        np.testing.assert_array_equal(one[1], other[1])
    for one, other in zip(*(seeds for _, seeds, _ in found.values()), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(*(items for _, _, items in found.values()), strict=True):
        np.testing.assert_array_equal(one[0], other[0])


def test_a_finished_comparison_trains_nothing_but_more_seeds(
    whole, tool, config, tmp_path, monkeypatch, capsys
):
    folder = shutil.copytree(whole[0], tmp_path / "copied")
    asked = []

    def run(folder, comparison, training, kind, seed, writers):
        if (folder / f"{kind}-{seed}" / "result.json").exists():
            return plain(folder, comparison, training, kind, seed, writers)
        asked.append((kind, seed))
        return {**plain(folder, comparison, training, kind, 0, writers), "seed": seed}

    plain = tool.run
    monkeypatch.setattr(tool, "run", run)
    assert tool.main(arguments_of(config, folder, seeds=2)) == 0
    assert not asked
    assert tool.main(arguments_of(config, folder, seeds=3)) == 0
    assert asked == [("sinusoidal", 2), ("rotary", 2)]
    assert "seed 2" in capsys.readouterr().out


def test_pairs_of_a_table_are_held_out_by_group(tool, tmp_path):
    config = write_config(
        tmp_path,
        'folder = "files"\ntable = "table.tsv"\nfields = ["2", "3"]\ngroup = "4"\n'
        "holdout = 0.4\ntrain_pairs = 50\nvalid_pairs = 10\ntest_pairs = 12\n",
    )
    comparison, training = tool.load(config)
    (tmp_path / "out").mkdir()
    tool.prepare(tmp_path / "out", comparison, training, tmp_path / "files")
    parts = {
        part: tool.read_pairs(tmp_path / "out" / f"{part}.tsv") for part in tool.PARTS
    }
    assert [len(pairs) for pairs in parts.values()] == [50, 10, 12]
    table = (tmp_path / "files" / "table.tsv").read_text(encoding="utf-8")
    groups = {}
    for line in table.splitlines():
        _, text, _, group = line.split("\t")
        groups.setdefault(text, set()).add(group)
    # A text may be in several groups by chance; take those that are in one.
    of_part = {
        part: {next(iter(groups[text])) for text, _ in pairs if len(groups[text]) == 1}
        for part, pairs in parts.items()
    }
    assert not of_part["train"] & (of_part["valid"] | of_part["test"])
    vocabulary = (tmp_path / "out" / "vocab.txt").read_text(encoding="utf-8")
    assert {"B", "##ü"} <= set(vocabulary.split("\n"))


@pytest.mark.parametrize(
    ("comparison", "more", "message"),
    [
        ('folder = "files"', "", "a table, or else two files each"),
        (FILES.replace("train.b.gz", "valid.b"), "", "as many lines each, got 120, 8"),
        (FILES.replace("train.b.gz", "none"), "", "cannot read"),
        (FILES + "beams = 3", "", "comparison has no field beams"),
        (FILES, "seed = 3", "the comparison's to say"),
        (FILES, "steps = 3", "PretrainingSettings has no field steps"),
    ],
)
def test_what_cannot_be_compared(tool, tmp_path, capsys, comparison, more, message):
    config = write_config(tmp_path, comparison, more)
    assert tool.main(arguments_of(config, tmp_path / "run")) == 2
    assert message in capsys.readouterr().err


def test_no_seed_is_no_comparison(tool, config, tmp_path, capsys):
    assert tool.main(arguments_of(config, tmp_path / "run", seeds=0)) == 2
    assert "seeds must be at least 1" in capsys.readouterr().err


def test_a_missing_library_is_named(tool, config, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu", None)
    assert tool.main(arguments_of(config, tmp_path / "run")) == 2
    assert "pip install 'roformer-keras[evaluate]'" in capsys.readouterr().err


def test_curves_are_of_the_trainings(whole):
    folder, _ = whole
    with open(folder / "rotary-0" / "curve.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["update"] for row in rows] == ["6", "12", "15"]
