"""tools/experiments/compare_positions.py: the two models differ in positions and
nothing else."""

import argparse
import csv
import dataclasses
import io
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from common import tool_module
from matplotlib import image
from objective_cases import LENGTH, TOKENIZER, make_objective

from roformer_keras.config import RoFormerConfig

# TensorFlow variables do not know NumPy 2's `copy`.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")

CONFIG = RoFormerConfig(
    vocabulary_size=TOKENIZER.vocabulary_size,
    num_layers=2,
    num_heads=2,
    hidden_dim=16,
    intermediate_dim=32,
)
STEPS = 40
CHARACTERS = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏"
SETTINGS = """
objective = "mlm"
min_count = 1
buffer_size = 50

[model]
dropout = 0.1
num_heads = 8

[[data]]
files = ["lines.txt"]
holdout = {holdout}

[[stages]]
steps = 8000
learning_rate = 1e-2
"""


@pytest.fixture(scope="module")
def tool():
    with tool_module("compare_positions") as module:
        # Each is evaluated at its end, which takes most of the time here.
        module.INTERVALS = 3
        yield module


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A corpus of lines that can be learned, and what says how."""
    return write_config(tmp_path_factory.mktemp("corpus"), holdout=0.2)


def write_config(folder, holdout):
    generator = np.random.default_rng(0)
    lines = []
    for _ in range(300):
        start, count = generator.integers(len(CHARACTERS)), generator.integers(4, 12)
        lines.append(
            "".join(CHARACTERS[(start + i) % len(CHARACTERS)] for i in range(count))
        )
    (folder / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    path = folder / "mlm.toml"
    path.write_text(SETTINGS.format(holdout=holdout), encoding="utf-8")
    return path


def options_of(config, **changes):
    return {
        "config": config,
        "steps": STEPS,
        "seeds": 1,
        "layers": 1,
        "hidden": 16,
        "heads": 2,
        "length": 12,
        "batch_size": 4,
        **changes,
    }


def arguments_of(config, folder, **changes):
    arguments = ["--output", str(folder)]
    for name, value in options_of(config, **changes).items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    return arguments


def rows_of(folder):
    with open(folder / "curves.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# === The two models ===


@pytest.fixture
def models(tool):
    """Weights large enough that positions show in the logits."""
    models = tool.make_models(CONFIG, LENGTH, seed=0)
    generator = np.random.default_rng(0)
    for model in models.values():
        for weight in model.trainable_weights:
            if len(weight.shape) > 1:
                weight.assign(generator.normal(size=weight.shape, scale=0.4))
    return models


def test_models_begin_with_equal_weights_but_for_the_segments(tool):
    roformer, absolute = tool.make_models(CONFIG, LENGTH, seed=3).values()
    shared = [dict(tool.shared_variables(model)) for model in (roformer, absolute)]
    assert shared[0].keys() == shared[1].keys()
    for path, variable in shared[0].items():
        np.testing.assert_array_equal(variable.numpy(), shared[1][path].numpy(), path)
    # Only this is left.
    for model, rows in ((roformer, 2), (absolute, LENGTH)):
        (table,) = (
            variable
            for variable in model.variables
            if not any(variable is other for _, other in tool.shared_variables(model))
        )
        assert "segment_embedding" in table.path
        assert table.shape == (rows, CONFIG.hidden_dim)
        assert np.std(table.numpy()) > 0


def test_another_seed_begins_with_other_weights(tool):
    first, again, other = (
        tool.make_models(CONFIG, LENGTH, seed)["absolute"].get_weights()[0]
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_dropout_is_the_same_in_both(tool):
    models = tool.make_models(CONFIG, LENGTH, seed=0)
    objective = make_objective("mlm")
    inputs = {
        "token_ids": np.full((2, LENGTH), 9),
        "segment_ids": np.zeros((2, LENGTH), int),
        "masked_positions": np.zeros((2, objective.most_hidden), int),
    }
    found = {}
    for name, model in models.items():
        # Without tables, equal tokens are equal in all places, and attention gives
        # their value wherever it looks: only what is dropped makes a difference.
        table = model.backbone.segment_embedding.embeddings
        table.assign(np.zeros(table.shape))
        trainer = tool.make_trainer(name, model, objective)
        found[name] = [
            np.array(trainer(inputs, training=training))[:, 0]
            for training in (False, True)
        ]
    (plain, dropped), (same_plain, same_dropped) = found.values()
    np.testing.assert_allclose(plain, same_plain, atol=1e-5)
    assert np.abs(dropped - plain).max() > 0.01
    # Attention drops by score, and scores differ a little by position.
    difference = np.abs(dropped - same_dropped).max()
    assert difference < 0.05 * np.abs(dropped - plain).max()


def logits_of(tool, name, model, token_ids, positions):
    """At every position that an objective of this many would hide."""
    objective = make_objective("mlm", rate=1.0)
    return np.array(
        tool.make_trainer(name, model, objective)(
            {
                "token_ids": token_ids,
                "segment_ids": np.zeros_like(token_ids),
                "masked_positions": positions,
            }
        )
    )


@pytest.fixture
def texts():
    """Rows without padding, and in each a place for every token but the first."""
    generator = np.random.default_rng(1)
    token_ids = generator.integers(8, TOKENIZER.vocabulary_size, (3, LENGTH))
    order = np.concatenate([[0], 1 + generator.permutation(LENGTH - 1)])
    everywhere = np.tile(np.arange(LENGTH), (3, 1))
    return token_ids, order, everywhere


def test_positions_of_the_absolute_model_come_from_the_table_alone(tool, models, texts):
    token_ids, order, everywhere = texts
    model = models["absolute"]
    before = logits_of(tool, "absolute", model, token_ids, everywhere)
    # Tokens that go to other places take other positions ...
    moved = logits_of(tool, "absolute", model, token_ids[:, order], everywhere)
    assert np.abs(moved - before[:, order]).max() > 0.1
    # ... unless their rows of the table go with them: nothing else tells where they
    # are, no angle of RoPE and no other row.
    table = model.backbone.segment_embedding.embeddings
    table.assign(table.numpy()[order])
    moved = logits_of(tool, "absolute", model, token_ids[:, order], everywhere)
    np.testing.assert_allclose(moved, before[:, order], atol=1e-4)


def test_permuted_tokens_with_their_segments_give_permuted_outputs(models, texts):
    token_ids, order, everywhere = texts
    model = models["absolute"]

    def outputs(tokens, segments, positions):
        return np.array(
            model(
                {
                    "token_ids": tokens,
                    "segment_ids": segments,
                    "position_ids": positions.astype("float32"),
                }
            )
        )

    zeros = np.zeros_like(everywhere)
    before = outputs(token_ids, everywhere, zeros)
    moved = outputs(token_ids[:, order], everywhere[:, order], zeros)
    np.testing.assert_allclose(moved, before[:, order], atol=1e-4)
    # With positions that turn it is not so.
    turned = outputs(token_ids[:, order], everywhere[:, order], everywhere)
    assert np.abs(turned - before[:, order]).max() > 0.1


def test_roformer_knows_positions_without_a_table(tool, models, texts):
    token_ids, order, everywhere = texts
    model = models["roformer"]
    before = logits_of(tool, "roformer", model, token_ids, everywhere)
    moved = logits_of(tool, "roformer", model, token_ids[:, order], everywhere)
    assert np.abs(moved - before[:, order]).max() > 0.1


# === The whole comparison ===


@dataclasses.dataclass
class Comparison:
    folder: Path
    printed: str
    batches: list
    trained: list
    first_rows: list


@pytest.fixture(scope="module")
def whole(tool, config, tmp_path_factory):
    """A comparison of two seeds, interrupted in its second training.

    What it left and printed, which trainings it began, and on which batches.
    """
    folder = tmp_path_factory.mktemp("whole")
    batches, batches_of_loader = [], tool.Loader.__iter__
    trained, plain = [], tool.train

    def recorded(loader):
        batches.append([])
        for batch in batches_of_loader(loader):
            batches[-1].append(batch)
            yield batch

    def train(name, seed, *arguments):
        trained.append((name, seed))
        if len(trained) == 2:
            raise KeyboardInterrupt
        return plain(name, seed, *arguments)

    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output):
        patch.setattr(tool.Loader, "__iter__", recorded)
        patch.setattr(tool, "train", train)
        with pytest.raises(KeyboardInterrupt):
            tool.main(arguments_of(config, folder, seeds=2))
        first_rows = rows_of(folder)
        assert tool.main(arguments_of(config, folder, seeds=2)) == 0
    return Comparison(folder, output.getvalue(), batches, trained, first_rows)


@pytest.fixture
def copied(whole, tmp_path):
    """The folder of a comparison, to do something to."""
    return Path(shutil.copytree(whole.folder, tmp_path / "copied"))


def test_the_table_and_the_curves_say_the_same(whole):
    table, below = whole.printed.strip().split("\n\n")
    head, _, *lines = table.splitlines()
    assert head == "| seed | RoFormer | absolute positions | difference |"
    found = {
        seed: [float(figure) for figure in figures]
        for seed, *figures in (line.strip("| ").split(" | ") for line in lines)
    }
    assert list(found) == ["0", "1", "mean"]
    for roformer, absolute, difference in found.values():
        assert difference == pytest.approx(roformer - absolute, abs=2e-4)
    means = np.mean([found["0"], found["1"]], axis=0)
    assert found["mean"] == pytest.approx(means, abs=2e-4)
    lower = sum(found[seed][2] < 0 for seed in "01")
    assert f"lower with {lower} of 2 seeds" in below
    assert "tokens/s" in below

    trainings = {}
    for row in rows_of(whole.folder):
        trainings.setdefault((row["model"], row["seed"]), []).append(row)
        assert float(row["tokens_per_second"]) > 0
    assert trainings.keys() == {
        (model, seed) for model in ("roformer", "absolute") for seed in "01"
    }
    for (model, seed), rows in trainings.items():
        # The last interval may be shorter.
        assert [int(row["step"]) for row in rows] == [13, 26, 39, STEPS]
        first, last = (float(row["held_out_loss"]) for row in (rows[0], rows[-1]))
        assert last == pytest.approx(found[seed][model == "absolute"], abs=1e-4)
        # They learn.
        assert last < first
        assert float(rows[-1]["train_loss"]) < float(rows[0]["train_loss"])


def test_the_picture_shows_both_models(whole):
    picture = image.imread(whole.folder / "curves.png")
    assert min(picture.shape[:2]) > 400
    # In their colours, blue and orange.
    for colour in ((0x1F, 0x77, 0xB4), (0xFF, 0x7F, 0x0E)):
        assert (np.abs(picture[..., :3] * 255 - colour).max(-1) < 2).sum() > 100


def test_both_models_get_identical_batches(whole):
    roformer, absolute, other_seed, _ = whole.batches
    assert min(len(roformer), len(absolute)) >= STEPS
    for one, other in zip(roformer[:STEPS], absolute[:STEPS], strict=True):
        assert_same_batches(one, other)
    first = roformer[0][0]["token_ids"]
    assert not np.array_equal(first, other_seed[0][0]["token_ids"])
    # Rows are full.
    assert np.all(first > 0)


def assert_same_batches(one, other):
    for a, b in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_array_equal(a, b)


def arrays(batch):
    inputs, targets, weights = batch
    return [*(inputs[name] for name in sorted(inputs)), targets, weights]


def test_held_out_rows_are_never_trained_on_and_always_the_same(tool, config, whole):
    settings = tool.settings_of(argparse.Namespace(**options_of(config)))
    parts = {
        part: set(tool.make_corpus(settings, 0, part).once())
        for part in ("train", "held_out")
    }
    assert parts["held_out"] and not parts["train"] & parts["held_out"]
    tokenizer = tool.make_tokenizer(whole.folder, settings)
    objective = tool.MaskedLM(tokenizer, settings.stages[0].length)
    first, again = (tool.HeldOut(settings, objective) for _ in range(2))
    texts = "\n".join(text for (text,) in parts["held_out"])
    for number in range(len(first)):
        assert_same_batches(first[number], again[number])
        inputs, targets, weights = first[number]
        rows = zip(
            inputs["token_ids"].copy(),
            inputs["masked_positions"],
            targets,
            weights > 0,
            strict=True,
        )
        for token_ids, positions, hidden, counts in rows:
            token_ids[positions[counts]] = hidden[counts]
            tokens = [tokenizer.vocabulary[i] for i in token_ids if i]
            for text in "".join(tokens[1:-1]).split("[SEP]"):
                assert text in texts


def test_an_interrupted_comparison_goes_on_with_what_is_missing(whole):
    # What was whole is there, and is not trained again.
    assert {(row["model"], row["seed"]) for row in whole.first_rows} == {
        ("roformer", "0")
    }
    assert rows_of(whole.folder)[: len(whole.first_rows)] == whole.first_rows
    assert whole.trained == [
        ("roformer", 0),
        ("absolute", 0),
        ("absolute", 0),
        ("roformer", 1),
        ("absolute", 1),
    ]


def test_a_finished_comparison_trains_nothing_but_more_seeds(
    tool, config, copied, monkeypatch, capsys
):
    trained = []

    def train(name, seed, *arguments):
        trained.append((name, seed))
        return [
            {**row, "seed": seed}
            for row in tool.read_rows(copied / "curves.csv", tool.COLUMNS)
            if (row["model"], row["seed"]) == (name, 0)
        ]

    monkeypatch.setattr(tool, "train", train)
    before = rows_of(copied)
    (copied / "curves.png").unlink()
    assert tool.main(arguments_of(config, copied, seeds=2)) == 0
    # The results appear all the same.
    assert not trained and (copied / "curves.png").exists()
    assert tool.main(arguments_of(config, copied, seeds=3)) == 0
    assert trained == [("roformer", 2), ("absolute", 2)]
    assert rows_of(copied)[: len(before)] == before
    assert "\n| 2 |" in capsys.readouterr().out
    # Fewer again: the table is of these alone.
    assert tool.main(arguments_of(config, copied, seeds=1)) == 0
    assert "\n| 1 |" not in capsys.readouterr().out
    assert len(rows_of(copied)) == 1.5 * len(before)


def test_a_folder_of_another_comparison_stays_as_it_is(tool, config, copied, capsys):
    before = (copied / "curves.csv").read_bytes()
    assert tool.main(arguments_of(config, copied, steps=STEPS + 1)) != 0
    assert "hold a comparison of equal settings" in capsys.readouterr().err
    # Nor are curves taken that nothing is known of.
    (copied / "settings.json").unlink()
    assert tool.main(arguments_of(config, copied)) != 0
    assert "settings.json is missing" in capsys.readouterr().err
    assert (copied / "curves.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "holdout", "message"),
    [
        ({"steps": 1}, 0.2, "at least 2 steps and 1 seed, got steps=1"),
        ({"seeds": 0}, 0.2, "seeds=0"),
        ({}, 0, "needs held-out data"),
        ({"batch_size": 4000}, 0.2, "a batch takes 4000 held-out rows, and there are"),
    ],
)
def test_what_cannot_be_compared(tool, tmp_path, capsys, change, holdout, message):
    config = write_config(tmp_path, holdout)
    assert tool.main(arguments_of(config, tmp_path / "run", **change)) != 0
    assert message in capsys.readouterr().err


def test_only_fresh_masked_models_are_compared(tool, tmp_path, capsys):
    config = write_config(tmp_path, 0.2)
    text = config.read_text(encoding="utf-8").replace('"mlm"', '"lm"')
    config.write_text(text, encoding="utf-8")
    assert tool.main(arguments_of(config, tmp_path / "run")) != 0
    assert "needs a configuration of mlm" in capsys.readouterr().err
