"""A source that answers requests, with one model in memory."""

import dataclasses
import functools
import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roformer_keras import tasks
from roformer_keras.data.vectors import pair_cosines
from roformer_keras.errors import ConfigurationError
from roformer_keras.generation.paraphrase import Paraphrasing
from roformer_keras.generation.served import ServedGenerator, is_served_generator
from roformer_keras.models import RoFormerMaskedLM
from roformer_keras.models.embedding import embed
from roformer_keras.models.fill_mask import fill_mask
from roformer_keras.registry import task_of
from roformer_keras.tasks.labels import rounded
from roformer_keras.tasks.load import model_class
from roformer_keras.tasks.sources import load_encoder, load_tokenizer, load_writer
from roformer_keras.training.results import load_finetuned
from roformer_keras.types import Engine

_TEXT = "今天天气不错"


@dataclasses.dataclass(frozen=True)
class Written:
    """A text that was written.

    Attributes:
        text: str. Without the stop token, as in OpenAI's API.
        tokens: int. New tokens, with the one that ends it.
        is_ended: bool. Whether it ended before the maximum of tokens.
    """

    text: str
    tokens: int
    is_ended: bool


def served_class(source: str | os.PathLike) -> str:
    """The name of the class that a source is served as; loads no weights.

    Raises:
        RoFormerError: the source cannot be read.
    """
    if is_served_generator(source):
        return ServedGenerator.__name__
    tuned = os.path.join(source, "preset")
    return model_class(tuned if os.path.isdir(tuned) else source)


def load_to_serve(
    source: str | os.PathLike, engine: Engine = "keras", max_length: int | None = None
) -> "ServedModel":
    """A model with its programs compiled, for a process that serves and ends.

    Args:
        source, engine, max_length: as `ServedModel` takes them.

    Raises:
        RoFormerError: the source cannot be loaded.
    """
    model = ServedModel(source, engine, max_length)
    model.warm_up()
    # What is there now stays. To look through it for garbage takes TensorFlow's process
    # a third of a second, in which nobody is answered.
    gc.collect()
    gc.freeze()
    return model


class ServedModel:
    """A model, and what it can answer: the others of these functions are None.

    Args:
        source: as `from_preset` takes it, or a folder of `finetune`.
        engine: what computes the steps of texts that are written.
        max_length: int or None. Tokens to which texts are cut, as in `embed`.

    Attributes:
        name: str. By which clients know the model.
        embed: function from texts to vectors, float32 `(texts, dim)`.
        dim: int. Width of these vectors.
        similarity: function from pairs of texts to cosines.
        paraphrase: function of texts and options, see `Paraphrasing.paraphrase`.
        write: function of the ids of prompts and options to a list of `Written` for
            each.
        stream: function of a prompt and options, see `TextGeneration.stream`, to pieces
            of text, one for each token; "" where a token shows nothing yet, and for
            the stop token.
        fill_mask: function of texts and `top_k` to candidates.
        predict: function from rows to answers as the command `predict` gives them.

    Raises:
        RoFormerError: the source cannot be loaded.
    """

    embed: Callable[[Sequence[str]], np.ndarray] | None = None
    dim: int | None = None
    similarity: Callable[[Sequence[tuple[str, str]]], list[float]] | None = None
    paraphrase: Callable[..., list[list]] | None = None
    write: Callable[..., list[list[Written]]] | None = None
    stream: Callable[..., Iterator[str]] | None = None
    fill_mask: Callable[..., list] | None = None
    predict: Callable[[Sequence[tuple]], list[dict]] | None = None

    def __init__(
        self,
        source: str | os.PathLike,
        engine: Engine = "keras",
        max_length: int | None = None,
    ):
        # Not of the path as it is given, which may be ".".
        is_path = os.path.exists(source)
        self.name = Path(os.path.abspath(source)).name if is_path else str(source)
        self._engine = engine
        self._length = 512 if max_length is None else max_length
        self._writer: Any = None
        self._tokenizer: Any = None
        self._task: Any = None
        name = served_class(source)
        if name == ServedGenerator.__name__:
            self._set_writer(ServedGenerator(source))
            return
        if task_of(name):
            lengths = {} if max_length is None else {"max_length": max_length}
            self._set_task(load_finetuned(source, **lengths))
        elif name in ("RoFormerCausalLM", "RoFormerSim", "RoFormerSeq2Seq"):
            self._set_writer(load_writer(source))
        else:
            self._set_encoder(source, name == "RoFormerMaskedLM")
        if engine != "keras" and self.write is None and self.paraphrase is None:
            raise ConfigurationError(
                f"the engine {engine!r} computes texts that are written, and {source} "
                f"is a {name}, which writes none: leave the engine out"
            )

    @property
    def abilities(self) -> list[str]:
        """Names of the functions that it has."""
        names = ("embed", "similarity", "paraphrase", "write", "fill_mask", "predict")
        return [name for name in names if getattr(self, name) is not None]

    def warm_up(self) -> None:
        """Compiles what a first request would wait for."""
        short = _known_text(self._tokenizer)
        # On TensorFlow on a CPU, XLA compiles single short texts from the third on.
        single = (short, short, short, short * 4)
        if self.embed is not None:
            self.embed([short, short * 4])
            for text in single:
                self.embed([text])
        # Programs are for lengths up to a limit, and numbers of texts.
        if self.write is not None:
            self.write([self._writer.as_ids(short)], max_new_tokens=120)
        if self.paraphrase is not None:
            self.paraphrase([short * 5], n=20, k=10, max_new_tokens=64)
        if self.fill_mask is not None:
            for text in single:
                self.fill_mask([f"{text}[MASK]"], top_k=1)
        if self.predict is not None and self.embed is None:
            for text in single:
                self.predict([(text,) * self._task.text_count])

    def ends_text(self, token_id: int, options: Mapping[str, Any]) -> bool:
        """True if a token ends a text."""
        return token_id in self._writer._stop_ids(options.get("stop_tokens"))

    def count_tokens(self, row: str | Sequence[str], has_masks: bool = False) -> int:
        """The tokens that are read of a text, or of a row of texts.

        Args:
            has_masks: bool. Whether each `[MASK]` is a token, and longer texts are
                refused, not cut.

        Raises:
            ConfigurationError: a text with masks is longer.
        """
        texts = [row] if isinstance(row, str) else row
        encode = functools.partial(self._tokenizer.encode, keep_mask=has_masks)
        counts = [len(encode(text)[0]) for text in texts]
        if has_masks:
            self._check_length(max(counts))
        return sum(min(count, self._length) for count in counts)

    def prompt_ids(self, text: str) -> list[int]:
        """The ids of a prompt.

        Raises:
            ConfigurationError: it cannot be continued, or is too long.
        """
        ids = self._writer.as_ids(text)
        self._check_length(len(ids))
        return ids

    def _check_length(self, count):
        if count > self._length:
            raise ConfigurationError(
                f"a text must have at most {self._length} tokens, got {count}"
            )

    def check_rows(self, rows: list[tuple[str, ...]]) -> None:
        """Raises ConfigurationError for rows that `predict` refuses together."""
        self._task.check_rows(rows)

    # === By the class of the model ===

    def _set_encoder(self, source, fills_masks):
        tokenizer = self._tokenizer = load_tokenizer(source)
        if fills_masks:
            model = RoFormerMaskedLM.from_preset(source, output_activation=None)
            self.fill_mask = lambda texts, top_k: fill_mask(
                model, tokenizer, texts, top_k
            )
        else:
            model = load_encoder(source)
            self._set_vectors(
                lambda texts: embed(model, tokenizer, texts, self._length, verbose=0),
                model.config.hidden_dim,
            )

    def _set_vectors(self, encode, dim):
        self.embed, self.dim = lambda texts: encode(list(texts)), dim
        self.similarity = lambda pairs: list(
            map(rounded, pair_cosines(encode, *map(list, zip(*pairs, strict=True))))
        )

    def _set_task(self, tuned):
        task = tuned.task
        self._task = tuned
        self._tokenizer, self._length = task.text_tokenizer(), task.max_length
        if task.has_choices:
            raise ConfigurationError(
                "a server answers rows of texts, and this task needs rows with "
                "choices: use roformer-keras predict"
            )
        if isinstance(task, tasks.RoFormerSentenceEncoder):
            self._set_vectors(
                lambda texts: task.encode(texts, verbose=0),
                task.backbone.config.hidden_dim,
            )
        self.predict = lambda rows: task.to_json(list(rows))

    def _set_writer(self, model):
        self._writer, self._tokenizer = model, model.text_tokenizer()
        if isinstance(model, Paraphrasing) and _has_vectors(model):
            self._set_vectors(
                lambda texts: model.encode(texts, max_length=self._length, verbose=0),
                model.config.hidden_dim,
            )

            def paraphrase(texts, **options):
                return model.paraphrase(
                    texts, engine=self._engine, verbose=0, **options
                )

            self.paraphrase = paraphrase
            return

        def stream(prompt, **options):
            return model._stream_steps(
                prompt, engine=self._engine, shows_stop=False, **options
            )

        self.write, self.stream = self._write, stream

    def _write(self, prompts, **options):
        model = self._writer
        n = options.pop("num_return_sequences", 1)
        stops = model._stop_ids(options.get("stop_tokens"))
        found = model.generate(
            prompts,
            num_return_sequences=n,
            engine=self._engine,
            verbose=0,
            **options,
        )
        return [[self._written(ids, stops) for ids in texts] for texts in found]

    def _written(self, ids, stops):
        is_ended = ids[-1] in stops
        shown = ids[:-1] if is_ended else ids
        return Written(self._tokenizer.decode(shown), len(ids), is_ended)


def _known_text(tokenizer):
    """A text of a few tokens, not all of them unknown."""
    if set(tokenizer.encode(_TEXT)[0][1:-1]) != {tokenizer.unk_id}:
        return _TEXT
    words = (
        token
        for token_id, token in enumerate(tokenizer.vocabulary)
        if tokenizer.encode(token)[0][1:-1] == [token_id]
    )
    return f"{next(words, _TEXT)} " * len(_TEXT)


def _has_vectors(model):
    try:
        model._check_vectors()
    except ConfigurationError:
        return False
    return True
