"""Exports whose networks name other files, or lie about their weights.

`OPENVINO` and `ONNX` are rows of a name, what makes the files in a folder, and the
message of the error, or "" where the network runs.
"""

import functools
import os
import re

import numpy as np

WEIGHTS = np.arange(8, dtype="float32")
SECRET = "../secret"


@functools.cache
def openvino_files():
    """XML and weights of `y = x + w`."""
    import tempfile
    from pathlib import Path

    import openvino
    from openvino import opset13

    x = opset13.parameter([8], np.float32, name="x")
    x.output(0).set_names({"x"})
    y = opset13.result(opset13.add(x, opset13.constant(WEIGHTS)))
    y.output(0).set_names({"y"})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.xml")
        openvino.save_model(openvino.Model([y], [x], "m"), path, compress_to_fp16=False)
        return path.read_text(), path.with_suffix(".bin").read_bytes()


def network(edit=str, weights=None, link=None):
    """Writes `model.xml`, edited, and `model.bin`, which may be a link or nothing."""

    def make(folder):
        xml, data = openvino_files()
        content = edit(xml)
        content = content if isinstance(content, bytes) else content.encode()
        (folder / "model.xml").write_bytes(content)
        if link is not None:
            (folder / "model.bin").symlink_to(link)
        elif weights is None:
            (folder / "model.bin").write_bytes(data)
        elif weights:
            (folder / "model.bin").write_bytes(weights)

    return make


def pipe(name):
    def make(folder):
        network()(folder)
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return make


def number(field, value):
    """Replaces an attribute of the weights."""
    return lambda xml: re.sub(rf'(<data [^>]*\b{field})="32"', rf'\1="{value}"', xml)


def offset(value):
    return lambda xml: xml.replace('offset="0"', f'offset="{value}"')


def shape(value):
    return lambda xml: xml.replace('shape="8"', f'shape="{value}"')


ENTITY = '<!DOCTYPE net [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
DAMAGED, NO_NETWORK = "is damaged or lacks its weights", "holds no network of OpenVINO"
OPENVINO = [
    ("as it is", network(), ""),
    ("no weights", network(weights=b""), DAMAGED),
    ("short weights", network(weights=b"x" * 7), DAMAGED),
    ("endless weights", network(link="/dev/zero"), "model.bin must be a file"),
    ("weights in a pipe", pipe("model.bin"), "model.bin must be a file"),
    ("network in a pipe", pipe("model.xml"), "model.xml must be a file"),
    ("offset", network(offset(10**9)), DAMAGED),
    ("negative offset", network(offset(-8)), DAMAGED),
    ("offset of 2**64", network(offset(2**64 - 8)), DAMAGED),
    ("size", network(number("size", 10**12)), DAMAGED),
    ("small size", network(number("size", 4)), DAMAGED),
    ("shape", network(shape(10**12)), DAMAGED),
    ("negative shape", network(shape(-8)), DAMAGED),
    ("entity", network(lambda xml: xml.replace("?>", f"?>{ENTITY}")), NO_NETWORK),
    ("deep", network(lambda xml: '<net name="m">' + "<layer>" * 10**5), DAMAGED),
    ("unknown", network(lambda xml: xml.replace('"Add"', '"Evil"')), DAMAGED),
    ("extension", network(lambda xml: xml.replace("opset1", "evil")), DAMAGED),
    ("cut off", network(lambda xml: xml[:200]), DAMAGED),
    ("empty", network(lambda xml: ""), NO_NETWORK),
    ("HTML", network(lambda xml: "<html>"), NO_NETWORK),
    # OpenVINO takes files by their content.
    ("ONNX", network(lambda xml: onnx_bytes(SECRET)), NO_NETWORK),
]


def onnx_bytes(location=None, domain="", dims=(8,), kind="Add", data=None, **external):
    """`y = x + w`, whose weights are in another file if there is a location."""
    import onnx
    from onnx import TensorProto, helper

    weights = TensorProto(name="w", data_type=1, dims=dims)
    if location is None:
        weights.raw_data = WEIGHTS.tobytes() if data is None else data
    else:
        weights.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, **external}.items():
            weights.external_data.add(key=key, value=value)
    x, y = (helper.make_tensor_value_info(name, 1, [8]) for name in "xy")
    node = helper.make_node(kind, ["x", "w"], ["y"], domain=domain)
    graph = helper.make_graph([node], "g", [x], [y], [weights])
    opsets = [helper.make_opsetid(name, 21 if not name else 1) for name in {"", domain}]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    assert isinstance(model, onnx.ModelProto)
    return model.SerializeToString()


def onnx(*arguments, files=(), links=(), **options):
    """Writes `model.onnx`, and files and links with weights next to it."""

    def make(folder):
        for name in files:
            (folder / name).write_bytes(WEIGHTS.tobytes())
        for name, target in links:
            (folder / name).symlink_to(target)
        (folder / "model.onnx").write_bytes(onnx_bytes(*arguments, **options))

    return make


def raw(content):
    return lambda folder: (folder / "model.onnx").write_bytes(content)


MEMORY = {"offset": "94000000000", "length": "32"}
ONNX = [
    ("as it is", onnx(), ""),
    ("next to it", onnx("w", files=["w"]), ""),
    ("above", onnx(SECRET), DAMAGED),
    ("above, in two steps", onnx("a/../../secret"), DAMAGED),
    ("absolute", onnx("/etc/passwd"), DAMAGED),
    ("a device", onnx("/dev/zero"), DAMAGED),
    ("a link", onnx("w", links=[("w", SECRET)]), DAMAGED),
    ("absent", onnx("w"), DAMAGED),
    ("memory", onnx("*/_ORT_MEM_ADDR_/*", **MEMORY), DAMAGED),
    ("beyond", onnx("w", files=["w"], offset="999999"), DAMAGED),
    ("before", onnx("w", files=["w"], offset="-8"), DAMAGED),
    ("long", onnx("w", files=["w"], length="999999"), DAMAGED),
    ("huge", onnx(dims=[10**12]), DAMAGED),
    ("negative", onnx(dims=[-8]), DAMAGED),
    ("short", onnx(data=b"x"), DAMAGED),
    ("unknown", onnx(kind="Evil"), DAMAGED),
    ("another's", onnx(kind="Evil", domain="evil"), DAMAGED),
    ("no protobuf", raw(b"<net"), DAMAGED),
    ("empty", raw(b""), DAMAGED),
    ("nested", raw(b"\x3a\xff\xff\xff\xff\x0f" * 1000), DAMAGED),
]
