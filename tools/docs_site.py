"""Additions of the documentation's site to the pages in docs/; a hook of MkDocs.

A page whose front matter names a `source` has the text of that file of the repository,
Markdown or a notebook; the Chinese page of a notebook has the text of its cells. Links
that leave docs/ lead to the page of the file if it has one, else to the repository. The
help of the commands is written into its page. The search also finds a page by its
`search_words` of mkdocs.yml, and Chinese words whole.
"""

import contextlib
import functools
import inspect
import io
import logging
import os
import posixpath
import re
import sys
from pathlib import Path
from unittest import mock

import jieba
import nbformat
from latex2mathml.converter import convert as to_mathml
from mkdocs.structure.files import File
from mkdocs.utils.meta import get_data
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parents[1]
BRANCH = "main"
HELP = "<!-- help of the commands -->"
FUNCTIONS = "<!-- functions of verbs -->"
# Between the texts of two cells of a notebook, on its Chinese page.
CELL = "<!-- cell -->"
# Columns of the help.
WIDTH = 88
PICTURES = ("checkpoints", "checkpoints/training")
COLAB = "https://colab.research.google.com/github"
_SOURCE = re.compile(r"\A---\nsource: (\S+)\n---\n")
# The site has its own choice of languages.
_LANGUAGE = re.compile(r"^\[(?:English|简体中文)\]\([^)]*\)\n+", re.M)
_FENCE = re.compile(r"^(```.*?^```[^\S\n]*$)", re.M | re.S)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^##+ (.+)$", re.M)
# Names of Chinese pages and of the Chinese README.
_CHINESE = re.compile(r"\.zh(-CN)?(?=\.md$)")
# Code is passed over.
_FORMULA = re.compile(r"`[^`]*`|\$\$(?P<block>.+?)\$\$|\$(?P<inline>.+?)\$", re.S)
# Around the number of a formula until the page is HTML: private-use characters.
_BEGIN, _END = "\ue000", "\ue001"


# Material's search cuts a Chinese query into words of the index, and misses the word
# that ends with the query: it looks for `多` where `多标签` is typed (version 9.8.2).
_CUT_SHORT = re.compile(
    r"(for\(let (\w)=\w\+1;\2)<(\w\.length;\2\+\+\)\w\.slice\(\w,\2\)in )"
)


def on_config(config):
    """Keeps search words whole where jieba cuts the texts of pages."""
    for words in config.extra["search_words"].values():
        for word in words.split():
            jieba.add_word(word)


def on_post_build(config):
    for path in Path(config.site_dir).glob("assets/javascripts/workers/search.*.js"):
        script, count = _CUT_SHORT.subn(r"\1<=\3", path.read_text(encoding="utf-8"))
        if count != 1:
            logging.getLogger("mkdocs.hooks").warning(
                "%s cuts queries in another way", path
            )
        path.write_text(script, encoding="utf-8")


def on_files(files, config):
    for folder in PICTURES:
        for path in sorted((ROOT / folder).glob("*.png")):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    name = f"docs/{page.file.src_uri}"
    page.meta["tags"] = config.extra["search_words"].get(page.file.src_uri, "").split()
    if source := page.meta.get("source"):
        name = source
        if source.endswith(".ipynb"):
            markdown, page.formulas = read_notebook(
                ROOT / source, config.repo_url, split_cells(markdown)
            )
        else:
            # Without the fields that cards of models have for the Hub.
            markdown, _ = get_data((ROOT / source).read_text(encoding="utf-8"))
    markdown = _LANGUAGE.sub("", markdown)
    if _CHINESE.search(name):
        english = ROOT / _CHINESE.sub("", name)
        markdown = add_anchors(markdown, english.read_text(encoding="utf-8"))
    if HELP in markdown:
        markdown = markdown.replace(HELP, help_of_commands())
    if FUNCTIONS in markdown:
        markdown = markdown.replace(FUNCTIONS, functions_of_verbs())
    page_folder = posixpath.dirname(page.file.src_uri) or "."

    def rewrite(found):
        return f"]({rewrite_link(found[1], name, page_folder, config.repo_url)})"

    # Blocks of code stay as they are.
    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(rewrite, part) for part in parts[::2]]
    return "".join(parts)


def on_page_content(html, page, config, files):
    for number, formula in enumerate(getattr(page, "formulas", ())):
        html = html.replace(f"{_BEGIN}{number}{_END}", formula)
    return html


@functools.cache
def pages_of_sources():
    """Files of the repository -> their pages."""
    docs = ROOT / "docs"
    return {
        source: path.relative_to(docs).as_posix()
        # The English page of a notebook comes last.
        for path in sorted(docs.rglob("*.md"), reverse=True)
        if (source := source_of(path))
    }


def source_of(path):
    """The file of the repository that a page shows, if it does."""
    include = _SOURCE.match(path.read_text(encoding="utf-8"))
    return include and include[1]


def rewrite_link(link, name, place, repository):
    """A link of a file of the repository, for a page in a folder of docs/."""
    if re.match(r"[a-z]+:|#|/", link):
        return link
    path, mark, anchor = link.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    target = pages_of_sources().get(path)
    if target is None and path.startswith("docs/"):
        target = path.removeprefix("docs/")
    elif target is None and path.endswith(".png"):
        target = path
    if target and _CHINESE.search(name) and has_chinese(target):
        # The Chinese site has no address of this English page; a notebook has text in
        # both languages.
        is_notebook = path.endswith(".ipynb")
        target = target.removesuffix(".md") + ".zh.md" if is_notebook else None
    if target is not None:
        return posixpath.relpath(target, place) + mark + anchor
    if not (ROOT / path).exists():
        # MkDocs names it and its page.
        return link
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{repository}/{kind}/{BRANCH}/{path}{mark}{anchor}"


def has_chinese(page):
    path = ROOT / "docs" / page
    return path.suffix == ".md" and path.with_suffix(".zh.md").exists()


def add_anchors(markdown, english):
    """Adds the anchors of the English page, which pages without Chinese link to."""
    titles = iter(_HEADING.findall(_FENCE.sub("", english)))
    to_anchor = slugify(case="lower")

    def add_anchor(found):
        title = next(titles, None)
        return (
            f'<a id="{to_anchor(title, "-")}"></a>\n\n{found[0]}' if title else found[0]
        )

    parts = _FENCE.split(markdown)
    parts[::2] = [_HEADING.sub(add_anchor, part) for part in parts[::2]]
    return "".join(parts)


@functools.cache
def help_of_commands():
    """A section for each command."""
    sys.path.insert(0, str(ROOT))
    from roformer_keras.cli.main import find_commands, main

    sections = []
    for name in find_commands():
        shown = io.StringIO()
        # The help of a terminal of a fixed width, without colours.
        environment = {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}
        with (
            mock.patch.dict(os.environ, environment),
            contextlib.redirect_stdout(shown),
            contextlib.suppress(SystemExit),
        ):
            main([name, "--help"])
        sections.append(f"## {name}\n\n```text\n{shown.getvalue().strip()}\n```")
    return "\n\n".join(sections)


def functions_of_verbs():
    """A section for each function on a dataset."""
    sys.path.insert(0, str(ROOT))
    from roformer_keras import distributed
    from roformer_keras.verbs import VERBS

    sections = []
    for name in sorted(one.replace("-", "_") for one in VERBS):
        described = inspect.getdoc(getattr(distributed, name))
        sections.append(f"## {name}\n\n```text\n{described}\n```")
    return "\n\n".join(sections)


def split_cells(markdown):
    """The translated texts of a notebook's cells; none on its English page."""
    return [text.strip() for text in markdown.split(CELL)] if CELL in markdown else []


def read_notebook(path, repository, translations=()):
    """A notebook as Markdown, and its formulas in MathML, which browsers show.

    `translations` replace the texts of its cells, in their order.
    """
    parts, formulas, texts = [], [], iter(translations)

    def keep_formula(found):
        if found["block"] is None and found["inline"] is None:
            return found[0]
        if found["block"] is not None:
            formulas.append(to_mathml(found["block"], display="block"))
        else:
            formulas.append(to_mathml(found["inline"]))
        return f"{_BEGIN}{len(formulas) - 1}{_END}"

    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(_FORMULA.sub(keep_formula, next(texts, cell.source)))
        else:
            parts.append(f"```python\n{cell.source}\n```")
            parts += filter(None, map(show_output, cell.outputs))
    title, _, text = parts[0].partition("\n")
    owner = repository.rstrip("/").removeprefix("https://github.com/")
    name = path.relative_to(ROOT).as_posix()
    links = (
        f"[Open in Colab]({COLAB}/{owner}/blob/{BRANCH}/{name}) · "
        f"[Notebook]({repository}/blob/{BRANCH}/{name})"
    )
    return "\n\n".join([title, links, text, *parts[1:]]), formulas


def show_output(output):
    data = output.get("data", {})
    if "image/png" in data:
        content = data["image/png"].replace("\n", "")
        return f"![Output](data:image/png;base64,{content})"
    if "text/html" in data:
        # Without blank lines it is one block of HTML.
        lines = filter(str.strip, data["text/html"].splitlines())
        return "<div>\n" + "\n".join(lines) + "\n</div>"
    text = output.get("text") or data.get("text/plain") or ""
    return f"```text\n{text.rstrip()}\n```" if text.strip() else None
