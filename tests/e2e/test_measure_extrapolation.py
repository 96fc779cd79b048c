"""tools/experiments/measure_extrapolation.py: what is trained, what is told, and of
which rows."""

import io
import json
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from common import tool_module, write_changed
from matplotlib import image

from roformer_keras.config import RoFormerConfig
from roformer_keras.errors import ConfigurationError
from roformer_keras.models import RoFormerCausalLM
from roformer_keras.text.tokenizer import RoFormerTokenizer

# TensorFlow variables do not know NumPy 2's `copy`.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")

CHARACTERS = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏"
TOKENIZER = RoFormerTokenizer(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CHARACTERS]
)
SHORT, LONG = 16, 64
SETTINGS = """
objective = "lm"
min_count = 1

[model]
num_layers = 1
num_heads = 2
hidden_dim = 16
intermediate_dim = 32
dropout = 0.1

[[data]]
files = ["lines.tsv"]
fields = ["1", "2"]
group = "2"
holdout = 0.4

[[stages]]
steps = 25
length = 16
batch_size = 4
learning_rate = 1e-2

[[stages]]
steps = 3
length = 64
batch_size = 2
learning_rate = 1e-3
"""
METHODS = [
    "rotary",
    "cut",
    "interpolated",
    "ntk",
    "rotary+",
    "interpolated+",
    "absolute",
]


@pytest.fixture(scope="module")
def tool():
    with tool_module("measure_extrapolation") as module:
        module.WINDOWS, module.BIN = 6, 16
        yield module


def lines_of(documents, sentences, seed=0):
    """Lines of some documents that count through the characters."""
    generator = np.random.default_rng(seed)
    lines = []
    for document in range(documents):
        place = generator.integers(len(CHARACTERS))
        for _ in range(sentences):
            count = generator.integers(6, 12)
            ids = (place + np.arange(count)) % len(CHARACTERS)
            lines.append(("".join(CHARACTERS[i] for i in ids), f"book {document}"))
            place += count
    return lines


def write_config(folder, **changes):
    """The file of the settings, with some of its lines in other words."""
    lines = lines_of(documents=12, sentences=20)
    (folder / "lines.tsv").write_text(
        "\n".join("\t".join(line) for line in lines), encoding="utf-8"
    )
    return write_changed(folder / "lm.toml", SETTINGS, changes)


# === The rows ===


def test_rows_are_of_one_document_each(tool):
    lines = lines_of(documents=5, sentences=6)
    texts = {}
    for text, document in lines:
        texts[document] = texts.get(document, "") + text
    documents = tool.Documents(lines, TOKENIZER)
    rows = documents.rows(np.random.default_rng(0), 300, 20)
    assert rows.shape == (300, 20)
    found = {"".join(TOKENIZER.vocabulary[i] for i in row) for row in rows}
    assert all(any(row in text for text in texts.values()) for row in found)
    # From anywhere, the first place and the last one too.
    assert all({text[:20], text[-20:]} & found for text in texts.values())
    with pytest.raises(ConfigurationError, match="a row takes 90 tokens, and the long"):
        documents.rows(np.random.default_rng(0), 1, 90)


def test_windows_share_nothing(tool):
    # Each token stands there once.
    tokenizer = RoFormerTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(chr(0x4E00 + i) for i in range(100))]
    )
    text = "".join(tokenizer.vocabulary[4:])
    lines = [(text[:33], "a"), (text[33:40], "a"), (text[40:45], "b"), (text[45:], "c")]
    documents = tool.Documents(lines, tokenizer)
    windows = documents.windows(np.random.default_rng(0), 50, 10)
    # 40 tokens, 5 and 55.
    assert windows.shape == (9, 10)
    assert len(np.unique(windows)) == 90
    np.testing.assert_array_equal(np.diff(windows, axis=1), 1)
    assert documents.windows(np.random.default_rng(0), 4, 10).shape == (4, 10)


# === The models ===


def test_inputs(tool):
    rows = np.ones((2, 6), "int32")
    inputs = tool.inputs_of("roformer", rows, length=4, divisor=2)
    np.testing.assert_array_equal(inputs["position_ids"], [np.arange(6) / 2] * 2)
    assert not inputs["segment_ids"].any()
    inputs = tool.inputs_of("absolute", rows, length=4)
    np.testing.assert_array_equal(inputs["segment_ids"], [[0, 1, 2, 3, 3, 3]] * 2)
    assert not inputs["position_ids"].any()


def test_ntk_base_slows_the_last_pair_and_leaves_the_first(tool):
    features, scale = 32, 8
    pairs = np.arange(features // 2)
    before, after = (
        base ** (-2 * pairs / features)
        for base in (10000.0, tool.ntk_base(10000.0, features, scale))
    )
    assert after[0] == before[0]
    assert after[-1] == pytest.approx(before[-1] / scale)
    assert np.all(np.diff(before / after) > 0)


@pytest.fixture(scope="module")
def models(tool):
    """Weights large enough that positions show in the losses."""
    config = RoFormerConfig(
        vocabulary_size=TOKENIZER.vocabulary_size,
        num_layers=2,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        attention="causal",
        custom_position_ids=True,
    )
    models = tool.make_models(config, SHORT, 0, RoFormerCausalLM)
    generator = np.random.default_rng(0)
    for model in models.values():
        for weight in model.trainable_weights:
            if len(weight.shape) > 1:
                weight.assign(generator.normal(size=weight.shape, scale=0.5))
    return models


@pytest.fixture(scope="module")
def windows(tool):
    documents = tool.Documents(lines_of(documents=4, sentences=20), TOKENIZER)
    return documents.windows(np.random.default_rng(0), 5, LONG + 1)


def losses_of(tool, model, name, windows, divisor=1):
    return tool.losses_of(model, name, windows[:, :-1], windows[:, 1:], SHORT, divisor)


@pytest.mark.parametrize("name", ["roformer", "absolute"])
def test_losses_are_those_of_the_logits(tool, models, windows, name):
    found = losses_of(tool, models[name], name, windows)
    inputs = tool.inputs_of(name, windows[:, :-1], SHORT)
    logits = np.array(models[name](inputs), "float64")
    logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = -np.take_along_axis(logits, windows[:, 1:, None], axis=-1)
    np.testing.assert_allclose(found, expected[..., 0], atol=1e-5)


@pytest.mark.parametrize("name", ["roformer", "absolute"])
def test_what_follows_changes_no_loss(tool, models, windows, name):
    whole = losses_of(tool, models[name], name, windows)
    short = losses_of(tool, models[name], name, windows[:, : SHORT + 1])
    np.testing.assert_allclose(whole[:, :SHORT], short, atol=1e-5)


def test_each_method_reads_in_a_way_of_its_own(tool, models, windows):
    model, scale = models["roformer"], LONG / SHORT
    plain = losses_of(tool, model, "roformer", windows)
    divided = losses_of(tool, model, "roformer", windows, scale)
    base = tool.ntk_base(10000.0, model.config.key_dim, scale)
    other = tool.copy_of(model, rotary_base=base)
    ntk = losses_of(tool, other, "roformer", windows)
    assert other.config.rotary_base == base
    # The first token has none before it to be far from.
    for found in (divided, ntk):
        np.testing.assert_allclose(found[:, 0], plain[:, 0], atol=1e-5)
    for one, another in ((plain, divided), (plain, ntk), (divided, ntk)):
        assert np.abs(one - another).max() > 0.05
    # A copy is trained without the model that it is of.
    other.set_weights([0 * weight for weight in other.get_weights()])
    again = losses_of(tool, model, "roformer", windows)
    np.testing.assert_array_equal(again, plain)


# === All of it ===


@dataclass
class Measured:
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
    trained, rows = [], []
    measure, drawn = tool.measure, tool.Documents.rows

    def measured(name, seed, *arguments):
        trained.append((name, seed))
        rows.append([])
        if len(trained) == 2:
            raise KeyboardInterrupt
        return measure(name, seed, *arguments)

    def recorded(documents, generator, count, tokens):
        found = drawn(documents, generator, count, tokens)
        rows[-1].append(found)
        return found

    output = io.StringIO()
    arguments = ["--config", str(config), "--output", str(folder), "--seeds", "2"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output):
        patch.setattr(tool, "measure", measured)
        patch.setattr(tool.Documents, "rows", recorded)
        with pytest.raises(KeyboardInterrupt):
            tool.main(arguments)
        assert tool.main(arguments) == 0
    return Measured(folder, config, output.getvalue(), trained, rows)


def test_an_interrupted_measurement_goes_on_with_what_is_missing(whole):
    assert whole.trained == [
        ("roformer", 0),
        ("absolute", 0),
        ("absolute", 0),
        ("roformer", 1),
        ("absolute", 1),
    ]


def test_both_models_of_a_seed_get_the_same_rows(whole):
    roformer, _, absolute, other_seed, _ = whole.rows
    steps = 25
    for one, other in zip(roformer[:steps], absolute[:steps], strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(roformer[0], other_seed[0])
    # A row, and the token behind it; then long ones, the same in both trainings.
    assert roformer[0].shape == (4, SHORT + 1)
    long = [row for row in roformer if row.shape == (2, LONG + 1)]
    assert len(long) >= 6
    assert sum(np.array_equal(row, long[0]) for row in long) == 2


def test_results_are_those_of_the_curves(tool, whole):
    results = json.loads((whole.folder / "results.json").read_text(encoding="utf-8"))
    losses = tool.read_rows(whole.folder / "losses.csv", tool.LOSS_COLUMNS)
    assert list(results["losses"]) == METHODS
    for method, bands in results["losses"].items():
        assert [(band["from"], band["to"]) for band in bands] == [
            (0, 16),
            (16, 32),
            (32, 64),
        ]
        for band in bands:
            expected = [
                np.mean(
                    [
                        row["loss"]
                        for row in losses
                        if (row["method"], row["seed"]) == (method, seed)
                        and band["from"] <= row["position"] < band["to"]
                    ]
                )
                for seed in (0, 1)
            ]
            assert band["seeds"] == pytest.approx(expected)
            assert band["mean"] == pytest.approx(np.mean(expected))
            assert band["spread"] == pytest.approx(np.ptp(expected))
    trainings = {
        (run["model"], run["seed"], run["training"]) for run in results["runs"]
    }
    assert len(trainings) == len(results["runs"]) == 8
    assert all(run["tokens_per_second"] > 0 for run in results["runs"])


def test_rows_by_themselves_begin_like_the_whole(tool, whole):
    losses = tool.read_rows(whole.folder / "losses.csv", tool.LOSS_COLUMNS)
    rotary, cut = (
        np.array([row["loss"] for row in losses if row["method"] == method])
        for method in ("rotary", "cut")
    )
    # Two seeds of four rows, of one bin each: all but the first do without a context.
    first = np.arange(8) % 4 == 0
    np.testing.assert_allclose(cut[first], rotary[first], atol=1e-5)
    assert np.abs(cut[~first] - rotary[~first]).max() > 1e-3


def test_they_learn(whole):
    results = json.loads((whole.folder / "results.json").read_text(encoding="utf-8"))
    for method in ("rotary", "absolute"):
        # Of as many tokens, all alike, a loss of log(29) = 3.4.
        assert results["losses"][method][0]["mean"] < 3.2


def test_the_table_says_the_same(whole):
    results = json.loads((whole.folder / "results.json").read_text(encoding="utf-8"))
    table, below = whole.printed.strip().split("\n\n")
    head, _, *lines = table.splitlines()
    assert head == "| positions | 1 to 16 | 17 to 32 | 33 to 64 |"
    for line, bands in zip(lines, results["losses"].values(), strict=True):
        cells = line.strip("| ").split(" | ")[1:]
        assert cells == [f"{b['mean']:.3f} ({b['spread']:.3f})" for b in bands]
    assert "2 seeds" in below and "25 steps of 4 rows of 16 tokens" in below


def test_the_picture_shows_all_methods(whole):
    picture = image.imread(whole.folder / "losses.png")
    assert min(picture.shape[:2]) > 400
    for colour in ((31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40)):
        assert (np.abs(picture[..., :3] * 255 - colour).max(-1) < 2).sum() > 50


def test_a_finished_measurement_trains_nothing(tool, whole, monkeypatch, capsys):
    def measure(*arguments):
        raise AssertionError("trained again")

    monkeypatch.setattr(tool, "measure", measure)
    (whole.folder / "losses.png").unlink()
    arguments = ["--config", str(whole.config), "--output", str(whole.folder)]
    assert tool.main([*arguments, "--seeds", "2"]) == 0
    assert (whole.folder / "losses.png").exists()
    # Fewer seeds: of these alone.
    assert tool.main([*arguments, "--seeds", "1"]) == 0
    assert "1 seed)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({'"lm"': '"mlm"'}, "a configuration of lm from fresh weights"),
        ({"length = 64": "length = 24"}, "got lengths [16, 24]"),
        ({"length = 64": "length = 16"}, "longer than the first"),
        ({"length = 16": "length = 20"}, "a multiple of 16"),
        ({"holdout = 0.4": "holdout = 0.0"}, "a holdout above 0"),
        ({'["1", "2"]': '["1"]'}, "two fields, a text and its document"),
        ({"length = 64": "length = 320"}, "a row takes 321 tokens"),
    ],
)
def test_what_cannot_be_measured(tool, tmp_path, capsys, changes, message):
    config = write_config(tmp_path, **changes)
    arguments = ["--config", str(config), "--output", str(tmp_path / "run")]
    assert tool.main(arguments) != 0
    assert message in capsys.readouterr().err
    assert tool.main([*arguments, "--seeds", "0"]) != 0
    assert "at least 1 seed" in capsys.readouterr().err
