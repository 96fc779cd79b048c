"""From texts to vectors and to filled masks."""

from roformer_keras.inference.checks import check_vocabulary
from roformer_keras.inference.masks import MaskCandidate, fill_mask
from roformer_keras.inference.vectors import embed

__all__ = ["MaskCandidate", "check_vocabulary", "embed", "fill_mask"]
