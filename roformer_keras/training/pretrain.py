"""Pre-training from its settings to a preset and a zip, in its own folder.

vocab.txt
tokens/               the corpus as token ids; see `text.examples`
checkpoints/          the last weights, to be averaged
tensorboard/, loss.png
NAME.zip              the result, if bert4keras can compute it

`io.training_folder` lists the other files.
"""

import contextlib
import dataclasses
import inspect
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import keras
from tqdm import tqdm

from roformer_keras import models
from roformer_keras.base.checks import check_instance, check_names, check_path
from roformer_keras.base.config import RoFormerConfig, config_for_model
from roformer_keras.base.errors import ConfigurationError, Hint, RoFormerError
from roformer_keras.base.extras import require
from roformer_keras.conversion.convert import convert
from roformer_keras.data.batches import NumberedBatches
from roformer_keras.data.loader import Loader, batch_maker, items_of
from roformer_keras.io.training_folder import LOG, PRESET
from roformer_keras.models.lora import train_everything
from roformer_keras.models.preset import PresetModel
from roformer_keras.models.training_loop import choose_blocks
from roformer_keras.objectives import OBJECTIVES
from roformer_keras.optimizers import make_optimizer
from roformer_keras.tables.corpus import read_corpus
from roformer_keras.text.examples import EpochItems, tokenize_corpus
from roformer_keras.text.matching import check_vocabulary
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.text.train_vocabulary import (
    build_subword_vocabulary,
    build_vocabulary,
)
from roformer_keras.training.averaging import LastCheckpoints
from roformer_keras.training.log import EventLog
from roformer_keras.training.plots import draw_losses
from roformer_keras.training.pretraining_settings import (
    PretrainingSettings,
    TrainingStage,
)
from roformer_keras.training.recorder import Recorder
from roformer_keras.training.resumable_run import ResumableRun
from roformer_keras.training.state import state_variables

# Without a size in its settings, a model is small enough for a laptop.
_SMALL = {"num_layers": 4, "num_heads": 4, "hidden_dim": 256}
_VOCABULARY, _TOKENS, _CHECKPOINTS = "vocab.txt", "tokens", "checkpoints"
_TENSORBOARD, _PICTURE = "tensorboard", "loss.png"


def pretrain(
    settings: PretrainingSettings,
    folder: str | os.PathLike,
    *,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    overwrite: bool = False,
    verbose: bool = True,
) -> PresetModel:
    """Trains a model on a corpus, or resumes a training that was interrupted.

    Args:
        settings: `PretrainingSettings`.
        folder: path of the folder of this training. If it holds a training of equal
            settings and files, that one resumes from its last saved state, and ends
            with the weights that it would have had without the interruption.
            `save_every` may differ.
        callbacks: more callbacks for `model.fit`; an epoch is an interval of the log.
        overwrite: bool. Whether to discard another training in the folder, once this
            one has passed its checks.
        verbose: bool. Whether progress bars are shown.

    Returns:
        The model, with its tokenizer. It is also in the folder, as `preset` and, if
        bert4keras supports it, as a zip for bert4keras.

    Raises:
        ConfigurationError: a setting breaks its rule, or the loss is not finite.
        SourceError: a file cannot be read, or has wrong content.
        OutputError: the folder holds another training, or cannot be written to; earlier
            saved files stay complete.
        BackendError: Keras runs on OpenVINO, which does not train.

    Example:
        >>> from pathlib import Path
        >>> poem = "床前明月光，疑是地上霜。\\n举头望明月，低头思故乡。\\n"
        >>> size = Path("poems.txt").write_text(poem, encoding="utf-8")
        >>> settings = roformer_keras.PretrainingSettings(
        ...     objective="lm",
        ...     data=(roformer_keras.CorpusSource(files=("poems.txt",)),),
        ...     stages=(roformer_keras.TrainingStage(steps=2, length=16),),
        ...     source="roformer-gpt-char",
        ... )
        >>> model = roformer_keras.pretrain(settings, "poems-run", verbose=False)
    """
    check_instance("settings", settings, PretrainingSettings)
    check_path("folder", folder)
    require("a training")
    return PretrainingRun(settings, folder, callbacks, verbose).execute(overwrite)


@dataclasses.dataclass
class _Stage:
    trainer: keras.Model
    loader: Loader
    recorder: Recorder
    held_out: keras.utils.PyDataset | None
    save: Callable
    done: int


class PretrainingRun(ResumableRun):
    """One training in its folder; see `pretrain`."""

    start: ClassVar = {"stage": 0, "done": 0, "tokens": 0}
    leftovers = (_PICTURE, _VOCABULARY, _TOKENS, _TENSORBOARD, _CHECKPOINTS)

    def build(self, is_new):
        settings = self.settings
        self.tokenizer = self._make_tokenizer(is_new)
        self.teacher = None
        if settings.teacher is not None:
            with self.together():
                self.teacher = models.RoFormerSim.from_preset(settings.teacher)
        kind = getattr(models, OBJECTIVES[settings.objective].model_class)
        self.model = self._make_model(kind)
        self.trained = self.twin(lambda: self._make_model(kind))
        self.last_checkpoints = None
        if settings.average_checkpoints:
            self.last_checkpoints = LastCheckpoints(
                self.folder / _CHECKPOINTS, settings.average_checkpoints
            )
        if is_new:
            for stage in settings.stages:
                self._check_held_out(self.make_objective(stage.length), stage)

    # === Tokenizer and model ===

    def _make_tokenizer(self, is_new):
        settings, path = self.settings, self.folder / _VOCABULARY
        if settings.vocabulary is not None:
            return RoFormerTokenizer(
                settings.vocabulary, lower_case=settings.lower_case
            )
        if settings.source is not None:
            return RoFormerTokenizer.from_preset(settings.source)
        if not is_new and path.exists():
            return RoFormerTokenizer(path, lower_case=settings.lower_case)
        # A label is no text.
        texts = OBJECTIVES[settings.objective].fields and 2
        build = build_subword_vocabulary if settings.subwords else build_vocabulary
        records = self._records("train", "vocabulary")
        tokens, _ = build(
            (record[: texts or None] for record in records),
            min_count=settings.min_count,
            max_size=settings.max_vocabulary,
            lower_case=settings.lower_case,
        )
        return RoFormerTokenizer(tokens, lower_case=settings.lower_case)

    def _make_model(self, kind):
        settings = self.settings
        needed = getattr(OBJECTIVES[settings.objective], "model_fields", {})
        if settings.source is not None:
            model = kind.from_preset(
                settings.source,
                ignore=settings.ignore,
                dtype=settings.dtype,
                initialize_heads=settings.initialize_heads,
                **{**needed, **settings.model},
            )
            check_vocabulary(model, self.tokenizer)
            train_everything(model)
        else:
            fields = fields_of_fresh_model(settings, self.tokenizer)
            config = config_for_model(
                kind.__name__, RoFormerConfig.from_dict(fields), **needed
            )
            model = kind.from_roformer_config(config, settings.dtype)
        model.tokenizer = self.tokenizer
        return model

    def make_objective(self, length: int):
        """The objective for rows of `length` tokens."""
        options = dict(self.settings.options)
        if self.teacher is not None:
            options["teacher"] = self.teacher
            options["teacher_tokenizer"] = self.teacher.text_tokenizer()
        kind = OBJECTIVES[self.settings.objective]
        _, _, *option_names = inspect.signature(kind).parameters
        check_names(self.settings.objective, "option", options, option_names)
        return kind(self.tokenizer, length, **options)

    # === The data ===

    def _records(self, split, description):
        # A generator: the bar appears with the first record.
        yield from tqdm(
            read_corpus(self.settings.data, split),
            desc=description,
            unit=" records",
            disable=not self.verbose,
        )

    def _encoder(self, objective):
        length = None if self.settings.packed else objective.rows.length
        return objective.encoder(self.tokenizer, length)

    @property
    def _has_held_out(self):
        return any(data.holdout for data in self.settings.data)

    def _check_held_out(self, objective, stage):
        """Raises ConfigurationError if a batch needs more held-out data."""
        if not self._has_held_out:
            return
        encode, count_found = self._encoder(objective), 0
        packed = stage.length - 2 if self.settings.packed else None
        count = items_of(objective, stage.rows)
        for record in read_corpus(self.settings.data, "held_out"):
            items = encode(record)
            count_found += (
                sum(len(i.ids[0]) + 1 for i in items) if packed else len(items)
            )
            if count_found >= count * (packed or 1):
                return
        raise ConfigurationError(
            f"a batch takes {count} held-out examples, and there are "
            f"{count_found // (packed or 1)}",
            hint=Hint("raise {holdout}, lower {batch_size}, or set {holdout:0}"),
        )

    def examples(self, objective, number: int, part: str = "train") -> EpochItems:
        """The examples of a stage, tokenized on first use."""
        settings, stage = self.settings, self.settings.stages[number]
        metadata = settings.describe()
        kind = "packed" if settings.packed else stage.length
        tokens = tokenize_corpus(
            self.folder / _TOKENS / f"{part}-{kind}",
            [part, metadata["settings"]["data"], metadata["inputs"]["corpus"]],
            self._records(part, f"{part} tokens"),
            self._encoder(objective),
        )
        return EpochItems(
            tokens,
            [settings.seed, number],
            packed=stage.length - 2 if settings.packed else None,
            separator=self.tokenizer.sep_id,
        )

    def held_out(self, objective, number: int) -> keras.utils.PyDataset | None:
        """Batches of held-out texts, the same each time; None without held-out data."""
        if not self._has_held_out:
            return None
        rows = self.settings.stages[number].rows
        examples = self.examples(objective, number, "held_out")
        count = len(examples) // items_of(objective, rows)
        make = batch_maker(examples, objective, rows, [self.settings.seed])
        count = min(count, self.settings.evaluation_batches)
        return NumberedBatches([make(n) for n in range(count)].__getitem__, count)

    # === Training ===

    def train(self):
        self.tokenizer.save_vocabulary(self.folder / _VOCABULARY)
        stages = self.settings.stages
        first = self.progress["stage"]
        if first == len(stages):
            # Only the results may be missing.
            self._prepare_stage(first - 1)
            return
        with tqdm(
            total=sum(stage.steps for stage in stages),
            initial=self._steps_before(first) + self.progress["done"],
            desc="pre-training",
            unit=" updates",
            dynamic_ncols=True,
            disable=not self.verbose,
        ) as bar:
            for number in range(first, len(stages)):
                self._train_stage(number, bar)

    def _prepare_stage(self, number):
        """Objective, compiled trainer and its variables, from the last saved state."""
        settings, stage = self.settings, self.settings.stages[number]
        objective = self.make_objective(stage.length)
        trainer = objective.training_model(self.trained)
        choose_blocks(trainer, settings.stages[number].rows, stage.length)
        trainer.compile(
            optimizer=optimizer_of(settings, stage),
            **objective.compile_options(),
        )
        trainer.optimizer.build(trainer.trainable_variables)
        frozen = self.teacher.variables if self.teacher is not None else ()
        variables = state_variables(trainer, frozen)
        if self.has_state:
            # Each stage starts with a new optimizer.
            names = variables if self.progress["done"] else ["model"]
            self.restore({name: variables[name] for name in names})
        return objective, trainer, variables

    @contextlib.contextmanager
    def stage(self, number: int, bar: tqdm) -> Iterator["_Stage"]:
        """The objects that train one stage, from the last saved state."""
        settings, stage = self.settings, self.settings.stages[number]
        objective, trainer, variables = self._prepare_stage(number)
        done = self.progress["done"]
        before = self._steps_before(number)
        checkpoints = self.last_checkpoints
        if checkpoints:
            checkpoints.drop_after(before + done)
        held_out = self.held_out(objective, number)

        def save(**progress):
            if checkpoints:
                update = self._steps_before(progress["stage"]) + progress["done"]
                weights = self.trained.trainable_variables
                checkpoints.add(update, weights)
            # No stage needs the optimizer of the previous one.
            names = variables if progress["done"] else ["model"]
            self.save({name: variables[name] for name in names}, **progress)

        loader = Loader(
            batch_maker(
                self.examples(objective, number),
                objective,
                stage.rows,
                [settings.seed, number],
            ),
            done * stage.accumulation,
            self.progress["tokens"],
        )
        events = EventLog(self.folder / _TENSORBOARD, before + done + 1)
        recorder = Recorder(
            stage=number,
            before=before,
            done=done,
            steps=stage.steps,
            save_every=settings.save_every,
            parts=stage.accumulation,
            loader=loader,
            log=self.log,
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
            try:
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
            except RoFormerError:
                raise
            except Exception:
                # TensorFlow wraps the error of its iterator.
                if training.loader.error is not None:
                    raise training.loader.error from None
                raise
            if training.held_out is not None:
                # With `ema`, these weights are moving averages, as in the saved file.
                training.recorder.log_evaluation(
                    training.trainer.evaluate(
                        training.held_out, verbose=0, return_dict=True
                    )
                )
        # The next stage starts with new data and a new optimizer.
        training.save(stage=number + 1, done=0, tokens=training.recorder.tokens)

    def _steps_before(self, number):
        return sum(stage.steps for stage in self.settings.stages[:number])

    # === Results ===

    def finish(self):
        if self.last_checkpoints:
            settings = self.settings
            saved = sum(-(-s.steps // settings.save_every) for s in settings.stages)
            self.last_checkpoints.assign_mean(
                self.model.trainable_variables, min(saved, settings.average_checkpoints)
            )

    def write_results(self):
        self.save_preset()
        if self.model.config.bert4keras_compatible:
            convert(
                self.folder / PRESET,
                self.folder / f"{self.settings.name}.zip",
                overwrite=True,
                verbose=self.verbose,
            )
        draw_losses(self.folder / LOG, self.folder / _PICTURE)


def fields_of_fresh_model(
    settings: PretrainingSettings, tokenizer: RoFormerTokenizer
) -> dict:
    """Configuration fields of a new model: the settings', or a small model's."""
    fields = {**_SMALL, **settings.model}
    fields.setdefault("intermediate_dim", 4 * fields["hidden_dim"])
    return {**fields, "vocabulary_size": tokenizer.vocabulary_size}


def optimizer_of(settings: PretrainingSettings, stage: TrainingStage):
    """The Keras optimizer of one stage."""
    return make_optimizer(
        stage.learning_rate,
        stage.schedule,
        accumulation=stage.accumulation,
        **dataclasses.asdict(settings.optimizer),
    )
