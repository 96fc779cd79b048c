"""The commands of the verbs, from the flags to a job in this process or on Ray."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.cli import interrupts, layouts
from roformer_keras.cli.jobs import open_job
from roformer_keras.cli.terminal import (
    log_to_stderr,
    remark,
    remark_source,
    shows_progress,
    start_backend,
)
from roformer_keras.cli.texts import (
    answer_lines,
    check_ending,
    check_inputs,
    output_style,
)
from roformer_keras.hub.catalog import checkpoint_files, resolve
from roformer_keras.io.atomic import check_target
from roformer_keras.io.journal import digest, fingerprints, run_metadata

if TYPE_CHECKING:
    from roformer_keras.verbs.verb import Verb

# The tables of flags of these commands, see `cli.main`.
SETTINGS = {"ray": "roformer_keras.distributed.files.RayOptions"}


class VerbCommand:
    """A verb with the flags of its command."""

    def __init__(
        self, verb: str, flags: Mapping[str, Any], layout: str = layouts.TABLE
    ):
        kind: type[Verb] = resolve_name(verb)
        self.loaded: Any = None
        job = vars(_select(resolve_name(layouts.JOB), flags))
        self._on_ray = job["engine"] == "ray"
        self._output = flags["output"]
        self.overwrite, self.quiet = job["overwrite"], job["quiet"]
        self._ray = {
            name.removeprefix("ray."): value
            for name, value in flags.items()
            if name.startswith("ray.")
        }
        if not self._on_ray:
            others = ["worker_engine"] if job["worker_engine"] != "auto" else []
            for name in (*self._ray, *others):
                raise ConfigurationError(
                    f"--{name.replace('_', '-')} needs --engine ray, which starts "
                    "several processes"
                )
        engine = job["worker_engine" if self._on_ray else "engine"]
        self.verb = _select(kind, {**flags, "engine": engine})
        self.layout = vars(_select(resolve_name(layout), flags))
        if not self.quiet and "source" not in flags:
            remark_source(self.verb.source)

    def check_output(self, *endings: str) -> None:
        """Raises an error unless the output has one of the endings and can be made."""
        check_ending(self._output, *endings)
        if self._output != "-":
            check_target(Path(self._output), self.overwrite, folder=False)

    # === In this process ===

    def load(self, inputs: Sequence[tuple]) -> Any:
        """The loaded verb, which can answer all inputs."""
        loaded = self.verb.load()
        if loaded.remark and not self.quiet:
            remark(loaded.remark)
        check_inputs(inputs, loaded.check)
        return loaded

    def run(
        self,
        inputs: Sequence[tuple],
        *,
        style: str | None = None,
        lines: Callable | None = None,
        loaded: Any = None,
        convert: Callable | None = None,
        folder: bool | str = False,
        endings: Sequence[str] = (".jsonl", ".tsv"),
    ) -> None:
        """Answers inputs in this process, and prints the name of the output at the end.

        Args:
            inputs: pairs of where a row comes from, and the texts of the row.
            style: as in `answer_lines`.
            lines: function from rows, answers and `Job` to lines, in place of
                `answer_lines`; or to bytes, for a file of another kind.
            loaded: the loaded verb, if it is known to answer the inputs.
            convert, folder: as in `open_job`; `loaded` is an attribute then.
            endings: extensions that the output may have.
        """
        from roformer_keras.base.progress import progress_bar

        check_ending(self._output, *endings)
        style = style or output_style(self._output)
        rows, count, window = [row for _, row in inputs], len(inputs), self.verb.window
        metadata = self._metadata(rows)
        seed = getattr(self.verb, "seed", None)
        with open_job(
            self._output, metadata, seed, self.overwrite, convert, folder
        ) as job:
            self._remark_resumed(job.done, count)
            with _kept(lambda: job.partial and job.done, count, job.partial):
                start_backend()
                if "seed" in self.verb.option_names():
                    self.verb = dataclasses.replace(self.verb, seed=job.seed)
                loaded = self.loaded = loaded or self.load(inputs)
                show = shows_progress(self.quiet)
                bar = progress_bar(show, total=count, initial=job.done)
                with bar, log_to_stderr(self.quiet):
                    while job.done < count:
                        interrupts.check()
                        part = slice(job.done, job.done + window)
                        batch = rows[part]
                        numbers = range(job.done, job.done + len(batch))
                        answers = loaded.answer(batch, numbers)
                        if lines is not None:
                            written = lines(batch, answers, job)
                        else:
                            names = self.verb.fields
                            written = answer_lines(batch, answers, style, names)
                        job.write(written, len(batch))
                        bar.update(len(batch))
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

    def runs_on_ray(self, file: str | None, texts: Any = None) -> bool:
        """Runs the job with `--engine ray`; False without."""
        if not self._on_ray:
            return False
        from roformer_keras.distributed.files import RayOptions, answer_files

        if file is None or file == "-" or texts is not None or self._output == "-":
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
            overwrite=self.overwrite,
            show_progress=shows_progress(self.quiet),
        )
        if bad and not self.quiet:
            remark(f"{bad} rows have no answer; the column error says why")
        print(self._output)
        return True

    def _remark_resumed(self, done, count):
        if done and not self.quiet:
            remark(f"resuming after {done} of {count}")


@contextmanager
def _kept(done: Callable[[], Any], count: int, place: Any) -> Iterator[None]:
    """Says what is kept, and where, if the block ends by an exception."""
    try:
        yield
    except BaseException:
        if number := done():
            remark(
                f"{number} of {count} are kept in {place}; run the same command again "
                "to resume"
            )
        raise


def _select(kind, flags):
    """A dataclass made of the flags that are its fields."""
    names = {field.name for field in dataclasses.fields(kind) if field.init}
    return kind(**{name: flags[name] for name in names & flags.keys()})
