"""The base of all verbs: options, and how a loaded model answers rows of texts."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

from roformer_keras.base.checks import Settings, check_names, choice, integer
from roformer_keras.base.types import ENGINES
from roformer_keras.verbs import loading as sources
from roformer_keras.verbs.loading import LoadedSource

Row = tuple[Any, ...]
Answers = Mapping[str, Sequence]
# Arrays are made with it.
MAX_COUNT = 2**31 - 1
DTYPES = (None, "float32", "bfloat16")


def count(default: int | None) -> Any:
    """A field of an integer of at least 1."""
    return integer(default, minimum=1, maximum=MAX_COUNT)


def dtype() -> Any:
    """A field of the dtype in which a model computes."""
    return choice(None, choices=DTYPES)


class LoadedVerb(NamedTuple):
    """A model, and how it answers rows of texts.

    Attributes:
        check: raises ConfigurationError for a row that the model cannot answer.
        answer: function from rows, and the number of each in the whole job, to columns:
            values by name, one for each row. Those that write take arguments of the
            method too, such as `on_step`.
        fields: names of the texts of a row.
        has_choices: bool. True if the last text of a row is a list of choices.
        remark: str. What a user should know of the model.
        stream: function from a row to the pieces of a text that is written for it.
    """

    check: Callable[[Row], Any]
    answer: Callable[..., Answers]
    fields: tuple[str, ...]
    has_choices: bool = False
    remark: str = ""
    stream: Callable[[Row], Iterator[str]] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verb(Settings):
    """Options of a verb.

    A subclass names the classes that it takes, and says how a loaded model is used.

    Args:
        engine: what computes; auto is openvino where it is installed and can, else
            keras; openvino-int8 has weights in 8 bits.

    Attributes:
        source: of the model.
        config, vocabulary: files that the source lacks, or None.
        name: str. Name of the command and of the function.
        fields: names of the texts of a row; empty if only the model knows.
        column: name of the answers; empty if only the model knows.
        takes: classes that answer as they are.
        otherwise: class as which other sources are loaded.
        loading: arguments of `load_source`, and the options that they are.
        piece_rows: rows that a worker of Ray answers, and writes, together.
    """

    source: str | os.PathLike
    config: str | os.PathLike | None = None
    vocabulary: str | os.PathLike | None = None
    engine: str = choice("auto", choices=ENGINES)

    name: ClassVar[str]
    fields: ClassVar[tuple[str, ...]] = ("text",)
    column: ClassVar[str] = ""
    takes: ClassVar[tuple[str, ...]] = ()
    otherwise: ClassVar[str] = "RoFormerBackbone"
    loading: ClassVar[Mapping[str, str]] = {}
    piece_rows: ClassVar[int] = 2048

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The verb of options by name.

        Raises:
            ConfigurationError: an option is unknown, or breaks its rule.
        """
        check_names(cls.name, "option", options, cls.option_names())
        return cls(**options)

    @classmethod
    def option_names(cls) -> list[str]:
        return [field.name for field in dataclasses.fields(cls) if field.init]

    @property
    def window(self) -> int:
        """Rows that one process computes, and writes, together."""
        return 256

    def options(self, *left_out: str) -> dict[str, Any]:
        """The options by name, without those of the source.

        Args:
            left_out: names of others that are left out.
        """
        hidden = {"source", "config", "vocabulary", *left_out}
        return {
            name: getattr(self, name)
            for name in self.option_names()
            if name not in hidden
        }

    def load(self) -> LoadedVerb:
        """Loads the model; once in each process."""
        return self.use(self.load_source())

    def load_source(self) -> LoadedSource:
        return sources.load_source(
            self.source,
            self.takes,
            self.otherwise,
            config=self.config,
            vocabulary=self.vocabulary,
            **{key: getattr(self, name) for key, name in self.loading.items()},
        )

    @classmethod
    def is_for(cls, loaded: LoadedSource) -> bool:
        """True if a model that is loaded already can be asked."""
        raise NotImplementedError

    def use(self, loaded: LoadedSource) -> LoadedVerb:
        """Answers by a model that is loaded already."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadingVerb(Verb):
    """Options of the verbs that read texts and write none.

    Args:
        batch_tokens: maximum of tokens of a batch, padding included.
    """

    batch_tokens: int | None = integer(None, minimum=1)

    @property
    def computing(self) -> dict[str, Any]:
        """Arguments of the methods of models that say how they compute."""
        if self.batch_tokens is None:
            return {"engine": self.engine}
        return {"engine": self.engine, "batch_tokens": self.batch_tokens}
