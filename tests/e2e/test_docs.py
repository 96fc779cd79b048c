"""README and the pages in docs/: their commands and Python blocks run.

Small files stand in for those that a page names: for a released zip one of 2 layers,
for the reviews and the titles their first lines. A Chinese page has the blocks of the
English one, see `tests/unit/test_translations.py`.
"""

import gzip
import shutil
import subprocess
import sys

import docs_blocks
import pytest
from common import (
    CHECKPOINTS,
    ROOT,
    reference_folder,
    transformers_python,
    write_lines,
)
from hub_server import OWNER, TOKEN, environment_of, hub

PYTHON = transformers_python()
PAGE = ROOT / "docs" / "huggingface.md"
RELEASED = "chinese_roformer-sim-char-ft_L-12_H-768_A-12.zip"
# Pages of a group run in one process.
GROUPS = (
    ("README.md", "docs/quick-start.md", "docs/loading.md", "docs/generation.md"),
    (
        *("docs/fine-tuning.md", "docs/fine-tuning/classification.md"),
        *("docs/fine-tuning/questions.md", "docs/fine-tuning/sentence-vectors.md"),
        *("docs/fine-tuning/tags-and-spans.md", "docs/pretraining.md"),
    ),
    ("docs/encoder-decoder.md", "docs/linear-attention.md", "docs/many-texts.md"),
    ("docs/exporting.md", "docs/verification.md"),
    # It changes Keras in its process.
    ("docs/coming-from-bert4keras.md",),
)
# Pages that other tests run, and those that need more than one machine or a new clone.
ELSEWHERE = {
    "CONTRIBUTING.md": "the commands that test a clone",
    "docs/api/index.md": "tests/e2e/test_api_examples.py",
    "docs/beyond-one-machine.md": "tests/e2e/test_ray.py",
    "docs/huggingface.md": "below",
    "docs/serving.md": "tests/e2e/test_server.py",
    "docs/several-devices.md": "tests/e2e/test_several_devices.py",
    "docs/training-on-several-processes.md": "two machines and a cluster of Ray",
}


def pages_with_blocks():
    for path in sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))):
        text = path.read_text(encoding="utf-8")
        is_translation = path.stem.endswith((".zh", ".zh-CN"))
        if not is_translation and list(docs_blocks.blocks_of(text)):
            yield path.relative_to(ROOT).as_posix()


def test_every_page_with_blocks_is_run():
    run = {page for group in GROUPS for page in group}
    assert run | ELSEWHERE.keys() == set(pages_with_blocks())
    assert not run & ELSEWHERE.keys()


def stand_ins(folder):
    """The files that pages name, small."""
    small = CHECKPOINTS / "chinese_roformer-sim-char_L-2_H-32_A-4.zip"
    shutil.copy(small, folder / RELEASED)
    (folder / "bert4keras-0.11.5").symlink_to(reference_folder())
    data = folder / "notebooks" / "data"
    data.mkdir(parents=True)
    for path in (ROOT / "notebooks" / "data").glob("*.gz"):
        end = "\n\n" if ".bio" in path.name else "\n"
        rows = gzip.decompress(path.read_bytes()).decode("utf-8").split(end)[:96]
        text = end.join(rows) + "\n"
        (data / path.name).write_bytes(gzip.compress(text.encode("utf-8")))


@pytest.mark.skipif(reference_folder() is None, reason="needs bert4keras")
@pytest.mark.parametrize("pages", GROUPS, ids=lambda pages: pages[-1])
def test_the_blocks_of_pages_run(pages, tmp_path):
    words = []
    for page in pages:
        folder = tmp_path / page.replace("/", "-")
        folder.mkdir()
        stand_ins(folder)
        words += [ROOT / page, folder]
    done = subprocess.run(
        [sys.executable, docs_blocks.__file__, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert done.stdout.count("=== done\n") == len(pages)
    if "README.md" in pages:
        # What does not depend on the reviews, which are fewer here.
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        shown = text.partition("```text\n")[2].partition("```")[0].splitlines()
        assert "\n".join(shown[:2]) in done.stdout


@pytest.mark.skipif(PYTHON is None, reason="needs Transformers")
def test_the_blocks_of_hugging_face_run(tmp_path):
    (tmp_path / "MRPC").mkdir()
    row = "{}\t1\t2\tthe man left\tthe man {}"
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    rows = [row.format(1, "went"), row.format(0, "came")] * 2
    for name in ("train.tsv", "dev.tsv"):
        write_lines(tmp_path / "MRPC" / name, [header, *rows])
    with hub({}) as server:
        environment = environment_of(server.url, tmp_path / "cache")
        done = subprocess.run(
            [PYTHON, docs_blocks.__file__, PAGE],
            cwd=tmp_path,
            env={**environment, "HF_TOKEN": TOKEN},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        names = {f"{OWNER}/{name}" for name in ("name", "similar", "reviews")}
        assert server.repositories.keys() == names
    count = len(list(docs_blocks.blocks_of(PAGE.read_text(encoding="utf-8"))))
    assert count > 15
    assert done.stdout.count("=== huggingface.md:") == count
    assert done.stdout.endswith("=== done\n")
