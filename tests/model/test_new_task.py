"""A new task needs its module and a record, and everything knows it."""

import pytest
from common import SMALL, output_of

from roformer_keras import tasks

# What `roformer_keras/tasks/mood.py`, `task_registry.py` and the stub would have.
SCRIPT = """
import sys
import keras
from roformer_keras import tasks
from roformer_keras.base import task_registry
from roformer_keras.tasks.text_classifier import RoFormerTextClassifier

@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerMoodClassifier(RoFormerTextClassifier):
    "Moods of texts."

tasks.RoFormerMoodClassifier = RoFormerMoodClassifier
task_registry.TASKS["mood"] = task_registry.Task(
    "RoFormerMoodClassifier", (1,), pipeline_tag="text-classification"
)

import roformer_keras
from roformer_keras.cli.main import main

folder, source = sys.argv[1:]
code = main([
    "finetune", "mood", "--train", f"{folder}/moods.csv", "--source", source,
    "--epochs", "1", "--max-length", "16", "--output", f"{folder}/run", "--quiet",
])
assert not code, code
tuned = roformer_keras.load_finetuned(f"{folder}/run")
model = roformer_keras.load_model(f"{folder}/run/preset")
tuned.task.save(f"{folder}/mood.keras")
again = roformer_keras.load_model(f"{folder}/mood.keras")
for one in (tuned.task, model, again):
    assert type(one) is RoFormerMoodClassifier, type(one)
for line in (
    ["predict", f"{folder}/run", "--text", "好"],
    ["inspect", f"{folder}/mood.keras"],
    ["export", f"{folder}/run", f"{folder}/export", "--format", "openvino"],
):
    assert not main(line), line
"""


@pytest.mark.slow
def test_a_task_is_a_module_and_a_record(tmp_path):
    rows = ["text,label", *["好,喜", "坏,怒"] * 4]
    (tmp_path / "moods.csv").write_text("\n".join(rows), encoding="utf-8")
    output = output_of("-c", SCRIPT, tmp_path, SMALL)
    assert "RoFormerMoodClassifier" in output


def test_records_say_what_their_classes_are():
    for task in tasks.TASKS.values():
        kind = getattr(tasks, task.class_name)
        assert kind.has_choices == task.has_choices, task
