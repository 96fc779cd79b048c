"""Writing on from prompts, for any model with a cache, or a state that recurs."""

from roformer_keras.generation.cached import CachedDecoder, CachedModel
from roformer_keras.generation.options import GeneratedText, GenerationConfig, Prompt
from roformer_keras.generation.recurrent import RecurrentDecoder, RecurrentModel
from roformer_keras.generation.search import decode, stream

__all__ = [
    "CachedDecoder",
    "CachedModel",
    "GeneratedText",
    "GenerationConfig",
    "Prompt",
    "RecurrentDecoder",
    "RecurrentModel",
    "decode",
    "stream",
]
