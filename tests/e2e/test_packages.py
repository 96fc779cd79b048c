"""What `python -m build` makes: a wheel that works without this repository."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
from common import ROOT

FILES = ("setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
MORE = ("CHANGELOG.md", "CITATION.cff", "SECURITY.md")
COMMANDS = """
import os, sys
import roformer_keras
from roformer_keras.cli import main

assert roformer_keras.__file__.startswith(os.environ["PYTHONPATH"])
for words in (
    ["generate", "--text", "床前明月光，", "--seed", "1"],
    ["fill-mask", "太祖[MASK]位，大赦天下。"],
    ["similarity", "--pair", "学而时习之", "学习了又时常温习"],
    ["convert", "roformer-sim-char", "sim.zip"],
    ["inspect", "sim.zip"],
):
    assert main(words) == 0, words
"""


def run(*words, **options):
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source distribution, and the wheel that was built from it."""
    source, out = (tmp_path_factory.mktemp(name) for name in ("source", "dist"))
    leave_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(
        ROOT / "roformer_keras", source / "roformer_keras", ignore=leave_out
    )
    for name in (*FILES, *MORE):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def test_both_hold_every_file_of_the_package(built):
    sdist, wheel = built
    folder = ROOT / "roformer_keras"
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        assert {name.partition("/")[0].partition("-")[0] for name in names} == {
            "roformer_keras"
        }
    assert {name for name in names if name.startswith("roformer_keras/")} == expected
    with tarfile.open(sdist) as file:
        files = (member.name for member in file.getmembers() if member.isfile())
        names = [name.partition("/")[2] for name in files]
    assert {name for name in names if name.startswith("roformer_keras/")} == expected
    assert {*FILES, *MORE} <= set(names)


def test_a_wheel_works_without_the_repository(built, tmp_path):
    _, wheel = built
    site = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
    run(*pip, "--target", site, wheel)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    out = run(sys.executable, "-c", COMMANDS, cwd=tmp_path, env=environment)
    assert "床前明月光，" in out
    assert (tmp_path / "sim.zip").is_file()
