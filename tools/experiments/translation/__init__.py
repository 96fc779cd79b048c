"""Translation by an encoder-decoder, with rotary or sinusoidal positions."""

from tools.experiments.translation.experiment import Translation

__all__ = ["Translation"]
