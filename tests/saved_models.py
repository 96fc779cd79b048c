"""Saved models and trained ones compared, by model, state, file and reader.

A cell is a class, a state, a format and a reader. `wrong_cells` writes its file here,
and reads it in another process, which runs this module.
"""

import contextlib
import io
import itertools
import json
import subprocess
import sys
import warnings
from pathlib import Path

from common import CHARACTER, GPT, SIM, read_json, write_file

NAMES = ["差", "好"]
# Class -> source, arguments, and texts of a row.
TASKS = {
    "RoFormerTextClassifier": ({"classes": NAMES}, 1),
    "RoFormerTextRegressor": ({"pooling": "mean"}, 2),
    "RoFormerSentenceEncoder": ({"objective": "classification", "classes": NAMES}, 2),
    "RoFormerTripletRanker": ({}, 3),
    "RoFormerTokenClassifier": ({"labels": ["地"], "crf": True}, 1),
    "RoFormerSpanExtractor": ({"labels": ["地", "人"], "head_dim": 8}, 1),
    "RoFormerRelationExtractor": ({"labels": ["在", "是"], "head_dim": 8}, 1),
    "RoFormerQuestionAnswerer": ({}, 2),
    "RoFormerMultipleChoice": ({}, 2),
}
MODELS = {
    "RoFormerBackbone": CHARACTER,
    "RoFormerMaskedLM": CHARACTER,
    "RoFormerCausalLM": GPT,
    "RoFormerSim": SIM,
}
CLASSES = (*MODELS, *TASKS)
STATES = ("fresh", "trained", "lora", "merged", "mixed")
# Format -> readers.
FORMATS = {
    "preset": ("from_preset", "load_model", "convert", "command"),
    "keras": ("from_preset", "load_model", "keras", "convert", "command"),
    "weights.h5": ("keras", "from_preset", "load_model", "convert"),
    "h5": ("keras",),
    "zip": ("from_preset", "load_model", "convert"),
    "safetensors": ("from_preset", "load_model", "convert"),
    "huggingface": ("from_preset", "load_model", "convert"),
    "lora": ("load_lora", "backbone"),
    "saved_model": ("tensorflow", "from_preset"),
}
CELLS = [
    (name, state, format, reader)
    for name, state in itertools.product(CLASSES, STATES)
    for format, readers in FORMATS.items()
    for reader in readers
    # Commands compute in float32.
    if (state, reader) != ("mixed", "command")
]
TEXTS = ["今天天气不错", "她在北京", "我们学习语言"]
MASKED, PROMPT = "今天[MASK]气", "今天"
# Loaded smaller, without dropout.
ONE_BLOCK = {"num_layers": 1, "dropout": 0.0, "attention_dropout": 0.0}
FLOAT_FORMATS = ("zip", "safetensors", "huggingface")
IN_TRANSFORMERS = ("RoFormerQuestionAnswerer", "RoFormerMultipleChoice")


def class_of(name):
    import roformer_keras

    return getattr(roformer_keras, name)


def options_of(state):
    return {"dtype": "mixed_bfloat16"} if state == "mixed" else {}


def build(name, state="fresh"):
    """A model of a class, as it is before it is trained in some way."""
    import keras

    keras.utils.set_random_seed(0)
    options = options_of(state)
    if name in TASKS:
        options |= TASKS[name][0]
        model = class_of(name).from_preset(CHARACTER, **ONE_BLOCK, **options)
    else:
        model = class_of(name).from_preset(MODELS[name], **ONE_BLOCK, **options)
    model.run_eagerly = True
    return model


def trained(name, state):
    """A model of a class in a state: its weights differ from those of `build`."""
    import keras
    import numpy as np

    model = build(name, state)
    if state in ("lora", "merged"):
        model.enable_lora(2)
    if state != "fresh":
        random = np.random.default_rng(1)
        for variable in model.trainable_variables:
            value = np.asarray(variable, "float32")
            variable.assign(value + 0.1 * random.normal(size=variable.shape))
    if state == "merged":
        model.merge_lora()
    keras.utils.set_random_seed(2)
    return model


def inputs_of(model):
    """Ids for a model, the same for each copy of it."""
    import numpy as np

    name = type(model).__name__
    if name in TASKS:
        count = TASKS[name][1]
        rows = [tuple(TEXTS[n : n + count]) for n in range(4 - count)]
        if model.has_choices:
            rows = [(*row[:1], tuple(TEXTS)) for row in rows]
        return model.make_rows(rows).batch(np.arange(len(rows)))
    ids = np.random.default_rng(0).integers(5, 20, (2, 7), "int32")
    ids[1, 4:] = 0
    segments = np.array([[0, 0, 0, 0, 1, 1, 1], [0] * 7], "int32")
    return {key: segments if "segment" in key else ids for key in model.input}


def outputs_of(model):
    import keras
    import numpy as np

    model.run_eagerly = True
    outputs = model(inputs_of(model), training=False)
    flat = outputs if isinstance(outputs, dict) else {"output": outputs}
    return {
        key: np.asarray(keras.ops.convert_to_numpy(value), "float32")
        for key, value in flat.items()
    }


# === Writing ===


def is_unreadable(name, state, format, reader):
    """True if Keras writes a file that a reader of this package must refuse."""
    if format == "saved_model":
        return reader == "from_preset"
    if format != "weights.h5" or reader == "keras":
        return False
    # Weights alone say nothing of a head.
    return name not in MODELS or reader == "load_model"


def is_refused(name, state, format):
    """True if a file cannot hold the model, so that writing it is an error."""
    is_task = name in TASKS
    refused = {
        "h5": True,
        "lora": state != "lora",
        "safetensors": is_task,
        "huggingface": is_task and name not in IN_TRANSFORMERS,
    }
    is_unmerged = state == "lora" and format in ("preset", *FLOAT_FORMATS)
    return refused.get(format, False) or is_unmerged


def write(model, format, folder):
    """Saves a model; returns the path. Raises as the writer does."""
    from roformer_keras import convert

    folder = Path(folder)
    if format in ("keras", "h5"):
        model.save(path := folder / f"model.{format}")
    elif format == "weights.h5":
        model.save_weights(path := folder / "model.weights.h5")
    elif format == "lora":
        path = folder / "adapter.safetensors"
        model.save_lora(path)
    elif format == "saved_model":
        path = folder / "export"
        with contextlib.redirect_stdout(io.StringIO()):
            model.export(path, verbose=False)
    else:
        path = folder / "preset"
        if not path.exists():
            model.save_to_preset(path)
        if format != "preset":
            kind = {"zip": "bert4keras"}.get(format, format)
            suffix = "" if format == "huggingface" else f".{format}"
            target = folder / f"converted{suffix}"
            path = convert(path, target, format=kind, verbose=0)
    return path


# === Reading ===


def check(cell, path, expected):
    """Reads one file and compares; returns what is wrong, or None.

    A reader may also refuse: "refused" is returned with its message.
    """
    from roformer_keras.base.errors import RoFormerError

    name, _, format, reader = cell
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            read = READERS[reader](cell, Path(path))
    except RoFormerError as error:
        return f"refused: {error}"[:300]
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"[:300]
    if reader == "command":
        same = _is_close(read, expected["answers"])
        return None if same else f"answers {read} != {expected['answers']}"[:300]
    if isinstance(read, str):
        return read
    if reader == "backbone":
        # Of a model with a head, which an adapter has too.
        is_warned = any("left out" in str(one.message) for one in caught)
        if (name != "RoFormerBackbone" and expected["has_head"]) != is_warned:
            return f"{len(caught)} warnings"
        return _differs(read, expected["backbone"], 1e-5)
    if format == "zip" and name in TASKS:
        return _differs(read, expected["backbone"], *_tolerance(cell))
    if format not in ("weights.h5", "lora", "saved_model"):
        vocabulary = read.get("vocabulary")
        if vocabulary != expected["vocabulary"]:
            return "the vocabulary is not that of the model"
    return _differs(read["outputs"], expected["outputs"], *_tolerance(cell))


def _tolerance(cell):
    _, state, _, reader = cell
    if state == "lora" and reader in ("from_preset", "load_model", "convert"):
        # The additions are in the kernels.
        return (1e-5,)
    if reader == "tensorflow":
        # A graph rounds elsewhere.
        return (0.03 if state == "mixed" else 1e-4,)
    return (0.0,)


def _differs(found, expected, tolerance=0.0):
    import numpy as np

    if set(found) != set(expected):
        return f"outputs {sorted(found)} != {sorted(expected)}"
    for key, value in expected.items():
        value = np.asarray(value)
        if found[key].shape != value.shape:
            return f"{key} has shape {found[key].shape} != {value.shape}"
        # Scores that are left out are -1e9.
        seen = np.abs(value) < 1e6
        gap = np.abs(found[key][seen] - value[seen]).max(initial=0.0)
        size = max(1.0, np.abs(value[seen]).max(initial=0.0))
        if not gap <= tolerance * size:
            return f"{key} differs by {gap:.3g}"
    return None


def _found(model):
    return {"outputs": outputs_of(model), "vocabulary": _found_vocabulary(model)}


def _found_vocabulary(model):
    text = model.tokenizer
    return None if text is None else [list(text.vocabulary), text.to_dict()]


def _given(cell):
    """Arguments that files of weights need."""
    name, state, format, _ = cell
    options = options_of(state)
    if format == "weights.h5":
        options["config"] = build(name).config
    if name in TASKS and format in ("zip", "weights.h5"):
        options |= TASKS[name][0]
    return options


def _by_from_preset(cell, path):
    name, _, format, _ = cell
    model = class_of(name).from_preset(path, **_given(cell))
    if format == "zip" and name in TASKS:
        return outputs_of(model.backbone)
    return _found(model)


def _by_load_model(cell, path):
    import roformer_keras

    name, _, format, _ = cell
    options = _given(cell)
    if name in TASKS:
        options = {k: v for k, v in options.items() if k in ("config", "dtype")}
    model = roformer_keras.load_model(path, **options)
    class_name = type(model).__name__
    if format == "zip" and name in (*TASKS, "RoFormerBackbone"):
        # bert4keras's files do not say more.
        backbone = getattr(model, "backbone", model)
        outputs = outputs_of(backbone)
        return outputs if name in TASKS else {**_found(model), "outputs": outputs}
    if class_name != name and format != "zip":
        return f"a {class_name}"
    if class_name != name:
        # A zip's class follows from its heads.
        model = class_of(name).from_preset(path, **options)
    return _found(model)


def _by_keras(cell, path):
    import keras

    name, state, format, _ = cell
    if format == "weights.h5":
        model = build(name, state)
        if state == "lora":
            model.enable_lora(2)
        model.load_weights(path)
        return {"outputs": outputs_of(model)}
    # Keras finds classes that are imported.
    assert class_of(name)
    return _found(keras.models.load_model(path))


def _by_convert(cell, path):
    from roformer_keras import convert

    name, state, format, _ = cell
    target = path.with_name(f"again-{format.replace('.', '-')}")
    keywords = {}
    if format == "weights.h5":
        keywords = {"config": build(name).config, "model": name}
    elif format == "zip":
        keywords = {"model": "RoFormerBackbone" if name in TASKS else name}
    convert(path, target, overwrite=True, verbose=0, **keywords)
    options = options_of(state)
    if format == "zip" and name in TASKS:
        backbone = class_of("RoFormerBackbone").from_preset(target, **options)
        return outputs_of(backbone)
    return _found(class_of(name).from_preset(target, **options))


def _by_load_lora(cell, path):
    model = build(cell[0])
    model.load_lora(path)
    return {"outputs": outputs_of(model)}


def _by_backbone(cell, path):
    model = build(cell[0])
    backbone = getattr(model, "backbone", model)
    backbone.load_lora(path)
    return outputs_of(backbone)


def _by_tensorflow(cell, path):
    import numpy as np
    import tensorflow as tf

    inputs = inputs_of(build(cell[0]))
    loaded = tf.saved_model.load(str(path))
    answer = loaded.serve(inputs)
    flat = answer if isinstance(answer, dict) else {"output": answer}
    outputs = {key: np.asarray(value, "float32") for key, value in flat.items()}
    return {"outputs": outputs}


def command_of(name, path):
    """A command that answers with a file."""
    if name in TASKS:
        count = TASKS[name][1]
        row = TEXTS[:count]
        if name == "RoFormerMultipleChoice":
            row = [TEXTS[0], json.dumps(TEXTS, ensure_ascii=False)]
        return ["predict", path, "--text", *row, "--quiet"]
    return {
        "RoFormerBackbone": ["embed", "-", "--source", path, "--quiet"],
        "RoFormerMaskedLM": ["fill-mask", MASKED, "--source", path, "--json"],
        "RoFormerCausalLM": [
            *("generate", "--text", PROMPT, "--source", path, "--method", "greedy"),
            *("--max-new-tokens", "4", "--quiet"),
        ],
        "RoFormerSim": ["similarity", "--pair", *TEXTS[:2], "--source", path],
    }[name]


def answers_of(name, path):
    """The output of the command, without the name of the file; or its error."""
    from roformer_keras.base.errors import SourceError
    from roformer_keras.cli import main

    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(TEXTS[0].encode()))
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(argument) for argument in command_of(name, path)])
    except SystemExit as exit:
        code = exit.code
    finally:
        sys.stdin = before
    if code:
        raise SourceError(err.getvalue().strip()[-200:])
    lines = out.getvalue().splitlines()
    answers = [json.loads(line) if line[:1] == "{" else line for line in lines]
    if name == "RoFormerCausalLM":
        # What is not a stream is JSON.
        return [x if isinstance(x, str) else x["outputs"][0]["text"] for x in answers]
    return answers


def answers_of_model(model):
    """The output of the command of `command_of` for a model."""
    from roformer_keras.models.embedding import embed
    from roformer_keras.tasks.finetuned import FinetunedTask

    name = type(model).__name__
    if name in TASKS:
        row = (*TEXTS[: TASKS[name][1]],)
        if model.has_choices:
            row = (TEXTS[0], TEXTS)
        return FinetunedTask(model, Path(), 1, (), None).answer([row])
    if name == "RoFormerBackbone":
        vectors = embed(model, model.tokenizer, TEXTS[:1], 512, True, verbose=0)
        return [{"text": TEXTS[0], "vector": vectors[0].tolist()}]
    if name == "RoFormerMaskedLM":
        masks = [[vars(one) for one in mask] for mask in model.fill_mask(MASKED)]
        return [{"text": MASKED, "masks": masks}]
    if name == "RoFormerSim":
        cosine = model.similarity(*TEXTS[:2])
        return [{"first": TEXTS[0], "second": TEXTS[1], "similarity": cosine}]
    return [model.generate(PROMPT, method="greedy", max_new_tokens=4)]


def _is_close(found, expected):
    """True if JSON is the same but for rounding."""
    if isinstance(expected, float):
        return isinstance(found, float | int) and abs(found - expected) < 1e-3
    if isinstance(expected, list):
        same = isinstance(found, list) and len(found) == len(expected)
        return same and all(map(_is_close, found, expected))
    if isinstance(expected, dict):
        same = isinstance(found, dict) and found.keys() == expected.keys()
        return same and all(_is_close(found[k], expected[k]) for k in expected)
    return found == expected


READERS = {
    "from_preset": _by_from_preset,
    "load_model": _by_load_model,
    "keras": _by_keras,
    "convert": _by_convert,
    "command": lambda cell, path: answers_of(cell[0], path),
    "load_lora": _by_load_lora,
    "backbone": _by_backbone,
    "tensorflow": _by_tensorflow,
}


def expected_of(model, with_answers):
    """The expected results of readers, as JSON."""
    backbone = getattr(model, "backbone", model)
    outputs = _lists(outputs_of(model))
    return {
        "outputs": outputs,
        "backbone": outputs if backbone is model else _lists(outputs_of(backbone)),
        "vocabulary": _found_vocabulary(model),
        "has_head": len(model.weights) > len(backbone.weights),
        "answers": answers_of_model(model) if with_answers else None,
    }


def _lists(outputs):
    return {key: value.tolist() for key, value in outputs.items()}


# === The table ===


def wrong_cells(cells, folder):
    """Writes and reads cells; returns what is wrong, by cell."""
    compute_plainly()
    wrong, jobs, models = {}, [], {}
    for cell in cells:
        models.setdefault(cell[:2], []).append(cell)
    for (name, state), own in models.items():
        folder_of_model = Path(folder, f"{name}-{state}")
        folder_of_model.mkdir()
        model = trained(name, state)
        expected = folder_of_model / "expected.json"
        with_answers = any(cell[3] == "command" for cell in own)
        write_file(expected, expected_of(model, with_answers))
        written = {}
        for cell in own:
            format = cell[2]
            if format not in written:
                written[format] = _written(model, cell, folder_of_model)
            path, problem = written[format]
            if problem is not None:
                wrong[cell] = problem
            elif path is not None:
                jobs.append([cell, str(path), str(expected)])
    return wrong | _read(jobs)


def _written(model, cell, place):
    """Path of a file, or None where there must be none; and what is wrong, or None."""
    from roformer_keras.base.errors import RoFormerError

    refused = is_refused(*cell[:3])
    try:
        path = write(model, cell[2], place)
    except RoFormerError as error:
        return None, None if refused else f"not written: {error}"[:300]
    except Exception as error:
        return None, f"not written: {type(error).__name__}: {error}"[:300]
    return (None, "written") if refused else (path, None)


def _read(jobs):
    """The problems of files that a fresh process reads, by cell."""
    process = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in process.stdout.splitlines() if line.startswith(_RESULT)]
    assert len(lines) == len(jobs), process.stderr[-2000:]
    problems = [json.loads(line.removeprefix(_RESULT)) for line in lines]
    return {tuple(cell): problem for cell, problem in problems if problem is not None}


_RESULT = "result "


def compute_plainly():
    """Has models compute operation by operation: no function is called often."""
    import keras

    from roformer_keras.base import compiled
    from roformer_keras.inference import fast_model

    def as_it_is(_, function):
        def call(*arguments):
            tensors = keras.ops.convert_to_tensor
            return function(*keras.tree.map_structure(tensors, arguments))

        return call

    fast_model._is_outside_graph = lambda inputs: False
    compiled._in_tensorflow = as_it_is


def main():
    """Reads the files of cells; prints what is wrong with each, or null."""
    compute_plainly()
    for cell, path, expected in json.load(sys.stdin):
        values = read_json(Path(expected))
        problem = check(tuple(cell), path, values)
        if problem and problem.startswith("refused") and is_unreadable(*cell):
            problem = None
        print(f"{_RESULT}{json.dumps([cell, problem])}", flush=True)


if __name__ == "__main__":
    main()
