"""BERT, RoFormer and RoFormerV2, as bert4keras builds them."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from roformer_keras.base.config import RoFormerConfig
from roformer_keras.base.types import TensorLike, Unchecked
from roformer_keras.bert4keras.backend import K, keras
from roformer_keras.bert4keras.basic_layers import (
    Add,
    FirstToken,
    LanguageModelMask,
    ScaleOffset,
    UnifiedLanguageModelMask,
)
from roformer_keras.bert4keras.block_layers import (
    FeedForward,
    LayerNormalization,
    MultiHeadAttention,
)
from roformer_keras.bert4keras.embedding_layers import (
    Embedding,
    PositionEmbedding,
    SinusoidalPositionEmbedding,
)
from roformer_keras.bert4keras.layer_functions import find_activation
from roformer_keras.bert4keras.transformer import Checkpoint, Transformer
from roformer_keras.conversion.weights import (
    OUTPUT_BIAS,
    POSITION_EMBEDDINGS,
    WORD_EMBEDDINGS,
    weight_table,
)


class _Mask:
    """A base of masks that are mixed into a model, whose attributes they need."""

    apply: Callable
    inputs: list
    attention_bias: TensorLike

    def _masked_once(self, number: int, layer: type, name: str) -> TensorLike:
        """The mask of an input, which all blocks share."""
        if self.attention_bias is None:
            self.attention_bias = self.apply(self.inputs[number], layer, name=name)
        return self.attention_bias


class LM_Mask(_Mask):
    """Lets a model see only what stands before."""

    def compute_attention_bias(self, inputs: TensorLike = None) -> TensorLike:
        return self._masked_once(0, LanguageModelMask, "Attention-LM-Mask")


class UniLM_Mask(_Mask):
    """Lets a model see the first segment, and of the second what stands before.

    Source: Dong et al. 2019, arXiv:1905.03197.
    """

    def compute_attention_bias(self, inputs: TensorLike = None) -> TensorLike:
        return self._masked_once(1, UnifiedLanguageModelMask, "Attention-UniLM-Mask")


class BERT(Transformer):
    """BERT: embeddings with positions, post-norm blocks, and optional heads.

    Args:
        max_position: int. Rows of the table of positions.
        segment_vocab_size: int. 0 for a model without segments.
        with_pool: bool, or name of an activation; True for tanh.
        with_nsp: bool. Next-sentence probabilities of the pool.
        with_mlm: bool, or name of an activation; True for softmax.
        custom_position_ids: bool. Whether positions are an input.
        shared_segment_embeddings: bool. Whether segments index the token table.
        kwargs: as `Transformer` takes them.
    """

    has_position_table: ClassVar[bool] = True
    use_bias: ClassVar[bool] = True

    def __init__(
        self,
        max_position: int,
        segment_vocab_size: int = 2,
        with_pool: bool | str = False,
        with_nsp: bool = False,
        with_mlm: bool | str = False,
        hierarchical_position: Unchecked = None,
        custom_position_ids: bool = False,
        shared_segment_embeddings: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.max_position = max_position
        self.segment_vocab_size = segment_vocab_size
        self.with_pool = with_pool or with_nsp
        self.with_nsp = with_nsp
        self.with_mlm = with_mlm
        self.hierarchical_position = hierarchical_position
        self.custom_position_ids = custom_position_ids
        self.shared_segment_embeddings = shared_segment_embeddings

    def get_inputs(self) -> list:
        names = ["Input-Token"]
        names += ["Input-Segment"] if self.segment_vocab_size > 0 else []
        names += ["Input-Position"] if self.custom_position_ids else []
        shape = (self.sequence_length,)
        return [
            self.apply(None, keras.layers.Input, shape=shape, name=x) for x in names
        ]

    # === Parts of a block ===

    def _dense(
        self, inputs: TensorLike, units: int, name: str, **options: Any
    ) -> TensorLike:
        return self.apply(
            inputs,
            keras.layers.Dense,
            units=units,
            use_bias=self.use_bias,
            kernel_initializer=self.initializer,
            name=name,
            **options,
        )

    def _dropout(self, inputs: TensorLike, name: str) -> TensorLike:
        return self.apply(
            inputs, keras.layers.Dropout, rate=self.dropout_rate, name=name
        )

    def _norm(
        self, inputs: TensorLike, name: str, epsilon: float | None = None
    ) -> TensorLike:
        condition, hidden_units, hidden_activation = self.layer_norm_conds
        return self.apply(
            self.simplify([inputs, condition]),
            LayerNormalization,
            epsilon=epsilon or self.norm_epsilon,
            conditional=condition is not None,
            hidden_units=hidden_units,
            hidden_activation=hidden_activation,
            hidden_initializer=self.initializer,
            name=name,
        )

    def _add_and_norm(
        self, before: TensorLike, added: TensorLike, name: str
    ) -> TensorLike:
        added = self._dropout(added, f"{name}-Dropout")
        total = self.apply([before, added], Add, name=f"{name}-Add")
        return self._norm(total, f"{name}-Norm")

    @property
    def norm_epsilon(self) -> float:
        """The epsilon of embedding and block norms in bert4keras 0.11.5."""
        return 1e-12

    def _embed_ids(self, inputs: list) -> tuple[TensorLike, TensorLike]:
        """Token and segment embeddings, summed, and the position ids or None."""
        tokens, *rest = inputs
        x = self.apply(
            tokens,
            Embedding,
            input_dim=self.vocab_size,
            output_dim=self.embedding_size,
            embeddings_initializer=self.initializer,
            mask_zero=True,
            name="Embedding-Token",
        )
        if self.segment_vocab_size > 0:
            shared = self.shared_segment_embeddings
            segments = self.apply(
                rest.pop(0),
                Embedding,
                input_dim=self.segment_vocab_size,
                output_dim=self.embedding_size,
                embeddings_initializer=self.initializer,
                name="Embedding-Token" if shared else "Embedding-Segment",
            )
            x = self.apply([x, segments], Add, name="Embedding-Token-Segment")
        return x, rest.pop(0) if self.custom_position_ids else None

    def apply_embeddings(self, inputs: list) -> TensorLike:
        x, position_ids = self._embed_ids(inputs)
        if self.has_position_table:
            x = self.apply(
                self.simplify([x, position_ids]),
                PositionEmbedding,
                input_dim=self.max_position,
                output_dim=self.embedding_size,
                merge_mode="add",
                hierarchical=self.hierarchical_position,
                embeddings_initializer=self.initializer,
                custom_position_ids=self.custom_position_ids,
                name="Embedding-Position",
            )
        x = self._dropout(self._norm(x, "Embedding-Norm"), "Embedding-Dropout")
        return self._mapped(x)

    def _mapped(self, x: TensorLike) -> TensorLike:
        if self.embedding_size == self.hidden_size:
            return x
        return self._dense(x, self.hidden_size, "Embedding-Mapping")

    def apply_main_layers(self, inputs: TensorLike, index: int) -> TensorLike:
        attention = f"Transformer-{index}-MultiHeadSelfAttention"
        feed_forward = f"Transformer-{index}-FeedForward"
        mask = self.compute_attention_bias(index)
        positions = self.compute_position_bias(inputs)
        arguments: dict[str, Unchecked] = {"a_bias": None}
        layer_inputs = [inputs, inputs, inputs]
        if mask is not None:
            arguments["a_bias"] = True
            layer_inputs.append(mask)
        if positions is not None:
            arguments["p_bias"] = "rotary"
            layer_inputs.append(positions)
        x = self.apply(
            layer_inputs,
            MultiHeadAttention,
            arguments=arguments,
            heads=self.num_attention_heads,
            head_size=self.attention_head_size,
            out_dim=self.hidden_size,
            key_size=self.attention_key_size,
            use_bias=self.use_bias,
            attention_dropout=self.attention_dropout_rate,
            kernel_initializer=self.initializer,
            name=attention,
        )
        x = self._add_and_norm(inputs, x, attention)
        fed = self.apply(
            x,
            FeedForward,
            units=self.intermediate_size,
            activation=self.hidden_act,
            use_bias=self.use_bias,
            kernel_initializer=self.initializer,
            name=feed_forward,
        )
        return self._add_and_norm(x, fed, feed_forward)

    def apply_final_layers(self, inputs: TensorLike) -> TensorLike:
        outputs = []
        if self.with_pool:
            activation = "tanh" if self.with_pool is True else self.with_pool
            x = self.apply(inputs, FirstToken, name="Pooler")
            x = self._dense(x, self.hidden_size, "Pooler-Dense", activation=activation)
            if self.with_nsp:
                x = self._dense(x, 2, "NSP-Proba", activation="softmax")
            outputs.append(x)
        if self.with_mlm:
            x = self._dense(
                inputs,
                self.embedding_size,
                "MLM-Dense",
                activation=find_activation(self.hidden_act),
            )
            x = self._norm(x, "MLM-Norm", epsilon=1e-12)
            x = self._score_tokens(x)
            x = self.apply(x, ScaleOffset, scale=False, name="MLM-Bias")
            outputs.append(self._activate(x, "MLM-Activation"))
        if not outputs:
            return inputs
        return outputs[0] if len(outputs) == 1 else outputs

    def _score_tokens(self, x: TensorLike) -> TensorLike:
        return self.apply(
            x, Embedding, arguments={"mode": "dense"}, name="Embedding-Token"
        )

    def _activate(self, x: TensorLike, name: str) -> TensorLike:
        activation = "softmax" if self.with_mlm is True else self.with_mlm
        return self.apply(x, keras.layers.Activation, activation=activation, name=name)

    # === Weights ===

    def load_variable(self, checkpoint: Checkpoint, name: str) -> np.ndarray:
        value = super().load_variable(checkpoint, name)
        if name in (WORD_EMBEDDINGS, OUTPUT_BIAS):
            return self.load_embeddings(value)
        return value.T if name in self._transposed else value

    def create_variable(
        self, name: str, value: np.ndarray, dtype: str | None = None
    ) -> np.ndarray:
        value = value.T if name in self._transposed else value
        return super().create_variable(name, value, dtype)

    @functools.cached_property
    def _transposed(self) -> set[str]:
        return {row.name for row in self._table if row.transposed}

    @functools.cached_property
    def _table(self):
        """The package's table of weights, for a model of these sizes."""
        config = RoFormerConfig(
            model_type="roformer" if self.use_bias else "roformer_v2",
            vocabulary_size=self.vocab_size,
            num_layers=self.num_hidden_layers,
            num_heads=self.num_attention_heads,
            hidden_dim=self.hidden_size,
            intermediate_dim=self.intermediate_size,
            embedding_dim=self.embedding_size,
            attention_key_size=self.attention_key_size,
            num_segments=max(self.segment_vocab_size, 1),
            shared_segment_embeddings=self.shared_segment_embeddings,
        )
        return weight_table(config)

    def variable_mapping(self) -> dict[str, list[str]]:
        """For each layer the names of its weights in a checkpoint, in its order."""
        mapping: dict[str, list[str]] = {}
        for row in self._table:
            # bert4keras keeps this one in no checkpoint.
            if row.layer != "Output-Mapping":
                mapping.setdefault(row.layer, []).append(row.name)
        if self.has_position_table:
            mapping["Embedding-Position"] = [POSITION_EMBEDDINGS]
        return mapping


class RoFormer(BERT):
    """RoFormer: BERT whose queries and keys are turned by their positions."""

    has_position_table: ClassVar[bool] = False

    @property
    def norm_epsilon(self) -> float:
        return keras.config.epsilon()

    def compute_position_bias(self, inputs: TensorLike = None) -> TensorLike:
        if self.position_bias is None:
            arguments = [inputs, self.inputs[2]] if self.custom_position_ids else inputs
            self.position_bias = self.apply(
                arguments,
                SinusoidalPositionEmbedding,
                output_dim=self.attention_key_size,
                merge_mode="zero",
                custom_position_ids=self.custom_position_ids,
                name="Embedding-Rotary-Position",
            )
        return self.position_bias


@keras.saving.register_keras_serializable("bert4keras")
class NormalByDepth(keras.initializers.Initializer):
    """Truncated normal numbers, whose deviation is by width and number of layers.

    On TensorFlow they follow `numpy.random.seed`, as in bert4keras.

    Args:
        num_layers: int.
    """

    def __init__(self, num_layers: int):
        self.num_layers = num_layers

    def __call__(self, shape: tuple[int, ...], dtype: str | None = None) -> TensorLike:
        width = shape[1] if shape[0] > 10000 or shape[0] < 10 else shape[0]
        deviation = 1.13684723 / width**0.5 * self.num_layers ** (-1.0 / 2)
        return K.truncated_normal(shape, stddev=deviation, dtype=dtype)

    def get_config(self) -> dict[str, int]:
        return {"num_layers": self.num_layers}


class RoFormerV2(RoFormer):
    """RoFormerV2: without biases, norms without parameters, no pool."""

    use_bias: ClassVar[bool] = False

    @property
    def initializer(self) -> keras.initializers.Initializer:
        """Truncated normal numbers by width and depth.

        Source: https://kexue.fm/archives/8998
        """
        return NormalByDepth(self.num_hidden_layers)

    def _norm(
        self, inputs: TensorLike, name: str, epsilon: float | None = None
    ) -> TensorLike:
        return self.apply(
            inputs,
            LayerNormalization,
            zero_mean=False,
            scale=False,
            offset=False,
            epsilon=self.norm_epsilon,
            name=name,
        )

    def apply_embeddings(self, inputs: list) -> TensorLike:
        x, _ = self._embed_ids(inputs)
        x = self._norm(self._dropout(x, "Embedding-Dropout"), "Embedding-Norm")
        return self._mapped(x)

    def apply_final_layers(self, inputs: TensorLike) -> TensorLike:
        if not self.with_mlm:
            return inputs
        x = inputs
        if self.embedding_size != self.hidden_size:
            x = self._dense(x, self.embedding_size, "Output-Mapping")
        x = self._dropout(x, "Output-MLM-Dropout")
        return self._activate(self._score_tokens(x), "Output-MLM-Activation")
