"""tools/experiments/compare_performers.py: models that differ in attention, and their
losses."""

import io
import json
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from common import ROOT, tool_module, write_changed
from matplotlib import image

CHARACTERS = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏"
CONFIG = """
models = ["performer-rope", "performer", "softmax-rope"]
objective = "lm"
min_count = 1

[model]
num_layers = 1
num_heads = 2
hidden_dim = 16
intermediate_dim = 32
performer_features = 8
dropout = 0.0
attention_dropout = 0.0

[[data]]
files = ["lines.tsv"]
fields = ["1", "2"]
group = "2"
holdout = 0.4

[[stages]]
steps = 22
length = 16
batch_size = 4
learning_rate = 1e-2
"""
VOCABULARY_SIZE = 29
# TensorFlow variables do not know NumPy 2's `copy`.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")


@pytest.fixture(scope="module")
def tool():
    with tool_module("compare_performers") as module:
        module.WINDOWS, module.INTERVALS = 6, 4
        yield module


def write_config(folder, **changes):
    """The file of a comparison, with some of its lines in other words."""
    generator = np.random.default_rng(0)
    lines = []
    for document in range(12):
        place = generator.integers(len(CHARACTERS))
        for _ in range(10):
            text = "".join(CHARACTERS[(place + i) % len(CHARACTERS)] for i in range(9))
            lines.append(f"{text}\tbook {document}")
            place += 9
    (folder / "lines.tsv").write_text("\n".join(lines), encoding="utf-8")
    return write_changed(folder / "performers.toml", CONFIG, changes)


# === The models ===


def make_models(tool, folder):
    settings = tool.load_comparison(write_config(folder)).settings
    return {
        name: tool.make_model(name, settings, VOCABULARY_SIZE, seed=3)
        for name in tool.MODELS
    }


@pytest.fixture(scope="module")
def models(tool, tmp_path_factory):
    return make_models(tool, tmp_path_factory.mktemp("models"))


def test_models_begin_with_the_same_weights(models):
    first, *others = (
        [np.array(weight) for weight in model.trainable_weights]
        for model in models.values()
    )
    for weights in others:
        for one, other in zip(first, weights, strict=True):
            np.testing.assert_array_equal(one, other)


def test_models_differ_in_attention(tool, tmp_path):
    models = make_models(tool, tmp_path)
    for model in models.values():
        # So large that attention is not the same to all tokens.
        generator = np.random.default_rng(0)
        for weight in model.trainable_weights:
            if len(weight.shape) > 1:
                weight.assign(generator.normal(size=weight.shape, scale=0.5))
    token_ids = np.random.default_rng(0).integers(5, VOCABULARY_SIZE, (2, 16))
    inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
    logits = [np.array(model(inputs)) for model in models.values()]
    for i, one in enumerate(logits):
        # The first token sees itself alone.
        np.testing.assert_allclose(one[:, 0], logits[0][:, 0], atol=1e-4)
        for other in logits[:i]:
            assert np.abs(one[:, 1:] - other[:, 1:]).max() > 1e-2


def test_what_models_are_told(models):
    told = {
        name: (model.config.attention_type, model.config.rotary)
        for name, model in models.items()
    }
    assert told == {
        "performer-rope": ("performer", True),
        "performer-of-rope": ("rotary_performer", True),
        "performer": ("performer", False),
        "linear-rope": ("linear", True),
        "linear": ("linear", False),
        "softmax-rope": ("softmax", True),
        "softmax": ("softmax", False),
    }
    assert all(model.config.attention == "causal" for model in models.values())
    for name in ("performer-rope", "performer-of-rope", "performer"):
        assert models[name].config.performer_seed == 3
        assert models[name].config.performer_features == 8


# === All of it ===


@dataclass
class Compared:
    folder: Path
    config: Path
    printed: str
    trained: list
    rows: list


@pytest.fixture(scope="module")
def whole(tool, tmp_path_factory):
    """Two seeds, interrupted in the second training; what was trained, and on what."""
    config = write_config(tmp_path_factory.mktemp("corpus"))
    folder = tmp_path_factory.mktemp("whole")
    trained, rows, train = [], [], tool.train

    def recorded(name, seed, model, settings, documents, windows):
        trained.append((name, seed))
        rows.append([])
        if len(trained) == 2:
            raise KeyboardInterrupt
        drawn = documents.rows

        class Drawn:
            def rows(self, *arguments):
                rows[-1].append(drawn(*arguments))
                return rows[-1][-1]

        return train(name, seed, model, settings, Drawn(), windows)

    output = io.StringIO()
    arguments = ["--config", str(config), "--output", str(folder), "--seeds", "2"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output):
        patch.setattr(tool, "train", recorded)
        with pytest.raises(KeyboardInterrupt):
            tool.main(arguments)
        assert tool.main(arguments) == 0
    return Compared(folder, config, output.getvalue(), trained, rows)


def test_an_interrupted_comparison_goes_on_with_what_is_missing(whole):
    assert whole.trained == [
        ("performer-rope", 0),
        ("performer", 0),
        ("performer", 0),
        ("softmax-rope", 0),
        ("performer-rope", 1),
        ("performer", 1),
        ("softmax-rope", 1),
    ]


def test_models_of_a_seed_get_the_same_rows(whole):
    rotary, _, without, softmax, other_seed, *_ = whole.rows
    for step in range(22):
        np.testing.assert_array_equal(rotary[step], without[step])
        np.testing.assert_array_equal(rotary[step], softmax[step])
    assert rotary[0].shape == (4, 17)
    assert not np.array_equal(rotary[0], rotary[1])
    assert not np.array_equal(rotary[0], other_seed[0])


def test_results_are_those_of_the_curves(tool, whole):
    results = json.loads((whole.folder / "results.json").read_text(encoding="utf-8"))
    rows = tool.read_rows(whole.folder / "curves.csv", tool.COLUMNS)
    assert list(results["models"]) == ["performer-rope", "performer", "softmax-rope"]
    vocabulary = (whole.folder / "vocab.txt").read_text(encoding="utf-8").split()
    # The loss, were all tokens as likely.
    all_alike = np.log(len(vocabulary))
    for name, found in results["models"].items():
        # Intervals of 22 // 4 steps, of which the last is shorter.
        assert found["steps"] == [5, 10, 15, 20, 22]
        losses = np.array(
            [
                [
                    row["validation_loss"]
                    for row in rows
                    if (row["model"], row["seed"]) == (name, seed)
                ]
                for seed in (0, 1)
            ]
        )
        np.testing.assert_allclose(found["seeds"], losses)
        np.testing.assert_allclose(found["mean"], losses.mean(0))
        np.testing.assert_allclose(found["spread"], losses.max(0) - losses.min(0))
        assert found["tokens_per_second"] > 0
        assert found["mean"][-1] < found["mean"][0] < all_alike
    rotary, without = (
        results["models"][name] for name in ("performer-rope", "performer")
    )
    (name,) = results["rotation"]
    assert name == "performer-rope"
    np.testing.assert_allclose(
        results["rotation"][name]["differences"],
        np.array(rotary["seeds"])[:, -1] - np.array(without["seeds"])[:, -1],
    )


def test_validation_is_the_loss_of_all_rows_that_are_held_out(tool, whole):
    """A training of one step, of rate 0, leaves the model as it was."""
    text = whole.config.read_text(encoding="utf-8")
    text = text.replace("steps = 22", "steps = 1").replace("1e-2", "1e-30")
    path = whole.config.parent / "still.toml"
    path.write_text(text, encoding="utf-8")
    settings = tool.load_comparison(path).settings
    model = tool.make_model("performer-rope", settings, VOCABULARY_SIZE, 0)
    # Not a multiple of the size of a batch.
    windows = np.random.default_rng(0).integers(5, VOCABULARY_SIZE, (6, 17))
    windows = windows.astype("int32")

    class Same:
        def rows(self, generator, count, tokens):
            return windows[:count, :tokens]

    (row,) = tool.train("performer-rope", 0, model, settings, Same(), windows)
    inputs, targets = tool.examples_of(windows)
    logits = np.array(model(inputs), "float64")
    logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    losses = -np.take_along_axis(logits, targets[..., None], axis=-1)
    assert row["validation_loss"] == pytest.approx(losses.mean(), abs=1e-5)
    assert row["train_loss"] == pytest.approx(losses[:4].mean(), abs=1e-5)
    assert row["step"] == 1


def test_steps_to_the_same_loss(tool, whole):
    comparison = tool.load_comparison(whole.config)
    rows = [
        {"model": name, "seed": 0, "step": step, "validation_loss": loss}
        | {"train_loss": loss, "tokens_per_second": 1.0}
        for name, losses in {
            "performer-rope": (5.0, 3.9, 3.0),
            "performer": (5.5, 4.5, 4.0),
            "softmax-rope": (5.0, 4.0, 3.0),
        }.items()
        for step, loss in zip((10, 20, 30), losses, strict=True)
    ]
    results = tool.results_of(rows, comparison)
    assert results["rotation"] == {
        "performer-rope": {"differences": [-1.0], "steps_to_same_loss": 20}
    }
    assert "the final loss without is reached by step 20" in tool.report(results)
    for row in rows:
        if row["model"] == "performer":
            row["validation_loss"] -= 2
    results = tool.results_of(rows, comparison)
    assert results["rotation"]["performer-rope"]["steps_to_same_loss"] is None
    assert "lower with 0 of 1; the final loss without is not" in tool.report(results)


def test_the_table_says_the_same(whole):
    results = json.loads((whole.folder / "results.json").read_text(encoding="utf-8"))
    table = (whole.folder / "table.md").read_text(encoding="utf-8")
    assert table.strip() == whole.printed.strip()
    head, _, *lines = table.split("\n\n")[0].splitlines()
    assert head == "| steps | 10 | 15 | 20 | 22 | tokens/s |"
    for line, found in zip(lines, results["models"].values(), strict=True):
        cells = line.strip("| ").split(" | ")[1:-1]
        assert cells == [
            f"{found['mean'][i]:.3f} ({found['spread'][i]:.3f})" for i in (1, 2, 3, 4)
        ]
    assert "2 seeds" in table and "22 steps of 4 rows of 16 characters" in table


def test_the_picture_shows_the_models(whole):
    picture = image.imread(whole.folder / "curves.png")
    assert min(picture.shape[:2]) > 400
    for colour in ((31, 119, 180), (127, 127, 127)):
        assert (np.abs(picture[..., :3] * 255 - colour).max(-1) < 2).sum() > 50


def test_a_finished_comparison_trains_what_is_added_alone(
    tool, whole, monkeypatch, capsys
):
    trained = []

    def train(name, seed, *arguments):
        trained.append((name, seed))
        raise KeyboardInterrupt

    monkeypatch.setattr(tool, "train", train)
    arguments = ["--config", str(whole.config), "--output", str(whole.folder)]
    # Fewer seeds: of these alone.
    assert tool.main([*arguments, "--seeds", "1"]) == 0
    assert "1 seed)" in capsys.readouterr().out
    text = whole.config.read_text(encoding="utf-8")
    more = whole.config.with_name("more.toml")
    more.write_text(text.replace('["perf', '["linear", "perf'), encoding="utf-8")
    arguments[1] = str(more)
    with pytest.raises(KeyboardInterrupt):
        tool.main([*arguments, "--seeds", "2"])
    assert trained == [("linear", 0)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({'"lm"': '"mlm"'}, "a configuration of lm from fresh weights"),
        ({'"softmax-rope"': '"cosine"'}, "models must be one of 'performer-rope'"),
        ({"models = [": "models = 1 # ["}, "models must be a list"),
        ({'"softmax-rope"': '"performer"'}, "at least one name, each once"),
        ({"holdout = 0.4": "holdout = 0.0"}, "a holdout above 0"),
        ({'["1", "2"]': '["1"]'}, "two fields, a text and its document"),
        ({"length = 16": "length = 320"}, "a row takes 321 tokens"),
    ],
)
def test_what_cannot_be_compared(tool, tmp_path, capsys, changes, message):
    config = write_config(tmp_path, **changes)
    arguments = ["--config", str(config), "--output", str(tmp_path / "run")]
    assert tool.main(arguments) != 0
    assert message in capsys.readouterr().err
    assert tool.main([*arguments, "--seeds", "0"]) != 0
    assert "seeds must be" in capsys.readouterr().err


def test_the_committed_configuration(tool, monkeypatch):
    monkeypatch.chdir(ROOT)
    comparison = tool.load_comparison("checkpoints/training/performers.toml")
    assert comparison.models == (
        "performer-rope",
        "performer-of-rope",
        "performer",
        "softmax-rope",
        "softmax",
    )
    assert comparison.settings.stages[0].length == 256
