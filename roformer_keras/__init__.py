"""The Chinese RoFormer family in Keras 3, with bert4keras's numbers.

Names are imported when they are first used, so that `import roformer_keras` and the
command line's `--help` do not wait for a backend.
"""

from roformer_keras.exports import lazily

_EXPORTS = {
    "CATALOG": "roformer_keras.conversion.catalog",
    "RoFormerBackbone": "roformer_keras.models",
    "RoFormerCausalLM": "roformer_keras.models",
    "RoFormerConfig": "roformer_keras.config",
    "RoFormerError": "roformer_keras.errors",
    "RoFormerMaskedLM": "roformer_keras.models",
    "RoFormerQuestionAnswerer": "roformer_keras.tasks",
    "RoFormerSentenceEncoder": "roformer_keras.tasks",
    "RoFormerSeq2Seq": "roformer_keras.models",
    "RoFormerSim": "roformer_keras.models",
    "RoFormerSpanExtractor": "roformer_keras.tasks",
    "RoFormerTextClassifier": "roformer_keras.tasks",
    "RoFormerTextRegressor": "roformer_keras.tasks",
    "RoFormerTokenClassifier": "roformer_keras.tasks",
    "RoFormerTokenizer": "roformer_keras.tokenizer",
    "RoFormerTripletRanker": "roformer_keras.tasks",
    "Seq2SeqConfig": "roformer_keras.models",
    "SHIPPED": "roformer_keras.conversion.catalog",
    "convert": "roformer_keras.conversion.convert",
    "download": "roformer_keras.conversion.download",
    "verify": "roformer_keras.verification.verify",
}

__all__ = sorted(_EXPORTS)
__getattr__, __dir__ = lazily(__name__, _EXPORTS)
