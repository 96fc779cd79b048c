"""A job: rows in, answers out a window at a time, in this process.

The same job resumes after a kill, see `jobs.output`. On many machines, Ray Data runs a
verb instead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from roformer_keras.jobs.output import Convert, ResumableOutput
from roformer_keras.verbs.rows import Answers, Texts


class Sink(Protocol):
    """The format of an output; `convert` makes it of the pieces, if they are not it."""

    @property
    def convert(self) -> Convert | None: ...

    def write(self, rows: Sequence[Texts], answers: Answers, is_first: bool) -> bytes:
        """The next piece of the output."""


@dataclass(frozen=True)
class Job:
    """Rows to answer, and where the answers go."""

    rows: Sequence[Texts]
    answer: Callable[[Sequence[Texts], Sequence[int]], Answers]
    sink: Sink
    window: int

    def run(self, output: ResumableOutput, progress: Callable[[int], object]) -> None:
        """Answers the rows that the output lacks."""
        while (done := output.done) < len(self.rows):
            rows = self.rows[done : done + self.window]
            answers = self.answer(rows, range(done, done + len(rows)))
            output.append(self.sink.write(rows, answers, done == 0), len(rows))
            progress(len(rows))
