"""Models to fine-tune: texts in, answers out.

Names are imported when they are first used. They are listed in `__init__.pyi`.
"""

from typing import NamedTuple

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


class Task(NamedTuple):
    """A task of the command line.

    Attributes:
        class_name: str. Its class.
        text_counts: how many texts a row of a file may have, the default first.
    """

    class_name: str
    text_counts: tuple[int, ...]


TASKS = {
    "text-classification": Task("RoFormerTextClassifier", (1, 2)),
    "text-regression": Task("RoFormerTextRegressor", (1, 2)),
    "sentence-embedding": Task("RoFormerSentenceEncoder", (2,)),
    "triplet-ranking": Task("RoFormerTripletRanker", (3,)),
    "token-classification": Task("RoFormerTokenClassifier", (1,)),
    "span-extraction": Task("RoFormerSpanExtractor", (1,)),
    "question-answering": Task("RoFormerQuestionAnswerer", (2,)),
}
