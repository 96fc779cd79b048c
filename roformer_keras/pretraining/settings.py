"""What a pre-training is told: a small TOML file, or keywords of the same names."""

import dataclasses
import functools
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from roformer_keras.errors import ConfigurationError, SourceError
from roformer_keras.pretraining.corpus import CorpusSource, check_integer

__all__ = [
    "OptimizerSettings",
    "Settings",
    "Stage",
    "load_settings",
    "settings_of_command",
]

OBJECTIVES = ("mlm", "lm", "simbert", "distillation", "classification", "cosent")
# One verb of the command line each.
OBJECTIVES_OF = {"mlm": OBJECTIVES[:1], "lm": OBJECTIVES[1:2], "sim": OBJECTIVES[2:]}
# Of a command line that names neither.
_STEPS, _LENGTHS = 10_000, {"mlm": 128, "lm": 128, "sim": 64}
OPTIMIZERS = ("adamw", "lamb")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """A stretch of training with one shape of batch.

    Args:
        steps: int. Updates of the weights.
        length: int. Tokens of a row, or with two texts a row those of each.
        batch_size: int. Rows an update.
        learning_rate: float. What the factors of `schedule` multiply.
        schedule: pairs (step, factor), ascending; linear between, from 0 at step 0 if
            the first is later, constant behind the last.
        accumulation: int. Into so many parts is a batch cut, one computed after the
            other, for what does not fit into memory.
    """

    steps: int
    length: int = 128
    batch_size: int = 32
    learning_rate: float = 1e-4
    schedule: tuple[tuple[int, float], ...] = ()
    accumulation: int = 1

    def __post_init__(self):
        for name, least in (
            ("steps", 1),
            ("length", 4),
            ("batch_size", 1),
            ("accumulation", 1),
        ):
            check_integer(name, getattr(self, name), least)
        _check_number("learning_rate", self.learning_rate, 0, float("inf"))
        if self.batch_size % self.accumulation:
            raise ConfigurationError(
                "batch_size must be a multiple of accumulation, got "
                f"batch_size={self.batch_size}, accumulation={self.accumulation}"
            )
        try:
            points = tuple((int(step), float(factor)) for step, factor in self.schedule)
        except (TypeError, ValueError):
            points = ((-1, 0.0),)
        steps = [step for step, _ in points]
        if (
            sorted(set(steps)) != steps
            or min(steps, default=0) < 0
            or min((factor for _, factor in points), default=0) < 0
        ):
            raise ConfigurationError(
                "schedule must be pairs [step, factor] with ascending steps from 0 and "
                f"factors of at least 0, got {self.schedule!r}"
            )
        object.__setattr__(self, "schedule", points)

    @property
    def rows(self) -> int:
        """Rows that are computed together."""
        return self.batch_size // self.accumulation


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """How weights are updated.

    Args:
        name: `"adamw"` or `"lamb"`.
        weight_decay: float. Decoupled; never on biases, gamma and beta.
        clip_norm: float, 0 for none. Most that the norm of all gradients may be.
        ema: float in [0, 1), 0 for none. Momentum of a running mean of the weights,
            which becomes the weights at the end of each stage.
    """

    name: str = "adamw"
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    ema: float = 0.0

    def __post_init__(self):
        _check_choice("optimizer name", self.name, OPTIMIZERS)
        for name in ("weight_decay", "clip_norm"):
            _check_number(name, getattr(self, name), 0, float("inf"))
        _check_number("ema", self.ema, 0, 1, below=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """All of a pre-training but where it is written to.

    Args:
        objective: `"mlm"`, `"lm"`, `"simbert"`, `"distillation"`, `"classification"`
            or `"cosent"`.
        name: str. Stem of the zip that is written.
        data: sources of what is trained on.
        stages: one after the other, each with a fresh optimizer.
        source: str or None. The checkpoint to go on from; else weights are fresh.
        initialize_heads: bool. Whether heads that the source lacks begin afresh.
        model: fields of `RoFormerConfig` but the size of the vocabulary: of a fresh
            model all that differ from a small one, of a source those to change, such as
            `dropout`.
        vocabulary: str or None. Path of a `vocab.txt`; else that of the source; else
            one of characters is built from the data.
        min_count: int. How often a character must occur to be in a built one.
        max_vocabulary: int or None. Most tokens of a built one.
        options: of the objective, as `rate`, `whole_word`, `scale`.
        teacher: str or None. The checkpoint to distil from.
        optimizer: of every stage.
        dtype: Keras dtype policy.
        seed: int. Of the weights, the order of the data, masks and dropout.
        packed: bool. Whether documents are joined until a row is full, instead of
            padded.
        buffer_size: int. Records among which the next is drawn.
        workers: int. Processes that tokenise; 0 for a thread.
        log_every, save_every, evaluate_every: ints, in updates; `evaluate_every` 0
            evaluates at the end of a stage alone.
        evaluation_batches: int. Most batches of held-out data.
    """

    objective: str
    data: tuple[CorpusSource, ...]
    stages: tuple[Stage, ...]
    name: str = "roformer"
    source: str | None = None
    initialize_heads: bool = False
    model: Mapping = dataclasses.field(default_factory=dict)
    vocabulary: str | None = None
    min_count: int = 5
    max_vocabulary: int | None = None
    options: Mapping = dataclasses.field(default_factory=dict)
    teacher: str | None = None
    optimizer: OptimizerSettings = dataclasses.field(default_factory=OptimizerSettings)
    dtype: str = "float32"
    seed: int = 0
    packed: bool = False
    buffer_size: int = 10_000
    workers: int = 0
    log_every: int = 50
    save_every: int = 1000
    evaluate_every: int = 0
    evaluation_batches: int = 50

    def __post_init__(self):
        _check_choice("objective", self.objective, OBJECTIVES)
        for name, least in (
            ("min_count", 1),
            ("seed", 0),
            ("buffer_size", 1),
            ("workers", 0),
            ("log_every", 1),
            ("save_every", 1),
            ("evaluate_every", 0),
            ("evaluation_batches", 1),
        ):
            check_integer(name, getattr(self, name), least)
        for name in ("data", "stages"):
            if not getattr(self, name):
                raise ConfigurationError(f"{name} must have at least one entry")
        for name in ("save_every", "evaluate_every"):
            if getattr(self, name) % self.log_every:
                raise ConfigurationError(
                    f"{name} must be a multiple of log_every, got {name}="
                    f"{getattr(self, name)}, log_every={self.log_every}"
                )
        if self.packed and self.objective not in ("mlm", "lm"):
            raise ConfigurationError(
                f"packed is for mlm and lm, got objective={self.objective!r}"
            )
        if (self.teacher is not None) != (self.objective == "distillation"):
            raise ConfigurationError(
                "distillation needs a teacher, and nothing else does: got "
                f"objective={self.objective!r}, teacher={self.teacher!r}"
            )
        if Path(self.name).name != self.name:
            raise ConfigurationError(f"name must be a plain name, got {self.name!r}")

    def to_dict(self) -> dict:
        """Plain JSON types, as `from_dict` takes them back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping) -> "Settings":
        """Builds from nested plain types; unknown names are errors."""
        fields = dict(content)
        for name, build, is_many in (
            ("data", _source, True),
            ("stages", functools.partial(_build, Stage), True),
            ("optimizer", functools.partial(_build, OptimizerSettings), False),
        ):
            if name not in fields:
                continue
            value = fields[name]
            if is_many:
                if not isinstance(value, Sequence) or isinstance(value, str):
                    raise ConfigurationError(
                        f"{name} must be tables [[{name}]], got {value!r}"
                    )
                fields[name] = tuple(build(one, name) for one in value)
            else:
                fields[name] = build(value, name)
        return _build(cls, fields, "settings")


def load_settings(path: str | os.PathLike) -> Settings:
    """Reads a TOML file; its relative paths are taken from its own folder.

    Raises:
        SourceError: the file cannot be read.
        ConfigurationError: it is not TOML, or a setting breaks its rule.
    """
    try:
        return Settings.from_dict(_read(path))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def settings_of_command(
    task: str, files: Sequence[str], config: str | None, **flags
) -> Settings:
    """Settings of a file, and of the flags of the command line, which go before them.

    Args:
        task: `"mlm"`, `"lm"` or `"sim"`.
        files: of the corpus; if there are any, those of the file are not read.
        config: path of the TOML file, or None.
        flags: by name; None where one is not given.

    Raises:
        SourceError, ConfigurationError: as of `load_settings`.
    """
    content = _read(config) if config is not None else {}
    given = {name: value for name, value in flags.items() if value is not None}
    content.setdefault("objective", OBJECTIVES_OF[task][0])
    if content["objective"] not in OBJECTIVES_OF[task]:
        raise ConfigurationError(
            f"the objective of {task} must be {' or '.join(OBJECTIVES_OF[task])}, "
            f"{config} has {content['objective']!r}"
        )
    data = {
        name: given.pop(name)
        for name in ("fields", "group", "holdout")
        if name in given
    }
    if files:
        content["data"] = [{"files": files, **data}]
    elif data:
        raise ConfigurationError(
            f"{', '.join(data)} say something of files: name files too, or say it in "
            "the configuration file"
        )
    if "data" not in content:
        raise ConfigurationError(
            "name the files of the corpus, or a configuration file with --config"
        )
    stages = content.setdefault("stages", [{"steps": _STEPS, "length": _LENGTHS[task]}])
    model = {
        field: given.pop(name)
        for name, field in (
            ("layers", "num_layers"),
            ("hidden", "hidden_dim"),
            ("heads", "num_heads"),
        )
        if name in given
    }
    if model:
        content["model"] = {**content.get("model", {}), **model}
    if "whole_word" in given:
        whole_word = {"whole_word": given.pop("whole_word")}
        content["options"] = {**content.get("options", {}), **whole_word}
    shape = {
        name: given.pop(name)
        for name in ("steps", "length", "batch_size", "learning_rate")
        if name in given
    }
    if shape:
        content["stages"] = [{**stage, **shape} for stage in stages]
    return Settings.from_dict({**content, **given})


def _read(path):
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} must be a TOML file: {error}") from error
    for entry in content.get("data", ()):
        if isinstance(entry, dict) and isinstance(entry.get("files"), list):
            entry["files"] = [str(path.parent / str(file)) for file in entry["files"]]
    for name in ("source", "teacher", "vocabulary"):
        # A source may also be the name of a downloaded checkpoint.
        if name in content and (path.parent / str(content[name])).exists():
            content[name] = str(path.parent / str(content[name]))
    return content


def _source(fields, name):
    """Columns may be written as numbers."""

    def as_text(value):
        return str(value) if isinstance(value, int) else value

    if isinstance(fields, Mapping):
        fields = dict(fields)
        if isinstance(fields.get("fields"), list | tuple):
            fields["fields"] = tuple(map(as_text, fields["fields"]))
        fields["group"] = as_text(fields.get("group"))
    return _build(CorpusSource, fields, name)


def _build(kind, fields, name):
    if not isinstance(fields, Mapping):
        raise ConfigurationError(f"{name} must be a table, got {fields!r}")
    known = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise ConfigurationError(
            f"{name} has no {', '.join(unknown)}; it has {', '.join(known)}"
        )
    missing = [
        field.name
        for field in known.values()
        if field.default is field.default_factory is dataclasses.MISSING
        and field.name not in fields
    ]
    if missing:
        raise ConfigurationError(f"{name} must have {', '.join(missing)}")
    return kind(**fields)


def _check_number(name, value, least, most, below=False):
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (
        least <= value < most if below else least <= value <= most
    ):
        bounds = f"[{least}, {most})" if below else f"from {least}"
        raise ConfigurationError(f"{name} must be a number {bounds}, got {value!r}")


def _check_choice(name, value, choices):
    if value not in choices:
        raise ConfigurationError(
            f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}"
        )
