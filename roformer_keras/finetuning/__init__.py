"""Fine-tuning from files: `finetune(Settings(...), folder)`.

Names are imported when they are first used: a command line that is only read needs no
model.
"""

from roformer_keras.exports import lazily

_EXPORTS = {
    "Settings": "roformer_keras.finetuning.settings",
    "corpus_bleu": "roformer_keras.finetuning.bleu",
    "evaluate_seq2seq": "roformer_keras.finetuning.seq2seq",
    "finetune": "roformer_keras.finetuning.run",
    "load_settings": "roformer_keras.finetuning.settings",
    "load_tuned": "roformer_keras.finetuning.results",
}

__all__ = sorted(_EXPORTS)
__getattr__, __dir__ = lazily(__name__, _EXPORTS)
