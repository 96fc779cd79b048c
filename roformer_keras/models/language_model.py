"""What the models with an MLM head share."""

import keras

from roformer_keras.config import MODEL_FIELDS
from roformer_keras.errors import ConfigurationError
from roformer_keras.layers import MaskedLMHead
from roformer_keras.layers.block import activation_from_name
from roformer_keras.models.backbone import RoFormerBackbone
from roformer_keras.models.initializers import initializer
from roformer_keras.models.preset import PresetModel

__all__ = ["LanguageModel"]


class LanguageModel(PresetModel):
    """A backbone and its tied output layer.

    Subclasses differ in what their backbone must be, see `config.MODEL_FIELDS`.
    """

    other_attention = ()

    def __init__(self, backbone, output_activation=None, **kwargs):
        config = backbone.config
        needed = MODEL_FIELDS[type(self).__name__]
        allowed = (needed["attention"], *self.other_attention)
        if config.attention not in allowed:
            raise ConfigurationError(
                f"{type(self).__name__} needs a backbone with attention="
                f"{' or '.join(map(repr, allowed))}, got {config.attention!r}"
            )
        if "pooler_activation" in needed and config.pooler_activation is None:
            raise ConfigurationError(
                f"{type(self).__name__} needs a backbone with a pooler, got "
                "pooler_activation=None; the released checkpoints have "
                f"{needed['pooler_activation']!r}"
            )

        # === Layers ===
        head = MaskedLMHead(
            backbone.token_embedding,
            transform=config.use_bias,
            activation=config.activation,
            dropout=config.dropout,
            conditional=config.layer_norm_cond_size is not None,
            condition_hidden_dim=config.layer_norm_cond_hidden_size,
            condition_hidden_activation=config.layer_norm_cond_hidden_activation,
            kernel_initializer=initializer(config),
            dtype=backbone.dtype_policy,
            name="mlm_head",
        )

        # === Functional Model ===
        outputs = backbone(backbone.input)
        if not isinstance(outputs, dict):
            outputs = {"sequence_output": outputs}
        condition = (
            (backbone.input["layer_norm_cond"],) if config.layer_norm_cond_size else ()
        )
        logits = head(outputs.pop("sequence_output"), *condition)
        if output_activation is not None:
            # A bfloat16 softmax over a vocabulary does not sum to one.
            logits = keras.layers.Activation(
                activation_from_name(output_activation),
                dtype="float32",
                name="output_activation",
            )(logits)
        super().__init__(
            inputs=backbone.input,
            outputs={**outputs, "logits": logits} if outputs else logits,
            **kwargs,
        )

        # === Config ===
        # Under mixed_float16 `compile` goes by it, and scales the loss.
        self.dtype_policy = backbone.dtype_policy
        self.backbone = backbone
        self.mlm_head = head
        self.output_activation = output_activation

    @property
    def config(self):
        return self.backbone.config

    @classmethod
    def from_roformer_config(cls, config, dtype=None, **options):
        backbone = RoFormerBackbone(config, dtype=dtype, name="backbone")
        return cls(backbone, **options)

    def preset_options(self):
        return {"output_activation": self.output_activation}

    def get_config(self):
        return {
            "name": self.name,
            "trainable": self.trainable,
            "backbone": keras.saving.serialize_keras_object(self.backbone),
            "output_activation": self.output_activation,
        }

    @classmethod
    def from_config(cls, config):
        options = dict(config)
        backbone = keras.saving.deserialize_keras_object(options.pop("backbone"))
        trainable = options.pop("trainable", True)
        model = cls(backbone, **options)
        if not trainable:
            # Setting True would thaw a backbone that was frozen by itself.
            model.trainable = False
        return model
