"""Translations by beam search."""

import dataclasses

import keras
import numpy as np
from keras import ops

from roformer_keras.base.compiled import Compiled
from roformer_keras.generation import GenerationConfig, Prompt, decode
from roformer_keras.text.rows import pad


@dataclasses.dataclass
class _State:
    """Tensors with a row for each beam, and how many tokens there are."""

    memories: list
    memory_mask: object
    caches: list
    written: int = 0


class Writer:
    """Writes a text from another; a decoder of `roformer_keras.generation`.

    Args:
        model: `Translator`. Its weights are read at each step.
    """

    def __init__(self, model):
        self.model = model
        self._read = Compiled(model.read, model.weights, any_shape=True)
        self._step = Compiled(self._logits, model.weights, any_shape=True)
        self._take = Compiled(_take, [], any_shape=True)

    def write(
        self, texts, num_beams=1, length_penalty=0.0, max_length=64, batch_size=128
    ):
        """A text from each source.

        Args:
            texts: list of str.
            num_beams: int. 1 takes the likeliest token at each step.
            length_penalty: float. Beams are ranked by score / length ** penalty.
            max_length: int. Tokens of a text, with its `[SEP]`.
            batch_size: int. Beams that are computed together.
        """
        tokenizer = self.model.tokenizer
        ids = [tuple(tokenizer.encode(text)[0]) for text in texts]
        prompts = [Prompt(row, (0,) * len(row), max_length) for row in ids]
        config = GenerationConfig(
            method="beam",
            num_beams=num_beams,
            length_penalty=length_penalty,
            stop_ids=(tokenizer.sep_id,),
        )
        written = decode(self, prompts, config, batch_size)
        return [tokenizer.decode(best.token_ids) for best, *_ in written]

    # === What a search calls ===

    def start(self, prompts, copies, max_new_tokens):
        rows = [prompt.token_ids for prompt in prompts]
        memories, mask = self._read(
            ops.convert_to_tensor(pad(rows, max(map(len, rows))))
        )
        count = len(prompts) * copies
        caches = [
            block.attention.create_cache(count, max_new_tokens)
            for block in self.model.decoder
        ]
        origins = np.repeat(np.arange(len(prompts)), copies).astype("int32")
        memories, mask = self._take((memories, mask), ops.convert_to_tensor(origins))
        state = _State(memories, mask, caches)
        first = np.full(count, self.model.tokenizer.cls_id, "int32")
        return self._logits_of(state, first), state

    def advance(self, state, tokens, uniforms, rows):
        return tokens[:, None], uniforms, self._logits_of(state, tokens), rows

    def select(self, state, rows):
        tensors = state.memories, state.memory_mask, state.caches
        rows = ops.convert_to_tensor(rows.astype("int32"))
        state.memories, state.memory_mask, state.caches = self._take(tensors, rows)

    def pays_to_leave(self, state, rows, steps):
        return 2 * rows <= state.memory_mask.shape[0]

    def _logits_of(self, state, tokens):
        logits, state.caches = self._step(
            ops.convert_to_tensor(tokens[:, None].astype("int32")),
            state.memories,
            state.memory_mask,
            state.caches,
            ops.convert_to_tensor(np.int32(state.written)),
        )
        state.written += 1
        return ops.convert_to_numpy(logits)

    def _logits(self, tokens, memories, memory_mask, caches, index):
        """In a program: logits of the next token, and the caches with this one."""
        keys = ops.arange(ops.shape(caches[0][0])[2])
        hidden, caches = self.model.decode(
            tokens,
            memories,
            memory_mask,
            ops.reshape(index, (1, 1)),
            (keys <= index)[None, None, None],
            caches,
            index,
        )
        return self.model.embedding(hidden, reverse=True)[:, 0], caches


def _take(tensors, rows):
    return keras.tree.map_structure(
        lambda tensor: ops.take(tensor, rows, axis=0), tensors
    )
