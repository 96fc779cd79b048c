"""A Ray to work on: one of this machine, or a cluster; and what workers take of it."""

import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.base.extras import import_extra
from roformer_keras.base.processes import available_cores, restored_handlers
from roformer_keras.io.atomic import one_line

# Each backend takes all cores in every worker unless one of these says otherwise.
_THREADS = (
    "OMP_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "NPROC",
)
# Each backend takes all memory of a GPU at its start, which others may share.
_SHARED_GPU = {
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
# Blocks of rows on their way; Ray writes more to the disk.
_STORE_BYTES = 2 * 10**8
# Seconds for which a Ray may take to accept a connection.
_PATIENCE = 5
_PACKAGE = Path(__file__).parents[1]


def worker_resources(cpus: int, gpus: float = 0) -> dict[str, Any]:
    """Keywords of `map_batches` for a worker of so many cores, threads and GPUs."""
    # Set before the process starts, and so before a backend is imported.
    variables = dict.fromkeys(_THREADS, str(cpus))
    found: dict[str, Any] = {"num_cpus": cpus}
    if gpus:
        found["num_gpus"] = gpus
        variables |= _SHARED_GPU if gpus < 1 else {}
    return {**found, "runtime_env": {"env_vars": variables}}


def check_resources(
    num_workers: int, cpus_per_worker: int, gpus_per_worker: float = 0, spare: int = 0
) -> None:
    """Raises ConfigurationError if workers would wait for what Ray does not have."""
    ray = import_extra("ray", "roformer_keras.distributed")
    if not ray.is_initialized():
        return
    resources = ray.cluster_resources()
    if num_workers * gpus_per_worker > resources.get("GPU", 0):
        raise ConfigurationError(
            f"{num_workers} workers take {num_workers * gpus_per_worker:g} GPUs, and "
            f"Ray has {resources.get('GPU', 0):g}",
            hint="lower num_workers or gpus_per_worker",
        )
    nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    if cpus_per_worker > max(nodes, default=0):
        raise ConfigurationError(
            f"a worker takes {cpus_per_worker} logical CPUs, and no machine of Ray has "
            f"more than {max(nodes, default=0):g}",
            hint="lower cpus_per_worker",
        )
    present = resources.get("CPU", 0)
    wanted = num_workers * cpus_per_worker
    if wanted + spare > present:
        rule = "there must be a logical CPU for each core of a worker"
        if spare:
            rule = "the workers must leave Ray a logical CPU to read and write with"
        raise ConfigurationError(
            f"{rule}: {num_workers} workers take {wanted} of {present:g}",
            hint="lower num_workers, or start Ray with more num_cpus; nodes that a "
            "cluster adds later do not count",
        )


@contextmanager
def ray_of(
    address: str | None,
    num_workers: int,
    cpus_per_worker: int,
    gpus_per_worker: float = 0,
    spare: int = 0,
) -> Iterator:
    """Joins a Ray, or starts one of this machine, until the block ends."""
    # Read when Ray is imported.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # It warns on each run that workers which die are started again.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    ray = import_extra("ray", "--engine ray")
    options: dict[str, Any] = {"address": address}
    if address is None:
        paths = [str(_PACKAGE.parent), os.environ.get("PYTHONPATH")]
        # A variable such as RAY_ADDRESS does not choose another one.
        options |= {
            "address": "local",
            "num_cpus": max(available_cores(), num_workers * cpus_per_worker + spare),
            "include_dashboard": False,
            "object_store_memory": _STORE_BYTES,
            "runtime_env": {
                "env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
            },
        }
    _check_answers(address)
    try:
        # Ray sets its own handlers.
        with restored_handlers(), _silent_stderr():
            ray.init(logging_level=logging.ERROR, log_to_driver=False, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        what = "start Ray" if address is None else f"join the Ray at {address}"
        raise ConfigurationError(f"cannot {what}: {one_line(error)}") from error
    try:
        check_resources(num_workers, cpus_per_worker, gpus_per_worker, spare)
        yield ray
    finally:
        ray.shutdown()


def _check_answers(address):
    """Raises ConfigurationError if nothing listens: Ray would wait for minutes."""
    match = re.fullmatch(r"(?:ray://)?([^/:]+|\[[^/]+\]):(\d{1,5})", address or "")
    if match is None:
        return
    host, port = match[1].strip("[]"), int(match[2])
    try:
        socket.create_connection((host, port), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"no Ray answers at {address}: {one_line(error)}",
            hint="start it with `ray start --head`, which shows its address",
        ) from error


@contextmanager
def _silent_stderr():
    """Shows nothing of what Ray's C++ writes at its start: its level of logging."""
    descriptor = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(descriptor, 2)
        os.close(descriptor)
        os.close(nowhere)
