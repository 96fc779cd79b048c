"""Models to fine-tune: texts in, answers out.

Names are imported when they are first used.
"""

from roformer_keras.lazy import lazily

_EXPORTS = {
    "RoFormerQuestionAnswerer": "roformer_keras.tasks.question_answerer",
    "RoFormerSentenceEncoder": "roformer_keras.tasks.sentence_encoder",
    "RoFormerSpanExtractor": "roformer_keras.tasks.span_extractor",
    "RoFormerTextClassifier": "roformer_keras.tasks.text_classifier",
    "RoFormerTextRegressor": "roformer_keras.tasks.text_regressor",
    "RoFormerTokenClassifier": "roformer_keras.tasks.token_classifier",
    "RoFormerTripletRanker": "roformer_keras.tasks.triplet_ranker",
    "Span": "roformer_keras.tasks.spans",
}

__all__ = sorted(_EXPORTS)
__getattr__, __dir__ = lazily(__name__, _EXPORTS)
