"""RoFormer-Sim (SimBERT v2): sentence vectors and similar sentences in one model."""

import keras

from roformer_keras.models.language_model import LanguageModel

__all__ = ["RoFormerSim"]


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerSim(LanguageModel):
    """A sentence vector from the first segment, and the next tokens of the second.

    The first segment sees itself both ways; the second sees the first and what stands
    before it. The vector is the pooled output of a text alone, all of it segment 0.

    Args:
        backbone: `RoFormerBackbone` with UniLM attention and a pooler, whose
            activation is linear in the released checkpoints.
        output_activation: `"softmax"` for probabilities, or None for logits.

    Call arguments:
        inputs: as `RoFormerBackbone` takes them.

    Returns:
        dict of `pooled_output`, float `(batch, hidden_dim)`, and `logits`, float
        `(batch, length, vocabulary_size)`.

    Example:
    ```python
    source = "chinese_roformer-sim-char_L-12_H-768_A-12.zip"
    tokenizer = RoFormerTokenizer.from_preset(source)
    model = RoFormerSim.from_preset(source)
    vectors = model(tokenizer(["今天天气不错", "你好"]))["pooled_output"]
    ```

    Source: https://github.com/ZhuiyiTechnology/roformer-sim
    """
