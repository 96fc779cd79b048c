"""Batch inference on Ray Data: answers, kept columns and reported rows."""

import os
import sys

import docs_blocks
import numpy as np
import pytest
from common import CHARACTER, ROOT, SIM, json_lines, output_of, write_lines

from roformer_keras import RoFormerSim, RoFormerTextClassifier, distributed
from roformer_keras.base.errors import ConfigurationError

ray = pytest.importorskip("ray")
# Ray Data sets fields that it calls deprecated itself.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`use_:DeprecationWarning:ray.data.context"
)

TEXTS = ["今天天气不错", "我爱北京", None, "你好", " "]
GOOD = [0, 1, 3]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One Ray of this machine, which ends with the tests and reports to nobody."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        paths = {"PYTHONPATH": str(ROOT)}
        ray.init(
            # Another Ray of this machine does not take its place.
            "local",
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=10**8,
            log_to_driver=False,
            runtime_env={"env_vars": paths},
        )
        yield
        ray.shutdown()


def rows():
    return [
        {"id": number, "text": text, "other": "天气"}
        for number, text in enumerate(TEXTS)
    ]


def answers(dataset):
    return sorted(dataset.take_all(), key=lambda row: row["id"])


@pytest.mark.parametrize("verb", ["embed", "similarity"])
def test_answers_are_those_of_one_process(verb):
    dataset, model = ray.data.from_items(rows()), RoFormerSim.from_preset(str(SIM))
    good = [TEXTS[number] for number in GOOD]
    if verb == "embed":
        answered = answers(distributed.embed(dataset, str(SIM), num_workers=2))
        name, expected = "vector", model.encode(good, verbose=0)
    else:
        fields = ("text", "other")
        answered = answers(distributed.similarity(dataset, str(SIM), fields=fields))
        name, expected = "similarity", model.similarity(good, ["天气"] * 3, verbose=0)
    got = [answered[number][name] for number in GOOD]
    np.testing.assert_allclose(got, expected, atol=1e-6)
    # All rows and columns are kept; those without a text say so.
    copied = [{key: row[key] for key in ("id", "text", "other")} for row in answered]
    assert copied == rows()
    assert [row["id"] for row in answered if row["error"]] == [2, 4]
    assert answered[2]["error"].endswith("not empty, got None")
    assert answered[2][name] is None


def test_a_task_answers_as_in_one_process(tmp_path):
    task = RoFormerTextClassifier.from_preset(CHARACTER, num_classes=2)
    task.save_to_preset(tmp_path / "task")
    dataset = ray.data.from_items(rows())
    answered = answers(distributed.predict(dataset, str(tmp_path / "task")))
    good = [TEXTS[number] for number in GOOD]
    labels = [str(label) for label in task.classify(good)]
    assert [answered[number]["label"] for number in GOOD] == labels
    # A blank text has an answer, as by the method.
    assert [row["id"] for row in answered if row["error"]] == [2]


def test_workers_leave_a_cpu_to_read_with():
    dataset = ray.data.from_items(rows())
    with pytest.raises(ConfigurationError, match="4 workers take 4 of 4"):
        distributed.embed(dataset, str(CHARACTER), num_workers=4)


def test_the_blocks_of_the_page_run(tmp_path):
    page = ROOT / "docs" / "beyond-one-machine.md"
    folders = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"
    output = output_of(docs_blocks.__file__, page, cwd=tmp_path, PYTHONPATH=folders)
    count = len(list(docs_blocks.blocks_of(page.read_text(encoding="utf-8"))))
    assert output.count("=== beyond-one-machine.md:") == count
    assert output.endswith("=== done\n")


def test_a_command_joins_a_running_ray(tmp_path):
    address = ray.get_runtime_context().gcs_address
    file = write_lines(tmp_path / "a.txt", ["今天天气不错", "我爱北京"])
    words = ["--source", CHARACTER, "--engine", "ray", "--address", address]
    words += ["--num-workers", "2"]
    output_of("-m", "roformer_keras", "embed", file, "-o", tmp_path / "out", *words)
    paths = sorted((tmp_path / "out").iterdir())
    rows = [row for path in paths for row in json_lines(path.read_text("utf-8"))]
    assert [row["text"] for row in rows] == ["今天天气不错", "我爱北京"]
    assert [len(row["vector"]) for row in rows] == [32, 32]


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(ConfigurationError, match=r"roformer-keras\[ray\]"):
        distributed.embed(None, str(CHARACTER))
