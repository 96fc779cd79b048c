"""Outputs of a running Transformers."""

from pathlib import Path
from typing import Any

from roformer_keras.base.errors import ConfigurationError, ReferenceUnavailable
from roformer_keras.conversion.convert import prepare, save
from roformer_keras.conversion.huggingface_config import MAX_POSITIONS, write_config
from roformer_keras.conversion.huggingface_heads import (
    label_names,
    read_tags,
    write_task,
)
from roformer_keras.io.blob import Blob
from roformer_keras.io.json_file import read_json
from roformer_keras.io.sources import open_source
from roformer_keras.verification.answers import LiveAnswers, find_cases

# Case -> class of Transformers, and the compared outputs, in its order.
_ARCHITECTURES = {
    "encoder": ("RoFormerModel", ["sequence"]),
    "mlm": ("RoFormerForMaskedLM", ["mlm"]),
    "lm": ("RoFormerForCausalLM", ["mlm"]),
    "tags": ("RoFormerForTokenClassification", ["tags"]),
    "answers": ("RoFormerForQuestionAnswering", ["starts", "ends"]),
    "classes": ("RoFormerForSequenceClassification", ["classes"]),
}
# Tasks whose head computes the same in Transformers, and their cases.
_TASKS = {
    "RoFormerTokenClassifier": "tags",
    "RoFormerQuestionAnswerer": "answers",
    "RoFormerTextClassifier": "classes",
    "RoFormerTextRegressor": "classes",
}


def _head_case(checkpoint):
    """The case of a task's head, or None if Transformers has no such head."""
    try:
        write_task(checkpoint)
    except ConfigurationError:
        return None
    return _TASKS.get(checkpoint.model)


class TransformersAnswers(LiveAnswers):
    """Outputs of a running Transformers: encoder, language models and heads."""

    def _cases_of(self, checkpoint):
        self._config = checkpoint.config
        cases = find_cases(checkpoint)
        cases = {name: cases[name] for name in _ARCHITECTURES if name in cases}
        if head := _head_case(checkpoint):
            cases[head] = {**cases["encoder"], "task": checkpoint.model}
        return cases

    def _export(self, path, checkpoint, lengths):
        self._folder, limit = self._scratch / "model", MAX_POSITIONS
        is_whole = not checkpoint.is_task or _head_case(checkpoint)
        ready = prepare(checkpoint, None if is_whole else "RoFormerBackbone")
        if checkpoint.format == "huggingface" and Path(path).is_dir():
            # Transformers loads its own files unchanged, unless they lack weights, such
            # as the norms of RoFormerV2, which it would invent.
            write_config(ready)
            with open_source(path) as files:
                self._folder = files.parts["config"].path.parent
                fields = read_json(files.parts["config"])
                limit = fields.get("max_position_embeddings", limit)
        else:
            save(ready, self._folder, "huggingface")
        # Longer rows exceed its table of positions.
        return sorted({min(length, limit) for length in lengths})

    def _job(self, kwargs):
        case = next(
            name
            for name, keywords in self.metadata["cases"].items()
            if keywords == kwargs
        )
        architecture, roles = _ARCHITECTURES[case]
        job = {
            "folder": str(self._folder.resolve()),
            "architecture": architecture,
            "roles": roles,
            "fields": {"is_decoder": case == "lm"},
        }
        if case in _TASKS.values():
            job["fields"] = {"is_decoder": self._config.attention == "causal"}
        if case == "tags":
            config = read_json(Blob.of_file(self._folder / "config.json"))
            # Transformers writes no names for two unnamed labels.
            names = label_names(config, len(config.get("id2label") or (0, 1)))
            assert names is not None
            job["order"] = read_tags(names)[1]
        return job

    def ask(self, reference: Any) -> None:
        self._reference = reference
        self.name = f"transformers {reference.version}"
        cases = self.metadata["cases"]
        is_task = any(case in _TASKS.values() for case in cases)
        is_causal = "lm" in cases or (is_task and self._config.attention == "causal")
        if is_causal and not reference.is_causal:
            raise ReferenceUnavailable(
                f"the causal RoFormer of {self.name} sees future tokens, so there is "
                "nothing to compare a language model with",
                hint="install another version of transformers, or leave the case 'lm' "
                "out by cases=",
            )
        # Rounding errors are larger in a base model.
        is_small = self._config.hidden_dim < 768
        self.metadata |= {
            "name": self.name,
            "layer_norm_epsilon": self._config.layer_norm_epsilon,
            "versions": reference.versions,
            "bar": 1e-5 if is_small else 1e-4,
        }
