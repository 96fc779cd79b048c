"""HDF5 weights of bert4keras, as SOURCE: what h5py can be made to write."""

import h5py
import numpy as np
from common import SAVED, SMALL, zipped

H5 = (SAVED / "unilm-pool.h5").read_bytes()
CONFIG = zipped(SMALL, "bert_config.json")
BIAS = "Pooler-Dense/Pooler-Dense/bias:0"
POOLER = "Pooler-Dense"


def h5(edit):
    """The small checkpoint as HDF5, after an edit, next to its configuration."""

    def write(folder):
        (folder / "bert_config.json").write_bytes(CONFIG)
        (folder / "x.h5").write_bytes(H5)
        with h5py.File(folder / "x.h5", "a") as file:
            edit(file)

    return write


def dataset(make):
    """Another object in place of the pooler's bias."""

    def edit(file):
        del file[BIAS]
        make(file)

    return h5(edit)


def value(content, **options):
    return dataset(lambda file: file.create_dataset(BIAS, data=content, **options))


def shaped(shape, dtype="float32", **options):
    return dataset(lambda file: file.create_dataset(BIAS, shape, dtype, **options))


def attribute(name, content, place="/"):
    return h5(lambda file: file[place].attrs.__setitem__(name, content))


def link(made):
    return dataset(lambda file: file.__setitem__(BIAS, made))


def external(name):
    return shaped((8,), external=[(name, 0, 32)])


def with_type(file):
    file["named"] = np.dtype("float32")
    file[BIAS] = file["named"]


def hard_loop(file):
    file[f"{POOLER}/loop"] = file["/"]
    file[BIAS] = file[POOLER]


def unset(file):
    """A dataset whose storage was never allocated reads as its fill value."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_fill_value(np.array(7, "float32"))
    space = h5py.h5s.create_simple((8,))
    name = BIAS.encode()
    h5py.h5d.create(file.id, name, h5py.h5t.IEEE_F32LE, space, plist)


def virtual(source):
    def make(file):
        layout = h5py.VirtualLayout((8,), "float32")
        layout[:] = h5py.VirtualSource(source, "y", (8,))
        file.create_virtual_dataset(BIAS, layout)

    return dataset(make)


def compound(file):
    pair = np.zeros(8, [("real", "f4"), ("imaginary", "f4")])
    file[BIAS] = pair


def references(file):
    data = file.create_dataset(BIAS, (8,), h5py.ref_dtype)
    data[0] = file.ref


def variable_length(file):
    data = file.create_dataset(BIAS, (8,), h5py.vlen_dtype("f4"))
    data[0] = np.zeros(3, "f4")


def deep(file):
    group = file
    for _ in range(2000):
        group = group.create_group("g")
    group["x"] = h5py.ExternalLink("/etc/passwd", "x")


ELSEWHERE = "lies in another file, which a file of weights must not name"
FLOAT = "must be a float tensor to be a weight"
CUT = "is not a whole HDF5 file"
UNREAD = "x.h5 cannot be read"
OBJECT = "tensor 'Pooler-Dense/Pooler-Dense/bias:0' must be a"
HOLES = "tensor 'Pooler-Dense/Pooler-Dense/bias:0' declares"
EDITS = [
    # Names of other files, and names that are no file's.
    *((external(name), ELSEWHERE) for name in ("/etc/passwd", "/dev/zero", "../../x")),
    (link(h5py.ExternalLink("/etc/passwd", "x")), ELSEWHERE),
    (link(h5py.ExternalLink("x.h5", "Embedding-Token")), ELSEWHERE),
    *((virtual(name), ELSEWHERE) for name in ("y.h5", ".")),
    (h5(deep), "must have groups at most 64 deep: it is no checkpoint"),
    (link(h5py.SoftLink("/nowhere")), f"{UNREAD}: Unable to synchronously open"),
    (link(h5py.SoftLink(f"/{BIAS}")), f"{UNREAD}: Special link traversal failed"),
    *((link(h5py.SoftLink(name)), OBJECT) for name in ("/", ".")),
    (dataset(hard_loop), OBJECT),
    # Objects and types that are no floats.
    (dataset(with_type), OBJECT),
    (dataset(lambda file: file.create_group(BIAS)), OBJECT),
    (value(h5py.Empty("f4")), OBJECT),
    *((dataset(make), FLOAT) for make in (compound, references, variable_length)),
    *((value(content), FLOAT) for content in (["x"] * 8, np.array([b"x"] * 8))),
    *(
        (value(np.zeros(8, kind)), FLOAT)
        for kind in ("bool", "complex64", "uint8", "V4", h5py.enum_dtype({"a": 0}))
    ),
    (value(np.zeros(8, np.dtype(("f4", (2,))))), "bias has shape (8, 2), expected"),
    # Shapes.
    (value(np.float32(1)), "has shape (), expected (8,)"),
    (shaped((0,)), "has shape (0,), expected (8,)"),
    (shaped((8, 0)), "has shape (8, 0), expected (8,)"),
    (shaped((2**40,), chunks=(1000,)), "declares 4,398,046,511,104 bytes"),
    (shaped((2**31, 2**31), chunks=(9, 9)), HOLES),
    (shaped((10**6,), chunks=(9,)), HOLES),
    (shaped((8,) * 32, chunks=(1,) * 32), HOLES),
    (shaped((8,), chunks=(8,), fillvalue=3), HOLES),
    (dataset(unset), HOLES),
    # Numbers.
    (value(np.full(8, np.nan, "f4")), "NaN"),
    (
        value(np.full(8, np.inf, "f4")),
        "bert/pooler/dense/bias must hold finite numbers",
    ),
    (value(np.full(8, 1e300)), "numbers beyond float32's"),
    # Attributes.
    *(
        (attribute("layer_names", names), UNREAD)
        for names in (
            *("x", 3, [b"\xff\xfe"], ["."], ["/"], [1.5, 2.5]),
            *(h5py.Empty("f4"), np.zeros((2, 2), "S1")),
        )
    ),
    (attribute("layer_names", []), "unexpected Embedding-Norm/Embedding-Norm/beta:0"),
    (
        attribute("layer_names", [POOLER] * 2),
        "names 'Pooler-Dense/Pooler-Dense/kernel:0' twice",
    ),
    *(
        (attribute("weight_names", [name], POOLER), "got a Group")
        for name in (".", "/", POOLER)
    ),
    *(
        (attribute("weight_names", names, POOLER), UNREAD)
        for names in (["x" * 60_000], ["../Pooler-Dense"], 7)
    ),
    (attribute("weight_names", [], POOLER), "unexpected Pooler-Dense/"),
    (
        attribute("weight_names", np.arange(12_000).astype("S5"), POOLER),
        "must name at most 10,000 tensors, got 12,0",
    ),
    # Damage.
    *(
        ({"x.h5": data}, CUT)
        for data in (
            *(H5[:9], H5[:100], H5[: len(H5) // 2], H5[:-1]),
            *(H5[:8] + b"\xff" * len(H5), H5[:8] + H5[:8] + H5),
        )
    ),
]
CASES = [("convert x.h5 y", files, 3, message) for files, message in EDITS]
