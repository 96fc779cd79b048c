"""Checkpoint files against TensorFlow's own, in both directions."""

import random
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from bundles import described, open_bundle

from roformer_keras.base.errors import CheckpointError
from roformer_keras.io.tensor_bundle import TensorBundleReader, write_tensor_bundle


def sample_tensors() -> list[tuple[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 256, (6, 128), dtype=np.uint8)  # NaNs and infinities too
    return [
        ("bert/embeddings/word_embeddings", bits.view("float32")),
        ("bert/pooler/dense/bias", bits[0].view("float16")),
        ("bert/pooler/dense/kernel", bits.reshape(2, -1, 12).view(ml_dtypes.bfloat16)),
        ("cls/output_bias", bits.view("float64")),
        ("Adam/名字", bits.view("complex64")),
        ("empty", np.zeros((3, 0, 2), "float16")),
        ("flags", np.array([[True], [False]])),
        ("global_step", np.array(2**40 + 1)),
        ("int32", bits.view("int32")),
        ("uint8", bits),
        ("scalar", np.array(-0.0, "float16")),
    ]


def many_tensors() -> list[tuple[str, np.ndarray]]:
    """So many long names that the index takes three data blocks."""
    rng = random.Random(0)
    return [
        (f"bert/encoder/layer_{number}/{rng.randbytes(100).hex()}", np.float32(number))
        for number in range(2500)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with checkpoints that both sides wrote."""
    folder = tmp_path_factory.mktemp("bundles")
    write_tensor_bundle(folder / "ours", sample_tensors())
    write_tensor_bundle(folder / "ours_many", many_tensors())

    def save(prefix, tensors):
        tf.raw_ops.SaveV2(
            prefix=str(folder / prefix),
            tensor_names=[name for name, _ in tensors],
            shape_and_slices=[""] * len(tensors),
            tensors=[tf.convert_to_tensor(value) for _, value in tensors],
        )

    save("savev2", sample_tensors())
    save("many", many_tensors())
    save("half_0", sample_tensors()[0::2])
    save("half_1", sample_tensors()[1::2])
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(folder / f"half_{half}") for half in (0, 1)],
        destination_prefix=str(folder / "sharded"),
    )
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, value in sample_tensors()[:3]:
            tf.compat.v1.get_variable(name, initializer=tf.constant(value))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(folder / "saver"))
    variables = [tf.Variable(value) for _, value in sample_tensors()[:3]]
    tf.train.Checkpoint(layers=variables).write(str(folder / "object"))
    return folder


def read_by_tensorflow(prefix):
    reader = tf.train.load_checkpoint(str(prefix))
    return {
        name: described(np.asarray(reader.get_tensor(name)))
        for name, dtype in reader.get_variable_to_dtype_map().items()
        if dtype != tf.string
    }


@pytest.mark.parametrize(
    "prefix", ["ours", "ours_many", "savev2", "many", "sharded", "saver", "object"]
)
def test_reads_what_tensorflow_reads(folder, prefix):
    reader = open_bundle(folder / prefix)
    seen = read_by_tensorflow(folder / prefix)
    assert len(seen) >= 3
    assert {name: described(reader.read(name)) for name in reader.names()} == seen
    for name, (dtype, shape, _) in seen.items():
        assert name in reader
        assert (reader.dtype(name), list(reader.shape(name))) == (dtype, shape)


@pytest.mark.parametrize(
    "prefix, tensors", [("ours", sample_tensors), ("ours_many", many_tensors)]
)
def test_tensorflow_reads_what_is_written(folder, prefix, tensors):
    seen = read_by_tensorflow(folder / prefix)
    assert seen == {name: described(value) for name, value in tensors()}


@pytest.mark.parametrize(
    "ours, theirs, blocks", [("ours", "savev2", 1), ("ours_many", "many", 3)]
)
def test_files_equal_tensorflows_byte_by_byte(folder, ours, theirs, blocks):
    for suffix in (".index", ".data-00000-of-00001"):
        written = (folder / f"{ours}{suffix}").read_bytes()
        assert written == (folder / f"{theirs}{suffix}").read_bytes()
    assert (folder / f"{ours}.index").stat().st_size > (blocks - 1) * 262144


def test_object_graph_is_left_out(folder):
    reader = open_bundle(folder / "object")
    assert "_CHECKPOINTABLE_OBJECT_GRAPH" not in reader
    with pytest.raises(CheckpointError, match="GRAPH' is not a numeric tensor"):
        reader.read("_CHECKPOINTABLE_OBJECT_GRAPH")


def test_shards_must_be_all_there_and_in_order(folder):
    index = (folder / "sharded.index").read_bytes()
    shards = [path.read_bytes() for path in sorted(folder.glob("sharded.data-*"))]
    with pytest.raises(CheckpointError, match=r"is for 2 data file\(s\), got 1"):
        TensorBundleReader(index, shards[:1], "sharded")
    with pytest.raises(CheckpointError, match=r"truncated|does not match its checksum"):
        reader = TensorBundleReader(index, shards[::-1], "sharded")
        for name in reader.names():
            reader.read(name)
