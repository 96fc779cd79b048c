"""The site of the documentation: it builds without a warning and works offline."""

import json
import re
import shutil
import subprocess

import yaml
from common import ROOT, output_of, read_json

from tools import docs_site

MAX_LINES = 400
# What Chinese readers type -> a page that must be among the first two.
QUERIES = {
    "NER": "fine-tuning/tags-and-spans",
    "命名实体": "fine-tuning/tags-and-spans",
    "命名实体识别": "fine-tuning/tags-and-spans",
    "序列标注": "fine-tuning/tags-and-spans",
    "阅读理解": "fine-tuning/questions",
    "多项选择": "fine-tuning/questions",
    "文本分类": "fine-tuning/classification",
    "情感分析": "fine-tuning/classification",
    "多标签": "fine-tuning/classification",
    "相似度": "fine-tuning/sentence-vectors",
    "句向量": "fine-tuning/sentence-vectors",
    "微调": "fine-tuning",
    "学习率": "fine-tuning",
    "断点续训": "fine-tuning",
    "检索": "search",
    "向量检索": "search",
    "显存": "faq",
    "OOM": "faq",
    "长文本": "faq",
    "词表不一致": "faq",
    "多卡": "faq",
    "报错": "error-messages",
    "加载报错": "error-messages",
    "乱码": "error-messages",
    "转ONNX": "exporting",
    "量化": "exporting",
    "部署": "deploying",
    "HTTP接口": "serving",
    "容器": "deploying",
    "性能": "performance",
    "数值对齐": "verification",
    "预训练": "pretraining",
    "写诗": "generation",
    "推理加速": "engines",
    "批量编码": "many-texts",
    "分词器": "api/package",
    "安装": "quick-start",
    "命令行": "command-line",
    "文本匹配": "fine-tuning/classification",
    "梯度累积": "fine-tuning",
    "半精度": "faq",
    "混合精度": "faq",
    "完形填空": "quick-start",
    "掩码填空": "quick-start",
    "字向量": "quick-start",
    "特征提取": "quick-start",
    "知识蒸馏": "pretraining",
    "SimBERT": "pretraining",
    "难负例": "search",
    "重排序": "search",
    "并发": "serving",
}
# Runs the worker of the site's own search, in Node.
SEARCH = """
const fs = require("fs"), vm = require("vm"), path = require("path");
const [site, ...queries] = process.argv.slice(1);
const folder = path.join(site, "assets/javascripts/workers");
const run = (name) =>
  vm.runInThisContext(fs.readFileSync(path.join(folder, name), "utf8"));
let ask, answer;
// The scripts find a browser's names, and none of Node's modules.
globalThis.self = globalThis;
for (const name of ["exports", "module", "require"]) delete globalThis[name];
globalThis.addEventListener = (_, listener) => { ask = listener; };
globalThis.postMessage = (message) => answer(message.data);
globalThis.importScripts = (...names) => names.forEach(run);
fs.readdirSync(folder).filter((name) => name.endsWith(".js")).forEach(run);
const send = (type, data) =>
  new Promise((resolve) => { answer = resolve; ask({ data: { type, data } }); });
(async () => {
  const file = path.join(site, "search/search_index.json");
  await send(0, { ...JSON.parse(fs.readFileSync(file, "utf8")), options: {} });
  const found = {};
  for (const query of queries) {
    const { items } = await send(2, query);
    found[query] = items.map(([page]) => page.location.split("#")[0]);
  }
  console.log(JSON.stringify(found));
})();
"""


def test_the_site_is_built_and_complete(tmp_path):
    """One build for all checks; warnings, such as those of dead links, are errors."""
    words = ("mkdocs", "build", "--strict", "--site-dir", tmp_path)
    output_of("-m", *words, cwd=ROOT)
    check_pages_of_files(tmp_path)
    check_help_of_commands(tmp_path)
    check_notebook(tmp_path)
    check_chinese_search(tmp_path)
    check_that_it_works_offline(tmp_path)
    if shutil.which("node"):
        check_queries(tmp_path)


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
    index = read_json(site / "search" / "search_index.json")
    text = " ".join(
        page["text"]
        for page in index["docs"]
        if page["location"].startswith("zh/loading")
    )
    words = re.split(index["config"]["separator"], text)
    assert {"张量", "词表", "权重", "from_preset"} <= set(words)


def check_queries(site):
    """Each query finds its page first or second, the Chinese one if there is one."""
    words = ("node", "-e", SEARCH, "--", site, *QUERIES)
    shown = subprocess.run(words, capture_output=True, check=True, timeout=60).stdout
    found = json.loads(shown)
    wrong = {}
    for query, page in QUERIES.items():
        path = f"{page}/"
        if docs_site.has_chinese(f"{page}.md"):
            path = f"zh/{path}"
        if path not in found[query][:2]:
            wrong[query] = path, found[query][:3]
    assert wrong == {}
    assert len(QUERIES) >= 30


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
        ("security.md#files", "docs/loading.zh.md", "security.md#files"),
        (
            "questions.png",
            "docs/fine-tuning/questions.zh.md",
            "fine-tuning/questions.png",
        ),
        ("../notebooks/README.zh.md", "docs/faq.zh.md", "notebooks/index.zh.md"),
        ("../notebooks/generate.ipynb", "docs/faq.md", "notebooks/generate.md"),
        ("../notebooks/generate.ipynb", "docs/faq.zh.md", "notebooks/generate.zh.md"),
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
