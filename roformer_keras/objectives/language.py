"""Objectives on single texts: hidden tokens, and the next token."""

import numpy as np

from roformer_keras.base.checks import check_number
from roformer_keras.base.errors import refuse
from roformer_keras.objectives.base import (
    Replacement,
    Rows,
    TakePositions,
    check_model,
    make_training_model,
    run_backbone,
    token_accuracy,
    token_loss,
)
from roformer_keras.text.encoders import DocumentEncoder


class _Documents:
    """An objective whose items are one text each."""

    fields = 0
    rows_per_item = 1
    whole_word = False

    def encoder(self, tokenizer, length):
        return DocumentEncoder(tokenizer, length, self.whole_word)

    def compile_options(self):
        return {"loss": token_loss(), "weighted_metrics": [token_accuracy()]}


class MaskedLM(_Documents):
    """Some tokens of a text are hidden, and predicted from the others.

    They are drawn anew for each batch. Of the hidden tokens 80 % become `[MASK]`, 10 %
    another token and 10 % stay. Special tokens, `[UNK]` among them, are neither hidden
    nor put in the place of others. Only the hidden positions go through the output
    layer.

    Args:
        tokenizer: `RoFormerTokenizer` of the model.
        length: int, at least 4. Tokens of a row, with `[CLS]` and `[SEP]`.
        rate: float from 0 to 1. Share of a text's tokens that is hidden, one at least.
        whole_word: bool. Whether words are hidden whole, as many as it takes to reach
            that share; none that would take the row beyond `rate * length`.

    Raises:
        ConfigurationError: an argument breaks its rule.
        VocabularyError: the vocabulary has no `[MASK]`.

    Example:
        >>> tokenizer = roformer_keras.RoFormerTokenizer.from_preset("roformer-char")
        >>> objective = objectives.MaskedLM(tokenizer, 16)
        >>> items = objective.encoder(tokenizer, 16)(("床前明月光，",))
        >>> inputs, targets, weights = objective.batch(items, np.random.default_rng(0))
        >>> inputs["token_ids"].shape
        (1, 16)

    Source: Devlin et al. 2019, arXiv:1810.04805, section 3.1.
    """

    name = "mlm"
    model_class = "RoFormerMaskedLM"

    def __init__(self, tokenizer, length, rate=0.15, whole_word=False):
        self.rows = Rows(tokenizer, length)
        self.replacement = Replacement(tokenizer)
        check_number("rate", rate, minimum=0, maximum=1)
        self.rate = rate
        self.whole_word = whole_word
        self.max_hidden = max(1, round(rate * length))

    def batch(self, items, rng, number=0):
        token_ids = self.rows.of_texts([item.ids[0] for item in items])
        shape = (len(items), self.max_hidden)
        positions, targets = np.zeros(shape, "int32"), np.zeros(shape, "int32")
        weights = np.zeros(shape, "float32")
        for row, item in enumerate(items):
            # After [CLS].
            hidden = 1 + self._draw(item, rng)
            count = len(hidden)
            positions[row, :count] = hidden
            targets[row, :count] = token_ids[row, hidden]
            weights[row, :count] = 1
            token_ids[row, hidden] = self.replacement.of_tokens(
                token_ids[row, hidden], rng
            )
        inputs = {
            "token_ids": token_ids,
            "segment_ids": np.zeros_like(token_ids),
            "masked_positions": positions,
        }
        return inputs, targets, weights

    def _draw(self, item, rng):
        """Indices of the tokens to hide, in their order."""
        (candidates,) = np.nonzero(~self.replacement.is_special[item.ids[0]])
        count = min(max(1, round(self.rate * len(candidates))), self.max_hidden)
        if not self.whole_word or item.starts is None:
            return np.sort(rng.permutation(candidates)[:count])
        words = np.cumsum(item.starts[0])[candidates]
        (ends,) = np.nonzero(np.diff(words, append=-1))
        begins = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
        chosen = []
        for word in rng.permutation(len(ends)):
            tokens = candidates[begins[word] : ends[word] + 1]
            if len(chosen) + len(tokens) <= self.max_hidden:
                chosen.extend(tokens)
            if len(chosen) >= count:
                break
        return np.array(sorted(chosen), int)

    def training_model(self, model):
        check_model(self, model)
        inputs = self.rows.inputs(masked_positions=self.max_hidden)
        outputs = run_backbone(model, inputs)
        hidden = TakePositions(dtype=model.backbone.dtype_policy, name="hidden")(
            outputs["sequence_output"], inputs["masked_positions"]
        )
        return make_training_model(model, inputs, model.mlm_head(hidden), self.name)


class CausalLM(_Documents):
    """Every token is predicted from those before it.

    The `[SEP]` after an item that fills its row is not: there the row ended, and maybe
    not the text.

    Args:
        tokenizer: `RoFormerTokenizer` of the model.
        length: int, at least 4. Tokens of a row, with `[CLS]` and `[SEP]`.

    Raises:
        ConfigurationError: an argument breaks its rule.

    Example:
        >>> tokenizer = roformer_keras.RoFormerTokenizer.from_preset("roformer-char")
        >>> objective = objectives.CausalLM(tokenizer, 16)
        >>> items = objective.encoder(tokenizer, 16)(("床前明月光，",))
        >>> inputs, targets, weights = objective.batch(items, np.random.default_rng(0))
        >>> inputs["token_ids"].shape
        (1, 16)

    Source: Radford et al. 2018, "Improving Language Understanding by Generative
    Pre-Training".
    """

    name = "lm"
    model_class = "RoFormerCausalLM"

    def __init__(self, tokenizer, length):
        self.rows = Rows(tokenizer, length)

    def batch(self, items, rng, number=0):
        token_ids = self.rows.of_texts([item.ids[0] for item in items])
        # Where nothing follows, the target is padding and has no weight.
        targets = np.zeros_like(token_ids)
        targets[:, :-1] = token_ids[:, 1:]
        inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
        # The [SEP] of a full row has none either.
        longest = self.rows.length - 2
        counts = [min(len(item.ids[0]) + 1, longest) for item in items]
        columns = np.arange(token_ids.shape[1])
        weights = (columns < np.array(counts)[:, None]).astype("float32")
        return inputs, targets, weights

    def training_model(self, model):
        check_model(self, model)
        refuse(
            model.config.attention != "causal",
            "a model that learns to predict the next token must not see it: its "
            f"attention must be 'causal', got {model.config.attention!r}",
        )
        inputs = self.rows.inputs()
        logits = model.mlm_head(run_backbone(model, inputs)["sequence_output"])
        return make_training_model(model, inputs, logits, self.name)
