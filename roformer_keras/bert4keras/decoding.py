"""Decoding: beam search, random sampling and Viterbi, with bert4keras's draws."""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from roformer_keras.base.types import TensorLike, Unchecked


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Softmax along an axis."""
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


class ViterbiDecoder:
    """The best path of labels.

    Args:
        trans: float `(labels, labels)`. Scores of one label after another.
        starts, ends: labels that a path may start or end with; None for all.
    """

    def __init__(
        self,
        trans: np.ndarray,
        starts: Collection[int] | None = None,
        ends: Collection[int] | None = None,
    ):
        self.trans = trans
        self.num_labels = len(trans)
        self.non_starts = self._others(starts)
        self.non_ends = self._others(ends)

    def _others(self, labels: Collection[int] | None) -> list[int]:
        if labels is None:
            return []
        return [label for label in range(self.num_labels) if label not in labels]

    def decode(self, nodes: np.ndarray) -> np.ndarray:
        """The labels of the best path, int `(length,)`.

        Args:
            nodes: float `(length, labels)`. Scores. As with bert4keras, those of labels
                that cannot start or end become -inf in this array.
        """
        nodes[0, self.non_starts] -= np.inf
        nodes[-1, self.non_ends] -= np.inf
        scores = nodes[0]
        origins = []
        for node in nodes[1:]:
            totals = scores[:, None] + self.trans + node[None]
            origins.append(totals.argmax(axis=0))
            scores = totals.max(axis=0)
        path = [scores.argmax()]
        for origin in reversed(origins):
            path.append(origin[path[-1]])
        return np.array(path[::-1])


class AutoRegressiveDecoder:
    """Writes token by token: subclass it with `predict`.

    Args:
        start_id: int, the token that texts start with, or None.
        end_id: int, the token that texts end with.
        maxlen: int. How many tokens are written at most.
        minlen: int. How many there are at least, the start token among them.

    `@AutoRegressiveDecoder.wraps()` decorates `predict(self, inputs, output_ids,
    states)`.
    """

    def __init__(self, start_id: int | None, end_id: int, maxlen: int, minlen: int = 1):
        self.start_id = start_id
        self.end_id = end_id
        self.maxlen = maxlen
        self.minlen = minlen
        self._last_tokens: dict[Any, Any] = {}
        starts = [] if start_id is None else [start_id]
        self.first_output_ids = np.array([starts], int)

    @staticmethod
    def wraps(default_rtype: str = "probas", use_states: bool = False) -> Callable:
        """A decorator of `predict`, which adds a temperature and the type of result.

        Args:
            default_rtype: what the decorated method returns: `"probas"` or `"logits"`.
            use_states: bool. Whether it returns a pair with the states.
        """

        def decorate(predict: Callable) -> Callable:
            @functools.wraps(predict)
            def call(
                self, inputs, output_ids, states, temperature=1, rtype=default_rtype
            ):
                if rtype not in ("probas", "logits"):
                    raise AssertionError(
                        f"rtype must be 'probas' or 'logits', got {rtype!r}"
                    )
                prediction = predict(self, inputs, output_ids, states)
                prediction, states = prediction if use_states else (prediction, None)
                if default_rtype == "logits":
                    prediction = softmax(prediction / temperature)
                elif temperature != 1:
                    prediction = np.power(prediction, 1.0 / temperature)
                    prediction = prediction / prediction.sum(axis=-1, keepdims=True)
                return prediction if rtype == "probas" else np.log(
                    prediction + 1e-12
                ), states

            return call

        return decorate

    def last_token(self, model: Any) -> TensorLike:
        """A model's outputs at the last position, by its `predict`; see `LastToken`."""
        if model not in self._last_tokens:
            from roformer_keras.bert4keras.last_token import LastToken

            self._last_tokens[model] = LastToken(model)
        return self._last_tokens[model]

    def predict(
        self, inputs: list, output_ids: np.ndarray, states: Unchecked = None
    ) -> Any:
        """The scores of the next tokens, float `(rows, tokens)`; subclasses define it.

        Args:
            inputs: arrays of as many rows as `output_ids`.
            output_ids: int `(rows, written)`.
            states: what the call before returned.
        """
        raise NotImplementedError

    def beam_search(
        self,
        inputs: Sequence,
        topk: int,
        states: Unchecked = None,
        temperature: float = 1,
        min_ends: int = 1,
    ) -> np.ndarray:
        """The ids of the best text, int `(written,)`, by beam search.

        Args:
            inputs: rows, such as the token ids and segment ids of a prompt.
            topk: int. Number of beams.
            states: for `predict`.
            temperature: float above 0.
            min_ends: int. How many end tokens end a text.
        """
        predict: Any = self.predict  # As `wraps` decorates it.
        rows = [np.array([row]) for row in inputs]
        output_ids, totals = self.first_output_ids, np.zeros(1)
        for step in range(self.maxlen):
            scores, states = predict(rows, output_ids, states, temperature, "logits")
            if step == 0:
                rows = [np.repeat(one, topk, axis=0) for one in rows]
            scores = totals[:, None] + scores
            best = scores.argpartition(-topk, axis=None)[-topk:]
            beams, tokens = np.divmod(best, scores.shape[1])
            output_ids = np.concatenate([output_ids[beams], tokens[:, None]], axis=1)
            totals = scores.reshape(-1)[best]
            is_done = self._is_done(output_ids, min_ends)
            if output_ids.shape[1] < self.minlen:
                continue
            if is_done[totals.argmax()]:
                break
            if is_done.any():
                rows = [one[~is_done] for one in rows]
                output_ids, totals = output_ids[~is_done], totals[~is_done]
                topk = len(totals)
        return output_ids[totals.argmax()]

    def random_sample(
        self,
        inputs: Sequence,
        n: int,
        topk: int | None = None,
        topp: float | None = None,
        states: Unchecked = None,
        temperature: float = 1,
        min_ends: int = 1,
    ) -> list[np.ndarray]:
        """The ids of n texts, drawn by `numpy.random`; int `(written,)` each.

        Args:
            inputs, states, temperature, min_ends: as in `beam_search`.
            n: int. Number of texts.
            topk: int. Draws among as many of the most probable tokens.
            topp: float. Draws among the most probable that together have this
                probability, with the one that reaches it.
        """
        predict: Any = self.predict  # As `wraps` decorates it.
        rows = [np.array([row]) for row in inputs]
        output_ids = self.first_output_ids
        results: list[np.ndarray] = []
        for step in range(self.maxlen):
            drawn_from = predict(rows, output_ids, states, temperature, "probas")
            probabilities, states = _normalised(drawn_from[0]), drawn_from[1]
            if step == 0:
                probabilities = np.repeat(probabilities, n, axis=0)
                rows = [np.repeat(one, n, axis=0) for one in rows]
                output_ids = np.repeat(output_ids, n, axis=0)
            tokens = _drawn(probabilities, topk, topp)
            output_ids = np.concatenate([output_ids, tokens], axis=1)
            if output_ids.shape[1] < self.minlen:
                continue
            is_done = self._is_done(output_ids, min_ends)
            if is_done.any():
                results += list(output_ids[is_done])
                rows = [one[~is_done] for one in rows]
                output_ids = output_ids[~is_done]
                if not len(output_ids):
                    break
        return results + list(output_ids)

    def _is_done(self, output_ids: np.ndarray, min_ends: int) -> np.ndarray:
        is_end = output_ids == self.end_id
        return is_end[:, -1] & (is_end.sum(axis=1) >= min_ends)


def _normalised(probabilities: np.ndarray) -> np.ndarray:
    return probabilities / probabilities.sum(axis=1, keepdims=True)


def _drawn(
    probabilities: np.ndarray, topk: int | None, topp: float | None
) -> np.ndarray:
    """A token for each row, `(rows, 1)`."""
    kept: list[np.ndarray] = []

    def keep(columns: np.ndarray) -> np.ndarray:
        kept.append(columns)
        return np.take_along_axis(probabilities, columns, axis=1)

    if topk is not None:
        best = probabilities.argpartition(-topk, axis=1)[:, -topk:]
        probabilities = _normalised(keep(best))
    if topp is not None:
        probabilities = keep(probabilities.argsort(axis=1)[:, ::-1])
        reached = np.cumsum(probabilities, axis=1) >= topp
        # The token that reaches it stays.
        probabilities[:, 1:][reached[:, :-1]] = 0
        probabilities = _normalised(probabilities)
    drawn = [np.random.choice(len(row), p=row) for row in probabilities]
    tokens = np.array(drawn)[:, None]
    for columns in reversed(kept):
        tokens = np.take_along_axis(columns, tokens, axis=1)
    return tokens
