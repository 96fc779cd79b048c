"""`bert4keras.snippets`: what scripts take from it.

Texts are in `text_functions`, arrays and batches in `data_generator`, and
writing in `decoding`.
"""

import functools
import itertools
import json
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.base.keras_backend import name_error
from roformer_keras.base.types import Unchecked
from roformer_keras.bert4keras.data_generator import (  # noqa: F401
    DataGenerator,
    sequence_padding,
    to_array,
)
from roformer_keras.bert4keras.decoding import (  # noqa: F401
    AutoRegressiveDecoder,
    ViterbiDecoder,
    softmax,
)
from roformer_keras.bert4keras.text_functions import (  # noqa: F401
    convert_to_str,
    convert_to_unicode,
    is_one_of,
    is_string,
    lowercase_and_normalize,
    open,
    string_matching,
    strQ2B,
    text_segmentate,
    truncate_sequences,
)

is_py2 = False
basestring = str
# In Python 2 a module that prints Unicode; Python 3 needs none.
uniout = None


def __getattr__(name: str) -> Unchecked:
    # Loaded on request: the tokenizers and `DataGenerator` need none of them.
    if name in ("K", "keras", "tf"):
        from roformer_keras.bert4keras import backend

        return getattr(backend, name)
    if name == "adversarial_training":
        from roformer_keras.bert4keras.adversarial import adversarial_training

        return adversarial_training
    raise name_error(__name__, name, __all__)


def insert_arguments(**arguments: Unchecked) -> Callable:
    """A decorator of methods: keyword arguments that become attributes.

    Args:
        arguments: names and defaults.
    """

    def decorate(method: Callable) -> Callable:
        @functools.wraps(method)
        def call(self, *args, **kwargs):
            for name, default in arguments.items():
                setattr(self, name, kwargs.pop(name, default))
            return method(self, *args, **kwargs)

        return call

    return decorate


def delete_arguments(*arguments: str) -> Callable:
    """A decorator of methods, which do not take these keyword arguments any more."""

    def decorate(method: Callable) -> Callable:
        @functools.wraps(method)
        def call(self, *args, **kwargs):
            for name in arguments:
                if name in kwargs:
                    raise TypeError(
                        f"{type(self).__name__} got an unexpected keyword argument "
                        f"{name!r}"
                    )
            return method(self, *args, **kwargs)

        return call

    return decorate


# === Several processes ===


def parallel_apply_generator(
    func: Callable,
    iterable: Iterable,
    workers: int,
    max_queue_size: int,
    dummy: bool = False,
    random_seeds: bool | Sequence[int | None] | None = True,
) -> Iterator[tuple[int, Unchecked]]:
    """The results of a function, each with its number, as they become ready.

    Args:
        func: of one element.
        iterable: elements.
        workers: int. Number of processes.
        max_queue_size: int. How many elements wait at most.
        dummy: bool. Whether to use threads instead.
        random_seeds: a seed of `numpy.random` for each process; True for random ones,
            False or None for that of this process.

    Raises:
        Exception: `func` raised it. With bert4keras the caller waits for ever.
    """
    pools: Any = multiprocessing
    if dummy:
        import multiprocessing.dummy as pools
    else:
        # A forked process has the functions of a script, which others cannot import:
        # scripts have no `if __name__ == "__main__"`.
        methods = multiprocessing.get_all_start_methods()
        pools = multiprocessing.get_context("fork" if "fork" in methods else "spawn")
    elements, results = pools.Queue(), pools.Queue()
    seeds = random_seeds or []
    seeds = [None] * workers if seeds is True else list(seeds)
    threads = [
        pools.Process(target=_work, args=(func, elements, results, seed))
        for seed in itertools.islice(
            itertools.chain(seeds, itertools.repeat(())), workers
        )
    ]
    for thread in threads:
        thread.daemon = True
        thread.start()
    missing = 0
    try:
        for element in enumerate(iterable):
            if missing == workers + max_queue_size:
                yield _result(results)
                missing -= 1
            elements.put(element)
            missing += 1
        for _ in range(missing):
            yield _result(results)
    finally:
        _stop(threads, elements, dummy)


def _work(func, elements, results, seed):
    """Applies a function, until it is given None."""
    if seed != ():
        np.random.seed(seed)
    while (element := elements.get()) is not None:
        number, value = element
        try:
            results.put((number, func(value), None))
        except Exception as error:
            results.put((number, None, error))


def _result(results):
    number, value, error = results.get()
    if error is not None:
        raise error
    return number, value


def _stop(workers, elements, are_threads):
    if not are_threads:
        for worker in workers:
            worker.terminate()
        return
    # Threads end by themselves; what waits is not computed.
    while not elements.empty():
        elements.get()
    for _ in workers:
        elements.put(None)


def parallel_apply(
    func: Callable,
    iterable: Iterable,
    workers: int,
    max_queue_size: int,
    callback: Callable | None = None,
    dummy: bool = False,
    random_seeds: bool | Sequence[int | None] | None = True,
    unordered: bool = True,
) -> list | None:
    """The results of a function that several processes apply.

    Args:
        func, iterable, workers, max_queue_size, dummy, random_seeds: as in
            `parallel_apply_generator`.
        callback: of one result, which it is given as soon as it is ready.
        unordered: bool. False for the order of the elements.

    Returns:
        list of results, or None with a callback.
    """
    results = parallel_apply_generator(
        func, iterable, workers, max_queue_size, dummy, random_seeds
    )
    if callback is not None:
        for _, result in results:
            callback(result)
        return None
    if not unordered:
        results = iter(sorted(results, key=lambda pair: pair[0]))
    return [result for _, result in results]


# === A server ===


class WebServing:
    """A server of functions, for trying them.

    Args:
        host, port: where it listens.
        server: one that Bottle knows, such as `"wsgiref"` or `"paste"`.

    Raises:
        ConfigurationError: Bottle is not installed.

    Example:
        web = WebServing(port=8864)
        web.route("/similar", similar, {"text": (None, True), "n": (int, False)})
        web.start()
    """

    def __init__(self, host: str = "0.0.0.0", port: int = 8000, server: str = "paste"):
        try:
            import bottle
        except ImportError:
            raise ConfigurationError(
                "WebServing needs Bottle: pip install bottle paste. The package's own "
                "server is `roformer-keras serve`"
            ) from None
        self.host = host
        self.port = port
        self.server = server
        self.bottle = bottle

    def wraps(
        self,
        func: Callable,
        arguments: Mapping[str, tuple[Callable | None, bool]],
        method: str = "GET",
    ) -> Callable:
        """A function of the current request, which returns JSON.

        Args:
            func: its result must be JSON.
            arguments: for each argument of it a function of its text, or None, and
                whether a request must have it.
            method: `"GET"` or `"POST"`.

        Returns:
            A function, whose JSON has the fields `code` (0; 1 without an argument; 2
            for an error), `desc` and `data`.
        """

        def answer(code: int, text: str, data: Unchecked) -> str:
            fields = {"code": code, "desc": text, "data": data}
            return json.dumps(fields, ensure_ascii=False)

        def call():
            request = self.bottle.request
            fields = request.GET if method == "GET" else request.POST
            parameters = {}
            for name, (convert, is_required) in arguments.items():
                text = fields.getunicode(name)
                if text is not None:
                    parameters[name] = text if convert is None else convert(text)
                elif is_required:
                    return answer(1, f'lack of "{name}" argument', {})
            try:
                return answer(0, "succeeded", func(**parameters))
            except Exception as error:
                return answer(2, str(error), {})

        return call

    def route(
        self,
        path: str,
        func: Callable,
        arguments: Mapping[str, tuple[Callable | None, bool]],
        method: str = "GET",
    ) -> None:
        """Answers requests of a path by a function; see `wraps`."""
        self.bottle.route(path, method=method)(self.wraps(func, arguments, method))

    def start(self) -> None:
        """Serves until it is interrupted."""
        self.bottle.run(host=self.host, port=self.port, server=self.server)


__all__ = ["adversarial_training", "basestring", "is_py2"]  # noqa: F822
__all__ += [
    name
    for name, value in globals().items()
    if str(getattr(value, "__module__", "")).startswith("roformer_keras.bert4keras")
    and name[0] != "_"
]
