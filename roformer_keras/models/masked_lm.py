"""RoFormer with its masked language model head."""

from collections.abc import Sequence

import keras

from roformer_keras.models.fill_mask import fill_mask
from roformer_keras.models.language_model import LanguageModel

__all__ = ["RoFormerMaskedLM"]


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerMaskedLM(LanguageModel):
    """Scores every token for every position, seeing both sides.

    Args:
        backbone: `RoFormerBackbone` with bidirectional attention.
        output_activation: `"softmax"` for probabilities, or None for logits.

    Call arguments:
        inputs: as `RoFormerBackbone` takes them.

    Returns:
        float `(batch, length, vocabulary_size)`; if the backbone has a pooler, a dict
        of that as `logits` beside `pooled_output` (and `nsp_probabilities`).

    Example:
    ```python
    source = "chinese_roformer-char_L-12_H-768_A-12.zip"
    tokenizer = RoFormerTokenizer.from_preset(source)
    model = RoFormerMaskedLM.from_preset(source)
    logits = model(tokenizer(["今天[MASK]气不错"], keep_mask=True))
    ```
    """

    def fill_mask(self, texts: str | Sequence[str], top_k: int = 5) -> list:
        """The likeliest tokens for every `[MASK]` in a text.

        Args:
            texts: a str with at least one literal `[MASK]`, or a list of them.
            top_k: int, at least 1.

        Returns:
            A list a mask, in the order of the text, of `top_k` candidates, best first:
            `MaskCandidate` with token, token_id and probability. For a list of texts a
            list of those.
        """
        return fill_mask(self, self.text_tokenizer(), texts, top_k)
