"""Checks of every Keras backend; `test_backends.py` runs this as a process.

    KERAS_BACKEND=jax python tests/backend_checks.py [NAME ...]

On JAX and PyTorch it is as if TensorFlow were not installed. The names choose checks.
The last line says which of them a backend passes. It fails a check by BackendError,
which must name it; any other error ends the process.
"""

import functools
import itertools
import json
import os
import sys

if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
    # Importing it is now an ImportError, for Keras too, which would where it can.
    sys.modules["tensorflow"] = None

import tempfile
import time
import warnings
from pathlib import Path
from unittest.mock import patch

import docs_blocks
import keras
import numpy as np
import plain_decoding as plain
import pytest
from arrays import assert_close
from common import (
    CHARACTER,
    CHECKPOINTS,
    GPT,
    SAVED,
    SIM,
    config_of_saved,
)
from finetuning_cases import assert_mean_of_adversarial_steps, load_small
from golden_outputs import golden, golden_batches, golden_cases
from keras import ops

from roformer_keras import (
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerSim,
    RoFormerTextClassifier,
    RoFormerTokenClassifier,
    layers,
)
from roformer_keras.base.errors import BackendError
from roformer_keras.export.model import export_model
from roformer_keras.export.runtime import ServedEncoder
from roformer_keras.layers import (
    LayerNorm,
    LinearRoPEAttention,
    long_attention,
)
from roformer_keras.optimizers import make_optimizer
from roformer_keras.verification.counterpart import counterpart

TESTS = Path(__file__).parent
# Modules whose tests compute with nothing of one backend.
NEUTRAL = [
    *("test_crf.py", "test_pointer.py"),
    *("test_bert4keras_functions.py", "test_bert4keras_optimizers.py"),
    "test_bert4keras_snippets.py",
]
# Cases of the goldens, and what is compared: masks, poolers, norms, rotations.
CASES = {
    "unilm-pool": ["pooled", "mlm"],
    "v2-mlm": ["mlm"],
    "layer-norm-cond": ["sequence"],
}
LINEAR_KINDS = ("linear", "cosine", "performer", "rotary_performer")


def assert_learns(model, inputs, targets, loss):
    """The loss falls in three steps, which change every weight."""
    model.compile(keras.optimizers.SGD(0.1), loss)
    before = model.get_weights()
    history = model.fit(inputs, targets, epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    for weight, old, new in zip(
        model.weights, before, model.get_weights(), strict=True
    ):
        assert (old != new).any(), weight.path


@functools.cache
def golden_case(name):
    """A model, which no check changes, with the inputs and outputs of bert4keras."""
    _, metadata = golden()
    case, data = golden_cases()[name], golden_batches(name)["main"]
    options = {"layer_norm_epsilon": metadata["layer_norm_epsilon"]}
    source = CHECKPOINTS / f"{case['source']}.zip"
    if case["source"].endswith(".h5"):
        source = SAVED / case["source"]
        options["config"] = config_of_saved(case["source"])
    return counterpart(source, case["kwargs"], **options), data


def inputs_of(model, data):
    return {name: data[name] for name in model.input}


def check_outputs_equal_bert4keras():
    """By `predict`, which compiles where the backend can."""
    for name, roles in CASES.items():
        model, data = golden_case(name)
        outputs = model.predict(inputs_of(model, data), verbose=0)
        if not isinstance(outputs, dict):
            outputs = {"sequence_output": outputs, "logits": outputs}
        for role in roles:
            if role == "mlm":
                assert (outputs["logits"].argmax(-1) == data["mlm_top"]).all(), name
                columns = data.get("mlm_columns", slice(None))
                assert_close(outputs["logits"][..., columns], data[role], 2e-5)
            else:
                assert_close(outputs[f"{role}_output"], data[role], 2e-5)


def check_mixed_bfloat16():
    _, data = golden_case("unilm-pool")
    model = RoFormerSim.from_preset(SIM, dtype="mixed_bfloat16")
    outputs = model.predict(inputs_of(model, data), verbose=0)
    for value in outputs.values():
        assert str(value.dtype) == "bfloat16"
        assert np.isfinite(value.astype("float32")).all()
    error = np.abs(outputs["pooled_output"].astype("float32") - data["pooled"])
    assert error.mean() < 0.02 * np.abs(data["pooled"]).max()


def assert_pieces_are_the_whole(kind):
    """Sums of chunks, and the sums of what came before: more than one chunk of both."""
    length, cuts = 140, (0, 130, 139, 140)
    x = np.random.default_rng(0).normal(size=(2, length, 8)).astype("float32")
    layer = LinearRoPEAttention(2, 4, kind=kind, causal=True)
    expected = ops.convert_to_numpy(layer(x))
    cache, parts = layer.create_cache(2), []
    for start, stop in itertools.pairwise(cuts):
        part, cache = layer(x[:, start:stop], cache=cache, cache_index=start)
        parts.append(ops.convert_to_numpy(part))
    assert_close(np.concatenate(parts, axis=1), expected, 2e-5)


def check_layers_and_optimizers_equal_bert4keras():
    """By tests that the suite runs on TensorFlow."""
    if keras.backend.backend() not in ("jax", "torch"):
        return
    modules = [str(TESTS / "model" / name) for name in NEUTRAL]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    # Compiled one by one, all of their tests would take minutes.
    options += ["-k", "equals_bert4keras or equal_bert4keras or follow_new_weights"]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert pytest.main([*options, *modules]) == 0


def check_long_texts():
    """Attention without stored scores equals that with them, with its gradients."""
    x = np.random.default_rng(0).normal(size=(2, 37, 16)).astype("float32")
    y = np.random.default_rng(1).normal(size=(2, 37, 16)).astype("float32")
    for mask in (None, layers.causal_mask(37), np.arange(37)[None, None, None] < 30):
        results = []
        for limit in (100, 2**60):
            keras.utils.set_random_seed(1)
            inputs = keras.Input((37, 16), batch_size=2)
            layer = layers.RoPEAttention(num_heads=2, head_dim=8)
            model = keras.Model(inputs, layer(inputs, attention_mask=mask))
            model.compile(keras.optimizers.SGD(1.0), "mse", run_eagerly=False)
            sizes = {"MAX_SCORES": limit, "_BLOCK": 600, "_MIN_QUERIES": 4}
            with patch.multiple(long_attention, **sizes):
                outputs = model.predict(x, verbose=0)
                model.train_on_batch(x, y)
            # What a step of SGD changes is the gradient.
            results.append([outputs, *model.get_weights()])
        for blocks, whole in zip(*results, strict=True):
            assert_close(blocks, whole, 2e-5)
    if keras.backend.backend() == "jax":
        _check_dropout_in_blocks(x)


def _check_dropout_in_blocks(x):
    """Weights are dropped out by a seed, and their mean is without dropout."""
    import jax

    x = ops.reshape(x, (2, 1, 37, 16))

    @jax.jit
    def attend(seed):
        return long_attention.attend(x, x, x, None, 0.4, lambda: seed, None)

    sizes = {"_BLOCK": 600, "_MIN_QUERIES": 4}
    with patch.multiple(long_attention, **sizes):
        drawn = [attend(np.array([3, n], "uint32")) for n in range(400)]
        expected = long_attention.attend(x, x, x, None, 0.0, None, None)
    assert ops.std(drawn[0] - drawn[1]) > 0.1
    assert_close(ops.mean(ops.stack(drawn), axis=0), expected, atol=0.3)


def check_linear_attention():
    """Layers of each kind learn, and a model of one of them writes."""
    for kind in ("linear", "performer"):
        assert_pieces_are_the_whole(kind)
    model = load_small(
        RoFormerCausalLM, GPT, attention_type="rotary_performer", performer_features=8
    )
    prompts = [(2, 7, 9), (2, 30, 8, 0, 11)]
    options = {"max_length": 24, "stop_tokens": (5, 60), "method": "greedy"}
    for prompt, text in zip(prompts, model.generate(prompts, **options), strict=True):
        max_new = 24 - len(prompt)
        assert text == plain.greedy(model, prompt, max_new, stops=(5, 60), draft=text)

    x = keras.Input((4, 8))
    layers = [LinearRoPEAttention(2, 4, kind, causal=True) for kind in LINEAR_KINDS]
    model = keras.Model(x, keras.layers.average([layer(x) for layer in layers]))
    x = np.random.default_rng(0).normal(size=(2, 4, 8))
    assert_learns(model, x, x[::-1], "mse")


def check_norm_of_nearly_constant_rows():
    """A variance that is computed by subtracting squares comes out negative here."""
    x = np.full((200, 16), 300.0, "float32")
    x += np.random.default_rng(0).normal(size=x.shape, scale=1e-2)
    exact = x.astype("float64") - x.astype("float64").mean(-1, keepdims=True)
    exact /= np.sqrt(np.square(exact).mean(-1, keepdims=True))
    assert_close(LayerNorm()(x), exact, 1e-2)


def check_saving():
    model, data = golden_case("unilm-pool")
    with tempfile.TemporaryDirectory() as folder:
        preset, file = f"{folder}/preset", f"{folder}/model.keras"
        model.save_to_preset(preset)
        model.save(file)
        restored = [RoFormerSim.from_preset(preset), keras.saving.load_model(file)]
    for other in restored:
        assert other.config == model.config
        for ours, expected in zip(other.weights, model.weights, strict=True):
            assert ours.path == expected.path
            np.testing.assert_array_equal(ours.numpy(), expected.numpy())
    outputs = restored[-1].predict(inputs_of(model, data), verbose=0)
    assert_close(outputs["pooled_output"], data["pooled"], 2e-5)


def check_text():
    vectors = RoFormerSim.from_preset(SIM).encode(["今天天气不错", "你好"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    model = RoFormerMaskedLM.from_preset(CHARACTER)
    ((best, _),) = model.fill_mask("今天[MASK]气", top_k=2)
    assert 0 < best.probability <= 1


def check_generation():
    """Greedy, beams and samples of unequal prompts: as without a cache."""
    prompts, stops = [(2, 7, 9), (2, 30, 8, 0, 11)], (5, 60, 61, 62, 63)
    # In one shape for all methods, and for the copies of a paraphrase.
    options = {"max_length": 17, "stop_tokens": stops, "seed": 3}
    gpt = load_small(RoFormerCausalLM, GPT)
    sim = load_small(RoFormerSim, SIM)
    greedy = gpt.generate([*prompts, *prompts], method="greedy", **options)
    for at, prompt in enumerate(prompts):
        max_new = options["max_length"] - len(prompt)
        assert greedy[at] == greedy[at + 2]
        assert greedy[at] == plain.greedy(
            gpt, prompt, max_new, stops=stops, draft=greedy[at]
        )
    options["num_return_sequences"] = 2
    cuts = {"top_k": 30, "top_p": 0.9}
    samples = gpt.generate(prompts, **cuts, **options)
    beams = sim.generate(
        prompts, method="beam", num_beams=2, return_scores=True, **options
    )
    for at, prompt in enumerate(prompts):
        max_new = options["max_length"] - len(prompt)
        for copy, text in enumerate(samples[at]):
            number = 2 * at + copy
            assert text == plain.sample(
                gpt, prompt, max_new, 3, number, cuts, stops=stops, draft=text
            )
        expected = plain.beam(sim, prompt, max_new, 2, stops=stops)
        assert [one.output for one in beams[at]] == [text for _, text in expected]
        for one, (score, _) in zip(beams[at], expected, strict=True):
            assert abs(one.score - score) < 1e-3
    paraphrases = sim.paraphrase("今天天气", n=4, k=2, max_new_tokens=8, seed=1)
    assert all(-1.001 < score < 1.001 for _, score in paraphrases)
    again = sim.paraphrase("今天天气", n=4, k=2, max_new_tokens=8, seed=1)
    assert [text for text, _ in paraphrases] == [text for text, _ in again]
    before = gpt.generate("今天天气", method="greedy", max_length=24)
    assert before == "".join(gpt.stream("今天天气", method="greedy", max_length=24))


def check_finetuning():
    """Tasks on texts: what is learned, and that batches have few widths."""
    texts = ["今天天气不错", "她在北京", "我们学习语言", "在上海工作的人"] * 2
    model = load_small(RoFormerTextClassifier, num_classes=2)
    model.compile(keras.optimizers.Adam(1e-2))
    history = model.fit(texts, [0, 1] * 4, epochs=8, batch_size=8, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    probabilities = model.predict(texts, verbose=0)
    assert probabilities.argmax(axis=-1).tolist() == [0, 1] * 4
    if keras.backend.backend() != "tensorflow":
        rows = model.make_rows([(text,) for text in texts])
        assert {rows.batch([n])["token_ids"].shape for n in range(8)} == {(1, 32)}

    sentences = ["她在北京", "我们在上海"] * 4
    tags = [["O", "O", "B-地", "I-地"], ["O", "O", "O", "B-地", "I-地"]] * 4
    model = load_small(RoFormerTokenClassifier, labels=["地"], crf=True)
    model.compile(keras.optimizers.Adam(1e-2))
    model.fit(sentences, tags, epochs=15, batch_size=8, verbose=0)
    spans = [
        [(span.start, span.end, span.label) for span in row]
        for row in model.extract(sentences[:2], verbose=0)
    ]
    assert spans == [[(2, 4, "地")], [(3, 5, "地")]], spans


def check_ema_of_two_fits():
    model = load_small(RoFormerTextClassifier, num_classes=2)
    model.compile(make_optimizer(0.001, ema=0.9))
    for _ in range(2):
        model.fit(["好极了", "太差了"], [1, 0], verbose=0)
    assert np.isfinite(model.get_weights()[0]).all()


def check_adversarial_steps():
    model = load_small(RoFormerTextClassifier, num_classes=2)
    assert_mean_of_adversarial_steps(model)


def check_export():
    sim = load_small(RoFormerSim, SIM)
    with tempfile.TemporaryDirectory() as folder:
        export_model(sim, Path(folder) / "served", "onnx")
        vectors = ServedEncoder(Path(folder) / "served").encode(["今天天气不错"])
    assert_close(vectors, sim.encode(["今天天气不错"]), 2e-5)


def check_examples():
    """The examples of docstrings, but for those that export or verify a model."""
    if keras.backend.backend() != "torch":
        return
    docs_blocks.load_once()
    # That of `verify` runs bert4keras by TensorFlow, which is hidden here.
    names = [
        name
        for name in docs_blocks.examples()
        if ".export." not in name and not name.endswith(".verify.verify")
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert docs_blocks.run_examples(names) == (len(names), 0)
    assert len(names) > 140


def check_partial_training():
    """LoRA, freezing and gradient checkpointing."""
    fitted = []
    for checkpointing in (False, True):
        keras.utils.set_random_seed(0)
        backbone = RoFormerBackbone.from_preset(
            CHARACTER,
            dropout=0.3,
            attention_dropout=0.3,
            gradient_checkpointing=checkpointing,
        )
        backbone.enable_lora(2, targets=("query", "intermediate"))
        backbone.freeze(layers=1)
        inputs = backbone.tokenizer(["今天天气不错", "你好"])
        backbone.compile(keras.optimizers.SGD(0.1), "mse")
        targets = np.ones(backbone(inputs).shape, "float32")
        backbone.fit(inputs, targets, epochs=2, verbose=0)
        expected = ops.convert_to_numpy(backbone(inputs))
        backbone.merge_lora()
        assert_close(backbone(inputs), expected, 1e-5)
        # Dropout of PyTorch counts its draws elsewhere.
        fitted.append(
            [
                ops.convert_to_numpy(v)
                for v in backbone.variables
                if "seed" not in v.path
            ]
        )
    for one, other in zip(*fitted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def main():
    warnings.simplefilter("error")
    # Keras's own variables and PyTorch's tensors, with NumPy 2.
    warnings.filterwarnings("ignore", message="__array__ implementation")
    passed = {}
    for name, check in list(globals().items()):
        name = name.removeprefix("check_")
        if f"check_{name}" not in globals() or name not in (sys.argv[1:] or [name]):
            continue
        start = time.process_time()
        keras.utils.set_random_seed(0)
        try:
            check()
            passed[name] = True
        except BackendError as error:
            assert keras.backend.backend() in str(error)
            passed[name] = False
        print(f"{name} {time.process_time() - start:.1f} s", flush=True)
    print(json.dumps(passed))


if __name__ == "__main__":
    main()
