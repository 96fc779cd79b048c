"""Looks for known vulnerabilities in the libraries that are installed.

    python -m tools.audit                  all that are installed here
    python -m tools.audit h5py safetensors
    python -m tools.audit --bill bill.json

pip-audit, which is installed into a temporary folder, asks PyPI for the advisories.
With `--bill`, cyclonedx-py writes what is installed as a bill of materials (CycloneDX).
Exit code 0: there is none; 1: there are some; 2: the look could not be done for all.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.io.atomic import replacing
from tools.commands import Parser, command

_PIP_AUDIT, _CYCLONEDX = "pip-audit>=2,<3", "cyclonedx-bom>=5,<8"
_SHOWN_LINES = 3


@command
def main(arguments=None):
    parser = Parser(__doc__)
    help = "all that are installed by default"
    parser.add_argument("names", nargs="*", metavar="NAME", help=help)
    parser.add_argument("--bill", type=Path, metavar="FILE", help="bill of materials")
    options = parser.parse_args(arguments)
    versions = installed_versions(options.names)
    try:
        if options.bill is not None:
            count = write_bill(options.bill)
            print(f"{options.bill}: {count} components")
        lines, code = judge(ask(versions), versions)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        shown = "\n  ".join(said.strip().splitlines()[-_SHOWN_LINES:])
        lines, code = [f"could not look for known vulnerabilities:\n  {shown}"], 2
    print("\n".join(lines))
    return code


def installed_versions(names: Iterable[str] = ()) -> dict[str, str]:
    """The versions of libraries by name; of all but this package by default."""
    versions = {
        distribution.metadata["Name"].lower().replace("_", "-"): distribution.version
        for distribution in importlib.metadata.distributions()
    }
    versions.pop("roformer-keras", None)
    if absent := [name for name in names if name not in versions]:
        raise ConfigurationError(
            f"{', '.join(absent)} must be installed to be looked at"
        )
    return {name: versions[name] for name in sorted(names or versions)}


def ask(versions: Mapping[str, str]) -> dict:
    """The report of pip-audit on these versions, as it writes it.

    Raises:
        CalledProcessError, OSError, ValueError: it could not be installed or run.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = _installed(_PIP_AUDIT, folder)
        pins, report = Path(folder, "requirements.txt"), Path(folder, "report.json")
        # A local version, such as 2.13.0+cpu, has the advisories of the public one.
        lines = (f"{n}=={v.partition('+')[0]}\n" for n, v in versions.items())
        pins.write_text("".join(lines), encoding="utf-8")
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(pins)]
        command += ["--no-deps", "--disable-pip", "--progress-spinner", "off"]
        command += ["--format", "json", "--output", str(report)]
        # 1 means that there are some.
        _run(*command, environment=environment, codes=(0, 1))
        return json.loads(report.read_text(encoding="utf-8"))


def write_bill(path: Path) -> int:
    """Writes a bill of materials of this environment; returns its number of components.

    Raises:
        CalledProcessError, OSError, ValueError: as `ask`.
    """
    with tempfile.TemporaryDirectory() as folder:
        _installed(_CYCLONEDX, folder)
        bill = Path(folder, "bill.json")
        # It starts the interpreter to ask for its path, where its own folder is not.
        start = (
            f"import runpy, sys; sys.path.insert(0, {folder!r}); "
            "runpy.run_module('cyclonedx_py', run_name='__main__')"
        )
        command = [sys.executable, "-c", start, "environment", sys.executable]
        _run(*command, "--output-format", "JSON", "--output-file", str(bill))
        content = json.loads(bill.read_text(encoding="utf-8"))
        components = content.get("components")
        if content.get("bomFormat") != "CycloneDX" or not components:
            raise ValueError("cyclonedx-py wrote no bill of materials")
        with replacing(path, overwrite=True) as partial:
            shutil.copyfile(bill, partial)
        return len(components)


def _installed(requirement, folder):
    """The variables of a process that has a library in a folder, and all of here."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--target", folder)
    _run(*pip, requirement)
    paths = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": paths}


def _run(*command, environment=None, codes=(0,)):
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode not in codes:
        done.check_returncode()


def judge(report: Mapping, versions: Mapping[str, str]) -> tuple[list[str], int]:
    """The lines to print for a report, and the exit code."""
    looked = {
        one["name"].lower().replace("_", "-"): one["vulns"]
        for one in report["dependencies"]
        if "vulns" in one
    }
    lines = [
        f"{name} {versions[name]}: {flaw['id']}, mended in "
        f"{', '.join(flaw['fix_versions']) or 'no version yet'}"
        for name, flaws in looked.items()
        for flaw in flaws
    ]
    unseen = sorted(versions.keys() - looked)
    if unseen:
        lines.append(
            f"could not look at {len(unseen)} of {len(versions)}, because the package "
            f"index gave no advisories: {', '.join(unseen)}"
        )
    if any(looked.values()):
        return lines, 1
    return (lines, 2) if unseen else ([f"{len(looked)} without known flaws"], 0)


if __name__ == "__main__":
    sys.exit(main())
