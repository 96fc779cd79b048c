"""The site of the documentation: it builds without a warning and works offline."""

import json
import re

import yaml
from common import ROOT, output_of

from tools import docs_site

MAX_LINES = 400


def test_the_site_is_built_and_complete(tmp_path):
    """One build for all checks; warnings, such as those of dead links, are errors."""
    words = ("mkdocs", "build", "--strict", "--site-dir", tmp_path)
    output_of("-m", *words, cwd=ROOT)
    check_pages_of_files(tmp_path)
    check_help_of_commands(tmp_path)
    check_notebook(tmp_path)
    check_chinese_search(tmp_path)
    check_that_it_works_offline(tmp_path)


def read(site, name):
    return (site / name / "index.html").read_text(encoding="utf-8")


def check_pages_of_files(site):
    assert "Quick start" in read(site, "")
    for name, source in (
        ("changelog", "CHANGELOG.md"),
        ("contributing", "CONTRIBUTING.md"),
        ("checkpoints/roformer-char", "checkpoints/roformer-char.md"),
    ):
        text = (ROOT / source).read_text(encoding="utf-8")
        title = re.search(r"^# (.+)$", text, re.M)[1]
        page = read(site, name)
        assert title in page and "library_name:" not in page
    assert (site / "zh" / "quick-start" / "index.html").is_file()


def check_help_of_commands(site):
    page = read(site, "command-line")
    for command in ("generate", "fill-mask", "finetune", "serve"):
        assert f'id="{command}"' in page
        assert f"usage: roformer-keras {command} " in page


def check_notebook(site):
    """It has its pictures, formulas and a link to Colab."""
    page = read(site, "notebooks/rope_from_two_dimensions")
    assert page.count("data:image/png;base64,") >= 5
    assert page.count("<math ") > 20
    assert not re.search("[\ue000\ue001]", page)
    settings = yaml.safe_load(re.sub(r"!!\S+", "", (ROOT / "mkdocs.yml").read_text()))
    owner = settings["repo_url"].removeprefix("https://github.com/")
    name = "notebooks/rope_from_two_dimensions.ipynb"
    assert f"{docs_site.COLAB}/{owner}/blob/{docs_site.BRANCH}/{name}" in page


def check_chinese_search(site):
    """Words are separated in the index, and the search splits it there."""
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    text = " ".join(
        page["text"]
        for page in index["docs"]
        if page["location"].startswith("zh/loading")
    )
    words = re.split(index["config"]["separator"], text)
    assert {"张量", "词表", "权重", "from_preset"} <= set(words)


# What a browser loads with a page or a style.
LOADED = {
    ".html": r"<(?:script|img|iframe|source|link(?![^>]*canonical))\b[^>]*?"
    r"\b(?:src|href)=[\"']?([^\"'\s>]+)",
    ".css": r"(?:url\(|@import )[\"']?([^\"')\s]+)",
}
# Hosts that the theme's script asks where a page has a mark; of unpkg.com it has a
# polyfill for browsers of before 2020.
MARKS = {"api.github.com": 'data-md-component="source"', "unpkg.com": "mermaid"}
HOST = r"[\"'`](?:https?:)?//([a-z0-9-]+(?:\.[a-z0-9-]+)+)"


def check_that_it_works_offline(site):
    """Pages, scripts and styles load nothing from another host."""
    wrong, count = [], 0
    for path in (path for path in site.rglob("*") if path.suffix in (*LOADED, ".js")):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".js":
            wrong += [(path, host) for host in {*re.findall(HOST, text)} - MARKS.keys()]
            continue
        addresses = re.findall(LOADED[path.suffix], text)
        count += len(addresses)
        outside = [link for link in addresses if re.match("(https?:)?//", link)]
        if path.suffix == ".html":
            outside += [mark for mark in MARKS.values() if mark in text]
        wrong += [(path, address) for address in outside]
    assert wrong == []
    assert count > 500


def test_links_within_the_repository_lead_to_files():
    """MkDocs checks those to pages; these lead to the repository."""
    mark = f"REPO/blob/{docs_site.BRANCH}/"
    for link, name, expected in (
        ("LICENSE", "README.md", f"{mark}LICENSE"),
        ("../setup.cfg#L1", "docs/loading.md", f"{mark}setup.cfg#L1"),
        ("../tests", "docs/loading.md", f"REPO/tree/{docs_site.BRANCH}/tests"),
        ("docs/loading.md#in-python", "README.md", "loading.md#in-python"),
        ("../README.md", "docs/loading.md", "index.md"),
        ("https://keras.io", "README.md", "https://keras.io"),
        ("docs/loading.zh.md#python", "README.zh-CN.md", "loading.zh.md#python"),
        ("loading.md#in", "docs/loading.zh.md", f"{mark}docs/loading.md#in"),
        ("features.md#backends", "docs/loading.zh.md", "features.md#backends"),
        # MkDocs shall say that it is dead.
        ("no.md", "README.md", "no.md"),
    ):
        assert docs_site.rewrite_link(link, name, ".", "REPO") == expected


def test_pages_can_be_read_at_once():
    """Pages are short, and say first what they are for."""
    wrong = []
    for path in (*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")):
        lines = path.read_text(encoding="utf-8").splitlines()
        max_lines = 150 if path.parent == ROOT else MAX_LINES
        begin = "\n".join(lines[:3])
        is_source = docs_site.source_of(path)
        if len(lines) > max_lines or not (
            is_source or re.match(r"# .+\n\n[\w\[`]", begin)
        ):
            wrong.append(path)
    assert wrong == []
