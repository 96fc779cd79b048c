"""The base class of verbs that write texts."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from roformer_keras.base.checks import integer
from roformer_keras.verbs.loading import LoadedSource
from roformer_keras.verbs.options import count
from roformer_keras.verbs.rows import Answers, Numbers, OnStep, Rows, Texts, only_texts
from roformer_keras.verbs.surfaces import Cost, Output, scored_lines
from roformer_keras.verbs.verb import Verb


def written_output(row: str) -> Output:
    """Texts with their scores, of rows that the help calls `row`."""
    return Output(
        {"outputs": [{"text": str, "score": float}]},
        f".jsonl, or .tsv with rows of {row}, in which tabs and line ends are escaped; "
        "- for JSON lines on standard output",
        style="terminal",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WritingVerb(Verb):
    """Options of the verbs that write texts.

    With a seed, the texts of a row depend on it and on the number of the row alone.
    Subclasses name a method of models in `method_name`, which takes their options.

    Args:
        seed: the same seed gives the same texts.
        batch_size: texts that are computed, and written, together.
    """

    seed: int | None = integer(None, minimum=0, maximum=2**64 - 1)
    batch_size: int = count(64)

    cuts_texts = False
    method_name: ClassVar[str]

    def arguments(self) -> dict[str, object]:
        """The arguments of the method."""
        return self.options()

    @property
    def texts_of_a_row(self) -> int:
        """Texts that are written together for one row."""
        raise NotImplementedError

    @property
    def cost(self) -> Cost:
        is_seeded = self.seed is not None
        tokens = getattr(self, "max_new_tokens", None) or 0
        # With a seed, the texts of a row depend on its number.
        return Cost(self.texts_of_a_row, tokens, "request" if is_seeded else "requests")

    @property
    def window(self) -> int:
        return max(1, self.batch_size // self.texts_of_a_row)

    def prompt(self, loaded: LoadedSource, text: str) -> str | list[int]:
        """A text as the model continues or answers it."""
        return text

    def _lengths(self) -> dict[str, Any]:
        from roformer_keras.generation.prompts import LENGTHS

        arguments = self.arguments()
        return {name: arguments[name] for name in LENGTHS if name in arguments}

    def start(self, loaded: LoadedSource) -> None:
        from roformer_keras.generation.prompts import check_lengths

        check_lengths(**self._lengths())

    def check(self, loaded: LoadedSource, row: Texts) -> None:
        from roformer_keras.generation.prompts import as_prompt

        super().check(loaded, row)
        as_prompt(loaded.model, self.prompt(loaded, str(row[0])), **self._lengths())

    def answer(
        self, loaded: LoadedSource, rows: Rows, numbers: Numbers, on_step: OnStep = None
    ) -> Answers:
        from roformer_keras.tasks.labels import rounded

        written = getattr(loaded.model, self.method_name)(
            only_texts(rows),
            **self.arguments(),
            first_number=list(map(int, numbers)),
            verbose=0,
            on_step=on_step,
        )
        return {
            "outputs": [
                [{"text": one.output, "score": rounded(one.score)} for one in texts]
                for texts in written
            ]
        }

    def show(self, row: Texts, answers: Mapping[str, object]) -> list[str]:
        return scored_lines(row, answers["outputs"])
