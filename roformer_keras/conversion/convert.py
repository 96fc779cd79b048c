"""Conversion from any source to any format, without building a model."""

import dataclasses
import fnmatch
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from roformer_keras.base.checks import as_names, check_choice, check_path
from roformer_keras.base.config import ConfigSource
from roformer_keras.base.errors import ConfigurationError, Hint, OutputError, refuse
from roformer_keras.base.progress import progress_bar
from roformer_keras.conversion.checkpoint import (
    Checkpoint,
    check_saved_tokenizer,
    model_of,
    weights_to_read,
    with_own_output,
)
from roformer_keras.conversion.model_card import model_card
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.conversion.weights import head_of, model_heads
from roformer_keras.conversion.writer import FORMATS
from roformer_keras.hub.catalog import resolve
from roformer_keras.hub.huggingface_hub import PREFIX
from roformer_keras.io.atomic import PARTIAL_PREFIX, check_name, replacing
from roformer_keras.io.sources import HUGGINGFACE_PATHS, PRESET_PATHS, SENTENCE_FOLDERS

# First match wins: "x.weights.h5" is not "x.h5".
_SUFFIXES = {
    ".weights.h5": "weights.h5",
    ".keras": "keras",
    ".safetensors": "safetensors",
    ".zip": "bert4keras",
}
# Folder formats, with all the files that such a folder may hold.
FOLDERS = {
    "preset": PRESET_PATHS,
    "huggingface": HUGGINGFACE_PATHS,
    "sentence-transformers": HUGGINGFACE_PATHS,
}


def convert(
    source: str | os.PathLike,
    target: str | os.PathLike,
    *,
    format: str | None = None,
    dtype: str = "float32",
    model: str | None = None,
    config: ConfigSource | None = None,
    vocabulary: str | os.PathLike | None = None,
    ignore: Iterable[str] = (),
    overwrite: bool = False,
    verbose: int | str = "auto",
    **changes: Any,
) -> Path:
    """Writes the weights of a source in another format.

    Every weight is written, except the head of a task in a zip: bert4keras has no
    place for it, and a line on stderr says so.

    Args:
        source: a zip, folder, checkpoint prefix, weights file, preset folder, folder
            of Hugging Face, `hf://owner/name`, or the name of a downloaded checkpoint
            of the catalogue.
        target: path of the result, which appears whole or not at all.
        format: `"preset"`, `"weights.h5"`, `"keras"`, `"safetensors"`,
            `"bert4keras"`, `"huggingface"`, the folder that Transformers loads, or
            `"sentence-transformers"`, the folder that SentenceTransformer loads; by
            the target's extension if not given: a name without one is a preset folder,
            `.zip` a bert4keras zip.
        dtype: `"float32"` or `"float16"`.
        model: class that the result is for. By default the saved class, the class in
            the catalogue, or the class that has the heads of the source.
        config: configuration for sources without one, see `open_checkpoint`.
        vocabulary: path of a `vocab.txt`, likewise.
        ignore: patterns of unexpected tensors to pass over; for the format
            `"sentence-transformers"` also `"task/*"`, a head that only training uses.
        overwrite: bool. Whether an existing target is replaced.
        verbose: 0 for no progress bar, 1 for one, `"auto"` for one on a terminal.
        changes: configuration fields to set, such as `pooler_activation="tanh"`.

    Returns:
        The path of the result.

    Raises:
        RoFormerError: an error of any step; see `roformer_keras.base.errors`.

    Example:
        >>> path = roformer_keras.convert("roformer-char", "poems", verbose=0)
        >>> sorted(file.name for file in path.iterdir())
        ['assets', 'config.json', ...]
    """
    check_name(target)
    if os.fspath(target).startswith(PREFIX):
        raise OutputError(
            f"convert writes files, got {os.fspath(target)[:80]!r}: upload a model by "
            "push_to_hub"
        )
    target = Path(target)
    format = format or _format_of(target)
    check_choice("format", format, FORMATS)
    if vocabulary is not None:
        check_path("vocabulary", vocabulary)
    with open_prepared(
        source, format, model, config, vocabulary, ignore, verbose, **changes
    ) as ready:
        save(ready, target, format, dtype, overwrite, verbose)
    return target


@contextmanager
def open_prepared(
    source: str | os.PathLike,
    format: str,
    model: str | None = None,
    config: ConfigSource | None = None,
    vocabulary: str | os.PathLike | None = None,
    ignore: Iterable[str] = (),
    verbose: int | str = 0,
    **changes: Any,
) -> Iterator[Checkpoint]:
    """Opens and prepares a source for a format, with the arguments of `convert`."""
    # A generator would be empty at the second use.
    ignore = as_names("ignore", ignore)
    with open_checkpoint(resolve(source), config, vocabulary) as checkpoint:
        # RoFormerV2 was trained without the pooler that its folders leave out.
        lost = [name for name in checkpoint.left_out if ".pooler." not in name]
        if model is None and lost:
            raise ConfigurationError(
                f"{checkpoint.label} has a head that no class here has, with "
                f"{len(lost)} tensors such as {lost[0]}, and the result would lack it",
                hint=Hint("leave it out with {model:'RoFormerBackbone'}"),
            )
        if model is None and checkpoint.is_task and format not in FOLDERS:
            refuse(
                format != "bert4keras",
                f"the head of {checkpoint.model} has a place in a folder only, got "
                f"the format {format!r}",
                hint=Hint(
                    "give a folder as target, save the built model by "
                    "model.save('name.keras'), or leave the head out by "
                    "{model:'RoFormerBackbone'}"
                ),
            )
            model = "RoFormerBackbone"
            tqdm.write(
                f"the head of {checkpoint.model} is left out: bert4keras has no place "
                "for it",
                file=sys.stderr,
            )
        if format == "sentence-transformers":
            checkpoint = _without_head(checkpoint, ignore)
        yield prepare(checkpoint, model, ignore, **changes)


def prepare(
    checkpoint: Checkpoint,
    model: str | None = None,
    ignore: Iterable[str] = (),
    **changes,
) -> Checkpoint:
    """The checkpoint as a model class holds it; every tensor is accounted for."""
    model = model_of(checkpoint) if model is None else model
    is_saved = checkpoint.model == model
    base = "RoFormerBackbone" if checkpoint.is_task and is_saved else model
    if not is_saved:
        # Never drop a pooler in silence.
        if "pooler" in checkpoint.heads:
            activation = pooler_activation_of(checkpoint, model)
            changes = {"pooler_activation": activation, **changes}
        if "nsp" in checkpoint.heads:
            changes = {"with_nsp": True, **changes}
    config = checkpoint.config_for(base, **changes)
    checkpoint = with_own_output(checkpoint, config)
    heads = model_heads(base, config)
    unmapped = [head for head in checkpoint.heads if head not in heads]
    refuse(
        unmapped,
        f"{checkpoint.label} has a head ({', '.join(unmapped)}) for which {model} "
        "has no place: choose another model=",
    )
    written = [row.name for row in weights_to_read(checkpoint, config, heads, ignore)]
    task = [name for name in checkpoint.tensors if head_of(name) == "task"]
    unplaced = checkpoint.tensors.keys() - {*checkpoint.unexpected, *written, *task}
    if unplaced:
        raise ConfigurationError(
            f"{checkpoint.label} has {len(unplaced)} tensors for which the changed "
            f"configuration has no place, {min(unplaced)} among them"
        )
    written += task if base != model else []
    check_saved_tokenizer(checkpoint)
    return dataclasses.replace(
        checkpoint,
        config=config,
        model=model,
        model_options=checkpoint.model_options if is_saved else {},
        tensors={name: checkpoint.tensors[name] for name in written},
        unexpected=(),
    )


def save(
    checkpoint: Checkpoint,
    target: str | os.PathLike,
    format: str,
    dtype: str = "float32",
    overwrite: bool = False,
    verbose: int | str = 0,
    repository: str | None = None,
) -> None:
    """Writes a prepared checkpoint; the result appears whole or not at all."""
    check_choice("format", format, FORMATS)
    is_folder = format in FOLDERS
    if is_folder:
        _check_only(Path(target), format)
    count, name = len(checkpoint.tensors), Path(target).name
    with (
        replacing(target, overwrite, folder=is_folder) as partial,
        progress_bar(verbose, total=count, desc=name, unit="tensor") as bar,
    ):
        FORMATS[format](partial, checkpoint, dtype, bar.update)
        if is_folder and (repository or format != "preset"):
            card = model_card(checkpoint, format, repository)
            (partial / "README.md").write_text(card, encoding="utf-8")


def _without_head(checkpoint: Checkpoint, patterns: tuple[str, ...]) -> Checkpoint:
    """The checkpoint without the task weights that match the patterns."""
    tensors = {
        name: tensor
        for name, tensor in checkpoint.tensors.items()
        if head_of(name) != "task"
        or not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
    return dataclasses.replace(checkpoint, tensors=tensors)


def _check_only(folder: Path, format: str) -> None:
    """Checks that replacing a folder would delete no foreign file."""
    if not folder.is_dir():
        return
    known_files = FOLDERS[format]
    modules = frozenset() if format == "preset" else SENTENCE_FOLDERS
    # A killed process may leave a file half written.
    strangers = (
        name
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
        for final in [path.with_name(PARTIAL_PREFIX.sub("", path.name))]
        if (name := final.relative_to(folder).as_posix()) not in known_files
        and name.split("/")[0] not in modules
    )
    # The user may have named a large folder by mistake.
    refuse(
        (few := sorted(itertools.islice(strangers, 3))),
        f"{folder} holds files that are no part of a {format} ({', '.join(few)}), "
        "and would be replaced whole: give another folder",
        error=OutputError,
    )


def _format_of(target: Path) -> str:
    for suffix, format in _SUFFIXES.items():
        if target.name.endswith(suffix):
            return format
    extension = target.suffix[1:]
    refuse(
        extension.isalnum() and not extension.isdigit() and not target.is_dir(),
        f"no format goes with {target.suffix!r}",
        hint=Hint(
            f"end the target in {', '.join(_SUFFIXES)}, or give a name without a "
            "dot for a preset folder, or pass {format}"
        ),
    )
    return "preset"


def pooler_activation_of(checkpoint: Checkpoint, model: str | None = None) -> str:
    """Activation of a stored pooler: as saved, linear in RoFormer-Sim, else tanh."""
    config = checkpoint.config
    if config.pooler_activation is not None:
        return config.pooler_activation
    return "linear" if (model or model_of(checkpoint)) == "RoFormerSim" else "tanh"
