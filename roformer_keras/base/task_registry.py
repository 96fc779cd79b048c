"""The records of the tasks, which need no backend.

A task is a record here and a module in `tasks`. Commands, files, model cards and
settings read the record.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from roformer_keras.base.checks import choice

# Ways to pool the vectors of a row's tokens into one vector.
Pooling = Literal[
    "first",
    "last",
    "max",
    "mean",
    "sqrt_mean",
    "weighted_mean",
    "last_position",
    "mean_positions",
]


class TaskObjective(NamedTuple):
    """A meaning that the labels of a task can have.

    Attributes:
        text_counts: how many texts a row of a file may have.
        compares_rows: bool. Whether the loss compares rows with each other.

    Example:
        >>> tasks.TASKS["sentence-embedding"].objectives["contrastive"]
        TaskObjective(text_counts=(1,), compares_rows=True)
    """

    text_counts: tuple[int, ...]
    compares_rows: bool


# Objectives of sentence-embedding; the first one is the default.
SENTENCE_OBJECTIVES = {
    "cosent": TaskObjective((2,), compares_rows=True),
    "classification": TaskObjective((2,), compares_rows=False),
    "contrastive": TaskObjective((1,), compares_rows=True),
}


class Task(NamedTuple):
    """A record of a task of the command line, available before a backend is imported.

    Attributes:
        class_name: str. The class of its models.
        text_counts: how many texts a row of a file may have, the default first.
        settings: names of settings that only few tasks have.
        objectives: by the value of the option `objective`, the default first.
        pipeline_tag: str or None. The task's name on the Hugging Face Hub.
        has_choices: bool. Whether the last text of a row is a list of choices.
        has_tokens: bool. Whether a text may be a list of tokens, with a tag for each.

    Example:
        >>> task = tasks.TASKS["text-classification"]
        >>> task.class_name, task.text_counts
        ('RoFormerTextClassifier', (1, 2))
    """

    class_name: str
    text_counts: tuple[int, ...]
    settings: tuple[str, ...] = ()
    objectives: Mapping[str, TaskObjective] = {}
    pipeline_tag: str | None = None
    has_choices: bool = False
    has_tokens: bool = False

    def objective(self, options: Mapping[str, Any]) -> TaskObjective:
        """The objective that the options name.

        Args:
            options: dict of arguments of the class.
        """
        default = next(iter(self.objectives), None)
        name = options.get("objective", default)
        return self.objectives.get(name, TaskObjective(self.text_counts, False))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Options of tasks that are flags of the command line.

    Args:
        multi_label: text-classification: any number of classes a row.
        crf: token-classification: predict all tags of a text together.
        objective: sentence-embedding: what labels are (default: cosent).
        pooling: vector of a text: at [CLS], the mean, or another of its tokens'
            (default: the task's).
        head_activation: text-classification, text-regression: activation of a dense
            layer before the output, gelu for Transformers' head (default: none).

    Example:
        >>> tasks.TaskOptions(crf=True).head_activation is None
        True
    """

    multi_label: bool = False
    crf: bool = False
    objective: str | None = choice(None, choices=(None, *SENTENCE_OBJECTIVES))
    pooling: Pooling | None = None
    head_activation: str | None = None


TASKS = {
    "text-classification": Task(
        "RoFormerTextClassifier",
        (1, 2),
        ("r_drop", "class_weights"),
        pipeline_tag="text-classification",
    ),
    "text-regression": Task("RoFormerTextRegressor", (1, 2), ("r_drop",)),
    "sentence-embedding": Task(
        "RoFormerSentenceEncoder",
        (2,),
        objectives=SENTENCE_OBJECTIVES,
        pipeline_tag="sentence-similarity",
    ),
    "triplet-ranking": Task("RoFormerTripletRanker", (3,)),
    "token-classification": Task(
        "RoFormerTokenClassifier",
        (1,),
        pipeline_tag="token-classification",
        has_tokens=True,
    ),
    "span-extraction": Task("RoFormerSpanExtractor", (1,), has_tokens=True),
    "relation-extraction": Task("RoFormerRelationExtractor", (1,)),
    "question-answering": Task(
        "RoFormerQuestionAnswerer", (2,), pipeline_tag="question-answering"
    ),
    "multiple-choice": Task("RoFormerMultipleChoice", (3, 2), has_choices=True),
}
"""The tasks of the command line by name, as dict of `Task`.

Example:
    >>> tasks.TASKS["token-classification"].class_name
    'RoFormerTokenClassifier'
"""


def task_of(class_name: str | None) -> Task | None:
    """The task of a class; None if it is no task."""
    return next((x for x in TASKS.values() if x.class_name == class_name), None)
