"""The real Transformers: `verify --against`, and what it loads of our folders.

It runs in separate processes, by this interpreter if it can import Transformers, or by
$ROFORMER_KERAS_TRANSFORMERS_PYTHON.
"""

import gzip
import json
import subprocess
import textwrap
import warnings
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
from huggingface_folders import FOLDER, changed

import roformer_keras
from roformer_keras import (
    RoFormerMultipleChoice,
    RoFormerQuestionAnswerer,
    RoFormerTextClassifier,
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


@pytest.fixture(scope="module")
def reference():
    """A running Transformers, in one process for all tests."""
    with TransformersReference(PYTHON) as running:
        yield running


@pytest.fixture(scope="module")
def random_models(tmp_path_factory):
    """Folder by name of `SHAPES`, made in one process."""
    place = tmp_path_factory.mktemp("random")
    run_transformers(
        """
        for folder, fields in json.loads(sys.argv[1]).items():
            torch.manual_seed(0)
            config = transformers.RoFormerConfig(**fields)
            kind = "CausalLM" if config.is_decoder else "MaskedLM"
            model = getattr(transformers, f"RoFormerFor{kind}")(config)
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    if weight.requires_grad and weight.dim() == 1:
                        weight.add_(0.05 * torch.randn(weight.shape))
            model.save_pretrained(folder)
        print(0)
        """,
        json.dumps({str(place / name): SMALL | SHAPES[name] for name in SHAPES}),
    )
    return {name: place / name for name in SHAPES}


@pytest.mark.parametrize("name", SHAPES)
def test_random_models_of_transformers_pass_both_ways(
    name, random_models, reference, tmp_path
):
    """On padded batches, most of odd lengths."""
    source = random_models[name]
    lengths = (1, 13, 64, 512) if name != "base" else (1, 63)
    options = {"against": reference, "lengths": lengths, "verbose": 0}
    report = verify(source, **options)
    assert {c.case for c in report.comparisons} == {"encoder", "mlm", "lm"}
    assert report.passed, str(report)
    assert {c.bar < 1e-4 for c in report.comparisons} == {name != "base"}
    preset = convert(source, tmp_path / "ours", verbose=0)
    assert verify(preset, **options).passed


@pytest.mark.parametrize("source", [CHARACTER, WORD, GPT, SIM])
def test_checkpoints_of_bert4keras_pass(source, capsys):
    arguments = ("--against", "transformers", "--python", PYTHON, "--lengths", "1,9,40")
    code, out, _ = run_main("verify", source, *arguments, "--quiet", capsys=capsys)
    assert code == 0, out
    assert "against transformers" in out
    assert "passed: all 9 outputs" in out


def test_what_transformers_has_not_is_refused(reference):
    options = {"against": reference, "verbose": 0}
    with pytest.raises(ConfigurationError, match="has model_type='roformer_v2'"):
        verify(V2, **options)
    with pytest.raises(ConfigurationError, match="has with_nsp=True"):
        verify(NSP, **options)
    with pytest.raises(ConfigurationError, match="against must be"):
        verify(CHARACTER, against="keras-hub")


def test_a_difference_is_found(reference, tmp_path):
    """Of one weight that only one side has changed."""
    from safetensors.numpy import load_file, save_file

    options = {"against": reference, "verbose": 0}
    folder = convert(CHARACTER, tmp_path / "x", format="huggingface", verbose=0)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    assert verify(folder, lengths=(9,), **options).passed
    saved = tmp_path / "reference.npz"
    verify(folder, lengths=(9,), save_reference=saved, **options)
    assert verify(folder, reference=saved, verbose=0).passed
    config = json.loads((folder / "config.json").read_text())
    config["layer_norm_eps"] = 1e-3
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, path, {"format": "pt"})
    assert not verify(folder, reference=saved, verbose=0).passed


def test_a_causal_model_that_sees_the_future_is_no_reference(reference, monkeypatch):
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


def saved_task(folder, task_class, **options):
    """A preset of a task with a new head on a small encoder."""
    task_class.from_preset(CHARACTER, **options).save_to_preset(folder)
    return folder


LABELS = {"labels": ["LOC", "PER"]}
CAUSAL = {"attention": "causal"}
# Presets here: class, options, and the cases that Transformers has too.
TASKS = {
    "tags": (RoFormerTokenClassifier, LABELS, {"encoder", "tags"}),
    "causal tags": (RoFormerTokenClassifier, LABELS | CAUSAL, {"encoder", "tags"}),
    "a field of tags": (RoFormerTokenClassifier, LABELS | {"crf": True}, {"encoder"}),
    "answers": (RoFormerQuestionAnswerer, {}, {"encoder", "answers"}),
    "causal answers": (RoFormerQuestionAnswerer, CAUSAL, {"encoder", "answers"}),
    "classes": (RoFormerTextClassifier, {"num_classes": 3}, {"encoder"}),
    "choices": (RoFormerMultipleChoice, {}, {"encoder"}),
}


@pytest.mark.parametrize("name", TASKS)
def test_heads_of_tasks_pass(name, reference, tmp_path):
    """A preset, and the folder that Transformers loads; a class reads it back."""
    task_class, options, cases = TASKS[name]
    preset = saved_task(tmp_path / "preset", task_class, **options)
    sources = [preset]
    if len(cases) > 1:
        there = tmp_path / "there"
        sources += [convert(preset, there, format="huggingface", verbose=0)]
        again = roformer_keras.load_model(there)
        assert type(again) is task_class
        assert again.config.attention == options.get("attention", "bidirectional")
    for source in sources:
        report = verify(source, against=reference, lengths=(1, 13), verbose=0)
        assert {c.case for c in report.comparisons} == cases
        assert report.passed, str(report)


def test_heads_of_transformers_pass(reference, tmp_path):
    """Those that it wrote; its tags have another order."""
    expected = {
        "tagger": {"sequence", "tags"},
        "answerer": {"sequence", "starts", "ends"},
        # Its head is another function.
        "classifier": {"sequence"},
        # Its scores are those of groups of rows.
        "chooser": {"sequence"},
    }
    options = {"against": reference, "lengths": (1, 13, 32), "verbose": 0}
    for name, outputs in expected.items():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*tensors are left out")
            report = verify(FOLDER / name, **options)
        assert {c.output for c in report.comparisons} == outputs
        assert report.passed, str(report)
    causal = changed("tagger", tmp_path, {"is_decoder": True})
    assert verify(causal, **options).passed
    tags = roformer_keras.load_model(causal)
    assert type(tags) is RoFormerTokenClassifier
    assert tags.config.attention == "causal"


def test_scores_of_choices_are_ours(tmp_path):
    """Of a folder that is written here, on padded rows."""
    model = RoFormerMultipleChoice.from_preset(CHARACTER)
    kernel, bias = model.get_layer("choice").weights
    kernel.assign(np.random.default_rng(0).normal(size=kernel.shape))
    bias.assign([0.5])
    texts = [
        ("她在北京工作。", "她在哪里？", ["北京", "上海"]),
        ("今天天气不错，我们学习。", "天气？", ["不好", "很不错", "好"]),
    ]
    model.save_to_preset(tmp_path / "preset")
    folder = tmp_path / "folder"
    convert(tmp_path / "preset", folder, format="huggingface", verbose=0)
    rows = model.make_rows([(*row[:-1], tuple(row[-1])) for row in texts])
    ids = {name: one.tolist() for name, one in rows.batch([0, 1]).items()}
    found = run_transformers(
        """
        model = transformers.AutoModelForMultipleChoice.from_pretrained(sys.argv[1])
        ids = json.loads(sys.argv[2])
        rows, segments = (torch.tensor(ids[n]) for n in ("token_ids", "segment_ids"))
        # A row without any token would be NaN.
        visible = (rows != 0).long()
        visible[..., 0] = 1
        with torch.no_grad():
            print(json.dumps(model(rows, visible, segments).logits.tolist()))
        """,
        folder,
        json.dumps(ids),
    )
    for theirs, ours in zip(found, model.predict(texts, verbose=0), strict=True):
        assert np.abs(theirs[: len(ours)] - ours).max() <= 1e-5
    assert type(roformer_keras.load_model(folder)) is RoFormerMultipleChoice


def test_a_difference_in_a_head_is_found(reference, tmp_path):
    """Scores of tags in another order."""
    saved = tmp_path / "saved.npz"
    options = {"lengths": (13,), "cases": ["tags"], "verbose": 0}
    verify(FOLDER / "tagger", against=reference, save_reference=saved, **options)
    assert verify(FOLDER / "tagger", reference=saved, verbose=0).passed
    with np.load(saved) as arrays:
        content = dict(arrays)
    content["outputs/tags/13/tags/values"] = content["outputs/tags/13/tags/values"][
        ..., ::-1
    ]
    np.savez(saved, **content)
    report = verify(FOLDER / "tagger", reference=saved, verbose=0)
    assert not report.passed
    assert report.comparisons[0].same_top == 1


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


def test_our_outputs_are_those_of_the_goldens_now(reference):
    """What is installed computes what the committed folders were written with."""
    with np.load(FOLDER / "outputs.npz") as arrays:
        golden = dict(arrays)
    options = {"against": reference, "verbose": 0}
    for name in ("encoder", "masked-lm", "masked-lm-bin", "causal-lm"):
        assert verify(FOLDER / name, lengths=(1, 13), **options).passed
        assert any(key.startswith(f"{name}/") for key in golden)


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
