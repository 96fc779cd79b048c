"""Functions from a `ray.data.Dataset` to one with answers, one for each verb."""

import os
from collections.abc import Sequence
from typing import Any

from roformer_keras.base.checks import check_choice, check_integer, check_number
from roformer_keras.base.errors import refuse
from roformer_keras.base.extras import import_extra
from roformer_keras.distributed.cluster import check_resources, worker_resources
from roformer_keras.distributed.worker import ON_BAD_ROW, Worker
from roformer_keras.verbs.embed import Embed, Similarity
from roformer_keras.verbs.fill_mask import FillMask
from roformer_keras.verbs.predict import Predict
from roformer_keras.verbs.search import Rerank, Search
from roformer_keras.verbs.verb import Verb
from roformer_keras.verbs.writing import Generate, Paraphrase, WritingVerb

_Source = str | os.PathLike
# Options of `map_texts`; the verb has the others.
_WORKERS = (
    "num_workers",
    "cpus_per_worker",
    "gpus_per_worker",
    "on_bad_row",
    "batch_rows",
    "number_field",
)


def embed(dataset: Any, source: _Source, **options: Any) -> Any:
    """Adds the column `vector`: float32, of length 1 unless `normalize` is False.

    Args:
        dataset: `ray.data.Dataset`; all its columns stay.
        source: of the model, which every worker can read.
        options: `fields`, the name of the column of the texts; the options of the
            command `embed`: `max_length`, `normalize`, `dtype`, `batch_tokens`,
            `config`, `vocabulary`; and those of workers, as in `map_texts`.

    Returns:
        A `ray.data.Dataset` that is computed when it is read.

    Raises:
        ConfigurationError: as in `map_texts`, or an option is unknown.

    Example:
        >>> import ray
        >>> dataset = ray.data.from_items([{"text": "今天天气不错"}])
        >>> vectors = distributed.embed(dataset, "roformer-sim-char")
        >>> len(vectors.take(1)[0]["vector"])
        192
    """
    return map_verb(Embed, dataset, source, **options)


def similarity(dataset: Any, source: _Source, **options: Any) -> Any:
    """Adds the column `similarity`, the cosine of two texts.

    Args:
        dataset, source: as in `embed`.
        options: `fields`, the names of the columns of both texts (default: `first` and
            `second`); the options of the command `similarity`; and those of workers, as
            in `map_texts`.

    Example:
        >>> import ray
        >>> dataset = ray.data.from_items([{"first": "你好", "second": "您好"}])
        >>> cosines = distributed.similarity(dataset, "roformer-sim-char")
    """
    return map_verb(Similarity, dataset, source, **options)


def search(dataset: Any, source: _Source, **options: Any) -> Any:
    """Adds the column `results`: the texts of an index that are nearest to a query.

    They are structs of `text`, `score` and `row`.

    Args:
        dataset, source: as in `embed`.
        options: `index`, the folder of `search.build_index`, which every worker can
            read; `fields`, the name of the column of the queries (default: `query`);
            the other options of the command `search`; and those of workers, as in
            `map_texts`.

    Example:
        >>> import ray
        >>> model = roformer_keras.RoFormerSim.from_preset("roformer-sim-char")
        >>> folder = roformer_keras.search.build_index("lines", ["床前明月光"], model)
        >>> dataset = ray.data.from_items([{"query": "月亮"}])
        >>> found = distributed.search(dataset, "roformer-sim-char", index=folder)
    """
    return map_verb(Search, dataset, source, **options)


def rerank(dataset: Any, source: _Source, **options: Any) -> Any:
    """Adds the column `score`: how well a text fits a query.

    Args:
        dataset, source: as in `embed`.
        options: `fields`, the names of both columns (default: `query` and `text`); the
            options of the command `rerank`; and those of workers, as in `map_texts`.

    Example:
        >>> import ray
        >>> dataset = ray.data.from_items([{"query": "月亮", "text": "床前明月光"}])
        >>> scores = distributed.rerank(dataset, "roformer-sim-char")
    """
    return map_verb(Rerank, dataset, source, **options)


def predict(dataset: Any, source: _Source, **options: Any) -> Any:
    """Adds columns with the answers of the command `predict`.

    Args:
        dataset: as in `embed`.
        source: a preset folder of a task.
        options: `fields`, the names of the columns of the texts, as many as the task
            takes (default: `text`); `batch_tokens`; and those of workers, as in
            `map_texts`.

    Example:
        >>> import ray
        >>> dataset = ray.data.from_items([{"text": "今天天气不错"}])
        >>> model = roformer_keras.RoFormerTextRegressor.from_preset("roformer-char")
        >>> model.save_to_preset("scores", overwrite=True)
        >>> answers = distributed.predict(dataset, "scores")
    """
    return map_verb(Predict, dataset, source, **options)


def generate(dataset: Any, source: _Source, **options: Any) -> Any:
    """Adds the column `outputs`: structs of `text` and `score`, as `generate` writes.

    Args:
        dataset, source: as in `embed`; the texts are prompts.
        options: `fields`; the options of the command `generate`, with `stop_tokens` for
            `--stop`; and those of workers, as in `map_texts`. A `seed` needs
            `number_field`: the texts of a row depend on it and on the number of the row
            alone. Without one, it is drawn for each batch.

    Example:
        >>> import ray
        >>> dataset = ray.data.from_items([{"text": "今天天气不错"}])
        >>> texts = distributed.generate(dataset, "roformer-gpt-char", method="greedy")
    """
    return map_verb(Generate, dataset, source, **options)


def paraphrase(dataset: Any, source: _Source, **options: Any) -> Any:
    """Adds the column `outputs`: similar sentences, whose `score` is the cosine.

    Args:
        dataset, source: as in `embed`.
        options: `fields`; the options of the command `paraphrase`, such as `n` and `k`;
            `number_field` as in `generate`; and those of workers, as in `map_texts`.

    Example:
        >>> import ray
        >>> dataset = ray.data.from_items([{"text": "今天天气不错"}])
        >>> texts = distributed.paraphrase(dataset, "roformer-sim-char", n=20, k=3)
    """
    return map_verb(Paraphrase, dataset, source, **options)


def fill_mask(dataset: Any, source: _Source, **options: Any) -> Any:
    """Adds the column `masks`: for each `[MASK]` the likeliest tokens.

    They are structs of `token`, `token_id` and `probability`.

    Args:
        dataset, source: as in `embed`.
        options: `fields`; the options of the command `fill-mask`, such as `top_k`; and
            those of workers, as in `map_texts`.

    Example:
        >>> import ray
        >>> dataset = ray.data.from_items([{"text": "床前明[MASK]光"}])
        >>> tokens = distributed.fill_mask(dataset, "roformer-char", top_k=3)
    """
    return map_verb(FillMask, dataset, source, **options)


def map_verb(
    kind: type[Verb],
    dataset: Any,
    source: _Source,
    *,
    fields: str | Sequence[str] | None = None,
    **options: Any,
) -> Any:
    """Answers the texts of a dataset by a verb; `options` are of it and of workers."""
    workers = {name: options.pop(name) for name in _WORKERS if name in options}
    verb = kind.of({"source": source, **options})
    if fields is None:
        fields = verb.fields or ("text",)
    return map_texts(dataset, verb, fields, **workers)


def map_texts(
    dataset: Any,
    verb: Verb,
    fields: str | Sequence[str],
    *,
    num_workers: int = 1,
    cpus_per_worker: int = 1,
    gpus_per_worker: float = 0,
    on_bad_row: str = "report",
    batch_rows: int | None = None,
    number_field: str | None = None,
    error_field: str | None = None,
) -> Any:
    """Answers the texts of a dataset, with one model in each worker process.

    Args:
        dataset: `ray.data.Dataset`.
        verb: a verb of `roformer_keras.verbs`, with its options.
        fields: names of the columns of the texts.
        num_workers: int. Processes, each with its own model.
        cpus_per_worker: int. Cores, and threads, of each.
        gpus_per_worker: float. GPUs of each.
        on_bad_row: `"report"` or `"error"`, see `Worker`.
        batch_rows: int. Rows that a worker is given together, and sorts by length
            (default: 2048; of `generate` 256, of `paraphrase` 16).
        number_field: name of the column of the numbers of rows, or None.
        error_field: name of the column that says which rows cannot be answered, or
            None.

    Raises:
        ConfigurationError: Ray is not installed, an argument breaks its rule, or the
            workers take all logical CPUs of Ray, so that nothing is left to read with.
    """
    refuse(
        isinstance(verb, WritingVerb) and verb.seed is not None and not number_field,
        "a seed needs the numbers of the rows, or two batches would get the same texts",
        hint="name the column of the numbers with number_field=",
    )
    batch_rows = verb.piece_rows if batch_rows is None else batch_rows
    ray = import_extra("ray.data", "roformer_keras.distributed")
    check_integer("num_workers", num_workers, minimum=1)
    check_integer("cpus_per_worker", cpus_per_worker, minimum=1)
    check_number("gpus_per_worker", gpus_per_worker, minimum=0)
    check_integer("batch_rows", batch_rows, minimum=1)
    check_choice("on_bad_row", on_bad_row, ON_BAD_ROW)
    fields = (fields,) if isinstance(fields, str) else tuple(fields)
    count = len(verb.fields)
    refuse(
        not fields or (count and len(fields) != count),
        f"fields must name {count or 'at least 1'} of the columns, got {fields!r}",
    )
    # Reading and writing need one too.
    check_resources(num_workers, cpus_per_worker, gpus_per_worker, spare=1)
    return dataset.map_batches(
        Worker,
        fn_constructor_args=(verb, fields, on_bad_row, number_field, error_field),
        batch_size=batch_rows,
        batch_format="pyarrow",
        compute=ray.ActorPoolStrategy(size=num_workers),
        **worker_resources(cpus_per_worker, gpus_per_worker),
    )
