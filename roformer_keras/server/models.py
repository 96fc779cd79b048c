"""A model in memory, and the verbs that it answers."""

import dataclasses
import functools
import gc
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roformer_keras.base.errors import ConfigurationError, errors_at, refuse
from roformer_keras.base.types import Engine
from roformer_keras.verbs.loading import GENERATOR, load_source
from roformer_keras.verbs.registered import VERBS
from roformer_keras.verbs.rows import OnStep, Texts
from roformer_keras.verbs.verb import Verb

_SWITCH_INTERVAL = 0.0005
_TEXT = "今天天气不错"
# Texts that are written together. Others wait for a step of them. More are hardly
# faster; nor is a step of fewer, except in narrow models, where many texts for one
# are written by few at a time.
_WRITTEN_TOGETHER, _FEW_TOGETHER, _WIDE = 32, 8, 512


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
    # All present objects stay. Looking through them for garbage takes a third of a
    # second in TensorFlow's process, during which nobody is answered.
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
        # A path may be ".".
        is_path = os.path.exists(source)
        self.name = Path(os.path.abspath(source)).name if is_path else str(source)
        self.loaded = load_source(source, max_length=max_length)
        refuse(
            getattr(self.loaded.model, "has_choices", False),
            "a server answers rows of texts, and this task needs rows with "
            "choices: use roformer-keras predict",
        )
        self._length = max_length or int(getattr(self.loaded.model, "max_length", 512))
        self._options = {"source": source, "engine": engine, "max_length": max_length}
        self.verbs: dict[str, Verb] = {}
        self._add_verbs()

    def _add_verbs(self, **settings: Any) -> int:
        """Adds the verbs that need these settings of a server; returns how many."""
        options = {**self._options, **settings, "batch_size": _WRITTEN_TOGETHER}
        added: dict[str, Verb] = {}
        for kind in VERBS.values():
            is_needed = kind.route and {*kind.route.needs} == {*settings}
            if is_needed and kind.is_for(self.loaded):
                # Verbs that write have another `max_length`.
                hidden = set() if "max_length" in kind.loading else {"max_length"}
                names = options.keys() & {*kind.option_names()} - hidden
                added[kind.name] = kind.of({name: options[name] for name in names})
                added[kind.name].start(self.loaded)
        self.verbs |= added
        return len(added)

    def open_index(self, folder: str | os.PathLike) -> None:
        """Adds the verbs that search in an index of this model."""
        refuse(
            not self._add_verbs(index=os.fspath(folder)),
            f"an index is for a model with vectors, which {self.name} has not",
        )

    @functools.cached_property
    def dim(self) -> int:
        model = getattr(self.loaded.model, "backbone", self.loaded.model)
        return getattr(self.loaded.model, "vector_dim", model.config.hidden_dim)

    def verb(self, name: str, options: Mapping[str, Any]) -> Verb:
        """A verb with the options of a request."""
        verb = self.verbs[name]
        if not options:
            # To check all again takes longer than the rest of a small request.
            return verb
        verb = dataclasses.replace(verb, **options)
        if verb.cost.texts > getattr(verb, "batch_size", math.inf):
            together = _WRITTEN_TOGETHER if self.dim >= _WIDE else _FEW_TOGETHER
            verb = dataclasses.replace(verb, **dict(options, batch_size=together))
        verb.start(self.loaded)
        return verb

    def answer(
        self, verb: Verb, rows: Sequence[Texts], on_step: OnStep = None
    ) -> Sequence[object]:
        """An answer for each row: a value of the verb's only column, or all by name."""
        columns = verb.answer(self.loaded, rows, range(len(rows)), on_step)
        if len(verb.output.columns) == 1:
            return columns[next(iter(verb.output.columns))]
        values = zip(*columns.values(), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in values]

    def count_tokens(self, verb: Verb, rows: Sequence[Texts]) -> list[int]:
        """The tokens that a verb reads of each row.

        Raises ConfigurationError for a row that the model cannot answer, or that is too
        long for a verb that cuts no texts.
        """
        totals = []
        for number, row in enumerate(rows):
            with errors_at(f"{verb.route and verb.route.texts}.{number}"):
                verb.check(self.loaded, row)
            counts = verb.count_tokens(self.loaded, row)
            if not verb.cuts_texts and max(counts) > self._length:
                raise ConfigurationError(
                    f"a text must have at most {self._length} tokens, got {max(counts)}"
                )
            totals.append(sum(min(count, self._length) for count in counts))
        return totals

    # === Before the first request ===

    def warm_up(self) -> None:
        """Compiles what a first request would wait for."""
        text = _known_text(self.loaded.tokenizer)
        for name, verb in self.verbs.items():
            verb = self.verb(name, verb.sample_options)
            for rows in verb.samples(self.loaded, text):
                self.answer(verb, rows)

    def fix(self) -> None:
        """Assumes that the model changes no more, so that it is not compared."""
        if self.loaded.name != GENERATOR:
            from roformer_keras.inference.compiled_forward import fix_model

            fix_model(self.loaded.model)


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
