"""Settings of a pre-training, from TOML."""

import json

import pytest
from common import write_file
from hostile.run import unrefused

from roformer_keras.base.errors import ConfigurationError, SourceError
from roformer_keras.tables.corpus import CorpusSource
from roformer_keras.training.pretraining_settings import (
    PretrainingSettings,
    TrainingStage,
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
    return lambda text: write_file(tmp_path / "settings.toml", text)


def stages(*shapes):
    return "".join(
        f"[[stages]]\nlength = {length}\nbatch_size = {batch}\nsteps = {steps}\n"
        f"schedule = [[{steps // 2}, 1.0], [{steps}, 0.0]]\n"
        for length, batch, steps in shapes
    )


def test_the_schedule_of_the_original_fits_in_a_small_file(toml):
    path = toml(TOML + stages(*ORIGINAL))
    (path.parent / "vocab.txt").write_text("[PAD]\n")
    settings = PretrainingSettings.from_toml(path)
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
    settings = PretrainingSettings.from_toml(toml(TOML + stages((64, 8, 2000))))
    again = PretrainingSettings.from_dict(json.loads(json.dumps(settings.to_dict())))
    assert again == settings


STAGE = stages((64, 8, 9))
WHOLE = TOML + STAGE


WRONG = [
    ("objective = ", "TOML"),
    (TOML.replace("true", "1979-05-27") + STAGE, "no dates and times"),
    (stages((64, 8, 10)) + '[[data]]\nfiles=["a"]', "must have objective"),
    ('objective = "bert"\n', "must have data, stages"),
    (TOML + "[[stages]]\nlength=8", "stages must have steps"),
    (TOML + "[[stages]]\nsteps=0", "from 1 to 2147483647, got 0"),
    (TOML + "[[stages]]\nsteps=9\nlength=3", "length must be .* from 4 to 1048576, go"),
    (TOML + "[[stages]]\nsteps=9\nlr=1", "stages has no field lr; it has steps"),
    (TOML + "[[stages]]\nsteps=9\nbatch_size=10\naccumulation=4", "multiple of"),
    (TOML + "[[stages]]\nsteps=9\nschedule=[[5,1],[5,0]]", "ascending"),
    (TOML + "[[stages]]\nsteps=9\nschedule=[[5,-1.0]]", "at least 0"),
    (TOML + "[[stages]]\nsteps=9\nschedule=[5]", "pairs"),
    (TOML + "[[stages]]\nsteps=9\nlearning_rate=-1.0", "learning_rate"),
    (TOML.replace("lamb", "sgd") + STAGE, "'adamw', 'lamb'.*'sgd'"),
    (TOML.replace("0.999", "1.0") + STAGE, "ema .* [0, 1)"),
    (TOML.replace("0.05", "1") + STAGE, "holdout"),
    (TOML.replace('"mlm"', '"bert"') + STAGE, "'cosent', got 'bert'"),
    ("log_every=7\n" + WHOLE, "save_every must be a multiple"),
    ('teacher="x"\n' + WHOLE, "needs a teacher"),
    ("packed=true\n" + TOML.replace("mlm", "cosent") + STAGE, "packed"),
    ('seed="x"\n' + WHOLE, "seed must be an integer"),
    ("seed=5000000000\n" + WHOLE, "5, got 5000000000"),
    ('packed="false"\n' + WHOLE, "must be True or False"),
    ('initialize_heads="no"\n' + WHOLE, "initialize_heads must be True or False"),
    ("source=3\n" + WHOLE, "source must be a string or None"),
    ('max_vocabulary="x"\n' + WHOLE, "must be an integer or None, got 'x'"),
    (TOML + "[[stages]]\nsteps=9\nlearning_rate=inf", "number from 0 to 100"),
    (TOML + "[[stages]]\nsteps=9\nschedule=[[5,nan]]", "schedule must be .* pairs"),
    (TOML + "[[stages]]\nsteps=9\nschedule=[[5.5,1]]", "schedule must be .* pairs"),
    (TOML.replace("ema = 0.999", "clip_norm=inf") + STAGE, "finite"),
    (TOML.replace("mixed_bfloat16", "bf16") + STAGE, "dtype must be"),
    (TOML.replace('"roformer"', '""') + STAGE, "plain name, got ''"),
    (TOML.replace('"roformer"', '"."') + STAGE, "plain name"),
    (TOML.replace('"roformer"', '".."') + STAGE, "plain name"),
    (TOML.replace('"roformer"', "5") + STAGE, "name must be a string"),
    (TOML.replace('["a.txt", "sub/*.tsv"]', "[3]") + STAGE, "a list"),
    ('source="x.zip"\n' + WHOLE, "its source, got num_layers"),
    (TOML.replace("mlm", "simbert") + stages((64, 2, 9)), "a stage has 2 rows"),
    (TOML.replace("mlm", "simbert") + STAGE + "accumulation=4", "accumulation; a"),
    (TOML.replace('"roformer"', '"a/b"') + STAGE, "plain name"),
    (TOML.replace('["a.txt", "sub/*.tsv"]', '"a"') + STAGE, "a list"),
    (TOML.replace("[[data]]", "[data]") + STAGE, "[[data]]"),
]


def test_settings_that_break_a_rule(toml):
    cases = [((text,), message) for text, message in WRONG]

    def read(text):
        PretrainingSettings.from_toml(toml(text))

    assert unrefused(cases, read, ConfigurationError) == []


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SourceError, match="none"):
        PretrainingSettings.from_toml(tmp_path / "none.toml")


def test_defaults():
    with pytest.raises(ConfigurationError, match="at least one entry"):
        PretrainingSettings(objective="lm", data=(), stages=(TrainingStage(steps=1),))


def test_settings_from_python_are_held_to_their_types_too():
    for changes, message in (
        ({"stages": (3,)}, "stages must be a list of TrainingStage"),
        ({"model": [1]}, "model must be a table"),
        ({"optimizer": 3}, "optimizer must be an OptimizerSettings, got 3"),
    ):
        fields = {
            "objective": "lm",
            "data": (CorpusSource(files=("a",)),),
            "stages": (TrainingStage(steps=1),),
        }
        with pytest.raises(ConfigurationError, match=message):
            PretrainingSettings(**{**fields, **changes})
