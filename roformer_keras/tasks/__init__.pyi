"""The public names, and where each of them is."""

import collections.abc
import dataclasses
import typing

from .multiple_choice import RoFormerMultipleChoice as RoFormerMultipleChoice
from .question_answerer import RoFormerQuestionAnswerer as RoFormerQuestionAnswerer
from .sentence_encoder import RoFormerSentenceEncoder as RoFormerSentenceEncoder
from .span_extractor import RoFormerSpanExtractor as RoFormerSpanExtractor
from .span_labels import Span as Span
from .text_classifier import RoFormerTextClassifier as RoFormerTextClassifier
from .text_regressor import RoFormerTextRegressor as RoFormerTextRegressor
from .token_classifier import RoFormerTokenClassifier as RoFormerTokenClassifier
from .triplet_ranker import RoFormerTripletRanker as RoFormerTripletRanker

__all__: list[str]

class TaskObjective(typing.NamedTuple):
    text_counts: tuple[int, ...]
    compares_rows: bool

class Task(typing.NamedTuple):
    class_name: str
    text_counts: tuple[int, ...]
    settings: tuple[str, ...] = ()
    objectives: collections.abc.Mapping[str, TaskObjective] = {}
    def objective(self, options: collections.abc.Mapping) -> TaskObjective: ...

@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions:
    multi_label: bool = False
    crf: bool = False
    objective: typing.Literal["cosent", "classification", "contrastive"] | None = None
    pooling: typing.Literal["first", "mean"] | None = None

TASKS: dict[str, Task]
