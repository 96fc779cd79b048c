"""Libraries that are not installed, found before a backend is imported."""

from collections.abc import Iterable, Iterator, Mapping

from roformer_keras.base.extras import require
from roformer_keras.hub.huggingface_hub import PREFIX


def check_libraries(options: Mapping, files: Iterable[str]) -> None:
    """Looks for the libraries that options of a command need.

    What a command needs for other reasons it requires itself.
    """
    for purpose in _purposes(options, (*files, "output")):
        require(purpose)


def _purposes(options, files) -> Iterator[str]:
    engines = {options.get("engine"), options.get("worker_engine")}
    if "ray" in engines:
        yield "--engine ray"
    if engines & {"openvino", "openvino-int8"}:
        yield "the engine 'openvino'"
    for name, purpose in (
        ("source", "a source at hf://"),
        ("teacher", "a source at hf://"),
        ("target", "an upload to the Hub"),
    ):
        if any(text.startswith(PREFIX) for text in _texts(options, (name,))):
            yield purpose
    # Its import brings NumPy.
    from roformer_keras.tables.formats import FORMATS

    endings = {name.rpartition(".")[2].lower() for name in _texts(options, files)}
    names = {*_texts(options, ("format",))}
    for form in FORMATS.values():
        is_used = form.name in names or endings & {one[1:] for one in form.endings}
        if is_used and form.needs is not None:
            yield form.needs


def _texts(options, names) -> Iterator[str]:
    for name in names:
        value = options.get(name) or ()
        yield from [value] if isinstance(value, str) else value
