"""Models of the interface of bert4keras against what the real one gave.

The golden file is one of test_parity: every option, on padded batches.
"""

import json
import zipfile

import numpy as np
import pytest
from common import CHECKPOINTS, SAVED, SMALL, V2_EMBEDDING_SIZE, output_of
from golden_outputs import assert_outputs, golden_batches, golden_cases

from roformer_keras.base.errors import CheckpointError, ConfigurationError
from roformer_keras.bert4keras.backend import K, keras, search_layer
from roformer_keras.bert4keras.layers import Embedding, FirstToken
from roformer_keras.bert4keras.models import RoFormer, build_transformer_model
from roformer_keras.bert4keras.optimizers import Adam
from roformer_keras.models import initializers

pytestmark = pytest.mark.slow

INPUTS = ("token_ids", "segment_ids", "position_ids", "layer_norm_cond")

# Every option of `build_transformer_model`, each of them in one case or two. The other
# golden cases combine the same options.
IN_EVERY_RUN = {
    *("encoder-word", "pool-relu", "lm", "unilm-pool", "nsp-mlm", "nsp-pool-linear"),
    *("keep-and-compound-tokens", "custom-position-ids-unilm", "mlm"),
    *("shared-segment-embeddings-unilm", "residual-attention-scores"),
    *("layer-norm-cond-hidden", "embedding-size-mlm", "attention-key-size-unilm"),
    *("v2-lm", "v2-unilm", "v2-pool-is-ignored", "v2-keep-tokens"),
    *("v2-custom-position-ids", "v2-residual-attention-scores"),
    "v2-embedding-size-mlm",
}
# Cases that are computed as users compute them. A graph takes longer to trace than the
# few batches of a case.
AS_A_GRAPH = ("layer-norm-cond-hidden", "unilm-pool")

ROLES = {
    "Pooler-Dense": "pooled",
    "NSP-Proba": "nsp",
    "MLM-Activation": "mlm",
    "Output-MLM-Activation": "mlm",
}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """A function from the name of a zip to the folder of its files."""
    root = tmp_path_factory.mktemp("unpacked")

    def folder(name):
        if not (root / name).exists():
            zipfile.ZipFile(CHECKPOINTS / f"{name}.zip").extractall(root)
        return root / name

    return folder


def case_names():
    names = golden_cases()
    assert names.keys() > IN_EVERY_RUN
    weekly = [name for name in names if name not in IN_EVERY_RUN]
    marked = [pytest.param(name, marks=pytest.mark.weekly) for name in weekly]
    return sorted(IN_EVERY_RUN) + marked


def build(folder, kwargs, **options):
    """The model of a golden case, as a script builds it."""
    kwargs = {**kwargs, **options}
    if "layer_norm_cond" in kwargs:
        condition = keras.layers.Input((kwargs["layer_norm_cond"],))
        kwargs["layer_norm_cond"] = kwargs["additional_input_layers"] = condition
    kwargs["compound_tokens"] = [
        tuple(item) if isinstance(item[0], list) else item
        for item in kwargs.get("compound_tokens") or []
    ]
    return build_transformer_model(
        str(folder / "bert_config.json"), str(folder / "bert_model.ckpt"), **kwargs
    )


@pytest.mark.parametrize("name", case_names())
def test_outputs_equal_bert4keras(name, unpacked):
    case = golden_cases()[name]
    if case["source"].endswith(".h5"):
        # Weights that no checkpoint holds: the file of a user.
        is_v2 = case["source"].startswith("v2-")
        source = (V2_EMBEDDING_SIZE if is_v2 else SMALL).stem
        model = build(unpacked(source), case["kwargs"], ignore_invalid_weights=True)
        model.load_weights(SAVED / case["source"])
    else:
        model = build(unpacked(case["source"]), case["kwargs"])
    assert [
        ROLES.get(x._keras_history.operation.name, "sequence") for x in model.outputs
    ] == case["outputs"]
    for batch in golden_batches(name).values():
        inputs = [batch[x] for x in INPUTS if x in batch]
        if name in AS_A_GRAPH:
            outputs = model.predict(inputs, verbose=0)
        else:
            outputs = keras.tree.map_structure(np.asarray, model(inputs))
        outputs = outputs if isinstance(outputs, list) else [outputs]
        assert_outputs(dict(zip(case["outputs"], outputs, strict=True)), batch)


def test_a_checkpoint_replaces_all_weights(unpacked, monkeypatch):
    """None of them is drawn before."""

    def undefined(shape, dtype):
        return keras.ops.full(shape, np.nan, dtype)

    monkeypatch.setattr(initializers, "_undefined", undefined)
    folder = unpacked("roformer-nsp_L-2_H-24_A-4")
    model = build(folder, {"model": "roformer", "with_nsp": True, "with_mlm": True})
    assert all(np.isfinite(np.array(weight)).all() for weight in model.weights)


def test_layers_have_the_names_of_bert4keras(unpacked):
    folder = unpacked("chinese_roformer-sim-char_L-2_H-32_A-4")
    model = build(folder, {"model": "roformer", "with_mlm": True, "with_pool": True})
    names = [layer.name for layer in model.layers]
    for name in (
        *("Input-Token", "Input-Segment", "Embedding-Token", "Embedding-Segment"),
        *("Embedding-Token-Segment", "Embedding-Norm", "Embedding-Rotary-Position"),
        *("Transformer-1-MultiHeadSelfAttention-Add", "Transformer-1-FeedForward-Norm"),
        *("Pooler", "Pooler-Dense", "MLM-Dense", "MLM-Norm", "MLM-Bias"),
    ):
        assert name in names
    assert [x.name for x in model.inputs] == ["Input-Token", "Input-Segment"]
    hidden = model.get_layer("Transformer-0-FeedForward-Norm").output
    assert hidden.shape == (None, None, 32)
    assert search_layer(model.output[1], "Embedding-Token").embeddings.shape[1] == 32
    assert search_layer(model.output[1], "no such layer") is None


def test_the_output_carries_the_padding_mask(unpacked):
    folder = unpacked("chinese_roformer-char_L-2_H-32_A-4")
    model = build(folder, {"model": "roformer"})
    pooled = keras.layers.GlobalAveragePooling1D()(model.output)
    pooled = keras.Model(model.input, pooled)
    ids = np.array([[2, 5, 6, 3, 0, 0]])
    wide = pooled([ids, ids * 0])
    narrow = pooled([ids[:, :4], ids[:, :4] * 0])
    np.testing.assert_allclose(wide, narrow, atol=1e-6)


def test_checkpoints_are_written_and_read_again(unpacked, tmp_path):
    folder = unpacked("chinese_roformer-sim-char_L-2_H-32_A-4")
    options = {"model": "roformer", "application": "unilm", "with_pool": "linear"}
    first = build(folder, options, return_keras_model=False)
    first.save_weights_as_checkpoint(str(tmp_path / "bert_model.ckpt"))
    second = build_transformer_model(
        str(folder / "bert_config.json"), str(tmp_path / "bert_model.ckpt"), **options
    )
    for one, other in zip(first.model.weights, second.weights, strict=True):
        np.testing.assert_array_equal(K.eval(one), K.eval(other))


def test_weights_of_a_script_are_saved_under_any_name(unpacked, tmp_path):
    folder = unpacked("chinese_roformer-char_L-2_H-32_A-4")

    def make():
        model = build(folder, {"model": "roformer"})
        return keras.Model(model.input, keras.layers.Dense(3)(model.output))

    first, second = make(), make()
    expected = [K.eval(x) for x in first.weights]
    fresh = [np.zeros_like(x) for x in expected]
    for name in ("best.weights", "best.weights.h5", "best.h5"):
        first.save_weights(str(tmp_path / name))
        second.set_weights(fresh)
        second.load_weights(str(tmp_path / name))
        for weight, value in zip(second.weights, expected, strict=True):
            np.testing.assert_array_equal(K.eval(weight), value)


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ({}, ["encoder.h5", "encoder-model.h5", "encoder/weights"]),
        ({"application": "lm"}, ["lm.h5", "lm/weights"]),
        (
            {"application": "unilm", "with_pool": "linear"},
            ["unilm-pool.h5", "unilm-pool.weights.h5", "unilm-pool/weights"],
        ),
    ],
)
def test_weights_that_users_of_bert4keras_saved_are_read(unpacked, options, files):
    folder = unpacked(SMALL.stem)
    # All of them are in the zip as well.
    expected = build(folder, {"model": "roformer", **options}).get_weights()
    model = build_transformer_model(
        str(folder / "bert_config.json"), model="roformer", **options
    )
    before = model.get_weights()
    assert not any(map(np.array_equal, before, expected))
    for saved in files:
        path = SAVED / saved
        if not path.suffix:
            (index,) = path.parent.glob("*.index")
            path = index.with_suffix("")
        model.set_weights(before)
        model.load_weights(str(path))
        for weight, value in zip(model.weights, expected, strict=True):
            np.testing.assert_array_equal(K.eval(weight), value, err_msg=saved)


@pytest.mark.parametrize("name", ["x.weights", "x.h5"])
def test_weights_go_by_the_order_of_layers(tmp_path, name):
    """Keras counts the layers of a process, so another script has other names."""

    def make(names):
        inputs = keras.Input((3,))
        x = inputs
        for layer in names:
            x = keras.layers.Dense(3, name=layer)(x)
        return keras.Model(inputs, x)

    names = ["dense", "dense_1", "dense_2"]
    saved = make(names)
    saved.save_weights(str(tmp_path / name))
    for others in (["dense_1", "dense_2", "dense_3"], ["a", *names[:0:-1]]):
        loaded = make(others)
        loaded.load_weights(str(tmp_path / name))
        for one, other in zip(loaded.weights, saved.weights, strict=True):
            np.testing.assert_array_equal(K.eval(one), K.eval(other))
    with pytest.raises(CheckpointError, match=r"3 layers .* model 2: give by_name="):
        make(names[:2]).load_weights(str(tmp_path / name))
    loaded = make(names[::-1])
    loaded.load_weights(str(tmp_path / name), by_name=True)
    for layer in saved.layers[1:]:
        weights = loaded.get_layer(layer.name).get_weights()
        np.testing.assert_array_equal(weights[0], layer.get_weights()[0])


def test_a_file_of_other_layers_is_refused(unpacked, tmp_path):
    folder = unpacked("chinese_roformer-char_L-2_H-32_A-4")
    model = build(folder, {"model": "roformer"})
    before = [K.eval(x).copy() for x in model.weights]
    with pytest.raises(CheckpointError, match="layers with weights"):
        model.load_weights(str(SAVED / "lm.h5"))
    with pytest.raises(Exception, match="there is no file"):
        model.load_weights(str(tmp_path / "absent.weights"))
    for one, other in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(one, K.eval(other))


def test_other_models_are_refused():
    for model in ("albert", "nezha", "t5.1.1", "gpt2_ml", "electra"):
        with pytest.raises(ConfigurationError, match="roformer, roformer_v2"):
            build_transformer_model(None, None, model)


def test_a_missing_weight_is_named(unpacked):
    folder = unpacked("chinese_roformer-char_L-2_H-32_A-4")
    with pytest.raises(CheckpointError, match=r"pooler.*ignore_invalid_weights"):
        build(folder, {"model": "roformer", "with_pool": True})


def test_models_are_saved_whole_under_any_name(unpacked, tmp_path):
    folder = unpacked("chinese_roformer-gpt-char_L-2_H-32_A-4")
    model = build(folder, {"model": "roformer", "application": "lm"})
    model.save(str(tmp_path / "test.model"))
    again = keras.models.load_model(str(tmp_path / "test.model"))
    ids = np.array([[2, 5, 6, 3], [2, 7, 3, 0]])
    np.testing.assert_array_equal(model([ids, ids * 0]), again([ids, ids * 0]))


def test_save_format_tf_writes_a_folder_for_tensorflow(unpacked, tmp_path):
    import tensorflow as tf

    folder = unpacked("chinese_roformer-char_L-2_H-32_A-4")
    encoder = build(folder, {"model": "roformer"})
    vector = FirstToken()(encoder.output)
    model = keras.Model(encoder.inputs, keras.layers.Dense(2)(vector))
    model.compile(Adam(1e-3), "mse")
    for _ in range(2):
        model.save(str(tmp_path / "served" / "1"), save_format="tf")
    ids = np.array([[2, 5, 6, 3], [2, 7, 3, 0]])
    expected = model.predict([ids, ids * 0], verbose=0)
    served = tf.saved_model.load(str(tmp_path / "served" / "1"))
    inputs = [tf.constant(x, tf.float32) for x in (ids, ids * 0)]
    np.testing.assert_allclose(served.serve(inputs), expected, atol=1e-6)
    # The process that loads it imports one module of the interface.
    code = (
        "import sys, numpy\n"
        "from roformer_keras.bert4keras.layers import *\n"
        "model = keras.models.load_model(sys.argv[1])\n"
        f"ids = numpy.array({ids.tolist()})\n"
        "print(type(model.optimizer).__name__, model([ids, ids * 0]).numpy().tolist())"
    )
    output = output_of("-W", "ignore", "-c", code, tmp_path / "served" / "1")
    name, _, numbers = output.partition(" ")
    assert name == "Adam"
    np.testing.assert_allclose(json.loads(numbers), expected, atol=1e-6)


def test_fresh_weights_of_roformer_v2_follow_the_seed_of_numpy(unpacked):
    path = unpacked("chinese_roformer-v2-char_L-2_H-32_A-4") / "bert_config.json"

    def weights(seed):
        np.random.seed(seed)
        model = build_transformer_model(str(path), model="roformer_v2")
        return [K.eval(weight) for weight in model.weights]

    first, again, other = weights(0), weights(0), weights(1)
    assert all(map(np.array_equal, first, again))
    assert not any(map(np.array_equal, first, other))


# === Scripts that change what a model is made of ===

TINY = {
    "vocab_size": 9,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "hidden_act": "gelu",
}
ROW = np.array([[1.0, 2.0, 3.0, 0.0]])


class DrawsByMethod(RoFormer):
    def initializer(self, shape, dtype=None, order=3, gain=1.0):
        return K.ones(shape) * 0.25


def test_initializer_may_be_a_method(tmp_path):
    model = build_transformer_model(model=DrawsByMethod, **TINY)
    table = search_layer(model.output, "Embedding-Token").get_weights()[0]
    assert (table == 0.25).all()
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    outputs = [K.eval(x([ROW, 0 * ROW])) for x in (model, again)]
    np.testing.assert_array_equal(*outputs)


class OwnTable(keras.layers.Layer):
    """A script's own embedding."""

    def __init__(self, input_dim, output_dim, **options):
        del options["embeddings_initializer"]
        self.masks_zero = options.pop("mask_zero", False)
        super().__init__(**options)
        self.sizes = input_dim, output_dim

    def build(self, input_shape):
        self.table = self.add_weight("table", self.sizes)

    def call(self, inputs):
        return K.gather(self.table, K.cast(inputs, "int32"))

    def compute_mask(self, inputs, mask=None):
        return K.not_equal(inputs, 0) if self.masks_zero else None


class NamedByProperty(Embedding):
    """A table that is computed, under the name of the one of Keras."""

    def build(self, input_shape=None):
        self.half = self.add_weight("half", (self.input_dim, self.output_dim))
        self.built = True

    @property
    def embeddings(self):
        return self.half * 2


@pytest.mark.parametrize("table", [OwnTable, NamedByProperty, keras.layers.Embedding])
def test_a_script_may_swap_the_embedding(table):
    class Swapped(RoFormer):
        def apply(self, inputs=None, layer=None, arguments=None, **options):
            swapped = table if layer is Embedding else layer
            return super().apply(inputs, swapped, arguments, **options)

    model = build_transformer_model(model=Swapped, **TINY)
    assert isinstance(search_layer(model.output, "Embedding-Token"), table)
    # Rows as NumPy makes them, in float64.
    predicted = model.predict([ROW, 0 * ROW], verbose=0)
    np.testing.assert_allclose(predicted, K.eval(model([ROW, 0 * ROW])), atol=1e-6)
    longer = [np.pad(x, [(0, 0), (0, 2)]) for x in (ROW, 0 * ROW)]
    np.testing.assert_allclose(
        model.predict(longer, verbose=0)[:, :3], predicted[:, :3], atol=1e-5
    )


def test_a_model_may_have_the_layers_of_another():
    first = build_transformer_model(return_keras_model=False, **TINY)
    second = build_transformer_model(
        return_keras_model=False, layers=first.layers, with_mlm="linear", **TINY
    )
    shared = first.layers["Embedding-Token"]
    assert shared is search_layer(second.output, "Embedding-Token")
    assert shared.output_shape == (None, None, 8)
    shared.set_weights([w + 1 for w in shared.get_weights()])
    hidden, scores = (
        x.model.predict([ROW, 0 * ROW], verbose=0) for x in (first, second)
    )
    assert hidden.shape == (1, 4, 8) and scores.shape == (1, 4, 9)
    last = second.layers["Transformer-0-FeedForward-Norm"].get_output_at(1)
    inner = keras.models.Model(second.model.inputs, last)
    np.testing.assert_allclose(inner.predict([ROW, 0 * ROW], verbose=0), hidden, 1e-6)
