"""README and the pages in docs/: their commands and Python blocks run.

Small files stand in for those that a page names: for a released zip and the package's
checkpoints those of one layer, for the reviews and the titles their first short lines.
Texts are short by default, and little is compiled. A Chinese page has the blocks of the
English one, see `tests/unit/test_translations.py`. The examples of docstrings run in
`test_backends.py`, those that export a model here.
"""

import gzip
import shutil
import sys

import docs_blocks
import pytest
from common import (
    ROOT,
    SIM,
    output_of,
    reference_folder,
    transformers_python,
    write_lines,
)
from hub_server import OWNER, TOKEN, environment_of, hub
from one_layer import read_shipped_from, write_lowest_layer

from roformer_keras.hub import catalog

PYTHON = transformers_python()
PAGE = ROOT / "docs" / "huggingface.md"
SCRIPTS = ROOT / "docs" / "coming-from-bert4keras.md"
SHIPPED = ROOT / "roformer_keras" / "checkpoints"
RELEASED = "chinese_roformer-sim-char-ft_L-12_H-768_A-12.zip"
PAGES = (
    *("README.md", "docs/quick-start.md", "docs/loading.md"),
    *("docs/generation.md", "docs/fine-tuning/classification.md"),
    *("docs/fine-tuning/relation-extraction.md", "docs/fine-tuning/questions.md"),
    *("docs/fine-tuning/sentence-vectors.md", "docs/fine-tuning.md"),
    *("docs/fine-tuning/tags-and-spans.md", "docs/pretraining.md"),
    *("docs/linear-attention.md", "docs/many-texts.md"),
    *("docs/engines.md", "docs/exporting.md", "docs/verification.md", "docs/faq.md"),
    "docs/search.md",
)
# TensorFlow trains on the others eagerly.
COMPILED = ("README.md", "docs/exporting.md")
# Pages that other tests run, and those that need more than one machine or a new clone.
ELSEWHERE = {
    "CONTRIBUTING.md": "the commands that test a clone",
    "docs/architecture.md": "a verb, in part; test_verbs.py registers one",
    "docs/api/index.md": "tests/e2e/test_backends.py",
    "docs/coming-from-bert4keras.md": "below",
    "docs/beyond-one-machine.md": "tests/e2e/test_ray.py",
    "docs/huggingface.md": "below",
    "docs/serving.md": "tests/e2e/test_server.py",
    "docs/several-devices.md": "tests/e2e/test_several_devices.py",
}


def pages_with_blocks():
    for path in sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))):
        text = path.read_text(encoding="utf-8")
        is_translation = path.stem.endswith((".zh", ".zh-CN"))
        if not is_translation and list(docs_blocks.blocks_of(text)):
            yield path.relative_to(ROOT).as_posix()


def test_every_page_with_blocks_is_run():
    assert {*PAGES} | ELSEWHERE.keys() == {*pages_with_blocks()}
    assert not {*PAGES} & ELSEWHERE.keys()


def first_short(rows, limit, count):
    """The first rows of at most so many characters."""
    return [row for row in rows if len(row) <= limit][:count]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with the files that pages name, small."""
    write_lowest_layer(SIM, tmp_path / RELEASED)
    (tmp_path / "bert4keras-0.11.5").symlink_to(reference_folder())
    data = tmp_path / "notebooks" / "data"
    data.mkdir(parents=True)
    for path in (ROOT / "notebooks" / "data").glob("*.gz"):
        end, limit = ("\n\n", 160) if ".bio" in path.name else ("\n", 40)
        limit = 120 if ".jsonl" in path.name else limit
        rows = gzip.decompress(path.read_bytes()).decode("utf-8").split(end)
        text = end.join(first_short(rows, limit, 32)) + "\n"
        (data / path.name).write_bytes(gzip.compress(text.encode("utf-8")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


needs_bert4keras = pytest.mark.skipif(
    reference_folder() is None, reason="needs bert4keras"
)


@needs_bert4keras
@pytest.mark.filterwarnings("ignore:Even though the `tf.config")
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(
    page, folder, one_layer, monkeypatch, capsys, request
):
    docs_blocks.load_once(monkeypatch.setattr)
    if page == "README.md":
        # What it prints of two of them is compared.
        checkpoints = folder / "checkpoints"
        shutil.copytree(SHIPPED, checkpoints)
        name = "chinese_roformer-char_L-4_H-192_A-6.zip"
        shutil.copy(one_layer / name, checkpoints / name)
        monkeypatch.setattr(catalog, "_SHIPPED_FOLDER", checkpoints)
    else:
        read_shipped_from(one_layer, monkeypatch.setattr)
    if page not in COMPILED:
        request.getfixturevalue("eagerly")
        docs_blocks.leave_out_xla(monkeypatch.setattr)
    docs_blocks.run_page(ROOT / page)
    if page == "README.md":
        # What does not depend on the reviews, which are fewer here.
        text = (ROOT / page).read_text(encoding="utf-8")
        shown = text.partition("```text\n")[2].partition("```")[0].splitlines()
        assert "\n".join(shown[:2]) in capsys.readouterr().out


@needs_bert4keras
def test_the_examples_that_export_or_verify_run(folder, one_layer, monkeypatch):
    """The others are run with another backend, where these need TensorFlow."""
    read_shipped_from(one_layer, monkeypatch.setattr)
    names = [
        name
        for name in docs_blocks.examples()
        if ".export." in name or name.endswith(".verify.verify")
    ]
    assert docs_blocks.run_examples(names) == (len(names), 0)
    assert len(names) > 5


def run_alone(python, page, *checkpoints, **variables):
    """Runs a page in a process; what it prints."""
    words = (docs_blocks.__file__, page, *checkpoints)
    output = output_of(*words, python=python, **variables)
    assert output.endswith("=== done\n")
    return output


@needs_bert4keras
def test_the_blocks_for_scripts_of_bert4keras_run(folder, one_layer):
    """They change Keras in their process."""
    run_alone(sys.executable, SCRIPTS, one_layer)


@pytest.mark.weekly
@pytest.mark.skipif(PYTHON is None, reason="needs Transformers")
def test_the_blocks_of_hugging_face_run(tmp_path, one_layer, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "MRPC").mkdir()
    row = "{}\t1\t2\tthe man left\tthe man {}"
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    rows = [row.format(1, "went"), row.format(0, "came")] * 2
    for name in ("train.tsv", "dev.tsv"):
        write_lines(tmp_path / "MRPC" / name, [header, *rows])
    with hub({}) as server:
        environment = environment_of(server.url, tmp_path / "cache")
        shown = run_alone(PYTHON, PAGE, one_layer, **environment, HF_TOKEN=TOKEN)
        names = {f"{OWNER}/{name}" for name in ("name", "similar", "reviews")}
        assert server.repositories.keys() == names
    count = len(list(docs_blocks.blocks_of(PAGE.read_text(encoding="utf-8"))))
    assert count > 15
    assert shown.count("=== huggingface.md:") == count
