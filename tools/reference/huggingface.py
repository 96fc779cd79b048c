"""tests/data/huggingface/: small RoFormers of the real Transformers, with outputs.

Needs transformers and torch. Each folder is a model with random weights, drawn so that
every term of the computation shows, in one of the layouts that Hugging Face has had:

    encoder         RoFormerModel, embedding_size 12 and hidden_size 16
    masked-lm       RoFormerForMaskedLM in shards, with relu and an epsilon of 1e-3
    masked-lm-bin   RoFormerForMaskedLM as pytorch_model.bin, a zip
    causal-lm       RoFormerForCausalLM as pytorch_model.bin of the older format, with
                    embedding_size 12, three heads and odd sizes
    tagger          RoFormerForTokenClassification with BIO tags, not in our order
    answerer        RoFormerForQuestionAnswering
    classifier      RoFormerForSequenceClassification, whose head no class here has
    chooser         RoFormerForMultipleChoice, which scores the vector at [CLS]

outputs.npz has the inputs `token_ids`, `attention_mask`, `segment_ids` of a padded
batch of odd length with zeros in its middle, and what each model returns:
`NAME/sequence` for the encoder, `NAME/logits`, or `NAME/starts` and `NAME/ends`. For
the chooser the rows of the batch are the choices of one question.
"""

import shutil

import numpy as np

from tools import ROOT
from tools.reference.bert4keras import save_golden

VOCABULARY = ROOT / "tests" / "data" / "tokenizer" / "character_vocab.txt"
TAGS = ["B-LOC", "I-LOC", "O", "B-PER", "I-PER"]
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
MODELS = {
    "encoder": ("RoFormerModel", {"embedding_size": 12}),
    "masked-lm": (
        "RoFormerForMaskedLM",
        {"hidden_act": "relu", "layer_norm_eps": 1e-3},
    ),
    "masked-lm-bin": ("RoFormerForMaskedLM", {}),
    "causal-lm": (
        "RoFormerForCausalLM",
        {
            "embedding_size": 12,
            "hidden_size": 18,
            "num_attention_heads": 3,
            "intermediate_size": 25,
            "is_decoder": True,
        },
    ),
    "tagger": (
        "RoFormerForTokenClassification",
        {
            "id2label": dict(enumerate(TAGS)),
            "label2id": {tag: number for number, tag in enumerate(TAGS)},
        },
    ),
    "answerer": ("RoFormerForQuestionAnswering", {}),
    "classifier": ("RoFormerForSequenceClassification", {"num_labels": 3}),
    "chooser": (
        "RoFormerForMultipleChoice",
        {"summary_type": "first", "summary_use_proj": False},
    ),
}


def write(output):
    import torch
    import transformers

    folder = output / "data" / "huggingface"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tokens = VOCABULARY.read_text(encoding="utf-8").splitlines()
    inputs = draw_inputs(len(tokens))
    arrays = dict(inputs)
    for number, (name, (architecture, fields)) in enumerate(MODELS.items()):
        config = transformers.RoFormerConfig(
            **{"vocab_size": len(tokens), **SMALL, **fields}
        )
        model = getattr(transformers, architecture)(config).eval()
        draw_weights(model, torch.Generator().manual_seed(number))
        names = ("token_ids", "attention_mask", "segment_ids")
        rows = [torch.tensor(inputs[own], dtype=torch.long) for own in names]
        if name == "chooser":
            rows = [one[None] for one in rows]
        with torch.no_grad():
            outputs = model(*rows, return_dict=False)
        roles = {"encoder": ["sequence"], "answerer": ["starts", "ends"]}
        for role, value in zip(roles.get(name, ["logits"]), outputs, strict=False):
            arrays[f"{name}/{role}"] = value.numpy()
        save(model, name, folder / name)
    save_golden(
        folder / "outputs.npz",
        {"versions": {m.__name__: m.__version__ for m in (torch, transformers)}},
        arrays,
    )


def draw_inputs(size):
    """A padded batch, of which position 0 is always visible."""
    rng = np.random.default_rng(0)
    token_ids = rng.integers(1, size, (3, 13), dtype="int32")
    token_ids[1, 7:] = 0
    token_ids[2, [0, 5]] = 0
    visible = (token_ids != 0).astype("int32")
    visible[:, 0] = 1
    segment_ids = np.zeros_like(token_ids)
    segment_ids[:, 4:] = 1
    return {
        "token_ids": token_ids,
        "attention_mask": visible,
        "segment_ids": segment_ids,
    }


def draw_weights(model, generator):
    """Kernels keep the variance of their inputs; no bias is 0, and no scale is 1."""
    import torch

    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            continue
        values = torch.randn(weight.shape, generator=generator)
        if name.endswith("LayerNorm.weight"):
            values = 1 + 0.1 * values
        elif weight.dim() == 1:
            values = 0.05 * values
        elif "_embeddings" in name:
            values = 0.02 * values
        else:
            values = values / weight.shape[1] ** 0.5
        with torch.no_grad():
            weight.copy_(values)


def save(model, name, folder):
    """Writes a folder with the vocabulary, in the layout of this name."""
    import torch

    model.save_pretrained(
        folder, max_shard_size="12KB" if name == "masked-lm" else "1GB"
    )
    if name in ("masked-lm-bin", "causal-lm"):
        (folder / "model.safetensors").unlink()
        torch.save(
            model.state_dict(),
            folder / "pytorch_model.bin",
            _use_new_zipfile_serialization=name == "masked-lm-bin",
        )
    (folder / "generation_config.json").unlink(missing_ok=True)
    shutil.copy(VOCABULARY, folder / "vocab.txt")
