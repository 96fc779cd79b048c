"""The site of the documentation: it builds without a warning and works offline."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from common import ROOT

from tools import docs_site

MAX_LINES = 400


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def read(site, name):
    return (site / name / "index.html").read_text(encoding="utf-8")


def test_files_of_the_repository_are_pages(site):
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


def test_the_help_of_every_command_is_a_section(site):
    page = read(site, "command-line")
    for command in ("generate", "fill-mask", "finetune", "serve"):
        assert f'id="{command}"' in page
        assert f"usage: roformer-keras {command} " in page


def test_notebooks_have_pictures_formulas_and_a_link_to_colab(site):
    page = read(site, "notebooks/rope_from_two_dimensions")
    assert page.count("data:image/png;base64,") >= 5
    assert page.count("<math ") > 20
    assert not re.search("[\ue000\ue001]", page)
    repository = yaml.safe_load(re.sub(r"!!\S+", "", (ROOT / "mkdocs.yml").read_text()))
    owner = repository["repo_url"].removeprefix("https://github.com/")
    name = "notebooks/rope_from_two_dimensions.ipynb"
    assert f"{docs_site.COLAB}/{owner}/blob/{docs_site.BRANCH}/{name}" in page


def test_search_knows_chinese_words(site):
    """Words are separated in the index, and the search splits it there."""
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    pages = [
        page for page in index["docs"] if page["location"].startswith("zh/loading")
    ]
    text = " ".join(page["text"] for page in pages)
    words = re.split(index["config"]["separator"], text)
    assert {"张量", "词表", "权重", "from_preset"} <= set(words)


class Loaded(HTMLParser):
    """Addresses that a browser loads with a page."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(attrs.get("src"))
        if tag == "link" and attrs.get("rel") != "canonical":
            self.found.append(attrs.get("href"))


def test_pages_load_nothing_from_elsewhere(site):
    for path in site.rglob("*.html"):
        page = Loaded()
        page.feed(path.read_text(encoding="utf-8"))
        assert page.found
        for address in filter(None, page.found):
            assert not re.match("(https?:)?//", address), (path, address)


def test_its_script_asks_no_other_host(site):
    """The theme's script asks some where a page has a mark; no page has one.

    Apart from a polyfill of unpkg.com for browsers of before 2020.
    """
    marks = {"api.github.com": 'data-md-component="source"', "unpkg.com": "mermaid"}
    host = r"[\"'`](?:https?:)?//([a-z0-9-]+(?:\.[a-z0-9-]+)+)"
    for path in site.rglob("*.js"):
        hosts = set(re.findall(host, path.read_text(encoding="utf-8")))
        assert hosts <= marks.keys(), path
    for path in site.rglob("*.css"):
        loaded = re.findall(r"(?:url\(|@import )[\"']?([^\"')\s]+)", path.read_text())
        assert not [one for one in loaded if re.match("(https?:)?//", one)], path
    for path in site.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        marked = [mark for mark in marks.values() if mark in page]
        assert not marked, path


def test_links_within_the_repository_lead_to_files():
    """MkDocs checks those to pages; these lead to the repository."""
    mark = f"REPO/blob/{docs_site.BRANCH}/"
    rewritten = [
        docs_site.rewrite_link(link, name, ".", "REPO")
        for link, name in (
            ("LICENSE", "README.md"),
            ("../setup.cfg#L1", "docs/loading.md"),
            ("../tests", "docs/loading.md"),
            ("docs/loading.md#in-python", "README.md"),
            ("../README.md", "docs/loading.md"),
            ("https://keras.io", "README.md"),
            ("docs/loading.zh.md#python", "README.zh-CN.md"),
            ("loading.md#in-python", "docs/loading.zh.md"),
            ("features.md#backends", "docs/loading.zh.md"),
        )
    ]
    assert rewritten == [
        f"{mark}LICENSE",
        f"{mark}setup.cfg#L1",
        f"REPO/tree/{docs_site.BRANCH}/tests",
        "loading.md#in-python",
        "index.md",
        "https://keras.io",
        "loading.zh.md#python",
        f"{mark}docs/loading.md#in-python",
        "features.md#backends",
    ]
    # MkDocs shall say that it is dead.
    assert docs_site.rewrite_link("no.md", "README.md", ".", "REPO") == "no.md"


@pytest.mark.parametrize(
    "path",
    [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md"))],
    ids=str,
)
def test_a_page_can_be_read_at_once(path: Path):
    """Pages are short, and say first what they are for."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= (150 if path.parent == ROOT else MAX_LINES)
    if not docs_site.source_of(path):
        assert lines[0].startswith("# ") and not lines[1]
        assert re.match(r"[\w\[`]", lines[2]), lines[2]
