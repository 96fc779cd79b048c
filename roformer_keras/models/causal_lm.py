"""RoFormer-GPT: RoFormer as a left-to-right language model, or from text to text."""

import keras

from roformer_keras.models.generative import GenerativeModel

__all__ = ["RoFormerCausalLM"]


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerCausalLM(GenerativeModel):
    """Scores the token after every position, seeing what stands before it.

    Args:
        backbone: `RoFormerBackbone` with causal attention; or with UniLM attention, to
            write a second segment from a first that is seen both ways.
        output_activation: `"softmax"` for probabilities, or None for logits.

    Call arguments:
        inputs: as `RoFormerBackbone` takes them.

    Returns:
        float `(batch, length, vocabulary_size)`.

    Example:
    ```python
    source = "chinese_roformer-gpt-char_L-12_H-768_A-12.zip"
    model = RoFormerCausalLM.from_preset(source)
    logits = model(model.tokenizer(["今天天气"]))
    text = model.generate("今天天气", stop_tokens="。")
    ```
    """

    other_attention = ("unilm",)
