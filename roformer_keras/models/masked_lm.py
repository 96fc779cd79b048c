"""RoFormer with its masked language model head."""

import keras

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
