"""`from_preset` and `save_to_preset`, and the files between Keras and this package."""

import shutil

import keras
import numpy as np
import pytest
from common import (
    CHARACTER,
    GPT,
    NSP,
    SHARED,
    SIM,
    SMALL,
    V2,
    V2_EMBEDDING_SIZE,
    WORD,
    read_json,
    zipped,
)
from sources import (
    assert_same,
    listing,
    outputs,
    packed,
    tensors_of,
    unpacked,
    weights,
    write_checkpoint,
)

from roformer_keras import (
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerSim,
    RoFormerTokenizer,
    convert,
)
from roformer_keras.base.config import RoFormerConfig
from roformer_keras.base.errors import ConfigurationError, OutputError, VocabularyError
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.conversion.weights import weight_table
from roformer_keras.models import initializers

MODELS = [
    (RoFormerMaskedLM, CHARACTER, {}),
    (RoFormerMaskedLM, WORD, {}),
    (RoFormerCausalLM, GPT, {}),
    (RoFormerSim, SIM, {}),
    (RoFormerMaskedLM, V2, {}),
    (RoFormerBackbone, V2_EMBEDDING_SIZE, {}),
    (RoFormerMaskedLM, NSP, {"pooler_activation": "tanh", "with_nsp": True}),
]
CHANGES = {"dropout": 0.25, "layer_norm_epsilon": 1e-7}


@pytest.mark.slow
def test_every_weight_left_undefined_is_loaded(monkeypatch):
    undefined = []

    def not_a_number(shape, dtype):
        undefined.append(shape)
        return keras.ops.full(shape, np.nan, dtype)

    monkeypatch.setattr(initializers, "_undefined", not_a_number)
    for model, source, options in MODELS:
        undefined.clear()
        loaded = model.from_preset(source, **options)
        assert undefined
        for path, value in weights(loaded).items():
            assert np.isfinite(value).all(), path


# === Between Keras's files and ours ===


@pytest.mark.slow
@pytest.mark.parametrize(("model", "source", "options"), [MODELS[3], *MODELS[5:]])
def test_keras_loads_our_files_and_we_load_its_own(model, source, options, tmp_path):
    """The converter, Keras and `save_to_preset` write the same."""
    ours = model.from_preset(source, **CHANGES, **options)
    options = {**CHANGES, **options, "model": model.__name__, "verbose": 0}
    made = {
        name: convert(source, tmp_path / name, **options)
        for name in ("a.keras", "b.weights.h5", "preset")
    }
    loaded = keras.models.load_model(made["a.keras"])
    assert type(loaded) is model
    assert loaded.config == ours.config
    assert_same(outputs(loaded), outputs(ours))
    for weight in loaded.weights:
        weight.assign(keras.ops.zeros_like(weight))
    loaded.load_weights(made["b.weights.h5"])
    assert_same(weights(loaded), weights(ours))

    ours.save(tmp_path / "c.keras")
    ours.save_weights(tmp_path / "d.weights.h5")
    ours.save_to_preset(tmp_path / "saved")
    tensors = tensors_of(made["preset"])
    for name, given in (("c.keras", None), ("d.weights.h5", ours.config)):
        with open_checkpoint(tmp_path / name, given) as checkpoint:
            assert checkpoint.config == ours.config
            assert checkpoint.unexpected == ()
        assert_same(tensors_of(tmp_path / name, config=given), tensors)
    assert_same(tensors_of(tmp_path / "saved"), tensors)
    for part in ("config.json", "task.json", "metadata.json"):
        if not (tmp_path / "saved" / part).exists():
            assert model is RoFormerBackbone
            continue
        saved, written = (
            read_json(folder / part) for folder in (tmp_path / "saved", made["preset"])
        )
        if part == "task.json":
            # The defaults, of which a checkpoint of bert4keras says nothing.
            assert saved["config"].pop("output_activation") is None
            assert saved["config"].pop("max_length", 512) == 512
        assert written == saved


def test_the_output_activation_is_kept_and_can_be_set(tmp_path):
    model = RoFormerMaskedLM.from_preset(SMALL, output_activation="softmax")
    model.save_to_preset(tmp_path / "preset")
    again = RoFormerMaskedLM.from_preset(tmp_path / "preset")
    assert again.output_activation == "softmax"
    np.testing.assert_allclose(outputs(again)["output"].sum(-1), 1, rtol=1e-5)
    logits = RoFormerMaskedLM.from_preset(tmp_path / "preset", output_activation=None)
    assert_same(outputs(logits), outputs(RoFormerMaskedLM.from_preset(SMALL)))
    # For another class of model it means nothing.
    assert RoFormerCausalLM.from_preset(tmp_path / "preset").output_activation is None


@pytest.mark.slow
def test_a_preset_of_one_class_can_be_loaded_by_another(tmp_path):
    folder = convert(SIM, tmp_path / "sim", verbose=0)
    with open_checkpoint(folder) as preset, open_checkpoint(SIM) as archive:
        for name in ("RoFormerBackbone", "RoFormerMaskedLM", "RoFormerCausalLM"):
            assert preset.config_for(name) == archive.config_for(name)
    model = RoFormerCausalLM.from_preset(folder)
    assert_same(outputs(model), outputs(RoFormerCausalLM.from_preset(SIM)))


def test_a_preset_folder_is_not_replaced_unless_asked(tmp_path):
    model = RoFormerBackbone.from_preset(SMALL)
    folder = tmp_path / "preset"
    model.save_to_preset(folder, RoFormerTokenizer.from_preset(SMALL))
    before = listing(tmp_path)
    with pytest.raises(OutputError, match="preset exists: choose another name"):
        model.save_to_preset(folder)
    assert listing(tmp_path) == before
    model.save_to_preset(folder, overwrite=True)
    assert "tokenizer.json" in listing(folder)


def test_a_preset_is_saved_in_either_order(tmp_path):
    tokenizer = RoFormerTokenizer.from_preset(SMALL)
    model = RoFormerBackbone.from_preset(SMALL)
    model.save_to_preset(tmp_path / "one")
    tokenizer.save_to_preset(tmp_path / "one")
    tokenizer.save_to_preset(tmp_path / "other")
    model.save_to_preset(tmp_path / "other")
    assert listing(tmp_path / "one") == listing(tmp_path / "other")
    for folder in ("one", "other"):
        again = RoFormerTokenizer.from_preset(tmp_path / folder)
        assert again.vocabulary == tokenizer.vocabulary
        RoFormerBackbone.from_preset(tmp_path / folder)


def test_a_folder_with_other_things_in_it_is_not_replaced(tmp_path):
    model = RoFormerBackbone.from_preset(SMALL)
    for number, name in enumerate(("thesis.txt", "assets/logo.png", "assets")):
        folder = tmp_path / str(number)
        mine = folder / name
        mine.parent.mkdir(parents=True)
        mine.write_text("years of work")
        with pytest.raises(OutputError, match=rf"no part of a preset \({name}\)"):
            model.save_to_preset(folder, overwrite=True)
        assert mine.read_text() == "years of work"


def test_a_tokenizer_of_another_vocabulary_is_not_saved(tmp_path):
    model = RoFormerBackbone.from_preset(SMALL)
    with pytest.raises(ConfigurationError, match="has 669 tokens but the model 260"):
        model.save_to_preset(
            tmp_path / "preset", RoFormerTokenizer.from_preset(CHARACTER)
        )
    assert listing(tmp_path) == []


@pytest.mark.slow
def test_a_model_with_kept_tokens_is_saved_with_its_smaller_tokenizer(tmp_path):
    tokenizer, keep = RoFormerTokenizer.from_preset(CHARACTER).simplified()
    model = RoFormerMaskedLM.from_preset(CHARACTER, keep_tokens=keep)
    assert model.config.vocabulary_size == len(keep) == tokenizer.vocabulary_size < 669
    assert model.tokenizer.vocabulary == tokenizer.vocabulary
    model.save_to_preset(tmp_path / "preset")
    again = RoFormerMaskedLM.from_preset(tmp_path / "preset")
    assert_same(outputs(again), outputs(model))
    text = "今天天气不错"
    original = RoFormerTokenizer.from_preset(CHARACTER).encode(text)[0]
    smaller = RoFormerTokenizer.from_preset(tmp_path / "preset").encode(text)[0]
    assert [keep[i] for i in smaller] == original
    # The same text, the same vectors: only the ids have changed.
    full = RoFormerBackbone.from_preset(CHARACTER)
    few = RoFormerBackbone.from_preset(tmp_path / "preset")
    segments = np.zeros((1, len(original)), "int32")
    np.testing.assert_array_equal(
        full({"token_ids": np.array([original]), "segment_ids": segments}),
        few({"token_ids": np.array([smaller]), "segment_ids": segments}),
    )


# === The model's own tokenizer ===


@pytest.mark.parametrize(
    "options",
    [
        {"keep_tokens": [0, 100, 101, 102, 103, 200], "compound_tokens": [[1, 2]]},
        # Without [UNK] or [SEP] no text can be read.
        {"keep_tokens": [200, 201, 202]},
    ],
)
def test_a_vocabulary_that_no_text_can_be_read_with_is_none(options):
    model = RoFormerMaskedLM.from_preset(CHARACTER, **options)
    assert model.tokenizer is None
    with pytest.raises(VocabularyError, match=r"set model\.tokenizer to the RoForm"):
        model.text_tokenizer()


def test_why_a_vocabulary_gave_no_tokenizer_is_said(tmp_path):
    folder = unpacked(CHARACTER, tmp_path)
    vocabulary = zipped(CHARACTER, "vocab.txt").decode().splitlines()
    # A single word: neither level.
    vocabulary[-1] = "天气"
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    model = RoFormerMaskedLM.from_preset(folder)
    with pytest.raises(VocabularyError, match=r"set model\.tokenizer") as caught:
        model.fill_mask("[MASK]")
    reason = "does not show its level, for 1 of its 669 tokens are Chinese words"
    assert reason in str(caught.value)
    assert reason in str(caught.value.__cause__)
    model.tokenizer = RoFormerTokenizer(vocabulary, level="character")
    assert len(model.fill_mask("[MASK]")[0]) == 5


def test_ids_to_keep_are_integers():
    for options in ({"keep_tokens": [True, 2]}, {"compound_tokens": [[1, False]]}):
        with pytest.raises(ConfigurationError, match="must be ids from 0 to 668, got"):
            RoFormerMaskedLM.from_preset(CHARACTER, **options)


def test_a_tokenizer_can_be_set(tmp_path):
    model = RoFormerMaskedLM.from_roformer_config(
        RoFormerMaskedLM.from_preset(CHARACTER).config
    )
    assert model.tokenizer is None
    with pytest.raises(VocabularyError, match="no vocabulary to read and write texts"):
        model.text_tokenizer()
    model.tokenizer = RoFormerTokenizer.from_preset(SMALL)
    with pytest.raises(ConfigurationError, match="669 tokens, the tokenizer 260"):
        model.text_tokenizer()
    with pytest.raises(ConfigurationError, match="has 260 tokens but the model 669"):
        model.save_to_preset(tmp_path / "preset")
    assert listing(tmp_path) == []
    model.tokenizer = RoFormerTokenizer.from_preset(CHARACTER)
    assert model.text_tokenizer() is model.tokenizer
    model.save_to_preset(tmp_path / "preset")
    again = RoFormerMaskedLM.from_preset(tmp_path / "preset")
    assert again.tokenizer.vocabulary == model.tokenizer.vocabulary
    # A tokenizer of one model is not that of the others.
    assert RoFormerMaskedLM.tokenizer is None


# === Arguments ===


@pytest.mark.slow
def test_configuration_fields_are_set_by_keyword():
    sim = RoFormerSim.from_preset(SIM)
    tanh = RoFormerSim.from_preset(SIM, pooler_activation="tanh", dropout=0.2)
    assert tanh.config.dropout == 0.2
    np.testing.assert_allclose(
        outputs(tanh)["pooled_output"],
        np.tanh(outputs(sim)["pooled_output"]),
        atol=1e-6,
    )
    loose = RoFormerSim.from_preset(SIM, layer_norm_epsilon=1e-3)
    assert not np.allclose(outputs(loose)["logits"], outputs(sim)["logits"])
    # In a backbone this is the activation of the feed-forward: it has no MLM output.
    relu = RoFormerBackbone.from_preset(SIM, activation="relu")
    assert relu.config.activation == "relu"
    gelu = RoFormerBackbone.from_preset(SIM)
    assert not np.allclose(outputs(relu)["output"], outputs(gelu)["output"])


BROKEN_RULES = [
    ({"colour": 1}, "RoFormerConfig has no field colour; it has"),
    ({"activation": "gelo"}, "must be the name of a Keras activation, got 'gelo'"),
    ({"keep_tokens": [0, 260]}, "keep_tokens must be ids from 0 to 259, got 260"),
    ({"keep_tokens": [-1]}, "keep_tokens must be ids from 0 to 259, got -1"),
    ({"keep_tokens": [1.5]}, r"keep_tokens must be ids from 0 to 259, got 1\.5"),
    ({"keep_tokens": []}, "keep_tokens must name at least one token"),
    ({"compound_tokens": [5]}, "a compound token must be a list of ids, .* got 5"),
    ({"compound_tokens": [[]]}, r"a compound token must be .* got \[\]"),
    ({"compound_tokens": [([1, 2], [1, -1])]}, "weights that do not sum to zero"),
    ({"compound_tokens": [([1, 2], [1])]}, "as many weights"),
    (
        {"keep_tokens": [0, 1], "compound_tokens": [[2]]},
        "compound_tokens must be ids from 0 to 1, got 2",
    ),
    ({"config": 5}, "must hold one JSON object, got int"),
    ({"config": "nowhere.json"}, r"config: there is no file nowhere\.json"),
]


def test_arguments_that_break_a_rule():
    for changes, message in BROKEN_RULES:
        with pytest.raises(ConfigurationError, match=message):
            RoFormerBackbone.from_preset(SMALL, **changes)


def test_kept_and_compound_tokens_take_rows_of_the_table():
    keep = [0, 7, 5, 9]
    compounds = [[1, 2], ([1, 3], [1, 3])]
    model = RoFormerMaskedLM.from_preset(
        SMALL, keep_tokens=keep, compound_tokens=compounds
    )
    assert model.config.vocabulary_size == 6
    stored = tensors_of(SMALL)
    for name, path in (
        ("bert/embeddings/word_embeddings", "token_embedding/embeddings"),
        ("cls/predictions/output_bias", "mlm_head/bias"),
    ):
        table = stored[name]
        rows = weights(model)[path]
        np.testing.assert_array_equal(rows[:4], table[keep])
        np.testing.assert_allclose(rows[4], table[[7, 5]].mean(0), rtol=1e-6)
        np.testing.assert_allclose(
            rows[5], (table[7] + 3 * table[9]) / 4, rtol=1e-5, atol=1e-7
        )


def test_a_model_in_half_precision():
    model = RoFormerSim.from_preset(SIM, dtype="bfloat16")
    assert {str(v.dtype) for v in model.weights} == {"bfloat16"}
    mixed = RoFormerSim.from_preset(SIM, dtype="mixed_bfloat16")
    assert_same(weights(mixed), weights(RoFormerSim.from_preset(SIM)))


def test_a_catalogue_name_means_the_download(tmp_path, monkeypatch):
    name = "chinese_roformer-sim-char_L-6_H-384_A-6"
    shutil.copy(SIM, tmp_path / f"{name}.zip")
    monkeypatch.setenv("ROFORMER_KERAS_CHECKPOINTS", str(tmp_path))
    assert_same(
        outputs(RoFormerSim.from_preset(name)), outputs(RoFormerSim.from_preset(SIM))
    )
    assert RoFormerTokenizer.from_preset(name).vocabulary_size == 669


# === The official layouts, with generated weights ===

CONFIGS = {
    "chinese_roformer-sim-char-ft_L-6_H-384_A-6": RoFormerSim,
    "chinese_roformer-sim-char-ft_L-12_H-768_A-12": RoFormerSim,
    "chinese_roformer-v2-char_L-6_H-384_A-6": RoFormerMaskedLM,
    "chinese_roformer-v2-char_L-12_H-768_A-12": RoFormerMaskedLM,
}
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared")


def generated(config, heads):
    """Tensors of a checkpoint with this configuration."""
    random = np.random.default_rng(0)
    return {
        row.name: random.standard_normal(row.checkpoint_shape, "float32") * 0.02
        for row in weight_table(config, heads)
    }


def official(name, folder, num_layers=None, vocabulary="char_12000.txt", **changes):
    """A zip laid out as the released one, with its own configuration file."""
    path = SHARED / "data" / "configs" / f"{name}.json"
    bert_config = {**read_json(path), **changes}
    if num_layers is not None:
        bert_config["num_hidden_layers"] = num_layers
    model_type = "roformer_v2" if "-v2-" in name else "roformer"
    config = RoFormerConfig.from_bert_config(bert_config, model_type)
    heads = ("pooler", "mlm") if "-sim-" in name else ()
    tensors = generated(config, heads)
    tokens = (SHARED / "data" / "vocab" / vocabulary).read_text(encoding="utf-8")
    files = write_checkpoint(folder / name, tensors, bert_config, tokens.split("\n"))
    shutil.copy(SHARED / "data" / "vocab" / vocabulary, files / "vocab.txt")
    archive = packed(files, folder / f"{name}.zip", prefix=f"{name}/")
    shutil.rmtree(files)
    return archive, tensors


@needs_shared
@pytest.mark.e2e
@pytest.mark.parametrize("name", CONFIGS)
def test_the_official_configurations_load(name, tmp_path):
    # Full size is for `test_full_size.py`.
    archive, tensors = official(name, tmp_path, num_layers=1)
    with open_checkpoint(archive) as checkpoint:
        assert checkpoint.unexpected == checkpoint.training_state == ()
        assert len(checkpoint.vocabulary) == 12_000
    model = CONFIGS[name].from_preset(archive)
    rows = {row.path: row for row in weight_table(model.config)}
    assert {rows[path].name for path in weights(model)} == set(tensors)
    for path, value in weights(model).items():
        stored = tensors[rows[path].name]
        np.testing.assert_array_equal(value, stored)
    tokenizer = RoFormerTokenizer.from_preset(archive)
    assert tokenizer.level == "character"
    batch = tokenizer(["今天天气不错", "北京"])
    for value in outputs(model, batch).values():
        assert np.isfinite(value).all()


@needs_shared
def test_the_vocabularies_of_words_and_characters_are_told_apart(tmp_path):
    name = "chinese_roformer-sim-char-ft_L-6_H-384_A-6"
    words, _ = official(
        name, tmp_path, 1, "word_50000.txt", vocab_size=50_000, hidden_size=24
    )
    tokenizer = RoFormerTokenizer.from_preset(words)
    assert (tokenizer.level, tokenizer.vocabulary_size) == ("word", 50_000)
    model = RoFormerSim.from_preset(words)
    assert outputs(model, tokenizer(["今天天气不错"]))["logits"].shape[-1] == 50_000
    for vocabulary, size, given in (
        ("word_50000.txt", 12_000, 50_000),
        ("char_12000.txt", 50_000, 12_000),
    ):
        folder = tmp_path / str(size)
        folder.mkdir()
        mixed, _ = official(
            name, folder, 1, vocabulary, vocab_size=size, hidden_size=24
        )
        message = f"the vocabulary has {given} tokens but the embedding {size} rows"
        with pytest.raises(VocabularyError, match=message):
            RoFormerSim.from_preset(mixed)
    for archive, level in ((words, "character"), (SIM, "word")):
        with pytest.raises(VocabularyError, match=level):
            RoFormerTokenizer.from_preset(archive, level=level)
