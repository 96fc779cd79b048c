"""The contents of the API reference: public names, and their docstrings in sections.

Modules are read with griffe and not imported, as mkdocstrings does. `mkdocs.yml` names
this file as an extension of griffe; `tests/unit/test_api_docs.py` checks what it finds.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping

import griffe

from tools import ROOT

PACKAGE = "roformer_keras"
PAGES = ROOT / "docs" / "api"
# The interface of another library: docs/api/bert4keras.md says where its names are.
_OTHER_INTERFACE = "bert4keras"
# How the sections are parsed, here and in mkdocs.yml.
DOCSTRING_OPTIONS = {
    "returns_multiple_items": False,
    "returns_named_value": False,
    "warn_missing_types": False,
    "warn_unknown_params": False,
}
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{5})")
_ARGUMENTS = ("Args:", "Call arguments:", "Attributes:")
_PLAIN = ("Returns:", "References:")
_RENAMED = {
    "Example:": "Examples:",
    "Call arguments:": "Other args: Call arguments:",
}
_CLASS = re.compile(r"`([A-Z]\w+)`")
# Functions of `checks` that make a field, their default first; and others.
_FIELDS = ("choice", "columns", "file_paths", "integer", "number", "source_path")
_DEFAULTS = {"dtype_policy": "'float32'", "random_seed": "0"}
_SHARED = re.compile(r"^    (\w+(?:, \w+)+):(?: |$)")


class Sections(griffe.Extension):
    """Writes the sections of this package's docstrings as griffe expects them."""

    def on_package(
        self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs
    ) -> None:
        pages = class_pages()
        for owner, name, function in assigned_methods(pkg):
            owner.set_member(name, griffe.Alias(name, function, parent=owner))
            for one in (function, *(function.overloads or ())):
                # Shown as methods, which have their model.
                if "model" in one.parameters:
                    del one.parameters["model"]
        for found in documented(pkg):
            text = with_sections(found.docstring.value)
            found.docstring.value = with_links(text, pages)
        for field in fields(pkg):
            shown = default_of(str(field.value))
            # Others are expressions, which griffe understands.
            field.value = field.value if shown == str(field.value) else shown


def assigned_methods(
    package: griffe.Module,
) -> list[tuple[griffe.Class, str, griffe.Function]]:
    """Methods of classes that are functions of a module: class, name and function."""
    modules = {one.path: one for one in modules_of(package)}
    methods = []
    for owner in [one for home in modules.values() for one in home.classes.values()]:
        for name, member in owner.members.items():
            value = getattr(member, "value", None)
            if member.is_alias or not isinstance(value, griffe.ExprAttribute):
                continue
            module, _, function = value.canonical_path.rpartition(".")
            home = modules.get(module)
            if home and function in home.functions:
                methods.append((owner, name, home.functions[function]))
    return methods


def modules_of(module: griffe.Module) -> Iterator[griffe.Module]:
    """A module, and those below it."""
    yield module
    for member in module.modules.values():
        if not member.is_alias:
            yield from modules_of(member)


def fields(module: griffe.Object) -> Iterator[griffe.Attribute]:
    """The fields of dataclasses that have a value."""
    for member in module.members.values():
        if member.is_alias:
            continue
        if member.is_attribute and "dataclass" in module.labels and member.value:
            yield member
        yield from fields(member)


def default_of(value: str) -> str | None:
    """The default of a field that `checks` makes, such as `integer(1, minimum=1)`."""
    call = ast.parse(value, mode="eval").body
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
        if call.func.id in _DEFAULTS:
            return _DEFAULTS[call.func.id]
        if call.func.id in _FIELDS:
            return ast.unparse(call.args[0]) if call.args else None
    return value


def with_sections(text: str) -> str:
    """A docstring with the names of sections, and the links, that griffe expects.

    Griffe knows neither `Example` nor `Call arguments`, and takes "a, b: int." for one
    argument; a source of two lines it takes for a remark with a title. What a class
    returns when it is called has no type for it to show.
    """
    lines: list[str] = []
    shared: list[str] = []
    section = ""
    for line in [*text.splitlines(), ""]:
        if shared and not line.startswith("        "):
            lines += _repeated(shared)
            shared = []
        if shared:
            shared.append(line)
            continue
        if line and not line.startswith(" "):
            section = line
        if section in _ARGUMENTS and _SHARED.match(line):
            shared = [line]
            continue
        if section in _PLAIN:
            line = f"**{line}**\n" if line == section else line.removeprefix("    ")
        elif section.startswith("Source"):
            line = line.lstrip()
        line = _RENAMED.get(line, line)
        lines.append(line if ">>>" in line else _ARXIV.sub(_linked, line))
    return "\n".join(lines).rstrip()


def with_links(text: str, pages: Mapping[str, str]) -> str:
    """A docstring whose names of classes are links.

    Args:
        text: with sections as griffe expects them.
        pages: by the name of a class, what mkdocstrings calls it.
    """

    def link(match):
        name = match[1]
        return f"[`{name}`][{pages[name]}]" if name in pages else match[0]

    lines = text.splitlines()
    return "\n".join(
        line if ">>>" in line else _CLASS.sub(link, line) for line in lines
    )


def class_pages() -> dict[str, str]:
    """Members on the pages, by the name of the class, if only one has it."""
    names = [name for _, name in names_on_pages()]
    counts = Counter(name.rpartition(".")[2] for name in names)
    return {
        short: name
        for name in names
        if counts[short := name.rpartition(".")[2]] == 1 and short[0].isupper()
    }


def _repeated(lines):
    """The lines of an entry for each of its names."""
    match = _SHARED.match(lines[0])
    for name in match[1].split(", "):
        yield f"    {name}: {lines[0][match.end() :]}"
        yield from lines[1:]


def _linked(match):
    return f"[{match[0]}](https://arxiv.org/abs/{match[1]})"


def load_package(name: str = PACKAGE, folder=ROOT) -> griffe.Module:
    """The package as griffe reads it, without an import."""
    return griffe.load(
        name,
        search_paths=[folder],
        extensions=griffe.load_extensions(Sections),
        resolve_aliases=True,
        resolve_external=False,
        docstring_parser="google",
        docstring_options=DOCSTRING_OPTIONS,
    )


def documented(module: griffe.Object) -> Iterator[griffe.Object]:
    """Everything with a docstring in a module and in the modules below it."""
    if module.docstring:
        yield module
    for member in module.members.values():
        if not member.is_alias:
            yield from documented(member)


def public_names(package: griffe.Module) -> dict[str, griffe.Object]:
    """Public names by path, such as `roformer_keras.layers.Pooler`, with what they are.

    Those of the package and of the modules directly below it that list their names,
    in `__all__` or in a file `.pyi`. A module is not a name, and a name of two modules
    has two paths.
    """
    modules = [package, *package.modules.values()]
    return {
        f"{module.path}.{name}": found
        for module in modules
        if module.name != _OTHER_INTERFACE
        for name in _listed(module)
        if not (found := resolved(module, name)).is_module
    }


def _listed(module):
    stub = module.filepath.with_suffix(".pyi")
    if not stub.exists():
        return [str(name) for name in module.exports or ()]
    names = []
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        match node:
            case ast.ImportFrom() | ast.Import():
                names += [found.asname for found in node.names if found.asname]
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names += [name] * (not name.startswith("__"))
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("__"):
                names.append(name)
    return names


def resolved(module: griffe.Module, name: str) -> griffe.Object:
    """The object of a name of a module, wherever it is defined."""
    member = module[name]
    member = member.final_target if member.is_alias else member
    # A function may hide the module of its name.
    return member.members.get(member.name, member) if member.is_module else member


def names_on_pages() -> list[tuple[str, str]]:
    """Each name of the pages that mkdocstrings fills in, after the name of its page."""
    return [
        (page.name, name)
        for page in sorted(PAGES.glob("*.md"))
        for name in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.M)
    ]
