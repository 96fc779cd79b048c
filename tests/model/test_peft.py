"""Adapters of Hugging Face's PEFT, in both directions.

Adapters that are refused are in `unit/test_peft.py`.
"""

import shutil

import keras
import numpy as np
import pytest
from common import CHARACTER, EMBEDDING_SIZE, GPT, SMALL
from safetensors.numpy import load_file, save_file

from roformer_keras import (
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerTextClassifier,
    convert,
    load_model,
)
from roformer_keras.errors import CheckpointError, ConfigurationError, OutputError
from roformer_keras.models.lora import LORA_TARGETS
from tools.reference.huggingface import SMALL as SIZES
from tools.reference.huggingface import VOCABULARY, draw_weights

# Of Transformers, about what PEFT asks of it.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`"),
]
IDS = np.array([[3, 5, 9, 7, 11], [4, 8, 0, 0, 0]], "int32")
INPUTS = {"token_ids": IDS, "segment_ids": np.zeros_like(IDS)}
SEGMENTS = np.array([[0, 0, 1, 1, 1], [0, 1, 0, 0, 0]], "int32")


def with_additions(model, targets, alpha=3.0):
    """A model with LoRA whose additions are not zero, and another head."""
    model.enable_lora(2, alpha, targets)
    generator = np.random.default_rng(0)
    for variable in model.trainable_variables:
        size = 0.3 if variable.name.startswith("lora_kernel_") else 0.05
        noise = size * generator.normal(size=variable.shape)
        variable.assign(variable + noise)
    return model


def outputs_of(model):
    return keras.ops.convert_to_numpy(model(INPUTS))


def theirs_of(model):
    import torch

    ids = torch.tensor(IDS, dtype=torch.long)
    with torch.no_grad():
        outputs = model(ids, attention_mask=(ids != 0).long())
    return outputs[0].numpy()


@pytest.fixture(scope="module")
def saved_adapter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "adapter"
    with_additions(RoFormerBackbone.from_preset(CHARACTER), ["query"]).save_lora(folder)
    return folder


@pytest.fixture
def adapter(tmp_path, saved_adapter):
    """A copy, which a test may change."""
    return shutil.copytree(saved_adapter, tmp_path / "adapter")


@pytest.mark.parametrize(
    ("cls", "theirs", "source", "targets"),
    [
        (RoFormerBackbone, "RoFormerModel", CHARACTER, ["query", "value"]),
        (RoFormerMaskedLM, "RoFormerForMaskedLM", CHARACTER, list(LORA_TARGETS)),
        (
            RoFormerMaskedLM,
            "RoFormerForMaskedLM",
            EMBEDDING_SIZE,
            ["embedding_mapping", "feed_forward_output"],
        ),
    ],
)
def test_peft_computes_the_same_with_ours(cls, theirs, source, targets, tmp_path):
    peft = pytest.importorskip("peft")
    import transformers

    model = cls.from_preset(source)
    before = outputs_of(model)
    model.save_to_preset(tmp_path / "preset")
    convert(tmp_path / "preset", tmp_path / "base", format="huggingface")
    with_additions(model, targets).save_lora(tmp_path / "adapter", base="base")
    base = getattr(transformers, theirs).from_pretrained(tmp_path / "base").eval()
    np.testing.assert_allclose(theirs_of(base)[0], before[0], atol=1e-5)
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    adapted_outputs = outputs_of(model)
    assert np.abs(adapted_outputs - before).max() > 0.01
    np.testing.assert_allclose(theirs_of(adapted)[0], adapted_outputs[0], atol=2e-5)
    # Two blocks, and one mapping.
    count = 2 * len(targets) - ("embedding_mapping" in targets)
    assert len(adapted.targeted_module_names) == count
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(outputs_of(again), adapted_outputs, atol=1e-5)
    for ours, loaded in zip(
        model.trainable_weights, again.trainable_weights, strict=True
    ):
        np.testing.assert_array_equal(ours, loaded)


@pytest.mark.parametrize(("safe", "rslora"), [(False, True), (True, False)])
def test_an_adapter_of_peft_is_loaded(safe, rslora, tmp_path):
    peft = pytest.importorskip("peft")
    import torch
    import transformers

    convert(GPT, tmp_path / "base", format="huggingface", model="RoFormerCausalLM")
    base = transformers.RoFormerForCausalLM.from_pretrained(tmp_path / "base")
    config = peft.LoraConfig(
        r=3,
        lora_alpha=5,
        use_rslora=rslora,
        target_modules=["key", "intermediate.dense"],
        layers_to_transform=[1],
    )
    adapted = peft.get_peft_model(base, config).eval()
    for name, value in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(value, std=0.2)
    adapted.save_pretrained(tmp_path / "adapter", safe_serialization=True)
    if not safe:
        # Earlier versions of PEFT wrote this.
        path = tmp_path / "adapter" / "adapter_model.safetensors"
        tensors = {n: torch.tensor(v) for n, v in load_file(path).items()}
        torch.save(tensors, path.with_suffix(".bin"))
        path.unlink()
    model = RoFormerCausalLM.from_preset(GPT)
    before = outputs_of(model)
    model.load_lora(tmp_path / "adapter")
    adapted_outputs = outputs_of(model)
    assert np.abs(adapted_outputs - before).max() > 0.01
    np.testing.assert_allclose(
        theirs_of(adapted)[0], adapted_outputs[0], rtol=1e-4, atol=1e-4
    )
    model.merge_lora()
    np.testing.assert_allclose(outputs_of(model), adapted_outputs, rtol=1e-4, atol=1e-4)


# Name -> class of Transformers after `RoFormerFor`, its fields, options of PEFT, and
# the labels that `load_lora` needs.
NAMED = {"id2label": {0: "B-A", 1: "O", 2: "I-A"}}
CLASSES = {"id2label": {0: "坏", 1: "好", 2: "中"}}
HEADS = {
    "dense of a language model": ("MaskedLM", {}, {"target_modules": ["dense"]}, None),
    "all of a language model": (
        "MaskedLM",
        {},
        {"target_modules": "all-linear"},
        None,
    ),
    "mapping of embeddings": (
        "MaskedLM",
        {"embedding_size": 12},
        {"target_modules": ["embeddings_project", "query"]},
        None,
    ),
    "all of a classifier": (
        "SequenceClassification",
        {"num_labels": 2, "embedding_size": 12},
        {"target_modules": "all-linear"},
        None,
    ),
    "tied output": (
        "MaskedLM",
        {},
        {"target_modules": ["query"], "modules_to_save": ["cls"]},
        None,
    ),
    "classes": (
        "SequenceClassification",
        CLASSES,
        {"task_type": "SEQ_CLS", "target_modules": ["query", "dense"]},
        ["坏", "好", "中"],
    ),
    "additions to classes": (
        "SequenceClassification",
        CLASSES,
        {"target_modules": ["query", "dense", "out_proj"]},
        ["坏", "好", "中"],
    ),
    "tags": (
        "TokenClassification",
        NAMED,
        {"task_type": "TOKEN_CLS", "target_modules": ["value"]},
        ["B-A", "O", "I-A"],
    ),
    "answers": (
        "QuestionAnswering",
        {},
        {"task_type": "QUESTION_ANS", "target_modules": ["value"]},
        None,
    ),
    "a part": (
        "SequenceClassification",
        {"num_labels": 2},
        {"target_modules": ["key"], "modules_to_save": ["out_proj"]},
        None,
    ),
}


def trained_adapter(name, folder, is_tied=True):
    """An adapter of PEFT and its base in a folder, and what they compute."""
    peft = pytest.importorskip("peft")
    import torch
    import transformers

    kind, fields, options, _ = HEADS[name]
    tokens = VOCABULARY.read_text(encoding="utf-8").split("\n")[:-1]
    config = transformers.RoFormerConfig(vocab_size=len(tokens), **SIZES, **fields)
    base = getattr(transformers, f"RoFormerFor{kind}")(config).eval()
    draw_weights(base, torch.Generator().manual_seed(0))
    base.save_pretrained(folder / "base")
    shutil.copy(VOCABULARY, folder / "base" / "vocab.txt")
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=3, lora_alpha=5, **options))
    if is_tied and "cls" in options.get("modules_to_save", ()):
        adapted.get_output_embeddings().weight.requires_grad_(False)
    for value in adapted.parameters():
        if value.requires_grad:
            value.data += 0.2 * torch.randn(value.shape)
    adapted.eval().save_pretrained(folder / "adapter")
    ids = torch.tensor(IDS, dtype=torch.long)
    with torch.no_grad():
        # PEFT's own class for answers drops the token types.
        found = adapted.base_model(
            input_ids=ids,
            attention_mask=(ids != 0).long(),
            token_type_ids=torch.tensor(SEGMENTS, dtype=torch.long),
        )
    roles = ("logits", "start_logits", "end_logits")
    expected = np.stack([found[role].numpy() for role in roles if role in found], -1)
    return expected[..., 0] if "logits" in found else expected


@pytest.mark.parametrize("name", HEADS)
def test_heads_of_adapters_of_peft_are_loaded(name, tmp_path):
    expected = trained_adapter(name, tmp_path)
    kind, _, _, labels = HEADS[name]
    model = load_model(tmp_path / "base")
    if labels:
        with pytest.raises(ConfigurationError, match=r"in which order.*labels="):
            model.load_lora(tmp_path / "adapter")
        with pytest.raises(ConfigurationError, match="labels must be those of this"):
            model.load_lora(tmp_path / "adapter", labels=labels[1:])
    model.load_lora(tmp_path / "adapter", labels=labels)
    if hasattr(model, "tags"):
        expected = expected[..., [labels.index(tag) for tag in model.tags]]
    outputs = model
    if kind == "QuestionAnswering":
        outputs = keras.Model(model.input, model.get_layer("ends").output)
    inputs = {"token_ids": IDS, "segment_ids": SEGMENTS}
    computed = keras.ops.convert_to_numpy(outputs(inputs))
    # Language models give logits of each token.
    np.testing.assert_allclose(computed, expected, atol=1e-5)
    model.save_lora(tmp_path / "again")
    other = load_model(tmp_path / "base")
    other.load_lora(tmp_path / "again")
    for ours, theirs in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_an_output_that_peft_has_trained_apart(tmp_path):
    peft = pytest.importorskip("peft")
    import transformers

    expected = trained_adapter("tied output", tmp_path, is_tied=False)
    model = load_model(tmp_path / "base")
    message = r"decoder\.weight must equal the word embeddings.*tie_word_embeddings=Fal"
    with pytest.raises(CheckpointError, match=message):
        model.load_lora(tmp_path / "adapter")
    model = RoFormerMaskedLM.from_preset(tmp_path / "base", tie_word_embeddings=False)
    model.load_lora(tmp_path / "adapter")
    inputs = {"token_ids": IDS, "segment_ids": SEGMENTS}
    np.testing.assert_allclose(model(inputs), expected, atol=1e-5)
    # And back: as an adapter of a base that is tied or not, and merged.
    model.save_lora(tmp_path / "again")
    options = {"tie_word_embeddings": False, "format": "huggingface", "verbose": 0}
    convert(tmp_path / "base", tmp_path / "untied", **options)
    auto = transformers.AutoModelForMaskedLM
    for base in ("base", "untied"):
        adapted = auto.from_pretrained(tmp_path / base)
        adapted = peft.PeftModel.from_pretrained(adapted, tmp_path / "again").eval()
        np.testing.assert_allclose(theirs_of(adapted), outputs_of(model), atol=1e-5)
    model.merge_lora()
    model.save_to_preset(tmp_path / "preset")
    convert(tmp_path / "preset", tmp_path / "merged", format="huggingface", verbose=0)
    merged = auto.from_pretrained(tmp_path / "merged").eval()
    np.testing.assert_allclose(theirs_of(merged), outputs_of(model), atol=1e-5)


def test_peft_loads_the_head_of_a_classifier(tmp_path):
    peft = pytest.importorskip("peft")
    import transformers

    model = RoFormerTextClassifier.from_preset(
        CHARACTER, num_classes=3, head_activation="gelu"
    )
    model.save_to_preset(tmp_path / "preset")
    convert(tmp_path / "preset", tmp_path / "base", format="huggingface")
    with_additions(model, ["query"]).save_lora(tmp_path / "adapter", base="base")
    auto = transformers.AutoModelForSequenceClassification
    base = auto.from_pretrained(tmp_path / "base").eval()
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    np.testing.assert_allclose(theirs_of(adapted), outputs_of(model), atol=1e-5)


def test_there_and_back_keeps_every_bit(adapter, tmp_path):
    model = RoFormerMaskedLM.from_preset(CHARACTER)
    # A and B of two blocks, and the head.
    count = model.load_lora(adapter)
    head = [w for w in model.trainable_weights if "lora" not in w.name]
    assert count == 2 * 2 * (32 * 2) + sum(np.prod(w.shape) for w in head)
    model.save_lora(tmp_path / "again")
    before, after = (
        load_file(folder / "adapter_model.safetensors")
        for folder in (adapter, tmp_path / "again")
    )
    # The head, which the adapter of a backbone has not.
    after = {name: value for name, value in after.items() if ".lora_" in name}
    # A model with a head has the encoder below `roformer`.
    assert [name.replace("model.roformer.", "model.") for name in after] == list(before)
    for ours, expected in zip(after.values(), before.values(), strict=True):
        np.testing.assert_array_equal(ours, expected)
    with pytest.raises(OutputError, match="exists"):
        model.save_lora(tmp_path / "again")
    model.save_lora(tmp_path / "again", overwrite=True)


def test_what_has_no_adapter_is_refused(adapter, tmp_path):
    model = RoFormerBackbone.from_preset(CHARACTER)
    with pytest.raises(
        ConfigurationError, match=r"no LoRA to save: model\.enable_lora"
    ):
        model.save_lora(tmp_path / "x")
    model.enable_lora(2)
    with pytest.raises(ConfigurationError, match="LoRA is enabled already"):
        model.load_lora(adapter)
    other = RoFormerBackbone.from_preset(SMALL)
    with pytest.raises(CheckpointError, match=r"has factors for .* inputs and"):
        other.load_lora(adapter)
    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    renamed = {name.replace("layer.", "layer.7"): tensors[name] for name in tensors}
    save_file(renamed, path)
    message = (
        r"encoder\.layer\.7.\.attention\.self\.query must be a dense layer of this"
    )
    with pytest.raises(CheckpointError, match=message):
        other.load_lora(adapter)
    # It is as it was.
    assert other.count_params() == sum(
        np.prod(w.shape) for w in other.trainable_weights
    )
