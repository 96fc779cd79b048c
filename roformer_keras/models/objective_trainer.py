"""`fit` and `evaluate` of language models, on texts."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras

from roformer_keras.checks import check_integer
from roformer_keras.data.batches import NumberedBatches
from roformer_keras.data.examples import EpochItems, ItemList
from roformer_keras.data.loader import batch_maker, items_of
from roformer_keras.data.texts import as_texts
from roformer_keras.errors import ConfigurationError
from roformer_keras.models.text_trainer import is_ready
from roformer_keras.objectives import OBJECTIVES
from roformer_keras.optimizers import make_optimizer
from roformer_keras.types import Texts

# A mixin calls what a Keras model has.
if TYPE_CHECKING:
    from keras import Model as _Model
else:
    _Model = object

# Of AdamW, if the model is not compiled.
_RATE = 1e-4


class ObjectiveTrainer(_Model):
    """A base of models that learn texts by an objective, as `pretrain` does.

    `pretrain` is for corpora: it resumes, logs and needs little memory. Subclasses set
    `objective_name`, a key of `OBJECTIVES`.
    """

    def fit(
        self,
        x: Texts = None,
        y: Texts = None,
        batch_size: int = 32,
        *,
        max_length: int = 128,
        options: Mapping[str, Any] | None = None,
        validation_data: Any = None,
        seed: int = 0,
        initial_epoch: int = 0,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """As in Keras, on texts; a model that is not compiled is compiled with AdamW.

        A compiled optimizer is used; the loss and the metrics are the objective's.
        Callbacks see the training model, which has the layers of this one.

        Args:
            x: texts, as a list of str or another container; for RoFormer-Sim pairs of
                texts with one meaning, or their first texts. Or what Keras's own `fit`
                takes, with dicts of ids.
            y: the second texts of such pairs.
            batch_size: int. Rows of a batch; a pair is two rows.
            max_length: int. Tokens of a text, with `[CLS]` and `[SEP]`. Longer ones are
                cut at the ends of sentences, those of pairs after so many tokens.
            options: dict of options of the objective, such as `{"whole_word": True}`.
            validation_data: texts, or a tuple of lists for `x` and `y`.
            seed: int. Determines the order and what is hidden.
            initial_epoch, kwargs: as in `keras.Model.fit`.

        Raises:
            ConfigurationError: a text or an option breaks a rule.
            VocabularyError: the model has no tokenizer.
        """
        if x is None or is_ready(x):
            sizes = {} if y is None else {"batch_size": batch_size}
            return super().fit(
                *(x, y),
                **sizes,
                validation_data=validation_data,
                initial_epoch=initial_epoch,
                **kwargs,
            )
        trainer, objective = self._training_model(max_length, options)
        batches = self._batches(objective, x, y, batch_size, seed, initial_epoch)
        if validation_data is not None:
            is_pair = isinstance(validation_data, tuple)
            parts: tuple[Any, Any] = (
                validation_data if is_pair else (validation_data, None)
            )
            validation_data = self._batches(objective, *parts, batch_size)
        return trainer.fit(
            batches,
            validation_data=validation_data,
            # The examples are shuffled, not the batches.
            **{"shuffle": False, "initial_epoch": initial_epoch, **kwargs},
        )

    def evaluate(
        self,
        x: Texts = None,
        y: Texts = None,
        batch_size: int = 32,
        *,
        max_length: int = 128,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> float | list[float] | dict[str, float]:
        """As in Keras, on texts; see `fit`. The same tokens are hidden each time.

        Args:
            x, y, batch_size, max_length, options: as in `fit`.
            kwargs: as in `keras.Model.evaluate`.
        """
        if x is None or is_ready(x):
            sizes = {} if y is None else {"batch_size": batch_size}
            return super().evaluate(x, y, **sizes, **kwargs)
        trainer, objective = self._training_model(max_length, options)
        batches = self._batches(objective, x, y, batch_size)
        return trainer.evaluate(batches, **kwargs)

    def _training_model(self, max_length, options):
        kind = OBJECTIVES[self.objective_name]
        objective = kind(self.text_tokenizer(), max_length, **(options or {}))
        trainer = objective.training_model(self)
        if not self.compiled:
            self.compile(make_optimizer(_RATE))
        trainer.compile(
            self.optimizer,
            **objective.compile_options(),
            jit_compile=self.jit_compile,
            run_eagerly=self.run_eagerly,
        )
        return trainer, objective

    def _batches(self, objective, x, y, batch_size, seed=None, epoch=0):
        """Batches of texts; without a seed the same in each epoch."""
        check_integer("batch_size", batch_size, minimum=1)
        x = x if y is None else (x, y)
        encode = objective.encoder(objective.rows.tokenizer, objective.rows.length)
        records = as_texts(x, (objective.fields or 1,))
        items = ItemList(item for record in records for item in encode(record))
        if not items:
            raise ConfigurationError("texts must have tokens, got none")
        examples = EpochItems(items, None if seed is None else [seed])
        make = batch_maker(examples, objective, batch_size, [seed or 0])
        count = math.ceil(len(examples) / items_of(objective, batch_size))
        return NumberedBatches(make, count, epoch, advances=seed is not None)
