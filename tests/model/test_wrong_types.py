"""Arguments of a wrong type are named by the error of every public call."""

import dataclasses
import functools

import pytest
from common import CHARACTER, SIM, SMALL

import roformer_keras
from roformer_keras import export, optimizers
from roformer_keras.base.errors import RoFormerError

OBJECT, GOOD = object(), ["不错", "很好"]
# What an argument takes -> values that it does not.
WRONG = {
    "path": (3, 3.5, OBJECT, ["a"]),
    "text": (3, OBJECT, b"x"),
    "texts": (3, OBJECT, [3], [None]),
    "names": (3, OBJECT, [None]),
    "integer": ("x", 3.5, OBJECT, [3]),
    "number": ("x", OBJECT, [3]),
    "numbers": ("x", OBJECT, 3, ["x"]),
    "choice": (3, OBJECT, "x", [3]),
    "mapping": (3, OBJECT, ["x"]),
    "object": (3, OBJECT, "x"),
    "prompts": (OBJECT, [OBJECT], [None], 3.5),
    "tokens": (OBJECT, 3.5, [OBJECT], [None]),
    "epochs": ("x", 3.5, OBJECT, 0),
    "flag": ("x", 3, OBJECT),
    "verbose": ("x", 3, OBJECT, None),
    "callbacks": ("x", 3, OBJECT, ["x"]),
    "measure": (3, OBJECT, "no_such", [3]),
    "unknown": (1,),
}


# Arguments of Keras's own `fit`.
LOOP = {
    "epochs": "integer",
    "verbose": "verbose",
    "callbacks": "callbacks",
    "validation_data": "object",
    "validation_batch_size": "integer",
    "shuffle": "flag",
    "initial_epoch": "integer",
    "steps_per_epoch": "integer",
    "validation_steps": "integer",
    "validation_freq": "epochs",
    "unknown": "unknown",
}


@dataclasses.dataclass
class Call:
    """A call that works, and the kinds of its arguments."""

    function: object
    arguments: dict
    kinds: dict


def wrong_calls(name, call):
    """Lines about calls that raise no error of the package, or do not name it."""
    lines = []
    for argument, kind in call.kinds.items():
        for value in WRONG[kind]:
            try:
                call.function(**{**call.arguments, argument: value})
                outcome = "is taken"
            except RoFormerError:
                continue
            except Exception as error:
                outcome = f"{type(error).__name__}: {str(error)[:80]}"
            lines.append(f"{name}({argument}={value!r}): {outcome}")
    return lines


@functools.cache
def loaded(kind, source, **options):
    return getattr(roformer_keras, kind).from_preset(source, num_layers=1, **options)


def calls(folder):
    """Public calls by their name."""
    rk = roformer_keras
    lm, sim = loaded("RoFormerCausalLM", CHARACTER), loaded("RoFormerSim", SIM)
    masked = loaded("RoFormerMaskedLM", CHARACTER)
    task = loaded("RoFormerTextClassifier", SMALL, num_classes=2)
    tokenizer = sim.tokenizer
    settings = {"task": "text-classification", "train": "a.tsv", "source": "x"}
    source = {"source": CHARACTER}
    output = {"folder": folder / "new"}
    lengths = dict.fromkeys(
        ("max_length", "max_new_tokens", "min_new_tokens", "seed"), "integer"
    )
    sampling = {"top_k": "integer", "top_p": "number", "temperature": "number"}
    sampling |= {"repetition_penalty": "number", "no_repeat_ngram_size": "integer"}
    written = {"stop_tokens": "tokens", "engine": "choice", **lengths, **sampling}
    one_token = {"max_new_tokens": 1, "verbose": 0}
    training = {
        "x": "texts",
        "batch_size": "integer",
        "validation_split": "number",
        "sample_weight": "numbers",
        "class_weight": "mapping",
        "seed": "integer",
    }
    by_name = {
        "load_model": (rk.load_model, source, {"source": "path", "config": "mapping"}),
        "from_preset": (
            rk.RoFormerBackbone.from_preset,
            source,
            {
                "source": "path",
                "config": "mapping",
                "keep_tokens": "numbers",
                "compound_tokens": "numbers",
                "ignore": "names",
                "num_layers": "integer",
                "dropout": "number",
                "activation": "choice",
            },
        ),
        "load_preset": (sim.load_preset, {"source": SIM}, {"source": "path"}),
        "save_to_preset": (
            sim.save_to_preset,
            output,
            {"folder": "path", "tokenizer": "object"},
        ),
        "save_lora": (sim.save_lora, {"path": "x.safetensors"}, {"path": "path"}),
        "load_lora": (sim.load_lora, {"path": "x.safetensors"}, {"path": "path"}),
        "enable_lora": (
            sim.enable_lora,
            {"rank": 2},
            {"rank": "integer", "alpha": "number", "targets": "names"},
        ),
        "freeze": (sim.freeze, {}, {"layers": "integer"}),
        "convert": (
            rk.convert,
            {"source": CHARACTER, "target": folder / "new.zip", "verbose": 0},
            {
                "source": "path",
                "target": "path",
                "format": "choice",
                "dtype": "choice",
                "model": "choice",
                "config": "mapping",
                "vocabulary": "path",
                "ignore": "names",
            },
        ),
        "download": (rk.download, {"name": "no"}, {"name": "choice"}),
        "load_finetuned": (rk.load_finetuned, output, {"folder": "path"}),
        "finetune": (
            rk.finetune,
            {"settings": rk.FinetuningSettings(**settings), **output},
            {"settings": "object", "folder": "path"},
        ),
        "pretrain": (
            rk.pretrain,
            {"settings": None, **output},
            {"settings": "object"},
        ),
        "verify": (rk.verify, source, {"source": "path", "against": "choice"}),
        "push_to_hub": (
            rk.push_to_hub,
            {"source": folder / "no", "repository": "a/b"},
            {"source": "path", "repository": "text", "format": "choice"},
        ),
        "tokenizer": (
            rk.RoFormerTokenizer,
            {"vocabulary": list(tokenizer.vocabulary)},
            {"vocabulary": "texts", "level": "choice"},
        ),
        "tokenize": (tokenizer.tokenize, {"text": "a"}, {"text": "text"}),
        "encode ids": (
            tokenizer.encode,
            {"first": "a"},
            {"first": "text", "second": "text", "max_length": "integer"},
        ),
        "decode": (tokenizer.decode, {"ids": [5]}, {"ids": "numbers"}),
        "subset": (tokenizer.subset, {"keep_tokens": [5]}, {"keep_tokens": "numbers"}),
        "token_to_id": (tokenizer.token_to_id, {"token": "a"}, {"token": "text"}),
        "id_to_token": (
            tokenizer.id_to_token,
            {"token_id": 5},
            {"token_id": "integer"},
        ),
        "save_vocabulary": (
            tokenizer.save_vocabulary,
            {"path": folder / "v.txt"},
            {"path": "path"},
        ),
        "generate": (
            lm.generate,
            {"prompts": "好", **one_token},
            {"prompts": "prompts", "num_return_sequences": "integer", **written},
        ),
        "stream": (
            lambda **options: list(lm.stream(**options)),
            {"prompt": "好", "max_new_tokens": 1},
            {"prompt": "text", **written},
        ),
        "paraphrase": (
            sim.paraphrase,
            {"texts": "好", **one_token},
            {"texts": "prompts", "n": "integer", "k": "integer", **sampling},
        ),
        "encode": (
            sim.encode,
            {"texts": ["好"], "verbose": 0},
            {
                "texts": "texts",
                "batch_tokens": "integer",
                "max_length": "integer",
            },
        ),
        "similarity": (
            sim.similarity,
            {"first": ["好"], "second": ["好"]},
            {"first": "texts", "second": "texts"},
        ),
        "fill_mask": (
            masked.fill_mask,
            {"texts": "好[MASK]"},
            {"texts": "texts", "top_k": "integer"},
        ),
        "classify": (
            task.classify,
            {"x": GOOD[:1], "verbose": 0},
            {
                "x": "texts",
                "batch_size": "integer",
                "batch_tokens": "integer",
                "threshold": "number",
            },
        ),
        "fit": (
            task.fit,
            {"x": GOOD[:2], "y": [0, 1], "verbose": 0},
            {**training, "y": "names", **LOOP},
        ),
        "evaluate": (
            task.evaluate,
            {"x": GOOD[:2], "y": [0, 1], "verbose": 0},
            {
                "x": "texts",
                "batch_size": "integer",
                "sample_weight": "numbers",
                "steps": "integer",
                "verbose": "verbose",
                "callbacks": "callbacks",
                "return_dict": "flag",
                "unknown": "unknown",
            },
        ),
        "predict": (
            task.predict,
            {"x": GOOD[:2], "verbose": 0},
            {
                "x": "texts",
                "batch_size": "integer",
                "batch_tokens": "integer",
                "verbose": "verbose",
                "engine": "choice",
                "steps": "integer",
                "callbacks": "callbacks",
                "unknown": "unknown",
            },
        ),
        "fit texts": (
            masked.fit,
            {"x": GOOD[:2], "verbose": 0},
            {**training, "max_length": "integer", **LOOP},
        ),
        "compile": (
            task.compile,
            {},
            {
                "adversarial_epsilon": "number",
                "r_drop": "number",
                "optimizer": "object",
                "loss": "measure",
                "metrics": "measure",
                "weighted_metrics": "measure",
                "run_eagerly": "flag",
                "jit_compile": "flag",
                "steps_per_execution": "integer",
                "auto_scale_loss": "flag",
                "learning_rate": "unknown",
            },
        ),
        "make_optimizer": (
            optimizers.make_optimizer,
            {"learning_rate": 0.1},
            {
                "learning_rate": "number",
                "schedule": "numbers",
                "name": "choice",
                "accumulation": "integer",
                "rates": "mapping",
                **dict.fromkeys(
                    ("beta_1", "beta_2", "epsilon", "weight_decay", "clip_norm", "ema"),
                    "number",
                ),
            },
        ),
        "layerwise_rates": (
            optimizers.layerwise_rates,
            {"num_layers": 2, "decay": 0.9},
            {"num_layers": "integer", "decay": "number"},
        ),
        "load_exported": (
            export.load_exported,
            {**output, "format": "openvino"},
            {"folder": "path", "format": "choice"},
        ),
        "export_model": (
            export.export_model,
            {"model": sim, "folder": folder / "x", "format": "openvino"},
            {
                "model": "object",
                "folder": "path",
                "format": "choice",
                "calibration_texts": "texts",
            },
        ),
        "export_generator": (
            export.export_generator,
            {"model": lm, "folder": folder / "x"},
            {"model": "object", "folder": "path", "format": "choice"},
        ),
        "CorpusSource": (rk.CorpusSource, {"files": "a"}, {"files": "texts"}),
    }
    options = {"max_length": "integer", "head_dropout": "number", "pooling": "choice"}
    fresh = {"source": SMALL, "num_layers": 1}
    for kind, given, kinds in (
        (
            "RoFormerTextClassifier",
            {"num_classes": 2},
            {"classes": "names", "num_classes": "integer", **options},
        ),
        (
            "RoFormerTokenClassifier",
            {"labels": ["a"]},
            {"labels": "names", "crf_rate": "number", "max_length": "integer"},
        ),
        (
            "RoFormerSpanExtractor",
            {"labels": ["a"]},
            {"labels": "names", "max_length": "integer"},
        ),
        (
            "RoFormerRelationExtractor",
            {"labels": ["a"]},
            {"labels": "names", "max_length": "integer"},
        ),
        ("RoFormerMultipleChoice", {}, options),
        ("RoFormerTripletRanker", {}, options),
        ("RoFormerTextRegressor", {}, options),
        ("RoFormerQuestionAnswerer", {}, {"stride": "integer"}),
        ("RoFormerSentenceEncoder", {}, {"scale": "number", "objective": "choice"}),
    ):
        by_name[kind] = (getattr(rk, kind).from_preset, {**fresh, **given}, kinds)
    by_name["FinetuningSettings"] = (
        rk.FinetuningSettings,
        settings,
        {
            "task": "choice",
            "train": "path",
            "source": "path",
            "epochs": "integer",
            "learning_rate": "number",
            "options": "mapping",
            "optimizer": "mapping",
            "ignore": "names",
        },
    )
    return {name: Call(*parts) for name, parts in by_name.items()}


@pytest.mark.slow
def test_a_wrong_type_is_named(tmp_path):
    wrong = [
        line
        for name, call in calls(tmp_path).items()
        for line in wrong_calls(name, call)
    ]
    assert wrong == [], "\n".join(wrong)
