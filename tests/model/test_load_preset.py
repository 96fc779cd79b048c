"""Weights of a checkpoint in a model that is built already, and those of a BERT."""

import keras
import numpy as np
import pytest
from common import CHARACTER, SIM, V2, zipped_json
from sources import assert_same_weights, tensors_of, weights, write_checkpoint

import roformer_keras
from roformer_keras import (
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerTextClassifier,
)
from roformer_keras.base.errors import CheckpointError, ConfigurationError

POSITIONS = "bert/embeddings/position_embeddings"


def test_a_built_model_reads_a_checkpoint(masked_lm):
    loaded = masked_lm
    model = RoFormerMaskedLM.from_roformer_config(loaded.config)
    ids = {"token_ids": np.array([[2, 7, 9, 3]]), "segment_ids": np.zeros((1, 4), int)}
    before = model.predict(ids, verbose=0)
    model.load_preset(CHARACTER)
    assert_same_weights(model, loaded)
    # Nothing that was compiled before keeps old weights.
    after = model.predict(ids, verbose=0)
    expected = loaded.predict(ids, verbose=0)
    for old, new, right in zip(
        *map(keras.tree.flatten, (before, after, expected)), strict=True
    ):
        np.testing.assert_array_equal(new, right)
        assert np.abs(old - new).max() > 1e-3


def test_a_generator_writes_by_its_new_weights():
    loaded = roformer_keras.RoFormerCausalLM.from_preset(CHARACTER, num_layers=1)
    model = RoFormerCausalLM.from_roformer_config(loaded.config)
    options = {"max_new_tokens": 6, "seed": 1, "stop_tokens": (), "verbose": 0}
    prompt = [2, 7, 9]
    for engine in ("keras", "openvino"):
        other = RoFormerCausalLM.from_roformer_config(loaded.config)
        before = other.generate(prompt, engine=engine, **options)
        other.load_preset(CHARACTER)
        text = other.generate(prompt, engine=engine, **options)
        assert text == loaded.generate(prompt, engine=engine, **options) != before
    assert model.tokenizer is None


def test_a_smaller_model_reads_the_first_layers():
    loaded = RoFormerBackbone.from_preset(CHARACTER, num_layers=1)
    model = RoFormerBackbone.from_roformer_config(loaded.config)
    model.load_preset(CHARACTER)
    assert_same_weights(model, loaded)


def test_a_task_reads_its_backbone_and_the_head_of_the_same_task(tmp_path):
    saved = RoFormerTextClassifier.from_preset(CHARACTER, num_classes=3)
    saved.save_to_preset(tmp_path / "saved")
    backbone = RoFormerBackbone.from_roformer_config(saved.config)
    task = RoFormerTextClassifier(backbone, saved.tokenizer, num_classes=3)
    head = [np.array(variable) for variable in task.head_variables()]
    task.load_preset(CHARACTER)
    assert_same_weights(task.backbone, saved.backbone)
    for variable, value in zip(task.head_variables(), head, strict=True):
        np.testing.assert_array_equal(np.array(variable), value)
    task.load_preset(tmp_path / "saved")
    assert_same_weights(task, saved)


def test_a_task_with_other_labels_is_not_changed(tmp_path):
    saved = RoFormerTextClassifier.from_preset(CHARACTER, classes=["坏", "好"])
    saved.save_to_preset(tmp_path / "saved")
    for options, message in (
        ({"classes": ["好", "坏"]}, "classes=.*'坏', '好'.*from_preset"),
        ({"num_classes": 3}, "from_preset"),
    ):
        task = RoFormerTextClassifier.from_preset(SIM, **options)
        before = weights(task)
        with pytest.raises(ConfigurationError, match=message):
            task.load_preset(tmp_path / "saved")
        for path, value in weights(task).items():
            np.testing.assert_array_equal(value, before[path])


def test_what_does_not_fit_changes_nothing(backbone):
    config = backbone.config
    for changes, error, message in (
        ({"intermediate_dim": 8}, CheckpointError, "expected"),
        ({"num_heads": 2}, ConfigurationError, "has num_heads=4.*num_heads=2"),
        ({"activation": "relu"}, ConfigurationError, "activation='gelu'"),
        ({"pooler_activation": "tanh"}, CheckpointError, "initialize_heads=True"),
    ):
        model = RoFormerBackbone.from_roformer_config(config.replace(**changes))
        before = weights(model)
        with pytest.raises(error, match=message):
            model.load_preset(CHARACTER)
        for path, value in weights(model).items():
            np.testing.assert_array_equal(value, before[path])
    with pytest.raises(CheckpointError, match="holds roformer_v2 weights"):
        model.load_preset(V2)
    model.load_preset(CHARACTER, initialize_heads=True)


@pytest.mark.parametrize(
    "stated",
    [
        {"attention": "causal"},
        {"rotary_base": 50.0},
        {"rotary": False},
        {"attention_type": "linear"},
    ],
)
def test_a_source_that_states_another_structure_is_refused(stated, tmp_path):
    config = RoFormerBackbone.from_preset(CHARACTER, num_layers=1).config
    source = RoFormerBackbone.from_roformer_config(config.replace(**stated))
    source.save_to_preset(tmp_path / "source")
    model = RoFormerBackbone.from_roformer_config(config)
    before = weights(model)
    (name, value) = next(iter(stated.items()))
    with pytest.raises(ConfigurationError, match=f"{name}={value!r}.*from_preset"):
        model.load_preset(tmp_path / "source")
    for path, weight in weights(model).items():
        np.testing.assert_array_equal(weight, before[path])
    source.load_preset(tmp_path / "source")
    # A checkpoint that states nothing is read by any structure.
    source.load_preset(CHARACTER)


# === Weights of a BERT ===


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """The tensors of a RoFormer with the table of positions that a BERT has."""
    tensors, config = tensors_of(SIM), zipped_json(SIM)
    positions = np.zeros((512, config["hidden_size"]), "float32")
    tokens = RoFormerBackbone.from_preset(SIM).tokenizer.vocabulary
    folder = tmp_path_factory.mktemp("bert") / "bert"
    return write_checkpoint(folder, {**tensors, POSITIONS: positions}, config, tokens)


def test_a_roformer_starts_from_a_bert(bert):
    with pytest.raises(CheckpointError, match=f"a BERT.*ignore='{POSITIONS}'"):
        RoFormerBackbone.from_preset(bert)
    model = RoFormerBackbone.from_preset(bert, ignore=POSITIONS)
    assert_same_weights(model, RoFormerBackbone.from_preset(SIM))
    fresh = RoFormerBackbone.from_roformer_config(model.config)
    fresh.load_preset(bert, ignore=POSITIONS)
    assert_same_weights(fresh, model)


@pytest.mark.filterwarnings("ignore:Even though the `tf.config")
@pytest.mark.parametrize(
    "command",
    [
        "pretrain mlm {texts} --steps 1 --length 16 --batch-size 4",
        "finetune text-classification --train {rows} --epochs 1 --batch-size 4",
    ],
)
def test_trainings_start_from_a_bert(bert, command, tmp_path, cli, refused, eagerly):
    texts, rows = tmp_path / "texts.txt", tmp_path / "rows.tsv"
    texts.write_text("床前明月光\n疑是地上霜\n举头望明月\n低头思故乡\n" * 2)
    rows.write_text("床前明月光\t一\n疑是地上霜\t二\n" * 2)
    words = command.format(texts=texts, rows=rows).split()
    words += ["--source", str(bert), "--output", str(tmp_path / "run"), "--quiet"]
    assert f"pass --ignore {POSITIONS}" in refused(*words, code=3)
    cli(*words, "--ignore", POSITIONS)
