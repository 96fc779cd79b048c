"""A folder of vectors and their texts, for searches.

INDEX/vectors.npy   float32 `(texts, dim)`, of length 1; read as a memory map
INDEX/texts.jsonl   the texts, in the same order
INDEX/index.json    the model that made the vectors; written last
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roformer_keras.base.checks import check_file, check_integer, check_path
from roformer_keras.base.errors import (
    CheckpointError,
    ConfigurationError,
    SourceError,
    errors_at,
    refuse,
)
from roformer_keras.hub.catalog import resolve
from roformer_keras.io.atomic import one_line, replacing
from roformer_keras.io.blob import Blob
from roformer_keras.io.json_file import json_bytes, read_json
from roformer_keras.io.vector_files import npy_bytes
from roformer_keras.search.neighbours import (
    Neighbours,
    nearest_of_unit,
    unit_vectors,
    vector_lengths,
)
from roformer_keras.tables.files import read_table
from roformer_keras.tables.texts import as_texts, check_list

VECTORS, TEXTS, RECORD = "vectors.npy", "texts.jsonl", "index.json"
# The vectors of these texts identify a model. They are equal in another format and by
# another engine, and differ after another training.
PROBES = (
    "今天天气不错，适合出去走走。",
    "如何办理信用卡？",
    "学而时习之，不亦说乎？",
    "手机屏幕碎了，去哪里修比较便宜",
    "苹果公司发布了新产品",
    "Python 3 的列表怎么排序",
)
# Weights in 8 bits change them by a distance of 0.07, other models by more than 0.3.
_MAX_DISTANCE = 0.15
_ROWS = 4096


class Hit(NamedTuple):
    """A text that a search returns.

    Attributes:
        number: int. Its row in the index.
        text: str.
        score: float. Cosine of the query and the text.

    Example:
        >>> model = roformer_keras.RoFormerSim.from_preset("roformer-sim-char")
        >>> folder = search.build_index("hits", ["今天天气不错"], model)
        >>> hit = search.VectorIndex(folder, model).search("天气真好")[0]
        >>> hit.number, hit.text
        (0, '今天天气不错')
    """

    number: int
    text: str
    score: float


class VectorIndex:
    """Finds the texts of an index that are nearest to queries.

    Args:
        folder: folder that `build_index` or `roformer-keras index` wrote.
        model: the model that made the vectors: a model or an export with `encode`, such
            as `RoFormerSim`, or a function from a list of texts to vectors.

    Attributes:
        texts: list of str.
        max_length: int or None. Maximal tokens of a text, see `build_index`.
        vectors: float32 `(texts, dim)`, a memory map.
        source: str. The model's name in the index.

    Raises:
        SourceError: a file of the index is missing or damaged.
        ConfigurationError: another model made the vectors.

    Example:
        >>> model = roformer_keras.RoFormerSim.from_preset("roformer-sim-char")
        >>> texts = ["今天天气不错", "学而时习之", "床前明月光"]
        >>> folder = search.build_index("index", texts, model)
        >>> index = search.VectorIndex(folder, model)
        >>> [[hit.text for hit in hits] for hits in index.search(["天气真好"], top_k=1)]
        [['今天天气不错']]
    """

    def __init__(self, folder: str | os.PathLike, model: Any):
        check_path("folder", folder)
        path, record = Path(folder), read_record(folder)
        self.source: str = record["source"]
        self.max_length: int | None = record["max_length"]
        self._encode = encoder_of(model, self.max_length)
        self.vectors = _read_vectors(path / VECTORS)
        table = read_table(str(path / TEXTS), 1, ["text"], labelled=False)
        self.texts = [str(text) for (text,) in table.texts]
        if len(self.texts) != len(self.vectors):
            raise SourceError(
                f"{path / TEXTS} must have {len(self.vectors):,} rows, as many as "
                f"there are vectors, got {len(self.texts):,}: make the index again"
            )
        _check_model(path, record, self._encode, self.vectors.shape[1])

    def __len__(self) -> int:
        return len(self.texts)

    def search(self, queries: str | Sequence[str], top_k: int = 10) -> list:
        """The nearest texts of each query, the nearest first.

        Args:
            queries: texts, or a str.
            top_k: int. Number of texts for a query.

        Returns:
            list of `Hit` for each query; one list for a str.

        Raises:
            ConfigurationError: a query is no text, or an argument breaks its rule.
        """
        if isinstance(queries, str):
            return self.search([queries], top_k)[0]
        if not len(queries):
            return []
        queries = [text for (text,) in as_texts(queries, (1,))]
        return hits_of(self.texts, self.nearest(self._encode(queries), top_k))

    def nearest(self, vectors: Any, top_k: int = 10) -> Neighbours:
        """The nearest rows of the index for each vector.

        Args:
            vectors: float `(queries, dim)`, of the model of the index.
            top_k: int. Number of neighbours of a query.

        Returns:
            As in `semantic_search`.
        """
        check_integer("top_k", top_k, minimum=1)
        return nearest_of_unit(unit_vectors("vectors", vectors), self.vectors, top_k)


def hits_of(texts: Sequence[str], neighbours: Neighbours) -> list[list[Hit]]:
    """The texts of neighbours, a list for each query."""
    return [
        [
            Hit(int(number), texts[number], float(score))
            for number, score in zip(*row, strict=True)
        ]
        for row in zip(*neighbours, strict=True)
    ]


def build_index(
    folder: str | os.PathLike,
    texts: Iterable[str],
    model: Any,
    *,
    source: str = "",
    max_length: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes the index of some texts.

    Args:
        folder: path, which appears when the index is complete.
        texts: any iterable of str.
        model: as in `VectorIndex`.
        source: str. The name under which `roformer-keras search` finds the model.
        max_length: int. Maximal tokens of a text, and later of a query; by default that
            of the model's `encode`.
        overwrite: bool. Whether an existing folder may be replaced.

    Returns:
        The folder.

    Raises:
        ConfigurationError: a text is no str, or there are no texts.
        OutputError: the folder exists or cannot be written.

    Example:
        >>> model = roformer_keras.RoFormerSim.from_preset("roformer-sim-char")
        >>> search.build_index("poem", ["床前明月光", "疑是地上霜"], model).name
        'poem'
    """
    if max_length is not None:
        check_integer("max_length", max_length, minimum=1)
    encode = encoder_of(model, max_length)
    check_list(texts)
    texts = [text for (text,) in as_texts(list(texts), (1,))]
    with replacing(folder, overwrite, folder=RECORD) as partial:
        with open(partial / VECTORS, "wb") as file:
            for start in range(0, len(texts), _ROWS):
                encoded = encode(texts[start : start + _ROWS])
                vectors = unit_vectors("vectors", encoded)
                file.write(npy_bytes(vectors, len(texts), start == 0))
        write_record(partial, texts, encode, source, max_length)
    return Path(folder)


def write_record(
    folder: Path,
    texts: Sequence[str],
    encode: Callable,
    source: str,
    max_length: int | None,
) -> None:
    """Writes the texts and the record of an index, next to its vectors."""
    lines = (f"{json.dumps({'text': text}, ensure_ascii=False)}\n" for text in texts)
    with open(folder / TEXTS, "w", encoding="utf-8") as file:
        file.writelines(lines)
    probes = unit_vectors("vectors", encode(list(PROBES)))
    record = {"source": source, "max_length": max_length, "count": len(texts)}
    record["probes"] = probes.tolist()
    (folder / RECORD).write_bytes(json_bytes(record))


def read_record(folder: str | os.PathLike) -> dict[str, Any]:
    """The record of an index."""
    path = Path(folder) / RECORD
    if not path.is_file():
        raise SourceError(
            f"{os.fspath(folder)} must be the folder of an index, there is no {path}: "
            "make one with roformer-keras index"
        )
    record = read_json(Blob.of_file(path))
    fields = {"source": str, "count": int, "probes": list}
    for name, kind in fields.items():
        refuse(
            type(record.get(name)) is not kind,
            f"{path} is damaged: {name!r} must be {kind.__name__}",
            error=SourceError,
        )
    # Earlier indexes lack this field.
    length = record.setdefault("max_length", None)
    if length is not None:
        with errors_at(path):
            check_integer("max_length", length, minimum=1)
    return record


def known_source(folder: str | os.PathLike) -> str:
    """The model that an index names: a checkpoint of the catalogue, or a local path."""
    source = read_record(folder)["source"]
    if source and "://" not in source:
        with suppress(SourceError):
            if os.path.exists(resolve(source)):
                return source
    raise SourceError(
        f"the index {os.fspath(folder)} names the model {source!r:.200}, but there is "
        "no such checkpoint or file: give the model with --source"
    )


def encoder_of(model: Any, max_length: int | None = None) -> Callable[[list[str]], Any]:
    """A function from texts to vectors, by an `encode` with this limit of tokens."""
    if hasattr(model, "encode") and not isinstance(model, str):
        options = {"verbose": 0} | ({"max_length": max_length} if max_length else {})
        return lambda texts: model.encode(texts, **options)
    # A network is a function of ids, not of texts.
    refuse(
        not callable(model) or hasattr(model, "compute_output_shape"),
        "an index needs a model that encodes texts, such as RoFormerSim, got "
        f"{type(model).__name__}",
    )
    return model


def _read_vectors(path):
    check_file(path)
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, OverflowError) as error:
        raise SourceError(f"cannot read {path}: {one_line(error)}") from error
    refuse(
        vectors.dtype != np.float32 or vectors.ndim != 2 or 0 in vectors.shape,
        f"{path} must be float32 (texts, dim), got {vectors.dtype} {vectors.shape}",
        error=SourceError,
    )
    lengths = vector_lengths(os.fspath(path), vectors)
    refuse(
        not np.allclose(lengths, 1, atol=1e-3),
        f"{path} must hold vectors of length 1: make the index again",
        error=SourceError,
    )
    return vectors


def _check_model(folder, record, encode, dim):
    """Raises ConfigurationError if other weights made the vectors of an index."""
    try:
        probes = np.array(record["probes"], "float32")
    except (TypeError, ValueError, OverflowError):
        probes = np.zeros(0)
    if probes.shape != (len(PROBES), dim) or not np.isfinite(probes).all():
        raise CheckpointError(f"{folder / RECORD} is damaged: make the index again")
    encoded = unit_vectors("vectors", encode(list(PROBES)))
    if encoded.shape == probes.shape:
        distance = float(np.linalg.norm(encoded - probes, axis=1).max())
        if distance <= _MAX_DISTANCE:
            return
        difference = f"with vectors at a distance of {distance:.2f} for the same texts"
    else:
        difference = f"with vectors of {encoded.shape[1]} numbers, not {dim}"
    name = record["source"] or "another model"
    raise ConfigurationError(
        f"the index {folder} was made by {name!r:.200}, got a model {difference}",
        hint="search with the model of the index, or make the index again",
    )
