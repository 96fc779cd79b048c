"""Adapters of Hugging Face's PEFT, in both directions.

Adapters that are refused are in `unit/test_peft.py`.
"""

import shutil

import keras
import numpy as np
import pytest
from common import CHARACTER, GPT, SMALL
from safetensors.numpy import load_file, save_file

from roformer_keras import RoFormerBackbone, RoFormerCausalLM, RoFormerMaskedLM, convert
from roformer_keras.errors import CheckpointError, ConfigurationError, OutputError
from roformer_keras.models.lora import LORA_TARGETS

# Of Transformers, about what PEFT asks of it.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`"),
]
IDS = np.array([[3, 5, 9, 7, 11], [4, 8, 0, 0, 0]], "int32")
INPUTS = {"token_ids": IDS, "segment_ids": np.zeros_like(IDS)}


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
    ("cls", "theirs", "targets"),
    [
        (RoFormerBackbone, "RoFormerModel", ["query", "value"]),
        (RoFormerMaskedLM, "RoFormerForMaskedLM", list(LORA_TARGETS)),
    ],
)
def test_peft_computes_the_same_with_ours(cls, theirs, targets, tmp_path):
    peft = pytest.importorskip("peft")
    import transformers

    model = cls.from_preset(CHARACTER)
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
    assert len(adapted.targeted_module_names) == 2 * len(targets)


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
