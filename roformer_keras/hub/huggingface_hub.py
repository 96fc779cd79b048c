"""Models on the Hugging Face Hub: `hf://owner/name`, read by `huggingface_hub`.

That library manages the cache, tokens, offline mode and resumed downloads, and reads
its own environment variables.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roformer_keras.base.checks import check_instance
from roformer_keras.base.errors import (
    DownloadError,
    OutputError,
    RoFormerError,
    SourceError,
    printable,
)
from roformer_keras.base.extras import import_extra
from roformer_keras.io.sources import (
    HUGGINGFACE_PARTS,
    HUGGINGFACE_PATHS,
    PRESET_BASELINES,
    PRESET_FILES,
    PRESET_PATHS,
    SENTENCE_FOLDERS,
    SENTENCE_PARTS,
)

PREFIX = "hf://"
# A revision becomes a path in the cache.
_NAME = re.compile(
    r"(?P<name>\w[\w.-]+/[\w.-]+)(@(?P<revision>(?!/|.*\.\.)[\w./-]+))?", re.ASCII
)
# A repository may hold the same weights several times: the first existing file counts.
# The last name is a preset's.
_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "tf_model.h5", "model.weights.h5")
_SMALL = (
    *(HUGGINGFACE_PARTS | SENTENCE_PARTS).values(),
    *(name for name in PRESET_FILES if name != _WEIGHTS[-1]),
    PRESET_BASELINES,
)


def fetch(source: str) -> Path:
    """The folder of a model on the Hub, downloaded unless it is in the cache."""
    match = _NAME.fullmatch(source.removeprefix(PREFIX))
    if match is None:
        raise SourceError(
            f"a model on the Hugging Face Hub must be {PREFIX}owner/name or "
            f"{PREFIX}owner/name@revision, got {source[:80]!r}"
        )
    hub = import_extra("huggingface_hub", f"a source at {PREFIX}")
    for name in _WEIGHTS:
        stem, _, extension = name.partition(".")
        patterns = [*_SMALL, name, f"{name}.index.json", f"{stem}-*-of-*.{extension}"]
        reason = f"{source} cannot be fetched"
        with _errors_of_hub(DownloadError, reason):
            folder = Path(
                hub.snapshot_download(
                    match["name"], revision=match["revision"], allow_patterns=patterns
                )
            )
        if any((folder / file).exists() for file in (name, f"{name}.index.json")):
            return folder
    raise SourceError(
        f"{source} holds no weights: none of {', '.join(_WEIGHTS)}, whole or in shards"
    )


def check_repository(repository: str) -> str:
    """The `owner/name` of a repository, without a preceding `hf://`."""
    check_instance("repository", repository, str)
    name = repository.removeprefix(PREFIX)
    match = _NAME.fullmatch(name)
    if match is None or match["revision"]:
        raise OutputError(
            f"a repository on the Hugging Face Hub must be owner/name, got "
            f"{repository[:80]!r}"
        )
    return name


def upload(
    api: Any, folder: Path, name: str, private: bool | None, commit_message: str | None
) -> str:
    """Makes a folder the content of a repository on the Hub; returns the commit.

    It deletes the repository's files of another model in this package's formats. Files
    of other names, the README.md and the history stay.
    """
    with _errors_of_hub(OutputError, f"{PREFIX}{name} cannot be written"):
        api.create_repo(name, private=private, exist_ok=True)
        stored = api.list_repo_files(name)
        commit = api.upload_folder(
            repo_id=name,
            folder_path=folder,
            commit_message=commit_message or "Upload a RoFormer",
            ignore_patterns=[_CARD] if _CARD in stored else None,
            delete_patterns=list(filter(_is_of_model, stored)),
        )
    return str(commit.commit_url)


_CARD = "README.md"
_OWN = (HUGGINGFACE_PATHS | PRESET_PATHS | {*_WEIGHTS}) - {_CARD}
_PART = re.compile(r"(model|pytorch_model)(-\d{5}-of-\d{5}\.\w+|\.\w+\.index\.json)")


def _is_of_model(path: str) -> bool:
    """True if a file of a repository belongs to a model in a format of this package."""
    is_module = path.split("/")[0] in SENTENCE_FOLDERS
    return path in _OWN or is_module or _PART.fullmatch(path) is not None


@contextmanager
def _errors_of_hub(kind: type[RoFormerError], what: str) -> Iterator[None]:
    """Turns errors of huggingface_hub into one error that begins with `what`."""
    try:
        yield
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", 0)
        text = printable(str(error).strip().partition("\n")[0])[:200]
        # Without a token, the Hub answers 401 for a missing model too.
        hint = _REASONS.get(status) if kind is OutputError else None
        raise kind(f"{what}: {text or type(error).__name__}", hint=hint) from error


_REASONS = {
    401: "the Hub needs a valid token: run `hf auth login`, or set HF_TOKEN",
    403: "the token may not write there: make one with write access to the owner",
    409: "the repository has changed meanwhile: run the same again",
}
