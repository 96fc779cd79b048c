"""Functions from a `ray.data.Dataset` to one with answers."""

import os
from collections.abc import Sequence
from typing import Any

from roformer_keras.checks import check_choice, check_integer, check_number
from roformer_keras.distributed.verbs import Embed, Predict, Similarity, Verb
from roformer_keras.distributed.worker import ON_BAD_ROW, Worker
from roformer_keras.errors import ConfigurationError
from roformer_keras.extras import import_extra

# Rows that a worker is given together, and sorts by length.
BATCH_ROWS = 2048
# Each backend takes all cores in every worker unless one of these says otherwise.
_THREADS = (
    *("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "NPROC"),
)


def embed(
    dataset: Any,
    source: str | os.PathLike,
    *,
    fields: Sequence[str] = ("text",),
    max_length: int | None = None,
    normalize: bool = True,
    dtype: str | None = None,
    batch_tokens: int | None = None,
    **workers: Any,
) -> Any:
    """Adds the column `vector`: float32, of length 1 unless `normalize` is False.

    Args:
        dataset: `ray.data.Dataset`; all its columns stay.
        source: of the model, which every worker can read.
        fields: name of the column of the texts.
        max_length: int or None. Tokens to which texts are cut.
        normalize: bool. Whether vectors have length 1.
        dtype: str or None, such as `"bfloat16"`.
        batch_tokens: int or None. Maximum tokens of a batch, padding included.
        workers: `num_workers`, `cpus_per_worker`, `gpus_per_worker`, `on_bad_row`
            and `batch_rows` of `map_texts`.

    Returns:
        A `ray.data.Dataset` that is computed when it is read.

    Raises:
        ConfigurationError: as in `map_texts`.
    """
    verb = Embed(
        source=source,
        max_length=max_length,
        normalize=normalize,
        dtype=dtype,
        batch_tokens=batch_tokens,
    )
    return map_texts(dataset, verb, fields, 1, **workers)


def similarity(
    dataset: Any,
    source: str | os.PathLike,
    *,
    fields: Sequence[str] = ("first", "second"),
    max_length: int | None = None,
    batch_tokens: int | None = None,
    **workers: Any,
) -> Any:
    """Adds the column `similarity`, the cosine of two texts; see `embed`."""
    verb = Similarity(source=source, max_length=max_length, batch_tokens=batch_tokens)
    return map_texts(dataset, verb, fields, 2, **workers)


def predict(
    dataset: Any,
    source: str | os.PathLike,
    *,
    fields: Sequence[str] = ("text",),
    batch_tokens: int | None = None,
    **workers: Any,
) -> Any:
    """Adds columns of what the command `predict` answers; arguments as in `embed`."""
    verb = Predict(source=source, batch_tokens=batch_tokens)
    return map_texts(dataset, verb, fields, None, **workers)


def map_texts(
    dataset: Any,
    verb: Verb,
    fields: Sequence[str],
    count: int | None,
    *,
    num_workers: int = 1,
    cpus_per_worker: int = 1,
    gpus_per_worker: float = 0,
    on_bad_row: str = "report",
    batch_rows: int = BATCH_ROWS,
) -> Any:
    """Answers the texts of a dataset, with one model in each worker process.

    Args:
        dataset: `ray.data.Dataset`.
        verb: what is computed.
        fields: names of the columns of the texts.
        count: int or None. How many texts a row has.
        num_workers: int. Processes, each with its own model.
        cpus_per_worker: int. Cores, and threads, of each.
        gpus_per_worker: float. GPUs of each.
        on_bad_row: `"report"` or `"error"`, see `Worker`.
        batch_rows: int. Rows that a worker is given together.

    Raises:
        ConfigurationError: Ray is not installed, an argument breaks its rule, or the
            workers take all logical CPUs of Ray, so that nothing is left to read with.
    """
    ray = import_extra("ray.data", "roformer_keras.distributed")
    check_integer("num_workers", num_workers, minimum=1)
    check_integer("cpus_per_worker", cpus_per_worker, minimum=1)
    check_number("gpus_per_worker", gpus_per_worker, minimum=0)
    check_integer("batch_rows", batch_rows, minimum=1)
    check_choice("on_bad_row", on_bad_row, ON_BAD_ROW)
    fields = (fields,) if isinstance(fields, str) else tuple(fields)
    if not fields or (count is not None and len(fields) != count):
        raise ConfigurationError(
            f"fields must name {count or 'at least 1'} of the columns, got {fields!r}"
        )
    core = import_extra("ray", "roformer_keras.distributed")
    if core.is_initialized():
        present, wanted = (
            core.cluster_resources().get("CPU", 0),
            num_workers * cpus_per_worker,
        )
        if wanted >= present:
            raise ConfigurationError(
                f"the workers must leave Ray a logical CPU to read and write with: "
                f"{num_workers} workers take {wanted} of {present:g}",
                hint="lower num_workers, or start Ray with more num_cpus; nodes that a "
                "cluster adds later do not count",
            )
    threads = dict.fromkeys(_THREADS, str(cpus_per_worker))
    resources: dict[str, Any] = {"num_cpus": cpus_per_worker}
    if gpus_per_worker:
        resources["num_gpus"] = gpus_per_worker
    return dataset.map_batches(
        Worker,
        fn_constructor_args=(verb, fields, on_bad_row),
        batch_size=batch_rows,
        batch_format="pyarrow",
        compute=ray.ActorPoolStrategy(size=num_workers),
        # Set before the process starts, and so before a backend is imported.
        runtime_env={"env_vars": threads},
        **resources,
    )
