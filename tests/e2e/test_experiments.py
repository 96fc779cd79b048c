"""tools/experiments: each runs at the smallest size, and its models are comparable."""

import importlib

import numpy as np
import pytest
from common import CHARACTER, GPT, SIM, read_json, reference_folder, write_changed
from matplotlib import image

from roformer_keras import RoFormerTokenizer, convert
from roformer_keras.base.config import RoFormerConfig
from roformer_keras.models import RoFormerCausalLM
from tools.experiments import evaluate_checkpoints as evaluation
from tools.experiments import extrapolation, language_models, positions
from tools.tables import read_rows

CHARACTERS = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏"
PRETRAINING = """
objective = "OBJECTIVE"
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
steps = 8
length = 32
batch_size = 4
learning_rate = 1e-2
"""
MLM = PRETRAINING.replace("OBJECTIVE", "mlm").replace('["1", "2"]', '["1"]')
LM = PRETRAINING.replace("OBJECTIVE", "lm")
LONG_STAGE = """
[[stages]]
steps = 2
length = 64
batch_size = 2
learning_rate = 1e-3
"""
LENGTHS = f"""
source = "{CHARACTER}"
files = ["lines.tsv"]
fields = ["1", "2"]
lengths = [16, 32]
passage = 14
train = 8
test = 8
"""
TRANSLATION = """
subwords = true
lower_case = false
max_vocabulary = 160
min_count = 1
steps = 4
length = 16
batch_size = 8
learning_rate = 0.01
warmup = 2
save_every = 2
evaluate_every = 4
average_checkpoints = 2

[texts]
tokenize = "13a"
max_length = 8
num_beams = 4
folder = "."
train = ["train.a", "train.b"]
valid = ["valid.a", "valid.b"]
test = ["valid.b", "valid.a"]
valid_pairs = 3

[model]
num_layers = 1
num_heads = 2
hidden_dim = 16
intermediate_dim = 32
"""
# name -> configuration, options of the smallest run
MODEL = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
EXPERIMENTS = {
    "positions": (MLM, "--steps 8"),
    "performers": (f'models = ["performer-rope", "softmax"]{LM}', ""),
    "extrapolation": (LM + LONG_STAGE, ""),
    "lengths": (LENGTHS, ""),
    "translation": (TRANSLATION, ""),
}


def main_of(name):
    module = importlib.import_module(f"tools.experiments.{name}")
    return getattr(module, "main", None) or getattr(module, name.title()).main


def write_corpus(folder):
    """Documents that count through the characters, and sentences with their reverse."""
    generator = np.random.default_rng(0)
    lines = []
    for document in range(12):
        position = generator.integers(len(CHARACTERS))
        for _ in range(20):
            count = generator.integers(6, 12)
            ids = (position + np.arange(count)) % len(CHARACTERS)
            lines.append(f"{''.join(CHARACTERS[i] for i in ids)}\tbook {document}")
            position += count
    (folder / "lines.tsv").write_text("\n".join(lines), encoding="utf-8")
    words = ["ein", "Haus", "Büsche", "rot", "der", "Mann", "geht"]
    for part, count in (("train", 40), ("valid", 4)):
        sentences = [generator.choice(words, 3) for _ in range(count)]
        for side, step in (("a", 1), ("b", -1)):
            text = "".join(" ".join(words[::step]) + " .\n" for words in sentences)
            (folder / f"{part}.{side}").write_text(text, encoding="utf-8")
    return folder


def arguments_of(name, folder, changes=()):
    text, options = EXPERIMENTS[name]
    config = write_changed(write_corpus(folder) / "x.toml", text, dict(changes))
    arguments = ["--config", str(config), "--output", str(folder / "run")]
    return [*arguments, "--seeds", "1", *options.split()]


@pytest.fixture
def eager(monkeypatch, eagerly):
    """A tiny model, computed without graphs."""
    monkeypatch.setattr(positions, "MODEL", MODEL)
    monkeypatch.setitem(positions.STAGE, "length", 12)


# The harness is the same for all: CI runs one, and the one with its own model.
RUNS = [
    pytest.param(
        x, marks=[] if x in ("positions", "translation") else pytest.mark.weekly
    )
    for x in EXPERIMENTS
]


@pytest.mark.filterwarnings("ignore:Even though the `tf.config")
@pytest.mark.parametrize("name", RUNS)
def test_smallest_run(name, tmp_path, capsys, request):
    # Except generation, whose loops are slow then.
    if name != "translation":
        request.getfixturevalue("eager")
    arguments = arguments_of(name, tmp_path)
    assert main_of(name)(arguments) == 0
    printed = capsys.readouterr().out
    folder = tmp_path / "run"
    results = read_json(folder / "results.json")
    assert results
    assert min(image.imread(folder / "picture.png").shape[:2]) > 300
    tables = {path: path.read_bytes() for path in folder.rglob("*.csv")}
    values = [v for path in tables for row in read_rows(path) for v in row.values()]
    assert np.isfinite([value for value in values if not isinstance(value, str)]).all()
    # A finished experiment trains nothing, and says the same.
    assert main_of(name)(arguments) == 0
    assert capsys.readouterr().out.split("|", 1)[1] == printed.split("|", 1)[1]
    assert {path: path.read_bytes() for path in folder.rglob("*.csv")} == tables


BAD_CONFIGURATIONS = (
    ("positions", {'"mlm"': '"lm"'}, "a configuration of mlm without a source"),
    ("performers", {"length = 32": "length = 320"}, "a row takes 321"),
    ("translation", {'"train.a"': '"valid.a"'}, "as many lines each"),
    ("translation", {'"train.a"': '"none"'}, "cannot read"),
)


def test_bad_configurations(tmp_path, capsys):
    for number, (name, changes, message) in enumerate(BAD_CONFIGURATIONS):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert main_of(name)(arguments_of(name, folder, changes)) == 2
        assert message in capsys.readouterr().err


# === Models that differ in positions and nothing else ===

TOKENIZER = RoFormerTokenizer(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CHARACTERS]
)
CONFIG = RoFormerConfig(
    vocabulary_size=TOKENIZER.vocabulary_size,
    attention="causal",
    custom_position_ids=True,
    **MODEL,
)
LENGTH = 8


def test_models_have_equal_weights_but_for_the_segments():
    make, shared = language_models.make_models, language_models.shared_variables
    models = make(RoFormerCausalLM, CONFIG, LENGTH, 3)
    roformer, absolute = (dict(shared(models[name])) for name in models)
    assert roformer.keys() == absolute.keys()
    for path, variable in roformer.items():
        np.testing.assert_array_equal(variable.numpy(), absolute[path].numpy(), path)
    for model, rows in zip(models.values(), (2, LENGTH), strict=True):
        (table,) = (v for v in model.variables if "segment_embedding" in v.path)
        assert table.shape == (rows, CONFIG.hidden_dim)
        assert len(model.variables) == len(shared(model)) + 1
    other = make(RoFormerCausalLM, CONFIG, LENGTH, 4)["roformer"]
    assert not np.array_equal(
        other.get_weights()[0], models["roformer"].get_weights()[0]
    )


def test_absolute_positions_come_from_the_table_alone():
    """Tokens may change places if the rows of the table go with them."""
    models = language_models.make_models(RoFormerCausalLM, CONFIG, LENGTH, 0)
    model, generator = models["absolute"], np.random.default_rng(0)
    for weight in model.trainable_weights:
        if len(weight.shape) > 1:
            weight.assign(generator.normal(size=weight.shape, scale=0.4))
    token_ids = generator.integers(5, TOKENIZER.vocabulary_size, (3, LENGTH))
    rows = np.tile(np.arange(LENGTH), (3, 1))

    def last(token_ids, rows):
        """Logits of the last token, which sees all others in one layer."""
        positions = np.zeros(token_ids.shape, "float32")
        inputs = {"token_ids": token_ids, "segment_ids": rows}
        return np.array(model({**inputs, "position_ids": positions}))[:, -1]

    order = np.append(generator.permutation(LENGTH - 1), LENGTH - 1)
    before = last(token_ids, rows)
    moved = last(token_ids[:, order], rows[:, order])
    np.testing.assert_allclose(moved, before, atol=1e-4)
    assert np.abs(last(token_ids[:, order], rows) - before).max() > 0.01


def test_methods_of_extrapolation():
    rows = np.ones((2, 6), "int32")
    inputs = extrapolation.make_inputs("roformer", rows, length=4, divisor=2)
    np.testing.assert_array_equal(inputs["position_ids"], [np.arange(6) / 2] * 2)
    inputs = extrapolation.make_inputs("absolute", rows, length=4)
    np.testing.assert_array_equal(inputs["segment_ids"], [[0, 1, 2, 3, 3, 3]] * 2)
    before, after = (
        base ** (-2 * np.arange(16) / 32)
        for base in (10000.0, extrapolation.ntk_base(10000.0, 32, 8))
    )
    assert after[0] == before[0] and after[-1] == pytest.approx(before[-1] / 8)


# === Fine-tuning, with the real bert4keras ===


def labelled_text(generator, number):
    text = list(generator.choice(list("今北京安门上海人学习"), 8))
    text[generator.integers(8)] = generator.choice(list(("坏不", "好天")[number % 2]))
    return f"{''.join(text)}\t{('bad', 'good')[number % 2]}\n"


def labelled_pair(generator, number):
    text, same = generator.permutation(list("今北京安门上海人学习语言")), number % 5
    other = "".join(text[:same]) + "".join(generator.choice(text[8:], 4 - same))
    return f"{''.join(text[:4])}\t{other}\t{same}\n"


def tagged_text(generator, number):
    lines = [f"{name}\tO" for name in generator.choice(list("人学习语言"), 6)]
    city = generator.choice(["北京", "上海", "安门"])
    lines[number % 5 : number % 5 + 1] = [f"{city[0]}\tB-LOC", f"{city[1]}\tI-LOC"]
    return "\n".join([*lines[number % 2 :], "工\tB-PER" if number % 3 else ""]) + "\n"


@pytest.mark.weekly
@pytest.mark.skipif(reference_folder() is None, reason="needs bert4keras")
@pytest.mark.parametrize(
    ("task", "line", "ending"),
    [
        ("classification", labelled_text, "tsv"),
        ("similarity", labelled_pair, "txt"),
        ("entities", tagged_text, "bio"),
    ],
)
def test_without_dropout_bert4keras_learns_the_same(
    task, line, ending, tmp_path, monkeypatch
):
    generator = np.random.default_rng(0)
    arguments = ["--task", task, "--output", str(tmp_path / "run"), "--seeds", "1"]
    for part, size in (("train", 32), ("test", 16)):
        path = tmp_path / f"{part}.{ending}"
        lines = [line(generator, n).rstrip("\n") for n in range(size)]
        text = ("\n\n" if ending == "bio" else "\n").join(lines)
        path.write_text(text + "\n", encoding="utf-8")
        arguments += [f"--{part}", str(path)]
    source = convert(
        CHARACTER, tmp_path / "x.zip", verbose=0, dropout=0.0, attention_dropout=0.0
    )
    options = "--epochs 3 --learning-rate 3e-3 --crf-rate 10"
    monkeypatch.setattr("tools.experiments.finetuning.BATCH_SIZE", 4)
    arguments += ["--source", str(source), *options.split()]
    assert main_of("finetuning")(arguments) == 0
    ours, theirs = read_rows(tmp_path / "run" / "runs.csv")
    # The tool itself checks that both start with the same loss.
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    assert 0.03 < ours["loss"] < 0.8 * ours["first_loss"]
    # Rounding may exchange two neighbours in a ranking.
    assert ours["score"] == pytest.approx(theirs["score"], abs=5e-3)


# === Checkpoints on held-out texts ===


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("task", "source", "objective", "models"),
    [("mlm", CHARACTER, "mlm", 5), ("lm", GPT, "lm", 4), ("sim", SIM, "simbert", 5)],
)
def test_checkpoints(task, source, objective, models, tmp_path, capsys):
    generator = np.random.default_rng(0)
    characters = list("的一是了我不人在他有这个上们来到时大地为子中你说生国年着")
    lines = []
    for row in range(120):
        first, second = ("".join(generator.choice(characters, 9)) for _ in range(2))
        lines.append(f"{first}，{second}。\t{second}！\t书{row // 6}\n")
    # In every book, so in both parts.
    lines += [f"我们来到这个国。\t你说是的。\t书{book}\n" for book in range(20)]
    (tmp_path / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
    config = tmp_path / "x.toml"
    config.write_text(
        f'objective = "{objective}"\n[[data]]\nfiles = ["pairs.tsv"]\n'
        f'fields = {["1"] if task == "lm" else ["1", "2"]}\ngroup = "3"\n'
        "holdout = 0.35\n[[stages]]\nsteps = 1\nlength = 24\n"
    )
    target = tmp_path / "x.json"
    arguments = [task, source, "--config", config, "--json", target, "--limit", 12]
    assert evaluation.main([*map(str, arguments), "--num-beams", "1"]) == 0
    table, *more = read_json(target)["tables"]
    assert len(table["rows"]) == models and next(iter(table["rows"])) == source.stem
    assert np.isfinite(list(table["rows"].values())).all()
    printed = capsys.readouterr().out
    for found in (table, *more):
        assert all(f"| {name} | " in printed for name in found["rows"])
    if task == "sim":
        assert table["rows"]["chance"] == pytest.approx([1 / 12, 10 / 12] * 2)
        assert min(table["rows"]["TF-IDF of characters"]) > 0.7
        assert "12 held-out pairs" in table["note"]
