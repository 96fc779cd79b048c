"""The second text of a pair is written from the first, by a model of one stack."""

from roformer_keras.base.errors import refuse
from roformer_keras.objectives.base import (
    Rows,
    check_model,
    make_training_model,
    predicting_logits,
    run_backbone,
    token_accuracy,
    token_loss,
)
from roformer_keras.text.encoders import PairEncoder


class UniLM:
    """The second text of a pair is predicted token by token, seeing all of the first.

    A row is `[CLS] first [SEP] second [SEP]`. What bert4keras trains with
    `application='unilm'`: titles, answers, translations.

    Args:
        tokenizer: `RoFormerTokenizer` of the model.
        length: int, at least 4. Tokens of each of the two texts, with `[CLS]` and
            `[SEP]`; rows are of `2 * length`. Longer texts are cut.

    Raises:
        ConfigurationError: an argument breaks its rule.

    Example:
        >>> tokenizer = roformer_keras.RoFormerTokenizer.from_preset("roformer-char")
        >>> objective = objectives.UniLM(tokenizer, 16)
        >>> items = objective.encoder(tokenizer, 16)(("学而时习之", "学习了又时常温习"))
        >>> inputs, targets, weights = objective.batch(items, np.random.default_rng(0))
        >>> inputs["token_ids"].shape
        (1, 32)

    Source: Dong et al. 2019, arXiv:1905.03197.
    """

    name = "unilm"
    model_class = "RoFormerCausalLM"
    # Fields of the configuration, besides those of the class.
    model_fields = {"attention": "unilm"}  # noqa: RUF012
    fields = 2
    rows_per_item = 1

    def __init__(self, tokenizer, length):
        self.rows = Rows(tokenizer, length)

    def encoder(self, tokenizer, length):
        return PairEncoder(tokenizer, length)

    def batch(self, items, rng, number=0):
        return self.rows.of_pairs([item.ids[:2] for item in items])

    def training_model(self, model):
        check_model(self, model)
        refuse(
            model.config.attention != "unilm",
            "a model that writes a second text must see all of the first: its "
            f"attention must be 'unilm', got {model.config.attention!r}",
            hint="load it with attention='unilm'",
        )
        inputs = self.rows.inputs(2, predicting_positions=self.rows.length - 1)
        logits = predicting_logits(model, inputs, run_backbone(model, inputs))
        return make_training_model(model, inputs, logits, self.name)

    def compile_options(self):
        return {"loss": token_loss(), "weighted_metrics": [token_accuracy()]}
