"""Operands and flags of every command, and what they become; nothing is loaded."""

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import typing
from importlib import metadata
from pathlib import Path

import pytest
from common import ROOT, give_stdin, parser_of, write_file
from common import run_main as run

import roformer_keras
from roformer_keras.base.errors import ConfigurationError, RoFormerError, SourceError
from roformer_keras.base.types import FileEncoding
from roformer_keras.cli import finetune, pretrain
from roformer_keras.cli.main import find_commands
from roformer_keras.cli.texts import read_lines
from roformer_keras.tables import formats
from roformer_keras.tables.corpus import CorpusSource
from roformer_keras.tasks import TASKS
from roformer_keras.tasks.finetuning_settings import FinetuningSettings
from roformer_keras.training.pretraining_settings import (
    PretrainingSettings,
    TrainingStage,
)

# What scripts rely on: a name that goes or comes is a decision, made here.
LINES = "config output overwrite quiet source text vocabulary"
OPTIMIZER = "beta-1 beta-2 clip-norm ema epsilon optimizer weight-decay"
RAY = (
    "address cpus-per-worker engine gpus-per-worker num-workers "
    "on-bad-row output-format"
)
# Texts that are written have --batch-size.
READS = f"{RAY} batch-tokens encoding header worker-engine"
FLAGS = {
    "completion": "",
    "convert": "config dtype format ignore model overwrite private quiet vocabulary",
    "download": "base-url folder quiet",
    "embed": f"{READS} config dtype fields format json max-length no-normalize output "
    "overwrite quiet source vocabulary",
    "evaluate": "engine fields json output encoding format header on-bad-row overwrite "
    "quiet",
    "export": "calibration-texts config format generator int8 json overwrite "
    "vocabulary",
    "fill-mask": f"{RAY} batch-tokens config encoding json output overwrite quiet "
    "source top-k vocabulary worker-engine",
    "finetune": f"{OPTIMIZER} accumulation adversarial-epsilon batch-size "
    "class-weights config crf dropout dtype encoding epochs fields "
    "format header "
    "freeze-embeddings "
    "freeze-layers gradient-checkpointing holdout holdout-by ignore keep-best "
    "layer-decay "
    "learning-rate lora-alpha lora-rank lora-targets max-length monitor multi-label "
    "no-crf "
    "no-freeze-embeddings no-gradient-checkpointing no-keep-best no-multi-label "
    "no-pairs objective on-bad-row output overwrite pairs patience "
    "head-activation pooling quiet "
    "r-drop schedule seed source test train valid warmup-ratio",
    "generate": f"{LINES} {RAY} batch-size encoding json length-penalty max-length "
    "max-new-tokens method min-length min-new-tokens model num-beams "
    "no-repeat-ngram-size num-return-sequences repetition-penalty seed stop "
    "temperature top-k top-p unilm worker-engine",
    "index": "batch-tokens config encoding engine fields format header "
    "max-length output overwrite quiet source vocabulary",
    "inspect": "config json tensors vocabulary",
    "list": "json",
    "paraphrase": f"{LINES} {RAY} batch-size encoding json k masked-positions "
    "max-length max-new-tokens n no-repeat-ngram-size repetition-penalty seed "
    "temperature top-k top-p worker-engine",
    "port": "output overwrite",
    "predict": f"{READS} fields format json output overwrite quiet text",
    "pretrain": f"{OPTIMIZER} accumulation average-checkpoints batch-size "
    "config dtype encoding evaluate-every evaluation-batches fields format "
    "group header "
    "hidden-dim holdout ignore "
    "initialize-heads learning-rate length log-every lower-case max-vocabulary "
    "min-count name no-initialize-heads no-lower-case no-packed no-subwords num-heads "
    "num-layers  objective output overwrite packed "
    "quiet save-every seed source steps subwords teacher vocabulary whole-word",
    "rerank": f"{READS} config fields format json label max-length output overwrite "
    "query quiet source vocabulary",
    "search": f"{READS} config fields format json max-length output overwrite "
    "quiet source text top-k vocabulary",
    "serve": "allowed-host api-key batch-wait engine host "
    "index max-batch max-body max-characters max-connections max-length max-texts "
    "max-tokens max-written model-name "
    "port queue-size quiet read-timeout timeout turn-tokens",
    "similarity": f"{READS} config fields format json max-length output overwrite pair "
    "quiet source vocabulary",
    "tokenize": "decode json max-length source text vocabulary",
    "verify": "against bert4keras config json lengths published python quiet "
    "reference save-reference",
}


@pytest.mark.parametrize("verb", FLAGS)
def test_the_flags_of_a_command_and_its_help(verb, cli):
    out = cli(verb, "--help")
    assert out.startswith(f"usage: roformer-keras {verb}")
    described, _, examples = out.partition("\nexamples:\n")
    entries = re.findall(r"^  (-.*?)$(.*?)(?=^  -|^\S|\Z)", described, re.M | re.S)
    flag_names = {
        name
        for flags, _ in entries
        for name in re.findall(r"--([a-z0-9-]+)", flags.split("  ")[0])
    }
    assert flag_names - {"help"} == set(FLAGS[verb].split())
    # Every flag is explained.
    for flags, text in entries:
        _, _, inline_help = flags.partition("  ")
        assert inline_help.strip() or text.strip(), flags
    assert examples or verb in ("list", "download")
    for line in examples.splitlines():
        assert line.startswith(f"  roformer-keras {verb} ")


def test_the_version_is_that_of_the_package(cli):
    assert cli("--version") == f"roformer-keras {metadata.version('roformer-keras')}\n"


def test_the_help_names_every_command(cli):
    assert re.findall(r"^    ([a-z-]+)\b", cli("--help"), re.M) == list(FLAGS)


# === Types of flags ===

FORMATS = " ".join(formats.FORMATS)
ENCODINGS = " ".join(typing.get_args(FileEncoding))
ENGINES = "auto keras openvino openvino-int8"
# What values of flags must be; a flag of one command has the command before it.
RULES = {
    "a finite number": "dropout length-penalty lora-alpha",
    "a finite number above 0": "read-timeout temperature timeout",
    "a finite number of at least 0": "adversarial-epsilon batch-wait clip-norm epsilon "
    "gpus-per-worker r-drop weight-decay",
    "a list with commas between": "fields holdout-by ignore lora-targets model-name",
    "a number from 0 to 100": "learning-rate",
    "a number from 0 to 50": "generate:length-penalty",
    "a number in (0, 1]": "layer-decay top-p",
    "a number in (0, 1000]": "repetition-penalty",
    "a number in [0, 1)": "beta-1 beta-2 ema holdout warmup-ratio",
    "an integer": "finetune:max-length lengths masked-positions max-vocabulary "
    "min-length min-new-tokens port tokenize:max-length",
    "an integer from 0 to 1048576": "lora-rank no-repeat-ngram-size",
    "an integer from 0 to 18446744073709551615": "generate:seed paraphrase:seed",
    "an integer from 0 to 4294967295": "seed",
    "an integer from 1 to 1000000": "epochs",
    "an integer from 1 to 1024": "generate:num-beams",
    "an integer from 1 to 10000": "search:top-k",
    "an integer from 1 to 1048576": "accumulation finetune:batch-size "
    "num-return-sequences pretrain:batch-size",
    "an integer from 1 to 2048": "max-texts",
    "an integer from 1 to 2147483647": "batch-size fill-mask:top-k "
    "hidden-dim k max-length max-new-tokens n num-beams num-heads num-layers "
    "steps",
    "an integer from 4 to 1048576": "length",
    "an integer of at least 0": "average-checkpoints evaluate-every freeze-layers",
    "an integer of at least 1": "batch-tokens cpus-per-worker evaluation-batches "
    "log-every max-batch max-body max-characters max-connections max-tokens "
    "max-written min-count "
    "num-workers patience piece-rows queue-size save-every top-k turn-tokens",
    "one of RoFormerCausalLM RoFormerSim": "model",
    "one of adamw lamb": "optimizer",
    "one of bash zsh fish": "shell",
    "one of bert4keras transformers": "against",
    "one of cosent classification contrastive": "objective",
    f"one of {FORMATS}": "format",
    f"one of {ENCODINGS}": "encoding",
    "one of first none": "header",
    "one of error skip": "evaluate:on-bad-row finetune:on-bad-row",
    "one of first last max mean sqrt_mean weighted_mean last_position "
    "mean_positions": "pooling",
    "one of float32 bfloat16": "embed:dtype",
    "one of float32 float16": "convert:dtype",
    "one of float32 mixed_bfloat16 mixed_float16": "dtype",
    "one of jsonl parquet": "output-format",
    f"one of {ENGINES}": "evaluate:engine index:engine serve:engine worker-engine",
    f"one of {ENGINES} ray": "engine",
    "one of keras ray": "serve:engine",
    "one of linear constant": "schedule",
    "one of mlm lm unilm sim": "pretrain:task",
    "one of mlm lm unilm simbert distillation classification cosent": (
        "pretrain:objective"
    ),
    "one of preset weights.h5 keras safetensors bert4keras huggingface "
    "sentence-transformers": "convert:format",
    "one of report error": "on-bad-row",
    "one of sample greedy beam": "method",
    "one of saved_model onnx openvino": "export:format",
    f"one of {' '.join(TASKS)}": "task",
}
NO_NUMBERS = ["", " ", "x", "nan", "1,,2"]
NO_INTEGERS = [*NO_NUMBERS, "inf", "1.0", "1.5", "1e3", "0x10", "True", "9" * 5000]
NO_FLOATS = [*NO_NUMBERS, "inf", "-inf", "1e400", "1,5"]


def wrong_values(rule):
    """Values that a rule does not allow."""
    if rule.startswith("a list"):
        return ["", ",", "a,,b", "a,"]
    numbers = list(map(int, re.findall(r"\b[0-9]+\b", rule)))
    values = NO_INTEGERS if "integer" in rule else NO_FLOATS
    if not numbers:
        return values
    low, *high = numbers
    beyond = [low - 1, -(10**30), *(end + 1 for end in high), *[10**300] * bool(high)]
    limits = [low] * ("above" in rule or "(" in rule) + high * rule.endswith(")")
    return [*values, *map(str, beyond + limits)]


@pytest.fixture(scope="module")
def actions():
    """Pairs of a command and an action of its parser that takes a checked value."""
    return [
        (verb, action)
        for verb in find_commands()
        for action in parser_of(verb)._actions
        if action.choices or action.type
    ]


def error_of(action, value):
    """The message of a flag that refuses a value, or None."""
    try:
        action.type(value)
    except argparse.ArgumentTypeError as error:
        return str(error)
    return None


def rule_of(verb, action):
    name = (action.option_strings or [action.dest])[-1].lstrip("-")
    named = {rule: names.split() for rule, names in RULES.items()}
    for key in (f"{verb}:{name}", name):
        for rule, names in named.items():
            if key in names:
                return rule
    raise AssertionError(f"{verb} --{name} has no rule")


def test_every_flag_has_the_type_of_its_meaning_and_refuses_other_values(actions):
    wrong = []
    for verb, action in actions:
        rule, name = rule_of(verb, action), f"{verb} {action.option_strings}"
        if action.choices:
            if f"one of {' '.join(filter(None, action.choices))}" != rule:
                wrong.append(f"{name}: {action.choices}, not {rule}")
            continue
        is_list = action.metavar.endswith(",...")
        for value in wrong_values(rule):
            text = error_of(action, value)
            rules = (rule, *["a list with commas between"] * is_list)
            if text is None or not any(
                text.startswith(f"the value must be {one}, got") for one in rules
            ):
                wrong.append(f"{name} {value:.20}: {text}, not {rule}")
    assert wrong == []


WRONG_LINES = [
    ("nonsense", "argument COMMAND: invalid choice: 'nonsense'"),
    ("list x", "unrecognized arguments: x"),
    ("inspect", "the following arguments are required: SOURCE"),
    ("inspect x --colour red", "unrecognized arguments: --colour red"),
    ("inspect x -x", "unrecognized arguments: -x"),
    ("convert x", "the following arguments are required: TARGET"),
    ("convert x y --ignore", "expected one argument"),
    ("convert x y --dtype int8", "invalid choice: 'int8'"),
    ("embed x --normalize", "unrecognized arguments: --normalize"),
    ("embed x --no-normalize=3", "ignored explicit argument '3'"),
    ("verify x --lengths 1,x", "the value must be an integer, got 'x'"),
    ("generate x --model RoFormerMaskedLM", "invalid choice: 'RoFormerMaskedLM'"),
    ("generate x --top-p 0", "--top-p: the value must be a number in (0, 1], got 0.0"),
    ("similarity --pair 今", "argument --pair: expected 2 arguments"),
    ("pretrain -o run", "the following arguments are required: TASK"),
    ("pretrain mlm", "the following arguments are required: -o/--output"),
    ("pretrain a.txt mlm -o run", "argument TASK: invalid choice: 'a.txt'"),
    ("pretrain mlm a -o run --fields a,,b", "must be a list with commas between"),
    ("finetune translation -o run", "TASK: invalid choice: 'translation'"),
    ("finetune text-regression -o run --crf=1", "argument --crf"),
]


def test_wrong_usage_is_exit_code_two(capsys):
    wrong = []
    for line, message in WRONG_LINES:
        code, out, err = run(*line.split(), capsys=capsys)
        is_short = err.count("\n") == 2 and err.endswith(" --help says more\n")
        if (code, out, is_short) != (2, "", True) or message not in err:
            wrong.append(f"{line}: {code}, {err}")
    assert wrong == []


MEANT = [
    ("embde x", "did you mean embed?"),
    ("finetune text-clasification -o run", "did you mean text-classification?"),
    ("embed x --batch-token 5 --ouptut y", "mean --batch-tokens or --output?"),
    ("embed x --dtype bfloat", "did you mean bfloat16?"),
    ("help embde", "did you mean embed?"),
    ("search x --query 早餐", "did you mean --text?"),
    ("rerank x --text=早餐", "did you mean --query?"),
    ("similarity --text 早餐", "did you mean --pair?"),
    (
        "finetune text-classification --train x -o y --lr 1",
        "did you mean --learning-rate?",
    ),
    ("embed x --model roformer-gpt-char", "did you mean --source?"),
    # A part of a flag is none.
    ("serve --model roformer-gpt-char", "did you mean --model-name?"),
]


@pytest.mark.parametrize(("line", "meant"), MEANT)
def test_a_typo_is_told_what_was_meant(line, meant, refused):
    assert meant in refused(*line.split())


def test_without_a_command_the_commands_are_listed(capsys):
    code, out, err = run(capsys=capsys)
    assert (code, out, err) == (2, "", run("--help", capsys=capsys)[1])


def test_help_is_the_help_of_a_command(capsys):
    for line, other in (("help", "--help"), ("help embed", "embed --help")):
        assert run(*line.split(), capsys=capsys) == run(*other.split(), capsys=capsys)


def test_texts_to_tokenize_by_flag_and_by_place(capsys):
    expected = run("tokenize", "你好", "天", capsys=capsys)
    for words in (("--text", "你好", "--text", "天"), ("你好", "--text", "天")):
        assert run("tokenize", *words, capsys=capsys) == expected
    assert run("tokenize", capsys=capsys)[0] == 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_flags_choices_and_checkpoints(tmp_path):
    (tmp_path / "roformer.zip").touch()
    checkpoints = "roformer-char roformer-gpt-char roformer-sim-char roformer.zip"
    cases = {
        "em": "embed",
        "embed --dt": "--dtype",
        "embed --dtype ": "float32 bfloat16",
        "inspect ro": checkpoints,
        "embed --source ro": checkpoints,
        "download chinese_roformer-gpt": "chinese_roformer-gpt-char_L-12_H-768_A-12",
    }
    script = tmp_path / "complete.sh"
    script.write_text(
        'complete_line() { COMP_LINE="$1" COMP_POINT=${#1} COMP_TYPE=9 _ARGCOMPLETE=1 '
        "_ARGCOMPLETE_SUPPRESS_SPACE=1 _ARGCOMPLETE_IFS=' ' "
        f"{sys.executable} -m roformer_keras 8>&1 9>/dev/null; }}\n"
        + "".join(f"complete_line 'roformer-keras {line}'; echo\n" for line in cases)
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = ["bash", script]
    found = subprocess.run(
        words, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert dict(zip(cases, found.stdout.splitlines(), strict=True)) == cases


# === From flags to settings ===


def settings_of(line, monkeypatch, capsys):
    """The settings that a training would get; nothing is trained."""
    all_settings = []
    with monkeypatch.context() as patch:
        # Its files are not there.
        main = sys.modules["roformer_keras.cli.main"]
        patch.setattr(main, "check_paths", lambda *arguments: None)
        for command in (pretrain, finetune):

            def spy(*arguments, read=command.read_settings):
                all_settings.append(read(*arguments))
                raise RoFormerError("enough")

            patch.setattr(command, "read_settings", spy)
        code, _, err = run(*line.split(), capsys=capsys)
    assert (code, err.splitlines()[-1]) == (2, "roformer-keras: error: enough"), err
    return all_settings[0]


@pytest.mark.parametrize(
    ("line", "objective", "files"),
    [
        ("mlm a.txt b.txt -o run", "mlm", ("a.txt", "b.txt")),
        ("mlm -o run a.txt", "mlm", ("a.txt",)),
        ("-o run lm a.txt --packed b.txt", "lm", ("a.txt", "b.txt")),
        ("sim -o run a.tsv --steps 3 --seed 2", "simbert", ("a.tsv",)),
    ],
)
def test_operands_stand_anywhere(line, objective, files, monkeypatch, capsys):
    settings = settings_of(f"pretrain {line}", monkeypatch, capsys)
    assert settings.objective == objective
    assert settings.data[0].files == files


def test_every_flag_of_pretrain_is_a_setting(monkeypatch, capsys):
    line = (
        "pretrain sim a.tsv -o run --objective distillation --teacher b.zip --source "
        "c.zip --initialize-heads --ignore a,b/* --vocabulary v.txt --no-lower-case "
        "--fields 1,2 --group 3 --holdout 0.1 --steps 9 --length 16 --batch-size 8 "
        "--accumulation 2 "
        "--learning-rate 1e-3 --name sim --optimizer lamb "
        "--beta-1 0.8 --beta-2 0.9 --epsilon 1e-5 --weight-decay 0.3 --clip-norm 0.4 "
        "--ema 0.5 --dtype mixed_bfloat16 --seed 5 --log-every 2 --save-every 4 "
        "--evaluate-every 6 --evaluation-batches 3"
    )
    expected = {
        "data": [{"files": ["a.tsv"], "fields": [1, 2], "group": 3, "holdout": 0.1}],
        "stages": [
            {"steps": 9, "length": 16, "batch_size": 8, "accumulation": 2}
            | {"learning_rate": 1e-3}
        ],
        "optimizer": {"beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-5, "name": "lamb"}
        | {"weight_decay": 0.3, "clip_norm": 0.4, "ema": 0.5},
        **tomllib.loads(
            """
            objective = "distillation"
            teacher = "b.zip"
            source = "c.zip"
            initialize_heads = true
            ignore = ["a", "b/*"]
            vocabulary = "v.txt"
            lower_case = false
            name = "sim"
            dtype = "mixed_bfloat16"
            seed = 5
            log_every = 2
            save_every = 4
            evaluate_every = 6
            evaluation_batches = 3
            """
        ),
    }
    read_settings = settings_of(line, monkeypatch, capsys)
    assert read_settings == PretrainingSettings.from_dict(expected)
    line = "pretrain mlm a.txt -o run --num-layers 1 --hidden-dim 8 --num-heads 2"
    line += " --whole-word --min-count 2"
    settings = settings_of(line, monkeypatch, capsys)
    assert settings.model == {"num_layers": 1, "hidden_dim": 8, "num_heads": 2}
    assert (settings.options, settings.min_count) == ({"whole_word": True}, 2)


def test_every_flag_of_finetune_is_a_setting(monkeypatch, capsys):
    line = (
        "finetune sentence-embedding --train a.tsv --test t.tsv --holdout 0.1 "
        "--holdout-by a,2 "
        "--fields a,b,c --on-bad-row skip --source p.zip --ignore x --pooling first "
        "--objective classification "
        "--max-length 99 --dropout 0.2 --epochs 7 --batch-size 8 --accumulation 4 "
        "--learning-rate 1e-3 --warmup-ratio 0.2 --weight-decay 0.3 --clip-norm 0.4 "
        "--ema 0.5 --layer-decay 0.6 --lora-rank 2 --lora-alpha 3 --lora-targets key "
        "--freeze-layers 1 --dtype mixed_bfloat16 "
        "--gradient-checkpointing --monitor loss --patience 3 --no-keep-best --seed 5 "
        "--schedule constant --output run"
    )
    expected = """
        task = "sentence-embedding"
        train = "a.tsv"
        source = "p.zip"
        ignore = ["x"]
        test = "t.tsv"
        holdout = 0.1
        holdout_by = ["a", 2]
        fields = ["a", "b", "c"]
        on_bad_row = "skip"
        model = { dropout = 0.2 }
        max_length = 99
        epochs = 7
        options = { objective = "classification", pooling = "first" }
        batch_size = 8
        accumulation = 4
        learning_rate = 1e-3
        warmup_ratio = 0.2
        optimizer = { weight_decay = 0.3, clip_norm = 0.4, ema = 0.5 }
        schedule = "constant"
        layer_decay = 0.6
        lora_rank = 2
        lora_alpha = 3.0
        lora_targets = ["key"]
        freeze_layers = 1
        dtype = "mixed_bfloat16"
        seed = 5
        gradient_checkpointing = true
        monitor = "loss"
        patience = 3
        keep_best = false
    """
    settings = settings_of(line, monkeypatch, capsys)
    assert settings == FinetuningSettings.from_dict(tomllib.loads(expected))
    line = "finetune text-regression --train a.tsv --freeze-embeddings -o run"
    assert settings_of(line, monkeypatch, capsys).freeze_embeddings


def test_a_recipe_is_a_file_of_settings(refused):
    folder = ROOT / "docs" / "fine-tuning" / "recipes"
    paths = sorted(folder.glob("*.toml"))
    assert len(paths) == 18
    for path in paths:
        settings = finetune.read_settings(None, str(path), {"learning_rate": 1e-5})
        assert settings.monitor and settings.valid
        assert finetune._rates(str(path), {}) == [2e-5, 3e-5, 4e-5, 5e-5]
    line = f"finetune text-regression --config {paths[0]} -o run"
    assert "is for the task 'text-classification', the comm" in refused(*line.split())


PRETRAINING = """
objective = "mlm"
[model]
num_layers = 12
num_heads = 12
hidden_dim = 768
[options]
whole_word = true
[[data]]
files = ["a.txt", "sub/*.tsv"]
fields = [1, 2]
holdout = 0.05
[[stages]]
length = 64
batch_size = 8
steps = 2000
schedule = [[1000, 1.0], [2000, 0.0]]
[[stages]]
length = 32
steps = 1000
schedule = [[500, 1.0], [1000, 0.0]]
"""


@pytest.fixture
def toml(tmp_path):
    return lambda text: str(write_file(tmp_path / "settings.toml", text))


def test_pretraining_without_a_file_of_settings():
    flags = {"data.fields": ("1", "2")}
    settings = pretrain.read_settings("sim", ["a.tsv"], flags=flags)
    assert settings.objective == "simbert"
    assert settings.data == (CorpusSource(files=("a.tsv",), fields=("1", "2")),)
    assert settings.stages == (TrainingStage(steps=10_000, length=64),)
    settings = pretrain.read_settings("unilm", ["a.tsv"])
    assert settings.data[0].fields == ("1", "2")


def test_flags_replace_what_a_file_of_pretraining_settings_says(toml):
    flags = {"stages.steps": 10, "model.num_layers": 2, "seed": 7, "save_every": 50}
    settings = pretrain.read_settings("mlm", [], toml(PRETRAINING), flags)
    assert [(s.steps, s.length) for s in settings.stages] == [(10, 64), (10, 32)]
    # A warm-up for 2,000 updates would be all of 10.
    assert [s.schedule for s in settings.stages] == [((5, 1.0), (10, 0.0))] * 2
    assert settings.model == {"num_layers": 2, "num_heads": 12, "hidden_dim": 768}
    assert settings.options == {"whole_word": True}
    assert (settings.seed, settings.save_every) == (7, 50)
    assert len(settings.data[0].files) == 2
    flags = {"data.holdout": 0.1}
    settings = pretrain.read_settings("mlm", ["b.txt"], toml(PRETRAINING), flags)
    assert settings.data == (CorpusSource(files=("b.txt",), holdout=0.1),)


def test_points_of_a_schedule_that_fall_together(toml):
    path = toml("[[stages]]\nsteps=100\nschedule=[[10,1],[12,0.5],[100,0]]")
    settings = pretrain.read_settings("lm", ["a.txt"], path, {"stages.steps": 10})
    assert settings.stages[0].schedule == ((1, 0.5), (10, 0.0))


@pytest.mark.parametrize(
    ("text", "task", "files", "flags", "message"),
    [
        (PRETRAINING, "lm", [], {}, "objective of lm must be lm"),
        (PRETRAINING, "mlm", [], {"data.holdout": 0.1}, "--holdout needs files"),
        (None, "mlm", [], {}, "name the files"),
        (None, "mlm", ["a"], {"objective": "simbert"}, "got 'simbert'"),
        (
            None,
            "mlm",
            ["a"],
            {"source": "a.zip", "model.hidden_dim": 8},
            "leave out hidden_dim= or source=",
        ),
        ("data=3", "mlm", ["a"], {}, r"data must be tables \[\[data\]\], got 3"),
        ("[stages]\nsteps=4", "mlm", ["a"], {}, r"stages must be tables \[\[stages\]"),
        ("stages=[3]", "mlm", ["a"], {"stages.steps": 5}, "stages must be tables"),
        ("model=3", "mlm", ["a"], {"model.x": 2}, r"must be a table \[model\], got 3"),
        ("options=3", "mlm", ["a"], {"options.x": 2}, r"must be a table \[options\]"),
        ("optimizer=[1]", "mlm", ["a"], {}, r"must be a table \[optimizer\]"),
    ],
)
def test_pretraining_settings_that_are_refused(text, task, files, flags, message, toml):
    with pytest.raises(ConfigurationError, match=message):
        pretrain.read_settings(task, files, text and toml(text), flags)


def test_flags_replace_what_a_file_of_finetuning_settings_says(tmp_path, toml):
    (tmp_path / "c.zip").touch()
    config = toml(
        """
        task = "token-classification"
        train = "train.bio"
        holdout = 0.1
        source = "c.zip"
        epochs = 9
        options = { crf = true, crf_rate = 10.0 }
        [optimizer]
        ema = 0.9
        """
    )
    settings = FinetuningSettings.from_toml(config)
    # Relative paths start at the folder of the file.
    assert settings.train == str(tmp_path / "train.bio")
    assert settings.source == str(tmp_path / "c.zip")
    assert settings.optimizer.ema == 0.9
    assert finetune.read_settings("token-classification", config) == settings
    changed = finetune.read_settings(
        *("token-classification", config),
        {
            "epochs": 2,
            "valid": "v.bio",
            "model.dropout": 0.3,
            "optimizer.weight_decay": 0.0,
        },
    )
    assert (changed.epochs, changed.valid, changed.holdout) == (2, "v.bio", 0.0)
    assert (changed.optimizer.ema, changed.optimizer.weight_decay) == (0.9, 0.0)
    assert changed.model == {"dropout": 0.3}
    assert changed.options == {"crf": True, "crf_rate": 10.0}
    with pytest.raises(ConfigurationError, match="is for the task 'token-classificat"):
        finetune.read_settings("span-extraction", config)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("task = ", "must be a TOML file"),
        ("options = 3", r"settings\.toml: options must be a table \[options\], got 3"),
        ('task = "x"\ntrain = "a"', r"settings\.toml: task must be one of"),
    ],
)
def test_files_of_finetuning_settings_that_are_refused(content, message, toml):
    pipe = f"{toml('')}.pipe"
    os.mkfifo(pipe)
    with pytest.raises(SourceError, match="must be a file, and is a pipe"):
        FinetuningSettings.from_toml(pipe)
    with pytest.raises(ConfigurationError, match=message):
        FinetuningSettings.from_toml(toml(content))
    with pytest.raises(SourceError, match="cannot read"):
        FinetuningSettings.from_toml("nowhere.toml")
    with pytest.raises(ConfigurationError, match="name --train, or a configuration"):
        finetune.read_settings("text-regression")


# === Texts and sources ===


def test_no_text_is_taken_for_a_source(capsys):
    code, out, err = run("tokenize", "roformer-char", "明月", "--json", capsys=capsys)
    assert code == 0
    assert err == (
        "roformer-keras: using roformer-char, a small checkpoint that comes with this "
        "package\n"
    )
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["text"] for line in lines] == ["roformer-char", "明月"]
    named = run("tokenize", "--source", "roformer-char", "明月", capsys=capsys)
    assert named[0] == 0 and named[2] == ""
    assert run("tokenize", "--", "-5", "明月", capsys=capsys)[0] == 0


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_a_file_and_standard_input_have_the_same_lines(end, tmp_path, monkeypatch):
    data = b"\xef\xbb\xbfa\rb\n\n \xe4\xbb\x8a" + end
    (tmp_path / "x").write_bytes(data)
    give_stdin(monkeypatch, data)
    assert read_lines(str(tmp_path / "x")) == read_lines("-") == ["a\rb", "", " 今"]


def test_hints_of_errors_name_arguments_by_hints():
    """So that the command line shows them as flags."""
    flags = {name.replace("-", "_") for own in FLAGS.values() for name in own.split()}
    for path in Path(roformer_keras.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            hints = [one for one in getattr(call, "keywords", ()) if one.arg == "hint"]
            texts = [
                one.value
                for hint in hints
                for one in ast.walk(hint)
                if isinstance(one, ast.Constant)
            ]
            named = re.findall(r"\b(\w+)=", "".join(map(str, texts)))
            assert not flags.intersection(named), (path, texts)
