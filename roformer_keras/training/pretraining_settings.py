"""Settings of a pre-training, from a TOML file or from keywords."""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from roformer_keras.base.checks import (
    Only,
    Settings,
    choice,
    integer,
    number,
    option,
    read_fields,
    source_path,
)
from roformer_keras.base.errors import Hint, refuse
from roformer_keras.hub.catalog import checkpoint_files
from roformer_keras.io.journal import fingerprints, run_metadata
from roformer_keras.tables.arrow import data_files
from roformer_keras.tables.corpus import CorpusSource
from roformer_keras.tasks.optimizer_settings import (
    OptimizerSettings,
    dtype_policy,
    random_seed,
)

# Each of these is a task of the command line.
OBJECTIVES_OF = {
    "mlm": ("mlm",),
    "lm": ("lm",),
    "unilm": ("unilm",),
    "sim": ("simbert", "distillation", "classification", "cosent"),
}
OBJECTIVE_NAMES = tuple(itertools.chain.from_iterable(OBJECTIVES_OF.values()))
# These compare each pair of texts with the others in its batch.
_COMPARING = ("simbert", "distillation", "cosent")
# A source sets them, and its weights fit no others.
_SIZES = ("num_layers", "hidden_dim", "num_heads")
# Settings under which other settings count.
_BUILT = Only(
    "a vocabulary that is built, without vocabulary and source",
    lambda *files: files == (None, None),
    "vocabulary",
    "source",
)
_HELD_OUT = Only(
    "data with a holdout", lambda data: any(source.holdout for source in data), "data"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingStage(Settings):
    """A part of the training with one shape of batch.

    Args:
        steps: int. Updates of the weights.
        length: int. Tokens of a row, or of each text of a pair.
        batch_size: int. Rows per update.
        learning_rate: float. Base rate, which the factors of `schedule` multiply.
        schedule: pairs (step, factor), ascending; linear between them, from 0 at step 0
            if the first is later, constant after the last.
        accumulation: int. Number of slices of a batch that are computed one after the
            other, to save memory. `simbert`, `distillation` and `cosent` compare texts
            only within a slice.

    Raises:
        ConfigurationError: a setting breaks its rule, or settings do not go together.

    Example:
        >>> stage = roformer_keras.TrainingStage(steps=9, batch_size=64, accumulation=2)
        >>> stage.rows
        32
    """

    steps: int = integer(minimum=1, maximum=2**31 - 1)
    length: int = integer(128, minimum=4, maximum=2**20)
    batch_size: int = integer(32, minimum=1, maximum=2**20)
    learning_rate: float = number(1e-4, minimum=0, maximum=100)
    schedule: tuple[tuple[int, float], ...] = ()
    accumulation: int = integer(1, minimum=1, maximum=2**20)

    def _check_together(self):
        refuse(
            self.batch_size % self.accumulation,
            "batch_size must be a multiple of accumulation, got "
            f"batch_size={self.batch_size}, accumulation={self.accumulation}",
        )
        steps = [step for step, _ in self.schedule]
        factors = [factor for _, factor in self.schedule]
        refuse(
            sorted(set(steps)) != steps
            or min(steps, default=0) < 0
            or min(factors, default=0) < 0,
            "schedule must be pairs [step, factor] with ascending steps from 0 and "
            f"factors of at least 0, got {self.schedule!r}",
        )

    @property
    def rows(self) -> int:
        """Rows that are computed together."""
        return self.batch_size // self.accumulation


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingSettings(Settings):
    """Settings of a pre-training, except for its output folder.

    Args:
        objective: `"mlm"`, `"lm"`, `"unilm"`, `"simbert"`, `"distillation"`,
            `"classification"` or `"cosent"`.
        name: str. Stem of the zip that is written.
        data: sources of the corpus.
        stages: trained one after the other, each with a new optimizer.
        source: str or None. Checkpoint to start from; new weights by default.
        initialize_heads: bool. Whether heads that the source lacks get new weights.
        ignore: patterns of tensors of the source to ignore:
            `"bert/embeddings/position_embeddings"` to start from a BERT.
        model: fields of `RoFormerConfig`, except for the size of the vocabulary. With a
            source, they change its fields, such as `dropout`; without a source, they
            change those of a small model.
        vocabulary: str or None. Path of a `vocab.txt`; by default the source's, or a
            vocabulary built from the corpus.
        subwords: bool. Whether a built vocabulary consists of parts of words, for texts
            with spaces, instead of characters.
        lower_case: bool. Whether texts are lower-cased and stripped of accents, unless
            the vocabulary is cased. A source sets it.
        min_count: int. Minimum occurrences of a character in a built vocabulary.
        max_vocabulary: int or None. Maximum of tokens of a built vocabulary; needed
            for subwords.
        options: options of the objective, such as `rate`, `whole_word`, `scale`.
        teacher: str or None. Checkpoint to distil from.
        optimizer: optimizer of every stage.
        dtype: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`; a Keras policy.
        seed: int. Seed of new weights, the order of the data, masks and dropout.
        packed: bool. Whether rows are filled with several documents instead of padding.
        log_every: int. Updates from one line of the log to the next.
        save_every: int. Updates from one saved state to the next.
        evaluate_every: int. Updates from one evaluation of held-out data to the next;
            0 for one at the end of each stage.
        average_checkpoints: int. Number of checkpoints, with the last weights, whose
            mean becomes the final weights; 0 for the last weights alone. Evaluations
            during the training use the current weights.
        evaluation_batches: int. Maximum of batches of held-out data.

    Raises:
        ConfigurationError: a setting breaks its rule, or settings do not go together.

    Example:
        >>> settings = roformer_keras.PretrainingSettings(
        ...     objective="lm",
        ...     data=(roformer_keras.CorpusSource(files=("poems.txt",)),),
        ...     stages=(roformer_keras.TrainingStage(steps=2, length=16),),
        ...     source="roformer-gpt-char",
        ... )
        >>> settings.seed, settings.dtype
        (0, 'float32')
    """

    objective: str = choice(choices=OBJECTIVE_NAMES)
    data: tuple[CorpusSource, ...]
    stages: tuple[TrainingStage, ...]
    name: str = "roformer"
    source: str | None = source_path(None)
    initialize_heads: bool = option(
        False,
        Only("a source", lambda source: source is not None, "source"),
    )
    ignore: tuple[str, ...] = option(
        (), Only("a source", lambda source: source is not None, "source")
    )
    model: Mapping = dataclasses.field(default_factory=dict)
    vocabulary: str | None = source_path(None)
    subwords: bool = option(False, _BUILT)
    lower_case: bool = option(
        True,
        Only(
            "vocabulary, or without a source, which knows it",
            lambda vocabulary, source: vocabulary is not None or source is None,
            "vocabulary",
            "source",
        ),
    )
    min_count: int = integer(5, minimum=1, only=_BUILT)
    max_vocabulary: int | None = option(None, _BUILT)
    options: Mapping = dataclasses.field(default_factory=dict)
    teacher: str | None = source_path(None)
    optimizer: OptimizerSettings = dataclasses.field(default_factory=OptimizerSettings)
    dtype: str = dtype_policy()
    seed: int = random_seed()
    packed: bool = option(
        False,
        Only("mlm and lm", lambda objective: objective in ("mlm", "lm"), "objective"),
    )
    log_every: int = integer(50, minimum=1)
    save_every: int = integer(1000, minimum=1)
    evaluate_every: int = integer(0, minimum=0, only=_HELD_OUT)
    average_checkpoints: int = integer(0, minimum=0)
    evaluation_batches: int = integer(50, minimum=1, only=_HELD_OUT)

    def _check_together(self):
        for name in ("data", "stages"):
            refuse(not getattr(self, name), f"{name} must have at least one entry")
        for name in ("save_every", "evaluate_every"):
            refuse(
                getattr(self, name) % self.log_every,
                f"{name} must be a multiple of log_every, got {name}="
                f"{getattr(self, name)}, log_every={self.log_every}",
            )
        refuse(
            self.average_checkpoints and self.optimizer.ema,
            "the weights at the end are the mean of the last checkpoints or a "
            f"running mean, got average_checkpoints={self.average_checkpoints} and "
            f"ema={self.optimizer.ema}: leave one of them out",
        )
        refuse(
            self.subwords and self.max_vocabulary is None,
            "subwords are for a vocabulary that is built, of max_vocabulary "
            f"tokens, got vocabulary={self.vocabulary!r}, source={self.source!r}, "
            f"max_vocabulary={self.max_vocabulary!r}",
        )
        refuse(
            (self.teacher is not None) != (self.objective == "distillation"),
            "distillation needs a teacher, and nothing else does: got "
            f"objective={self.objective!r}, teacher={self.teacher!r}",
        )
        refuse(
            self.name in ("", "..") or Path(self.name).name != self.name,
            f"name must be a plain name, got {self.name!r}",
        )
        min_rows = min(stage.rows for stage in self.stages)
        refuse(
            self.objective in _COMPARING and min_rows < 4,
            f"{self.objective} compares pairs of texts, two rows each, so "
            "batch_size must be at least 4 times accumulation; a stage has "
            f"{min_rows} rows",
        )
        sizes = [name for name in _SIZES if name in self.model]
        refuse(
            self.source is not None and sizes,
            "a model has the size of its source, got "
            f"{', '.join(sizes)} and source={self.source!r}",
            hint=Hint(
                f"leave out {', '.join(f'{{{name}}}' for name in sizes)} or {{source}}"
            ),
        )

    @property
    def free(self) -> tuple[str, ...]:
        """Settings that change no result: none if checkpoints are averaged."""
        return () if self.average_checkpoints else ("save_every",)

    def describe(self) -> dict:
        """Settings and files that identify a training, for `run_metadata`."""
        corpus = [path for data in self.data for path in data.paths()]
        files: dict[str, Iterable] = {
            "corpus": itertools.chain.from_iterable(map(data_files, corpus)),
            "source": checkpoint_files(self.source),
            "teacher": checkpoint_files(self.teacher),
            "vocabulary": filter(os.path.isfile, [self.vocabulary or ""]),
        }
        inputs = {name: fingerprints(paths) for name, paths in files.items()}
        return run_metadata(self.to_dict(), inputs)


def read_settings(path: str | os.PathLike) -> dict:
    """Unchecked content of a TOML file; relative paths start at its folder.

    Raises:
        SourceError, ConfigurationError: as in `PretrainingSettings.from_toml`.
    """
    return read_fields(PretrainingSettings, path)
