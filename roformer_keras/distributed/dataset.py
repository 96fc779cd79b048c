"""Functions from a `ray.data.Dataset` to one with answers, one for each verb."""

from collections.abc import Callable, Sequence
from typing import Any

from roformer_keras.base.checks import check_choice, check_integer, check_number
from roformer_keras.base.errors import refuse
from roformer_keras.base.extras import import_extra
from roformer_keras.distributed.cluster import check_resources, worker_resources
from roformer_keras.distributed.worker import ON_BAD_ROW, Worker
from roformer_keras.verbs import VERBS
from roformer_keras.verbs.surfaces import show_kind
from roformer_keras.verbs.verb import Verb

# Options of `map_texts`; the verb has the others.
_WORKERS = (
    "num_workers",
    "cpus_per_worker",
    "gpus_per_worker",
    "on_bad_row",
    "batch_rows",
    "number_field",
)


def function_of(kind: type[Verb]) -> Callable[..., Any]:
    """The function of a verb, such as `distributed.embed`."""

    def map_verb(
        dataset: Any,
        source: Any,
        *,
        fields: str | Sequence[str] | None = None,
        **options: Any,
    ) -> Any:
        workers = {name: options.pop(name) for name in _WORKERS if name in options}
        verb = kind.of({"source": source, **options})
        names = fields or verb.inputs.fields or ("text",)
        return map_texts(dataset, verb, names, **workers)

    summary = (kind.__doc__ or "").partition("\n")[0]
    columns = kind.output.columns.items()
    added = ", ".join(f"`{name}`: {show_kind(of)}" for name, of in columns)
    names = ", ".join(f"`{name}`" for name in kind.option_names() if name != "source")
    map_verb.__name__ = map_verb.__qualname__ = kind.name.replace("-", "_")
    map_verb.__doc__ = f"""{summary}

    Adds {f"the column {added}" if added else "the answers of the task"}.

    Args:
        dataset: `ray.data.Dataset`; all its columns stay.
        source: of the model, which every worker can read.
        fields: names of the columns of the texts (default:
            {", ".join(kind.inputs.fields) or "text"}).
        options: {names}, as the flags of the command `{kind.name}`; and the options of
            workers, as in `map_texts`.

    Returns:
        A `ray.data.Dataset` that is computed when it is read.

    Raises:
        ConfigurationError: as in `map_texts`, or an option is unknown.
    """
    return map_verb


def function_named(name: str) -> Callable[..., Any] | None:
    """The function of a registered verb, or None."""
    kind = VERBS.get(name.replace("_", "-"))
    return function_of(kind) if kind else None


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
        getattr(verb, "seed", None) is not None and not number_field,
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
    count = len(verb.inputs.fields)
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
