"""A number for a text, or for a pair of texts, such as how much alike they are."""

import keras
from keras import ops

from roformer_keras.data.texts import as_numbers
from roformer_keras.tasks.labels import parse_number, rounded
from roformer_keras.tasks.reports import correlation_report
from roformer_keras.tasks.vector import VectorTask

__all__ = ["RoFormerTextRegressor"]


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerTextRegressor(VectorTask):
    """A number for a text, or for a pair of texts.

    Args:
        backbone: `RoFormerBackbone` with bidirectional attention.
        tokenizer: `RoFormerTokenizer` of its vocabulary.
        pooling: `"first"` takes the vector at `[CLS]`, `"mean"` the mean over the
            tokens.
        head_dropout: float in [0, 1). On that vector.
        max_length: int, at least 4. Tokens to which longer rows are cut.

    Call arguments:
        inputs: as `RoFormerBackbone` takes them.

    Returns:
        float32 `(batch, 1)`. `regress` gives `(texts,)`.

    Example:
    ```python
    model = RoFormerTextRegressor.from_preset("roformer-char")
    model.fit([("今天天气不错", "天气真好")], [4.5])
    model.regress([("他来了", "他到了")])
    ```
    """

    def __init__(
        self,
        backbone,
        tokenizer,
        pooling: str = "first",
        head_dropout: float = 0.0,
        max_length: int = 512,
        **kwargs,
    ):
        super().__init__(
            backbone,
            tokenizer,
            1,
            "score",
            pooling,
            head_dropout,
            max_length,
            **kwargs,
        )

    def default_loss(self):
        return keras.losses.MeanSquaredError()

    def default_metrics(self):
        return [keras.metrics.MeanAbsoluteError(name="error")]

    def divergence(self, first, second):
        return ops.sum(ops.square(first - second), axis=-1)

    def make_targets(self, y, rows):
        return as_numbers(y)[:, None]

    @classmethod
    def parse_label(cls, value, texts, options):
        return parse_number(value)

    @classmethod
    def figures(cls, options):
        return ("spearman", "pearson", "mean_absolute_error")

    def report(self, texts, labels, verbose=0):
        return correlation_report(labels, self.regress(texts, verbose=verbose))

    def to_json(self, texts):
        return [{"score": rounded(n)} for n in self.regress(texts, verbose=0)]

    def regress(self, x, **kwargs):
        """A number for each text: float32 `(texts,)`; arguments as in `predict`."""
        return self._convert(lambda scores: scores[:, 0], self.predict(x, **kwargs))
