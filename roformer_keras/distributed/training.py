"""A training of several processes as a job of Ray Train, which watches them."""

import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

from roformer_keras.base.checks import check_integer
from roformer_keras.base.errors import ProcessError, RoFormerError
from roformer_keras.base.extras import import_extra
from roformer_keras.data.adapters import WHOLE_BATCHES
from roformer_keras.distributed.cluster import check_resources
from roformer_keras.tasks.finetuning_settings import FinetuningSettings
from roformer_keras.training.pretraining_settings import PretrainingSettings


def train(
    settings: FinetuningSettings | PretrainingSettings,
    folder: str | os.PathLike,
    *,
    num_workers: int = 2,
    cpus_per_worker: int = 1,
    gpus_per_worker: int = 0,
    max_failures: int = 0,
    overwrite: bool = False,
) -> Path:
    """Trains as `finetune` or `pretrain` does, in several workers of Ray, on JAX.

    Args:
        settings: of a fine-tuning or a pre-training. Its files, by their full paths,
            are those that every worker can read.
        folder: path of the folder of this training, which all machines share. A
            training there that was interrupted is resumed.
        num_workers: int. How many processes train together.
        cpus_per_worker, gpus_per_worker: int. What Ray reserves for each.
        max_failures: int. How often all are started again after one has ended; they
            resume the last saved state.
        overwrite: bool. As in `finetune`.

    Returns:
        Path of the preset.

    Raises:
        ConfigurationError, SourceError, OutputError: as the training raises there.
        ProcessError: a worker ended in another way, more often than `max_failures`.

    Example:
        >>> from pathlib import Path
        >>> path = Path("reviews.csv").resolve()
        >>> lines = "text,label\\n好极了,好\\n太差了,差\\n不错,好\\n不好,差\\n"
        >>> size = path.write_text(lines, encoding="utf-8")
        >>> settings = roformer_keras.FinetuningSettings(
        ...     task="text-classification", train=str(path), epochs=1, max_length=16
        ... )
        >>> preset = distributed.train(settings, "shared", num_workers=1)
    """
    check_integer("num_workers", num_workers, minimum=1)
    check_integer("max_failures", max_failures, minimum=0)
    check_integer("cpus_per_worker", cpus_per_worker, minimum=1)
    check_integer("gpus_per_worker", gpus_per_worker, minimum=0)
    ray_train = import_extra("ray.train", "training on Ray")
    trainers = import_extra("ray.train.v2.api.data_parallel_trainer", "training on Ray")
    # Otherwise Ray would wait for them without end.
    check_resources(num_workers, cpus_per_worker, gpus_per_worker)
    folder = Path(folder).absolute()
    trainer = trainers.DataParallelTrainer(
        _train_in_worker,
        train_loop_config={
            "settings": settings,
            "folder": folder,
            "overwrite": overwrite,
        },
        scaling_config=ray_train.ScalingConfig(
            num_workers=num_workers,
            use_gpu=gpus_per_worker > 0,
            resources_per_worker={"CPU": cpus_per_worker, "GPU": gpus_per_worker},
        ),
        run_config=ray_train.RunConfig(
            # Hidden, so that the folder is still one of a training alone.
            storage_path=str(folder / ".ray"),
            failure_config=ray_train.FailureConfig(max_failures=max_failures),
            worker_runtime_env={"env_vars": {"KERAS_BACKEND": "jax"}},
        ),
    )
    try:
        trainer.fit()
    except ray_train.TrainingFailedError as error:
        failures = getattr(error, "worker_failures", {})
        for rank in sorted(failures):
            if isinstance(failures[rank], RoFormerError):
                raise failures[rank] from None
        raise ProcessError(
            f"a worker of {num_workers} has ended: {str(error).strip():.500}",
            hint="the same call resumes the last saved state",
        ) from error
    return folder / "preset"


def _train_in_worker(config):
    """Trains with the others; the first worker alone writes to the folder of the run.

    Each makes every batch whole, and the devices of all compute their rows of it.
    """
    context = import_extra("ray.train", "a worker").get_context()
    collective = import_extra("ray.train.collective", "a worker")
    rank, count = context.get_world_rank(), context.get_world_size()
    address = collective.broadcast_from_rank_zero(None if rank else _free_address())
    import jax
    import keras

    # It would take SIGTERM for itself, and the process would not end.
    jax.config.update("jax_enable_preemption_service", False)
    if count > 1:
        jax.distributed.initialize(address, count, rank)
    with tempfile.TemporaryDirectory() as scratch:
        folder, settings = config["folder"], config["settings"]
        if rank:
            # What the first worker has saved, for the same decisions.
            copy = Path(scratch, "run")
            if folder.exists():
                shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".ray"))
            folder = copy
        collective.barrier()
        run = _run_of(settings)(settings, folder, verbose=False)
        if count > 1:
            whole = keras.distribution.DataParallel(auto_shard_dataset=False)
            setattr(whole, WHOLE_BATCHES, True)
            run.distribution = whole
        run.execute(config["overwrite"])
    if count > 1:
        jax.distributed.shutdown()


def _free_address():
    """An address of this machine, with a port that is free."""
    ray: Any = import_extra("ray", "a worker")
    with socket.socket() as free:
        free.bind(("", 0))
        return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"


def _run_of(settings):
    if isinstance(settings, PretrainingSettings):
        from roformer_keras.training.pretrain import PretrainingRun

        return PretrainingRun
    from roformer_keras.training.finetune import FinetuningRun

    return FinetuningRun
