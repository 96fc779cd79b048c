"""tools/experiments/compare_lengths.py: its triplets, its trainings, and what it says
of them."""

import gzip
import io
import json
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from common import CHARACTER, tool_module, write_changed
from matplotlib import image

# TensorFlow variables do not know NumPy 2's `copy`.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")

CHARACTERS = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏"
SETTINGS = """
source = "{source}"
files = ["lines.tsv"]
fields = ["1", "2"]
lengths = [16, 32]
passage = 14
train = 12
test = 30
batch_size = 4
learning_rate = 1e-3
"""


@pytest.fixture(scope="module")
def tool():
    with tool_module("compare_lengths") as module:
        yield module


def write_config(folder, **changes):
    """Documents that share no character, and the file of the settings."""
    generator = np.random.default_rng(0)
    lines = []
    for document in range(4):
        own = list(CHARACTERS[6 * document : 6 * document + 6])
        for _ in range(40):
            text = "".join(generator.choice(own, generator.integers(6, 12)))
            lines.append(f"{text}\tbook {document}")
    # Too short for two passages to test.
    lines += [f"{CHARACTERS}\tleaf"] * 3
    (folder / "lines.tsv").write_text("\n".join(lines), encoding="utf-8")
    return write_changed(
        folder / "lengths.toml", SETTINGS.format(source=CHARACTER), changes
    )


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("corpus"))


def document_of(text):
    (number,) = {CHARACTERS.index(character) // 6 for character in text}
    return number


# === Triplets ===


@pytest.mark.parametrize("part", ["train", "test"])
def test_the_nearer_one_is_of_the_same_document(tool, config, part):
    triplets = tool.Passages(tool.Settings.from_toml(config))
    texts, labels = triplets.draw(part, 0)
    assert len(texts) == len(labels) == {"train": 12, "test": 30}[part]
    assert set(labels) == {"B", "C"}
    for row, label in zip(texts, labels, strict=True):
        assert all(len(text) == 14 for text in row)
        assert len(set(row)) == 3
        a, b, c = map(document_of, row)
        assert b != c
        assert a == (b if label == "B" else c)
    assert len({document_of(a) for a, _, _ in texts}) == 4
    assert "passages of 4 documents" in triplets.description


def test_what_is_tested_is_not_trained_on_and_the_same_with_all_seeds(tool, config):
    triplets = tool.Passages(tool.Settings.from_toml(config))
    parts = {
        part: {
            text
            for seed in range(20)
            for row in triplets.draw(part, seed)[0]
            for text in row
        }
        for part in ("train", "test")
    }
    assert parts["train"] and parts["test"] and not parts["train"] & parts["test"]
    assert triplets.draw("train", 0) == triplets.draw("train", 0)
    assert triplets.draw("train", 0) != triplets.draw("train", 1)


def write_triplets(folder, count=40):
    """Lines in which B has the characters of A, and C others; ten texts A."""
    path = folder / "scm.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for number in range(count):
            row = {
                "A": CHARACTERS[:6] + str(number % 10),
                "B": CHARACTERS[:5] + str(number),
                "C": CHARACTERS[6:12] + str(number),
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path


def test_triplets_of_a_file(tool, tmp_path):
    triplets = tool.Read(write_triplets(tmp_path))
    parts = {part: triplets.draw(part, 0) for part in ("train", "test")}
    # A fifth of the texts A, each with four triplets.
    assert [len(parts[part][0]) for part in ("train", "test")] == [32, 8]
    firsts = [{a for a, _, _ in texts} for texts, _ in parts.values()]
    assert not firsts[0] & firsts[1]
    for texts, labels in parts.values():
        assert set(labels) == {"B", "C"}
        for (_, b, c), label in zip(texts, labels, strict=True):
            assert (b if label == "B" else c).startswith(CHARACTERS[:5])
    assert triplets.description == "scm.jsonl.gz, 40"
    texts, labels = triplets.untrained()
    assert len(texts) == len(labels) == len(set(texts)) == 40
    assert tool.baseline(16, triplets) == 1


@pytest.mark.parametrize(
    "content", ["", "{}", '{"A": "a", "B": "b"}', "no JSON", "[1]"]
)
def test_a_file_of_no_triplets(tool, config, tmp_path, capsys, content):
    path = tmp_path / "scm.jsonl"
    path.write_text(content, encoding="utf-8")
    arguments = ["--config", config, "--output", tmp_path / "run", "--triplets", path]
    assert tool.main(map(str, arguments)) != 0
    error = capsys.readouterr().err
    assert str(path) in error and "must" in error


def test_shared_characters_tell_documents_apart(tool, config):
    """They share none here, however short the texts are cut."""
    triplets = tool.Passages(tool.Settings.from_toml(config))
    assert tool.baseline(32, triplets) == 1
    # Cut to nothing but one character of six, half of the passages share none.
    assert tool.baseline(5, triplets) < 1


# === All of it ===


@dataclass
class Compared:
    folder: Path
    printed: str
    trained: list


@pytest.fixture(scope="module")
def whole(tool, config, tmp_path_factory):
    """Two seeds, interrupted in the second training."""
    folder = tmp_path_factory.mktemp("whole")
    trained, train = [], tool.train

    def recorded(length, seed, *arguments):
        trained.append((length, seed))
        if len(trained) == 2:
            raise KeyboardInterrupt
        return train(length, seed, *arguments)

    output = io.StringIO()
    arguments = ["--config", str(config), "--output", str(folder), "--seeds", "2"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output):
        patch.setattr(tool, "train", recorded)
        with pytest.raises(KeyboardInterrupt):
            tool.main(arguments)
        assert tool.main(arguments) == 0
    return Compared(folder, output.getvalue(), trained)


def test_an_interrupted_comparison_goes_on_with_what_is_missing(whole):
    assert whole.trained == [(16, 0), (32, 0), (32, 0), (16, 1), (32, 1)]


def test_results_are_those_of_the_runs(tool, whole):
    results = json.loads((whole.folder / "results.json").read_text(encoding="utf-8"))
    runs = tool.read_rows(whole.folder / "runs.csv", tool.COLUMNS)
    assert results["triplets"] == {"train": 12, "test": 30, "untrained": 30}
    assert [row["length"] for row in results["lengths"]] == [16, 32]
    for row in results["lengths"]:
        found = [run["accuracy"] for run in runs if run["length"] == row["length"]]
        assert row["accuracies"] == found and len(found) == 2
        assert row["mean"] == pytest.approx(np.mean(found))
        assert row["spread"] == pytest.approx(np.ptp(found))
        assert row["baseline"] > 0.9
    assert all(0 < run["loss"] < 2 and run["seconds"] > 0 for run in runs)
    assert "| 32 | " in whole.printed
    assert "Of 30 test triplets (passages of 4 documents), after 1 epoch of 12" in (
        whole.printed
    )


def test_rows_are_cut_to_the_length(tool, config, monkeypatch):
    settings = tool.Settings.from_toml(config)
    widths = []
    fit = tool.RoFormerTripletRanker.fit

    def recorded(model, texts, *arguments, **options):
        widths.append(int(model.make_rows(texts).lengths.max()))
        return fit(model, texts, *arguments, **options)

    monkeypatch.setattr(tool.RoFormerTripletRanker, "fit", recorded)
    for length in settings.lengths:
        tool.train(length, 0, settings, tool.Passages(settings))
    # [CLS], [SEP] and [SEP] beside two passages of 14.
    assert widths == [16, 31]


def test_the_picture_shows_model_and_baseline(whole):
    picture = image.imread(whole.folder / "lengths.png")
    assert min(picture.shape[:2]) > 400
    for colour in ((31, 119, 180), (255, 127, 14)):
        assert (np.abs(picture[..., :3] * 255 - colour).max(-1) < 2).sum() > 50


def test_a_finished_comparison_trains_nothing(tool, config, whole, monkeypatch):
    def train(*arguments):
        raise AssertionError("trained again")

    monkeypatch.setattr(tool, "train", train)
    (whole.folder / "lengths.png").unlink()
    arguments = ["--config", str(config), "--output", str(whole.folder)]
    assert tool.main([*arguments, "--seeds", "2"]) == 0
    assert (whole.folder / "lengths.png").exists()


def test_a_folder_of_other_triplets_stays_as_it_is(
    tool, config, whole, tmp_path, capsys
):
    path = write_triplets(tmp_path)
    arguments = ["--config", config, "--output", whole.folder, "--triplets", path]
    before = (whole.folder / "results.json").read_bytes()
    assert tool.main(map(str, arguments)) != 0
    assert "hold a comparison of equal settings" in capsys.readouterr().err
    assert (whole.folder / "results.json").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"[16, 32]": "[32, 16]"}, "lengths must ascend"),
        ({"[16, 32]": "[]"}, "lengths must ascend"),
        ({'["1", "2"]': '["1"]'}, "fields must be two"),
        ({"train = 12": "train = 0"}, "train must be an integer of at least 1"),
        ({"passage = 14": "passage = 200"}, "two documents of 10 passages of 200"),
        ({"passage = 14": ""}, "passage"),
    ],
)
def test_what_cannot_be_compared(tool, tmp_path, capsys, changes, message):
    config = write_config(tmp_path, **changes)
    arguments = ["--config", str(config), "--output", str(tmp_path / "run")]
    assert tool.main(arguments) != 0
    assert message in capsys.readouterr().err
