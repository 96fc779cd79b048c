"""Outputs of a reference, computed by its process or saved in a file."""

import hashlib
import json
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roformer_keras.base.errors import (
    CheckpointError,
    ConfigurationError,
    Hint,
    SourceError,
)
from roformer_keras.conversion.checkpoint import Checkpoint
from roformer_keras.conversion.convert import prepare
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.io.sources import open_source
from roformer_keras.io.tensor_bundle import write_tensor_bundle
from roformer_keras.verification.reference import Reference
from roformer_keras.verification.report import Comparison

# Largest differences that pass, up to a length and beyond it. Rounding errors grow with
# the position: two float32 tables of angles differ by 1.2e-4 at 1536.
_BAR, _BAR_LENGTH, _LONG_BAR = 1e-4, 512, 5e-4

# Numbers per output in a reference file; larger outputs are sampled evenly.
_SAVED_SIZE = 500_000


def batch_size(length):
    """Rows per batch: few long rows, whose logits are large."""
    return max(2, 4096 // length)


@dataclass(frozen=True)
class Output:
    """An output of bert4keras, or evenly spaced samples along its last two axes."""

    values: np.ndarray
    top: np.ndarray | None = None
    places: tuple[np.ndarray, ...] = ()

    def compare(self, case, role, length, ours, bar=None) -> Comparison:
        """The comparison with our output; `bar` is relative to outputs above 1."""
        same_top = None
        if self.top is not None:
            same_top = float(np.mean(ours.argmax(-1) == self.top))
        difference = np.abs(_sample(ours, self.places) - self.values)
        if length > _BAR_LENGTH:
            bar = _LONG_BAR
        elif bar is not None:
            bar *= max(1.0, float(np.abs(self.values).max()))
        return Comparison(
            case=case,
            output=role,
            length=length,
            largest=float(difference.max()),
            mean=float(difference.mean()),
            same_top=same_top,
            bar=_BAR if bar is None else bar,
        )

    def to_arrays(self, key) -> dict[str, np.ndarray]:
        """Arrays of a reference file: at most about `_SAVED_SIZE` numbers."""
        values = self.values
        indices: tuple[np.ndarray, ...] = ()
        if values.size > _SAVED_SIZE:
            share = (_SAVED_SIZE / values.size) ** 0.5
            indices = tuple(
                np.unique(np.linspace(0, n - 1, max(2, int(n * share))).astype("int32"))
                for n in values.shape[1:]
            )
        arrays = {f"{key}/values": _sample(values, indices)}
        if self.top is not None:
            arrays[f"{key}/top"] = self.top.astype("int32")
        return arrays | {f"{key}/places{i}": at for i, at in enumerate(indices)}

    @classmethod
    def from_arrays(cls, arrays, key) -> "Output":
        names = (f"{key}/places{axis}" for axis in (0, 1))
        indices = tuple(arrays[name] for name in names if name in arrays)
        return cls(arrays[f"{key}/values"], arrays.get(f"{key}/top"), indices)


def _sample(array, places):
    if not places:
        return array
    rows, columns = places
    return array[:, rows[:, None], columns]


class LiveAnswers:
    """Outputs of a running bert4keras, computed case by case."""

    def __init__(self, path, config, lengths, names, scratch):
        self._scratch, self._arrays = scratch, {}
        with open_checkpoint(path, config) as checkpoint:
            cases = self._cases_of(checkpoint)
            cases = _chosen(cases, names)
            lengths = self._export(path, checkpoint, lengths)
            self.metadata = {
                "fingerprint": _fingerprint(checkpoint),
                "cases": cases,
                "lengths": list(lengths),
            }
            size = min(
                len(kwargs.get("keep_tokens", ())) or checkpoint.config.vocabulary_size
                for kwargs in cases.values()
            )
            segments = checkpoint.config.num_segments
        self._inputs = {n: _inputs(n, size, segments) for n in lengths}
        for length, inputs in self._inputs.items():
            np.savez(scratch / f"inputs-{length}.npz", **inputs)

    def _cases_of(self, checkpoint):
        # The check comes before bert4keras is started.
        checkpoint.config.to_bert_config()
        return find_cases(checkpoint)

    def _export(self, path, checkpoint, lengths):
        """Writes files for the reference; returns the lengths that it supports."""
        self._checkpoint = _export(path, checkpoint, self._scratch)
        return lengths

    def _job(self, kwargs):
        """The model that the reference process builds for a case."""
        return {
            "bert_config": str(self._scratch / "bert_config.json"),
            "checkpoint": str(self._checkpoint),
            "kwargs": kwargs,
        }

    def ask(self, reference: Reference) -> None:
        self._reference = reference
        self.name = f"bert4keras {reference.version}"
        self.metadata |= {
            "name": self.name,
            "layer_norm_epsilon": reference.layer_norm_epsilon,
            "versions": reference.versions,
        }

    def cases(self):
        """Yields for each case its batches: length, inputs and outputs."""
        jobs = []
        for case, kwargs in self.metadata["cases"].items():
            batches = [
                {
                    "inputs": str(self._scratch / f"inputs-{length}.npz"),
                    "outputs": str(self._scratch / f"{case}-{length}.npz"),
                }
                for length in self._inputs
            ]
            jobs.append(
                {
                    "op": "predict",
                    **self._job(kwargs),
                    "batches": batches,
                    "batch_size": batch_size(max(self._inputs)),
                }
            )
        names = self.metadata["cases"]
        for case, _ in zip(names, self._reference.run(jobs), strict=True):
            yield self._batches(case)

    def _batches(self, case):
        for length, inputs in self._inputs.items():
            path = self._scratch / f"{case}-{length}.npz"
            outputs = {}
            with np.load(path) as arrays:
                for role in arrays.files:
                    has_top = role in ("mlm", "tags")
                    top = arrays[role].argmax(-1) if has_top else None
                    outputs[role] = Output(arrays[role], top)
            path.unlink()
            for role, output in outputs.items():
                self._arrays |= output.to_arrays(f"outputs/{case}/{length}/{role}")
            yield length, inputs, outputs

    def save(self, target):
        """Writes the outputs of all cases to a reference file."""
        for length, inputs in self._inputs.items():
            self._arrays |= {f"inputs/{length}/{name}": v for name, v in inputs.items()}
        self._arrays["metadata"] = np.array(json.dumps(self.metadata))
        with open(target, "wb") as file:
            np.savez_compressed(file, **self._arrays)


class SavedAnswers:
    """Outputs from a reference file, as in `LiveAnswers`."""

    def __init__(self, path, reference, config, names=None):
        try:
            # NumPy does not close a file that it opens itself and that is no zip.
            with open(reference, "rb") as file, np.load(file) as arrays:
                self._arrays = dict(arrays)
            self.metadata = json.loads(str(self._arrays["metadata"]))
            name = self.metadata["name"]
            needed = ("cases", "lengths", "layer_norm_epsilon", "fingerprint")
            *_, fingerprint = (self.metadata[key] for key in needed)
        except FileNotFoundError as error:
            raise SourceError(f"there is no reference file {reference}") from error
        except (
            OSError,
            LookupError,
            TypeError,
            ValueError,
            EOFError,
            zipfile.BadZipFile,
            zlib.error,
        ) as error:
            raise SourceError(
                f"{reference} is not a whole reference file ({error})",
                hint=Hint("save it again with {save_reference}"),
            ) from error
        self.name = f"{name}, as saved in {os.fspath(reference)}"
        self.metadata["cases"] = _chosen(self.metadata["cases"], names)
        with open_checkpoint(path, config) as checkpoint:
            if _fingerprint(checkpoint) != fingerprint:
                raise CheckpointError(
                    f"{reference} was saved for other weights than those in {path}"
                )

    def cases(self):
        for case in self.metadata["cases"]:
            yield [self._batch(case, length) for length in self.metadata["lengths"]]

    def _batch(self, case, length):
        inputs, outputs = f"inputs/{length}/", f"outputs/{case}/{length}/"
        roles = [
            key.removeprefix(outputs).removesuffix("/values")
            for key in self._arrays
            if key.startswith(outputs) and key.endswith("/values")
        ]
        return (
            length,
            {n.removeprefix(inputs): v for n, v in self._arrays.items() if inputs in n},
            {role: Output.from_arrays(self._arrays, outputs + role) for role in roles},
        )


def _chosen(cases, names):
    """The cases of these names, or all cases if names is None."""
    if names is None:
        return cases
    unknown = sorted(set(names) - cases.keys())
    if unknown or not names:
        got = repr(unknown[0]) if unknown else "none"
        raise ConfigurationError(f"cases must be some of {', '.join(cases)}, got {got}")
    return {name: kwargs for name, kwargs in cases.items() if name in names}


def find_cases(checkpoint: Checkpoint) -> dict[str, dict]:
    """Keywords of `build_transformer_model` for all models that the source can fill."""
    config = checkpoint.config
    for option in ("layer_norm_cond_size", "custom_position_ids"):
        if getattr(config, option):
            raise ConfigurationError(
                f"{checkpoint.label} has {option}, for which there are no inputs to "
                "compare with"
            )
    base: dict[str, Any] = {"model": config.model_type}
    for option in ("residual_attention_scores", "shared_segment_embeddings"):
        if getattr(config, option):
            base[option] = True
    if config.model_type == "roformer_v2":
        # bert4keras reads the mapping to another width from no checkpoint.
        has_mlm = config.input_dim == config.hidden_dim
    else:
        has_mlm = "mlm" in checkpoint.heads
    mlm = {"with_mlm": "linear"} if has_mlm else {}
    pool = {"with_pool": "linear"} if "pooler" in checkpoint.heads else {}
    size = config.vocabulary_size
    keep = [0, *range(size - 1, 0, -2)]
    cases: dict[str, dict] = {"encoder": {}}
    if mlm:
        cases["mlm"] = mlm
        cases["lm"] = {"application": "lm", **mlm}
        cases["unilm"] = {"application": "unilm", **mlm, **pool}
    if pool:
        cases["pool-linear"] = pool
        cases["pool-tanh"] = {"with_pool": True}
    if "nsp" in checkpoint.heads:
        cases["nsp"] = {"with_nsp": True}
    cases["keep-tokens"] = {"keep_tokens": keep, **mlm}
    return {name: {**base, **kwargs} for name, kwargs in cases.items()}


def _inputs(
    length: int, vocabulary_size: int, num_segments: int
) -> dict[str, np.ndarray]:
    """Rows of unequal lengths, second segments, zeros in mid-sequence and in front."""
    random = np.random.default_rng(length)
    token_ids = random.integers(1, vocabulary_size, (3, length), dtype="int32")
    segment_ids = np.zeros_like(token_ids)
    token_ids[1, max(1, length // 2) :] = 0
    token_ids[2, length - length // 5 :] = 0
    token_ids[2, 0] = 0
    token_ids[2, length // 3 : length // 3 + length // 16] = 0
    for row, end in ((0, length), (1, max(1, length // 2))):
        segment_ids[row, end // 2 + 1 : end] = min(1, num_segments - 1)
    return {"token_ids": token_ids, "segment_ids": segment_ids}


def _export(path, checkpoint: Checkpoint, scratch: Path) -> Path:
    """Writes bert4keras's files of a checkpoint to a folder; returns their prefix."""
    prefix = scratch / "bert_model.ckpt"
    config = checkpoint.bert_config or checkpoint.config.to_bert_config()
    (scratch / "bert_config.json").write_text(json.dumps(config))
    if checkpoint.format == "bert4keras":
        with open_source(path) as files:
            for role, blob in files.parts.items():
                if role == "index" or role.startswith("data-"):
                    with open(f"{prefix}.{role}", "wb") as file:
                        file.writelines(blob.chunks())
    else:
        ready = prepare(checkpoint)
        write_tensor_bundle(
            prefix,
            (
                (name, tensor.read().astype("float32"))
                for name, tensor in ready.tensors.items()
            ),
        )
    return prefix


def _fingerprint(checkpoint: Checkpoint) -> str:
    digest = hashlib.sha256()
    for name in sorted(checkpoint.tensors):
        digest.update(name.encode())
        values = checkpoint.tensors[name].read()
        digest.update(np.ascontiguousarray(values.astype("float32")).tobytes())
    return digest.hexdigest()
