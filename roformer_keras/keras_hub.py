"""Presets of this package as Keras-Hub's users load them.

Importing this module registers the classes; it needs `pip install keras-hub`:

    import keras_hub
    import roformer_keras.keras_hub

    backbone = keras_hub.models.Backbone.from_preset("preset")
    classifier = keras_hub.models.TextClassifier.from_preset("preset", num_classes=2)
    classifier.fit(texts, labels)

What this package does beyond that, such as `RoFormerTextClassifier` with its metrics,
reports and batches by length, it does without Keras-Hub.
"""

from collections.abc import Mapping
from typing import Any

import keras
import keras_hub
import numpy as np

from roformer_keras import quirks
from roformer_keras.data.rows import pad
from roformer_keras.errors import ConfigurationError
from roformer_keras.models.backbone import RoFormerBackbone as Backbone
from roformer_keras.text.tokenizer import RoFormerTokenizer


# Under the name that presets have: they are loaded as this class from now on.
@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerBackbone(Backbone, keras_hub.models.Backbone):
    """`roformer_keras.RoFormerBackbone` as a backbone of Keras-Hub."""

    def save_to_preset(self, preset_dir, max_shard_size=None, **options):
        """As in Keras-Hub; with `tokenizer` or `overwrite` as in `roformer_keras`.

        Raises:
            ConfigurationError: `max_shard_size` is given together with these.
        """
        if not options:
            size = 10 if max_shard_size is None else max_shard_size
            hub = keras_hub.models.Backbone
            hub.save_to_preset(self, preset_dir, max_shard_size=size)
            return
        if max_shard_size is not None:
            raise ConfigurationError(
                f"{' and '.join(options)} and max_shard_size do not go together: a "
                "preset of roformer_keras has one file of weights"
            )
        Backbone.save_to_preset(self, preset_dir, **options)


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerPreprocessor(
    quirks.HubParts, keras_hub.models.TextClassifierPreprocessor
):
    """Token and segment ids of texts or pairs of texts, for Keras-Hub's tasks.

    Args:
        tokenizer: `RoFormerTokenizer`.
        sequence_length: int. Tokens of each row; longer texts are cut, the longer one
            of a pair first, as bert4keras cuts them.

    Call arguments:
        x: str, texts, or a tuple of two of these for pairs.
        y, sample_weight: passed on.
    """

    backbone_cls = RoFormerBackbone
    tokenizer_cls = RoFormerTokenizer

    def __init__(
        self, tokenizer: RoFormerTokenizer, sequence_length: int = 512, **kwargs: Any
    ):
        super().__init__(tokenizer, sequence_length=sequence_length, **kwargs)

    @classmethod
    def missing_parts(cls, preset, parts):
        if "tokenizer" in parts:
            return {}
        return {"tokenizer": RoFormerTokenizer.from_preset(preset)}

    def get_config(self):
        tokens = self.tokenizer.vocabulary
        return {
            **keras.layers.Layer.get_config(self),
            "tokenizer": {"vocabulary": tokens, **self.tokenizer.to_dict()},
            "sequence_length": self.sequence_length,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "tokenizer": RoFormerTokenizer(**config["tokenizer"])})

    def build(self, input_shape):
        self.built = True

    def call(self, x, y=None, sample_weight=None):
        parts = x if isinstance(x, tuple) else (x,)
        if keras.backend.backend() == "tensorflow" or any(map(_is_symbolic, parts)):
            ids = self._in_graph(parts)
        else:
            ids = self._ids(*parts)
        inputs = dict(zip(("token_ids", "segment_ids"), ids, strict=True))
        return keras.utils.pack_x_y_sample_weight(inputs, y, sample_weight)

    def _in_graph(self, parts):
        import tensorflow as tf

        parts = [tf.convert_to_tensor(part, tf.string) for part in parts]
        shape = (*parts[0].shape, self.sequence_length)
        ids_and_segments = tf.numpy_function(self._ids, parts, (tf.int32, tf.int32))
        return [tf.ensure_shape(ids, shape) for ids in ids_and_segments]

    def _ids(self, *parts) -> tuple[np.ndarray, np.ndarray]:
        columns = [np.asarray(part, object) for part in parts]
        rows = [
            self.tokenizer.encode(*map(_as_text, row), max_length=self.sequence_length)
            for row in zip(*(column.ravel() for column in columns), strict=True)
        ]
        shape = (*columns[0].shape, self.sequence_length)
        token_ids, segment_ids = (
            pad([row[at] for row in rows], self.sequence_length).reshape(shape)
            for at in (0, 1)
        )
        return token_ids, segment_ids


@keras.saving.register_keras_serializable("roformer_keras")
class KerasHubTextClassifier(keras_hub.models.TextClassifier):
    """A dense layer on the vector of `[CLS]`, as Keras-Hub's classifiers have it.

    Args:
        backbone: `RoFormerBackbone`.
        num_classes: int. Number of outputs.
        preprocessor: `RoFormerPreprocessor`, or None to take ids.
        activation: activation of the outputs; None for logits.
        dropout: float from 0 to 1. Before the dense layer.

    Returns:
        float `(batch, num_classes)`.
    """

    backbone_cls = RoFormerBackbone
    preprocessor_cls = RoFormerPreprocessor

    def __init__(
        self,
        backbone: RoFormerBackbone,
        num_classes: int,
        preprocessor: RoFormerPreprocessor | None = None,
        activation: Any = None,
        dropout: float = 0.1,
        **kwargs: Any,
    ):
        policy = backbone.dtype_policy
        self.output_dropout = keras.layers.Dropout(
            dropout, dtype=policy, name="dropout"
        )
        self.output_dense = keras.layers.Dense(
            num_classes, activation=activation, dtype=policy, name="logits"
        )
        hidden = backbone(backbone.input)
        if isinstance(hidden, Mapping):
            hidden = hidden["sequence_output"]
        outputs = self.output_dense(self.output_dropout(hidden[:, 0]))
        super().__init__(inputs=backbone.input, outputs=outputs, **kwargs)
        self.backbone, self.preprocessor = backbone, preprocessor
        self.num_classes, self.dropout = num_classes, dropout
        self.activation = keras.activations.get(activation)

    def save_to_preset(self, preset_dir, **kwargs):
        """As in Keras-Hub; `RoFormerTokenizer.from_preset` reads the folder too."""
        super().save_to_preset(preset_dir, **kwargs)
        if self.preprocessor is not None:
            self.preprocessor.tokenizer.save_to_preset(preset_dir)

    def get_config(self):
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
        }


def _is_symbolic(part):
    return hasattr(part, "graph") or type(part).__module__.startswith("tensorflow")


def _as_text(text):
    return text.decode("utf-8") if isinstance(text, bytes) else str(text)
