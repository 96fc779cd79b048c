"""Folders of Hugging Face that are refused: hostile, damaged, or of other models."""

import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from common import read_json, write_file
from hostile.run import unrefused
from huggingface_folders import FOLDER, WORDS, changed
from sources import assert_same, copied, listing

from roformer_keras.base.errors import CheckpointError, RoFormerError, SourceError
from roformer_keras.conversion.convert import open_prepared
from roformer_keras.io.blob import Blob
from roformer_keras.io.pytorch import open_pytorch

QUERY = "roformer.encoder.layer.0.attention.self.query.weight"


# === Pickles ===


class Hostile:
    """Unpickles as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


STORAGE = "ctorch\nFloatStorage\n"


def torch_zip(path, data, members=(("data/0", b"\0" * 64), ("byteorder", b"little"))):
    """A file of `torch.save` with this pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        for name, content in members:
            archive.writestr(f"archive/{name}", content)


def tensor_pickle(offset=0, shape=(4,), strides=(1,), count=16, storage=STORAGE):
    """A dict of one tensor, as `torch.save` writes it."""

    def number(value):
        return f"L{value}L\n"

    def numbers(values):
        return f"({''.join(map(number, values))}t"

    pid = f"(Vstorage\n{storage}V0\nVcpu\n{number(count)}tQ"
    tensor = (
        f"ctorch._utils\n_rebuild_tensor_v2\n({pid}{number(offset)}{numbers(shape)}"
        f"{numbers(strides)}I00\nccollections\nOrderedDict\n(tRtR"
    )
    return b"\x80\x02" + f"(dVx\n{tensor}s.".encode()


def opened(path):
    with ExitStack() as stack:
        tensors = open_pytorch(Blob.of_file(path), stack)
        return {name: tensor.read() for name, tensor in tensors.items()}


def test_a_pickle_of_a_tensor_is_read(tmp_path):
    """The bad ones below differ from it in one point."""
    torch_zip(tmp_path / "x", tensor_pickle())
    assert_same(opened(tmp_path / "x"), {"x": np.zeros(4, "float32")})


# A tuple that holds the one before twice, a hundred times: its text, hash or comparison
# would never end.
DOUBLED = b"\x80\x02)q\x00" + b"h\x00h\x00\x86q\x00" * 100


def with_doubled(number, **options):
    """The pickle of a tensor, which has that tuple in the place of a number."""
    data = tensor_pickle(**options).replace(f"L{number}L\n".encode(), b"h\x00")
    return DOUBLED + data[2:]


PICKLES = {
    "doubled": (DOUBLED + b".", "must hold tensors by name"),
    "doubled key": (DOUBLED + b"}h\x00K\x01s.", "a key must be a text"),
    "doubled keys": (DOUBLED + b"}(h\x00K\x01u.", "a key must be a text"),
    "doubled key of a dict": (DOUBLED + b"(h\x00K\x01d.", "a key must be a text"),
    "doubled key of pairs": (
        DOUBLED + b"ccollections\nOrderedDict\n(]h\x00K\x01\x86atR.",
        "a key must be a text or an integer, got tuple",
    ),
    "doubled value": (DOUBLED + b"}Vx\nh\x00s.", "got tuple under 'x'"),
    "doubled offset": (with_doubled(77, offset=77), "at least 0, got tuple"),
    "doubled count": (with_doubled(77, count=77), "at least 0, got tuple"),
    "doubled size": (with_doubled(77, shape=(77,)), "at least 0, got tuple"),
    # Each takes its time as often as a few bytes name it.
    "long text as a key": (
        b"\x80\x02}V" + b"x" * 1001 + b"\nN" + b"s.",
        "a key must have at most 1,000 characters, or 64 bits",
    ),
    "long integer as a key": (
        b"\x80\x02}\x8a\x09" + b"\x7f" * 9 + b"Ns.",
        "a key must have at most 1,000 characters, or 64 bits",
    ),
    "many arguments": (
        b"\x80\x02ccollections\nOrderedDict\n(" + b"N" * 9 + b"tR.",
        "a call must have at most 8 arguments",
    ),
    "arguments of another type": (
        b"\x80\x02ccollections\nOrderedDict\n]R.",
        "a call must have at most 8 arguments",
    ),
    "pairs of another type": (
        b"\x80\x02ccollections\nOrderedDict\n(}tR.",
        "an OrderedDict must be made of a list of pairs",
    ),
    "long names of data": (
        b"\x80\x02(" + b"N" * 9 + b"tQ.",
        "by something else than a",
    ),
    "many axes": (
        tensor_pickle(shape=(1,) * 65, strides=(1,) * 65),
        "a tensor must have at most 64 axes",
    ),
    "os.system": (pickle.dumps(Hostile(os.system, "touch x")), "asks for posix.system"),
    "eval": (pickle.dumps(Hostile(eval, "1"), 2), "asks for __builtin__.eval"),
    "getattr": (
        pickle.dumps(Hostile(getattr, 1, "real"), 4),
        "asks for builtins.getat",
    ),
    "nested": (pickle.dumps({"x": [Hostile(os.remove, "x")]}), "asks for posix.remove"),
    "import by name": (b"\x8c\x02os\x8c\x06system\x93.", "asks for os.system"),
    "a class": (pickle.dumps(Path("x")), "asks for"),
    "instance": (b"(i__main__\nx\n.", "asks for __main__.x"),
    "new object": (b"\x80\x02ctorch\nFloatStorage\n)\x81.", "a damaged pickle"),
    "extension": (b"\x80\x02\x82\x01.", "a damaged pickle"),
    "other torch": (b"ctorch.hub\nload\n(Vx\ntR.", "asks for torch.hub.load"),
    "a storage called": (f"{STORAGE}(I5\ntR.".encode(), "a damaged pickle"),
    "a function changed": (
        b"ctorch._utils\n_rebuild_tensor_v2\n(dVdtype\nI1\nsb.",
        "it changes what it has made",
    ),
    "a tensor changed": (
        tensor_pickle()[:-2] + b"(dVshape\nI9\nsbs.",
        "it changes what it has made",
    ),
    "memo": (b"\x80\x02]r\xff\xff\xff\x7f.", "must hold tensors by name"),
    "a set": (DOUBLED + b"\x8f(h\x00\x90.", "a damaged pickle"),
    "a frozen set": (DOUBLED + b"(h\x00\x91.", "a damaged pickle"),
    "long text": (b"\x80\x02X\xff\xff\xff\x7fx.", "a damaged pickle"),
    "depth": (b"\x80\x02" + b"(" * 100_000 + b".", "a damaged pickle"),
    "no tensors": (pickle.dumps([1]), "must hold tensors by name"),
    "numbers": (pickle.dumps({"x": 1}), "got int under 'x'"),
    "cut": (tensor_pickle()[:-9], "asks for collections.OrderedDi"),
    "beyond": (tensor_pickle(offset=13), "reaches beyond its storage"),
    "negative": (tensor_pickle(offset=-1), "must be an integer of at least 0"),
    "negative stride": (tensor_pickle(strides=(-1,)), "an integer of at least 0"),
    "endless": (tensor_pickle(shape=(10**12,), strides=(0,)), "reaches beyond its"),
    "huge": (tensor_pickle(shape=(2**62, 2**62), strides=(0, 0)), "reaches beyond"),
    "axes": (tensor_pickle(shape=(2, 2)), "2 axes and 1 strides"),
    "lying count": (tensor_pickle(count=10**15), "must have 1,000,000,000,000,000"),
    "complex": (
        tensor_pickle(storage="ctorch\nComplexFloatStorage\n"),
        "asks for torch.ComplexFloatStorage",
    ),
}


def loaded(folder):
    """Reads all that a model reads of a folder before it is built."""
    with open_prepared(folder, "preset") as checkpoint:
        for name in checkpoint.tensors:
            checkpoint.weight(name)


def test_a_hostile_pickle_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = copied(FOLDER / "masked-lm-bin", tmp_path)
    path = source / "pytorch_model.bin"
    before = listing(tmp_path)
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2)

    def read(name):
        data = PICKLES[name][0]
        # The older format begins with three more pickles.
        legacy = magic + pickle.dumps(1001, 2) + pickle.dumps({}, 2) + data
        legacy += pickle.dumps(["0"], 2) + struct.pack("<q", 16) + b"\0" * 64
        path.write_bytes(legacy)
        for call in (opened, lambda path: loaded(source)):
            with pytest.raises(CheckpointError):
                call(path)
        torch_zip(path, data)
        opened(path)

    cases = [((name,), message) for name, (_, message) in PICKLES.items()]
    assert unrefused(cases, read, CheckpointError) == []
    assert listing(tmp_path) == before


def test_small_parts_of_a_large_storage_are_refused(tmp_path):
    """Each of them would be read by reading all of it."""
    tensor = tensor_pickle()[4:-2]
    for count, is_read in ((256, True), (257, False)):
        names = (tensor.replace(b"Vx", b"V%d" % n) + b"s" for n in range(count))
        torch_zip(tmp_path / "x", b"\x80\x02}" + b"".join(names) + b".")
        if is_read:
            assert len(opened(tmp_path / "x")) == count
        else:
            with pytest.raises(CheckpointError, match="257 tensors share 1 storages"):
                opened(tmp_path / "x")


def test_keys_of_storages_are_texts(tmp_path):
    head = [0x1950A86A20F9469CFC6C, 1001, {}]
    data = b"".join(pickle.dumps(one, 2) for one in head) + tensor_pickle()
    (tmp_path / "x").write_bytes(data + DOUBLED + b"]h\x00a.")
    with pytest.raises(CheckpointError, match="its list of storages must name"):
        opened(tmp_path / "x")


def test_every_cut_of_a_pytorch_file_is_refused(tmp_path):
    for name in ("masked-lm-bin", "causal-lm"):
        whole = (FOLDER / name / "pytorch_model.bin").read_bytes()
        path = tmp_path / "pytorch_model.bin"
        for share in (0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999):
            path.write_bytes(whole[: int(len(whole) * share)])
            with pytest.raises(RoFormerError):
                opened(path)


def test_views_of_one_storage_are_read(tmp_path):
    """Strides, offsets and a scalar."""
    data = tensor_pickle(offset=1, shape=(3, 2), strides=(1, 4))
    numbers = np.arange(16, dtype="float32")
    torch_zip(tmp_path / "x", data, [("data/0", numbers.tobytes())])
    expected = np.array([[1, 5], [2, 6], [3, 7]], "float32")
    assert_same(opened(tmp_path / "x"), {"x": expected})
    torch_zip(tmp_path / "y", tensor_pickle(3, (), ()), [("data/0", numbers.tobytes())])
    assert opened(tmp_path / "y")["x"].shape == ()


# === Configurations, tensors, files ===


FIELDS = {
    "model_type": ("bert", "model_type must be 'roformer'"),
    "rotary_value": (True, "rotary_value must be False"),
    "add_cross_attention": (True, "add_cross_attention must be False"),
    "is_encoder_decoder": (True, "is_encoder_decoder must be False"),
    "pad_token_id": (1, "pad_token_id must be 0"),
    "pruned_heads": ({"0": [1]}, "pruned_heads must be"),
    "quantization_config": ({"bits": 4}, "quantization_config must be None"),
    "hidden_act": ("gelu_10", "hidden_act must be one of gelu"),
    "is_decoder": ("yes", "is_decoder must be true or false"),
    "use_bias": (False, "use_bias must be True for tensors with norms"),
    "hidden_size": (15, "hidden_dim must be a multiple"),
    "num_hidden_layers": (10**9, "has 1,000,000,000 layers, but there are only"),
    "layer_norm_eps": (0, "layer_norm_epsilon must be"),
    "vocab_size": ("145", "vocabulary_size"),
    "embedding_size": (11, "expected (145, 11)"),
    "type_vocab_size": (3, "expected (3, 12)"),
}


def test_a_field_is_mapped_or_refused(tmp_path):
    def read(name):
        (tmp_path / name).mkdir()
        loaded(changed("encoder", tmp_path / name, {name: FIELDS[name][0]}))

    cases = [((name,), message) for name, (_, message) in FIELDS.items()]
    assert unrefused(cases, read, RoFormerError, exact=False) == []


def array(*shape):
    return np.ones(shape, "float32")


TENSORS = {
    "missing": ({"encoder.layer.1.output.dense.weight": None}, "missing bert/encoder"),
    "unexpected": ({"encoder.extra": array(2)}, "unexpected roformer.encoder.extra"),
    "shape": ({"embeddings_project.bias": array(5)}, "has shape (5,)"),
    "positions": ({"encoder.embed_positions.weight": array(8, 4)}, "sines and cosines"),
    # An empty array of any size takes no space in a file.
    "no columns": (
        {"encoder.embed_positions.weight": np.ones((2**40, 0), "float32")},
        "sines and cosines",
    ),
    "untied": ({"cls.predictions.decoder.weight": array(145, 12)}, "must equal roform"),
    "twice": (
        {f"roformer.{'embeddings.LayerNorm.bias'}": array(12)},
        "two tensors for",
    ),
    "nan": ({"embeddings.LayerNorm.bias": array(12) * np.nan}, "must hold finite"),
    "integers": ({"embeddings.LayerNorm.bias": np.ones(12, "int32")}, "a float tensor"),
    "another model": (
        {"embeddings.word_embeddings.weight": None},
        "must hold the weights of a RoFormer of Hugging Face",
    ),
}


def test_tensors_that_do_not_fit_are_refused(tmp_path):
    def read(name):
        (tmp_path / name).mkdir()
        loaded(changed("encoder", tmp_path / name, tensors=TENSORS[name][0]))

    cases = [((name,), message) for name, (_, message) in TENSORS.items()]
    assert unrefused(cases, read, CheckpointError) == []


# Lies in the header of a safetensors file are in `hostile.tensors`.


def reindex(change):
    def damage(folder):
        path = folder / "model.safetensors.index.json"
        index = read_json(path)
        change(index["weight_map"])
        write_file(path, index)

    return damage


def write_index(text):
    return lambda folder: (folder / "model.safetensors.index.json").write_text(text)


THIRD = "model-00003-of-00003.safetensors"
SHARDS = {
    "missing shard": (lambda folder: (folder / THIRD).unlink(), "no such shard"),
    "missing entry": (reindex(lambda index: index.pop(WORDS)), "in the shard only"),
    "extra entry": (reindex(lambda index: index.update(x=THIRD)), "x is in the index"),
    "other shard": (
        reindex(lambda index: index.update({WORDS: THIRD, QUERY: THIRD})),
        "must name the same tensors",
    ),
    "outside": (
        reindex(lambda index: index.update(x="../../secret.safetensors")),
        "names '../../secret.safetensors'",
    ),
    "other file": (reindex(lambda i: i.update(x="config.json")), "'config.json'"),
    "a role": (reindex(lambda i: i.update(x="config")), "no such shard"),
    "number": (reindex(lambda index: index.update(x=3)), "must have a weight_map"),
    "no map": (write_index("{}"), "must have a weight_map"),
    "no object": (write_index("[]"), "must hold one JSON object"),
    "no JSON": (write_index("{"), "is not valid JSON"),
    "truncated shard": (
        lambda folder: (folder / THIRD).write_bytes((folder / THIRD).read_bytes()[:-8]),
        "is damaged",
    ),
    "empty shard": (lambda folder: (folder / THIRD).write_bytes(b""), "is damaged"),
}


def test_shards_that_do_not_fit_their_index_are_refused(tmp_path):
    def read(name):
        (tmp_path / name).mkdir()
        source = copied(FOLDER / "masked-lm", tmp_path / name)
        SHARDS[name][0](source)
        loaded(source)

    cases = [((name,), message) for name, (_, message) in SHARDS.items()]
    assert unrefused(cases, read, RoFormerError, exact=False) == []


def test_a_bin_without_a_config_says_what_is_missing(tmp_path):
    source = copied(FOLDER / "masked-lm-bin", tmp_path)
    (source / "config.json").unlink()
    with pytest.raises(SourceError, match=r"config\.json with model\.safetensors"):
        loaded(source)


def test_ordered_dicts_in_a_pickle_are_read(tmp_path):
    """`state_dict` of older versions is one, with versions in its attributes."""
    empty = OrderedDict()
    torch_zip(tmp_path / "x", pickle.dumps(empty, 2), [])
    assert opened(tmp_path / "x") == {}
