"""A model in memory, and the verbs that it answers."""

import dataclasses
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.base.types import Engine
from roformer_keras.generation.generate import stream_steps
from roformer_keras.generation.prompts import as_ids, stop_ids_of
from roformer_keras.verbs.embed import Embed, VectorVerb
from roformer_keras.verbs.fill_mask import FillMask
from roformer_keras.verbs.loading import GENERATOR, load_source
from roformer_keras.verbs.predict import Predict
from roformer_keras.verbs.registry import VERBS
from roformer_keras.verbs.search import Search
from roformer_keras.verbs.verb import Row, Verb
from roformer_keras.verbs.writing import Generate, Paraphrase, WritingVerb

_SWITCH_INTERVAL = 0.0005
_TEXT = "今天天气不错"
# Texts that are written together. Others wait for a step of them. More are hardly
# faster; nor is a step of fewer, except in narrow models, where many texts for one
# are written by few at a time.
_WRITTEN_TOGETHER, _FEW_TOGETHER, _WIDE = 32, 8, 512
# Other names of verbs in `/v1/models` and on the page.
_ABILITIES = {"generate": "write", "fill-mask": "fill_mask"}


@dataclasses.dataclass(frozen=True)
class Written:
    """A text that was written."""

    text: str
    tokens: int
    is_ended: bool


def load_to_serve(
    source: str | os.PathLike, engine: Engine = "auto", max_length: int | None = None
) -> "ServedModel":
    """A model with its programs compiled, for a process that serves and ends."""
    model = ServedModel(source, engine, max_length)
    model.warm_up()
    model.fix()
    # A thread that has computed waits for at most so many seconds for Python's lock,
    # which the thread of the requests has.
    sys.setswitchinterval(_SWITCH_INTERVAL)
    # What is there now stays. To look through it for garbage takes TensorFlow's process
    # a third of a second, in which nobody is answered.
    gc.collect()
    gc.freeze()
    return model


class ServedModel:
    """A model, and the verbs that it answers."""

    def __init__(
        self,
        source: str | os.PathLike,
        engine: Engine = "auto",
        max_length: int | None = None,
    ):
        # Not of the path as it is given, which may be ".".
        is_path = os.path.exists(source)
        self.name = Path(os.path.abspath(source)).name if is_path else str(source)
        self._loaded = load_source(source, max_length=max_length)
        self._model, self._tokenizer = self._loaded.model, self._loaded.tokenizer
        self._given_length = max_length
        self._length = max_length or int(getattr(self._model, "max_length", 512))
        self._options: dict[str, Any] = {"source": source, "engine": engine}
        self.verbs: dict[str, Verb] = {}
        for kind in VERBS.values():
            if kind.is_for(self._loaded):
                options = dict(self._options)
                if issubclass(kind, VectorVerb):
                    options["max_length"] = self._length
                if issubclass(kind, WritingVerb):
                    options["batch_size"] = _WRITTEN_TOGETHER
                self.verbs[kind.name] = verb = kind(**options)
                if verb.use(self._loaded).has_choices:
                    raise ConfigurationError(
                        "a server answers rows of texts, and this task needs rows with "
                        "choices: use roformer-keras predict"
                    )

    def open_index(self, folder: str | os.PathLike) -> None:
        """Adds the verb `search`, in an index of this model."""
        # Of others the encoder gives vectors, as in `embed`.
        if Embed.name not in self.verbs and not hasattr(self._model, "backbone"):
            raise ConfigurationError(
                f"an index is for a model with vectors, which {self.name} has not"
            )
        index = os.fspath(folder)
        verb = Search(**self._options, max_length=self._given_length, index=index)
        # It is read now, and kept.
        verb.use(self._loaded)
        self.verbs[Search.name] = verb

    @property
    def abilities(self) -> list[str]:
        """Names of the requests that it answers."""
        return [_ABILITIES.get(name, name) for name in self.verbs]

    @functools.cached_property
    def dim(self) -> int:
        model = getattr(self._model, "backbone", self._model)
        return getattr(self._model, "vector_dim", model.config.hidden_dim)

    def verb(self, name: str, **options: Any) -> Verb:
        """A verb with the options of a request."""
        verb = self.verbs[name]
        if not options:
            # To check all again takes longer than the rest of a small request.
            return verb
        verb = dataclasses.replace(verb, **options)
        if isinstance(verb, WritingVerb) and verb.texts_of_a_row > verb.batch_size:
            together = _WRITTEN_TOGETHER if self.dim >= _WIDE else _FEW_TOGETHER
            return dataclasses.replace(verb, batch_size=together)
        return verb

    def answer(self, verb: Verb, rows: Sequence[Row], **more: Any) -> list[dict]:
        """The answers of a verb to rows, by the names of its columns."""
        loaded = verb.use(self._loaded)
        columns = loaded.answer(list(rows), range(len(rows)), **more)
        values = zip(*columns.values(), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in values]

    def vectors(self, texts: Sequence[str], **options: Any) -> np.ndarray:
        """Vectors of texts, float32 `(texts, dim)`; `options` are of `Embed`."""
        loaded = self.verb("embed", **options).use(self._loaded)
        return np.asarray(loaded.answer([(text,) for text in texts], ())["vector"])

    def reader(self, verb: Verb) -> Callable[[Row], int]:
        """A function that checks a row for a verb, and counts the tokens to read.

        It raises ConfigurationError for a row that the model cannot answer, or that is
        too long for a verb that cuts no texts.
        """
        check = verb.use(self._loaded).check

        def read(row):
            check(row)
            return self.count_tokens(row, verb)

        return read

    def count_tokens(self, row: Row, verb: Verb) -> int:
        """The tokens that a verb reads of a row."""
        has_masks = isinstance(verb, FillMask)
        encode = functools.partial(self._tokenizer.encode, keep_mask=has_masks)
        counts = [len(encode(text)[0]) for text in row]
        if has_masks or isinstance(verb, WritingVerb):
            self._check_length(max(counts))
        return sum(min(count, self._length) for count in counts)

    def prompt_ids(self, text: str) -> list[int]:
        """The ids of a prompt."""
        ids = as_ids(self._model, text)
        self._check_length(len(ids))
        return ids

    def _check_length(self, count):
        if count > self._length:
            raise ConfigurationError(
                f"a text must have at most {self._length} tokens, got {count}"
            )

    # === Texts that are written, token by token ===

    def ends_text(self, token_id: int, options: Mapping[str, Any]) -> bool:
        """True if a token ends a text."""
        return token_id in stop_ids_of(self._model, options.get("stop_tokens"))

    def write(
        self, prompts: Sequence[Sequence[int]], on_step: Any = None, **options: Any
    ) -> list[list[Written]]:
        """The texts that continue the ids of prompts; `options` are of `Generate`."""
        verb = self.verb("generate", **options)
        assert isinstance(verb, Generate)
        stops = stop_ids_of(self._model, verb.stop_tokens)
        arguments = {**verb.arguments(), "return_scores": False}
        written = self._model.generate(prompts, **arguments, on_step=on_step, verbose=0)
        return [[self._written(ids, stops) for ids in texts] for texts in written]

    def _written(self, ids, stops):
        is_ended = ids[-1] in stops
        shown = ids[:-1] if is_ended else ids
        return Written(self._tokenizer.decode(shown), len(ids), is_ended)

    def stream(
        self, prompt: str, on_token: Any = None, **options: Any
    ) -> Iterator[str]:
        """Pieces of a text, one for each token; "" where a token shows nothing yet."""
        verb = self.verb("generate", **options)
        assert isinstance(verb, Generate)
        return stream_steps(
            self._model,
            prompt,
            **verb.stream_arguments(),
            shows_stop=False,
            on_token=on_token,
        )

    # === Before the first request ===

    def warm_up(self) -> None:
        """Compiles what a first request would wait for."""
        short = _known_text(self._tokenizer)
        # On TensorFlow on a CPU, XLA compiles single short texts from the third on.
        single = (short, short, short, short * 4)
        # Programs are for lengths up to a limit, and numbers of texts.
        if Generate.name in self.verbs:
            self.write([self.prompt_ids(short)], max_new_tokens=120)
        if Paraphrase.name in self.verbs:
            verb = self.verb(Paraphrase.name, n=20, k=10, max_new_tokens=64)
            self.answer(verb, [(short * 5,)])
        reads = [
            verb
            for verb in self.verbs.values()
            if isinstance(verb, Embed | FillMask)
            or (isinstance(verb, Predict) and Embed.name not in self.verbs)
        ]
        for verb in reads:
            if isinstance(verb, WritingVerb):
                continue
            mask = "[MASK]" if isinstance(verb, FillMask) else ""
            count = len(verb.use(self._loaded).fields)
            if isinstance(verb, Embed):
                self.answer(verb, [(short,), (short * 4,)])
            for text in single:
                self.answer(verb, [(f"{text}{mask}",) * count])

    def fix(self) -> None:
        """Takes the model not to change any more, so that it is not compared."""
        if self._loaded.name != GENERATOR:
            from roformer_keras.inference.compiled_forward import fix_model

            fix_model(self._model)


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
