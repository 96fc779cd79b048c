"""Checkpoint files: reading, writing, and damage.

`tests/model/test_tensor_bundle_parity.py` holds them against TensorFlow's own.
"""

import random
import tracemalloc

import numpy as np
import pytest
from bundles import described, open_bundle

from roformer_keras.base.errors import CheckpointError
from roformer_keras.io import tensor_bundle
from roformer_keras.io.tensor_bundle import TensorBundleReader, write_tensor_bundle

# Written by TensorFlow 2.21: SaveV2 of `bert/x` (range(6.) as 2x3), `bert/y` (float16,
# 0x4), `global_step` (int64 7), `graph` (two strings) and `v`, whose first two rows of
# four are ones, in two slices.
GOLDEN_INDEX = bytes.fromhex(
    "00000608011a020801000a150076000101028082807f080112081202080212020803202d2818"
    "356b3e3aa80604158282807f0801120812020802120208032045281835cff45f7c0006136265"
    "72742f78080112081202080212020803281835c0db3d17050111790813120612001202080420"
    "1835d8ea82a2000b0d676c6f62616c5f73746570080912002018280835bbd79f110104117261"
    "706808071204120208022020280d356e44d45500011e760801120812020804120208033a060a"
    "0210020a003a080a04080210020a00000000000100000000de7f7f5f000000000100000000c0"
    "f2a1b00001037700d501000000000100000000a55e5ab7da0108e7010f000000000000000000"
    "0000000000000000000000000000000000000000000000000057fb808b247547db"
)
GOLDEN_DATA = bytes.fromhex(
    "000000000000803f0000004000004040000080400000a04007000000000000000205475ba249"
    "686974686572650000803f0000803f0000803f0000803f0000803f0000803f00000000000000"
    "0000000000000000000000000000000000"
)
DATA_BLOCK_END, METAINDEX_END, INDEX_BLOCK_END = 213, 231, 246
FOOTER = 251


def read_all(index: bytes, data: bytes = GOLDEN_DATA) -> dict:
    reader = TensorBundleReader(index, [data], "golden")
    whole = [name for name in reader.names() if name != "v"]
    return {name: described(reader.read(name)) for name in whole}


def sealed(index: bytes) -> bytes:
    """`index`, a changed golden one, with the checksums of its blocks made good."""
    index = bytearray(index)
    for start, end in ((0, DATA_BLOCK_END), (METAINDEX_END, INDEX_BLOCK_END)):
        crc = tensor_bundle._masked_crc32c(bytes(index[start : end + 1]))
        index[end + 1 : end + 5] = crc.to_bytes(4, "little")
    return bytes(index)


def index_of(entry: bytes, header: bytes = bytes.fromhex("08011a020801")) -> bytes:
    return tensor_bundle._encode_table([(b"", header), (b"bert/x", entry)])


def one_block_index(block: bytes, handles: int = 1) -> bytes:
    """An index around one data block, which its index block names `handles` times."""
    table = bytearray()
    handle = tensor_bundle._append_block(table, block)
    index_block = tensor_bundle._BlockBuilder(1)
    for number in range(handles):
        index_block.add(bytes([number + 1]), handle)
    footer = handle + tensor_bundle._append_block(table, index_block.encode())
    return bytes(table) + footer.ljust(40, b"\0") + tensor_bundle._MAGIC


# === Reading ===


def test_golden_file():
    reader = TensorBundleReader(GOLDEN_INDEX, [GOLDEN_DATA], "golden")
    assert reader.names() == ["bert/x", "bert/y", "global_step", "v"]
    assert reader.read("bert/x").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert reader.read("bert/y").shape == (0, 4)
    assert reader.read("global_step") == 7
    assert reader.shape("v") == (4, 3)
    with pytest.raises(CheckpointError, match=r"^golden: there is no tensor 'bert/z'"):
        reader.shape("bert/z")
    with pytest.raises(CheckpointError, match="'graph' is not a numeric tensor"):
        reader.dtype("graph")
    for unknown_type in ("0800", "0865", "08ffffffff0f"):
        with pytest.raises(CheckpointError, match="'bert/x' is not a numeric tensor"):
            index = index_of(bytes.fromhex(unknown_type))
            TensorBundleReader(index, [b""], "golden").dtype("bert/x")
    with pytest.raises(CheckpointError, match="'v' is a partitioned variable in 2"):
        reader.read("v")


def test_arrays_are_read_only_and_a_view_where_the_shard_is_in_memory():
    shard = memoryview(GOLDEN_DATA)
    misaligned = memoryview(b"!" + GOLDEN_DATA)[1:]
    for data in (shard, GOLDEN_DATA, misaligned):
        array = TensorBundleReader(GOLDEN_INDEX, [data], "golden").read("bert/x")
        assert array.flags.aligned and not array.flags.writeable
        assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
        if data is shard:
            assert np.shares_memory(array, np.frombuffer(shard, np.uint8))


# === Writing ===


def test_any_memory_layout_and_order_of_names(tmp_path):
    matrix = np.arange(6.0).reshape(2, 3)
    tensors = [("z", matrix.T), ("b", matrix[:, ::2]), ("a", matrix.astype(">f8"))]
    write_tensor_bundle(tmp_path / "x", tensors)
    reader = open_bundle(tmp_path / "x")
    assert reader.names() == ["a", "b", "z"]
    for name, value in tensors:
        read = reader.read(name)
        assert read.dtype == np.dtype("float64")  # in native byte order
        np.testing.assert_array_equal(read, value)


def test_a_checkpoint_without_tensors(tmp_path):
    write_tensor_bundle(tmp_path / "x", [])
    assert open_bundle(tmp_path / "x").names() == []


def test_one_tensor_in_memory_at_a_time(tmp_path):
    num_bytes = 2**22
    tensors = ((str(i), np.full(num_bytes, i, "uint8")) for i in range(8))
    tracemalloc.start()
    write_tensor_bundle(tmp_path / "x", tensors)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.5 * num_bytes


@pytest.mark.parametrize(
    "tensors, message",
    [
        ([("", np.zeros(1))], "may not be empty"),
        ([("\0a", np.zeros(1))], "may not begin with NUL, got '\\\\x00a'"),
        ([("a", np.zeros(1)), ("a", np.ones(1))], "must differ.*got 'a'"),
        ([("a", np.array(["text"]))], "'a' has type <U4, which a TensorFlow"),
        ([("a", np.array([None]))], "'a' has type object"),
    ],
)
def test_unwritable_tensors(tmp_path, tensors, message):
    with pytest.raises(CheckpointError, match=message):
        write_tensor_bundle(tmp_path / "x", tensors)


# === Damage ===


@pytest.mark.parametrize(
    "index, message",
    [
        (b"", "magic number"),
        (b"PK\3\4" * 40, "magic number"),
        (b"\xff" * 300, "magic number"),
        (GOLDEN_INDEX + b"\0", "magic number"),
        (GOLDEN_INDEX[-48:], "index block lies outside"),
        (GOLDEN_INDEX[:FOOTER] + b"\x80" * 40 + GOLDEN_INDEX[-8:], "longer than 64"),
        (
            GOLDEN_INDEX[:FOOTER] + bytes(40) + GOLDEN_INDEX[-8:],
            "index block does not match",
        ),
        (GOLDEN_INDEX[:-1], "magic number.*truncated"),
        (GOLDEN_INDEX[:-48][50:] + GOLDEN_INDEX[-48:], "index block lies outside"),
        (b"!" + GOLDEN_INDEX[1:], "data block 0 does not match its checksum"),
        (GOLDEN_INDEX[:235] + b"!" + GOLDEN_INDEX[236:], "index block does not match"),
        (GOLDEN_INDEX[:FOOTER] + b"\xff" * 40 + GOLDEN_INDEX[-8:], "longer than 64"),
        (
            sealed(GOLDEN_INDEX[:213] + b"\1" + GOLDEN_INDEX[214:]),
            r"data block 0 is compressed \(type 1; 1 is Snappy\)",
        ),
        (tensor_bundle._encode_table([(b"bert/x", b"")]), "no header"),
        (index_of(b"", header=b"\x08\1\x10\1"), "big-endian"),
        (index_of(b"", header=b"\x08\1\x1a\2\x10\2"), "a reader of format 2"),
        (index_of(b"", header=b"\x08\2"), r"for 2 data file\(s\), got 1"),
        (index_of(b"", header=b"\x08" + b"\xff" * 12), "longer than 64"),
        (index_of(b"", header=b"\x08\x80\x80\x80\x80\x08"), "for 2147483648 data"),
        (index_of(b"", header=b""), r"for 0 data file\(s\), got 1"),
        (one_block_index(b""), "no room for its restart"),
        (one_block_index(b"\xff" * 8), "no room for its restart"),
        (one_block_index(b"\5\0\0" + bytes(4)), "longer than its block"),
        (one_block_index(b"\0\5\0" + bytes(4)), "longer than its block"),
        (one_block_index(b"\0\0\xff" + bytes(4)), "ends within a number|longer than"),
        (one_block_index(bytes(6) + bytes(4)), "key b'' is out of order"),
        (one_block_index(bytes(3) + bytes(4), handles=2), "data blocks overlap"),
    ],
)
def test_damaged_index(index, message):
    with pytest.raises(CheckpointError, match=f"^golden: the index .*{message}"):
        read_all(index)


DIM = tensor_bundle._bytes_field(2, tensor_bundle._number_field(1, 2**62))


@pytest.mark.parametrize(
    "entry, message",
    [
        ("0801 1204 12020806 2817", "float32 of shape \\(6,\\) takes 24 bytes.*says 2"),
        ("0801 1204 12020806 2818 207f", "ends at byte 151 of .* has 93: .* truncated"),
        ("0801 1204 12020806 2818 1801", "data file 1, counted from 0, but there are"),
        ("0801 1204 12020806 2818 20ffffffffffffffffff01", "truncated"),
        ("0801 1204 12020806 2818 18ffffffffffffffffff01", "in data file 18446744"),
        ("0801 1204 12020806 2818 20ffffffffffffffffff02", "longer than 64 bits"),
        ("0801 120d 120b08ffffffffffffffffff01", "no array can have"),  # -1
        ("0801 1204 12001200 2801", "takes 0 bytes, but the index says 1"),
        ("0801 1204 12020806 28ffffffffffffffffff01", "takes 24 bytes"),
        ("0801 12ff", "ends within a number"),
        ("0801 127f", "field 2 runs past the end"),
        ("0801 3500", "field 6 runs past the end"),
        ("0b", "field 1 has the unknown wire type 3"),
        (
            "0801" + tensor_bundle._bytes_field(2, b"\x12\0" + DIM * 3).hex(),
            "no array can have its 4-dimensional shape",
        ),
        (
            "0801" + tensor_bundle._bytes_field(2, b"\x12\0" * 33).hex(),
            "no array can have its 33-dimensional shape",
        ),
    ],
)
def test_damaged_entry(entry, message):
    with pytest.raises(CheckpointError, match=f"^golden: tensor 'bert/x': .*{message}"):
        read_all(index_of(bytes.fromhex(entry)))


def test_name_that_is_not_utf8():
    index = tensor_bundle._encode_table([(b"", b"\x08\1"), (b"a\xc3", b"")])
    with pytest.raises(CheckpointError, match=r"tensor 'a\\\\xc3': .*utf-8"):
        read_all(index)


def test_every_flipped_bit_of_the_index_is_noticed():
    genuine = read_all(GOLDEN_INDEX)
    harmless = set()
    for bit in range(8 * len(GOLDEN_INDEX)):
        index = bytearray(GOLDEN_INDEX)
        index[bit // 8] ^= 1 << bit % 8
        try:
            assert read_all(bytes(index)) == genuine
        except CheckpointError:
            continue
        harmless.add(bit // 8)
    # TensorFlow does not look at the metaindex either, nor at what fills the footer.
    metaindex = range(DATA_BLOCK_END + 5, METAINDEX_END)
    assert harmless <= {*metaindex, *range(FOOTER, FOOTER + 40)}


def test_every_truncation_of_the_index_is_noticed():
    for length in range(len(GOLDEN_INDEX)):
        with pytest.raises(CheckpointError):
            read_all(GOLDEN_INDEX[:length])


def test_every_damaged_byte_of_the_data_names_its_tensor():
    owners = {"bert/x": range(24), "global_step": range(24, 32)}
    for name, owned in owners.items():
        for position in owned:
            data = bytearray(GOLDEN_DATA)
            data[position] ^= 1 << position % 8
            with pytest.raises(CheckpointError, match=f"'{name}' does not match its"):
                read_all(GOLDEN_INDEX, bytes(data))


@pytest.mark.parametrize(("size", "message"), [(23, ""), (0, "has 0: .*")])
def test_truncated_data_names_the_tensor(size, message):
    with pytest.raises(CheckpointError, match=rf"'bert/x': .*{message}truncated; get"):
        read_all(GOLDEN_INDEX, GOLDEN_DATA[:size])


def test_only_checkpoint_errors_behind_good_checksums():
    """Random bytes change, and the blocks' checksums are made to fit them."""
    rng = random.Random(0)
    body = [*range(DATA_BLOCK_END + 1), *range(METAINDEX_END, INDEX_BLOCK_END)]
    refused = 0
    for _ in range(4000):
        index = bytearray(GOLDEN_INDEX)
        for position in rng.sample(body, rng.randint(1, 4)):
            index[position] = rng.choice((rng.randrange(256), 0, 0x7F, 0x80, 0xFF))
        try:
            read_all(sealed(index))
        except CheckpointError:
            refused += 1
    assert refused > 2000


def test_long_keys_cannot_fill_the_memory():
    """An index of 1 MB whose keys, each a byte longer, take 4 GB in all."""
    length, number = 2**20, 4000
    varint = tensor_bundle._varint
    block = b"\0" + varint(length) + b"\0" + b"a" * length
    for added in range(number):
        block += varint(length + added) + b"\1\0a"
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="keys take more than 67108864 bytes"):
        read_all(one_block_index(block + bytes(4)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * 2**26
