"""What the API reference shows: the public names, and their docstrings in sections.

Modules are read with griffe and not imported, as mkdocstrings does. `mkdocs.yml` names
this file as an extension of griffe; `tests/unit/test_api_docs.py` checks what it finds.
"""

import ast
import re
from collections.abc import Iterator

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
_SECTION = re.compile(r"^(Args|Call arguments|Attributes):$")
_SHARED = re.compile(r"^    (\w+(?:, \w+)+):(?: |$)")


class Sections(griffe.Extension):
    """Writes the sections of this package's docstrings as griffe expects them."""

    def on_package(
        self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs
    ) -> None:
        for found in documented(pkg):
            found.docstring.value = with_sections(found.docstring.value)


def with_sections(text: str) -> str:
    """A docstring with the names of sections, and the links, that griffe expects.

    Griffe knows neither `Example` nor `Call arguments`, and takes "a, b: int." for one
    argument.
    """
    lines: list[str] = []
    shared: list[str] = []
    in_arguments = False
    for line in [*text.splitlines(), ""]:
        if shared and not line.startswith("        "):
            lines += _repeated(shared)
            shared = []
        if shared:
            shared.append(line)
            continue
        if line and not line.startswith(" "):
            in_arguments = bool(_SECTION.match(line))
        if in_arguments and _SHARED.match(line):
            shared = [line]
            continue
        line = {
            "Example:": "Examples:",
            "Call arguments:": "Other args: Call arguments:",
        }.get(line, line)
        lines.append(line if ">>>" in line else _ARXIV.sub(_linked, line))
    return "\n".join(lines).rstrip()


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
            case ast.ClassDef() | ast.FunctionDef():
                names.append(node.name)
            case ast.AnnAssign(target=ast.Name(id=name)) if name != "__all__":
                names.append(name)
    return names


def resolved(module: griffe.Module, name: str) -> griffe.Object:
    """What a name of a module is, wherever it is defined."""
    found = module[name]
    return found.final_target if found.is_alias else found


def names_on_pages() -> list[tuple[str, str]]:
    """Each name of the pages that mkdocstrings fills in, after the name of its page."""
    return [
        (page.name, name)
        for page in sorted(PAGES.glob("*.md"))
        for name in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.M)
    ]
