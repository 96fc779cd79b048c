"""Every comparison with the real bert4keras and Transformers, as one table.

    python -m tools.reference.matrix
    python -m tools.reference.matrix small goldens

The tests of every run take samples of it. The weekly job runs all of it, and so do
releases and changes of layers, conversion and verification. Its parts:

    small         checkpoints in tests/checkpoints, and files in the formats that users
                  save and that `convert` writes, with two versions of bert4keras
    base          RoFormer and RoFormerV2 with 12 layers, hidden size 768 and 12,000
                  tokens, with both versions and with Transformers
    transformers  folders that Transformers wrote, presets of them, and checkpoints and
                  tasks that are converted for it
    goldens       what `python -m tools.reference` writes, against what is committed

A row sums up one source: the difference that comes closest to its bar, of all cases and
lengths. The exit code is 1 if a row is beyond its bar.
"""

import dataclasses
import json
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

from roformer_keras import convert, tasks, verify
from roformer_keras.base.errors import RoFormerError
from roformer_keras.conversion.convert import save
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.conversion.weights import weight_table
from roformer_keras.verification.reference import Reference, TransformersReference
from tools import ROOT
from tools.commands import Parser, command
from tools.reference import checkpoints, full_size_checkpoint
from tools.reference.__main__ import WRITERS, write
from tools.reference.bert4keras import CHECKPOINTS, VERSIONS, require_bert4keras
from tools.reference.huggingface import MODELS

# Tiny models differ by less than `verify` allows; so do goldens that are written again.
SMALL_BAR = 1e-5
# Beyond this length `verify` has another bar.
LONG = 512
HEADER = ("source", "version", "cases", "lengths", "largest", "bar", "passed")
NEW, OLD = VERSIONS
ZIPS = {stem: CHECKPOINTS / f"{stem}.zip" for stem in checkpoints.CHECKPOINTS}
SMALL, CHARACTER = (ZIPS[checkpoints.STEMS[name]] for name in ("small", "char"))
# Files that `convert` writes of the small one, and its options.
CONVERTED = {
    "preset": {},
    "x.safetensors": {},
    "x.keras": {},
    "float16.zip": {"dtype": "float16"},
}
TAGS, CAUSAL = {"labels": ["LOC", "PER"]}, {"attention": "causal"}
# Names of presets: class, options.
TASKS = {
    "tags": ("RoFormerTokenClassifier", TAGS),
    "causal tags": ("RoFormerTokenClassifier", TAGS | CAUSAL),
    "tags with a field": ("RoFormerTokenClassifier", TAGS | {"crf": True}),
    "answers": ("RoFormerQuestionAnswerer", {}),
    "causal answers": ("RoFormerQuestionAnswerer", CAUSAL),
    "classes": ("RoFormerTextClassifier", {"num_classes": 3}),
    "choices": ("RoFormerMultipleChoice", {}),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table; `largest` is NaN where nothing could be compared."""

    source: str
    version: str
    cases: str
    lengths: str
    largest: float
    bar: float = SMALL_BAR

    @property
    def passed(self) -> bool:
        # Written so that a NaN does not pass.
        return bool(self.largest <= self.bar)

    def __str__(self) -> str:
        *names, largest, bar = dataclasses.astuple(self)
        passed = "yes" if self.passed else "NO"
        return line(*names, f"{largest:.1e}", f"{bar:.1e}", passed)


def line(*cells) -> str:
    return f"| {' | '.join(cells)} |"


@command
def main(arguments=None):
    parser = Parser(__doc__)
    help = f"{', '.join(PARTS)}; all of them by default"
    parser.add_argument("parts", nargs="*", metavar="PART", help=help)
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"{unknown} are not among {', '.join(PARTS)}")
    print(line(*HEADER))
    print(line(*["---"] * len(HEADER)))
    rows = []
    for name in options.parts or PARTS:
        with tempfile.TemporaryDirectory() as scratch:
            for row in PARTS[name](Path(scratch)):
                print(row, flush=True)
                rows.append(row)
    failed = sum(not row.passed for row in rows)
    print(f"\n{failed} of {len(rows)} rows are beyond their bars")
    return int(failed > 0 or not rows)


def compare(name, source, bar=np.inf, **options):
    """Rows of a source, which may differ by `bar` at most, and by what `verify` allows.

    There is a row up to the length `LONG`, and one beyond.
    """
    try:
        report = verify(source, verbose=0, **options)
    except RoFormerError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return [Row(name, "", "", "", np.nan)]
    return summarize(name, report, bar)


def summarize(name, report, bar=np.inf):
    """The rows of a report."""

    def share_of_bar(comparison):
        share = comparison.largest / min(comparison.bar, bar)
        return np.inf if np.isnan(share) else share

    rows = []
    for is_long in (False, True):
        group = [c for c in report.comparisons if (c.length > LONG) is is_long]
        if group:
            closest = max(group, key=share_of_bar)
            cases, lengths = (
                ", ".join(dict.fromkeys(str(getattr(c, field)) for c in group))
                for field in ("case", "length")
            )
            numbers = (closest.largest, min(closest.bar, bar))
            rows.append(Row(name, report.reference, cases, lengths, *numbers))
    return rows


def small(scratch):
    options = {"bar": SMALL_BAR, "lengths": (1, 2, 40, 512)}
    with Reference(require_bert4keras(NEW)) as reference:
        options["bert4keras"] = reference
        for stem, path in ZIPS.items():
            yield from compare(stem, path, **options)
        for name, (_, stem, wrap, keywords) in checkpoints.SAVED.items():
            # There are no inputs for a condition, and the newer layout is refused.
            if not (wrap or "layer_norm_cond" in keywords or ".weights." in name):
                path = CHECKPOINTS / "saved" / name
                source = path.parent if path.suffix == ".weights" else path
                config = checkpoints.CHECKPOINTS[stem]["config"]
                yield from compare(f"saved/{name}", source, config=config, **options)
        for name, how in CONVERTED.items():
            path = convert(SMALL, scratch / name, verbose=0, **how)
            yield from compare(f"small as {name}", path, **options)
    with Reference(require_bert4keras(OLD)) as reference:
        options["bert4keras"] = reference
        for stem, path in ZIPS.items():
            # Version 0.10.6 has no RoFormerV2.
            if "-v2-" not in stem:
                yield from compare(stem, path, **options)


def base(scratch):
    v1, v2 = scratch / "base.zip", scratch / "base-v2.zip"
    full_size_checkpoint.main([str(v1)])
    write_as_v2(v1, v2)
    for version, paths in ((NEW, (v1, v2)), (OLD, (v1,))):
        with Reference(require_bert4keras(version)) as reference:
            for path in paths:
                yield from compare_base(path, bert4keras=reference)
    with TransformersReference() as reference:
        yield from compare_base(v1, against=reference)


def compare_base(path, **against):
    """All cases at one length, and long rows in the encoder, which they share."""
    for options in (
        {"lengths": (64,)},
        {"lengths": (2, 512, 1536), "cases": ["encoder"]},
    ):
        yield from compare(path.name, path, **options, **against)


def write_as_v2(source, target):
    """Writes those weights of a checkpoint that RoFormerV2 has too."""
    with open_checkpoint(source) as checkpoint:
        config = checkpoint.config.replace(model_type="roformer_v2", activation="relu")
        names = [row.name for row in weight_table(config, heads=["mlm"])]
        changes = {
            "config": config,
            "tensors": {name: checkpoint.tensors[name] for name in names},
            "bert_config": None,
        }
        save(dataclasses.replace(checkpoint, **changes), target, "bert4keras")


def transformers(scratch):
    with TransformersReference() as reference:
        options = {"lengths": (1, 13, 32), "against": reference}
        for name in MODELS:
            source = ROOT / "tests" / "data" / "huggingface" / name
            preset = convert(source, scratch / name, verbose=0)
            yield from compare(f"huggingface/{name}", source, **options)
            yield from compare(f"huggingface/{name} as a preset", preset, **options)
        for name, (task, fields) in TASKS.items():
            preset, folder = scratch / name, scratch / f"{name} for Transformers"
            getattr(tasks, task).from_preset(CHARACTER, **fields).save_to_preset(preset)
            yield from compare(f"preset of {name}", preset, **options)
            # It has no such head of the others, or not with a field.
            if name.endswith(("tags", "answers")):
                convert(preset, folder, format="huggingface", verbose=0)
                yield from compare(folder.name, folder, **options)
        options["lengths"] = (1, 9, 64, 512)
        for stem, path in ZIPS.items():
            # It has neither RoFormerV2, nor next-sentence prediction, nor wider keys.
            if not any(name in stem for name in ("-v2-", "-nsp", "-key-size")):
                yield from compare(stem, path, **options)


def goldens(scratch):
    for name in WRITERS:
        folder = scratch / name
        write(name, folder)
        paths = [path for path in folder.rglob("*") if path.is_file()]
        committed = [ROOT / "tests" / path.relative_to(folder) for path in paths]
        largest = max(map(difference, paths, committed))
        version = "transformers" if name == "huggingface" else f"bert4keras {NEW}"
        yield Row(f"goldens: {name}", version, f"{len(paths)} files", "", largest)


PARTS = {
    "small": small,
    "base": base,
    "transformers": transformers,
    "goldens": goldens,
}


def difference(new, old) -> float:
    """Largest difference of the numbers in two files, relative to those above 1.

    It is infinite where anything else differs.
    """
    if not old.is_file():
        return np.inf
    if new.read_bytes() == old.read_bytes():
        return 0.0
    return distance(content(new), content(old))


def content(path):
    """The content of a file, as values of JSON and arrays."""
    if path.suffix == ".npz":
        with np.load(path) as file:
            return {name: file[name] for name in file.files if name != "metadata"}
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    if path.suffix == ".zip":
        with open_checkpoint(path) as checkpoint:
            return {name: one.read() for name, one in checkpoint.tensors.items()}
    if path.suffix == ".h5":
        values = {}
        with h5py.File(path) as file:
            file.visititems(lambda name, node: values.update({name: node}))
            return {
                name: node[()]
                for name, node in values.items()
                if isinstance(node, h5py.Dataset)
            }
    if path.suffix == ".bin":
        import torch

        # The older format numbers its storages anew each time.
        tensors = torch.load(path, weights_only=True)
        return {name: tensor.numpy() for name, tensor in tensors.items()}
    return path.read_bytes()


def distance(first, second) -> float:
    """Largest difference of two values, as in `difference`."""
    plain = bytes | str | dict | list | None
    if isinstance(first, plain) or isinstance(second, plain):
        if type(first) is not type(second):
            return np.inf
        if isinstance(first, dict) and first.keys() == second.keys():
            pairs = [(first[name], second[name]) for name in first]
        elif isinstance(first, list) and len(first) == len(second):
            pairs = list(zip(first, second, strict=True))
        else:
            return 0.0 if first == second else np.inf
        return max((distance(*pair) for pair in pairs), default=0.0)
    first, second = np.asarray(first, "float64"), np.asarray(second, "float64")
    if first.shape != second.shape:
        return np.inf
    # Also of infinite values.
    is_same = (first == second) | (np.isnan(first) & np.isnan(second))
    with np.errstate(invalid="ignore"):
        relative = np.abs(first - second) / np.maximum(1, np.abs(second))
    return float(np.where(is_same, 0, relative).max(initial=0))


if __name__ == "__main__":
    sys.exit(main())
