"""Settings of a pre-training, from TOML and from the command line."""

import json

import pytest

from roformer_keras.errors import ConfigurationError, SourceError
from roformer_keras.pretraining.settings import (
    Settings,
    Stage,
    load_settings,
    settings_of_command,
)

# The staged schedule of the released RoFormer: length, batch size, steps.
# Source: Su et al. 2021, arXiv:2104.09864, table 5.
ORIGINAL = [
    (512, 256, 200_000),
    (1536, 256, 12_500),
    (256, 256, 120_000),
    (128, 512, 80_000),
    (1536, 256, 10_000),
    (512, 512, 30_000),
]

TOML = """
objective = "mlm"
name = "roformer"
vocabulary = "vocab.txt"
dtype = "mixed_bfloat16"

[model]
num_layers = 12
num_heads = 12
hidden_dim = 768

[options]
whole_word = true

[optimizer]
name = "lamb"
ema = 0.999

[[data]]
files = ["a.txt", "sub/*.tsv"]
fields = [1, 2]
group = 3
holdout = 0.05
"""


@pytest.fixture
def toml(tmp_path):
    def write(text):
        path = tmp_path / "settings.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def stages(*shapes):
    return "".join(
        f"[[stages]]\nlength = {length}\nbatch_size = {batch}\nsteps = {steps}\n"
        f"schedule = [[{steps // 2}, 1.0], [{steps}, 0.0]]\n"
        for length, batch, steps in shapes
    )


def test_the_schedule_of_the_original_fits_in_a_small_file(toml):
    path = toml(TOML + stages(*ORIGINAL))
    (path.parent / "vocab.txt").write_text("[PAD]\n")
    settings = load_settings(path)
    assert [(s.length, s.batch_size, s.steps) for s in settings.stages] == ORIGINAL
    assert settings.stages[1].schedule == ((6250, 1.0), (12_500, 0.0))
    assert settings.optimizer.name == "lamb"
    assert settings.optimizer.weight_decay == 0.01
    assert settings.model["num_layers"] == 12
    (data,) = settings.data
    assert data.files == (str(path.parent / "a.txt"), str(path.parent / "sub/*.tsv"))
    assert (data.fields, data.group, data.holdout) == (("1", "2"), "3", 0.05)
    assert settings.vocabulary == str(path.parent / "vocab.txt")


def test_settings_survive_json(toml):
    settings = load_settings(toml(TOML + stages((64, 8, 2000))))
    again = Settings.from_dict(json.loads(json.dumps(settings.to_dict())))
    assert again == settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("objective = ", "TOML"),
        (stages((64, 8, 10)) + '[[data]]\nfiles=["a"]', "must have objective"),
        ('objective = "bert"\n', "must have data, stages"),
        (TOML + "[[stages]]\nlength=8", "stages must have steps"),
        (TOML + "[[stages]]\nsteps=0", "at least 1, got 0"),
        (TOML + "[[stages]]\nsteps=9\nlength=3", "length must be .* at least 4, got 3"),
        (TOML + "[[stages]]\nsteps=9\nlr=1", "stages has no lr; it has steps"),
        (TOML + "[[stages]]\nsteps=9\nbatch_size=10\naccumulation=4", "multiple of"),
        (TOML + "[[stages]]\nsteps=9\nschedule=[[5,1],[5,0]]", "ascending"),
        (TOML + "[[stages]]\nsteps=9\nschedule=[[5,-1.0]]", "at least 0"),
        (TOML + "[[stages]]\nsteps=9\nschedule=[5]", "pairs"),
        (TOML + "[[stages]]\nsteps=9\nlearning_rate=-1.0", "learning_rate"),
        (TOML.replace("lamb", "sgd") + stages((64, 8, 9)), "'adamw', 'lamb'.*'sgd'"),
        (TOML.replace("0.999", "1.0") + stages((64, 8, 9)), r"ema .* \[0, 1\)"),
        (TOML.replace("0.05", "1") + stages((64, 8, 9)), "holdout"),
        (TOML.replace('"mlm"', '"bert"') + stages((64, 8, 9)), "'cosent', got 'bert'"),
        ("log_every=7\n" + TOML + stages((64, 8, 9)), "save_every must be a multiple"),
        ('teacher="x"\n' + TOML + stages((64, 8, 9)), "needs a teacher"),
        (
            "packed=true\n" + TOML.replace("mlm", "cosent") + stages((64, 8, 9)),
            "packed",
        ),
        ('seed="x"\n' + TOML + stages((64, 8, 9)), "seed must be an integer"),
        (TOML.replace('"roformer"', '"a/b"') + stages((64, 8, 9)), "plain name"),
        (TOML.replace('["a.txt", "sub/*.tsv"]', '"a"') + stages((64, 8, 9)), "a list"),
        (TOML.replace("[[data]]", "[data]") + stages((64, 8, 9)), r"\[\[data\]\]"),
    ],
)
def test_a_setting_that_breaks_its_rule(toml, text, message):
    with pytest.raises(ConfigurationError, match=message):
        load_settings(toml(text))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SourceError, match="none"):
        load_settings(tmp_path / "none.toml")


def test_defaults():
    with pytest.raises(ConfigurationError, match="at least one entry"):
        Settings(objective="lm", data=(), stages=(Stage(steps=1),))


# === The command line ===


def test_files_and_nothing_else():
    settings = settings_of_command("sim", ["a.tsv"], None, fields=("1", "2"))
    assert settings.objective == "simbert"
    assert settings.data[0].files == ("a.tsv",)
    assert settings.data[0].fields == ("1", "2")
    assert settings.stages == (Stage(steps=10_000, length=64),)


def test_flags_go_before_the_file(toml):
    path = toml(TOML + stages((64, 8, 2000), (32, 16, 1000)))
    settings = settings_of_command(
        "mlm",
        [],
        str(path),
        steps=10,
        layers=2,
        seed=7,
        whole_word=None,
        save_every=50,
    )
    assert [(s.steps, s.length) for s in settings.stages] == [(10, 64), (10, 32)]
    assert settings.model == {"num_layers": 2, "num_heads": 12, "hidden_dim": 768}
    assert settings.options == {"whole_word": True}
    assert (settings.seed, settings.save_every) == (7, 50)
    assert len(settings.data[0].files) == 2
    settings = settings_of_command("mlm", ["b.txt"], str(path), holdout=0.1)
    assert settings.data[0].files == ("b.txt",)
    assert settings.data[0].fields == ()
    assert settings.data[0].holdout == 0.1


def test_flags_that_do_not_go_together(toml):
    path = str(toml(TOML + stages((64, 8, 2000))))
    with pytest.raises(ConfigurationError, match="objective of lm must be lm"):
        settings_of_command("lm", [], path)
    with pytest.raises(ConfigurationError, match="holdout say something of files"):
        settings_of_command("mlm", [], path, holdout=0.1)
    with pytest.raises(ConfigurationError, match="name the files"):
        settings_of_command("mlm", [], None)
