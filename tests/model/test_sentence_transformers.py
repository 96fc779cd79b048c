"""Folders of sentence-transformers, out and in.

The library itself reads and writes them in `e2e/test_sentence_transformers.py`.
"""

import shutil

import numpy as np
import pytest
import yaml
from common import CHARACTER, GPT, SIM, V2, WORD, change_json, read_json, write_file
from safetensors.numpy import load_file, save_file
from sources import assert_same, listing, packed, tensors_of

import roformer_keras
from roformer_keras import (
    RoFormerBackbone,
    RoFormerSentenceEncoder,
    RoFormerSim,
    convert,
)
from roformer_keras.base.errors import CheckpointError, ConfigurationError, SourceError
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.models.embedding import embed

FORMAT = {"format": "sentence-transformers", "verbose": 0}
TEXTS = ["今天天气不错", "你好", "太祖即位，大赦天下。" * 9]
SIM_FILES = {
    *("config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"),
    *("modules.json", "sentence_bert_config.json", "README.md"),
    *("config_sentence_transformers.json", "1_Pooling", "1_Pooling/config.json"),
    *("2_Dense", "2_Dense/config.json", "2_Dense/model.safetensors"),
}


def written_encoder(folder, source=CHARACTER, **options):
    """A preset of a sentence encoder with this head."""
    RoFormerSentenceEncoder.from_preset(source, **options).save_to_preset(folder)
    return folder


@pytest.fixture(scope="module")
def sim(tmp_path_factory):
    """RoFormer-Sim's folder; not to be changed."""
    return convert(SIM, tmp_path_factory.mktemp("sim") / "sim", **FORMAT)


@pytest.fixture
def changed(sim, tmp_path):
    """A function that changes the fields of a JSON file in a copy of that folder."""
    folder = shutil.copytree(sim, tmp_path / "changed")

    def change(name, content=None, **fields):
        if content is None:
            change_json(folder / name, **fields)
        else:
            write_file(folder / name, content)
        return folder

    return change


# === There and back ===


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "options"),
    [
        (CHARACTER, {"pooling": "mean", "max_length": 16}),
        (CHARACTER, {"pooling": "first"}),
        (CHARACTER, {"pooling": "weighted_mean"}),
        (CHARACTER, {"pooling": "max+mean"}),
        (CHARACTER, {"pooling": "mean+first"}),
        (WORD, {"objective": "contrastive", "scale": 5.0}),
    ],
)
def test_a_sentence_encoder_keeps_its_bits(source, options, tmp_path):
    preset = written_encoder(tmp_path / "preset", source, **options)
    there = convert(preset, tmp_path / "there", **FORMAT)
    back = convert(there, tmp_path / "back", verbose=0)
    tensors = tensors_of(preset)
    with open_checkpoint(preset) as checkpoint:
        expected = checkpoint
    for path in (there, back):
        assert_same(tensors_of(path), tensors)
        with open_checkpoint(path) as checkpoint:
            assert checkpoint.model == "RoFormerSentenceEncoder"
            assert checkpoint.config == expected.config
            assert checkpoint.vocabulary == expected.vocabulary
            for name in ("pooling", "max_length"):
                value = checkpoint.model_options[name]
                assert value == expected.model_options[name]
    if source is WORD:
        return
    ours, theirs = map(roformer_keras.load_model, (preset, there))
    assert np.array_equal(ours.encode(TEXTS), theirs.encode(TEXTS))


@pytest.mark.slow
def test_roformer_sim_keeps_its_bits(sim, tmp_path):
    assert set(listing(sim)) == SIM_FILES
    assert_same(tensors_of(sim), tensors_of(SIM))
    assert_same(tensors_of(packed(sim, tmp_path / "x.zip", "x/")), tensors_of(SIM))
    back = convert(sim, tmp_path / "back.zip", verbose=0)
    assert_same(tensors_of(back), tensors_of(SIM))
    model = roformer_keras.load_model(sim)
    assert type(model) is RoFormerSim
    expected = RoFormerSim.from_preset(SIM).encode(TEXTS)
    assert np.array_equal(model.encode(TEXTS), expected)
    # The pooler is in Dense alone.
    assert not any("pooler" in name for name in load_file(sim / "model.safetensors"))


def test_a_pooler_without_an_mlm_head_is_that_of_a_sentence_encoder(tmp_path):
    backbone = RoFormerBackbone.from_preset(SIM, pooler_activation="tanh")
    backbone.save_to_preset(tmp_path / "preset")
    there = convert(tmp_path / "preset", tmp_path / "there", **FORMAT)
    dense = read_json(there / "2_Dense" / "config.json")
    assert dense["activation_function"] == "torch.nn.modules.activation.Tanh"
    assert_same(tensors_of(there), tensors_of(tmp_path / "preset"))
    settings = {"max_seq_length": 16, "do_lower_case": False}
    write_file(there / "sentence_bert_config.json", settings)
    model = RoFormerSentenceEncoder.from_preset(there)
    assert (model.pooling, model.max_length) == ("pooler", 16)
    expected = embed(backbone, model.tokenizer, TEXTS, max_length=16)
    assert np.array_equal(model.encode(TEXTS), expected)
    assert type(roformer_keras.load_model(there)) is RoFormerSentenceEncoder
    # Out again, and as the backbone that it was.
    again = convert(there, tmp_path / "again", **FORMAT)
    assert read_json(again / "sentence_bert_config.json") == settings
    assert_same(tensors_of(again), tensors_of(there))
    config = RoFormerBackbone.from_preset(again).config
    assert config.pooler_activation == "tanh"


def test_what_dense_has_learnt_is_read(sim, changed):
    folder = changed("modules.json", read_json(sim / "modules.json"))
    path = folder / "2_Dense" / "model.safetensors"
    values = {name: value + 1 for name, value in load_file(path).items()}
    save_file(values, path)
    kernel = tensors_of(folder)["bert/pooler/dense/kernel"]
    assert np.array_equal(kernel, values["linear.weight"].T)


def test_the_card_says_what_it_is(sim):
    text = (sim / "README.md").read_text(encoding="utf-8")
    _, front, body = text.split("---\n", 2)
    fields = yaml.safe_load(front)
    assert fields["library_name"] == "sentence-transformers"
    assert fields["pipeline_tag"] == "sentence-similarity"
    assert "sentence-transformers" in fields["tags"]
    assert "| Class | `RoFormerSim` |" in body


# === As others write them ===

_NEW = "sentence_transformers.sentence_transformer.modules.pooling.Pooling"


@pytest.mark.slow
def test_the_layout_of_newer_versions_is_read(tmp_path):
    preset = written_encoder(tmp_path / "preset", max_length=16)
    folder = convert(preset, tmp_path / "new", **FORMAT)
    expected = roformer_keras.load_model(preset).encode(TEXTS)
    modules = read_json(folder / "modules.json")
    modules[1]["type"] = _NEW
    modules[2]["type"] = "sentence_transformers.base.modules.normalize.Normalize"
    write_file(folder / "modules.json", modules)
    pooling = {
        "embedding_dimension": 32,
        "pooling_mode": "mean",
        "include_prompt": True,
    }
    write_file(folder / "1_Pooling" / "config.json", pooling)
    write_file(folder / "sentence_bert_config.json", {"module_output_name": "x"})
    model = roformer_keras.load_model(folder)
    assert np.array_equal(model.encode(TEXTS), expected)
    # Without Normalize, and without a length.
    write_file(folder / "modules.json", modules[:2])
    change_json(folder / "tokenizer_config.json", model_max_length=1e30)
    assert roformer_keras.load_model(folder).max_length == 1536
    # It lowers texts itself.
    write_file(folder / "tokenizer_config.json", {"do_lower_case": False})
    write_file(folder / "sentence_bert_config.json", {"do_lower_case": True})
    assert roformer_keras.load_model(folder).tokenizer.lower_case


@pytest.mark.parametrize("length", [16, 600])
def test_roformer_sim_keeps_its_length(length, changed, tmp_path):
    """In each format that has a place for it; `encode` cuts texts there."""
    folder = changed("sentence_bert_config.json", max_seq_length=length)
    there = convert(folder, tmp_path / "there", **FORMAT)
    preset = convert(folder, tmp_path / "preset", verbose=0)
    flat = convert(there, tmp_path / "x.safetensors", verbose=0)
    for source in (folder, there, preset, flat):
        with open_checkpoint(source) as checkpoint:
            assert checkpoint.model == "RoFormerSim"
            assert checkpoint.model_options["max_length"] == length
    settings = read_json(there / "sentence_bert_config.json")
    assert settings["max_seq_length"] == length
    if length == 16:
        models = [RoFormerSim.from_preset(preset), roformer_keras.load_model(there)]
        models[0].save(tmp_path / "x.keras")
        models.append(roformer_keras.load_model(tmp_path / "x.keras"))
        expected = RoFormerSim.from_preset(SIM).encode(TEXTS, max_length=16)
        for model in models:
            np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-6)


def test_settings_that_change_no_vector_are_read(changed):
    folder = changed(
        "config_sentence_transformers.json",
        prompts={"query": "", "document": ""},
        similarity_fn_name=None,
    )
    tensors_of(folder)


# === Refused ===

_KIND = "sentence_transformers.models."
_START = [
    {"type": f"{_KIND}Transformer", "path": ""},
    {"type": f"{_KIND}Pooling", "path": "1_Pooling"},
]


_MODULES = [
    ({}, "must hold one JSON list, got dict"),
    (["x"], "must be a list of objects with a type and a path, got 'x'"),
    ([{"type": 1, "path": ""}], "must be a list of objects"),
    ([], "modules must be Transformer, Pooling, "),
    (_START[:1], "in this order, got Transformer"),
    (_START[::-1], "in this order, got Pooling, Transformer"),
    ([*_START, {"type": "mine.Dense", "path": "2_Dense"}], "got .*, mine.Dense"),
    ([_START[0], {"type": f"{_KIND}Normalize", "path": ""}, _START[1]], "order"),
    ([_START[0], {**_START[1], "path": "../x"}], "must be in '1_Pooling', got"),
    ([{**_START[0], "path": "0_T"}, _START[1]], "must be in 'the folder itself'"),
]


def test_other_modules_are_refused(changed):
    for modules, message in _MODULES:
        with pytest.raises(ConfigurationError, match=message):
            tensors_of(changed("modules.json", modules))


_FIELDS = [
    ("1_Pooling/config.json", {"pooling_mode": "median"}, "must be of cls, max, mean"),
    ("1_Pooling/config.json", {"pooling_mode": []}, r"must be of cls.*, got \[\]"),
    ("1_Pooling/config.json", {"pooling_mode": 3}, "must be of .*, got 3"),
    ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True}, "must be 64, as in"),
    ("1_Pooling/config.json", {"pooling_mode_x": True}, "got .'cls', 'pooling_mode_x'"),
    ("1_Pooling/config.json", {"word_embedding_dimension": "9"}, "must be an integer"),
    ("2_Dense/config.json", {"in_features": 8}, "in_features must be 32, as in"),
    ("2_Dense/config.json", {"bias": False}, "bias must be True, as in RoFormer"),
    ("2_Dense/config.json", {"use_residual": True}, "use_residual must be False"),
    ("2_Dense/config.json", {"activation_function": "os.abort"}, "got 'os.abort'"),
    ("2_Dense/config.json", {"activation_function": []}, r"got \[\]"),
    ("sentence_bert_config.json", {"max_seq_length": "9"}, "must be an integer"),
    (
        "config_sentence_transformers.json",
        {"default_prompt_name": "query"},
        "default_prompt_name must be None",
    ),
    ("config_sentence_transformers.json", {"truncate_dim": 8}, "truncate_dim must"),
    *(
        (
            "config_sentence_transformers.json",
            {"similarity_fn_name": name},
            f"similarity_fn_name must be 'cosine', .* got {name!r}",
        )
        for name in ("dot", "euclidean", "manhattan")
    ),
]


def test_prompts_are_refused_with_the_way_out(changed):
    for prompts in ({"query": "查询："}, {"query": "", "document": "d"}, ["q"]):
        name = "config_sentence_transformers.json"
        with pytest.raises(ConfigurationError, match=r"prompts must be .*before y"):
            tensors_of(changed(name, prompts=prompts))


def test_what_no_class_computes_is_refused(sim, changed):
    for name, fields, message in _FIELDS:
        with pytest.raises(ConfigurationError, match=message) as caught:
            tensors_of(changed(name, **fields))
        if "an integer" not in message:
            assert "delete modules.json" in str(caught.value)
        changed(name, read_json(sim / name))


def test_missing_and_damaged_files_are_refused(sim, changed):
    folder = changed("modules.json", read_json(sim / "modules.json"))
    dense = folder / "2_Dense" / "model.safetensors"
    save_file({"linear.weight": np.zeros((32, 32), "float32")}, dense)
    with pytest.raises(CheckpointError, match=r"be linear\.bias \(32,\), linear\.w"):
        tensors_of(folder)
    dense.unlink()
    with pytest.raises(SourceError, match=r"needs 2_Dense/pytorch_model\.bin, and"):
        tensors_of(folder)
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(SourceError, match=r"needs 1_Pooling/config\.json, and there"):
        tensors_of(folder)


def test_a_model_without_vectors_is_refused(tmp_path):
    for source, message in (
        (CHARACTER, "holds a RoFormerMaskedLM, and sentence-transformers takes a"),
        (GPT, "finetune sentence-embedding"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            convert(source, tmp_path / "x", **FORMAT)
        assert listing(tmp_path) == []


def test_an_encoder_that_cannot_be_written_is_refused(tmp_path):
    preset = written_encoder(tmp_path / "long", max_length=2000)
    with pytest.raises(ConfigurationError, match=r"at most 1536, .* got 2,000"):
        convert(preset, tmp_path / "x", **FORMAT)
    preset = written_encoder(tmp_path / "v2", V2)
    with pytest.raises(ConfigurationError, match="has model_type='roformer_v2'"):
        convert(preset, tmp_path / "x", **FORMAT)
    backbone = RoFormerBackbone.from_preset(SIM, pooler_activation="elu")
    backbone.save_to_preset(tmp_path / "elu")
    with pytest.raises(ConfigurationError, match="has pooler_activation='elu', which"):
        convert(tmp_path / "elu", tmp_path / "x", **FORMAT)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["elu", "long", "v2"]


def test_a_length_of_no_tokens_is_refused(tmp_path):
    preset = written_encoder(tmp_path / "preset")
    folder = convert(preset, tmp_path / "x", **FORMAT)
    write_file(folder / "sentence_bert_config.json", {})
    write_file(folder / "tokenizer_config.json", {})
    fields = read_json(folder / "config.json")
    for value in (None, "1536", 0):
        write_file(folder / "config.json", {**fields, "max_position_embeddings": value})
        with pytest.raises(ConfigurationError, match="max_position_embeddings must be"):
            tensors_of(folder)


@pytest.mark.slow
def test_a_head_of_training_is_left_out_on_request(tmp_path, cli):
    options = {"objective": "classification", "num_classes": 3}
    preset = written_encoder(tmp_path / "preset", **options)
    message = r"used in training alone \(task/classes/bias, .*ignore='task/classes/\*'"
    with pytest.raises(ConfigurationError, match=message):
        convert(preset, tmp_path / "x", **FORMAT)
    flags = ("--format", "sentence-transformers", "--ignore", "task/*", "--quiet")
    cli("convert", preset, tmp_path / "x", *flags)
    # Patterns may come once.
    once = iter(["task/*", "other/*"])
    convert(preset, tmp_path / "y", ignore=once, **FORMAT)
    models = [roformer_keras.load_model(path) for path in (preset, tmp_path / "x")]
    assert models[1].objective == "cosent"
    before, after = (model.encode(TEXTS) for model in models)
    assert np.array_equal(before, after)
