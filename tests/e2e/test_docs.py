"""The pages in docs/: their commands and Python blocks run."""

import subprocess

import docs_blocks
import pytest
from common import ROOT, transformers_python, write_lines
from hub_server import OWNER, TOKEN, environment_of, hub

PYTHON = transformers_python()
PAGE = ROOT / "docs" / "huggingface.md"


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
