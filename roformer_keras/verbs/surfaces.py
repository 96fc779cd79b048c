"""The declarations of a verb: its rows, its answers and its HTTP route."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal

from roformer_keras.verbs.loading import LoadedSource
from roformer_keras.verbs.rows import Texts

# The type of a value: `[{"text": str}]` is a list of objects with a text.
Kind = type | list["Kind"] | dict[str, "Kind"]


class Float32(float):
    """A number of 32 bits, where Arrow has these."""


def show_kind(kind: Kind) -> str:
    """A type in words, such as `list of {text: str}`."""
    if isinstance(kind, list):
        return f"list of {show_kind(kind[0])}"
    if isinstance(kind, dict):
        fields = (f"{name}: {show_kind(of)}" for name, of in kind.items())
        return f"{{{', '.join(fields)}}}"
    return kind.__name__.lower()


def scored_lines(row: Iterable[object], scored: Any) -> list[str]:
    """The texts of a row, and lines of texts with scores, for a terminal."""
    lines = (f"{one['score']:>9.4f}  {one['text']}" for one in scored)
    return [*map(str, row), *lines]


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The rows of a verb, as commands and requests give them.

    Attributes:
        fields: names of the texts of a row; empty if only the model knows.
        file: help of the operand FILE; without it, texts are the operands.
        needs_file: bool. True if a row cannot be typed.
        operands: options that are operands too, before the file.
        flag, typed: name and help of the flag for a row that is typed, or with
            `is_shared` for the first text of all rows; "" for none.
        count: texts that the flag takes; 0 for any number.
        columns: help of the flag --fields; "" for files of lines alone.
        may_be_blank: bool. True if a blank line is a row.
    """

    fields: tuple[str, ...] = ("text",)
    file: str = ""
    needs_file: bool = False
    operands: tuple[str, ...] = ()
    flag: str = "text"
    typed: str = ""
    count: int = 1
    is_shared: bool = False
    columns: str = ""
    may_be_blank: bool = False


@dataclasses.dataclass(frozen=True)
class Output:
    """The answers of a verb, and the files that its command writes.

    Attributes:
        columns: names and types of the answers; empty if only the model knows.
        help: of the flag --output.
        endings: of the files.
        style: how standard output shows answers: `"json"`; `"terminal"` for lines of
            `Verb.show` where typed rows are answered on a terminal; `"plain"` for these
            always.
    """

    columns: Mapping[str, Kind]
    help: str
    endings: tuple[str, ...] = (".jsonl", ".tsv")
    style: str = "json"


@dataclasses.dataclass(frozen=True)
class Route:
    """The HTTP route of a verb.

    Attributes:
        path, others: its routes.
        texts, answers: fields of the request and of the answer.
        style: the API of others that it follows, a name of `server.openai.STYLES`.
        left_out, renamed: options that requests lack, or have by another name.
        changes: arguments of `pydantic.Field` by option.
        shown: names in responses of fields of answers, which are lists of objects.
        needs: options of the verb that a server must be given to have the route.
        ability: name in `/v1/models`; that of the verb if empty.
    """

    path: str
    texts: str = "texts"
    answers: str = "answers"
    style: str = ""
    others: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    changes: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    shown: Mapping[str, str] = dataclasses.field(default_factory=dict)
    needs: tuple[str, ...] = ()
    ability: str = ""


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a row, and the rows that a server computes with it.

    Attributes:
        texts: int. Texts that are computed for a row.
        tokens: int. Tokens that are written for each of these texts.
        together: `"requests"` if rows of several requests are computed together;
            `"request"` if all rows of a request are, because their places count;
            `"row"` if each row is computed alone.
    """

    texts: int = 1
    tokens: int = 0
    together: Literal["requests", "request", "row"] = "requests"


class Shown:
    """The attributes and methods of a verb that only its command uses."""

    examples: ClassVar[tuple[str, ...]] = ()

    def remark(self, loaded: LoadedSource) -> str:
        """A sentence on a guess about the model; "" if there is none."""
        return ""

    @property
    def writes_pieces(self) -> bool:
        """True if the text of a row can be shown while it is written, by `stream`."""
        return False

    def stream(self, loaded: LoadedSource, row: Texts) -> Iterator[str]:
        """The pieces of the one text of a row."""
        raise NotImplementedError

    def show(self, row: Texts, answers: Mapping[str, object]) -> list[str]:
        """The lines of a row on a terminal."""
        raise NotImplementedError


class Served:
    """The attributes and methods of a verb that only a server uses.

    Attributes:
        route: where clients ask; None if they cannot.
        cuts_texts: bool. True if texts of too many tokens are cut, not refused.
        sample_options: options with which the samples are answered.
    """

    route: ClassVar[Route | None] = None
    cuts_texts: ClassVar[bool] = True
    sample_options: ClassVar[Mapping[str, object]] = {}

    @property
    def cost(self) -> Cost:
        """The cost of each row."""
        return Cost()

    def count_tokens(self, loaded: LoadedSource, row: Texts) -> list[int]:
        """The tokens of each text of a row."""
        return [len(loaded.tokenizer.encode(text)[0]) for text in row]

    def samples(self, loaded: LoadedSource, text: str) -> list[list[Texts]]:
        """Batches of rows whose answers compile what the first requests need."""
        return []


def single_samples(text: str, count: int = 1) -> list[list[Texts]]:
    """Batches of one row of `count` texts each, for verbs that read.

    On TensorFlow on a CPU, XLA compiles single short texts from the third on.
    """
    return [[(sample,) * count] for sample in (text, text, text, text * 4)]
