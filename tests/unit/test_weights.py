"""The table of weights: against bert4keras's files, and what names say."""

from common import CHECKPOINTS, zipped_json
from sources import tensors_of
from weight_cases import CONFIGS

from roformer_keras.base.config import RoFormerConfig
from roformer_keras.conversion.weights import (
    HEADS,
    head_of,
    is_training_state,
    model_heads,
    task_rows,
    weight_table,
)


def test_no_two_weights_share_a_name_or_a_place():
    for config in CONFIGS.values():
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


def test_rows_are_what_bert4keras_wrote():
    for archive in CHECKPOINTS.glob("*.zip"):
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


# Of BERT's own training and its descendants', of Keras 2.3.1, of tf.keras today and its
# legacy optimizers, and of Keras 3.
TRAINING = """
global_step beta1_power beta2_power_1 loss_scale good_steps
WEIGHT/adam_m WEIGHT/adam_v WEIGHT/lamb_m WEIGHT/Adam WEIGHT/Adam_1 WEIGHT/Momentum
WEIGHT/AdamWeightDecayOptimizer WEIGHT/LAMBOptimizer_1 WEIGHT/ExponentialMovingAverage
training/Adam/Variable Adam/iterations
optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE
optimizer/_variables/12/.ATTRIBUTES/VARIABLE_VALUE
optimizer/iter/.ATTRIBUTES/VARIABLE_VALUE
layer_with_weights-0/embeddings/.OPTIMIZER_SLOT/optimizer/m/.ATTRIBUTES/VARIABLE_VALUE
save_counter/.ATTRIBUTES/VARIABLE_VALUE
optimizer/vars/3 layers/dropout/seed_generator/vars/0
layers/ro_former_block/attention/query/lora_kernel_a
"""
NO_TRAINING = """
dense/kernel adamant/kernel my_optimizer/kernel optimizer_head/kernel slow_path/kernel
global_stepper/kernel bert/momentum_encoder/kernel iterative/kernel
bert/encoder/layer_0/iterations_embedding bert/embeddings/position_embeddings
learning_rates/kernel layer_with_weights-0/embeddings/.ATTRIBUTES/VARIABLE_VALUE
"""


def test_what_training_leaves_is_told_by_its_name():
    weight = "bert/encoder/layer_0/attention/self/query/kernel"
    names = TRAINING.replace("WEIGHT", weight).split()
    assert [name for name in names if not is_training_state(name)] == []
    assert [name for name in NO_TRAINING.split() if is_training_state(name)] == []
