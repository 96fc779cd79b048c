"""The real Transformers: `verify --against`, and what it loads of our folders.

It runs in separate processes, by this interpreter if it can import Transformers, or by
$ROFORMER_KERAS_TRANSFORMERS_PYTHON.
"""

import gzip
import json
import re
import shlex
import subprocess
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest
from common import (
    CHARACTER,
    GPT,
    NSP,
    ROOT,
    SHARED,
    SIM,
    V2,
    WORD,
    run_main,
    transformers_python,
    write_folder,
    zipped,
)
from huggingface_folders import FOLDER

import roformer_keras
from roformer_keras import (
    RoFormerQuestionAnswerer,
    RoFormerTokenClassifier,
    RoFormerTokenizer,
    convert,
    verify,
)
from roformer_keras.conversion.huggingface_config import (
    write_tokenizer_config,
    write_tokenizer_file,
)
from roformer_keras.errors import ConfigurationError, ReferenceUnavailable
from roformer_keras.io.vocabulary import read_vocabulary
from roformer_keras.verification.reference import TransformersReference

PYTHON = transformers_python()
pytestmark = pytest.mark.skipif(PYTHON is None, reason="needs Transformers")

# Random models of Transformers itself: five shapes.
SHAPES = {
    "embedding size": {"embedding_size": 16, "hidden_size": 24},
    "odd sizes": {
        "vocab_size": 131,
        "hidden_size": 18,
        "num_attention_heads": 3,
        "intermediate_size": 37,
        "num_hidden_layers": 3,
        "max_position_embeddings": 77,
    },
    "relu, epsilon": {"hidden_act": "relu", "layer_norm_eps": 1e-5},
    "causal": {"is_decoder": True, "type_vocab_size": 3},
    "base": {
        "vocab_size": 2000,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
}
SMALL = {
    "vocab_size": 200,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


def run_transformers(code, *arguments):
    """Runs Python with Transformers; returns what it prints as JSON."""
    code = (
        "import json, os, sys, warnings\n"
        "os.environ['TRANSFORMERS_VERBOSITY'] = 'error'\n"
        "warnings.simplefilter('ignore')\n"
        "import numpy as np, torch, transformers\n"
        "transformers.utils.logging.disable_progress_bar()\n"
    ) + textwrap.dedent(code)
    done = subprocess.run(
        [PYTHON, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", SHAPES)
def test_random_models_of_transformers_pass_both_ways(name, tmp_path):
    fields = {**SMALL, **SHAPES[name]}
    run_transformers(
        """
        torch.manual_seed(0)
        fields = json.loads(sys.argv[1])
        config = transformers.RoFormerConfig(**fields)
        kind = "CausalLM" if config.is_decoder else "MaskedLM"
        model = getattr(transformers, f"RoFormerFor{kind}")(config)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.requires_grad and weight.dim() == 1:
                    weight.add_(0.05 * torch.randn(weight.shape))
        model.save_pretrained(sys.argv[2])
        print(0)
        """,
        json.dumps(fields),
        tmp_path / "theirs",
    )
    lengths = (1, 13, 64, 512) if name != "base" else (1, 64)
    options = {"against": "transformers", "python": PYTHON, "verbose": 0}
    report = verify(tmp_path / "theirs", lengths=lengths, **options)
    assert {c.case for c in report.comparisons} == {"encoder", "mlm", "lm"}
    assert report.passed, str(report)
    assert {c.bar < 1e-4 for c in report.comparisons} == {name != "base"}
    preset = convert(tmp_path / "theirs", tmp_path / "ours", verbose=0)
    assert verify(preset, lengths=lengths, **options).passed


@pytest.mark.parametrize("source", [CHARACTER, WORD, GPT, SIM])
def test_checkpoints_of_bert4keras_pass(source, capsys):
    arguments = ("--against", "transformers", "--python", PYTHON, "--lengths", "1,9,40")
    code, out, _ = run_main("verify", source, *arguments, "--quiet", capsys=capsys)
    assert code == 0, out
    assert "against transformers" in out
    assert "passed: all 9 outputs" in out


def test_what_transformers_has_not_is_refused():
    options = {"against": "transformers", "python": PYTHON, "verbose": 0}
    with pytest.raises(ConfigurationError, match="has model_type='roformer_v2'"):
        verify(V2, **options)
    with pytest.raises(ConfigurationError, match="has with_nsp=True"):
        verify(NSP, **options)
    with pytest.raises(ConfigurationError, match="against must be"):
        verify(CHARACTER, against="keras-hub")


def test_a_difference_is_found(tmp_path):
    """Of one weight that only one side has changed."""
    from safetensors.numpy import load_file, save_file

    options = {"against": "transformers", "python": PYTHON, "verbose": 0}
    folder = convert(CHARACTER, tmp_path / "x", format="huggingface", verbose=0)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    assert verify(folder, lengths=(9,), **options).passed
    reference = tmp_path / "reference.npz"
    verify(folder, lengths=(9,), save_reference=reference, **options)
    assert verify(folder, reference=reference, verbose=0).passed
    config = json.loads((folder / "config.json").read_text())
    config["layer_norm_eps"] = 1e-3
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, path, {"format": "pt"})
    assert not verify(folder, reference=reference, verbose=0).passed


def test_a_causal_model_that_sees_the_future_is_no_reference(monkeypatch):
    with TransformersReference(PYTHON) as reference:
        assert reference.is_causal
        assert set(reference.versions) == {"transformers", "torch"}

    class Leaking(TransformersReference):
        def _begin(self, python, folder=None):
            return {**super()._begin(python, folder), "is_causal": False}

    module = "roformer_keras.verification.verify.TransformersReference"
    monkeypatch.setattr(module, Leaking)
    options = {"against": "transformers", "python": PYTHON, "lengths": (5,)}
    with pytest.raises(ReferenceUnavailable, match="sees future tokens"):
        verify(GPT, verbose=0, **options)
    assert verify(GPT, cases=["encoder"], verbose=0, **options).passed


def test_without_transformers_it_says_how_to_install_it(tmp_path):
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\nexec /usr/bin/env python3 -S "$@"\n')
    fake.chmod(0o755)
    with pytest.raises(ReferenceUnavailable, match=r"roformer-keras\[transformers\]"):
        verify(CHARACTER, against="transformers", python=str(fake), verbose=0)


TASKS = {
    "RoFormerForTokenClassification": (
        RoFormerTokenClassifier,
        {"labels": ["LOC", "PER"]},
    ),
    "RoFormerForQuestionAnswering": (RoFormerQuestionAnswerer, {}),
}


@pytest.mark.parametrize("architecture", TASKS)
def test_tasks_have_the_same_outputs_there(architecture, tmp_path):
    task_class, options = TASKS[architecture]
    model = task_class.from_preset(CHARACTER, **options)
    model.save_to_preset(tmp_path / "preset")
    folder = convert(
        tmp_path / "preset", tmp_path / "there", format="huggingface", verbose=0
    )
    token_ids = np.array([[101, 7, 9, 11, 102, 12, 14, 102, 0]], "int32")
    segment_ids = np.array([[0, 0, 0, 0, 0, 1, 1, 1, 0]], "int32")
    found = run_transformers(
        """
        ids, segments = (torch.tensor(json.loads(text)) for text in sys.argv[3:])
        model = getattr(transformers, sys.argv[1]).from_pretrained(sys.argv[2]).eval()
        with torch.no_grad():
            outputs = model(ids, (ids != 0).long(), segments, return_dict=False)
        stacked = torch.stack(outputs, -1) if len(outputs) > 1 else outputs[0]
        print(json.dumps(stacked.tolist()))
        """,
        architecture,
        folder,
        json.dumps(token_ids.tolist()),
        json.dumps(segment_ids.tolist()),
    )
    inputs = {"token_ids": token_ids, "segment_ids": segment_ids}
    ours = np.asarray(model(inputs, training=False))
    inside = ours > -1e8
    assert inside.any()
    assert np.abs(ours - np.array(found))[inside].max() <= 1e-5
    again = roformer_keras.load_model(folder)
    assert type(again) is task_class


TEXTS = [
    "今天天气非常好。",
    "太祖即位，大赦天下。",
    "Hello, World 2021!",
    "我在 Beijing 上班",
    "",
]


@pytest.mark.parametrize("source", [CHARACTER, WORD])
def test_its_tokenizer_gives_our_ids(source, tmp_path):
    folder = convert(source, tmp_path / "x", format="huggingface", verbose=0)
    found = run_transformers(
        """
        tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
        texts = json.loads(sys.argv[2])
        print(json.dumps([tokenizer(text)["input_ids"] for text in texts]))
        """,
        folder,
        json.dumps(TEXTS),
    )
    tokenizer = RoFormerTokenizer.from_preset(folder)
    assert found == [list(map(int, tokenizer.encode(text)[0])) for text in TEXTS]


def test_our_outputs_are_those_of_the_goldens_now():
    """What is installed computes what the committed folders were written with."""
    with np.load(FOLDER / "outputs.npz") as arrays:
        golden = dict(arrays)
    options = {"against": "transformers", "python": PYTHON, "verbose": 0}
    for name in ("encoder", "masked-lm", "masked-lm-bin", "causal-lm"):
        assert verify(FOLDER / name, lengths=(1, 13), **options).passed
        assert any(key.startswith(f"{name}/") for key in golden)


def test_the_commands_of_the_readme_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("\n## Hugging Face\n")[2].partition("\n## ")[0]
    lines = re.findall(r"```shell\n(.*?)```", section, re.S)[0].splitlines()
    assert len(lines) == 7
    for line in lines:
        command, *arguments = shlex.split(line)
        assert command == "roformer-keras"
        if arguments[0] == "verify":
            arguments += ["--python", PYTHON]
        code, out, error = run_main(*arguments, capsys=capsys)
        assert code == 0, (line, out, error)
    code = re.findall(r"```python\n(.*?)```", section, re.S)[0]
    assert run_transformers(f"{code}\nprint(json.dumps(len(tokenizer)))") > 5000


RELEASED = SHARED / "data" / "vocab"
VOCABULARIES = [
    zipped(WORD, "vocab.txt"),
    zipped(CHARACTER, "vocab.txt"),
    *(path.read_bytes() for path in sorted(RELEASED.glob("*.txt"))),
]


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=len)
def test_ids_of_1000_reviews(vocabulary, tmp_path):
    """All but that with a private-use character are equal."""
    tokens = tuple(read_vocabulary(vocabulary, "a vocabulary"))
    path = ROOT / "notebooks" / "data" / "reviews.train.tsv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        texts = [line.split("\t")[0].strip() for line in file]
    texts = [text for text in texts if text][:1000]
    checkpoint = SimpleNamespace(vocabulary=tokens, tokenizer={})
    folder = tmp_path / "tokenizer"
    written = {"config.json": {"model_type": "roformer"}}
    written["tokenizer_config.json"] = write_tokenizer_config(checkpoint)
    if written["tokenizer_config.json"]["tokenizer_class"] == "RoFormerTokenizer":
        written["tokenizer.json"] = write_tokenizer_file(checkpoint)
    write_folder(
        folder,
        {
            "vocab.txt": "".join(f"{token}\n" for token in tokens).encode(),
            **{name: json.dumps(content).encode() for name, content in written.items()},
            "texts.json": json.dumps(texts).encode(),
        },
    )
    found = run_transformers(
        """
        tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
        texts = json.load(open(f"{sys.argv[1]}/texts.json"))
        print(json.dumps([tokenizer(text)["input_ids"] for text in texts]))
        """,
        folder,
    )
    tokenizer = RoFormerTokenizer(tokens)
    different = [
        text
        for text, ids in zip(texts, found, strict=True)
        if list(map(int, tokenizer.encode(text)[0])) != ids
    ]
    assert len(different) == 1
    assert "\ue844" in different[0]
