"""Heads of Transformers, in and out: each of them, in five shapes.

The real Transformers writes folders with random weights in one process; what each gives
for a padded batch with token types is compared with the model that is read here. They
are written again, and read by `AutoModelFor...` in another process.
"""

import textwrap

import keras
import numpy as np
import pytest
from common import output_of, transformers_python, write_file
from sources import outputs, tensors_of

import roformer_keras
from roformer_keras import convert
from tools.reference.huggingface import VOCABULARY

PYTHON = transformers_python()
pytestmark = pytest.mark.skipif(PYTHON is None, reason="needs Transformers")

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "vocab_size": len(VOCABULARY.read_text(encoding="utf-8").splitlines()),
}
SHAPES = {
    "plain": {},
    "embedding": {"embedding_size": 12, "num_hidden_layers": 1},
    "odd": {"hidden_size": 18, "num_attention_heads": 3, "intermediate_size": 25},
    "causal": {"is_decoder": True, "hidden_act": "relu", "layer_norm_eps": 1e-3},
    "wide": {"hidden_size": 96, "num_hidden_layers": 4, "hidden_act": "gelu_new"},
}


def labels(*names):
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {n: i for i, n in enumerate(names)},
    }


# Name -> the class there after `RoFormerFor`, its fields, the class here.
HEADS = {
    "classes": (
        "SequenceClassification",
        labels("坏", "好", "中"),
        "RoFormerTextClassifier",
    ),
    "two classes": ("SequenceClassification", {}, "RoFormerTextClassifier"),
    "label sets": (
        "SequenceClassification",
        {"problem_type": "multi_label_classification", "num_labels": 4},
        "RoFormerTextClassifier",
    ),
    "number": ("SequenceClassification", {"num_labels": 1}, "RoFormerTextRegressor"),
    "tags": (
        "TokenClassification",
        labels("B-LOC", "I-LOC", "O", "B-PER", "I-PER"),
        "RoFormerTokenClassifier",
    ),
    "parts of speech": (
        "TokenClassification",
        labels("n", "v", "ns", "m", "w"),
        "RoFormerTokenClassifier",
    ),
    "plain labels": (
        "TokenClassification",
        labels("PER", "O", "LOC"),
        "RoFormerTokenClassifier",
    ),
    "bioes": (
        "TokenClassification",
        labels("O", *(f"{kind}-LOC" for kind in "BIES")),
        "RoFormerTokenClassifier",
    ),
    "answers": ("QuestionAnswering", {}, "RoFormerQuestionAnswerer"),
    "answers without types": (
        "QuestionAnswering",
        {"type_vocab_size": 1},
        "RoFormerQuestionAnswerer",
    ),
    **{
        f"choices {kind} {len(fields)}": (
            "MultipleChoice",
            {"summary_type": kind, **fields},
            "RoFormerMultipleChoice",
        )
        for kind, fields in (
            ("first", {}),
            ("last", {}),
            ("mean", {}),
            ("cls_index", {}),
            ("last", {"summary_use_proj": True, "summary_activation": "tanh"}),
        )
    },
    "choices of a dense layer": (
        "MultipleChoice",
        {"summary_use_proj": True, "summary_proj_to_labels": False},
        "RoFormerMultipleChoice",
    ),
    "unnamed tags": (
        "TokenClassification",
        {"num_labels": 4},
        "RoFormerTokenClassifier",
    ),
    "masked tokens": (
        "MaskedLM",
        {"tie_word_embeddings": False, "is_decoder": False},
        "RoFormerMaskedLM",
    ),
    "next tokens": (
        "CausalLM",
        {"tie_word_embeddings": False, "is_decoder": True},
        "RoFormerCausalLM",
    ),
}
CASES = [(head, shape) for shape in SHAPES for head in HEADS]
INPUTS = ("token_ids", "attention_mask", "segment_ids")
# Largest differences that are found, to print.
FOUND: dict = {}

IN_TRANSFORMERS = """
import json, os, shutil, sys, warnings
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.simplefilter("ignore")
import numpy as np, torch, transformers
from pathlib import Path
transformers.utils.logging.disable_progress_bar()
task, folder, job = sys.argv[1], Path(sys.argv[2]), json.load(open(sys.argv[3]))
arrays = {}
for number, (name, kind, fields) in enumerate(job["models"]):
    if task == "write":
        from tools.reference.huggingface import draw_weights
        fields = {**fields}
        if "id2label" in fields:
            fields["id2label"] = {int(k): v for k, v in fields["id2label"].items()}
        config = transformers.RoFormerConfig(**fields)
        model = getattr(transformers, f"RoFormerFor{kind}")(config).eval()
        draw_weights(model, torch.Generator().manual_seed(number))
        model.save_pretrained(folder / name)
        shutil.copy(job["vocabulary"], folder / name / "vocab.txt")
    else:
        auto = getattr(transformers, f"AutoModelFor{kind}")
        model, info = auto.from_pretrained(folder / name, output_loading_info=True)
        assert not any(info.values()), (name, info)
        config = model.eval().config
    rows = [torch.tensor(row) for row in job["inputs"]]
    rows[2] = rows[2].clamp(max=config.type_vocab_size - 1)
    if kind == "MultipleChoice":
        rows = [one[None] for one in rows]
    with torch.no_grad():
        outputs = model(*rows)
    roles = ("logits", "start_logits", "end_logits")
    roles = [role for role in roles if role in outputs]
    outputs = np.stack([outputs[role].numpy() for role in roles], -1)
    arrays[name] = outputs[..., 0] if len(roles) == 1 else outputs
    if "id2label" in fields:
        # Tags of BIO are written in another order.
        names = fields["id2label"].values()
        arrays[name] = arrays[name][..., [model.config.label2id[own] for own in names]]
np.savez(folder / f"{task}.npz", **arrays)
"""


def draw_inputs():
    """Rows of 13, 7, 2 and 1 tokens, with a zero in the middle, and token types."""
    random = np.random.default_rng(0)
    ids = random.integers(1, SIZES["vocab_size"], (4, 13), dtype="int32")
    segments = np.zeros_like(ids)
    segments[:, 4:] = 1
    ids[0, 5] = 0
    for row, length in enumerate((13, 7, 2, 1)):
        ids[row, length:] = segments[row, length:] = 0
    visible = (ids != 0).astype("int32")
    visible[:, 0] = 1
    return dict(zip(INPUTS, (ids, visible, segments), strict=True))


def in_transformers(task, folder, models):
    job = folder / f"{task}.json"
    rows = [draw_inputs()[name].tolist() for name in INPUTS]
    content = {"models": models, "inputs": rows, "vocabulary": str(VOCABULARY)}
    write_file(job, content)
    output_of("-c", textwrap.dedent(IN_TRANSFORMERS), task, folder, job, python=PYTHON)
    with np.load(folder / f"{task}.npz") as arrays:
        return dict(arrays)


def scores(model, head):
    """The outputs of a model for the batch, in the form of Transformers."""
    rows = draw_inputs()
    inputs = {name: rows[name] for name in ("token_ids", "segment_ids")}
    if head.startswith("choices"):
        inputs = {name: rows[None] for name, rows in inputs.items()}
    if hasattr(model, "text_segment"):
        inputs["segment_ids"] *= model.text_segment
        assert (model.predict(inputs, verbose=0) > -1e8).any(axis=(1, 2)).all()
        model = keras.Model(model.input, model.get_layer("ends").output)
    (found,) = outputs(model, inputs).values()
    names = HEADS[head][1].get("id2label")
    if hasattr(model, "tags") and names is not None:
        return found[..., [model.tags.index(name) for name in names.values()]]
    return found


def check(cases, folder):
    """Raises AssertionError unless all heads are read, and read again there."""
    theirs, ours = folder / "theirs", folder / "ours"
    theirs.mkdir()
    ours.mkdir()
    models = []
    for head, shape in cases:
        kind, fields, _ = HEADS[head]
        models.append((f"{head} {shape}", kind, {**SIZES, **SHAPES[shape], **fields}))
    expected = in_transformers("write", theirs, models)
    wrong = []
    for name, _, _ in models:
        model = roformer_keras.load_model(theirs / name)
        head = name.rpartition(" ")[0]
        assert type(model).__name__ == HEADS[head][2], name
        gap = np.abs(scores(model, head) - expected[name]).max()
        convert(theirs / name, folder / "preset", overwrite=True, verbose=0)
        there = convert(folder / "preset", ours / name, format="huggingface", verbose=0)
        same = tensors_of(there), tensors_of(theirs / name)
        if "cls.predictions.decoder.bias" in same[1]:
            # Transformers adds that of the decoder, and not this one.
            same[1]["cls.predictions.bias"] = same[1]["cls.predictions.decoder.bias"]
        if same[0].keys() != same[1].keys() or not all(
            np.array_equal(same[0][key], same[1][key]) for key in same[0]
        ):
            wrong.append(f"{name}: other bits")
        FOUND[name] = [gap]
    again = in_transformers("read", ours, models)
    for name, values in again.items():
        FOUND[name].append(np.abs(values - expected[name]).max())
        if max(FOUND[name]) > 1e-5:
            wrong.append(f"{name}: {FOUND[name]}")
    assert wrong == []


def test_heads_in_one_shape(tmp_path):
    check([case for case in CASES if case[1] == "plain"], tmp_path)


@pytest.mark.weekly
def test_heads_in_all_shapes(tmp_path):
    check(CASES, tmp_path)
    for name, gaps in FOUND.items():
        print(f"{name}: in {gaps[0]:.1e}, out {gaps[1]:.1e}")
