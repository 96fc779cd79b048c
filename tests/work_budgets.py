"""Files that ask for much work or memory, and a process that reads them with limits."""

import faulthandler
import json
import pickle
import resource
import shutil
import struct
import time
import zipfile
from contextlib import ExitStack
from pathlib import Path

import h5py
import numpy as np
from common import ROOT, SMALL, zipped

from roformer_keras.conversion.convert import convert, prepare
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.errors import RoFormerError
from roformer_keras.io import tensor_bundle
from roformer_keras.io.blob import Blob
from roformer_keras.io.json_file import parse_json
from roformer_keras.io.pytorch import open_pytorch

# What one file may take. It is 2 s where nothing else runs; the memory and caches of a
# busy machine make it more.
SECONDS, MEMORY = 5.0, 500 * 2**20
CONFIG = zipped(SMALL, "bert_config.json")
VOCABULARY = zipped(SMALL, "vocab.txt")

# A dict of one tensor of one number, as `torch.save` writes it.
TENSOR = (
    b"\x80\x02(dVx\nctorch._utils\n_rebuild_tensor_v2\n((Vstorage\nctorch\n"
    b"FloatStorage\nV0\nVcpu\nI1\ntQI0\n(I1\nt(I1\ntI00\nccollections\nOrderedDict\n"
    b"(tRtRs."
)


# === Makers: each writes files into a folder ===


def many_tensors(count, **config):
    """Safetensors of so many empty tensors."""
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}

    def make(folder):
        header = json.dumps({f"bert/{i}": entry for i in range(count)}).encode()
        (folder / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
        fields = {**json.loads(CONFIG), **config}
        (folder / "bert_config.json").write_text(json.dumps(fields))

    return make


def metadata(name, value):
    def make(folder):
        header = json.dumps({"__metadata__": {name: value}}).encode()
        (folder / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)

    return make


def beside(name, content):
    """The small checkpoint, with a file of another content."""

    def make(folder):
        with zipfile.ZipFile(SMALL) as archive:
            for member in archive.namelist():
                if not member.endswith("/"):
                    path = folder / member.split("/")[-1]
                    path.write_bytes(archive.read(member))
        (folder / name).write_bytes(content)

    return make


def hugging_face_token(folder):
    """A `tokenizer.json` whose last token is long."""
    for path in (ROOT / "tests" / "data" / "huggingface" / "encoder").iterdir():
        shutil.copy(path, folder)
    tokens = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    (folder / "vocab.txt").unlink()
    tokens[-1] = "x" * 7_000_000
    model = {"type": "WordPiece", "vocab": {t: i for i, t in enumerate(tokens)}}
    (folder / "tokenizer.json").write_text(json.dumps({"model": model}))


def hdf5(make_content):
    def make(folder):
        (folder / "bert_config.json").write_bytes(CONFIG)
        with h5py.File(folder / "x.h5", "w", libver="latest") as file:
            make_content(file)

    return make


def many_groups(file):
    for number in range(9_990):
        file.create_group(str(number))


def many_links(file):
    file["x"] = np.zeros(8, "f4")
    for number in range(9_990):
        file[f"y{number}"] = file["x"]


def many_names(file):
    """Each layer has the same weights."""
    names = [f"w{i}".encode() for i in range(1000)]
    for name in names:
        file[f"a/{name.decode()}"] = np.zeros(1, "f4")
    file["a"].attrs["weight_names"] = names
    file.attrs["layer_names"] = [b"a"] * 4000


def deep_groups(file):
    group = file
    for _ in range(3000):
        group = group.create_group("x")


def object_graph(graph):
    """An object checkpoint with this graph."""

    def make(folder):
        (folder / "bert_config.json").write_bytes(CONFIG)
        length = len(graph).to_bytes(4, "little")
        crc = tensor_bundle._masked_crc32c(length).to_bytes(4, "little")
        data = tensor_bundle._varint(len(graph)) + crc + graph
        total = tensor_bundle._masked_crc32c(length + crc + graph)
        entry = (
            tensor_bundle._number_field(1, 7)
            + tensor_bundle._number_field(5, len(data))
            + tensor_bundle._fixed32_field(6, total)
        )
        header = tensor_bundle._number_field(1, 1)
        table = [(b"", header), (tensor_bundle.OBJECT_GRAPH.encode(), entry)]
        (folder / "x.index").write_bytes(tensor_bundle._encode_table(table))
        (folder / "x.data-00000-of-00001").write_bytes(data)

    return make


def index_of(table):
    def make(folder):
        (folder / "bert_config.json").write_bytes(CONFIG)
        header = tensor_bundle._number_field(1, 1)
        content = tensor_bundle._encode_table([(b"", header), *table])
        (folder / "x.index").write_bytes(content)
        (folder / "x.data-00000-of-00001").write_bytes(b"")

    return make


def torch(data):
    def make(folder):
        with zipfile.ZipFile(folder / "x.bin", "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("archive/data.pkl", b"\x80\x02" + data + b".")
            archive.writestr("archive/data/0", bytes(64))

    return make


def many_members(folder):
    (folder / "bert_config.json").write_bytes(CONFIG)
    with zipfile.ZipFile(folder / "x.zip", "w") as archive:
        for number in range(10_000):
            archive.writestr(f"{number}/x", b"")


def legacy_keys(folder):
    """One storage, named a million times."""
    head = [0x1950A86A20F9469CFC6C, 1001, {}]
    data = b"".join(pickle.dumps(part, 2) for part in head) + TENSOR
    keys = b"\x80\x02](V0\nq\x00" + b"h\x00" * 10**5 + b"e."
    (folder / "x.bin").write_bytes(data + keys + bytes(80))


# === Readers ===


def use(folder):
    """Everything that `inspect` and `convert` do."""
    names = sorted(path.name for path in folder.glob("x.*"))
    single = [name for name in names if name.endswith((".safetensors", ".h5", ".zip"))]
    source = folder / single[0] if single else folder
    with open_checkpoint(source) as checkpoint:
        str(checkpoint.config), checkpoint.rows, checkpoint.heads
        prepare(checkpoint)
    convert(source, folder / "out", verbose=0)


def unpickle(folder):
    with ExitStack() as stack:
        tensors = open_pytorch(Blob.of_file(folder / "x.bin"), stack)
        for tensor in tensors.values():
            tensor.read()


def strictly(folder):
    parse_json((folder / "x.json").read_bytes(), "x.json", strict=True)


def json_file(text):
    return lambda folder: (folder / "x.json").write_text(text)


def settings(text):
    return lambda folder: (folder / "x.toml").write_text(text)


def read_settings(folder):
    from roformer_keras.training.finetuning_settings import FinetuningSettings

    FinetuningSettings.from_toml(folder / "x.toml")


NAMES = b"ccollections\nOrderedDict\nq\x00"
LIST = json.dumps([[]] * 2_750_000).replace(" ", "")
ENTRY = tensor_bundle._number_field(1, 1)
# Name -> what makes the files, what reads them.
ROWS = {
    "300,000 tensors": (many_tensors(300_000), use),
    "10,000 tensors": (many_tensors(10_000), use),
    "9,999 layers": (many_tensors(9_999, num_hidden_layers=9_999), use),
    "2,490 layers": (many_tensors(9_999, num_hidden_layers=2_490), use),
    "vocabulary of lists": (metadata("vocabulary", LIST), use),
    "config of lists": (metadata("config", f'{{"x": {LIST}}}'), use),
    "bert_config of lists": (
        beside("bert_config.json", f'{{"x": {LIST}}}'.encode()),
        use,
    ),
    "long bert_config": (beside("bert_config.json", b" " * 2**25), use),
    "vocabulary of short lines": (beside("vocab.txt", b"\n" * 2**23), use),
    "vocabulary of two characters": (
        beside("vocab.txt", "今天\n".encode() * 1_190_000),
        use,
    ),
    "long token": (
        beside("vocab.txt", VOCABULARY.rsplit(b"\n", 2)[0] + b"\n" + b"x" * 7_000_000),
        use,
    ),
    "long token of Hugging Face": (hugging_face_token, use),
    "many groups": (hdf5(many_groups), use),
    "many links": (hdf5(many_links), use),
    "many names": (hdf5(many_names), use),
    "deep groups": (hdf5(deep_groups), use),
    "nodes": (object_graph(b"\x0a\x00" * 10**6), use),
    "children": (
        object_graph(b"\x0a\x80\xe2\x7a" + b"\x0a\x02\x12\x00" * 502_848),
        use,
    ),
    "long graph": (object_graph(b"\x0a\x00" * 2**24), use),
    "long entry": (index_of([(b"x", ENTRY + b"\x18\x00" * 2**21)]), use),
    "entries": (index_of([(b"%07d" % i, ENTRY) for i in range(250_000)]), use),
    "members": (many_members, use),
    "pickled lists": (torch(b"]" * (2**24 - 3)), unpickle),
    "pairs again and again": (
        torch(
            NAMES
            + b"]("
            + b"(K\x01K\x01t" * 10**4
            + b"e\x85q\x01"
            + b"h\x00h\x01R" * 10**5
        ),
        unpickle,
    ),
    "arguments again and again": (
        torch(NAMES + b"(" + b"N" * 10**5 + b"tq\x01" + b"h\x00h\x01R" * 90_000),
        unpickle,
    ),
    "long integer as a key": (
        torch(
            b"\x8b"
            + struct.pack("<i", 10**6)
            + b"\x7f" * 10**6
            + b"q\x00"
            + b"}("
            + b"h\x00h\x00" * 150_000
            + b"u"
        ),
        unpickle,
    ),
    "long text as a key": (
        torch(
            b"".join(
                b"X" + struct.pack("<i", 10**6) + b"x" * 10**6 + b"q" + place
                for place in (b"\x00", b"\x01")
            )
            + b"}("
            + b"h\x00N" * 10
            + b"h\x01N" * 190_000
            + b"u"
        ),
        unpickle,
    ),
    "keys of storages": (legacy_keys, unpickle),
    "a key twice": (
        json_file(
            json.dumps({str(i): 0 for i in range(300_000)})[:-1] + ', "299999": 0}'
        ),
        strictly,
    ),
    "dotted keys": (
        settings("".join(f"{'a.' * 1990}b{i} = 1\n" for i in range(64))),
        read_settings,
    ),
    "keys in a table": (
        settings(f"[{'a.' * 99}a]\n" + "".join(f"b{i}=1\n" for i in range(24_000))),
        read_settings,
    ),
    "keys in a long table": (
        settings(f"[{'a.' * 999}a]\n" + "".join(f"b{i}=1\n" for i in range(24_000))),
        read_settings,
    ),
    "tables": (settings("".join(f"[a.b{i}]\n" for i in range(20_000))), read_settings),
    "tables in tables": (settings(f"x = {'{x=' * 5000}1{'}' * 5000}"), read_settings),
    "arrays": (settings("[[a]]\n" * 40_000), read_settings),
}


class Reader:
    """Reads the files of a row in a process of its own, with its memory limited."""

    def read(self, name: str, folder: str) -> dict:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        start, said = time.process_time(), "read"
        faulthandler.dump_traceback_later(30, exit=True)
        try:
            ROWS[name][1](Path(folder))
        except RoFormerError as error:
            said = f"{type(error).__name__}: {error}"
            if len(said) > 2000:
                said = f"a message of {len(said)} characters"
            cause: BaseException | None = error
            while cause is not None:
                if isinstance(cause, MemoryError):
                    said = "MemoryError"
                cause = cause.__cause__ or cause.__context__
        except Exception as error:
            said = f"raw {type(error).__name__}: {error}"
        faulthandler.cancel_dump_traceback_later()
        resource.setrlimit(
            resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        )
        return {"said": said[:300], "seconds": time.process_time() - start}
