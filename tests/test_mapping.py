"""The table of weights: against bert4keras's files, our models, and Keras's files."""

import dataclasses
import itertools

import h5py
import numpy as np
import pytest
from common import CHECKPOINTS, V2_EMBEDDING_SIZE, zipped_json
from sources import tensorflow_tensors, unpacked

from roformer_keras.config import RoFormerConfig, config_for_model
from roformer_keras.conversion.mapping import (
    HEADS,
    KERAS_BACKBONE,
    detect_model_type,
    head_of,
    is_training_state,
    keras_key,
    model_heads,
    weight_table,
)

# Keras's own saving, under NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")

SIZES = {
    "vocabulary_size": 11,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 12,
}
OPTIONS = {
    "v1": {},
    "v2": {"model_type": "roformer_v2"},
    "embedding": {"embedding_dim": 6},
    "v2-embedding": {"model_type": "roformer_v2", "embedding_dim": 6},
    "key-size": {"attention_key_size": 6},
    "pooler": {"pooler_activation": "tanh"},
    "nsp": {"pooler_activation": "tanh", "with_nsp": True},
    "embedding-nsp": {
        "embedding_dim": 6,
        "pooler_activation": "tanh",
        "with_nsp": True,
    },
    "shared-segments": {"shared_segment_embeddings": True},
    "segments": {"num_segments": 5},
    "condition": {"layer_norm_cond_size": 3},
    "condition-hidden": {
        "layer_norm_cond_size": 3,
        "layer_norm_cond_hidden_size": 5,
        "embedding_dim": 6,
        "pooler_activation": "linear",
    },
    "positions": {"custom_position_ids": True, "residual_attention_scores": True},
    "eleven-layers": {"num_layers": 11},
}
MODELS = ("RoFormerBackbone", "RoFormerMaskedLM", "RoFormerCausalLM", "RoFormerSim")


def matrix():
    for (name, options), model in itertools.product(OPTIONS.items(), MODELS):
        if model == "RoFormerSim" and options.get("model_type") == "roformer_v2":
            continue
        config = RoFormerConfig(**{**SIZES, **options})
        yield pytest.param(
            model, config_for_model(model, config, **options), id=f"{model}-{name}"
        )


def build(model, config):
    import roformer_keras

    return getattr(roformer_keras, model).from_roformer_config(config)


def in_file(model, row, config):
    """The dataset of a row in the file of a model."""
    backbone = model == "RoFormerBackbone" or row.head == "mlm"
    return ("" if backbone else KERAS_BACKBONE) + keras_key(row, config)


@pytest.mark.parametrize(("model", "config"), list(matrix()))
def test_rows_are_the_variables_of_the_model_and_the_datasets_of_keras(
    model, config, tmp_path
):
    rows = weight_table(config, model_heads(model, config))
    built = build(model, config)
    assert {row.path: row.shape for row in rows} == {
        variable.path: tuple(variable.shape) for variable in built.weights
    }
    for variable in built.weights:
        variable.assign(np.random.default_rng(1).standard_normal(variable.shape))
    built.save_weights(tmp_path / "x.weights.h5")
    with h5py.File(tmp_path / "x.weights.h5") as file:
        stored = {}
        file.visititems(
            lambda name, node: (
                stored.update({name: node[()]})
                if isinstance(node, h5py.Dataset) and "seed" not in name
                else None
            )
        )
    values = {variable.path: np.asarray(variable) for variable in built.weights}
    assert set(stored) == {in_file(model, row, config) for row in rows}
    for row in rows:
        np.testing.assert_array_equal(
            stored[in_file(model, row, config)], values[row.path]
        )


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_no_two_weights_share_a_name_or_a_place(options):
    config = RoFormerConfig(**{**SIZES, **options})
    rows = weight_table(config)
    for key in (
        lambda row: row.name,
        lambda row: row.path,
        lambda row: (row.layer, row.index),
        lambda row: (row.layer, row.attribute),
        lambda row: (row.head == "mlm", keras_key(row, config)),
    ):
        assert len({key(row) for row in rows}) == len(rows)


@pytest.mark.parametrize(
    "archive", sorted(CHECKPOINTS.glob("*.zip")), ids=lambda path: path.stem
)
def test_rows_are_what_bert4keras_wrote(archive, tmp_path):
    tensors = tensorflow_tensors(unpacked(archive, tmp_path) / "bert_model.ckpt")
    model_type = detect_model_type(tensors)
    assert model_type == ("roformer_v2" if "v2" in archive.stem else "roformer")
    config = RoFormerConfig.from_bert_config(zipped_json(archive), model_type)
    heads = {head_of(name) for name in tensors} - {None}
    rows = {row.name: row.checkpoint_shape for row in weight_table(config, heads)}
    assert rows == {name: value.shape for name, value in tensors.items()}


def test_a_head_is_told_by_the_name():
    config = RoFormerConfig.from_bert_config(zipped_json(V2_EMBEDDING_SIZE))
    config = dataclasses.replace(config, pooler_activation="tanh", with_nsp=True)
    for row in weight_table(config):
        assert head_of(row.name) == row.head
    assert {row.head for row in weight_table(config)} == {None, *HEADS}
    assert {row.head for row in weight_table(config, ())} == {None}


def test_only_one_weight_is_stored_transposed():
    config = RoFormerConfig(**SIZES, pooler_activation="tanh", with_nsp=True)
    transposed = [row for row in weight_table(config) if row.transposed]
    assert [row.name for row in transposed] == ["cls/seq_relationship/output_weights"]
    assert transposed[0].shape == (8, 2)
    assert transposed[0].checkpoint_shape == (2, 8)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["bert/embeddings/LayerNorm/gamma"], "roformer"),
        (["bert/encoder/layer_0/attention/self/query/bias"], "roformer"),
        (["bert/encoder/layer_7/output/LayerNorm/beta"], "roformer"),
        (["bert/encoder/embedding_hidden_mapping_in/bias"], "roformer"),
        (["bert/encoder/layer_0/attention/self/query/kernel"], "roformer_v2"),
        # A head says nothing of the encoder, and neither does a layer of a user's own.
        (["cls/predictions/output_bias", "dense/bias"], "roformer_v2"),
        ([], "roformer_v2"),
    ],
)
def test_v1_is_told_from_v2_by_the_encoder(names, expected):
    assert detect_model_type(names) == expected


WEIGHT = "bert/encoder/layer_0/attention/self/query/kernel"


@pytest.mark.parametrize(
    "name",
    [
        # BERT's own training, and its descendants'.
        "global_step",
        f"{WEIGHT}/adam_m",
        f"{WEIGHT}/adam_v",
        f"{WEIGHT}/lamb_m",
        f"{WEIGHT}/Adam",
        f"{WEIGHT}/Adam_1",
        f"{WEIGHT}/AdamWeightDecayOptimizer",
        f"{WEIGHT}/LAMBOptimizer_1",
        f"{WEIGHT}/Momentum",
        f"{WEIGHT}/ExponentialMovingAverage",
        "beta1_power",
        "beta2_power_1",
        "loss_scale",
        "good_steps",
        # Keras 2.3.1.
        "training/Adam/Variable",
        "Adam/iterations",
        # tf.keras: as today, and its legacy optimizers.
        "optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE",
        "optimizer/_variables/12/.ATTRIBUTES/VARIABLE_VALUE",
        "optimizer/iter/.ATTRIBUTES/VARIABLE_VALUE",
        "layer_with_weights-0/embeddings/.OPTIMIZER_SLOT/optimizer/m/"
        ".ATTRIBUTES/VARIABLE_VALUE",
        "save_counter/.ATTRIBUTES/VARIABLE_VALUE",
    ],
)
def test_what_training_leaves_is_recognised(name):
    assert is_training_state(name)


@pytest.mark.parametrize(
    "name",
    [
        "dense/kernel",
        "adamant/kernel",
        "my_optimizer/kernel",
        "optimizer_head/kernel",
        "global_stepper/kernel",
        "slow_path/kernel",
        "bert/momentum_encoder/kernel",
        "bert/encoder/layer_0/iterations_embedding",
        "bert/embeddings/position_embeddings",
        "iterative/kernel",
        "learning_rates/kernel",
        "layer_with_weights-0/embeddings/.ATTRIBUTES/VARIABLE_VALUE",
    ],
)
def test_what_only_looks_like_training_is_not(name):
    assert not is_training_state(name)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_no_weight_is_taken_for_training(options):
    config = RoFormerConfig(**{**SIZES, **options})
    for row in weight_table(config):
        for name in (row.name, row.path, keras_key(row, config), row.layer):
            assert not is_training_state(name)
        assert is_training_state(f"{row.name}/adam_m")
