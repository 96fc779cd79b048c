"""Heads on top of the blocks: the MLM output and the pooler."""

from collections.abc import Callable
from typing import Any, Self

import keras
from keras import ops

from roformer_keras.base.errors import refuse
from roformer_keras.base.types import Shape, TensorLike
from roformer_keras.layers.configured import ConfiguredLayer
from roformer_keras.layers.norms import LayerNorm, activation_from_name


@keras.saving.register_keras_serializable("roformer_keras")
class MaskedLMHead(ConfiguredLayer):
    """Scores every token of the vocabulary with the transposed token embedding.

    With `tie_word_embeddings=False`, it uses a separate embedding. RoFormer transforms
    first (dense, activation, LayerNorm) and adds a bias at the end; RoFormerV2 only
    maps to the width of the embedding, if it differs.

    Args:
        token_embedding: `keras.layers.ReversibleEmbedding` of `(vocabulary, dim)`.
            The layer is shared, not copied.
        transform: bool. True for RoFormer, False for RoFormerV2.
        activation: activation of the transform; `"gelu"` is the exact form.
        dropout: float in [0, 1). Before the output, where `transform` is False.
        layer_norm_epsilon: float above 0, in the transform's norm. It is 1e-12 in every
            version of bert4keras.
        conditional, condition_hidden_dim, condition_hidden_activation: arguments of the
            transform's norm, see `LayerNorm`.
        kernel_initializer: initializer of the dense layer.
        tie_word_embeddings: bool. False scores with a separately trained embedding of
            the same shape.
        kwargs: as in `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        x: float `(batch, length, hidden_dim)`.
        condition: float `(batch, condition_dim)`, if `conditional`.

    Returns:
        float `(batch, length, vocabulary)`: logits.

    Raises:
        ConfigurationError: `conditional` without `transform`.

    Example:
        >>> embedding = keras.layers.ReversibleEmbedding(100, 16)
        >>> head = layers.MaskedLMHead(embedding)
        >>> ops.shape(head(np.ones((1, 5, 16))))
        (1, 5, 100)

    Source: Devlin et al. 2019, arXiv:1810.04805; the tied output: Press and Wolf
    2017, arXiv:1608.05859.
    """

    def __init__(
        self,
        token_embedding: keras.layers.Layer,
        transform: bool = True,
        activation: str | Callable = "gelu",
        dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-12,
        conditional: bool = False,
        condition_hidden_dim: int | None = None,
        condition_hidden_activation: str | Callable | None = "linear",
        kernel_initializer: Any = "glorot_uniform",
        tie_word_embeddings: bool = True,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        refuse(
            conditional and not transform,
            "a head without a transform takes no condition",
        )
        self.token_embedding = token_embedding
        self.tie_word_embeddings = tie_word_embeddings
        self.output_embedding = None
        if not tie_word_embeddings:
            config = {**token_embedding.get_config(), "name": "output_embedding"}
            self.output_embedding = type(token_embedding).from_config(config)
        # It returns no mask, but Keras would warn of a lost mask.
        self.scoring_embedding.supports_masking = True
        self.transform = transform
        self.activation = activation
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.conditional = conditional
        self.condition_hidden_dim = condition_hidden_dim
        self.condition_hidden_activation = condition_hidden_activation
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.dense = keras.layers.Dense(
            token_embedding.output_dim,
            activation=activation_from_name(activation) if transform else None,
            use_bias=transform,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="dense",
        )
        if transform:
            self.norm = LayerNorm(
                layer_norm_epsilon,
                conditional=conditional,
                condition_hidden_dim=condition_hidden_dim,
                condition_hidden_activation=condition_hidden_activation,
                dtype=self.dtype_policy,
                name="norm",
            )
        else:
            self.output_dropout = keras.layers.Dropout(
                dropout, dtype=self.dtype_policy, name="output_dropout"
            )

    @property
    def scoring_embedding(self) -> keras.layers.Layer:
        """The embedding whose transpose scores tokens."""
        return self.output_embedding or self.token_embedding

    def build(self, x_shape: Shape, condition_shape: Shape | None = None) -> None:
        embedded_shape = (*x_shape[:-1], self.token_embedding.output_dim)
        if not self.scoring_embedding.built:
            self.scoring_embedding.build()
        if self.transform or x_shape[-1] != self.token_embedding.output_dim:
            self.dense.build(x_shape)
        if self.transform:
            if self.conditional:
                self.norm.build(embedded_shape, condition_shape)
            else:
                self.norm.build(embedded_shape)
            self.bias = self.add_weight(
                shape=(self.token_embedding.input_dim,),
                initializer="zeros",
                name="bias",
            )

    def call(
        self, x: TensorLike, condition: TensorLike = None, training: bool | None = None
    ) -> TensorLike:
        if self.dense.built:
            x = self.dense(x)
        if self.transform:
            x = self.norm(x, condition) if self.conditional else self.norm(x)
            return self._logits(x) + self.bias
        return self._logits(self.output_dropout(x, training=training))

    def _logits(self, x):
        # A Keras embedding does not cast its table, so under a mixed policy its product
        # has the table's type unless its `reverse_dtype` differs.
        return ops.cast(self.scoring_embedding(x, reverse=True), self.compute_dtype)

    def compute_mask(
        self, inputs: TensorLike, previous_mask: TensorLike = None
    ) -> TensorLike:
        # Targets state which tokens a loss counts; Keras would weigh them again.
        return None

    def compute_output_shape(
        self, x_shape: Shape, condition_shape: Shape | None = None
    ) -> Shape:
        return (*x_shape[:-1], self.token_embedding.input_dim)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        embedding = keras.layers.deserialize(config["token_embedding"])
        return cls(**{**config, "token_embedding": embedding})


@keras.saving.register_keras_serializable("roformer_keras")
class Pooler(ConfiguredLayer):
    """A dense layer on the first position: one vector a row.

    Args:
        activation: `"linear"` for RoFormer-Sim, whose cosines a tanh would spoil;
            `"tanh"` as in BERT.
        kernel_initializer: initializer of the dense layer.
        kwargs: as in `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        x: float `(batch, length, hidden_dim)`.

    Returns:
        float `(batch, hidden_dim)`.

    Example:
        >>> ops.shape(layers.Pooler("tanh")(np.ones((2, 5, 16))))
        (2, 16)

    Source: Devlin et al. 2019, arXiv:1810.04805, section 3.1.
    """

    def __init__(
        self,
        activation: str | Callable = "linear",
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.activation = activation
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, input_shape: Shape) -> None:
        self.dense = keras.layers.Dense(
            input_shape[-1],
            activation=activation_from_name(self.activation),
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="dense",
        )
        self.dense.build((input_shape[0], input_shape[-1]))

    def call(self, x: TensorLike) -> TensorLike:
        return self.dense(x[:, 0])

    def compute_mask(
        self, inputs: TensorLike, previous_mask: TensorLike = None
    ) -> TensorLike:
        return None

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], input_shape[-1])
