"""Libraries that are not installed, found before a backend is imported."""

from collections.abc import Iterable, Iterator, Mapping

from roformer_keras.base.extras import require
from roformer_keras.hub.huggingface_hub import PREFIX

# Endings of files, or their --format, by what reads and writes them.
_FILES = {
    "a Parquet or Arrow file": ("parquet", "arrow", "ipc", "feather"),
    "an .xlsx file": ("xlsx",),
}


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
    endings = {name.rpartition(".")[2].lower() for name in _texts(options, files)}
    endings |= {*_texts(options, ("format",))}
    for purpose, of_purpose in _FILES.items():
        if endings.intersection(of_purpose):
            yield purpose


def _texts(options, names) -> Iterator[str]:
    for name in names:
        value = options.get(name) or ()
        yield from [value] if isinstance(value, str) else value
