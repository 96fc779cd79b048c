"""The real Transformers: `verify --against`, and what it loads of our folders.

It runs in separate processes, by this interpreter if it can import Transformers, or by
$ROFORMER_KERAS_TRANSFORMERS_PYTHON. `tools/reference/matrix.py` compares more models,
once a week; `tests/model/test_huggingface.py` has outputs that were stored.
"""

import gzip
import json
import textwrap
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from common import (
    CHARACTER,
    GPT,
    ROOT,
    SHARED,
    WORD,
    output_of,
    run_main,
    transformers_python,
    write_file,
    write_files,
    zipped,
)
from huggingface_folders import FOLDER, changed

import roformer_keras
from roformer_keras import (
    RoFormerMultipleChoice,
    RoFormerTokenClassifier,
    RoFormerTokenizer,
    convert,
    verify,
)
from roformer_keras.base.errors import ConfigurationError, ReferenceUnavailable
from roformer_keras.conversion.huggingface_config import (
    write_tokenizer_config,
    write_tokenizer_file,
)
from roformer_keras.io.vocabulary import read_vocabulary
from roformer_keras.verification.reference import TransformersReference

PYTHON = transformers_python()
pytestmark = [
    pytest.mark.skipif(PYTHON is None, reason="needs Transformers"),
    pytest.mark.usefixtures("plain_calls"),
]


@pytest.fixture(scope="module")
def reference():
    """A running Transformers, in one process for all tests."""
    with TransformersReference(PYTHON) as running:
        yield running


def test_each_class_computes_the_same(reference, tmp_path):
    """Folders that it wrote, and a preset that is converted for it; padded batches."""
    assert reference.is_causal
    assert set(reference.versions) == {"transformers", "torch"}
    preset = tmp_path / "preset"
    RoFormerTokenClassifier.from_preset(
        CHARACTER, labels=["LOC", "PER"], attention="causal"
    ).save_to_preset(preset)
    expected = {
        FOLDER / "masked-lm": {"encoder", "mlm", "lm"},
        # Wider embeddings, three heads, odd sizes.
        FOLDER / "causal-lm": {"lm"},
        # Its tags are in another order.
        FOLDER / "tagger": {"encoder", "tags"},
        FOLDER / "answerer": {"answers"},
        # Its head is another function.
        FOLDER / "classifier": {"encoder"},
        changed("tagger", tmp_path, {"is_decoder": True}): {"tags"},
        preset: {"tags"},
    }
    for source, cases in expected.items():
        options = {"against": reference, "lengths": (1, 13), "verbose": 0}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*tensors are left out")
            report = verify(source, cases=cases, **options)
        assert {c.case for c in report.comparisons} == cases
        assert {c.length for c in report.comparisons} == {1, 13}
        assert report.passed, str(report)


def test_the_command_line_compares_a_checkpoint(capsys):
    arguments = ("--against", "transformers", "--python", PYTHON, "--lengths", "9")
    code, out, _ = run_main("verify", GPT, *arguments, "--quiet", capsys=capsys)
    assert code == 0, out
    assert "against transformers" in out
    assert "passed: all 3 outputs" in out
    with pytest.raises(ConfigurationError, match="against must be"):
        verify(CHARACTER, against="keras-hub")


def test_without_transformers_it_says_how_to_install_it(tmp_path):
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\nexec /usr/bin/env python3 -S "$@"\n')
    fake.chmod(0o755)
    with pytest.raises(ReferenceUnavailable, match=r"roformer-keras\[transformers\]"):
        verify(CHARACTER, against="transformers", python=str(fake), verbose=0)


def test_differences_fail(reference, tmp_path):
    """Tags in another order, and an activation that only one side has."""
    saved = tmp_path / "saved.npz"
    cases = {"cases": ["encoder", "tags"], "lengths": (13,)}
    folder = FOLDER / "tagger"
    verify(folder, against=reference, save_reference=saved, verbose=0, **cases)
    assert verify(folder, reference=saved, verbose=0).passed
    with np.load(saved) as arrays:
        content = dict(arrays)
    key = "outputs/tags/13/tags/values"
    content[key] = content[key][..., ::-1]
    np.savez(saved, **content)
    encoder, tags = verify(folder, reference=saved, verbose=0).comparisons
    assert (encoder.passed, tags.passed, tags.same_top) == (True, False, 1)
    other = changed("tagger", tmp_path, {"hidden_act": "relu"})
    report = verify(other, reference=saved, verbose=0)
    assert not any(comparison.passed for comparison in report.comparisons)


# === What it loads ===


def run_transformers(code, *arguments):
    """Runs Python with Transformers; returns what it prints as JSON."""
    code = (
        "import json, os, sys, warnings\n"
        "os.environ['TRANSFORMERS_VERBOSITY'] = 'error'\n"
        "warnings.simplefilter('ignore')\n"
        "import numpy as np, torch, transformers\n"
        "transformers.utils.logging.disable_progress_bar()\n"
    ) + textwrap.dedent(code)
    return json.loads(output_of("-c", code, *arguments, python=PYTHON))


RELEASED = SHARED / "data" / "vocab"
VOCABULARIES = [
    zipped(WORD, "vocab.txt"),
    zipped(CHARACTER, "vocab.txt"),
    *(path.read_bytes() for path in sorted(RELEASED.glob("*.txt"))),
]


def write_tokenizer(folder, tokens):
    """The files of a tokenizer, as `convert` writes them."""
    checkpoint = SimpleNamespace(vocabulary=tokens, tokenizer={}, model_options={})
    config = write_tokenizer_config(checkpoint)
    written = {"config.json": {"model_type": "roformer"}}
    written["tokenizer_config.json"] = config
    if config["tokenizer_class"] == "RoFormerTokenizer":
        written["tokenizer.json"] = write_tokenizer_file(checkpoint)
    files = {name: json.dumps(content).encode() for name, content in written.items()}
    vocabulary = "".join(f"{token}\n" for token in tokens).encode()
    return str(write_files(folder, {"vocab.txt": vocabulary, **files}))


def reviews():
    path = ROOT / "notebooks" / "data" / "reviews.train.tsv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        texts = [line.split("\t")[0].strip() for line in file]
    return ["Hello, World 2021!", "", *[text for text in texts if text][:1000]]


def test_scores_of_choices_and_ids_of_texts_are_ours(tmp_path):
    """Of folders that are written here, the choices in padded rows."""
    model = RoFormerMultipleChoice.from_preset(CHARACTER)
    kernel, bias = model.get_layer("choice").weights
    kernel.assign(np.random.default_rng(0).normal(size=kernel.shape))
    bias.assign([0.5])
    questions = [
        ("她在北京工作。", "她在哪里？", ["北京", "上海"]),
        ("今天天气不错，我们学习。", "天气？", ["不好", "很不错", "好"]),
    ]
    model.save_to_preset(tmp_path / "preset")
    choices, texts = tmp_path / "choices", reviews()
    convert(tmp_path / "preset", choices, format="huggingface", verbose=0)
    rows = model.make_rows([(*row[:-1], tuple(row[-1])) for row in questions])
    job = {name: array.tolist() for name, array in rows.batch([0, 1]).items()}
    vocabularies = [tuple(read_vocabulary(x, "a vocabulary")) for x in VOCABULARIES]
    job["texts"], job["tokenizers"] = texts, [str(choices)]
    for number, tokens in enumerate(vocabularies):
        job["tokenizers"].append(write_tokenizer(tmp_path / str(number), tokens))
    write_file(tmp_path / "job.json", job)
    scores, *encoded = run_transformers(
        """
        choices, path = sys.argv[1:]
        job = json.load(open(path))
        model = transformers.AutoModelForMultipleChoice.from_pretrained(choices)
        rows, segments = (torch.tensor(job[n]) for n in ("token_ids", "segment_ids"))
        # A row without any token would be NaN.
        visible = (rows != 0).long()
        visible[..., 0] = 1
        with torch.no_grad():
            answers = [model(rows, visible, segments).logits.tolist()]
        for folder in job["tokenizers"]:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            answers.append([tokenizer(text)["input_ids"] for text in job["texts"]])
        print(json.dumps(answers))
        """,
        choices,
        tmp_path / "job.json",
    )
    for theirs, ours in zip(scores, model.predict(questions, verbose=0), strict=True):
        assert np.abs(theirs[: len(ours)] - ours).max() <= 1e-5
    again = roformer_keras.load_model(choices)
    assert type(again) is RoFormerMultipleChoice
    tokenizers = [again.tokenizer, *map(RoFormerTokenizer, vocabularies)]
    for tokenizer, rows in zip(tokenizers, encoded, strict=True):
        (different,) = (
            text
            for text, ids in zip(texts, rows, strict=True)
            if tokenizer.encode(text)[0] != ids
        )
        # A private-use character.
        assert "\ue844" in different
