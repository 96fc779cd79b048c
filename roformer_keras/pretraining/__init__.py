"""Pre-training from a corpus: `pretrain(Settings(...), folder)`.

Names are imported when they are first used: a process that tokenizes needs no model.
"""

from roformer_keras.exports import lazily

_EXPORTS = {
    "CorpusSource": "roformer_keras.pretraining.corpus",
    "OptimizerSettings": "roformer_keras.training.settings",
    "Settings": "roformer_keras.pretraining.settings",
    "Stage": "roformer_keras.pretraining.settings",
    "load_settings": "roformer_keras.pretraining.settings",
    "pretrain": "roformer_keras.pretraining.run",
}

__all__ = sorted(_EXPORTS)
__getattr__, __dir__ = lazily(__name__, _EXPORTS)
