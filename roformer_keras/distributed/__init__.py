"""Work in many processes of Ray: batch inference on Ray Data, and `train` on Ray Train.

Each verb has a function on datasets: `embed`, `similarity`, `search`, `rerank`,
`predict`, `generate`, `paraphrase` and `fill_mask`, see `dataset.function_of`.
"""

from typing import Any

from roformer_keras.base.keras_backend import lazy_names

_load_name, _list_names, __all__ = lazy_names(__name__, __file__)


def __getattr__(name: str) -> Any:
    """A function of a verb, or a name of `__init__.pyi`."""
    if not name.startswith("_"):
        from roformer_keras.distributed.dataset import function_named

        if (function := function_named(name)) is not None:
            return function
    return _load_name(name)


def __dir__() -> list[str]:
    from roformer_keras.verbs import VERBS

    return [*_list_names(), *(name.replace("-", "_") for name in VERBS)]
