"""RoFormer-GPT: RoFormer as a left-to-right language model, or from text to text."""

import keras

from roformer_keras.models.language_model import LanguageModel

__all__ = ["RoFormerCausalLM"]


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerCausalLM(LanguageModel):
    """Scores the token after every position, seeing what stands before it.

    Args:
        backbone: `RoFormerBackbone` with causal attention; or with UniLM attention, to
            write a second segment from a first that is seen both ways.
        activation: `"softmax"` for probabilities, or None for logits.

    Call arguments:
        inputs: as `RoFormerBackbone` takes them.

    Returns:
        float `(batch, length, vocabulary_size)`.

    Example:
    ```python
    model = RoFormerCausalLM.from_preset("chinese_roformer-gpt-char_L-12_H-768_A-12")
    logits = model({"token_ids": [[101, 5, 6]], "segment_ids": [[0, 0, 0]]})
    ```
    """

    other_attention = ("unilm",)
