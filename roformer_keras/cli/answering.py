"""One run of the command of a verb: flags in, an output or a job on Ray out."""

import dataclasses
import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from roformer_keras.base.errors import ConfigurationError, SourceError
from roformer_keras.base.progress import progress_bar
from roformer_keras.cli import interrupts, layouts
from roformer_keras.cli.paths import read_for_training
from roformer_keras.cli.terminal import (
    log_to_stderr,
    print_stream,
    remark,
    remark_source,
    shows_progress,
    start_backend,
)
from roformer_keras.cli.texts import check_ending, check_inputs, read_lines, read_rows
from roformer_keras.hub.catalog import checkpoint_files, resolve
from roformer_keras.io.atomic import check_target
from roformer_keras.io.journal import digest, fingerprints, run_metadata
from roformer_keras.jobs.job import Job, Sink
from roformer_keras.jobs.output import open_output
from roformer_keras.jobs.sinks import sink_of
from roformer_keras.tables.opening import is_uri
from roformer_keras.verbs.loading import LoadedSource
from roformer_keras.verbs.rows import Texts, check_texts
from roformer_keras.verbs.verb import Verb

_Flags = TypeVar("_Flags")
# A row, and where it stands.
_Input = tuple[str, Texts]


class Answering:
    """One run of the command of a verb.

    Args:
        kind: class of the verb.
        values: of operands and flags that were given.
    """

    def __init__(self, kind: type[Verb], values: Mapping[str, Any]):
        spec, values = kind.inputs, dict(values)
        self._output: str = values.get("output", "-")
        self._file: str | None = values.get("file")
        self._typed: Any = values.get(spec.flag if spec.file else "texts")
        self._as_json = values.get("as_json", False)
        job = _select(layouts.JobFlags, values)
        self._overwrite, self.quiet = job.overwrite, job.quiet
        self._on_ray = job.engine == "ray"
        self._ray = {
            name.removeprefix("ray."): value
            for name, value in values.items()
            if name.startswith("ray.")
        }
        if not self._on_ray:
            others = ["worker_engine"] if job.worker_engine != "auto" else []
            for name in (*self._ray, *others):
                raise ConfigurationError(
                    f"--{name.replace('_', '-')} needs --engine ray, which starts "
                    "several processes"
                )
        engine = job.worker_engine if self._on_ray else job.engine
        self.verb = _select(kind, {**values, "engine": engine})
        self.layout = vars(_select(layouts.layout_of(spec), values))
        if not (self.quiet or "source" in values or spec.operands):
            remark_source(self.verb.source)

    def run(self) -> None:
        """Answers what the flags say."""
        if self._on_ray:
            self._run_on_ray()
            return
        self._check_files()
        loaded, spec = None, self.verb.inputs
        if spec.fields:
            inputs = self.inputs()
        else:
            # The model says how many texts a row has.
            rows = None
            if self._file is not None:
                source = str(self.verb.source)
                rows = read_for_training(source, self._file, **self.layout)
            loaded = self.load()
            inputs = self._inputs_of_task(loaded, rows)
        style = self._style()
        if style == "terminal" and len(inputs) == 1 and self.verb.writes_pieces:
            pieces = self.verb.stream(loaded or self.load(inputs), inputs[0][1])
            print_stream(pieces, self.quiet)
            return
        sink = sink_of(style, self.verb, spec.fields, len(inputs))
        self.answer(inputs, sink, loaded=loaded)

    def _check_files(self) -> None:
        """Raises an error for files that are missing, too many or of another kind."""
        spec, file, output = self.verb.inputs, self._file, self._output
        has_one = (file is None) != (self._typed is None)
        if spec.file and not (spec.is_shared or has_one):
            other = f", or --{spec.flag} {' '.join(['TEXT'] * (spec.count or 1))}"
            raise ConfigurationError(f"give a file, or - for standard input{other}")
        check_ending(output, *self.verb.output.endings)
        if output != "-":
            check_target(Path(output), self._overwrite, folder=False)
        if file and file != "-" and not (is_uri(file) or os.path.exists(file)):
            hint = f"to give a text itself, use --{spec.flag}" if spec.flag else None
            reason = os.strerror(errno.ENOENT)
            raise SourceError(f"cannot read {file}: {reason}", hint=hint)

    def _style(self) -> str:
        """The ending of the output, or `"terminal"`."""
        if self._output != "-":
            return Path(self._output).suffix
        is_typed = self._typed is not None and sys.stdout.isatty()
        styles = {"plain": True, "terminal": is_typed, "json": False}
        is_shown = styles[self.verb.output.style] and not self._as_json
        return "terminal" if is_shown else ".jsonl"

    # === Rows ===

    def inputs(self, may_be_blank: bool | None = None) -> list[_Input]:
        """The rows of the file, or those that were typed, each with its place."""
        spec, typed = self.verb.inputs, self._typed
        may_be_blank = spec.may_be_blank if may_be_blank is None else may_be_blank
        if not spec.file:
            texts: list[str] = []
            for text in typed or ():
                encoding = self.layout["encoding"]
                texts += read_lines("-", encoding) if text == "-" else [text]
            return [(f"text {at}", (text,)) for at, text in enumerate(texts, start=1)]
        if self._file is None:
            rows = [(row,) if isinstance(row, str) else tuple(row) for row in typed]
            named = [(f"{spec.flag} {at}", row) for at, row in enumerate(rows, start=1)]
            # Before the model is loaded.
            check_inputs(named, lambda row: check_texts(row, spec.count))
            return named
        shared = () if not spec.is_shared or typed is None else (typed,)
        count = len(spec.fields) - len(shared)
        rows = read_rows(self._file, count, self.layout, may_be_blank)
        return [(place, (*shared, *row)) for place, row in rows]

    def _inputs_of_task(
        self, loaded: LoadedSource, inputs: list[_Input] | None
    ) -> list[_Input]:
        tuned = loaded.tuned
        if self._file is not None:
            inputs = inputs or tuned.read_rows(self._file, **self.layout)
        else:
            rows = enumerate(map(tuned.read_row, self._typed), start=1)
            inputs = [(f"{self.verb.inputs.flag} {at}", row) for at, row in rows]
        check_inputs(inputs, lambda row: self.verb.check(loaded, row))
        # All have as many texts.
        tuned.check_rows([row for _, row in inputs])
        return inputs

    # === In this process ===

    def load(self, inputs: Sequence[_Input] = ()) -> LoadedSource:
        """The model, which can answer the inputs."""
        start_backend()
        loaded = self.verb.load()
        if (text := self.verb.remark(loaded)) and not self.quiet:
            remark(text)
        if self.verb.inputs.may_be_blank:
            inputs = [
                one for one in inputs if any(str(text).strip() for text in one[1])
            ]
        check_inputs(inputs, lambda row: self.verb.check(loaded, row))
        return loaded

    def answer(
        self,
        inputs: Sequence[_Input],
        sink: Sink,
        *,
        loaded: LoadedSource | None = None,
        folder: bool | str = False,
    ) -> None:
        """Answers inputs, and prints the name of the output at the end.

        Args:
            loaded: the model, if it is known to answer the inputs.
            folder: as in `open_output`.
        """
        rows, count = [row for _, row in inputs], len(inputs)
        metadata, seed = self._metadata(rows), getattr(self.verb, "seed", None)
        with open_output(
            self._output, metadata, seed, self._overwrite, sink.convert, folder
        ) as output:
            if output.done and not self.quiet:
                remark(f"resuming after {output.done} of {count}")
            with _kept(output, count):
                if "seed" in self.verb.option_names():
                    self.verb = dataclasses.replace(self.verb, seed=output.seed)  # type: ignore[call-arg]
                loaded = self.loaded = loaded or self.load(inputs)

                def answers(rows, numbers):
                    interrupts.check()
                    return self.verb.answer(loaded, rows, numbers)

                show = shows_progress(self.quiet)
                bar = progress_bar(show, total=count, initial=output.done)
                with bar, log_to_stderr(self.quiet):
                    Job(rows, answers, sink, self.verb.window).run(output, bar.update)
                interrupts.check()
        if self._output != "-":
            print(self._output)

    def _metadata(self, rows):
        """Settings that distinguish this job from others on the same inputs."""
        verb = self.verb
        files = {"config": verb.config, "vocabulary": verb.vocabulary}
        # Lines of another size of batch are of the same job.
        options = verb.options("seed", "batch_size", "batch_tokens")
        settings = {
            "command": verb.name,
            **options,
            "source": os.path.abspath(resolve(verb.source)),
            **files,
            "seed": getattr(verb, "seed", None),
        }
        stamps = {
            name: fingerprints([file] if file else []) for name, file in files.items()
        }
        stamps["source"] = fingerprints(checkpoint_files(verb.source))
        return run_metadata(settings, {**stamps, "texts": digest(rows)})

    # === On Ray ===

    def _run_on_ray(self) -> None:
        from roformer_keras.distributed.files import RayOptions, answer_files

        spec, file, typed = self.verb.inputs, self._file, self._typed
        if not spec.file and len(typed) == 1:
            file, typed = typed[0], None
        if file is None or file == "-" or typed is not None or self._output == "-":
            raise ConfigurationError(
                "--engine ray reads files and writes a folder: give both, as in "
                "FILES --output FOLDER"
            )
        bad = answer_files(
            self.verb,
            file,
            self._output,
            RayOptions(**self._ray),
            self.layout,
            overwrite=self._overwrite,
            show_progress=shows_progress(self.quiet),
        )
        if bad and not self.quiet:
            remark(f"{bad} rows have no answer; the column error says why")
        print(self._output)


@contextmanager
def _kept(output, count: int) -> Iterator[None]:
    """Names the partial output, and how much it holds, after an exception."""
    try:
        yield
    except BaseException:
        if output.partial and output.done:
            remark(
                f"{output.done} of {count} are kept in {output.partial}; run the same "
                "command again to resume"
            )
        raise


def _select(kind: type[_Flags], flags: Mapping[str, Any]) -> _Flags:
    """A dataclass made of the flags that are its fields."""
    names = {field.name for field in dataclasses.fields(kind) if field.init}  # type: ignore[arg-type]
    return kind(**{name: flags[name] for name in names & flags.keys()})
