"""The public names, and where each of them is."""

from .multiple_choice import RoFormerMultipleChoice as RoFormerMultipleChoice
from .question_answerer import RoFormerQuestionAnswerer as RoFormerQuestionAnswerer
from .records import TASKS as TASKS
from .records import Task as Task
from .records import TaskObjective as TaskObjective
from .records import TaskOptions as TaskOptions
from .relation_extractor import Relation as Relation
from .relation_extractor import RoFormerRelationExtractor as RoFormerRelationExtractor
from .sentence_encoder import RoFormerSentenceEncoder as RoFormerSentenceEncoder
from .span_extractor import RoFormerSpanExtractor as RoFormerSpanExtractor
from .span_labels import Span as Span
from .text_classifier import RoFormerTextClassifier as RoFormerTextClassifier
from .text_regressor import RoFormerTextRegressor as RoFormerTextRegressor
from .token_classifier import RoFormerTokenClassifier as RoFormerTokenClassifier
from .triplet_ranker import RoFormerTripletRanker as RoFormerTripletRanker

__all__: list[str]
