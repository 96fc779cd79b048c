"""Files of vectors that are written some rows at a time."""

import numpy as np
import pyarrow.parquet as parquet
import pytest

from roformer_keras.io.vector_files import arrow_bytes, npy_bytes, write_parquet
from roformer_keras.jobs.output import open_output

TEXTS = [f"第{number}句" for number in range(10)]
VECTORS = np.random.default_rng(0).normal(size=(10, 4)).astype("float32")
WINDOW = 4


def part_of(job, kind):
    rows = slice(job.done, job.done + WINDOW)
    is_first = job.done == 0
    if kind == "npy":
        return npy_bytes(VECTORS[rows], len(TEXTS), is_first), len(TEXTS[rows])
    return arrow_bytes(TEXTS[rows], VECTORS[rows], is_first), len(TEXTS[rows])


def write(path, kind, metadata, stop_at=None):
    convert = write_parquet if kind == "parquet" else None
    with open_output(str(path), metadata, convert=convert) as job:
        while job.done < len(TEXTS):
            if job.done == stop_at:
                raise KeyboardInterrupt
            job.append(*part_of(job, kind))


@pytest.mark.parametrize("stop_at", [None, 4, 8])
@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_a_file_that_was_interrupted_is_completed(kind, stop_at, tmp_path):
    path, metadata = tmp_path / f"x.{kind}", {"settings": {}, "inputs": {}}
    if stop_at is not None:
        with pytest.raises(KeyboardInterrupt):
            write(path, kind, metadata, stop_at)
        assert not path.exists()
    write(path, kind, metadata)
    assert [one.name for one in tmp_path.iterdir() if one.name != ".lock"] == [
        path.name
    ]
    if kind == "npy":
        np.testing.assert_array_equal(np.load(path), VECTORS)
        return
    table = parquet.read_table(path)
    assert table.column_names == ["text", "vector"]
    assert table["text"].to_pylist() == TEXTS
    found = np.array(table["vector"].to_pylist(), "float32")
    np.testing.assert_array_equal(found, VECTORS)
    assert (
        str(table["vector"].type).startswith("list<")
        and parquet.ParquetFile(path).num_row_groups == 3
    )
