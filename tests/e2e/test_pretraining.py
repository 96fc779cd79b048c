"""Training from settings to a preset, and resumed after an interruption."""

import numpy as np
import pytest
from common import CHARACTER, GPT, SIM, is_tuned, reference_folder, run_main
from interruptions import InterruptAfter, Interrupted
from one_layer import write_lowest_layer
from sources import assert_same_weights

from roformer_keras import RoFormerCausalLM, RoFormerSim
from roformer_keras.base.errors import CheckpointError, ConfigurationError, OutputError
from roformer_keras.training.log import read_log
from roformer_keras.training.pretrain import PretrainingRun, pretrain
from roformer_keras.training.pretraining_settings import PretrainingSettings

# `tf.data` traces its functions in eager tests too, and warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:Even though the `tf.config")

CHARACTERS = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏"
MODEL = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "dropout": 0.1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A text file, and a table of pairs with a label, of lines that can be learned."""
    folder = tmp_path_factory.mktemp("corpus")
    generator = np.random.default_rng(0)
    lines, rows = [], []
    for _ in range(300):
        start = generator.integers(len(CHARACTERS))
        count = generator.integers(4, 12)
        text = "".join(CHARACTERS[(start + i) % len(CHARACTERS)] for i in range(count))
        lines.append(text)
        rows.append(f"{text}\t{text[::-1]}\t{generator.integers(5)}")
    (folder / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / "pairs.tsv").write_text("\n".join(rows), encoding="utf-8")
    return folder


def settings_of(corpus, objective="lm", **changes):
    is_pair = objective not in ("mlm", "lm")
    fields = {
        "simbert": ["1", "2"],
        "distillation": ["1", "2"],
        "classification": ["1", "2", "3"],
        "cosent": ["1", "2", "3"],
    }
    content = {
        "objective": objective,
        "name": "tiny",
        "data": [
            {
                "files": [str(corpus / ("pairs.tsv" if is_pair else "lines.txt"))],
                "fields": fields.get(objective, []),
                "holdout": 0.1,
            }
        ],
        "stages": [{"steps": 12, "length": 16, "batch_size": 8, "learning_rate": 0.01}],
        "model": MODEL,
        "min_count": 1,
        "log_every": 4,
        "save_every": 4,
        "evaluation_batches": 2,
    }
    if "source" in changes:
        del content["min_count"]
    return PretrainingSettings.from_dict({**content, **changes})


def train(settings, folder, **options):
    return pretrain(settings, folder, verbose=False, **options)


# === A whole training ===


def test_a_training_ends_in_a_preset_and_a_zip(corpus, tmp_path):
    """In graphs, and long enough to learn."""
    stage = {"steps": 120, "length": 14, "batch_size": 8, "learning_rate": 0.02}
    run = tmp_path / "run"
    intervals = {"evaluate_every": 40, "log_every": 20, "save_every": 40}
    model = train(settings_of(corpus, stages=[stage], **intervals), run)
    assert type(model) is RoFormerCausalLM
    for source in ("preset", "tiny.zip"):
        again = RoFormerCausalLM.from_preset(run / source)
        assert_same_weights(again, model)
        assert again.tokenizer.vocabulary == model.tokenizer.vocabulary
    *rows, last = read_log(run / "log.csv")
    assert [int(row["update"]) for row in rows] == [*range(20, 121, 20)]
    assert all(float(row["loss"]) > 0 for row in rows)
    # Tokens are counted whole.
    tokens = [int(row["tokens"]) for row in rows]
    assert tokens == sorted(set(tokens))
    assert [row["update"] for row in rows if row["val_loss"]] == ["40", "80"]
    assert (last["update"], last["loss"]) == ("120", "")
    assert float(last["val_accuracy"]) > 0.5 > float(rows[0]["accuracy"])
    assert model.generate("天地玄", method="greedy", max_length=8)[0] == "黄"
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert list((run / "tensorboard").iterdir())


@pytest.mark.usefixtures("eagerly")
def test_objectives_train_one_after_the_other(corpus, tmp_path, datasets):
    """In one folder: nothing that one leaves is in the way of the next."""
    sim, run = str(tmp_path / "sim.zip"), tmp_path / "run"
    write_lowest_layer(SIM, tmp_path / "sim.zip")
    stage = {"steps": 2, "length": 16, "batch_size": 8}
    changes = {"stages": [stage], "log_every": 2, "save_every": 2}
    small = {"source": sim, "model": {"dropout": 0.0}}
    for objective, options in (
        ("simbert", {"dtype": "mixed_bfloat16"}),
        ("classification", {}),
        ("cosent", {}),
        ("distillation", {"teacher": sim, **small}),
    ):
        settings = settings_of(corpus, objective, **changes, **options)
        model = train(settings, run, overwrite=True)
        assert type(model) is RoFormerSim
        for source in ("preset", "tiny.zip"):
            assert_same_weights(RoFormerSim.from_preset(run / source), model)
        first, last = read_log(run / "log.csv")
        assert float(first["loss"]) > 0 and float(last["val_loss"]) > 0
    # The datasets of the training and of the held-out texts.
    assert len(datasets) >= 8 and not any(map(is_tuned, datasets))


def test_a_training_starts_from_a_checkpoint(corpus, tmp_path):
    run = PretrainingRun(settings_of(corpus, source=str(GPT), model={}), tmp_path)
    run.prepare()
    expected = RoFormerCausalLM.from_preset(GPT)
    assert_same_weights(run.model, expected)
    assert run.model.config == expected.config
    # A masked language model has no pooler.
    settings = settings_of(corpus, "simbert", source=str(CHARACTER), model={})
    with pytest.raises(CheckpointError, match="initialize_heads=True"):
        PretrainingRun(settings, tmp_path).prepare()


@pytest.mark.usefixtures("eagerly")
def test_attention_of_linear_cost(corpus, tmp_path, capsys):
    """There is no zip, for bert4keras could not compute it."""
    stage = {"steps": 2, "length": 16, "batch_size": 4}
    changes = {"stages": [stage], "model": {**MODEL, "attention_type": "linear"}}
    run = tmp_path / "run"
    train(settings_of(corpus, **changes), run)
    assert not list(run.glob("*.zip"))
    model = RoFormerCausalLM.from_preset(run / "preset")
    assert model.config.attention_type == "linear"
    assert isinstance(model.generate("天地玄", max_length=8), str)
    commands = [("convert", run / "preset", tmp_path / "x.zip")]
    if folder := reference_folder():
        commands.append(("verify", run / "preset", "--bert4keras", folder))
    for words in commands:
        code, _, err = run_main(*words, capsys=capsys)
        assert code != 0 and "attention_type='linear'" in err


# === Interruptions ===

STAGES = [
    {"steps": 4, "length": 16, "batch_size": 8, "accumulation": 2},
    {"steps": 5, "length": 12, "batch_size": 4, "schedule": [[1, 1.0], [5, 0.0]]},
]


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize(
    ("objective", "changes", "interruptions"),
    [
        ("lm", {"optimizer": {"ema": 0.9}}, [5]),
        # In the first stage, at its end, and in the second.
        ("mlm", {"packed": True, "optimizer": {"name": "lamb"}}, [5, 5, 3]),
    ],
    ids=["lm-ema", "mlm-packed-lamb"],
)
def test_an_interrupted_training_ends_where_it_would_have(
    objective, changes, interruptions, corpus, tmp_path
):
    changes = {"stages": STAGES, "log_every": 2, **changes}
    settings = settings_of(corpus, objective, save_every=2, **changes)
    run = tmp_path / "run"
    whole = train(settings, tmp_path / "whole")
    for batches in interruptions:
        with pytest.raises(Interrupted):
            train(settings, run, callbacks=[InterruptAfter(batches)])
    assert_same_weights(train(settings, run), whole)
    names = ("update", "tokens", "loss", "val_loss", "learning_rate")
    rows, others = (
        read_log(folder / "log.csv") for folder in (run, tmp_path / "whole")
    )
    for row, other in zip(rows, others, strict=True):
        assert [row[name] for name in names] == [other[name] for name in names]
    if settings.packed:
        # Every row is full.
        assert rows[0]["tokens"] == str(2 * 8 * 16)
    # A training that has ended is not repeated, also if it is to be saved less often.
    (run / "tiny.zip").unlink()
    free = settings_of(corpus, objective, save_every=4, **changes)
    assert_same_weights(train(free, run, callbacks=[InterruptAfter(0)]), whole)
    assert (run / "tiny.zip").is_file()
    with pytest.raises(OutputError, match="seed was 0, now 3"):
        train(settings_of(corpus, objective, seed=3, **changes), run)


# === What goes wrong ===


def test_what_is_wrong_is_found_before_the_training(corpus, tmp_path):
    run = tmp_path / "run"
    for changes, message in (
        # Too many rows to be held out, an option of another objective, and heads that
        # do not fit.
        (
            {"stages": [{"steps": 2, "length": 16, "batch_size": 250}]},
            "held-out examples",
        ),
        ({"options": {"rate": 0.2}}, "lm has no option rate"),
        ({"model": {**MODEL, "hidden_dim": 15}}, "multiple of num_heads"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            train(settings_of(corpus, **changes), run)
        assert not (run / "settings.json").exists()
    # A label that is wrong, in a line that is not held out.
    lines = (corpus / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    lines[280] = lines[280][:-1] + "7"
    (tmp_path / "pairs.tsv").write_text("\n".join(lines), encoding="utf-8")
    settings = settings_of(tmp_path, "classification").to_dict()
    settings["data"][0]["holdout"] = 0
    del settings["evaluation_batches"]
    with pytest.raises(ConfigurationError, match=r"label must be one of .* got '7'"):
        train(PretrainingSettings.from_dict(settings), run)
    assert not (run / "state.safetensors").exists()


def test_held_out_data_are_of_every_file(corpus, tmp_path):
    for name, text in (("a.text", "天地玄黄"), ("b.text", "秋收冬藏")):
        lines = "\n".join(f"{text}{i}" for i in range(400))
        (tmp_path / name).write_text(lines, encoding="utf-8")
    settings = settings_of(corpus).to_dict()
    settings["data"] = [{"files": [str(tmp_path / "*.text")], "holdout": 0.5}]
    run = PretrainingRun(PretrainingSettings.from_dict(settings), tmp_path)
    run.prepare()
    objective = run.make_objective(16)
    # They are the same each time.
    first, again = (
        {
            run.tokenizer.decode(row)
            for inputs, _, _ in map(run.held_out(objective, 0).__getitem__, range(2))
            for row in inputs["token_ids"]
        }
        for _ in range(2)
    )
    assert {text[0] for text in first} == {"天", "秋"}
    assert again == first
