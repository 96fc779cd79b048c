"""`python -m build` makes a wheel that works alone, also without optional libraries."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

from common import CHARACTER, ROOT, SIM, run_main

FILES = ("setup.cfg", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md")
FILES += ("LICENSE",)
MORE = ("CHANGELOG.md", "CITATION.cff", "SECURITY.md")
BACKENDS = "tensorflow,jax,torch"
UNIX = "fcntl,grp,pwd,resource,termios"
TRAIN = "matplotlib,scipy,sklearn,tensorboardX"
EXPORT = "onnx,onnxruntime,openvino,nncf"
# The modules of the first argument cannot be imported.
HIDING = """
import importlib, os, pkgutil, sys
import importlib.machinery as machinery
hidden = set(sys.argv[1].split(","))
for finder in (machinery.PathFinder, machinery.BuiltinImporter):
    def find_spec(name, path=None, target=None, find=finder.find_spec):
        return None if name.partition(".")[0] in hidden else find(name, path, target)
    finder.find_spec = staticmethod(find_spec)
for name in hidden:
    sys.modules.pop(name, None)
import roformer_keras
assert roformer_keras.__file__.startswith(os.environ["PYTHONPATH"])
def run(*words):
    from roformer_keras.cli import main
    print("===", flush=True)
    code = main([*words])
    print("===", code, flush=True)
"""
WITHOUT_BACKEND = f"""
for words in (
    ("inspect", {str(SIM)!r}),
    ("tokenize", "你好", "--source", {str(SIM)!r}),
    ("list",),
    ("convert", {str(SIM)!r}, "preset"),
    ("convert", "preset", "again.safetensors"),
):
    run(*words)
for make in (lambda: roformer_keras.load_model, lambda: roformer_keras.layers.RMSNorm):
    try:
        make()
    except ImportError as error:
        print(type(error).__name__)
run("embed", {str(ROOT / "LICENSE")!r}, "--source", {str(SIM)!r})
"""
EVERY_MODULE = """
for module in pkgutil.walk_packages(roformer_keras.__path__, "roformer_keras."):
    if not module.name.endswith(("__main__", "reference_process")):
        imported = importlib.import_module(module.name)
        listed = getattr(imported, "__all__", [])
        assert len({*listed}) == len(listed), module
        assert all(getattr(imported, name) is not None for name in listed), module
"""
COMMANDS = """
for words in (
    ("generate", "--text", "床前明月光，", "--seed", "1"),
    ("fill-mask", "太祖[MASK]位，大赦天下。", "--json"),
    ("similarity", "--pair", "学而时习之", "学习了又时常温习"),
    ("convert", "roformer-sim-char", "sim.zip"),
    ("inspect", "sim.zip"),
):
    run(*words)
sim = roformer_keras.RoFormerSim.from_preset("sim.zip")
classical = ["学而时习之，不亦说乎？", "有朋自远方来，不亦乐乎？", "吾日三省吾身。"]
modern = [
    "学习了又时常温习，不是很愉快吗？",
    "有志同道合的人从远方来，不是很令人高兴吗？",
    "我每天多次反省自己。",
]
cosines = sim.encode(classical) @ sim.encode(modern).T
print(*cosines.argmax(axis=1), *cosines.argmax(axis=0))
"""


def run(*words, **options):
    return subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
        **options,
    )


def build(folder):
    """The source distribution, and the wheel that was built from it."""
    source, out = folder / "source", folder / "dist"
    leave_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(
        ROOT / "roformer_keras", source / "roformer_keras", ignore=leave_out
    )
    for name in (*FILES, *MORE):
        shutil.copy(ROOT / name, source)
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def check_files(sdist, wheel):
    """Both hold every file of the package."""
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "roformer_keras").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as file:
        names = {*file.namelist()}
    assert {name for name in names if name.startswith("roformer_keras/")} == expected
    others = {name.partition("/")[0] for name in names - expected}
    assert len(others) == 1 and others.pop().endswith(".dist-info")
    with tarfile.open(sdist) as file:
        files = (member.name for member in file.getmembers() if member.isfile())
        names = {name.partition("/")[2] for name in files}
    assert {name for name in names if name.startswith("roformer_keras/")} == expected
    assert {*FILES, *MORE} <= names


def test_a_wheel_is_complete_and_works_alone(tmp_path):
    """In one environment, in which some libraries are hidden from a process."""
    sdist, wheel = build(tmp_path)
    check_files(sdist, wheel)
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
    assert run(*pip, "--target", site, wheel).returncode == 0
    environment = {**os.environ, "PYTHONPATH": str(site)}
    for variable in ("KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL"):
        environment.pop(variable, None)

    def python(hidden, code):
        command = (sys.executable, "-c", HIDING + code, hidden)
        done = run(*command, cwd=work, env=environment)
        assert done.returncode == 0, done.stderr
        return done

    # Without a backend, and as on Windows.
    done = python(f"{BACKENDS},{UNIX},{TRAIN},jieba", WITHOUT_BACKEND)
    assert done.stdout.count("=== 0\n") == 5
    assert done.stdout.endswith("BackendError\nBackendError\n===\n=== 2\n")
    assert done.stderr == (
        "roformer-keras: error: models need a backend of Keras, and none of "
        "tensorflow, jax, torch is installed; run: "
        "pip install 'roformer-keras[tensorflow]'\n"
    )
    assert {path.name for path in work.iterdir()} == {"preset", "again.safetensors"}
    python(f"{UNIX},{TRAIN},{EXPORT},jieba", EVERY_MODULE)
    done = python("none", COMMANDS)
    assert done.stdout.count("=== 0\n") == 5
    # The checkpoints know what they were trained for. A line of five characters is
    # continued in lines of five.
    lines = re.findall(r'^{"text": .*$', done.stdout, re.MULTILINE)
    poem, masks = map(json.loads, lines)
    assert re.match("[一-龥]{5}。([一-龥]{5}[，。？])+", poem["outputs"][0]["text"])
    assert masks["masks"][0][0]["token"] == "即"
    assert done.stdout.endswith("=== 0\n0 1 2 0 1 2\n")
    # Python and TensorFlow say nothing.
    lines = done.stderr.splitlines()
    assert [line for line in lines if not line.startswith("roformer-keras: ")] == []


def test_training_names_the_extra_before_it_starts(tmp_path, monkeypatch, capsys):
    table = tmp_path / "rows.csv"
    table.write_text("好,1\n坏,0\n" * 5, encoding="utf-8")
    finetuning = ("finetune", "text-classification", "--train", table)
    for library in TRAIN.split(","):
        words = finetuning
        if library == "tensorboardX":
            words = ("pretrain", "mlm", table)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, library, None)
            folder = tmp_path / "run"
            code, _, err = run_main(
                *words, "-o", folder, "--source", CHARACTER, capsys=capsys
            )
        assert code == 2
        assert f"needs {library}, which cannot be imported" in err
        assert "pip install 'roformer-keras[train]'" in err
        assert not folder.exists()
