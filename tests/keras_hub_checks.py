"""Checks of presets of this package with Keras-Hub's interface.

    KERAS_BACKEND=jax python tests/keras_hub_checks.py FOLDER

Run it as a process: `import roformer_keras.keras_hub` changes which class is loaded.
"""

import sys
import warnings
from pathlib import Path

import keras
import keras_hub
import numpy as np
from common import CHARACTER, SIM
from keras import ops

import roformer_keras
import roformer_keras.keras_hub as ours
from roformer_keras.errors import CheckpointError

INPUTS = {"token_ids": np.array([[3, 4, 5, 0]]), "segment_ids": np.zeros((1, 4), int)}
TEXTS, LABELS = ["今天天气不错", "学习语言"] * 8, [0, 1] * 8


def main(folder):
    for source in (CHARACTER, SIM):
        preset = folder / source.stem
        model = roformer_keras.RoFormerBackbone.from_preset(source)
        model.save_to_preset(preset)
        backbone = keras_hub.models.Backbone.from_preset(str(preset))
        assert type(backbone) is ours.RoFormerBackbone
        expected = model.predict(INPUTS, verbose=0)
        for loaded in (backbone, type(backbone).from_preset(str(preset))):
            outputs = loaded.predict(INPUTS, verbose=0)
            keras.tree.map_structure(np.testing.assert_array_equal, outputs, expected)
        # As a backbone of this package, which the class replaces.
        backbone.save_to_preset(preset, tokenizer=model.tokenizer, overwrite=True)
        again = roformer_keras.RoFormerBackbone.from_preset(preset)
        assert again.tokenizer.vocabulary == model.tokenizer.vocabulary
        for one, other in zip(model.weights, again.weights, strict=True):
            np.testing.assert_array_equal(*map(ops.convert_to_numpy, (one, other)))

    preset = str(folder / CHARACTER.stem)
    keras.utils.set_random_seed(0)
    classifier = keras_hub.models.TextClassifier.from_preset(
        preset, num_classes=2, preprocessor=preprocessor_of(preset, 16)
    )
    ids = classifier.preprocessor(TEXTS[0])
    tokenizer = roformer_keras.RoFormerTokenizer.from_preset(CHARACTER)
    expected, _ = tokenizer.encode(TEXTS[0])
    token_ids = ops.convert_to_numpy(ids["token_ids"]).tolist()
    assert token_ids == expected + [0] * (16 - len(expected))
    classifier.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    loss = classifier.fit(TEXTS, LABELS, batch_size=4, epochs=4, verbose=0).history
    assert loss["loss"][-1] < 0.2 * loss["loss"][0]
    logits = classifier.predict(TEXTS[:2], verbose=0)
    assert logits.argmax(-1).tolist() == [0, 1]

    # Pairs have two segments, and long ones are cut.
    pairs = (TEXTS[:2], [TEXTS[1], TEXTS[0] * 9])
    both, _ = classifier.preprocessor(pairs, LABELS[:2])
    for kind, row in zip(("token_ids", "segment_ids"), (0, 1), strict=True):
        rows = ops.convert_to_numpy(both[kind])
        expected = [
            tokenizer.encode(first, second, max_length=16)[row]
            for first, second in zip(*pairs, strict=True)
        ]
        for ids, wanted in zip(rows.tolist(), expected, strict=True):
            assert ids == wanted + [0] * (16 - len(wanted))
    assert classifier.predict(pairs, verbose=0).shape == (2, 2)

    classifier.save_to_preset(str(folder / "saved"))
    again = keras_hub.models.TextClassifier.from_preset(str(folder / "saved"))
    assert again.preprocessor.sequence_length == 16
    np.testing.assert_array_equal(again.predict(TEXTS[:2], verbose=0), logits)
    again = roformer_keras.RoFormerTokenizer.from_preset(folder / "saved")
    assert again.vocabulary == tokenizer.vocabulary
    # A classifier and a backbone that Keras-Hub has saved are read here.
    check_own_classifier(folder / "saved", classifier)
    check_activations(folder / "activations", preset)
    classifier.backbone.save_to_preset(str(folder / "backbone"))
    model = roformer_keras.RoFormerBackbone.from_preset(folder / "backbone")
    assert model.config == classifier.backbone.config
    for one, other in zip(model.weights, classifier.backbone.weights, strict=True):
        np.testing.assert_array_equal(*map(ops.convert_to_numpy, (one, other)))
    check_roformer_v2(folder / "v2")
    print("passed")


def check_own_classifier(folder, classifier):
    """The same outputs, settings and texts; no Keras-Hub is needed to load it."""
    model = roformer_keras.load_model(folder)
    assert type(model) is roformer_keras.RoFormerTextClassifier
    assert (model.max_length, model.head_dropout) == (16, classifier.dropout)
    expected = classifier.predict(TEXTS[:2], verbose=0)
    logits = model.predict(TEXTS[:2], verbose=0)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    assert model.classify(TEXTS[:2]) == [0, 1]


def check_activations(folder, preset):
    """A softmax gives our probabilities; another activation is another head."""
    for name in ("softmax", "tanh"):
        classifier = keras_hub.models.TextClassifier.from_preset(
            preset,
            num_classes=3,
            activation=name,
            preprocessor=preprocessor_of(preset, 16),
        )
        classifier.save_to_preset(str(folder / name))
    expected = keras_hub.models.TextClassifier.from_preset(str(folder / "softmax"))
    model = roformer_keras.load_model(folder / "softmax")
    np.testing.assert_allclose(
        model.classify(TEXTS[:2], probabilities=True),
        expected.predict(TEXTS[:2], verbose=0),
        atol=1e-5,
    )
    check_left_out(folder / "tanh", "KerasHubTextClassifier")


def check_left_out(folder, name):
    """A preset is its backbone, after a warning that names the class of the head."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = roformer_keras.load_model(folder)
    assert type(model).__name__ == "RoFormerBackbone"
    messages = [str(one.message) for one in caught]
    assert any(f"'{name}' is left out" in text for text in messages), messages


def check_roformer_v2(folder):
    """A preset of Keras-Hub's own RoFormerV2 is read here."""
    theirs = keras_hub.models.RoformerV2Backbone(
        vocabulary_size=30,
        num_layers=2,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=24,
        head_size=8,
    )
    random = np.random.default_rng(0)
    for weight in theirs.weights:
        if weight.name != "scale":
            weight.assign(0.5 * random.normal(size=weight.shape))
    theirs.save_to_preset(str(folder))
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "地", *"abcdefghijkl"]
    tokens += [f"[unused{number}]" for number in range(1, 12)]
    keras_hub.models.RoformerV2Tokenizer(tokens).save_to_preset(str(folder))
    model = roformer_keras.RoFormerBackbone.from_preset(folder)
    assert model.tokenizer.encode("天地A")[0] == [2, 5, 6, 1, 3]
    rows = {
        "token_ids": [[2, 5, 6, 9, 3, 0, 0]],
        "segment_ids": [[0, 0, 0, 1, 1, 0, 0]],
    }
    rows = {name: np.array(ids, "int32") for name, ids in rows.items()}
    if keras.backend.backend() != "torch":
        # Elsewhere Keras-Hub 0.32 masks padding as queries, and not as keys.
        rows = {name: ids[:, :5] for name, ids in rows.items()}
    expected = theirs.predict(rows, verbose=0)
    np.testing.assert_allclose(model.predict(rows, verbose=0), expected, atol=1e-5)
    classifier = keras_hub.models.RoformerV2TextClassifier(theirs, num_classes=2)
    classifier.save_to_preset(str(folder.with_name("v2-classifier")))
    check_left_out(folder.with_name("v2-classifier"), "RoformerV2TextClassifier")
    # RoFormerV2's norms have no weights that could be trained.
    theirs.embeddings_layer_norm.scale.assign(np.full(16, 1.5))
    theirs.save_to_preset(str(folder))
    try:
        roformer_keras.RoFormerBackbone.from_preset(folder)
    except CheckpointError as error:
        assert "must be 1 everywhere" in str(error)
    else:
        raise AssertionError("a trained norm was loaded")


def preprocessor_of(preset, length):
    return keras_hub.models.TextClassifierPreprocessor.from_preset(
        preset, sequence_length=length
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
