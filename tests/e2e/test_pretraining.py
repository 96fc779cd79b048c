"""Training from settings to a preset, and resumed after an interruption."""

import json

import numpy as np
import pytest
from common import CHARACTER, GPT, SIM, is_tuned, run_main
from interruptions import InterruptAfter, Interrupted
from one_layer import write_lowest_layer
from sources import assert_same_weights

from roformer_keras import (
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerSim,
    RoFormerTextClassifier,
)
from roformer_keras.errors import ConfigurationError, OutputError
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
    return PretrainingSettings.from_dict({**content, **changes})


def train(settings, folder, **options):
    return pretrain(settings, folder, verbose=False, **options)


# === A whole training ===


@pytest.mark.parametrize(
    ("objective", "kind"),
    [
        ("mlm", RoFormerMaskedLM),
        ("lm", RoFormerCausalLM),
        ("simbert", RoFormerSim),
        ("classification", RoFormerSim),
        ("cosent", RoFormerSim),
    ],
)
def test_a_training_ends_in_a_preset_and_a_zip(objective, kind, corpus, tmp_path):
    model = train(settings_of(corpus, objective), tmp_path / "run")
    assert type(model) is kind
    for source in ("preset", "tiny.zip"):
        again = kind.from_preset(tmp_path / "run" / source)
        assert_same_weights(again, model)
        assert again.tokenizer.vocabulary == model.tokenizer.vocabulary
    rows = read_log(tmp_path / "run" / "log.csv")
    assert [row["update"] for row in rows] == ["4", "8", "12", "12"]
    assert all(float(row["loss"]) > 0 for row in rows[:3])
    # Tokens are counted whole.
    assert int(rows[0]["tokens"]) < int(rows[1]["tokens"]) < int(rows[2]["tokens"])
    assert rows[3]["loss"] == ""
    assert float(rows[3]["val_loss"]) > 0
    assert (tmp_path / "run" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_it_learns(corpus, tmp_path):
    stage = {"steps": 120, "length": 14, "batch_size": 8, "learning_rate": 0.02}
    settings = settings_of(
        corpus, stages=[stage], evaluate_every=40, log_every=20, save_every=40
    )
    model = train(settings, tmp_path / "run")
    rows = read_log(tmp_path / "run" / "log.csv")
    assert float(rows[-1]["val_accuracy"]) > 0.5 > float(rows[0]["accuracy"])
    assert [row["update"] for row in rows if row["val_loss"]] == ["40", "80", "120"]
    assert model.generate("天地玄", method="greedy", max_length=8)[0] == "黄"


def test_distillation_from_a_teacher(corpus, tmp_path):
    write_lowest_layer(SIM, tmp_path / "sim.zip")
    settings = settings_of(
        *(corpus, "distillation"),
        teacher=str(tmp_path / "sim.zip"),
        source=str(tmp_path / "sim.zip"),
        model={"dropout": 0.0},
        stages=[{"steps": 4, "length": 16, "batch_size": 8}],
    )
    train(settings, tmp_path / "run")
    assert float(read_log(tmp_path / "run" / "log.csv")[-1]["val_loss"]) > 0


@pytest.mark.usefixtures("eagerly")
def test_starting_from_a_checkpoint(corpus, tmp_path):
    stage = {"steps": 4, "length": 16, "batch_size": 4, "learning_rate": 0.0}
    settings = settings_of(corpus, source=str(GPT), model={}, stages=[stage])
    model = train(settings, tmp_path / "run")
    # At the rate 0 nothing but the decay would change them, and that goes by the rate.
    assert_same_weights(model, RoFormerCausalLM.from_preset(GPT))
    assert model.config == RoFormerCausalLM.from_preset(GPT).config


@pytest.mark.usefixtures("eagerly")
def test_no_more_is_padded_than_asked_for(corpus, tmp_path):
    stage = {"steps": 4, "length": 16, "batch_size": 8}
    packed = settings_of(corpus, packed=True, stages=[stage])
    train(packed, tmp_path / "packed")
    # Every row is full.
    first, *_ = read_log(tmp_path / "packed" / "log.csv")
    assert first["tokens"] == str(4 * 8 * 16)


@pytest.mark.usefixtures("eagerly")
def test_no_dataset_is_tuned(corpus, tmp_path, datasets):
    train(settings_of(corpus), tmp_path / "run")
    # Of the training and of what is held out.
    assert len(datasets) >= 2 and not any(map(is_tuned, datasets))


# === Interruptions ===

STAGES = [
    {"steps": 4, "length": 16, "batch_size": 8, "accumulation": 2},
    {"steps": 5, "length": 12, "batch_size": 4, "schedule": [[1, 1.0], [5, 0.0]]},
]


# One in graphs, which take long to trace: what is saved and read again is the same.
@pytest.mark.parametrize(
    ("objective", "changes"),
    [
        ("lm", {"optimizer": {"ema": 0.9}}),
        ("mlm", {"packed": True, "optimizer": {"name": "lamb"}}),
        ("simbert", {"dtype": "mixed_bfloat16"}),
        ("classification", {}),
    ],
    ids=["lm-ema-graph", "mlm-packed-lamb", "simbert-bfloat16", "classification"],
)
def test_an_interrupted_training_ends_where_it_would_have(
    objective, changes, corpus, tmp_path, request
):
    # In the first stage, before anything is saved and after; and in the second.
    interruptions = (1, 5, 5, 3)
    if objective == "lm":
        interruptions = (5, 5)
    else:
        request.getfixturevalue("eagerly")
    settings = settings_of(
        corpus, objective, stages=STAGES, log_every=2, save_every=2, **changes
    )
    whole = train(settings, tmp_path / "whole")
    for batches in interruptions:
        with pytest.raises(Interrupted):
            train(settings, tmp_path / "run", callbacks=[InterruptAfter(batches)])
    parts = train(settings, tmp_path / "run")
    assert_same_weights(parts, whole)
    names = ("update", "tokens", "loss", "val_loss", "learning_rate")
    for one, other in zip(
        read_log(tmp_path / "whole" / "log.csv"),
        read_log(tmp_path / "run" / "log.csv"),
        strict=True,
    ):
        assert [one[name] for name in names] == [other[name] for name in names]


@pytest.mark.usefixtures("eagerly")
def test_a_finished_training_is_not_repeated(corpus, tmp_path):
    first = train(settings_of(corpus), tmp_path / "run")
    (tmp_path / "run" / "tiny.zip").unlink()
    second = train(settings_of(corpus), tmp_path / "run", callbacks=[InterruptAfter(0)])
    assert_same_weights(first, second)
    assert (tmp_path / "run" / "tiny.zip").is_file()


# === What goes wrong ===


# Too many rows to be held out, an option of another objective, heads that do not fit.
MISTAKES = [
    ({"stages": [{"steps": 2, "length": 16, "batch_size": 250}]}, "held-out examples"),
    ({"options": {"rate": 0.2}}, "lm has no option rate"),
    ({"model": {**MODEL, "hidden_dim": 15}}, "multiple of num_heads"),
]


@pytest.mark.usefixtures("eagerly")
def test_a_folder_of_another_training_is_refused(corpus, tmp_path):
    run = tmp_path / "run"
    # What was tried in vain leaves nothing that would be in the way.
    for changes, message in MISTAKES:
        with pytest.raises(ConfigurationError, match=message):
            train(settings_of(corpus, **changes), run)
    train(settings_of(corpus), run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    other = settings_of(corpus, seed=3)
    with pytest.raises(OutputError, match="seed was 0, now 3"):
        train(other, run)
    for changes, message in MISTAKES:
        with pytest.raises(ConfigurationError, match=message):
            train(settings_of(corpus, **changes), run, overwrite=True)
    assert {path: path.read_bytes() for path in before} == before
    # Nothing that it left depends on this one.
    again = settings_of(corpus, save_every=12)
    train(again, run, callbacks=[InterruptAfter(0)])
    train(other, run, overwrite=True)
    settings = json.loads((run / "settings.json").read_text(encoding="utf-8"))
    assert settings["settings"]["seed"] == 3
    assert len(read_log(run / "log.csv")) == 4


def test_a_label_that_is_wrong_is_found_before_the_training(corpus, tmp_path):
    lines = (corpus / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    lines[280] = lines[280][:-1] + "7"
    (tmp_path / "pairs.tsv").write_text("\n".join(lines), encoding="utf-8")
    settings = settings_of(tmp_path, "classification").to_dict()
    settings["data"][0]["holdout"] = 0
    run = tmp_path / "run"
    with pytest.raises(ConfigurationError, match=r"label must be one of .* got '7'"):
        train(PretrainingSettings.from_dict(settings), run)
    assert not (run / "state.safetensors").exists()


# === The command line ===


def test_the_command(corpus, tmp_path, capsys):
    write_lowest_layer(CHARACTER, tmp_path / "small.zip")
    arguments = [
        *("pretrain", "sim", str(corpus / "pairs.tsv"), "--fields", "1,2"),
        *("--output", str(tmp_path / "run"), "--source", str(tmp_path / "small.zip")),
        *("--steps", "3", "--length", "16", "--batch-size", "4"),
    ]
    code, _, err = run_main(*arguments, capsys=capsys)
    assert code == 3
    assert "pass --initialize-heads to start with a new one" in err
    arguments.append("--initialize-heads")
    code, out, err = run_main(*arguments, capsys=capsys)
    assert (code, out) == (0, f"{tmp_path / 'run' / 'roformer.zip'}\n")
    assert err == ""
    code, _, err = run_main(*arguments, "--seed", "4", capsys=capsys)
    assert code == 4
    assert "seed was 0, now 4" in err


@pytest.mark.parametrize("objective", ["lm", "mlm"])
def test_attention_of_linear_cost_from_the_command_line(
    objective, corpus, tmp_path, capsys
):
    """Trained, and used; there is no zip, for bert4keras could not compute it."""
    settings, run = tmp_path / "settings.toml", tmp_path / "run"
    settings.write_text(
        "min_count = 1\n[model]\nnum_layers = 1\nnum_heads = 2\nhidden_dim = 16\n"
        'attention_type = "linear"\n'
    )
    code, out, err = run_main(
        *("pretrain", objective, corpus / "lines.txt", "--config", settings),
        *("--output", run, "--steps", "3", "--length", "16", "--batch-size", "4"),
        capsys=capsys,
    )
    assert (code, out) == (0, f"{run / 'preset'}\n"), err
    assert not list(run.glob("*.zip"))
    if objective == "lm":
        use = ("generate", "--source", run / "preset", "--text", "天地玄")
    else:
        use = ("fill-mask", "--source", run / "preset", "天[MASK]玄黄")
        model = RoFormerTextClassifier.from_preset(run / "preset", num_classes=2)
        assert model.config.attention_type == "linear"
        model.compile()
        history = model.fit(["天地", "玄黄"] * 4, [0, 1] * 4, epochs=2, verbose=0)
        assert np.isfinite(history.history["loss"]).all()
    code, out, err = run_main(*use, capsys=capsys)
    assert code == 0 and out, err
    code, _, err = run_main(
        "convert", run / "preset", tmp_path / "x.zip", capsys=capsys
    )
    assert code != 0 and "attention_type='linear'" in err
    code, _, err = run_main("verify", run / "preset", capsys=capsys)
    assert code != 0 and "attention_type='linear'" in err


def test_held_out_data_are_of_every_file(corpus, tmp_path):
    for name, text in (("a.text", "天地玄黄"), ("b.text", "秋收冬藏")):
        lines = "\n".join(f"{text}{i}" for i in range(400))
        (tmp_path / name).write_text(lines, encoding="utf-8")
    settings = settings_of(corpus).to_dict()
    settings["data"] = [{"files": [str(tmp_path / "*.text")], "holdout": 0.5}]
    run = PretrainingRun(PretrainingSettings.from_dict(settings), tmp_path)
    run.prepare()
    objective = run.make_objective(16)
    seen = set()
    for inputs, _, _ in map(run.held_out(objective, 0).__getitem__, range(2)):
        seen |= {run.tokenizer.decode(row) for row in inputs["token_ids"]}
    assert {text[0] for text in seen} == {"天", "秋"}
    # And the same each time.
    for inputs, _, _ in map(run.held_out(objective, 0).__getitem__, range(2)):
        assert {run.tokenizer.decode(row) for row in inputs["token_ids"]} <= seen
