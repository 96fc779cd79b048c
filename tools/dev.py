"""Sets up, demonstrates and tests a fresh clone; needs Python 3.11 and pip.

    python3 tools/dev.py setup         install what the others need
    python3 tools/dev.py demo          set up, then run commands on small checkpoints
    python3 tools/dev.py test [...]    set up, ruff, mypy, run the tests that are quick
    python3 tools/dev.py test --all    the same with all that CI runs
    python3 tools/dev.py docs          set up, build the documentation into site/

Set-up installs this package, TensorFlow and what the tests need into `.venv`, and two
versions of the real bert4keras into `.reference`. It is done once. Further arguments of
`test` go to pytest; of these, `--durations-report=FILE` writes where the seconds went,
with `--all` into one file for each tier.
"""

import argparse
import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
REFERENCE = ROOT / ".reference"
BERT4KERAS_VERSIONS = ("0.11.5", "0.10.6")
# The marks of each part of all that CI runs.
TIERS = {
    "quick": "not e2e and not slow and not weekly",
    "slow": "slow and not e2e and not weekly",
    "e2e": "e2e and not weekly",
}
# How pytest ends that was given none.
NO_TESTS = 5


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job", choices=["setup", "demo", "test", "docs"])
    parser.add_argument("--all", action="store_true", help="run every test")
    options, pytest_arguments = parser.parse_known_args()
    if sys.version_info < (3, 11):  # noqa: UP036  This script runs before the check.
        version = ".".join(map(str, sys.version_info[:3]))
        sys.exit(f"Python 3.11 or later is needed, this is {version}")
    if pytest_arguments and options.job != "test":
        parser.error(f"unrecognized arguments: {' '.join(pytest_arguments)}")
    set_up()
    if options.job == "demo":
        demo()
    elif options.job == "test":
        test(options.all, pytest_arguments)
    elif options.job == "docs":
        docs()


def set_up():
    """Makes `.venv` and `.reference`, unless this setup.cfg has made them before."""
    stamp = VENV / "roformer-keras-setup"
    wanted = hashlib.sha256((ROOT / "setup.cfg").read_bytes()).hexdigest()
    pip = ("-m", "pip", "install")
    if not stamp.is_file() or stamp.read_text() != wanted:
        # Without pip, because not every system's Python can put one in.
        run(sys.executable, "-m", "venv", "--without-pip", VENV)
        run(
            *(sys.executable, "-m", "pip", "--python", PYTHON, "install"),
            *("--quiet", "--upgrade", "pip", "setuptools", "wheel"),
        )
        # By the newest pip: older ones build `seqeval`, which is released as source
        # only, in a way that its build tools no longer support.
        run(PYTHON, *pip, "--editable", f"{ROOT}[test]")
        stamp.write_text(wanted)
    for version in BERT4KERAS_VERSIONS:
        folder = REFERENCE / f"bert4keras-{version}"
        if not (folder / "bert4keras").is_dir():
            # Its metadata asks for Keras 2.3.1, which it does not need.
            name = f"bert4keras=={version}"
            run(PYTHON, *pip, "--quiet", "--no-deps", "--target", folder, name)


def demo():
    """Write, fill a mask, compare, find; then inspect, load, verify and convert."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["ROFORMER_KERAS_REFERENCE"] = str(REFERENCE / "bert4keras-0.11.5")
    out = "checkpoints/demo"
    modern, classical = "学习了又时常温习，不是很愉快吗？", "学而时习之，不亦说乎？"
    cli("generate", "--text", "床前明月光，", "--seed", "1")
    cli("fill-mask", "太祖[MASK]位，大赦天下。")
    cli("similarity", "--pair", modern, classical)
    cli("paraphrase", "--text", modern, "--n", "24", "--k", "3", "--seed", "1")
    cli("embed", "-", "-o", f"{out}.npy", "--overwrite", input=f"{classical}\n")
    cli("inspect", "roformer-sim-char")
    run(
        PYTHON,
        "-c",
        "import roformer_keras\n"
        "model = roformer_keras.RoFormerSim.from_preset('roformer-sim-char')\n"
        "print(model.name, f'{model.count_params():,} parameters')\n",
    )
    cli("verify", "roformer-sim-char", "--lengths", "1,2,64,512")
    cli("convert", "roformer-sim-char", out, "--overwrite")
    cli("convert", out, f"{out}.zip", "--overwrite")


def test(every_test, pytest_arguments):
    run(PYTHON, "-m", "ruff", "check", ".")
    run(PYTHON, "-m", "ruff", "format", "--check", ".")
    run(PYTHON, "-m", "mypy")
    # A process takes up to 4 GB.
    processes = min(4, len(os.sched_getaffinity(0)))
    # All processes find what one of them, or an earlier run, has compiled.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(VENV / "jax-cache"))
    command = ["pytest", "-n", processes, "--dist", "worksteal"]
    if not every_test:
        run(PYTHON, "-m", *command, "-m", TIERS["quick"], *pytest_arguments)
        return
    # Each tier has new processes: TensorFlow keeps the programs that it compiled.
    names_tests = any(Path(ROOT, word).exists() for word in pytest_arguments)
    code = 0
    for tier, marks in TIERS.items():
        folder = "tests/e2e" if tier == "e2e" else "tests/model"
        folders = ["tests/unit"] * (tier == "quick") + [folder]
        arguments = [_for_tier(word, tier) for word in pytest_arguments]
        if not names_tests:
            arguments = [*folders, *arguments]
        exit_code = run(PYTHON, "-m", *command, "-m", marks, *arguments, ends=False)
        if not (names_tests and exit_code == NO_TESTS):
            code = max(code, exit_code)
    sys.exit(code)


def _for_tier(argument, tier):
    """`--durations-report=FILE.tsv` as that of `FILE-TIER.tsv`; others as they are."""
    if not argument.startswith("--durations-report="):
        return argument
    path = Path(argument)
    return str(path.with_name(f"{path.stem}-{tier}{path.suffix}"))


def docs():
    """Warnings, such as those of dead links, are errors."""
    run(PYTHON, "-m", "mkdocs", "build", "--strict")


def cli(*arguments, input=None):
    run(VENV / "bin" / "roformer-keras", *arguments, input=input)


def run(*command, input=None, ends=True):
    """Shows a command and runs it in the root; ends with its exit code if not 0.

    With `ends=False` it returns the code instead.
    """
    words = [str(word) for word in command]
    shown = shlex.join(
        word.removeprefix(f"{VENV}/bin/").removeprefix(f"{ROOT}/") for word in words
    )
    print(f"\n$ {shown}", flush=True)
    done = subprocess.run(words, cwd=ROOT, input=input, encoding="utf-8", check=False)
    if done.returncode and ends:
        sys.exit(done.returncode)
    return done.returncode


if __name__ == "__main__":
    main()
