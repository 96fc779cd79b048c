"""Folders of Hugging Face, in and out, against outputs of the real Transformers.

The folders and outputs in `data/huggingface` are written by `tools.reference`.
"""

import math
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest
from common import CHARACTER, GPT, NSP, SIM, SMALL, V2, WORD, read_json, write_file
from huggingface_folders import FOLDER, WORDS, changed
from safetensors.numpy import load_file, save_file
from sources import assert_same, copied, listing, outputs, packed, tensors_of

import roformer_keras
from roformer_keras import (
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerMultipleChoice,
    RoFormerQuestionAnswerer,
    RoFormerSim,
    RoFormerTextClassifier,
    RoFormerTokenClassifier,
    RoFormerTokenizer,
    convert,
)
from roformer_keras.base.config import RoFormerConfig
from roformer_keras.base.errors import (
    ConfigurationError,
    OutputError,
    VocabularyError,
)
from roformer_keras.cli import main
from roformer_keras.conversion.huggingface import position_table
from roformer_keras.conversion.reader import open_checkpoint

with np.load(FOLDER / "outputs.npz") as arrays:
    GOLDEN = dict(arrays)
INPUTS = {name: GOLDEN[name] for name in ("token_ids", "segment_ids")}
TASKS = ("tagger", "answerer", "chooser", "classifier")
LEFT_OUT = "4 tensors are left out, classifier.dense.bias among them"


# === In ===


MODELS = {
    "encoder": (RoFormerBackbone, "sequence"),
    "masked-lm": (RoFormerMaskedLM, "logits"),
    "masked-lm-bin": (RoFormerMaskedLM, "logits"),
    "causal-lm": (RoFormerCausalLM, "logits"),
}


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_transformers(name):
    model_class, role = MODELS[name]
    model = roformer_keras.load_model(FOLDER / name)
    assert type(model) is model_class
    (found,) = outputs(model, INPUTS).values()
    assert np.abs(found - GOLDEN[f"{name}/{role}"]).max() <= 1e-5
    assert model.tokenizer.vocabulary[:3] == ["[PAD]", "[unused1]", "[UNK]"]


def test_a_tagger_answers_as_in_transformers(tmp_path):
    """Its tags are in another order there."""
    model = roformer_keras.load_model(FOLDER / "tagger")
    back = convert(FOLDER / "tagger", tmp_path / "x", format="huggingface", verbose=0)
    written = read_json(back / "config.json")
    assert list(written["id2label"].values()) == model.tags
    weights, originals = (
        load_file(folder / "model.safetensors")["classifier.weight"]
        for folder in (back, FOLDER / "tagger")
    )
    np.testing.assert_array_equal(weights, originals[[2, 0, 1, 3, 4]])
    assert type(model) is RoFormerTokenClassifier
    assert model.tags == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    (found,) = outputs(model, INPUTS).values()
    expected = GOLDEN["tagger/logits"][..., [2, 0, 1, 3, 4]]
    assert np.abs(found - expected).max() <= 1e-5


def test_a_tagger_of_other_tags_keeps_their_order(tmp_path):
    for name, tags, labels in (
        ("unnamed", [f"LABEL_{n}" for n in range(5)], None),
        ("speech", ["n", "v", "ns", "m", "w"], None),
        ("plain", ["PER", "O", "LOC", "ORG", "X"], ["PER", "LOC", "ORG", "X"]),
        ("bioes", ["O", "B-LOC", "I-LOC", "E-LOC", "S-LOC"], ["LOC"]),
    ):
        (tmp_path / name).mkdir()
        fields = {"id2label": {str(number): tag for number, tag in enumerate(tags)}}
        source = changed("tagger", tmp_path / name, fields)
        model = roformer_keras.load_model(source)
        assert type(model) is RoFormerTokenClassifier
        assert (model.tags, model.labels) == (tags, labels or tags)
        there = tmp_path / name / "there"
        convert(source, there, format="huggingface", verbose=0)
        written = read_json(there / "config.json")
        assert written["id2label"] == fields["id2label"]
        assert_same(tensors_of(there), tensors_of(source))
    (found,) = outputs(model, INPUTS).values()
    assert np.abs(found - GOLDEN["tagger/logits"]).max() <= 1e-5


def test_an_answerer_scores_places_as_in_transformers():
    model = roformer_keras.load_model(FOLDER / "answerer")
    assert type(model) is RoFormerQuestionAnswerer
    (found,) = outputs(model, INPUTS).values()
    expected = [GOLDEN[f"answerer/{role}"] for role in ("starts", "ends")]
    # The other places are outside of the text, where no answer can be.
    inside = found > -1e8
    assert inside.sum() > 20
    difference = np.abs(found - np.stack(expected, axis=-1))
    assert difference[inside].max() <= 1e-5


def test_a_classifier_answers_as_in_transformers(tmp_path):
    model = roformer_keras.load_model(FOLDER / "classifier")
    assert type(model) is RoFormerTextClassifier
    assert (model.classes, model.num_classes) == (None, 3)
    assert (model.head_activation, model.multi_label) == ("gelu", False)
    (found,) = outputs(model, INPUTS).values()
    assert np.abs(found - GOLDEN["classifier/logits"]).max() <= 1e-5
    names = {"0": "坏", "1": "好", "2": "中"}
    fields = {"id2label": names, "problem_type": "multi_label_classification"}
    named = changed("classifier", tmp_path, fields)
    there = convert(named, tmp_path / "there", format="huggingface", verbose=0)
    for source in (named, there):
        with open_checkpoint(source) as checkpoint:
            assert checkpoint.model_options["classes"] == ["坏", "好", "中"]
            assert checkpoint.model_options["multi_label"] is True


def test_an_answerer_without_token_types_scores_all_places(tmp_path):
    """By its tokenizer, as it was trained; rows of others may have one segment too."""
    token_ids = INPUTS["token_ids"]
    inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
    (found,) = outputs(roformer_keras.load_model(FOLDER / "answerer"), inputs).values()
    is_token = token_ids != 0
    is_token[:, 0] = True
    may_answer = is_token & np.pad(is_token[:, 1:], ((0, 0), (0, 1)))
    may_answer[:, 0] = True
    np.testing.assert_array_equal(found[..., 0] > -1e8, may_answer)
    source = copied(FOLDER / "answerer", tmp_path)
    names = {"model_input_names": ["input_ids", "attention_mask"]}
    write_file(source / "tokenizer_config.json", names)
    there = convert(source, tmp_path / "there", format="huggingface", verbose=0)
    for folder in (source, there):
        model = roformer_keras.load_model(folder)
        assert model.text_segment == 0
        rows = model.make_rows([("天气", "今天不错")])
        assert not rows.batch([0])["segment_ids"].any()
        # The question has the best scores, and is no answer.
        scores = np.zeros((1, int(rows.lengths[0]), 2), "float32")
        scores[0, 1:3] = 9
        scores[0, 5] = 1
        assert list(model._best_spans(scores, rows, [0])) == [(2.0, 5, 5)]


def test_a_chooser_scores_choices_as_in_transformers():
    model = roformer_keras.load_model(FOLDER / "chooser")
    assert type(model) is RoFormerMultipleChoice
    # The rows are the choices of one question.
    ids = {name: rows[None] for name, rows in INPUTS.items()}
    logits = model.predict(ids, verbose=0)
    assert np.abs(logits - GOLDEN["chooser/logits"]).max() <= 1e-5


def assert_backbone(source, message="2 tensors are left out"):
    """A source is read as a backbone; its head of two tensors is left out."""
    with (
        pytest.warns(UserWarning, match=message),
        open_checkpoint(source) as checkpoint,
    ):
        assert checkpoint.model == "RoFormerBackbone"


def test_a_chooser_with_another_vector_is_its_backbone(tmp_path):
    for number, fields in enumerate(
        [
            {"summary_type": "attn"},
            {"summary_type": 1},
            {"summary_use_proj": True},
            {"summary_activation": "tanh"},
            {"summary_activation": "gelu_10"},
            {"summary_activation": 3},
            {"architectures": ["RoFormerForSequenceClassification"]},
            {"architectures": ...},
        ]
    ):
        (tmp_path / str(number)).mkdir()
        assert_backbone(changed("chooser", tmp_path / str(number), fields))


def test_a_head_that_no_class_has_is_left_out_and_said(tmp_path, capsys):
    source = changed("classifier", tmp_path, {"problem_type": "regression"})
    with pytest.warns(UserWarning, match=LEFT_OUT):
        model = roformer_keras.load_model(source)
    assert type(model) is RoFormerBackbone
    with pytest.warns(UserWarning, match=LEFT_OUT):
        assert main(["inspect", str(source)]) == 0
    assert "left out     4 of a head" in capsys.readouterr().out
    with pytest.warns(UserWarning, match=LEFT_OUT):
        RoFormerTextClassifier.from_preset(source, num_classes=3)


def test_a_causal_tagger_and_answerer_keep_their_attention(tmp_path):
    """There and back."""
    for name, model in (
        ("tagger", "RoFormerTokenClassifier"),
        ("answerer", "RoFormerQuestionAnswerer"),
    ):
        (tmp_path / name).mkdir()
        source = changed(name, tmp_path / name, {"is_decoder": True})
        there = tmp_path / name / "there"
        for folder in (
            source,
            convert(source, there, format="huggingface", verbose=0),
        ):
            with open_checkpoint(folder) as checkpoint:
                assert checkpoint.model == model
                assert checkpoint.config.attention == "causal"
                assert checkpoint.left_out == ()


def test_a_tagger_without_names_of_tags_or_vocabulary_is_its_backbone(tmp_path):
    labels = {str(n): f"LABEL_{n}" for n in range(5)}
    for number, fields in enumerate(
        [
            {"id2label": {**labels, "0": "LABEL_1"}},
            {"id2label": {**labels, "0": " "}},
            {"id2label": {**labels, "0": [1]}},
            {"id2label": [1]},
            {"architectures": 3},
        ]
    ):
        (tmp_path / str(number)).mkdir()
        assert_backbone(changed("tagger", tmp_path / str(number), fields))
    (tmp_path / "b").mkdir()
    source = copied(FOLDER / "tagger", tmp_path / "b")
    (source / "vocab.txt").unlink()
    assert_backbone(source, "2 tensors .*put its vocab.txt or tokenizer.json next to")
    done = subprocess.run(
        [sys.executable, "-m", "roformer_keras", "inspect", source],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.startswith("roformer-keras: warning: ")
    assert done.stderr.count("\n") == 1


def test_classes_of_one_name_are_not_lost_unsaid(tmp_path, capsys):
    fields = {"id2label": {"0": "好", "1": "好", "2": "坏"}}
    source = changed("classifier", tmp_path, fields)
    with pytest.warns(UserWarning, match="each of 3 labels a different name"):
        model = roformer_keras.load_model(source)
    assert (model.classes, model.num_classes) == (None, 3)
    assert main(["inspect", str(FOLDER / "classifier")]) == 0
    assert "heads        text-classification\n" in capsys.readouterr().out


def test_all_layouts_hold_the_same_tensors(tmp_path):
    """One file, shards, both formats of PyTorch, TensorFlow, a zip of the folder."""
    expected = tensors_of(FOLDER / "masked-lm")
    source = copied(FOLDER / "masked-lm", tmp_path)
    index = source / "model.safetensors.index.json"
    assert_same(tensors_of(index), expected)
    assert_same(tensors_of(packed(source, tmp_path / "x.zip", "x/")), expected)
    whole = {}
    for path in source.glob("*-of-*"):
        whole |= load_file(path)
        path.unlink()
    index.unlink()
    save_file(whole, source / "model.safetensors")
    assert_same(tensors_of(source), expected)
    assert_same(tensors_of(source / "model.safetensors"), expected)
    (source / "model.safetensors").unlink()
    with h5py.File(source / "tf_model.h5", "w") as file:
        for name, value in whole.items():
            file[tensorflow_name(name)] = value.T if is_kernel(name) else value
    assert_same(tensors_of(source), expected)


def is_kernel(name):
    return name.endswith("weight") and not ("_embeddings" in name or "Norm" in name)


def tensorflow_name(name):
    """The dataset of a tensor in the `tf_model.h5` of older versions."""
    name = name.replace("encoder.layer.", "encoder.layer_._").replace(".", "/")
    name = name.replace("layer_/_", "layer_._").replace("cls/", "mlm___cls/")
    if is_kernel(name):
        name = f"{name.removesuffix('weight')}kernel"
    name = name.replace("LayerNorm/weight", "LayerNorm/gamma")
    name = name.replace("LayerNorm/bias", "LayerNorm/beta")
    layer = name.split("/")[0]
    return f"{layer}/tf_ro_former_for_masked_lm/{name}:0"


def test_safetensors_is_preferred_and_other_files_are_passed_over(tmp_path):
    source = copied(FOLDER / "encoder", tmp_path)
    for name in ("pytorch_model.bin", "tf_model.h5", "README.md", "flax_model.msgpack"):
        (source / name).write_bytes(b"not read")
    assert_same(tensors_of(source), tensors_of(FOLDER / "encoder"))


def test_names_of_hugging_face_next_to_a_bert_config(tmp_path):
    """Without a config.json; the norms show that it is no RoFormerV2."""
    source = copied(FOLDER / "masked-lm", tmp_path)
    tensors = {}
    for path in source.glob("*-of-*"):
        tensors |= load_file(path)
    shutil.rmtree(source)
    source.mkdir()
    save_file(tensors, source / "model.safetensors")
    shutil.copy(FOLDER / "masked-lm" / "config.json", source / "bert_config.json")
    with open_checkpoint(source) as checkpoint:
        assert checkpoint.config.model_type == "roformer"
        assert checkpoint.unexpected == ()
    assert_same(tensors_of(source), tensors_of(FOLDER / "masked-lm"))


def test_fields_of_the_configuration():
    with open_checkpoint(FOLDER / "masked-lm") as checkpoint:
        config = checkpoint.config
    assert config == RoFormerConfig(
        vocabulary_size=145,
        num_layers=2,
        num_heads=4,
        hidden_dim=16,
        intermediate_dim=24,
        activation="relu",
        dropout=0.1,
        attention_dropout=0.1,
        layer_norm_epsilon=1e-3,
        head_norm_epsilon=1e-3,
    )
    with open_checkpoint(FOLDER / "causal-lm") as checkpoint:
        assert checkpoint.config.attention == "causal"
        assert checkpoint.config.embedding_dim == 12


def test_what_a_config_lacks_has_the_default_of_transformers(tmp_path):
    lacking = dict.fromkeys(
        ("hidden_dropout_prob", "layer_norm_eps", "hidden_act", "model_type"), ...
    )
    lacking |= dict.fromkeys(("is_decoder", "type_vocab_size", "rotary_value"), ...)
    source = changed("encoder", tmp_path, lacking)
    with open_checkpoint(source) as checkpoint:
        assert checkpoint.config.layer_norm_epsilon == 1e-12
        assert checkpoint.config.activation == "gelu"
        assert checkpoint.config.dropout == 0.1


def test_poolers_and_v2_of_another_package(tmp_path):
    """The layouts of JunnYu's package `roformer`, by their tensors."""
    dense = {
        "roformer.pooler.dense.weight": np.eye(16, dtype="float32")[::-1].copy(),
        "roformer.pooler.dense.bias": np.ones(16, "float32"),
    }
    fields = {"pooler_activation": "linear", "is_decoder": True, "norm_type": "x"}
    tensors = {}
    for path in (FOLDER / "masked-lm").glob("*-of-*"):
        tensors |= load_file(path)
    source = copied(FOLDER / "masked-lm", tmp_path)
    for path in (*source.glob("*-of-*"), source / "model.safetensors.index.json"):
        path.unlink()
    save_file({**tensors, **dense}, source / "model.safetensors")
    config = read_json(source / "config.json")
    write_file(source / "config.json", {**config, **fields})
    model = roformer_keras.load_model(source)
    assert type(model) is RoFormerSim
    # His script for RoFormer-Sim writes no word about the pooler.
    silent = tmp_path / "silent"
    shutil.copytree(source, silent)
    write_file(silent / "config.json", config)
    with open_checkpoint(silent) as checkpoint:
        assert (checkpoint.model, checkpoint.config) == ("RoFormerSim", model.config)
    computed = outputs(model, INPUTS)
    sequence = outputs(RoFormerBackbone.from_preset(source, attention="unilm"), INPUTS)
    expected = sequence["output"][:, 0, ::-1] + 1
    assert np.abs(computed["pooled_output"] - expected).max() <= 1e-6
    # RoFormerV2: no norms, no biases.
    v2_tensors = {
        name: value
        for name, value in {**tensors, **dense}.items()
        if not name.endswith("bias") and "Norm" not in name and "cls" not in name
    }
    v2_tensors["cls.predictions.decoder.weight"] = tensors[WORDS]
    save_file(v2_tensors, source / "model.safetensors")
    fields = {"use_bias": False, "norm_type": "rms_norm"}
    write_file(source / "config.json", {**config, **fields})
    with pytest.warns(UserWarning, match=r"1 tensors are left out, roformer\.pooler"):
        model = roformer_keras.load_model(source)
    assert model.config.model_type == "roformer_v2"
    assert type(model) is RoFormerMaskedLM
    # Transformers would make up the norms that are not there.
    with (
        pytest.warns(UserWarning, match="1 tensors are left out"),
        pytest.raises(ConfigurationError, match="has model_type='roformer_v2', which"),
    ):
        roformer_keras.verify(source, against="transformers", verbose=0)


def test_a_tokenizer_of_transformers_alone_is_read(tmp_path):
    """Since version 5 only `tokenizer.json` is saved, not `vocab.txt`."""
    source = copied(FOLDER / "encoder", tmp_path)
    tokens = (source / "vocab.txt").read_text(encoding="utf-8").split()
    (source / "vocab.txt").unlink()
    ids = {token: number for number, token in enumerate(tokens)}
    content = {"model": {"type": "WordPiece", "vocab": dict(sorted(ids.items()))}}
    write_file(source / "tokenizer.json", content)
    (source / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    tokenizer = RoFormerBackbone.from_preset(source).tokenizer
    assert list(tokenizer.vocabulary) == tokens
    assert not tokenizer.lower_case
    assert list(RoFormerTokenizer.from_preset(source).vocabulary) == tokens
    (source / "tokenizer_config.json").unlink()
    assert list(RoFormerTokenizer.from_preset(source).vocabulary) == tokens
    (source / "tokenizer.json").write_text('{"model": {"vocab": {"[PAD]": 1}}}')
    with pytest.raises(VocabularyError, match="an id from 0 on for each token"):
        RoFormerBackbone.from_preset(source)


# === Out ===


@pytest.mark.parametrize("name", ["encoder", "masked-lm-bin", "causal-lm", *TASKS])
def test_there_and_back_gives_the_same_bits(name, tmp_path):
    source = FOLDER / name
    ours = convert(source, tmp_path / "ours", verbose=0)
    there = convert(ours, tmp_path / "there", format="huggingface", verbose=0)
    direct = convert(source, tmp_path / "direct", format="huggingface", verbose=0)
    assert listing(there) == listing(direct)
    for file in listing(there):
        assert (there / file).read_bytes() == (direct / file).read_bytes()
    assert_same(tensors_of(there), tensors_of(source))
    with open_checkpoint(there) as found, open_checkpoint(source) as expected:
        assert found.config == expected.config
        assert found.model == expected.model
        assert found.model_options == expected.model_options
        assert found.vocabulary == expected.vocabulary


def test_from_bert4keras_there_and_back_gives_the_same_bits(tmp_path):
    for source in (WORD, GPT, SIM, SMALL):
        there = tmp_path / source.stem
        convert(source, there, format="huggingface", verbose=0)
        back = convert(there, tmp_path / f"{source.stem}.zip", verbose=0)
        for path in (there, back):
            assert_same(tensors_of(path), tensors_of(source))
        written = read_json(there / "tokenizer_config.json")
        kind = "RoFormerTokenizer" if source is WORD else "BertTokenizer"
        assert written["tokenizer_class"] == kind


def test_a_folder_is_what_transformers_writes(tmp_path):
    """Names, shapes and fields; positions included, to the bit."""
    there = convert(
        FOLDER / "encoder", tmp_path / "there", format="huggingface", verbose=0
    )
    written, expected = (
        load_file(folder / "model.safetensors")
        for folder in (there, FOLDER / "encoder")
    )
    positions = "encoder.embed_positions.weight"
    assert_same({**written, positions: written[positions][:32]}, expected)
    assert written[positions].shape == (1536, 4)
    fields, theirs = (
        read_json(folder / "config.json") for folder in (there, FOLDER / "encoder")
    )
    theirs["max_position_embeddings"] = 1536
    assert {name: theirs[name] for name in fields} == fields


def test_positions_are_sines_and_cosines():
    table = position_table(50, 8)
    for position, pair in ((0, 0), (7, 1), (49, 3)):
        angle = position / 10000 ** (2 * pair / 8)
        assert table[position, pair] == np.float32(math.sin(angle))
        assert table[position, 4 + pair] == np.float32(math.cos(angle))


REFUSED = [
    (V2, {}, "has model_type='roformer_v2', .* keep RoFormerV2, which Transformers la"),
    (NSP, {}, "has with_nsp=True"),
    (CHARACTER, {"rotary_base": 20000.0}, "has rotary_base=20000.0"),
    (CHARACTER, {"attention_type": "linear"}, "has attention_type='linear'"),
    (CHARACTER, {"rotary": False}, "has rotary=False"),
    (CHARACTER, {"residual_attention_scores": True}, "has residual_attention"),
    (CHARACTER, {"custom_position_ids": True}, "has custom_position_ids=True"),
    (CHARACTER, {"activation": "elu"}, "has activation='elu'"),
    (GPT, {"attention": "unilm"}, "has attention='unilm'"),
    (CHARACTER, {"layer_norm_epsilon": 1e-7}, "has head_norm_epsilon=1e-12 next"),
]


def test_what_transformers_cannot_compute_is_refused(tmp_path):
    for source, changes, message in REFUSED:
        with pytest.raises(ConfigurationError, match=message):
            convert(source, tmp_path / "x", format="huggingface", verbose=0, **changes)
        assert listing(tmp_path) == []


def test_a_head_that_transformers_has_otherwise_is_refused(tmp_path):
    for number, (kind, options, message) in enumerate(
        [
            (
                RoFormerTextClassifier,
                {"num_classes": 2},
                "has head_activation=None, but .* or train it with head_act.*'gelu'",
            ),
            (RoFormerBackbone, {"attention": "unilm"}, "has attention='unilm', which"),
            (RoFormerMultipleChoice, {"pooling": "mean"}, "has pooling='mean', which"),
            (RoFormerMultipleChoice, {"head_activation": "elu"}, "n='elu', which"),
            (
                RoFormerTokenClassifier,
                {"labels": ["A"], "crf": True},
                "has a conditional random field",
            ),
        ]
    ):
        preset = tmp_path / str(number)
        kind.from_preset(CHARACTER, num_layers=1, **options).save_to_preset(preset)
        with pytest.raises(ConfigurationError, match=message):
            convert(preset, tmp_path / "x", format="huggingface", verbose=0)


def test_only_a_folder_of_this_format_is_replaced(tmp_path):
    there = convert(CHARACTER, tmp_path / "x", format="huggingface", verbose=0)
    arguments = {"format": "huggingface", "verbose": 0, "overwrite": True}
    convert(GPT, there, **arguments)
    (there / "thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"no part of a huggingface \(thesis\.txt\)"):
        convert(GPT, there, **arguments)
