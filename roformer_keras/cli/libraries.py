"""Libraries that are not installed, found before a backend is imported."""

from collections.abc import Iterable, Iterator, Mapping

from roformer_keras.base.extras import require
from roformer_keras.hub.huggingface_hub import PREFIX

# What needs a library -> options, and how a value of them begins.
_NEEDS = {
    "--engine ray": (("engine",), "ray"),
    "the engine 'openvino'": (("engine", "worker_engine"), "openvino"),
    "a source at hf://": (("source", "teacher"), PREFIX),
    "an upload to the Hub": (("target",), PREFIX),
}


def check_libraries(options: Mapping, files: Iterable[str]) -> None:
    """Looks for the libraries that options of a command need.

    What a command needs for other reasons it requires itself.
    """
    # Its import brings NumPy.
    from roformer_keras.tables.formats import FORMATS

    for purpose, (names, start) in _NEEDS.items():
        if any(text.startswith(start) for text in given_texts(options, names)):
            require(purpose)
    endings = {
        f".{text.rpartition('.')[2].lower()}"
        for text in given_texts(options, (*files, "output"))
    }
    for form in FORMATS.values():
        is_used = form.name == options.get("format") or endings & {*form.endings}
        if is_used and form.needs is not None:
            require(form.needs)


def given_texts(options: Mapping, names: Iterable[str]) -> Iterator[str]:
    """The values of options, some of which have several."""
    for name in names:
        value = options.get(name) or ()
        yield from [value] if isinstance(value, str) else value
