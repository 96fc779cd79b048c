"""Compares a model of this package with the same model in the real bert4keras."""

import dataclasses
import gc
import hashlib
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from roformer_keras.config import ConfigSource, RoFormerConfig
from roformer_keras.conversion.checkpoint import Checkpoint
from roformer_keras.conversion.convert import prepare
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.errors import (
    CheckpointError,
    ConfigurationError,
    OutputError,
    RoFormerError,
    SourceError,
)
from roformer_keras.hub.catalog import resolve
from roformer_keras.io.atomic import replacing
from roformer_keras.io.sources import open_source
from roformer_keras.io.tensor_bundle import write_tensor_bundle
from roformer_keras.progress import progress_bar
from roformer_keras.verification.counterpart import counterpart, outputs_by_role
from roformer_keras.verification.reference import Reference

# Attention of so many tokens takes gigabytes a head.
_MAX_LENGTH = 2**14
DEFAULT_LENGTHS = (1, 2, 512, 1536)

# Largest difference that passes, up to a length and beyond it. Rounding grows with the
# position: two float32 tables of angles differ by 1.2e-4 at 1536.
_BAR, _BAR_LENGTH, _LONG_BAR = 1e-4, 512, 5e-4

# Numbers of one output in a reference file; larger outputs are sampled evenly.
_SAVED_SIZE = 500_000

# Published values of released weights.
PUBLISHED: dict[str, dict[str, Any]] = {
    "chinese_roformer_L-12_H-768_A-12": {
        "token_ids": [[0, 1, 2, 3, 4, 5]],
        "mlm": [
            [-0.1205, -1.0265, 0.2922],
            [-1.5134, 0.1974, 0.1519],
            [-5.0135, -3.9003, -0.8404],
        ],
        "tolerance": 1e-4,
        "source": "integration test of RoFormer in Hugging Face transformers",
    }
}


@dataclass(frozen=True)
class Comparison:
    """One output of one case.

    Attributes:
        case: what was built, such as `"unilm"`.
        output: `"sequence"`, `"pooled"`, `"nsp"` or `"mlm"`.
        length: int, of the padded batch.
        largest: float, largest absolute difference.
        mean: float, mean absolute difference.
        same_top: float or None. Share of positions with the same best token.
        bar: float, the upper limit of `largest`.
    """

    case: str
    output: str
    length: int
    largest: float
    mean: float
    same_top: float | None
    bar: float

    @property
    def passed(self) -> bool:
        # Written so that a NaN does not pass.
        return bool(self.largest <= self.bar)


@dataclass(frozen=True)
class Report:
    """The comparisons of `verify`; `str` makes a table of them.

    Attributes:
        source: str.
        reference: str, such as `"bert4keras 0.11.5"`.
        layer_norm_epsilon: float of both sides.
        comparisons: tuple of `Comparison`.
    """

    source: str
    reference: str
    layer_norm_epsilon: float
    comparisons: tuple[Comparison, ...]

    @property
    def passed(self) -> bool:
        return bool(self.comparisons) and all(c.passed for c in self.comparisons)

    def to_dict(self) -> dict:
        """Plain JSON types."""
        return {
            "source": self.source,
            "reference": self.reference,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "passed": self.passed,
            "comparisons": [
                {**dataclasses.asdict(c), "passed": c.passed} for c in self.comparisons
            ],
        }

    def __str__(self) -> str:
        lines = [
            f"{self.source} against {self.reference} "
            f"(layer_norm_epsilon {self.layer_norm_epsilon:g})",
            "",
            f"{'case':<14} {'output':<9} {'length':>6} {'max diff':>9} "
            f"{'mean diff':>9} {'same top':>9} {'bar':>8}",
        ]
        for c in self.comparisons:
            top = "" if c.same_top is None else f"{c.same_top:.2%}"
            lines.append(
                f"{c.case:<14} {c.output:<9} {c.length:>6} {c.largest:>9.1e} "
                f"{c.mean:>9.1e} {top:>9} {c.bar:>8.1e}"
                f"{'' if c.passed else '  FAILED'}"
            )
        failed = sum(not c.passed for c in self.comparisons)
        count = len(self.comparisons)
        lines += [
            "",
            f"passed: all {count} outputs within their bars"
            if self.passed
            else f"FAILED: {failed} of {count} outputs are beyond their bars",
        ]
        return "\n".join(lines)


def verify(
    source: str | os.PathLike,
    *,
    bert4keras: str | os.PathLike | Reference | None = None,
    python: str | None = None,
    reference: str | os.PathLike | None = None,
    save_reference: str | os.PathLike | None = None,
    published: bool = False,
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    cases: Collection[str] | None = None,
    config: ConfigSource | None = None,
    verbose: int | str = "auto",
) -> Report:
    """Compares a source in this package with the same source in the real bert4keras.

    Everything that the source has weights for is compared: encoder, masked, causal
    and UniLM language model, pooler (linear and tanh), next-sentence prediction, kept
    tokens; on padded batches of rows of unequal lengths, with UniLM segments and zeros
    in mid-sequence. bert4keras loads the files as they are; weights that it cannot
    load (a preset, safetensors, `.keras`) are exported to its own format for it.

    Args:
        source: as in `from_preset`.
        bert4keras: folder that holds bert4keras, or a running `Reference`, which is
            left running. If not given, as in `Reference`.
        python: interpreter to run it with; this one if not given.
        reference: file that `save_reference` wrote, instead of a running bert4keras.
        save_reference: path to save bert4keras's outputs to, sampled where they are
            large; overwritten.
        published: bool. Whether to compare with published values of these weights,
            instead of with bert4keras.
        lengths: of the batches.
        cases: names of the cases, such as `"mlm"`; all if not given.
        config: for sources without a configuration, see `open_checkpoint`.
        verbose: 0 for no progress bar, 1 for one, `"auto"` for one on a terminal.

    Returns:
        `Report`. A difference may be 1e-4 up to length 512 and 5e-4 beyond.

    Raises:
        ReferenceUnavailable: bert4keras cannot be run; says how to install it.
        CheckpointError: the source cannot be loaded on one of the sides.
        ConfigurationError: the source needs other inputs than ids, or has attention
            that bert4keras cannot compute.
        OutputError: `save_reference` or the temporary folder cannot be written.
    """
    path = resolve(source)
    if published:
        return _verify_published(path, config)
    if any(not 0 < length <= _MAX_LENGTH for length in lengths) or not lengths:
        raise ConfigurationError(
            f"lengths must be 1 or more, to {_MAX_LENGTH:,}, got {list(lengths)}"
        )
    if reference is not None and save_reference is not None:
        raise ConfigurationError("a saved reference cannot be saved again: copy it")
    with ExitStack() as stack:
        if save_reference is not None:
            # Before the work, so that a wrong path does not cost it.
            target = stack.enter_context(replacing(save_reference, overwrite=True))
        answers: Any
        if reference is not None:
            answers = _SavedAnswers(path, reference, config)
        else:
            scratch = stack.enter_context(_temporary_folder())
            answers = _LiveAnswers(path, config, lengths, cases, scratch)
            if bert4keras is None or isinstance(bert4keras, str | os.PathLike):
                bert4keras = stack.enter_context(Reference(bert4keras, python))
            answers.ask(bert4keras)
        comparisons = tuple(_compare(path, config, answers, verbose))
        if save_reference is not None:
            answers.save(target)
    epsilon = answers.metadata["layer_norm_epsilon"]
    return Report(str(source), answers.name, epsilon, comparisons)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    except RoFormerError:
        raise
    except OSError as error:
        raise OutputError(
            f"cannot write to the temporary folder {tempfile.gettempdir()} ({error}): "
            "free some space there, or name another in TMPDIR"
        ) from error


def _compare(path, config, answers, verbose) -> Iterator[Comparison]:
    cases = answers.metadata["cases"]
    epsilon = answers.metadata["layer_norm_epsilon"]
    with progress_bar(verbose, total=len(cases), desc="cases") as bar:
        for (case, kwargs), batches in zip(cases.items(), answers.cases(), strict=True):
            bar.set_postfix_str(case)
            model = counterpart(path, kwargs, config=config, layer_norm_epsilon=epsilon)
            for length, inputs, expected in batches:
                ours = outputs_by_role(model, inputs, _batch_size(length))
                for role, theirs in expected.items():
                    yield theirs.compare(case, role, length, ours[role])
            # Two base models at once would be 800 MB.
            del model
            gc.collect()
            bar.update()


def _batch_size(length):
    """Rows at once: few of long ones, whose logits are large."""
    return max(2, 4096 // length)


@dataclass(frozen=True)
class _Output:
    """An output of bert4keras, or evenly spaced places along its last two axes."""

    values: np.ndarray
    top: np.ndarray | None = None
    places: tuple[np.ndarray, ...] = ()

    def compare(self, case, role, length, ours) -> Comparison:
        same_top = None
        if self.top is not None:
            same_top = float(np.mean(ours.argmax(-1) == self.top))
        difference = np.abs(_sample(ours, self.places) - self.values)
        return Comparison(
            case=case,
            output=role,
            length=length,
            largest=float(difference.max()),
            mean=float(difference.mean()),
            same_top=same_top,
            bar=_BAR if length <= _BAR_LENGTH else _LONG_BAR,
        )

    def to_arrays(self, key) -> dict[str, np.ndarray]:
        """Arrays of a reference file: at most about `_SAVED_SIZE` numbers."""
        values = self.values
        places: tuple[np.ndarray, ...] = ()
        if values.size > _SAVED_SIZE:
            share = (_SAVED_SIZE / values.size) ** 0.5
            places = tuple(
                np.unique(np.linspace(0, n - 1, max(2, int(n * share))).astype("int32"))
                for n in values.shape[1:]
            )
        arrays = {f"{key}/values": _sample(values, places)}
        if self.top is not None:
            arrays[f"{key}/top"] = self.top.astype("int32")
        return arrays | {f"{key}/places{i}": at for i, at in enumerate(places)}

    @classmethod
    def from_arrays(cls, arrays, key) -> "_Output":
        names = (f"{key}/places{axis}" for axis in (0, 1))
        places = tuple(arrays[name] for name in names if name in arrays)
        return cls(arrays[f"{key}/values"], arrays.get(f"{key}/top"), places)


def _sample(array, places):
    if not places:
        return array
    rows, columns = places
    return array[:, rows[:, None], columns]


class _LiveAnswers:
    """Outputs of a running bert4keras, computed case by case.

    Attributes:
        metadata: dict of what a reference file says, such as the cases.
        name: str. How a report names the reference.
    """

    def __init__(self, path, config, lengths, names, scratch):
        self._scratch, self._arrays = scratch, {}
        with open_checkpoint(path, config) as checkpoint:
            # Says what bert4keras cannot compute, before that is started.
            checkpoint.config.to_bert_config()
            cases = _cases(checkpoint)
            if unknown := sorted(set(names or ()) - cases.keys()):
                raise ConfigurationError(
                    f"cases must be some of {', '.join(cases)}, got {unknown[0]!r}"
                )
            cases = {n: cases[n] for n in cases if names is None or n in names}
            self._checkpoint = _export(path, checkpoint, scratch)
            self.metadata = {
                "fingerprint": _fingerprint(checkpoint),
                "cases": cases,
                "lengths": list(lengths),
            }
            size = min(
                len(kwargs.get("keep_tokens", ())) or checkpoint.config.vocabulary_size
                for kwargs in cases.values()
            )
        self._inputs = {length: _inputs(length, size) for length in lengths}
        for length, inputs in self._inputs.items():
            np.savez(scratch / f"inputs-{length}.npz", **inputs)

    def ask(self, reference: Reference) -> None:
        self._reference = reference
        self.name = f"bert4keras {reference.version}"
        self.metadata |= {
            "name": self.name,
            "layer_norm_epsilon": reference.layer_norm_epsilon,
            "versions": reference.versions,
        }

    def cases(self):
        """For each case in order, its batches: length, inputs and outputs."""
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
                    "bert_config": str(self._scratch / "bert_config.json"),
                    "checkpoint": str(self._checkpoint),
                    "kwargs": kwargs,
                    "batches": batches,
                    "batch_size": _batch_size(max(self._inputs)),
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
                    top = arrays[role].argmax(-1) if role == "mlm" else None
                    outputs[role] = _Output(arrays[role], top)
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


class _SavedAnswers:
    """Outputs from a reference file, as in `_LiveAnswers`."""

    def __init__(self, path, reference, config):
        try:
            # NumPy leaves a file that it opens itself open if it is no zip.
            with open(reference, "rb") as file, np.load(file) as arrays:
                self._arrays = dict(arrays)
            self.metadata = json.loads(str(self._arrays["metadata"]))
            name = self.metadata["name"]
            names = ("cases", "lengths", "layer_norm_epsilon", "fingerprint")
            *_, fingerprint = (self.metadata[name] for name in names)
        except FileNotFoundError as error:
            raise SourceError(f"there is no reference file {reference}") from error
        except (
            *(OSError, LookupError, TypeError, ValueError, EOFError),
            *(zipfile.BadZipFile, zlib.error),
        ) as error:
            raise SourceError(
                f"{reference} is not a whole reference file ({error})",
                hint="save it again with save_reference=",
            ) from error
        self.name = f"{name}, as saved in {os.fspath(reference)}"
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
            {role: _Output.from_arrays(self._arrays, outputs + role) for role in roles},
        )


def _cases(checkpoint: Checkpoint) -> dict[str, dict]:
    """`build_transformer_model` keywords of everything the source has weights for."""
    config = cast(RoFormerConfig, checkpoint.config)
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


def _inputs(length: int, vocabulary_size: int) -> dict[str, np.ndarray]:
    """Rows of unequal lengths, second segments, zeros in mid-sequence and in front."""
    random = np.random.default_rng(length)
    token_ids = random.integers(1, vocabulary_size, (3, length), dtype="int32")
    segment_ids = np.zeros_like(token_ids)
    token_ids[1, max(1, length // 2) :] = 0
    token_ids[2, length - length // 5 :] = 0
    token_ids[2, 0] = 0
    token_ids[2, length // 3 : length // 3 + length // 16] = 0
    for row, end in ((0, length), (1, max(1, length // 2))):
        segment_ids[row, end // 2 + 1 : end] = 1
    return {"token_ids": token_ids, "segment_ids": segment_ids}


def _export(path, checkpoint: Checkpoint, scratch: Path) -> Path:
    """bert4keras's own files of a checkpoint, in a folder; returns their prefix."""
    prefix = scratch / "bert_model.ckpt"
    encoder = cast(RoFormerConfig, checkpoint.config)
    config = checkpoint.bert_config or encoder.to_bert_config()
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


def _verify_published(path, config) -> Report:
    known = PUBLISHED.get(Path(path).stem)
    if known is None:
        raise ConfigurationError(
            f"nothing is published of {Path(path).stem!r}; of these there is: "
            f"{', '.join(PUBLISHED)}"
        )
    model = counterpart(path, {"with_mlm": "linear"}, config=config)
    token_ids = np.array(known["token_ids"], "int32")
    inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
    expected = np.array(known["mlm"], "float32")
    places = tuple(map(np.arange, expected.shape))
    logits = outputs_by_role(model, inputs)["mlm"][:1]
    length = token_ids.shape[1]
    comparison = dataclasses.replace(
        _Output(expected[None], None, places).compare(
            "published", "mlm", length, logits
        ),
        bar=known["tolerance"],
    )
    epsilon = model.config.layer_norm_epsilon
    return Report(str(path), known["source"], epsilon, (comparison,))
