"""Every public name is on one page of the API reference, with what a reader needs."""

import ast
import re
import textwrap
from collections import Counter
from functools import cache

import yaml
from common import ROOT

from tools.api_reference import (
    DOCSTRING_OPTIONS,
    PACKAGE,
    PAGES,
    load_package,
    names_on_pages,
    public_names,
    resolved,
)

# What is in these modules comes from the literature, or from bert4keras.
WITH_SOURCE = "layers losses metrics models objectives optimizers tasks"
# These do not: containers, settings, and helpers that this package needs.
WITHOUT_SOURCE = """
    AttentionMask FastModel FinetuningSettings OBJECTIVES Objective OptimizerSettings
    Span TASKS TakePositions Task TaskObjective TaskOptions cosines find_spans
    finetuning_rate label_is_best load_finetuned load_model neighbour_is_nearest
    pair_cosines
"""
# Where a class checks its arguments.
METHODS = {"__init__", "__post_init__", "_check_together", "__call__", "call", "build"}


@cache
def package():
    return load_package()


@cache
def public_paths():
    """By where a public name is defined, all its paths."""
    paths = {}
    for path, found in public_names(package()).items():
        paths.setdefault(found.path, []).append(path)
    return paths


# === The pages ===


def test_a_public_name_is_on_one_page():
    counts = Counter(definition(name) for _, name in names_on_pages())
    assert {path: counts[path] for path in public_paths() if counts[path] != 1} == {}
    assert [path for path, count in counts.items() if count > 1] == []
    assert len(public_paths()) > 130


def definition(name):
    """The path by which something on a page is defined."""
    documented = resolved(package(), name.removeprefix(f"{PACKAGE}."))
    return documented.path


def on_page(page):
    """The objects that a page shows: its names, and their members."""
    text = (PAGES / page).read_text(encoding="utf-8")
    for name, options in re.findall(r"^::: (\S+)\n((?:    .*\n)*)", text, re.M):
        documented = resolved(package(), name.removeprefix(f"{PACKAGE}."))
        yield documented
        listed = re.search(r"^ +members:\s+\[([^]]*)\]", options, re.M)
        if listed:
            members = [
                documented.all_members[member]
                for member in re.findall(r"\w+", listed[1])
            ]
        else:
            members = [one for one in documented.members.values() if one.is_public]
        for member in members:
            if listed or member.docstring:
                yield member.final_target if member.is_alias else member


def test_what_the_pages_show_has_its_arguments_and_errors():
    lacking = {
        member.path: parts
        for page in sorted(PAGES.glob("*.md"))
        for member in on_page(page.name)
        if (parts := {*lacks(member, False)} - {"Example"})
    }
    assert lacking == {}


def test_the_index_lists_the_pages():
    text = (PAGES / "index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| \[.*?\]\((.*?)\)", text, re.M))
    assert listed == {page.name for page in PAGES.glob("*.md")} - {"index.md"}


def test_the_site_shows_the_pages_as_they_are_checked():
    # Some settings name functions of Python.
    text = re.sub(r"!!\S+", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    site = yaml.safe_load(text)
    (settings,) = (
        plugin["mkdocstrings"]
        for plugin in site["plugins"]
        if isinstance(plugin, dict) and "mkdocstrings" in plugin
    )
    options = settings["handlers"]["python"]["options"]
    assert options["docstring_options"] == DOCSTRING_OPTIONS
    assert options["extensions"] == ["tools/api_reference.py"]
    (pages,) = (
        entry["API reference"] for entry in site["nav"] if "API reference" in entry
    )
    assert pages[0] == "api/index.md"
    assert {*pages} == {f"api/{page.name}" for page in PAGES.glob("*.md")}


# === The docstrings ===


def lacks(found, needs_source):
    """The parts that the docstring of a name lacks."""
    if not found.docstring:
        return ["docstring"]
    sections = found.docstring.parsed
    by_kind = {section.kind.value: section.value for section in sections}
    lacking = [] if sections[0].kind.value == "text" else ["summary"]
    described = {
        one.name
        for kind in ("parameters", "attributes")
        for one in by_kind.get(kind, ())
        if one.description.strip()
    }
    lacking += [name for name in arguments_of(found) if name not in described]
    if has_raise(found) and "raises" not in by_kind:
        lacking.append("Raises")
    if not any(">>>" in text for _, text in by_kind.get("examples", ())):
        lacking.append("Example")
    text = found.docstring.value
    if needs_source and not re.search(r"^(Sources?:|\*\*References:)", text, re.M):
        lacking.append("Source")
    return lacking


def arguments_of(found):
    """Names of the arguments; those of a public base are in its own docstring."""
    if found.is_attribute or (found.is_class and has_public_constructor(found)):
        return []
    return [
        one.name.lstrip("*")
        for one in found.parameters
        if one.name not in ("self", "cls")
    ]


def has_public_constructor(found):
    """True if a class has the constructor of a base that is a public name."""
    if "__init__" in found.members or "dataclass" in found.labels:
        return False
    bases = (base for base in found.mro() if "__init__" in base.members)
    return any(base.path in public_paths() for base in bases)


def has_raise(found):
    """True if a function raises by itself, or a class where it is made or called."""
    if found.is_attribute:
        return False
    (node,) = ast.parse(textwrap.dedent("\n".join(found.lines))).body
    parts = [node]
    if found.is_class:
        parts = [
            part
            for part in node.body
            if isinstance(part, ast.FunctionDef) and part.name in METHODS
        ]
    return any(
        isinstance(statement, ast.Raise) and statement.exc
        for part in parts
        for statement in ast.walk(part)
    )


def needs_source(paths):
    modules = {module for path in paths for module in path.split(".")[1:-1]}
    name = paths[0].rpartition(".")[2]
    is_from_elsewhere = bool(modules & {*WITH_SOURCE.split()})
    return is_from_elsewhere and name not in WITHOUT_SOURCE.split()


def test_docstrings_have_what_a_reader_needs():
    lacking = {}
    for path, names in public_paths().items():
        member = resolved(package(), names[0].removeprefix(f"{PACKAGE}."))
        if parts := lacks(member, needs_source([path, *names])):
            lacking[path] = parts
    assert lacking == {}
    # The names without a source are public.
    names = {path.rpartition(".")[2] for path in public_paths()}
    assert {*WITHOUT_SOURCE.split()} <= names


# === The check ===

COMPLETE = '''
class Halved:
    """Half of a number.

    Args:
        number, other: float.

    Call arguments:
        x: float `(batch,)`.

    Raises:
        ValueError: it is odd.

    Example:
        >>> Halved(2, 4)
        1

    Source: Euclid, arXiv:2104.09864.
    """

    def __init__(self, number, other):
        if number % 2:
            raise ValueError(number)
'''


# What is replaced by what, and what the docstring then lacks.
CHANGES = (
    ("", "", []),
    ("Half of a number.\n\n    Args", "Args", ["summary"]),
    ("number, other: float.", "number: float.", ["other"]),
    ("other: float.", "other:", ["number", "other"]),
    ("Raises:", "Remark:", ["Raises"]),
    (">>> ", "", ["Example"]),
    ("Example:", "Remark:", ["Example"]),
    ("Source:", "Remark:", ["Source"]),
)


def test_what_a_docstring_lacks_is_seen(tmp_path):
    for number, (old, new, lacking) in enumerate(CHANGES):
        invented = load_invented(tmp_path / str(number), COMPLETE.replace(old, new, 1))
        assert lacks(invented["Halved"], needs_source=True) == lacking, old


def load_invented(folder, text):
    """A package of one module with this text, as griffe reads it."""
    (folder / "invented").mkdir(parents=True)
    (folder / "invented" / "__init__.py").write_text(text, encoding="utf-8")
    return load_package("invented", folder)


def test_sections_are_written_as_griffe_reads_them(tmp_path):
    docstring = load_invented(tmp_path, COMPLETE)["Halved"].docstring
    assert [section.kind.value for section in docstring.parsed] == [
        *("text", "parameters", "other parameters", "raises", "examples", "text")
    ]
    assert docstring.parsed[2].title == "Call arguments:"
    assert "[arXiv:2104.09864](https://arxiv.org/abs/2104.09864)" in docstring.value


def test_the_defaults_of_settings_are_shown():
    settings = {
        name: {one.name: one.default for one in resolved(package(), name).parameters}
        for name in ("RoFormerConfig", "PretrainingSettings")
    }
    assert settings["RoFormerConfig"]["vocabulary_size"] is None
    assert settings["RoFormerConfig"]["dropout"] == "0.1"
    assert settings["PretrainingSettings"]["dtype"] == "'float32'"
    assert str(settings["PretrainingSettings"]["model"]) == "dict()"
    text = " ".join(
        str(one.default)
        for found in public_names(package()).values()
        if not found.is_attribute
        for one in found.parameters
    )
    assert "minimum=" not in text and "choices=" not in text
