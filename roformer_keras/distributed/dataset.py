"""Functions from a `ray.data.Dataset` to one with answers."""

import os
from collections.abc import Sequence
from typing import Any

from roformer_keras.checks import check_choice, check_integer, check_number
from roformer_keras.distributed.cluster import check_resources, worker_resources
from roformer_keras.distributed.verbs import (
    Embed,
    FillMask,
    Generate,
    Paraphrase,
    Predict,
    Similarity,
    Verb,
)
from roformer_keras.distributed.worker import ON_BAD_ROW, Worker
from roformer_keras.errors import ConfigurationError
from roformer_keras.extras import import_extra

_WORKERS = (
    *("num_workers", "cpus_per_worker", "gpus_per_worker", "on_bad_row", "batch_rows"),
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

    Example:
        >>> import ray
        >>> dataset = ray.data.from_items([{"text": "今天天气不错"}])
        >>> vectors = distributed.embed(dataset, "roformer-sim-char")
        >>> len(vectors.take(1)[0]["vector"])
        192
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
    """Adds the column `similarity`, the cosine of two texts.

    Args:
        dataset, source, max_length, batch_tokens, workers: as in `embed`.
        fields: names of the columns of both texts.

    Returns:
        A `ray.data.Dataset` that is computed when it is read.

    Raises:
        ConfigurationError: as in `map_texts`.

    Example:
        >>> import ray
        >>> dataset = ray.data.from_items([{"first": "你好", "second": "您好"}])
        >>> cosines = distributed.similarity(dataset, "roformer-sim-char")
    """
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
    """Adds columns of what the command `predict` answers.

    Args:
        dataset, batch_tokens, workers: as in `embed`.
        source: a preset folder of a task.
        fields: names of the columns of the texts, as many as the task takes.

    Returns:
        A `ray.data.Dataset` that is computed when it is read.

    Raises:
        ConfigurationError: as in `map_texts`.

    Example:
        >>> import ray
        >>> dataset = ray.data.from_items([{"text": "今天天气不错"}])
        >>> model = roformer_keras.RoFormerTextRegressor.from_preset("roformer-char")
        >>> model.save_to_preset("scores", overwrite=True)
        >>> answers = distributed.predict(dataset, "scores")
    """
    verb = Predict(source=source, batch_tokens=batch_tokens)
    return map_texts(dataset, verb, fields, None, **workers)


def generate(
    dataset: Any,
    source: str | os.PathLike,
    *,
    fields: Sequence[str] = ("text",),
    model: str | None = None,
    unilm: bool = False,
    num_return_sequences: int = 1,
    seed: int | None = None,
    number_field: str | None = None,
    **options: Any,
) -> Any:
    """Adds the column `outputs`: structs of `text` and `score`, as `generate` writes.

    Args:
        dataset, source, fields: as in `embed`; the texts are prompts.
        model: `"RoFormerCausalLM"` or `"RoFormerSim"`, if the source does not say it.
        unilm: bool. Whether attention is UniLM's.
        num_return_sequences: int. Texts for each prompt.
        seed: int, or None to draw one for each batch. With one, the texts of a row
            depend on it and on the number of the row alone.
        number_field: name of the column of these numbers, which a seed needs.
        options: of `RoFormerCausalLM.generate`, such as `max_length`, `method`,
            `batch_size` and `engine`; and `workers` as in `embed`.

    Returns:
        A `ray.data.Dataset` that is computed when it is read.

    Raises:
        ConfigurationError: as in `map_texts`, or a seed is given without numbers.

    Example:
        >>> import ray
        >>> dataset = ray.data.from_items([{"text": "今天天气不错"}])
        >>> texts = distributed.generate(dataset, "roformer-gpt-char", method="greedy")
    """
    workers = _taken(options)
    options["num_return_sequences"] = num_return_sequences
    verb = Generate(source=source, model=model, unilm=unilm, options=options, seed=seed)
    return _map_prompts(dataset, verb, fields, number_field, workers)


def paraphrase(
    dataset: Any,
    source: str | os.PathLike,
    *,
    fields: Sequence[str] = ("text",),
    seed: int | None = None,
    number_field: str | None = None,
    **options: Any,
) -> Any:
    """Adds the column `outputs`: similar sentences, whose `score` is the cosine.

    Args:
        dataset, source, fields, seed, number_field: as in `generate`.
        options: of `RoFormerSim.paraphrase`, such as `n` and `k`; and `workers` as in
            `embed`.

    Returns:
        A `ray.data.Dataset` that is computed when it is read.

    Raises:
        ConfigurationError: as in `generate`.

    Example:
        >>> import ray
        >>> dataset = ray.data.from_items([{"text": "今天天气不错"}])
        >>> texts = distributed.paraphrase(dataset, "roformer-sim-char", n=20, k=3)
    """
    workers = _taken(options)
    verb = Paraphrase(source=source, options=options, seed=seed)
    return _map_prompts(dataset, verb, fields, number_field, workers)


def fill_mask(
    dataset: Any,
    source: str | os.PathLike,
    *,
    fields: Sequence[str] = ("text",),
    top_k: int = 5,
    batch_tokens: int | None = None,
    **workers: Any,
) -> Any:
    """Adds the column `masks`: for each `[MASK]` the likeliest tokens.

    They are structs of `token`, `token_id` and `probability`.

    Args:
        dataset, source, fields, batch_tokens, workers: as in `embed`.
        top_k: int. Tokens for each mask.

    Returns:
        A `ray.data.Dataset` that is computed when it is read.

    Raises:
        ConfigurationError: as in `map_texts`.

    Example:
        >>> import ray
        >>> dataset = ray.data.from_items([{"text": "床前明[MASK]光"}])
        >>> tokens = distributed.fill_mask(dataset, "roformer-char", top_k=3)
    """
    verb = FillMask(source=source, top_k=top_k, batch_tokens=batch_tokens)
    return map_texts(dataset, verb, fields, 1, **workers)


def _taken(options):
    """The options of `map_texts`, which are removed."""
    return {name: options.pop(name) for name in _WORKERS if name in options}


def _map_prompts(dataset, verb, fields, number_field, workers):
    if verb.seed is not None and number_field is None:
        raise ConfigurationError(
            "a seed needs the numbers of the rows, or two batches would get the same "
            "texts",
            hint="name the column of the numbers with number_field=",
        )
    workers = {"batch_rows": verb.piece_rows, **workers}
    return map_texts(dataset, verb, fields, 1, number_field=number_field, **workers)


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
    batch_rows: int = Verb.piece_rows,
    number_field: str | None = None,
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
        batch_rows: int. Rows that a worker is given together, and sorts by length.
        number_field: name of the column of the numbers of rows, or None.

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
    # Reading and writing need one too.
    check_resources(num_workers, cpus_per_worker, gpus_per_worker, spare=1)
    return dataset.map_batches(
        Worker,
        fn_constructor_args=(verb, fields, on_bad_row, number_field),
        batch_size=batch_rows,
        batch_format="pyarrow",
        compute=ray.ActorPoolStrategy(size=num_workers),
        **worker_resources(cpus_per_worker, gpus_per_worker),
    )
