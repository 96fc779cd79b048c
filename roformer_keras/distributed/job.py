"""A job over files: pieces are computed by workers of Ray, and what is done stays.

OUTPUT/part-00017.jsonl         the rows of piece 17 with their answers
OUTPUT/_bad-rows-00017.jsonl    its rows without an answer, and why; if there are any
OUTPUT/_job.json                the settings, the pieces, and whether all are done

A part appears whole or not at all, and depends on nothing but its piece and the
settings. A job that ended early is resumed with the pieces that have no part.
"""

import dataclasses
import json
import logging
import os
import pickle
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from roformer_keras.distributed.cluster import ray_of, worker_resources
from roformer_keras.distributed.inputs import (
    Piece,
    find_inputs,
    index_inputs,
    open_place,
    reads_from,
)
from roformer_keras.distributed.options import RayOptions
from roformer_keras.distributed.parts import PARTIAL, Folder, PieceTask, PieceWorker
from roformer_keras.errors import Hint, OutputError
from roformer_keras.extras import import_extra
from roformer_keras.hub.catalog import checkpoint_files, resolve
from roformer_keras.io.atomic import check_name, one_line, output_errors
from roformer_keras.io.journal import (
    fingerprints,
    is_new_run,
    locked,
    parse_record,
    run_metadata,
)
from roformer_keras.verbs.verb import Verb
from roformer_keras.verbs.writing import WritingVerb

RECORD = "_job.json"
# How often a piece is tried again whose worker died: one that kills each worker, by its
# memory for instance, would be tried for ever.
_RETRIES = 4
# What a worker is given of an input of few rows.
_PIECES_OF_WORKER = 2
_OURS = ("part-", "_bad-rows-", RECORD)


class FolderJob:
    """A job that writes parts to a folder; use it in a `with` block.

    Args:
        verb: what is computed; its source may be any that `resolve` knows.
        place: path, folder, pattern or URI of the files, see `find_inputs`.
        output: path or URI of the folder.
        options: `RayOptions`.
        format: of the files, if their extensions do not say it.
        overwrite: bool. Whether a finished output, or that of another job, is deleted.

    Attributes:
        pieces: list of `Piece`.
        rows: int. How many rows the files have.
        done: set of the numbers of pieces that have a part.

    Raises:
        SourceError, ConfigurationError: the files or the source cannot be used.
        OutputError: the folder holds another job, a finished one, or other files, or
            another process writes to it.
    """

    def __init__(
        self,
        verb: Verb,
        place: str | os.PathLike,
        output: str | os.PathLike,
        options: RayOptions,
        *,
        format: str | None = None,
        overwrite: bool = False,
    ):
        import_extra("ray.data", "--engine ray")
        place, output = os.fspath(place), os.fspath(output)
        self._options, self._output = options, output
        self._folder = Folder(*open_place(output))
        fs = import_extra("pyarrow.fs", "--engine ray")
        self._is_local = isinstance(self._folder.filesystem, fs.LocalFileSystem)
        if self._is_local:
            check_name(output)
            folder = Path(self._folder.path)
            if not folder.parent.is_dir():
                raise OutputError(f"{folder.parent} is not a folder: make it first")
            if folder.exists() and not folder.is_dir():
                raise OutputError(f"{output} is a file: give the name of a folder")
        if reads_from(place, self._folder.filesystem, self._folder.path):
            raise OutputError(
                f"{output} must not lie in the input {place}, of which its parts would "
                "become a part"
            )
        # Workers may have another working folder.
        resolved = resolve(verb.source)
        sources = {"source": resolved, "config": verb.config}
        sources["vocabulary"] = verb.vocabulary
        paths = {name: os.path.abspath(one) for name, one in sources.items() if one}
        self._verb = dataclasses.replace(verb, **paths)
        self._inputs = find_inputs(
            place, format, options.header, options.encoding, options.fields
        )
        if any(
            one[0].startswith(f"{self._folder.path}/") for one in self._inputs.files
        ):
            raise OutputError(f"{output} must not hold the input {place}")
        self._place, self._overwrite = place, overwrite
        default = "parquet" if self._inputs.kind == "parquet" else "jsonl"
        self._format = options.output_format or default
        self._piece_rows = options.piece_rows or verb.piece_rows
        self._files = {
            "source": checkpoint_files(resolved),
            "config": [verb.config] if verb.config else [],
            "vocabulary": [verb.vocabulary] if verb.vocabulary else [],
        }
        self.pieces: list[Piece] = []
        self.done: set[int] = set()

    def __enter__(self) -> "FolderJob":
        folder = Path(self._folder.path)
        with ExitStack() as stack:
            with output_errors(self._output, "nothing was written"):
                if self._is_local:
                    # A folder that stays empty goes again; the lock is in it.
                    stack.callback(_remove_empty, folder)
                    folder.mkdir(exist_ok=True)
                    stack.enter_context(locked(folder))
                self._open()
            self._entered = stack.pop_all()
        return self

    def __exit__(self, *exception):
        self._entered.__exit__(*exception)

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)

    @property
    def rows_done(self) -> int:
        return sum(self.pieces[number].rows for number in self.done)

    def _open(self):
        metadata = self._metadata()
        names = [name for name in self._folder.names() if not name.startswith(".")]
        ours = [name for name in names if name.startswith(_OURS)]
        if len(ours) < len(names):
            other = next(name for name in names if name not in ours)
            raise OutputError(
                f"{self._output} must hold nothing but a job, and holds {other}: "
                "choose another output"
            )
        content = self._folder.read(RECORD) if RECORD in ours else None
        record = content and parse_record(content)
        is_whole = bool(record) and {"seed", "state", "pieces"} <= record.keys()
        has_parts = any(name != RECORD for name in ours)
        if has_parts and not is_whole:
            # Other programs call their files so too.
            raise OutputError(
                f"{self._output} holds files such as {ours[-1]}, and no {RECORD} that "
                "says that a job wrote them: choose another output"
            )
        if is_whole and record["state"] == "done" and not self._overwrite:
            raise OutputError(
                f"{self._output} exists",
                hint=Hint(
                    "choose another name, or pass {overwrite:True} to replace it"
                ),
            )
        is_new = is_new_run(
            *(record if is_whole else None, metadata, self._output),
            has_data=has_parts,
            overwrite=self._overwrite,
        )
        if is_new or record["state"] == "done":
            self._start(metadata, ours)
        else:
            self._inputs = dataclasses.replace(
                self._inputs,
                columns=tuple(record["columns"]),
                separators=tuple(record["separators"]),
            )
            self.pieces = [Piece(*fields) for fields in record["pieces"]]
            self._record = record
        if isinstance(self._verb, WritingVerb):
            self._verb = dataclasses.replace(self._verb, seed=self._record["seed"])
        self._task = PieceTask(
            verb=self._verb,
            fields=self._options.fields,
            inputs=self._inputs,
            first_piece=self.pieces[0],
            folder=self._folder,
            format=self._format,
            count=len(self.pieces),
            on_bad_row=self._options.on_bad_row,
        )
        present = set(self._folder.names())
        numbers = range(len(self.pieces))
        self.done = {one for one in numbers if self._task.part(one) in present}

    def _metadata(self):
        """Settings and files that identify this job."""
        options = self._options
        settings = {
            "command": self._verb.name,
            **dataclasses.asdict(self._verb),
            "input": self._place,
            "fields": options.fields,
            "header": options.header,
            "encoding": options.encoding,
            "output_format": self._format,
            "piece_rows": self._piece_rows,
        }
        return run_metadata(
            settings,
            {
                **{name: fingerprints(files) for name, files in self._files.items()},
                "files": self._inputs.files,
            },
        )

    def _start(self, metadata, ours):
        """Begins a job: deletes the files of another one, and records this one."""
        inputs, rows = self._inputs, self._piece_rows
        self._inputs, self.pieces = index_inputs(inputs, rows)
        wanted = self._options.num_workers * _PIECES_OF_WORKER
        if self._options.piece_rows is None and len(self.pieces) < wanted > 2:
            # So that every worker has work, and the last ones end together.
            rows = min(rows, max(1, -(-self.rows // wanted)))
            self._inputs, self.pieces = index_inputs(inputs, rows)
        seed = getattr(self._verb, "seed", None)
        # The record goes first, which says what the others are.
        for name in sorted(ours, key=lambda name: name != RECORD):
            self._folder.delete(name)
        self._record = {
            **metadata,
            "seed": secrets.randbits(63) if seed is None else seed,
            "columns": self._inputs.columns,
            "separators": self._inputs.separators,
            "pieces": self.pieces,
        }
        self._folder.filesystem.create_dir(self._folder.path)
        self._write_record("running")

    def _write_record(self, state, **more):
        content = {**self._record, "state": state, **more}
        text = json.dumps(content, ensure_ascii=False)
        self._folder.write(RECORD, text.encode("utf-8", "backslashreplace"))

    # === Computing ===

    def run(self) -> Iterator[Mapping[str, Any]]:
        """Computes the pieces that have no part; yields what became of each.

        Yields:
            dicts of `piece`, `rows`, `bad` (rows without an answer), `process` (its
            number), `began` and `ended` (seconds since the epoch), and `cpu` (seconds
            of all threads).

        Raises:
            RoFormerError: what a worker met.
            OutputError: workers died again and again.
        """
        left = [one for one in range(len(self.pieces)) if one not in self.done]
        options = self._options
        if left:
            with ray_of(
                options.address,
                options.num_workers,
                options.cpus_per_worker,
                options.gpus_per_worker,
            ) as ray:
                for result in self._compute(ray, left):
                    if result["error"]:
                        raise pickle.loads(result["error"])
                    self.done.add(result["piece"])
                    yield result

    def _compute(self, ray, left):
        data = import_extra("ray.data", "--engine ray")
        context = data.DataContext.get_current()
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        context.enable_progress_bars = context.print_on_execution_start = False
        rows = [{"piece": one, **self.pieces[one]._asdict()} for one in left]
        options = self._options
        dataset = data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            PieceWorker,
            fn_constructor_args=(self._task,),
            batch_size=1,
            compute=data.ActorPoolStrategy(size=min(options.num_workers, len(rows))),
            max_task_retries=_RETRIES,
            **worker_resources(options.cpus_per_worker, options.gpus_per_worker),
        )
        try:
            # Each result as soon as it is there.
            batches = dataset.iter_batches(
                batch_size=None, prefetch_batches=0, batch_format="pyarrow"
            )
            for batch in batches:
                yield from batch.to_pylist()
        except ray.exceptions.RayError as error:
            raise OutputError(
                f"the workers could not go on: {one_line(error)[-500:]}",
                hint="the same command resumes the job; if workers die again, they may "
                "have too little memory: start fewer of them",
            ) from error

    def bad_rows(self) -> list[dict]:
        """The rows without an answer, in their order: `row`, `place` and `error`."""
        found: list[dict] = []
        for name in self._folder.names():
            if name.startswith("_bad-rows-"):
                lines = (self._folder.read(name) or b"").decode().splitlines()
                found += map(json.loads, lines)
        return found

    def finish(self, bad: int) -> None:
        """Records that all is done, and deletes what killed processes have left."""
        assert len(self.done) == len(self.pieces)
        for name in self._folder.names():
            if name.startswith(PARTIAL):
                self._folder.delete(name)
        self._write_record("done", rows=self.rows, bad_rows=bad)


def _remove_empty(folder):
    with suppress(OSError):
        folder.rmdir()
