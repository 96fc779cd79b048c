"""A verb: an operation on rows of texts, from which every surface is made.

The command, the function on a dataset of Ray, the HTTP route and the warm-up are loops
over `registered.VERBS`.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Self

from roformer_keras.base.checks import Settings, check_names, choice
from roformer_keras.base.types import ENGINES
from roformer_keras.verbs import loading
from roformer_keras.verbs.loading import LoadedSource, Path
from roformer_keras.verbs.rows import Answers, Numbers, OnStep, Rows, Texts, check_texts
from roformer_keras.verbs.surfaces import Inputs, Kind, Output, Served, Shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verb(Settings, Shown, Served):
    """Options of a verb.

    Args:
        engine: what computes; auto is openvino where it is installed and can, else
            keras; openvino-int8 has weights in 8 bits.

    Attributes:
        takes, otherwise: classes that answer, and the class as which others are loaded.
        loading: arguments of `load_source`, and the options that they are.
        piece_rows: rows that a worker of Ray answers together.
    """

    source: Path
    config: Path | None = None
    vocabulary: Path | None = None
    engine: str = choice("auto", choices=ENGINES)

    name: ClassVar[str]
    inputs: ClassVar[Inputs]
    output: ClassVar[Output]
    takes: ClassVar[tuple[str, ...]] = ()
    otherwise: ClassVar[str] = "RoFormerBackbone"
    loading: ClassVar[Mapping[str, str]] = {}
    piece_rows: ClassVar[int] = 2048

    @classmethod
    def of(cls, options: Mapping[str, object]) -> Self:
        """The verb of options by name; an unknown one is an error."""
        check_names(cls.name, "option", options, cls.option_names())
        return cls(**options)  # type: ignore[arg-type]

    @classmethod
    def option_names(cls) -> list[str]:
        return [field.name for field in dataclasses.fields(cls) if field.init]

    def options(self, *left_out: str) -> dict[str, object]:
        """The options by name, without those of the source and `left_out`."""
        hidden = {"source", "config", "vocabulary", *left_out}
        names = [name for name in self.option_names() if name not in hidden]
        return {name: getattr(self, name) for name in names}

    @property
    def window(self) -> int:
        """Rows that one process computes, and writes, together."""
        return 256

    @classmethod
    def is_for(cls, loaded: LoadedSource) -> bool:
        """True if a model that is loaded already can be asked."""
        return loaded.name in (*cls.takes, cls.otherwise)

    def load(self) -> LoadedSource:
        """Loads the model; once in each process."""
        options = {key: getattr(self, name) for key, name in self.loading.items()}
        options |= {"config": self.config, "vocabulary": self.vocabulary}
        loaded = loading.load_source(self.source, self.takes, self.otherwise, **options)
        self.start(loaded)
        return loaded

    def start(self, loaded: LoadedSource) -> None:
        """Raises ConfigurationError if the options do not fit the model."""

    def fields(self, loaded: LoadedSource) -> tuple[str, ...]:
        """The names of the texts of a row."""
        return self.inputs.fields

    def columns(self, loaded: LoadedSource) -> Mapping[str, Kind]:
        """The names and types of the answers."""
        return self.output.columns

    def check(self, loaded: LoadedSource, row: Texts) -> None:
        """Raises ConfigurationError for a row that the model cannot answer."""
        check_texts(row, len(self.fields(loaded)))

    def answer(
        self,
        loaded: LoadedSource,
        rows: Rows,
        numbers: Numbers,
        on_step: OnStep = None,
    ) -> Answers:
        """Answers rows; verbs that write call `on_step` between their steps."""
        raise NotImplementedError
