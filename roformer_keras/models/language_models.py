"""The language models: masked, causal, and RoFormer-Sim."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, overload

import keras
import numpy as np

from roformer_keras.base.argument_names import takes_other_names
from roformer_keras.base.checks import check_integer
from roformer_keras.base.config import MODEL_FIELDS, RoFormerConfig
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.base.types import Engine, TensorLike, Texts, Verbose
from roformer_keras.engines.known import check_methods
from roformer_keras.engines.network import write_language_model
from roformer_keras.generation import generate as writing
from roformer_keras.generation import paraphrase as paraphrasing
from roformer_keras.generation.cached import CachedDecoder
from roformer_keras.generation.engines import kept_decoder
from roformer_keras.generation.prompts import DefaultLengths, as_ids
from roformer_keras.generation.recurrent import RecurrentDecoder
from roformer_keras.generation.stateful import Reading
from roformer_keras.layers import MaskedLMHead
from roformer_keras.layers.norms import activation_from_name
from roformer_keras.models.backbone import RoFormerBackbone, check_step
from roformer_keras.models.embedding import embed
from roformer_keras.models.fill_mask import MaskCandidate, fill_mask
from roformer_keras.models.initializers import initializer
from roformer_keras.models.objective_data import ObjectiveTrainer
from roformer_keras.models.preset import PresetModel
from roformer_keras.models.weight_paths import stored_name
from roformer_keras.optimizers import make_optimizer
from roformer_keras.search.cosines import pair_cosines
from roformer_keras.search.rerank import rerank
from roformer_keras.text.rows import TOKENS_PER_BATCH

# Methods that compute a step of a text with Keras.
_METHODS_OF_STEPS = (
    "create_caches",
    "call_with_cache",
    "logits",
    "prompt_mask",
    "visible",
)
# The rate of AdamW, if the model is not compiled.
_RATE = 1e-4


class LanguageModel(PresetModel):
    """A backbone and its output layer.

    Subclasses differ in what their backbone must be, see `config.MODEL_FIELDS`, and in
    the objective by which they learn texts, see `OBJECTIVES`.
    """

    backbone: RoFormerBackbone
    other_attention: tuple[str, ...] = ()
    if TYPE_CHECKING:

        @property
        def objective_name(self) -> str: ...

    trainer_class = ObjectiveTrainer
    row_options = ("max_length", "options")

    def __init__(
        self,
        backbone: RoFormerBackbone,
        output_activation: str | None = None,
        **kwargs: Any,
    ):
        config = backbone.config
        needed = MODEL_FIELDS[stored_name(type(self))]
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
            layer_norm_epsilon=config.head_norm_epsilon,
            conditional=config.layer_norm_cond_size is not None,
            condition_hidden_dim=config.layer_norm_cond_hidden_size,
            condition_hidden_activation=config.layer_norm_cond_hidden_activation,
            kernel_initializer=initializer(config),
            tie_word_embeddings=config.tie_word_embeddings,
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

    @classmethod
    def from_roformer_config(
        cls, config: RoFormerConfig, dtype: Any = None, **options: Any
    ) -> Self:
        backbone = RoFormerBackbone(config, dtype=dtype, name="backbone")
        return cls(backbone, **options)

    def preset_options(self) -> dict[str, Any]:
        return {"output_activation": self.output_activation}

    # === Training ===

    def default_optimizer(self) -> keras.optimizers.Optimizer:
        return make_optimizer(_RATE)


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerMaskedLM(LanguageModel):
    """Scores every token for every position, seeing both sides.

    Args:
        backbone: `RoFormerBackbone` with bidirectional attention.
        output_activation: `"softmax"` for probabilities, or None for logits.
        kwargs: as in `keras.Model`, such as `name`.

    Call arguments:
        inputs: as `RoFormerBackbone` takes them.

    Returns:
        float `(batch, length, vocabulary_size)`; if the backbone has a pooler, a dict
        of that as `logits` with `pooled_output` (and `nsp_probabilities`).

    Example:
        >>> model = roformer_keras.RoFormerMaskedLM.from_preset("roformer-char")
        >>> ops.shape(model(model.tokenizer(["今天[MASK]气不错"], keep_mask=True)))
        (1, 8, 5217)
        >>> [best, *others] = model.fill_mask("床前明[MASK]光，疑是地上霜。")[0]
        >>> best.token
        '月'

    Source: Devlin et al. 2019, arXiv:1810.04805, section 3.1; Su et al. 2021,
    arXiv:2104.09864.
    """

    objective_name = "mlm"

    @overload
    def fill_mask(  # type: ignore[overload-overlap]  # A str is a sequence of str.
        self, texts: str, top_k: int = 5, *, engine: Engine | None = None
    ) -> list[list[MaskCandidate]]: ...

    @overload
    def fill_mask(
        self, texts: Sequence[str], top_k: int = 5, *, engine: Engine | None = None
    ) -> list[list[list[MaskCandidate]]]: ...

    def fill_mask(
        self,
        texts: str | Sequence[str],
        top_k: int = 5,
        *,
        engine: Engine | None = None,
    ) -> list:
        """The likeliest tokens for every `[MASK]` in a text.

        Args:
            texts: a str with at least one literal `[MASK]`, or a list of them.
            top_k: int, at least 1.
            engine: what computes the texts; `model.engine` if not given.

        Returns:
            For each mask, in the order of the text, a list of `top_k` candidates, best
            first: `MaskCandidate` with token, token_id and probability. For a list of
            texts a list of those.

        Raises:
            ConfigurationError: a text holds no `[MASK]`, `top_k` is out of range, or
                the model has an `output_activation`.
            VocabularyError: the model has no tokenizer.

        Example:
            >>> model = roformer_keras.RoFormerMaskedLM.from_preset("roformer-char")
            >>> [[best]] = model.fill_mask("床前明[MASK]光，疑是地上霜。", top_k=1)
            >>> best.token
            '月'
        """
        return fill_mask(self, self.text_tokenizer(), texts, top_k, engine=engine)


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerCausalLM(LanguageModel):
    """Scores the token after every position, seeing what stands before it.

    Args:
        backbone: `RoFormerBackbone` with causal attention; or with UniLM attention, to
            write a second segment from a first that is seen both ways.
        output_activation: `"softmax"` for probabilities, or None for logits.
        kwargs: as in `keras.Model`, such as `name`.

    Call arguments:
        inputs: as `RoFormerBackbone` takes them.

    Returns:
        float `(batch, length, vocabulary_size)`.

    Example:
        >>> model = roformer_keras.RoFormerCausalLM.from_preset("roformer-gpt-char")
        >>> ops.shape(model(model.tokenizer(["床前明月光，"])))
        (1, 8, 5217)
        >>> text = model.generate("床前明月光，", method="greedy", max_new_tokens=6)
        >>> len(text)
        6

    Source: https://github.com/ZhuiyiTechnology/roformer; UniLM: Dong et al. 2019,
    arXiv:1905.03197.
    """

    other_attention: tuple[str, ...] = ("unilm",)
    default_lengths = DefaultLengths()

    generate = writing.generate
    stream = writing.stream

    @property
    def objective_name(self) -> str:
        return "lm" if self.is_continuation else "unilm"

    @property
    def is_continuation(self) -> bool:
        return self.config.attention == "causal"

    def _decoder(self, engine=None):
        return kept_decoder(self, engine)

    # === A `DecoderModel` ===

    @property
    def vocabulary_size(self) -> int:
        return self.config.vocabulary_size

    @property
    def generated_segment(self) -> int:
        return 0 if self.is_continuation else 1

    def create_caches(self, batch: int, *capacity: int) -> list:
        return self.backbone.create_caches(batch, *capacity)

    def call_with_cache(self, *arguments: Any, **options: Any) -> tuple:
        return self.backbone.call_with_cache(*arguments, **options)

    def logits(self, hidden: TensorLike) -> TensorLike:
        return self.mlm_head(hidden)

    def prompt_mask(self, token_ids: TensorLike, segment_ids: TensorLike) -> TensorLike:
        return self.backbone.attention_mask(token_ids, segment_ids)

    def visible(self, token_ids: TensorLike, segment_ids: TensorLike) -> TensorLike:
        return self._reading().visible(token_ids, segment_ids)

    def _make_decoder(self) -> CachedDecoder | RecurrentDecoder:
        self._check_inputs()
        return (RecurrentDecoder if self.config.is_linear else CachedDecoder)(self)

    def _network(self) -> Callable[[Any], None]:
        self._check_inputs()
        check_methods(self, RoFormerCausalLM, _METHODS_OF_STEPS)
        check_step(self.backbone)
        return lambda graph: write_language_model(graph, self)

    def _reading(self) -> Reading:
        config = self.config
        return Reading(
            vocabulary_size=config.vocabulary_size,
            attention=config.attention,
            pad_segments=config.shared_segment_embeddings,
        )

    def _check_inputs(self) -> None:
        missing = sorted(set(self.input) - {"token_ids", "segment_ids", "position_ids"})
        if missing:
            raise ConfigurationError(
                f"a prompt gives no {missing[0]}, which this model takes"
            )


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerSim(RoFormerCausalLM):
    """SimBERT v2: a sentence vector, and similar sentences, from one model.

    The first segment sees itself both ways; the second sees the first and what stands
    before it. The vector is the pooled output of a text alone, all of it segment 0.

    Args:
        backbone: `RoFormerBackbone` with UniLM attention and a pooler, whose
            activation is linear in the released checkpoints.
        output_activation: `"softmax"` for probabilities, or None for logits.
        max_length: int. Tokens to which `encode` cuts texts.
        kwargs: as in `keras.Model`, such as `name`.

    Call arguments:
        inputs: as `RoFormerBackbone` takes them.

    Returns:
        dict of `pooled_output`, float `(batch, hidden_dim)`, and `logits`, float
        `(batch, length, vocabulary_size)`.

    Example:
        >>> model = roformer_keras.RoFormerSim.from_preset("roformer-sim-char")
        >>> model.encode(["学而时习之", "你好"]).shape
        (2, 192)
        >>> model.similarity("学而时习之", "学习了又时常温习") > 0.5
        True

    Source: https://github.com/ZhuiyiTechnology/roformer-sim
    """

    objective_name = "simbert"
    other_attention: tuple[str, ...] = ()
    default_lengths = DefaultLengths(new_tokens=64)
    has_vectors = True

    paraphrase = paraphrasing.paraphrase
    rerank = rerank

    def __init__(
        self,
        backbone: RoFormerBackbone,
        output_activation: str | None = None,
        max_length: int = 512,
        **kwargs: Any,
    ):
        check_integer("max_length", max_length, minimum=2)
        super().__init__(backbone, output_activation, **kwargs)
        self.max_length = max_length

    def preset_options(self) -> dict[str, Any]:
        return {**super().preset_options(), "max_length": self.max_length}

    @overload
    def encode(
        self,
        texts: Iterator[str],
        *,
        max_length: int | None = None,
        verbose: Verbose = "auto",
        batch_tokens: int = TOKENS_PER_BATCH,
        engine: Engine | None = None,
    ) -> Iterator[np.ndarray]: ...

    @overload
    def encode(
        self,
        texts: Texts,
        *,
        max_length: int | None = None,
        verbose: Verbose = "auto",
        batch_tokens: int = TOKENS_PER_BATCH,
        engine: Engine | None = None,
    ) -> np.ndarray: ...

    @takes_other_names
    def encode(
        self,
        texts: Texts,
        *,
        max_length: int | None = None,
        verbose: Verbose = "auto",
        batch_tokens: int = TOKENS_PER_BATCH,
        engine: Engine | None = None,
    ) -> np.ndarray | Iterator[np.ndarray]:
        """A vector of length 1 for each text, so that products are cosines.

        An empty text has the vector of `[CLS]` and `[SEP]` alone, which means nothing.

        Args:
            texts: a str, a sequence of them, or a table of pandas with a column
                `text`; or an iterator, which need not fit into memory: some 2,000 texts
                are read from it at a time.
            max_length: int. Longer texts are cut to as many tokens; the model's if not
                given.
            verbose: 0 for no progress bar, 1 for one, `"auto"` for one on a terminal.
            batch_tokens: int. Maximum tokens of a batch, padding included.
            engine: what computes the texts; `model.engine` if not given.

        Returns:
            float32 `(hidden_dim,)` for a str, `(texts, hidden_dim)` for a sequence; for
            an iterator an iterator of the vectors.

        Raises:
            VocabularyError: the model has no tokenizer.
            ConfigurationError: a text is no str, or a table has no column of texts.

        Example:
            >>> model = roformer_keras.RoFormerSim.from_preset("roformer-sim-char")
            >>> model.encode("学而时习之").shape
            (192,)
            >>> sum(1 for vector in model.encode(iter(["学而时习之", "你好"])))
            2
        """
        return embed(
            self,
            self.text_tokenizer(),
            texts,
            self.max_length if max_length is None else max_length,
            verbose=verbose,
            batch_tokens=batch_tokens,
            engine=engine,
        )

    @overload
    def similarity(  # type: ignore[overload-overlap]  # A str is a sequence of str.
        self,
        first: str,
        second: str,
        *,
        max_length: int | None = None,
        verbose: Verbose = "auto",
        engine: Engine | None = None,
    ) -> float: ...

    @overload
    def similarity(
        self,
        first: Sequence[str],
        second: Sequence[str],
        *,
        max_length: int | None = None,
        verbose: Verbose = "auto",
        engine: Engine | None = None,
    ) -> np.ndarray: ...

    def similarity(
        self,
        first: str | Sequence[str],
        second: str | Sequence[str],
        *,
        max_length: int | None = None,
        verbose: Verbose = "auto",
        engine: Engine | None = None,
    ) -> float | np.ndarray:
        """The cosine of two texts, from -1 to 1, or of each pair of two lists.

        Args:
            first: str, or sequence of str.
            second: likewise, and of the same length.
            max_length, verbose, engine: as in `encode`.

        Returns:
            float; float32 `(len(first),)` for lists.

        Raises:
            ConfigurationError: a text has no token, or none of the vocabulary; or it is
                not clear which texts to compare.

        Example:
            >>> model = roformer_keras.RoFormerSim.from_preset("roformer-sim-char")
            >>> model.similarity(["学而时习之", "你好"], ["学习了", "再见"]).shape
            (2,)
        """

        def encode(texts):
            for text in texts:
                self.check_text(text)
            return self.encode(
                texts, max_length=max_length, verbose=verbose, engine=engine
            )

        return pair_cosines(encode, first, second)

    def check_text(self, text: str) -> None:
        """Raises ConfigurationError unless there is something to compare."""
        as_ids(self, text, "a text to compare")
