"""The model of this package that corresponds to a `build_transformer_model` call."""

import keras

from roformer_keras import tasks
from roformer_keras.models import (
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerSim,
)

_PASSED_ON = (
    "attention_key_size",
    "compound_tokens",
    "custom_position_ids",
    "keep_tokens",
    "residual_attention_scores",
    "shared_segment_embeddings",
)
_RENAMED = {
    "embedding_size": "embedding_dim",
    "layer_norm_cond": "layer_norm_cond_size",
    "layer_norm_cond_hidden_size": "layer_norm_cond_hidden_size",
    "layer_norm_cond_hidden_act": "layer_norm_cond_hidden_activation",
}
# Task layer that computes what the reference returns -> names of its outputs.
_HEADS = {
    "RoFormerTokenClassifier": "tags",
    "RoFormerQuestionAnswerer": "ends",
    "RoFormerTextClassifier": "out_proj",
    "RoFormerTextRegressor": "out_proj",
}
_ATTENTION = {"encoder": "bidirectional", "lm": "causal", "unilm": "unilm"}


def counterpart(source, kwargs, **options):
    """Loads the model that bert4keras would build for the same source."""
    if "task" in kwargs:
        return _scores(source, kwargs["task"], options)
    application = kwargs.get("application", "encoder")
    mlm = kwargs.get("with_mlm", application != "encoder")
    # RoFormerV2 has no pooler and no NSP head; bert4keras ignores these options.
    heads = {} if kwargs.get("model") == "roformer_v2" else kwargs
    pool = heads.get("with_pool") or heads.get("with_nsp")
    options |= {name: kwargs[name] for name in _PASSED_ON if name in kwargs}
    options |= {new: kwargs[name] for name, new in _RENAMED.items() if name in kwargs}
    if "compound_tokens" in options:
        options["compound_tokens"] = [
            tuple(item) if isinstance(item[0], list) else item
            for item in options["compound_tokens"]
        ]
    options["attention"] = _ATTENTION[application]
    options["pooler_activation"] = ("tanh" if pool is True else pool) or None
    options["with_nsp"] = bool(heads.get("with_nsp"))
    if not mlm:
        model = RoFormerBackbone
    else:
        options["output_activation"] = "softmax" if mlm is True else mlm
        model = {"encoder": RoFormerMaskedLM, "lm": RoFormerCausalLM}.get(
            application, RoFormerSim if pool else RoFormerCausalLM
        )
    return model.from_preset(source, **options)


def _scores(source, name, options):
    """The scores of a task at every position, even where no answer is possible."""
    task = getattr(tasks, name).from_preset(source, **options)
    head = _HEADS[name]
    return keras.Model(task.input, {head: task.get_layer(head).output})


def outputs_by_role(model, inputs, batch_size=4):
    """NumPy outputs of a model for NumPy inputs, under the reference's names."""
    names = [name for name in model.input if name in inputs]
    count = len(inputs[names[0]])
    batches = []
    for start in range(0, count, batch_size):
        batch = {name: inputs[name][start : start + batch_size] for name in names}
        outputs = model(batch, training=False)
        if not isinstance(outputs, dict):
            backbone = isinstance(model, RoFormerBackbone)
            outputs = {"sequence_output" if backbone else "logits": outputs}
        batches.append(outputs)
    merged = {
        name: keras.ops.convert_to_numpy(
            keras.ops.concatenate([batch[name] for batch in batches])
        ).astype("float32")
        for name in batches[0]
    }
    roles = {}
    if "nsp_probabilities" in merged:
        roles["nsp"] = merged["nsp_probabilities"]
    elif "pooled_output" in merged:
        roles["pooled"] = merged["pooled_output"]
    if "logits" in merged:
        roles["mlm"] = merged["logits"]
    for name, role in (("tags", "tags"), ("out_proj", "classes")):
        if name in merged:
            roles[role] = merged[name]
    if "ends" in merged:
        roles["starts"], roles["ends"] = (merged["ends"][..., at] for at in (0, 1))
    return roles or {"sequence": merged["sequence_output"]}
