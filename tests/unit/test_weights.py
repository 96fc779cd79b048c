"""The table of weights: against bert4keras's files, and what names say."""

import pytest
from common import CHECKPOINTS, zipped_json
from sources import tensors_of
from weight_cases import CONFIGS, SEQ2SEQ_CONFIGS

from roformer_keras.config import RoFormerConfig
from roformer_keras.conversion.weights import (
    HEADS,
    head_of,
    is_training_state,
    model_heads,
    task_rows,
    weight_table,
)


@pytest.mark.parametrize(
    "config", [*CONFIGS.values(), *SEQ2SEQ_CONFIGS.values()], ids=lambda config: ""
)
def test_no_two_weights_share_a_name_or_a_place(config):
    rows = weight_table(config)
    for key in (
        lambda row: row.name,
        lambda row: row.path,
        lambda row: (row.layer, row.index) if row.layer else row.name,
        lambda row: (row.layer, row.attribute) if row.layer else row.name,
        lambda row: (row.head == "mlm", row.dataset),
    ):
        assert len({key(row) for row in rows}) == len(rows)
    for row in rows:
        assert head_of(row.name) == row.head
        for name in (row.name, row.path, row.dataset, row.layer):
            assert not is_training_state(name)
        assert is_training_state(f"{row.name}/adam_m")


@pytest.mark.parametrize(
    "archive", sorted(CHECKPOINTS.glob("*.zip")), ids=lambda path: path.stem
)
def test_rows_are_what_bert4keras_wrote(archive):
    tensors = tensors_of(archive)
    model_type = "roformer_v2" if "v2" in archive.stem else "roformer"
    config = RoFormerConfig.from_bert_config(zipped_json(archive), model_type)
    heads = {head_of(name) for name in tensors} - {None}
    rows = {row.name: row.checkpoint_shape for row in weight_table(config, heads)}
    assert rows == {name: value.shape for name, value in tensors.items()}


def test_heads_are_chosen_by_class_and_configuration():
    config = CONFIGS["nsp"]
    assert {row.head for row in weight_table(config)} == {None, *HEADS}
    assert {row.head for row in weight_table(config, ())} == {None}
    assert model_heads("RoFormerBackbone", config) == ("pooler", "nsp")
    assert model_heads("RoFormerMaskedLM", config) == ("pooler", "nsp", "mlm")
    assert model_heads("RoFormerTextClassifier", CONFIGS["v1"]) == ()
    assert model_heads("RoFormerSeq2Seq", SEQ2SEQ_CONFIGS["rotary"]) == ()


def test_the_head_of_a_task_is_named_by_its_variables():
    kernel, bias = task_rows({"classes/kernel": (8, 2), "classes/bias": (2,)})
    assert (kernel.name, kernel.path) == ("task/classes/kernel", "classes/kernel")
    assert kernel.dataset == kernel.path
    assert (kernel.checkpoint_shape, bias.checkpoint_shape) == ((8, 2), (2,))
    assert head_of(kernel.name) == kernel.head == "task"


def test_only_one_weight_is_stored_transposed():
    transposed = [row for row in weight_table(CONFIGS["nsp"]) if row.transposed]
    assert [row.name for row in transposed] == ["cls/seq_relationship/output_weights"]
    assert transposed[0].shape == (8, 2)
    assert transposed[0].checkpoint_shape == (2, 8)


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
        # Keras 3.
        "optimizer/vars/3",
        "layers/dropout/seed_generator/vars/0",
        "layers/ro_former_block/attention/query/lora_kernel_a",
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
