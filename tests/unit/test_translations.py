"""Chinese pages have the structure, code, figures and links of the English ones."""

import ast
import calendar
import json
import posixpath
import re
from typing import NamedTuple

from common import ROOT

PAGES = ["README.md"] + [
    path.relative_to(ROOT).as_posix().replace(".zh.md", ".md")
    for path in sorted((ROOT / "docs").rglob("*.zh.md"))
]
# The Chinese page links to this table of the English one.
GENERATED = re.compile(
    r"<!-- table of covered names -->.*?<!-- end of the table -->", re.S
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
HEADING = re.compile(r"^(#+) (.+)$", re.M)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FORMULA = re.compile(r"\$\$.+?\$\$|\$.+?\$", re.S)
CODE_SPAN = re.compile(r"`[^`]+`")
FIGURE = re.compile(r"\d+(?:[.,]\d+)*(?:e-?\d+)?")
# Large numbers in words: 3.6 million is 360 万.
LARGE = re.compile(r"(\d+(?:[.,]\d+)*) (million|万|亿)")
SIZES = {"million": 10**6, "万": 10**4, "亿": 10**8}
# Words in a formula, which are translated.
WORDS = re.compile(r"\\text\{[^}]*\}")
DATE = re.compile(rf"(\d+) ({'|'.join(calendar.month_name[1:])}) (\d{{4}})")


class Section(NamedTuple):
    """The parts that a section shares with its translation."""

    level: int
    paragraphs: int
    code: list
    tables: list
    links: list
    marks: set


def chinese_name(page):
    if page == "README.md":
        return "README.zh-CN.md"
    return re.sub(r"\.md$", ".zh.md", page)


def read_page(name):
    path = ROOT / name
    return path.read_text(encoding="utf-8") if path.is_file() else None


def without_comments(language, code):
    if language == "python":
        # In one layout: the formatter counts the width of comments too.
        return ast.unparse(ast.parse(code))
    return re.sub(r"(^|\s+)#.*$", "", code, flags=re.M)


def marks_of(text):
    """Code spans and figures, sorted: a translation may change their order."""
    text = DATE.sub(
        lambda found: (
            f"{found[1]} {list(calendar.month_name).index(found[2])} {found[3]}"
        ),
        LINK.sub("]", text),
    )
    code = [re.sub(r"\s+", " ", span) for span in CODE_SPAN.findall(text)]
    text = LARGE.sub(
        lambda found: f"{float(found[1].replace(',', '')) * SIZES[found[2]]:.0f}", text
    )
    return sorted(code + FIGURE.findall(CODE_SPAN.sub(" ", text)))


def sections_of(text, other):
    """Titles and their sections, without lines that link to the page `other`."""
    text = GENERATED.sub("", text)
    # Each block becomes a line, so that its comments are not taken for headings.
    text = FENCE.sub(
        lambda match: f"\0{(match[1], without_comments(*match.groups()))}", text
    )
    text = re.sub(rf"^.*\]\({re.escape(other)}[)#].*$", "", text, flags=re.M)
    parts = HEADING.split(text)[1:]
    sections = []
    for level, title, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        lines = body.splitlines()
        prose = "\n".join(line for line in lines if line[:1] not in ("\0", "|"))
        section = Section(
            len(level),
            len([part for part in re.split(r"\n\s*\n", body) if part.strip()]),
            [line for line in lines if line.startswith("\0")],
            [
                [marks_of(cell) for cell in re.split(r"(?<!\\)\|", line)]
                for line in lines
                if line.startswith("|")
            ],
            sorted(LINK.findall(body)),
            set(marks_of(prose)),
        )
        sections.append((title, section))
    return sections


def anchors_of(text):
    """The anchors of headings, as GitHub and the site make them."""
    titles = [title for _, title in HEADING.findall(FENCE.sub("", text))]
    return [
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles
    ]


def translate_link(link, page, read=read_page):
    """The link of the Chinese page: to a Chinese page if there is one."""
    if re.match(r"[a-z]+:", link) or not re.match(r"[^#]*\.md(#|$)|#", link):
        return link
    path, mark, anchor = link.partition("#")
    target = (
        posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if path
        else page
    )
    chinese = read(chinese_name(target))
    if chinese is None:
        return link
    if anchor:
        anchor = anchors_of(chinese)[anchors_of(read(target)).index(anchor)]
    return (path and chinese_name(path)) + mark + anchor


def describe(english, chinese):
    """The differences of two values, without the members that are equal."""
    if isinstance(english, set):
        english, chinese = sorted(english - chinese), sorted(chinese - english)
    elif isinstance(english, list) and len(english) == len(chinese):
        pairs = zip(english, chinese, strict=True)
        unequal = [pair for pair in pairs if pair[0] != pair[1]]
        english, chinese = map(list, zip(*unequal, strict=True))
    return f"{english}, in Chinese {chinese}"


def compare_pages(page, read=read_page):
    """Differences between an English page and its translation, as text."""
    english = sections_of(read(page), posixpath.basename(chinese_name(page)))
    chinese = sections_of(read(chinese_name(page)), posixpath.basename(page))
    differences = []
    if len(english) != len(chinese):
        differences.append(f"{len(english)} sections, in Chinese {len(chinese)}")
    for (title, ours), (_, theirs) in zip(english, chinese, strict=False):
        links = sorted(translate_link(link, page, read) for link in ours.links)
        expected = ours._replace(links=links)
        differences += [
            f"{title}: {name}: {describe(one, two)}"
            for name, one, two in zip(Section._fields, expected, theirs, strict=True)
            if one != two
        ]
    return differences


def parts_of_cell(text):
    formulas = {
        re.sub(r"\s+", " ", WORDS.sub("", formula)) for formula in FORMULA.findall(text)
    }
    text = FORMULA.sub(" ", text)
    links = sorted(LINK.findall(text))
    return len(HEADING.findall(text)), links, formulas, set(marks_of(text))


def compare_notebook(notebook, chinese):
    """Pairs of cells that differ in headings, links, formulas, code or figures."""
    cells = json.loads(read_page(notebook))["cells"]
    english = ["".join(c["source"]) for c in cells if c["cell_type"] == "markdown"]
    pairs = zip(english, chinese.split("<!-- cell -->"), strict=True)
    return [pair for pair in pairs if parts_of_cell(pair[0]) != parts_of_cell(pair[1])]


def test_chinese_pages_keep_up_with_the_english_ones():
    differences = {}
    for page in PAGES:
        english, chinese = read_page(page), read_page(chinese_name(page))
        if source := re.match(r"---\nsource: (\S+)\n---\n", english):
            page = source[1]
            if page.endswith(".ipynb"):
                assert chinese.startswith(english)
                assert compare_notebook(page, chinese.removeprefix(english)) == []
                continue
            assert chinese == english.replace(page, chinese_name(page))
        if pairs := compare_pages(page):
            differences[page] = pairs
    assert differences == {}
    assert len(PAGES) > 5


def test_both_readmes_link_to_each_other():
    for page, other in (
        ("README.md", "README.zh-CN.md"),
        ("README.zh-CN.md", "README.md"),
    ):
        assert f"]({other})" in read_page(page).splitlines()[2]


ENGLISH = """# Loading

A file of 5 MB and 3.6 million rows,
read with `load`, see [Saving](saving.md#in-python) and [Keras](https://keras.io).

## In Python

```python
load("a#b")  # a model
```

| file | size, 25 November 2026 |
|---|---|
| `a` | 1,234 of 5.6 |
"""
CHINESE = """# 加载

用 `load` 读取 5 MB、360 万行的文件，见 [Keras](https://keras.io)
和[保存](saving.zh.md#在-python-中)。

## Python

```python
load("a#b")  # 一个模型
```

| 文件 | 大小，2026 年 11 月 25 日 |
|---|---|
| `a` | 5.6 中的 1,234 |
"""
SAVING = {
    "saving.md": "# Saving\n\n## In Python\n",
    "saving.zh.md": "# 保存\n\n## 在 Python 中\n",
}


# What is in the Chinese page, what replaces it, and the difference.
CHANGES = (
    ("## Python", "### Python", "In Python: level: 2, in Chinese 3"),
    ("## Python\n", "", "2 sections, in Chinese 1"),
    ('"a#b"', '"a#c"', "In Python: code:"),
    ("```python", "```shell", "In Python: code:"),
    (
        "1,234",
        "1,235",
        "In Python: tables: [[[], ['`a`'], ['1,234', '5.6'], []]], in Chinese "
        "[[[], ['`a`'], ['1,235', '5.6'], []]]",
    ),
    ("| `a` |", "| `b` |", "In Python: tables:"),
    ("| `a` | 5.6 中的 1,234 |\n", "", "In Python: tables:"),
    ("saving.zh.md", "saving.md", "Loading: links:"),
    ("#在-python-中", "#in-python", "Loading: links:"),
    ("https://keras.io", "https://keras.io/api", "Loading: links:"),
    ("5 MB", "6 MB", "Loading: marks: ['5'], in Chinese ['6']"),
    ("360 万", "360", "Loading: marks: ['3600000'], in Chinese ['360']"),
    ("`load`", "`loads`", "Loading: marks:"),
    ("## Python", "新的一段。\n\n## Python", "Loading: paragraphs: 1, in Chinese 2"),
)


def test_differences_are_seen():
    def compare(chinese):
        pages = {**SAVING, "page.md": ENGLISH, "page.zh.md": chinese}
        return compare_pages("page.md", pages.get)

    assert compare(CHINESE) == []
    for old, new, expected in CHANGES:
        assert CHINESE.count(old) == 1
        differences = compare(CHINESE.replace(old, new))
        assert any(text.startswith(expected) for text in differences), differences


def test_differences_of_notebooks_are_seen():
    notebook = "notebooks/rope_from_two_dimensions.ipynb"
    chinese = read_page("docs/notebooks/rope_from_two_dimensions.zh.md")
    for old, new in (
        ("$R(x, m) = |x|$", "$R(x, m) = x$"),
        ("47,000", "48,000"),
        ("`rotary_base`", "`base`"),
        ("## 2. ", ""),
        ("abs/2306.15595", "abs/2306.15596"),
    ):
        assert chinese.count(old) == 1
        assert len(compare_notebook(notebook, chinese.replace(old, new))) == 1
