"""The public names, and where each of them is."""

import typing

from .question_answerer import RoFormerQuestionAnswerer as RoFormerQuestionAnswerer
from .sentence_encoder import RoFormerSentenceEncoder as RoFormerSentenceEncoder
from .span_extractor import RoFormerSpanExtractor as RoFormerSpanExtractor
from .spans import Span as Span
from .text_classifier import RoFormerTextClassifier as RoFormerTextClassifier
from .text_regressor import RoFormerTextRegressor as RoFormerTextRegressor
from .token_classifier import RoFormerTokenClassifier as RoFormerTokenClassifier
from .triplet_ranker import RoFormerTripletRanker as RoFormerTripletRanker

__all__: list[str]

class Task(typing.NamedTuple):
    class_name: str
    text_counts: tuple[int, ...]

TASKS: dict[str, Task]
