"""Files of vectors that are written some rows at a time."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from roformer_keras.base.extras import import_extra


def npy_bytes(vectors: np.ndarray, count: int, is_first: bool) -> bytes:
    """The next rows of an `.npy` file of `count` rows, after its header."""
    stream = io.BytesIO()
    if is_first:
        shape = (count, vectors.shape[1])
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
    stream.write(np.ascontiguousarray(vectors, "<f4").tobytes())
    return stream.getvalue()


def arrow_bytes(texts: Sequence[str], vectors: np.ndarray, is_first: bool) -> bytes:
    """The next rows of an Arrow stream, with the columns `text` and `vector`."""
    arrow = import_extra("pyarrow", "Parquet files")
    values = arrow.array(np.ascontiguousarray(vectors, "float32").ravel())
    starts = np.arange(len(vectors) + 1, dtype="int32") * vectors.shape[1]
    columns = [arrow.array(texts), arrow.ListArray.from_arrays(starts, values)]
    batch = arrow.record_batch(columns, names=["text", "vector"])
    schema = batch.schema.serialize().to_pybytes() if is_first else b""
    return schema + batch.serialize().to_pybytes()


def write_parquet(stream: Path, target: Path) -> None:
    """Writes the rows of an Arrow stream as Parquet, a batch at a time."""
    arrow = import_extra("pyarrow", "Parquet files")
    parquet = import_extra("pyarrow.parquet", "Parquet files")
    with (
        arrow.OSFile(str(stream)) as source,
        arrow.ipc.open_stream(source) as batches,
        parquet.ParquetWriter(str(target), batches.schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
