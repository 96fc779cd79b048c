"""Base of all decoders: prompts, the loop of steps, the sizes of programs.

A decoder computes the prompts of a batch once, and then one token a step for all rows
in a compiled loop. Rows, prompts and stop ids are padded to a few sizes, so that few
programs are compiled.
"""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras
import numpy as np
from keras import ops

from roformer_keras.base.compiled import Compiled, runs_on_cpu
from roformer_keras.generation.buckets import (
    ROWS,
    pad_rows,
    padded_origins,
    round_up_to_bucket,
)
from roformer_keras.generation.choosing import (
    check_finite,
    choose_by_steps,
    choose_next,
    controls_of,
)
from roformer_keras.generation.compiled_sampling import CompiledSampler
from roformer_keras.generation.generation_config import GenerationConfig, Prompt
from roformer_keras.generation.row_state import RowState

# Tokens of prompts that programs are compiled for.
_PROMPTS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# From so many rows on a step takes longer the more rows there are. Then the search
# checks every few steps which rows have ended.
LARGE_BATCH, CHECK_EVERY = 16, 8
# From so many rows on TensorFlow's graph computes a step faster on a CPU than XLA. The
# step of a base model takes XLA 1.1 times as long in bfloat16 with 16 rows, 1.9 times
# with 100, and in float32 1.0 and 1.3 times.
GRAPH_ROWS = {"bfloat16": 16, "float32": 64}
_SAMPLER = CompiledSampler()

_LOGGER = logging.getLogger(__name__)


class DecoderModel(Protocol):
    """Methods that a model must have to be decoded.

    Attributes:
        vocabulary_size: int.
        generated_segment: int. The segment of new tokens.
        weights: the variables that it computes with.
        compute_dtype: str.

    Example:
        >>> model = roformer_keras.RoFormerCausalLM.from_preset("roformer-gpt-char")
        >>> model.vocabulary_size, model.generated_segment
        (5217, 0)
    """

    vocabulary_size: int
    generated_segment: int
    weights: list
    compute_dtype: str

    def create_caches(self, batch, *capacity) -> list:
        """A pair of tensors `(batch, ...)` for each layer.

        With a capacity they are keys and values `(batch, heads, capacity, dim)`,
        otherwise a recurrent state.

        Args:
            batch: int. Rows.
            capacity: int, tokens that a cache has room for; none for a recurrent state.
        """

    def call_with_cache(
        self, inputs, attention_mask, caches, cache_index=0, contexts=None
    ) -> tuple:
        """See `RoFormerBackbone.call_with_cache`.

        Args:
            inputs, attention_mask, caches, cache_index, contexts: its arguments.
        """

    def logits(self, hidden):
        """`(batch, length, hidden_dim)` to `(batch, length, vocabulary_size)`.

        Args:
            hidden: float `(batch, length, hidden_dim)`.
        """

    def prompt_mask(self, token_ids, segment_ids):
        """Mask of a prompt, `(batch, 1, 1 or length, length)`: True for visible tokens.

        Recurrent decoders do not need it.

        Args:
            token_ids, segment_ids: int `(batch, length)`.
        """

    def visible(self, token_ids, segment_ids):
        """True if later tokens see these, unless they are the first; bool.

        Args:
            token_ids, segment_ids: int `(batch, length)`.
        """


@dataclasses.dataclass(kw_only=True)
class State:
    """Progress of the rows of a batch; rows after the first `rows` are padding."""

    rows: int
    lengths: np.ndarray
    written: int = 0

    @property
    def steps(self) -> int:
        """Steps of a program."""
        raise NotImplementedError

    @property
    def program_shape(self) -> tuple:
        """Sizes that a program is compiled for: rows, prompts and stop ids."""
        raise NotImplementedError

    def keep(self, carried) -> None:
        """Takes the new values of the tokens' state from a program."""
        raise NotImplementedError

    @property
    def all_rows(self) -> int:
        return len(self.lengths)

    def select(self, rows: int, origins: np.ndarray) -> None:
        """Takes rows in another order; those after the first `rows` are padding."""
        self.rows, self.lengths = rows, self.lengths[origins]


class Decoder:
    """Decodes any `DecoderModel`; the base of cached and recurrent decoders.

    Subclasses say what a state keeps of the tokens, and how the model reads more.
    """

    def __init__(self, model: DecoderModel):
        self.model = model
        self.on_compile: Callable[[str], Any] | None = None
        self._programs: set = set()
        self._first = Compiled(self._first_function, [], any_shape=True)
        self._prefill = Compiled(self._prefill_function, model.weights, any_shape=True)
        self._loop = Compiled(self._loop_function, model.weights, any_shape=False)
        self._graph_loop = Compiled(
            self._loop_function, model.weights, any_shape=False, xla=False
        )

    # === What a search calls ===

    def start(
        self, prompts: Sequence[Prompt], copies: int, max_new_tokens: int
    ) -> tuple[np.ndarray, State]:
        """Computes the prompts, and makes room for what follows."""
        token_ids, segment_ids, lengths = padded_prompts(prompts)
        self._announce("prompts", token_ids.shape)
        logits, *computed = self._prefill(token_ids, segment_ids, lengths)
        logits = host(logits)
        check_finite(logits[: len(prompts)])
        rows = len(prompts) * copies
        origins = padded_origins(np.repeat(np.arange(len(prompts)), copies))
        state = self._new_state(rows, origins, lengths, max_new_tokens, *computed)
        return logits[origins[:rows]], state

    def choose(
        self, logits: np.ndarray, uniforms: np.ndarray, rows: RowState
    ) -> tuple[np.ndarray, np.ndarray, RowState]:
        """Chooses one token for each row."""
        if rows.history is not None:
            return choose_next(logits, uniforms, rows)
        count = len(logits)
        padded = round_up_to_bucket(count, ROWS)
        self._announce("first tokens", (padded, 1))
        tokens, scores, limits = self._first(
            pad_rows(logits, padded),
            pad_rows(uniforms, padded),
            padded_limits(rows, padded),
            self._controls(rows.config),
        )
        return host(tokens)[:count], host(scores)[:count], _after(rows, limits)

    def advance(
        self, state: State, tokens: np.ndarray, uniforms: np.ndarray, rows: RowState
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, RowState]:
        """Reads a token in each row, chooses the next, and so on."""
        if rows.history is not None:
            # Programs do not know the history; log-probabilities are of all tokens.
            endless = RowState.endless(GenerationConfig(method="greedy"), len(tokens))
            unused = np.zeros((len(tokens), 1), "float32")

            def read(tokens):
                return self.advance(state, tokens, unused, endless)[2]

            return choose_by_steps(read, tokens, uniforms, rows)
        carried, constants = self._prepare(state)
        self._announce("steps", state.program_shape)
        count, steps = uniforms.shape
        padded = np.zeros((state.all_rows, state.steps), "float32")
        padded[:count, :steps] = uniforms
        loop = self._loop if self._pays_xla(state.all_rows) else self._graph_loop
        done, carried, limits, results = loop(
            carried,
            state.lengths + np.int32(state.written),
            constants,
            np.array(steps, "int32"),
            pad_rows(tokens.astype("int32"), state.all_rows),
            padded,
            padded_limits(rows, state.all_rows),
            self._controls(rows.config),
        )
        done = int(host(done))
        chosen, scores, logits = (host(array)[:count] for array in results)
        check_finite(scores)
        state.written += done
        state.keep(carried)
        return chosen[:, :done], scores[:, :done], logits, _after(rows, limits)

    def room(self, state: State) -> int:
        """Number of steps of `advance` before it is worth looking at the rows."""
        steps = state.steps if state.all_rows < LARGE_BATCH else CHECK_EVERY
        return steps - state.written % steps

    def select(self, state: State, rows: np.ndarray) -> None:
        """Leaves a state with some of its rows, in any order, repeated or not."""
        if not np.array_equal(rows, np.arange(state.rows)):
            state.select(len(rows), padded_origins(rows))

    def pays_to_leave(self, state: State, rows: int, steps: int) -> bool:
        """True if continuing with only so many rows saves more time than it costs.

        It depends on sizes alone, and not on what has been compiled before: the last
        digits differ between programs, and a seed must give the same texts again.
        """
        many = state.all_rows >= LARGE_BATCH and steps >= CHECK_EVERY
        return many and 2 * round_up_to_bucket(rows, ROWS) <= state.all_rows

    def _pays_xla(self, rows: int) -> bool:
        """True if XLA computes a step of so many rows faster than TensorFlow's graph.

        It depends on sizes alone, as `pays_to_leave` does.
        """
        first = GRAPH_ROWS.get(self.model.compute_dtype)
        return first is None or rows < first or not runs_on_cpu()

    # === What subclasses define ===

    def _read_prompts(self, inputs, visible) -> tuple:
        """In a program: hidden states `(rows, length, hidden_dim)`, and caches."""
        raise NotImplementedError

    def _new_state(self, rows, origins, lengths, max_new_tokens, visible, caches):
        """The state after the prompts, with the rows of `origins`."""
        raise NotImplementedError

    def _prepare(self, state) -> tuple:
        """State that the steps change, and state that they read; makes room first."""
        raise NotImplementedError

    def _read_tokens(self, inputs, count, carried, constants) -> tuple:
        """In a program: hidden states of step `count`, and what is carried on."""
        raise NotImplementedError

    # === What is compiled ===

    def _prefill_function(self, token_ids, segment_ids, lengths):
        """Logits of the next token, which tokens later ones see, and caches."""
        position = ops.arange(ops.shape(token_ids)[1])[None]
        visible = ops.logical_or(
            self.model.visible(token_ids, segment_ids), ops.equal(position, 0)
        )
        visible = ops.logical_and(visible, ops.less(position, lengths[:, None]))
        inputs = make_inputs(token_ids, segment_ids, position)
        hidden, caches = self._read_prompts(inputs, visible)
        last = ops.take_along_axis(hidden, lengths[:, None, None] - 1, axis=1)
        return self._logits(last), visible, caches

    def _first_function(self, logits, uniforms, limits, controls):
        # The size of a vocabulary is known where other sizes are not.
        logits = ops.reshape(logits, (-1, self.model.vocabulary_size))
        return _SAMPLER.choose_next(logits, logits, uniforms, limits, controls)

    def _loop_function(
        self, carried, positions, constants, steps, tokens, uniforms, limits, controls
    ):
        """Reads a token a row and chooses the next, until all rows have ended."""
        rows = tokens.shape[0]

        def step(count, tokens, carried, limits, results):
            written, scores, _ = results
            token_ids = tokens[:, None]
            inputs = make_inputs(
                token_ids,
                ops.full_like(token_ids, self.model.generated_segment),
                (positions + count)[:, None],
            )
            hidden, carried = self._read_tokens(inputs, count, carried, constants)
            logits = self._logits(hidden)
            uniform = ops.slice(uniforms, (0, count), (rows, 1))[:, 0]
            tokens, score, limits = _SAMPLER.choose_next(
                logits, logits, uniform, limits, controls
            )
            written = ops.slice_update(written, (0, count), tokens[:, None])
            scores = ops.slice_update(scores, (0, count), score[:, None])
            return count + 1, tokens, carried, limits, (written, scores, logits)

        def goes_on(count, tokens, carried, limits, results):
            *_, done = limits
            return ops.logical_and(count < steps, ops.logical_not(ops.all(done)))

        results = (
            ops.zeros(uniforms.shape, "int32"),
            ops.zeros(uniforms.shape, "float32"),
            ops.zeros((rows, self.model.vocabulary_size), "float32"),
        )
        start = (ops.zeros((), "int32"), tokens, carried, limits, results)
        count, _, carried, limits, results = ops.while_loop(goes_on, step, start)
        return count, carried, limits, results

    # === Helpers ===

    def _logits(self, hidden):
        """Float32 `(rows, vocabulary)` of hidden states `(rows, 1, hidden_dim)`."""
        return ops.cast(self.model.logits(hidden)[:, 0], "float32")

    def _controls(self, config: GenerationConfig) -> tuple:
        """The numbers that all rows share, for a program."""
        controls = controls_of(config, self.model.vocabulary_size)
        temperature, top_k, top_p, *ids = controls
        return temperature, top_k, np.float32(top_p), *ids

    def _announce(self, what, shape):
        """Says that a program will be compiled, before its first use."""
        if (what, shape) in self._programs:
            return
        self._programs.add((what, shape))
        backend = keras.backend.backend()
        before = sum(name == what for name, _ in self._programs) - 1
        if backend == "torch" or (
            # Where one graph serves every shape.
            backend == "tensorflow" and what != "steps" and before
        ):
            return
        message = f"compiling {what}, {shape[0]} x {sum(shape[1:])} tokens"
        _LOGGER.info(message)
        if self.on_compile is not None:
            self.on_compile(message)


# === Arrays of programs ===


def padded_prompts(prompts: Sequence[Prompt]) -> tuple:
    """Ids, segments and lengths of prompts, padded to buckets."""
    count = round_up_to_bucket(len(prompts), ROWS)
    lengths = np.ones(count, "int32")
    lengths[: len(prompts)] = [len(prompt.token_ids) for prompt in prompts]
    capacity = round_up_to_bucket(int(lengths.max()), _PROMPTS)
    token_ids = np.zeros((count, capacity), "int32")
    segment_ids = np.zeros((count, capacity), "int32")
    for at, prompt in enumerate(prompts):
        token_ids[at, : lengths[at]] = prompt.token_ids
        segment_ids[at, : lengths[at]] = prompt.segment_ids
    return token_ids, segment_ids, lengths


def padded_limits(rows: RowState, all_rows: int) -> tuple:
    """The arrays of a `RowState` for a program; rows of padding have ended."""
    *left, done = (pad_rows(array, all_rows) for array in rows.limits)
    done[len(rows.done) :] = True
    return (*left, done)


def _after(rows, limits):
    """The `RowState` that a program has made of `padded_limits`."""
    return rows.with_limits(host(array)[: len(rows.done)] for array in limits)


def gather(caches, rows):
    """Takes rows of each layer in place; there are never two whole caches."""
    for layer, pair in enumerate(caches):
        caches[layer] = tuple(ops.take(array, rows, axis=0) for array in pair)


def host(tensor) -> np.ndarray:
    return ops.convert_to_numpy(tensor)


def make_inputs(token_ids, segment_ids, positions) -> dict:
    """Arguments of `call_with_cache`, from tensors `(rows, length)`."""
    return {
        "token_ids": token_ids,
        "segment_ids": segment_ids,
        "position_ids": ops.cast(positions, "float32"),
    }
