"""The Chinese RoFormer family in Keras 3, with bert4keras's numbers.

Names are imported when they are first used, so that `import roformer_keras` and the
command line's `--help` do not wait for a backend.
"""

from roformer_keras.lazy import lazily

_EXPORTS = {
    "CATALOG": "roformer_keras.hub.catalog",
    "CorpusSource": "roformer_keras.data.corpus",
    "FinetuningSettings": "roformer_keras.training.finetuning_settings",
    "OptimizerSettings": "roformer_keras.training.optimizer_settings",
    "PretrainingSettings": "roformer_keras.training.pretraining_settings",
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
    "RoFormerTokenizer": "roformer_keras.text.tokenizer",
    "RoFormerTripletRanker": "roformer_keras.tasks",
    "SHIPPED": "roformer_keras.hub.catalog",
    "Seq2SeqConfig": "roformer_keras.config",
    "TrainingStage": "roformer_keras.training.pretraining_settings",
    "convert": "roformer_keras.conversion.convert",
    "corpus_bleu": "roformer_keras.training.bleu",
    "download": "roformer_keras.hub.download",
    "evaluate_seq2seq": "roformer_keras.training.evaluate",
    "finetune": "roformer_keras.training.finetune",
    "load_finetuned": "roformer_keras.training.results",
    "pretrain": "roformer_keras.training.pretrain",
    "verify": "roformer_keras.verification.verify",
}

__all__ = sorted(_EXPORTS)
__getattr__, __dir__ = lazily(__name__, _EXPORTS)
