"""The requirements of setup.cfg are bounded above, and installed versions meet them."""

import configparser
import contextlib
import re
import runpy
from importlib.metadata import PackageNotFoundError, version

from common import ROOT
from packaging.requirements import Requirement

BOUNDS = {"<", "<=", "==", "~="}


def requirements():
    """Every requirement of the package and of its extras, once."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    values = [parser["options"]["install_requires"]]
    values += parser["options.extras_require"].values()
    return sorted({line for value in values for line in value.splitlines() if line})


def is_bounded(requirement):
    return any(one.operator in BOUNDS for one in requirement.specifier)


def test_all_extras_are_seen():
    names = {Requirement(line).name for line in requirements()}
    assert {"keras", "tensorflow", "tf-keras", "onnx", "ruff", "hypothesis"} <= names


def test_requirements_have_an_upper_bound_that_is_met():
    """Without a bound, a version that breaks the package may be installed."""
    wrong = []
    for requirement in map(Requirement, requirements()):
        installed = None
        # The library of an extra may not be installed here.
        with contextlib.suppress(PackageNotFoundError):
            installed = version(requirement.name)
        is_met = installed is None or requirement.specifier.contains(
            installed, prereleases=True
        )
        if not (is_bounded(requirement) and is_met):
            wrong.append(f"{requirement}, installed {installed}")
    assert wrong == []
    for line in ("onnx", "keras>=3", "numpy!=2"):
        assert not is_bounded(Requirement(line))


def test_addresses_outside_the_repository_are_made_from_one():
    made = runpy.run_path(str(ROOT / "setup.py"), run_name="made")
    url = made["repository"]()
    for name, key in (("mkdocs.yml", "repo_url"), ("CITATION.cff", "repository-code")):
        assert f"\n{key}: {url}\n" in (ROOT / name).read_text(encoding="utf-8")
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = made["with_addresses"](page, url)
    links = re.findall(r'\]\((.*?)[)#]|(?:src|srcset)="(.*?)"', shown)
    targets = {link for pair in links for link in pair if link}
    assert all(link.startswith("https://") for link in targets)
    files = [link.split("/main/", 1)[1] for link in targets if link.startswith(url)]
    assert len(files) > 10 and all((ROOT / file).exists() for file in files)
