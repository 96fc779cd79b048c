"""The twelve released checkpoints, the three of this package, and their locations.

Sources: the READMEs of the three repositories, and Su et al. 2021, arXiv:2104.09864.
"""

import difflib
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from roformer_keras.base.checks import check_instance, check_path
from roformer_keras.base.errors import SourceError, refuse
from roformer_keras.hub.huggingface_hub import PREFIX, fetch
from roformer_keras.io.sources import list_files

BASE_URL = "https://open.zhuiyi.ai/releases/nlp/models/zhuiyi"
_SEGMENTS = 2


@dataclass(frozen=True, kw_only=True)
class CatalogEntry:
    """One released zip."""

    name: str
    model_type: str
    level: str
    vocabulary_size: int
    num_layers: int
    hidden_dim: int
    num_heads: int
    intermediate_dim: int
    model_class: str
    heads: str
    repository: str
    licence: str
    description: str

    @property
    def url(self) -> str:
        """Public address of the zip."""
        return f"{BASE_URL}/{self.name}.zip"

    @property
    def parameters(self) -> int:
        """Number of weights, without unproven heads."""
        hidden, inner = self.hidden_dim, self.intermediate_dim
        embeddings = (self.vocabulary_size + _SEGMENTS) * hidden
        kernels = self.num_layers * (4 * hidden * hidden + 2 * hidden * inner)
        if self.model_type == "roformer_v2":
            return embeddings + kernels
        norm = 2 * hidden
        dense = hidden * hidden + hidden
        biases = self.num_layers * (5 * hidden + inner + 2 * norm)
        masked_lm = dense + norm + self.vocabulary_size
        pooler = dense if self.model_class == "RoFormerSim" else 0
        return embeddings + norm + kernels + biases + masked_lm + pooler

    @property
    def download_megabytes(self) -> int:
        """Approximate size of the zip: four bytes a weight, hardly compressible."""
        return round(4 * self.parameters / 1e6)

    def to_dict(self) -> dict:
        """Fields and properties as JSON types."""
        return {
            **asdict(self),
            "url": self.url,
            "parameters": self.parameters,
            "download_megabytes": self.download_megabytes,
        }


# Name, repository, class, heads, description, and sizes as (layers, hidden_dim).
_FAMILIES = (
    (
        "chinese_roformer",
        "roformer",
        "RoFormerMaskedLM",
        "masked LM; pooler unproven",
        "RoFormer over words, pre-trained as a masked language model",
        ((12, 768), (6, 384)),
    ),
    (
        "chinese_roformer-char",
        "roformer",
        "RoFormerMaskedLM",
        "masked LM",
        "RoFormer over characters, pre-trained as a masked language model",
        ((12, 768), (6, 384)),
    ),
    (
        "chinese_roformer-gpt-char",
        "roformer",
        "RoFormerCausalLM",
        "language model",
        "RoFormer over characters that writes from left to right",
        ((12, 768),),
    ),
    (
        "chinese_roformer-sim-char",
        "roformer-sim",
        "RoFormerSim",
        "pooler (linear), masked LM",
        "Sentence vectors, and similar sentences (SimBERT's task)",
        ((12, 768), (6, 384)),
    ),
    (
        "chinese_roformer-sim-char-ft",
        "roformer-sim",
        "RoFormerSim",
        "pooler (linear), masked LM",
        "RoFormer-Sim fine-tuned further on labelled sentence pairs",
        ((12, 768), (6, 384)),
    ),
    (
        "chinese_roformer-v2-char",
        "roformer-v2",
        "RoFormerMaskedLM",
        "masked LM (the tied embedding alone)",
        "RoFormerV2: no biases, RMS norm, supervised tasks in pre-training",
        ((6, 384), (12, 768), (24, 1024)),
    ),
)

CATALOG: tuple[CatalogEntry, ...] = tuple(
    CatalogEntry(
        name=f"{family}_L-{num_layers}_H-{hidden_dim}_A-{hidden_dim // 64}",
        model_type="roformer_v2" if repository == "roformer-v2" else "roformer",
        level="character" if family.endswith(("-char", "-ft")) else "word",
        vocabulary_size=50_000 if family == "chinese_roformer" else 12_000,
        num_layers=num_layers,
        hidden_dim=hidden_dim,
        num_heads=hidden_dim // 64,
        intermediate_dim=4 * hidden_dim,
        model_class=model_class,
        heads=heads,
        repository=f"https://github.com/ZhuiyiTechnology/{repository}",
        licence="Apache-2.0",
        description=description,
    )
    for family, repository, model_class, heads, description, sizes in _FAMILIES
    for num_layers, hidden_dim in sizes
)
"""The twelve released checkpoints, as tuple of `CatalogEntry`.

Example:
    >>> entry = roformer_keras.CATALOG[0]
    >>> entry.name, entry.model_class
    ('chinese_roformer_L-12_H-768_A-12', 'RoFormerMaskedLM')
"""
_BY_NAME = {entry.name: entry for entry in CATALOG}


@dataclass(frozen=True, kw_only=True)
class ShippedCheckpoint:
    """A small checkpoint that comes with this package, trained by its own code."""

    alias: str
    name: str
    model_class: str
    description: str

    @property
    def path(self) -> Path:
        """Path of the zip."""
        return _SHIPPED_FOLDER / f"{self.name}.zip"

    def to_dict(self) -> dict:
        """Fields and path as JSON types."""
        return {**asdict(self), "path": str(self.path)}


_SHIPPED_FOLDER = Path(__file__).parents[1] / "checkpoints"

SHIPPED: tuple[ShippedCheckpoint, ...] = (
    ShippedCheckpoint(
        alias="roformer-char",
        name="chinese_roformer-char_L-4_H-192_A-6",
        model_class="RoFormerMaskedLM",
        description="Fills masks in classical and modern Chinese, and in Tang poems",
    ),
    ShippedCheckpoint(
        alias="roformer-gpt-char",
        name="chinese_roformer-gpt-char_L-4_H-256_A-8",
        model_class="RoFormerCausalLM",
        description="Continues a Tang poem from its first line",
    ),
    ShippedCheckpoint(
        alias="roformer-sim-char",
        name="chinese_roformer-sim-char_L-4_H-192_A-6",
        model_class="RoFormerSim",
        description="Finds and writes the classical counterpart of a modern sentence, "
        "and the reverse",
    ),
)
"""The small checkpoints that come with this package, as tuple of `ShippedCheckpoint`.

Example:
    >>> [checkpoint.alias for checkpoint in roformer_keras.SHIPPED]
    ['roformer-char', 'roformer-gpt-char', 'roformer-sim-char']
"""
# Limits of common file systems.
_MAX_NAME, _MAX_PATH = 255, 4095
_SHIPPED_BY_NAME = {
    name: entry for entry in SHIPPED for name in (entry.alias, entry.name)
}


# Earlier versions downloaded into this folder below the working directory.
_FORMER = Path("checkpoints")


def find(name: str) -> CatalogEntry:
    """The released entry of that name, with or without `.zip`."""
    check_instance("name", name, str)
    stem = name.removesuffix(".zip")
    refuse(
        stem in _SHIPPED_BY_NAME,
        f"{name} comes with this package: use it by that name",
        error=SourceError,
    )
    entry = _BY_NAME.get(stem)
    if entry is None:
        names = [*_BY_NAME, *_SHIPPED_BY_NAME]
        close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise SourceError(
            f"{name!r} is not in the catalogue; {hint}`roformer-keras list` shows all "
            f"{len(CATALOG) + len(SHIPPED)}"
        )
    return entry


def download_url(name: str, base_url: str | None = None) -> str:
    """URL of the zip of a catalogue name; SourceError for other names.

    `base_url` is the folder of a mirror; by default `$ROFORMER_KERAS_BASE_URL`, or else
    the publisher's.
    """
    base = base_url or os.environ.get("ROFORMER_KERAS_BASE_URL") or BASE_URL
    return f"{base.rstrip('/')}/{find(name).name}.zip"


def checkpoints_folder() -> Path:
    """Folder of downloads, the same for every working directory.

    It is `$ROFORMER_KERAS_CHECKPOINTS`, or else `roformer-keras` in `$XDG_CACHE_HOME`,
    or else `roformer-keras` in `.cache` of the user's folder.
    """
    if chosen := os.environ.get("ROFORMER_KERAS_CHECKPOINTS"):
        return Path(chosen)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "")
    # The specification ignores a relative path.
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "roformer-keras"


def downloaded(name: str) -> Path | None:
    """The downloaded zip of a released checkpoint, or None; it may be damaged."""
    paths = (folder / f"{name}.zip" for folder in (checkpoints_folder(), _FORMER))
    return next((path for path in paths if path.is_file()), None)


def resolve(
    source: str | os.PathLike, checkpoints: str | os.PathLike | None = None
) -> Path:
    """The path of a source: itself if it exists, or else a zip by its name."""
    check_path("a source", source)
    text = os.fsdecode(source)
    if not text:
        # Path("") is the working directory.
        raise SourceError("a source must be a path or a name, got ''")
    if text.startswith(PREFIX):
        return fetch(text)
    path = Path(text)
    if len(path.name) > _MAX_NAME or len(str(path)) > _MAX_PATH:
        raise SourceError(
            f"a source must be a path or a name, got {len(str(path)):,} characters: "
            f"{str(path)[:40]!r} and so on"
        )
    trained = path / "preset"
    is_preset = os.path.exists(path / "config.json")
    if os.path.isfile(trained / "config.json") and not is_preset:
        return trained
    is_here = os.path.exists(path) or os.path.exists(f"{path}.index")
    if is_here or path.name != str(path):
        return path
    shipped = _SHIPPED_BY_NAME.get(path.name.removesuffix(".zip"))
    if shipped is not None:
        refuse(
            not shipped.path.exists(),
            f"{path} should have come with this package, but is not at "
            f"{shipped.path}: install the package again",
            error=SourceError,
        )
        return shipped.path
    try:
        entry = find(path.name)
    except SourceError as error:
        raise SourceError(f"no file or folder {path} here, and {error}") from None
    if checkpoints is None and (archive := downloaded(entry.name)) is not None:
        return archive
    folder = checkpoints_folder() if checkpoints is None else Path(checkpoints)
    archive = folder / f"{entry.name}.zip"
    if archive.exists():
        return archive
    raise SourceError(
        f"{entry.name} is not downloaded: run `roformer-keras download {entry.name}`, "
        f"or fetch {download_url(entry.name)} and put it at {archive.absolute()}"
    )


def checkpoint_files(source: str | os.PathLike | None) -> list[Path]:
    """The files of a source's checkpoint; none if the source is None."""
    return [] if source is None else list_files(resolve(source))
