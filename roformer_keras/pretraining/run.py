"""A pre-training from its settings to a preset and a zip, in a folder of its own.

settings.json       what it was told, and the files that it reads
vocab.txt
state.safetensors   where it stands; replaced in one step
log.csv, tensorboard/, loss.png
preset/, NAME.zip   the result, at the end
"""

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import keras
import numpy as np
from tensorboardX import SummaryWriter
from tqdm import tqdm

from roformer_keras import models
from roformer_keras.config import RoFormerConfig, config_for_model
from roformer_keras.conversion.convert import convert
from roformer_keras.conversion.outputs import lock, one_line, replacing
from roformer_keras.errors import ConfigurationError, OutputError
from roformer_keras.inference import check_vocabulary
from roformer_keras.pretraining import objectives
from roformer_keras.pretraining.callbacks import LogFile, Recorder
from roformer_keras.pretraining.corpus import Corpus
from roformer_keras.pretraining.examples import Examples
from roformer_keras.pretraining.loader import Loader, items_of
from roformer_keras.pretraining.picture import draw_losses
from roformer_keras.pretraining.settings import Settings, Stage
from roformer_keras.pretraining.state import (
    assign,
    load_facts,
    save_state,
    variables_of,
)
from roformer_keras.pretraining.vocabulary import build_vocabulary
from roformer_keras.tokenizer import RoFormerTokenizer
from roformer_keras.training.optimizers import make_optimizer

__all__ = ["Run", "optimizer_of", "pretrain"]

# Of a model about which nothing is said: it learns on a laptop.
_SMALL = {"num_layers": 4, "num_heads": 4, "hidden_dim": 256}
_SETTINGS, _STATE, _LOG = "settings.json", "state.safetensors", "log.csv"
_TENSORBOARD, _PICTURE = "tensorboard", "loss.png"
_VOCABULARY, _PRESET, _LOCK = "vocab.txt", "preset", ".lock"

# The facts of a state, where there is none.
_BEGINNING = {"stage": 0, "done": 0, "tokens": 0, "log": 0}


def pretrain(
    settings: Settings,
    folder: str | os.PathLike,
    *,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    overwrite: bool = False,
    progress: bool = True,
):
    """Trains a model on a corpus, or goes on where an earlier call was interrupted.

    Args:
        settings: `Settings`.
        folder: path of the folder of this training. If it holds a training of equal
            settings and files, that one is gone on with from its last saved state, to
            the weights that it would have had without the interruption.
        callbacks: more callbacks for `model.fit`; an epoch is an interval of the log.
        overwrite: bool. Whether a training of other settings there is thrown away.
        progress: bool. Whether progress bars are shown.

    Returns:
        The model, with its tokenizer; it is also in the folder, as `preset` and as a
        zip for bert4keras.

    Raises:
        ConfigurationError: a setting breaks its rule.
        SourceError: a file cannot be read.
        OutputError: the folder holds another training, or cannot be written to; what
            was saved before stays whole.
    """
    folder = Path(folder)
    with _locked(folder):
        _take_folder(folder, settings, overwrite)
        run = Run(settings, folder, callbacks, progress)
        run.train()
        run.write_results()
        return run.model


@dataclasses.dataclass
class _Stage:
    trainer: keras.Model
    loader: Loader
    recorder: Recorder
    held_out: keras.utils.PyDataset | None
    save: Callable
    done: int


class Run:
    """One training in its folder; see `pretrain`."""

    def __init__(self, settings, folder, callbacks, progress):
        self.settings, self.folder = settings, folder
        self.callbacks, self.progress = list(callbacks), progress
        self.tokenizer = self._make_tokenizer()
        # Fresh weights and dropout go by Keras's own generators.
        keras.utils.set_random_seed(settings.seed)
        self.teacher = None
        if settings.teacher is not None:
            self.teacher = models.RoFormerSim.from_preset(settings.teacher)
        kind = objectives.OBJECTIVES[settings.objective]
        self.model = self._make_model(getattr(models, kind.model_class))
        self.facts = _BEGINNING
        if (folder / _STATE).exists():
            self.facts = load_facts(folder / _STATE)

    # === What is trained ===

    def _make_tokenizer(self):
        settings, path = self.settings, self.folder / _VOCABULARY
        if settings.vocabulary is not None:
            tokenizer = RoFormerTokenizer(settings.vocabulary)
        elif settings.source is not None:
            tokenizer = RoFormerTokenizer.from_preset(settings.source)
        elif path.exists():
            return RoFormerTokenizer(path)
        else:
            records = tqdm(
                self._corpus("train").once(),
                desc="vocabulary",
                unit=" records",
                disable=not self.progress,
            )
            # A label is no text.
            texts = objectives.OBJECTIVES[settings.objective].fields and 2
            tokens, _ = build_vocabulary(
                (record[: texts or None] for record in records),
                min_count=settings.min_count,
                max_size=settings.max_vocabulary,
            )
            tokenizer = RoFormerTokenizer(tokens)
        tokenizer.save_vocabulary(path)
        return tokenizer

    def _make_model(self, kind):
        settings = self.settings
        if settings.source is not None:
            model = kind.from_preset(
                settings.source,
                dtype=settings.dtype,
                initialize_heads=settings.initialize_heads,
                **settings.model,
            )
            check_vocabulary(model, self.tokenizer)
        else:
            fields = {**_SMALL, **settings.model}
            fields.setdefault("intermediate_dim", 4 * fields["hidden_dim"])
            config = config_for_model(
                kind.__name__,
                RoFormerConfig.from_dict(
                    {**fields, "vocabulary_size": self.tokenizer.vocabulary_size}
                ),
            )
            model = kind.from_roformer_config(config, settings.dtype)
        model.tokenizer = self.tokenizer
        return model

    def _make_objective(self, length):
        options = dict(self.settings.options)
        if self.teacher is not None:
            options["teacher"] = self.teacher
            options["teacher_tokenizer"] = self.teacher.text_tokenizer()
        kind = objectives.OBJECTIVES[self.settings.objective]
        try:
            return kind(self.tokenizer, length, **options)
        except TypeError as error:
            raise ConfigurationError(
                f"options of {self.settings.objective} must be its own: {error}"
            ) from error

    # === The data ===

    def _corpus(self, part, stage=0):
        return Corpus(
            self.settings.data,
            # Each stage has an order of its own.
            seed=self.settings.seed + stage,
            buffer_size=self.settings.buffer_size,
            part=part,
        )

    def _examples(self, objective, number, part="train", kind=None, workers=0):
        length = self.settings.stages[number].length
        corpus = self._corpus(part, number)
        return Examples(
            kind(corpus) if kind else corpus,
            objective.encoder(self.tokenizer, length),
            packed_length=length if self.settings.packed else None,
            workers=workers,
        )

    def _held_out(self, objective, number):
        """Batches of what is not trained on, the same each time; None without any."""
        if not any(data.holdout for data in self.settings.data):
            return None
        count = items_of(objective, self.settings.stages[number].rows)
        examples = self._examples(objective, number, "held_out", _OneEpoch)
        batches, items = [], []
        for item in examples.once():
            items.append(item)
            if len(items) == count:
                seed = [self.settings.seed, len(batches)]
                batches.append(objective.batch(items, np.random.default_rng(seed)))
                items = []
            if len(batches) == self.settings.evaluation_batches:
                break
        examples.close()
        if not batches:
            raise ConfigurationError(
                f"a batch takes {count} held-out examples, and there are {len(items)}: "
                "raise holdout, lower batch_size, or set holdout to 0"
            )
        return _Batches(batches)

    # === Training ===

    def train(self):
        """All stages that are left."""
        stages = self.settings.stages
        first = self.facts["stage"]
        if first == len(stages):
            # Nothing but the results may be missing.
            self._prepare(first - 1)
            return
        with tqdm(
            total=sum(stage.steps for stage in stages),
            initial=self._before(first) + self.facts["done"],
            desc="pre-training",
            unit=" updates",
            dynamic_ncols=True,
            disable=not self.progress,
        ) as bar:
            for number in range(first, len(stages)):
                self._train_stage(number, bar)

    def _prepare(self, number):
        """Objective, compiled trainer and its variables as the last state has them."""
        settings, stage = self.settings, self.settings.stages[number]
        objective = self._make_objective(stage.length)
        trainer = objective.training_model(self.model)
        trainer.compile(
            optimizer=optimizer_of(settings, stage),
            **objective.compile_options(),
        )
        trainer.optimizer.build(trainer.trainable_variables)
        frozen = self.teacher.variables if self.teacher is not None else ()
        variables = variables_of(trainer, frozen)
        if self.facts is not _BEGINNING:
            # Each stage begins with a fresh optimizer.
            names = variables if self.facts["done"] else ["model"]
            assign(self.folder / _STATE, {name: variables[name] for name in names})
        return objective, trainer, variables

    @contextmanager
    def stage(self, number: int, bar: tqdm) -> Iterator["_Stage"]:
        """What one stage is trained with, as the last state has it."""
        settings, stage = self.settings, self.settings.stages[number]
        objective, trainer, variables = self._prepare(number)
        facts = self.facts
        done, tokens = facts["done"], facts["tokens"]
        before = self._before(number)
        held_out = self._held_out(objective, number)
        examples = self._examples(objective, number, workers=settings.workers)
        if done:
            examples.restore(facts["examples"])
        log = LogFile(self.folder / _LOG, facts["log"])

        def save(**facts):
            # Between stages the optimizer is done with.
            names = variables if facts["done"] else ["model"]
            save_state(
                self.folder / _STATE,
                {name: variables[name] for name in names},
                {**facts, "log": log.size},
            )

        batch = done * stage.accumulation
        seed = [settings.seed, number]
        loader = Loader(examples, objective, stage.rows, seed, batch, tokens)
        events = SummaryWriter(
            str(self.folder / _TENSORBOARD), purge_step=before + done + 1
        )
        recorder = Recorder(
            stage=number,
            before=before,
            done=done,
            steps=stage.steps,
            save_every=settings.save_every,
            parts=stage.accumulation,
            loader=loader,
            log=log,
            events=events,
            evaluates=held_out is not None,
            bar=bar,
            save=save,
        )
        try:
            yield _Stage(trainer, loader, recorder, held_out, save, done)
        finally:
            loader.close()
            events.close()

    def _train_stage(self, number, bar):
        settings, stage = self.settings, self.settings.stages[number]
        intervals = math.ceil(stage.steps / settings.log_every)
        every = settings.evaluate_every // settings.log_every
        evaluations = [n for n in range(1, intervals) if every and n % every == 0]
        with self.stage(number, bar) as training:
            training.trainer.fit(
                iter(training.loader),
                steps_per_epoch=settings.log_every * stage.accumulation,
                initial_epoch=training.done // settings.log_every,
                epochs=intervals,
                validation_data=training.held_out,
                # The end of a stage is evaluated below.
                validation_freq=evaluations or [intervals + 1],
                shuffle=False,
                callbacks=[training.recorder, *self.callbacks],
                verbose=0,
            )
            if training.held_out is not None:
                # Of the weights as they are kept, which are means under `ema`.
                training.recorder.log_evaluation(
                    training.trainer.evaluate(
                        training.held_out, verbose=0, return_dict=True
                    )
                )
        # What comes next begins with fresh data and a fresh optimizer.
        training.save(stage=number + 1, done=0, tokens=training.recorder.tokens)
        self.facts = load_facts(self.folder / _STATE)

    def _before(self, number):
        return sum(stage.steps for stage in self.settings.stages[:number])

    # === Results ===

    def write_results(self):
        """The preset, the zip and the picture of the losses."""
        preset = self.folder / _PRESET
        self.model.save_to_preset(preset, overwrite=True)
        convert(
            preset,
            self.folder / f"{self.settings.name}.zip",
            overwrite=True,
            progress=self.progress,
        )
        draw_losses(self.folder / _LOG, self.folder / _PICTURE)


class _OneEpoch:
    """A corpus whose one pass is shuffled: its beginning speaks for all files."""

    def __init__(self, corpus):
        self._corpus = corpus
        self.state, self.close = corpus.state, corpus.close

    def once(self):
        for record in self._corpus:
            if self._corpus.epoch:
                return
            yield record


class _Batches(keras.utils.PyDataset):
    def __init__(self, batches):
        super().__init__()
        self._batches = batches

    def __len__(self):
        return len(self._batches)

    def __getitem__(self, number):
        return self._batches[number]


def optimizer_of(settings: Settings, stage: Stage):
    """The Keras optimizer of one stage."""
    return make_optimizer(
        stage.learning_rate,
        stage.schedule,
        accumulation=stage.accumulation,
        **dataclasses.asdict(settings.optimizer),
    )


# === Folders ===


def _take_folder(folder, settings, overwrite):
    """Finds the training that the settings mean, or begins one."""
    path = folder / _SETTINGS
    # As JSON gives it back.
    facts = json.loads(
        json.dumps({"settings": settings.to_dict(), "files": _stamps(settings)})
    )
    if path.exists():
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            before = {}
        differing = _differences(before, facts)
        if not differing:
            return
        if not overwrite:
            raise OutputError(
                f"{folder} holds another training: {', '.join(differing)}; choose "
                "another folder, or pass overwrite=True (--overwrite on the command "
                "line) to throw it away"
            )
    elif any(entry.name != _LOCK for entry in folder.iterdir()):
        raise OutputError(
            f"{folder} holds no training but other files: choose a folder of its own"
        )
    for name in (_SETTINGS, _STATE, _LOG, _PICTURE, _VOCABULARY):
        with suppress(FileNotFoundError):
            (folder / name).unlink()
    for name in (_TENSORBOARD, _PRESET):
        shutil.rmtree(folder / name, ignore_errors=True)
    with replacing(path) as partial:
        partial.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")


def _stamps(settings):
    """Names, sizes and times of the files of the corpus."""
    paths = sorted({path for data in settings.data for path in data.paths()})
    return [[str(p), os.stat(p).st_size, os.stat(p).st_mtime_ns] for p in paths]


def _differences(before, now):
    found = []
    old, new = before.get("settings", {}), now["settings"]
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            found.append(f"{name} was {old.get(name)!r}, now {new.get(name)!r}")
    if before.get("files") != now["files"]:
        found.append("files of the corpus differ")
    return found


@contextmanager
def _locked(folder):
    """A folder that this process alone writes to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise OutputError(f"could not write {folder} ({one_line(error)})") from error
    try:
        lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)
