"""Outputs that are whole or absent, whatever happens while they are written."""

import json
import os
import signal
import textwrap
from pathlib import Path

import pytest
from common import limited_file_size, run, write_files

from roformer_keras.base.errors import OutputError, SourceError
from roformer_keras.io import atomic
from roformer_keras.io.atomic import is_space_error, replacing


@pytest.mark.parametrize("old", [None, "old"])
def test_a_file_or_folder_appears_at_the_end(tmp_path, old):
    file, folder = tmp_path / "model.weights.h5", tmp_path / "preset"
    if old:
        file.write_text(old)
        write_files(folder, {"old": b"old"})
    with replacing(file, overwrite=bool(old)) as partial:
        assert partial.parent == tmp_path
        assert partial.name.startswith(".partial-")
        assert partial.name.endswith(".model.weights.h5")
        partial.write_bytes(b"new")
        assert (file.exists() and file.read_text()) == (old or False)
    assert file.read_bytes() == b"new"
    with replacing(folder, overwrite=bool(old), folder=True) as partial:
        write_files(partial, {"config.json": b"{}", "assets/vocabulary.txt": b"a"})
        assert (folder.exists() and os.listdir(folder)) == ([old] if old else False)
    assert sorted(os.listdir(tmp_path)) == ["model.weights.h5", "preset"]
    assert sorted(os.listdir(folder)) == ["assets", "config.json"]
    assert (folder / "config.json").read_bytes() == b"{}"
    assert (folder / "assets" / "vocabulary.txt").read_bytes() == b"a"


def test_files_have_the_mode_of_others_here(tmp_path):
    """Some libraries write private ones, which a server of another user cannot read."""
    (tmp_path / "other").touch()
    for name in ("file", "folder"):
        with replacing(tmp_path / name, folder=name == "folder") as partial:
            file = partial / "inner" if name == "folder" else partial
            file.touch(mode=0o600)
    for path in (tmp_path / "file", tmp_path / "folder" / "inner"):
        assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "real")
    with replacing(tmp_path / "link", overwrite=True) as partial:
        partial.write_bytes(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "real").read_bytes() == b"new"


def refuse_output(message, target, **options):
    before = sorted(target.parent.rglob("*")) if target.parent.is_dir() else None
    with (
        pytest.raises(OutputError, match=message) as caught,
        replacing(target, **options) as partial,
    ):
        partial.write_bytes(b"never kept")
    assert "\n" not in str(caught.value)
    if before is not None:
        assert sorted(target.parent.rglob("*")) == before


def test_outputs_that_are_refused_before_anything_is_written(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    write_files(tmp_path / "folder", {"old": b"old"})
    refuse_output(r"file exists: .*overwrite=True", tmp_path / "file")
    refuse_output(r"exists: .*overwrite=True", tmp_path / "folder", folder=True)
    refuse_output("is a folder: give", tmp_path / "folder", overwrite=True)
    refuse_output("is a file: give", tmp_path / "file", overwrite=True, folder=True)
    refuse_output("no is not a folder: make it first", tmp_path / "no" / "file")
    refuse_output("is not a folder: make it first", tmp_path / "file" / "file")
    message = "folder holds files and no index.json, and would be replaced whole"
    refuse_output(message, tmp_path / "folder", overwrite=True, folder="index.json")
    assert (tmp_path / "folder" / "old").read_bytes() == b"old"


def test_a_target_that_appears_meanwhile_is_not_overwritten(tmp_path):
    with (
        pytest.raises(OutputError, match="target exists"),
        replacing(tmp_path / "target") as partial,
    ):
        partial.write_bytes(b"mine")
        (tmp_path / "target").write_bytes(b"theirs")
    assert os.listdir(tmp_path) == ["target"]
    assert (tmp_path / "target").read_bytes() == b"theirs"


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, SourceError])
def test_an_exception_passes_and_leaves_nothing(tmp_path, folder, error):
    with pytest.raises(error), replacing(tmp_path / "x", folder=folder) as partial:
        (partial / "a" if folder else partial).write_bytes(b"half")
        raise error("stop")
    assert os.listdir(tmp_path) == []


def test_a_full_device(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    target = tmp_path / "x"
    target.write_bytes(b"old")
    message = "no space left to write .*: nothing was written to .*x; free some space"
    with pytest.raises(OutputError, match=message), replacing(target, True) as partial:
        partial.write_bytes(b"half")
        Path("/dev/full").write_bytes(b"x" * 10_000)
    assert os.listdir(tmp_path) == ["x"]
    assert target.read_bytes() == b"old"


def test_other_failures_of_the_system(tmp_path):
    message = "could not write .*x .Is a directory.: nothing was written"
    with pytest.raises(OutputError, match=message), replacing(tmp_path / "x"):
        tmp_path.write_bytes(b"")
    message = "could not write .*x .No such file or directory.: nothing was written"
    with pytest.raises(OutputError, match=message), replacing(tmp_path / "x"):
        pass
    assert os.listdir(tmp_path) == []


WRITERS = {
    "bytes": "partial.write_bytes(bytes(300_000))",
    "zipfile": """
        import zipfile
        with zipfile.ZipFile(partial, "w") as archive:
            archive.writestr("member", bytes(300_000))
    """,
    "numpy": "import numpy; numpy.save(partial.open('wb'), numpy.zeros(300_000))",
    "hdf5": """
        import h5py, numpy
        with h5py.File(partial, "w") as file:
            file["weights"] = numpy.zeros(300_000)
    """,
    "safetensors": """
        import numpy, safetensors.numpy
        safetensors.numpy.save_file({"a": numpy.zeros(300_000)}, partial)
    """,
}


def test_a_file_size_limit_under_every_writer(tmp_path):
    code = """
        import json, sys
        from roformer_keras.io.atomic import replacing
        from roformer_keras.base.errors import OutputError
        for name, code in json.loads(sys.argv[2]).items():
            try:
                with replacing(f"{sys.argv[1]}/{name}", overwrite=True) as partial:
                    exec(code)
            except OutputError as error:
                print(error)
    """
    codes = {name: textwrap.dedent(code) for name, code in WRITERS.items()}
    for name in codes:
        (tmp_path / name).write_bytes(b"old")
    process = run(code, tmp_path, json.dumps(codes), preexec_fn=limited_file_size)
    output, errors = process.communicate(timeout=60)
    lines = output.splitlines()
    assert len(lines) == len(codes), errors
    for name, line in zip(codes, lines, strict=True):
        assert line.startswith(f"no space left to write {tmp_path}/{name}")
        assert f"nothing was written to {tmp_path}/{name}" in line
        assert (tmp_path / name).read_bytes() == b"old"
    assert set(os.listdir(tmp_path)) == set(codes)


def kill_while(code, *arguments):
    """Runs until the code prints, then kills it as hard as can be."""
    process = run(code, *arguments)
    with process:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        process.kill()
    assert process.returncode == -signal.SIGKILL


def test_kill_9_while_a_file_is_written(tmp_path):
    target = tmp_path / "model.h5"
    code = """
        import sys, time
        from roformer_keras.io.atomic import replacing
        with replacing(sys.argv[1], overwrite=True) as partial:
            with partial.open("wb") as file:
                file.write(bytes(1_000_000))
                file.flush()
                print("ready", flush=True)
                time.sleep(60)
    """
    kill_while(code, target)
    assert not target.exists()
    target.write_bytes(b"old")
    kill_while(code, target)
    assert target.read_bytes() == b"old"
    here = atomic._machine()
    foreign = {
        f".partial-{os.getpid()}-{here}00000000.model.h5",
        f".partial-999999999-{here}00000000.other.h5",
        # Of a container, whose processes are not seen here.
        ".partial-999999999-0123456700000000.model.h5",
    }
    old = tmp_path / ".partial-999999999-0123456700000001.model.h5"
    for path in (*foreign, old):
        (tmp_path / path).write_bytes(b"half")
    os.utime(old, (0, 0))
    with replacing(target, overwrite=True) as partial:
        partial.write_bytes(b"new")
    # What the dead left is gone; what a living process or another target has, is not.
    assert set(os.listdir(tmp_path)) == {*foreign, "model.h5"}
    assert target.read_bytes() == b"new"


EXCHANGE = """
    import os, pathlib, shutil, sys, time
    from roformer_keras.io import atomic as outputs

    real, stop = os.rename, sys.argv[2]
    def rename(old, new):
        real(old, new)
        if stop in os.path.basename(new):
            print("ready", flush=True)
            time.sleep(60)
    os.rename = rename
    with outputs.replacing(sys.argv[1], overwrite=True, folder=True) as partial:
        (partial / "new").write_bytes(b"new")
"""


@pytest.mark.parametrize(
    ("moment", "left"), [(".replaced-", "old"), (".partial-", "new")]
)
def test_kill_9_while_a_folder_is_exchanged_loses_nothing(tmp_path, moment, left):
    write_files(tmp_path / "preset", {"old": b"old"})
    kill_while(EXCHANGE, tmp_path / "preset", moment)
    # Between the two renames there is none, until it is put back.
    assert (tmp_path / "preset").exists() == (left == "new")
    with (
        pytest.raises(OutputError, match="preset exists"),
        replacing(tmp_path / "preset", folder=True),
    ):
        pass
    assert os.listdir(tmp_path) == ["preset"]
    assert os.listdir(tmp_path / "preset") == [left]


def test_a_folder_whose_exchange_fails_is_put_back(tmp_path, monkeypatch):
    write_files(tmp_path / "preset", {"old": b"old"})
    real = os.rename

    def rename(old, new):
        if Path(old).name.startswith(".partial-"):
            raise OSError(5, "Input/output error")
        real(old, new)

    monkeypatch.setattr(os, "rename", rename)
    with (
        pytest.raises(OutputError, match=r"could not write .*Input/output error"),
        replacing(tmp_path / "preset", overwrite=True, folder=True),
    ):
        pass
    assert os.listdir(tmp_path) == ["preset"]
    assert os.listdir(tmp_path / "preset") == ["old"]


@pytest.mark.parametrize("error", [ValueError("No"), OSError(2, "x"), OSError("x")])
def test_not_every_error_is_about_space(error):
    assert not is_space_error(error)


def test_neither_keras_nor_numpy_is_imported():
    code = """
        import sys
        import roformer_keras.io.sources
        import roformer_keras.hub.catalog
        import roformer_keras.hub.download
        print(sorted({"keras", "tensorflow", "numpy", "h5py"} & set(sys.modules)))
    """
    output, errors = run(code).communicate(timeout=60)
    assert output == "[]\n", errors
