"""Models on the Hugging Face Hub: `hf://owner/name`, by its library.

Its cache, tokens, offline mode and resumption are those of huggingface_hub, and so are
the variables of the environment that set them.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from roformer_keras.checks import check_instance
from roformer_keras.errors import (
    DownloadError,
    OutputError,
    RoFormerError,
    SourceError,
    printable,
)
from roformer_keras.extras import import_extra
from roformer_keras.hub.guard import HubGuard, guarded
from roformer_keras.io.sources import (
    ADAPTER_CONFIG,
    ADAPTER_HEAD,
    ADAPTER_WEIGHTS,
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
# A repository may hold the same weights several times: the first that is there. The
# last is a preset's.
_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "tf_model.h5", "model.weights.h5")
_SMALL = (
    *("config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json"),
    *SENTENCE_PARTS.values(),
    *(name for name in PRESET_FILES if name != _WEIGHTS[-1]),
    PRESET_BASELINES,
)


def fetch(source: str) -> Path:
    """The folder of a model on the Hub, downloaded unless it is in the cache.

    Args:
        source: `hf://owner/name`, or `hf://owner/name@revision`.

    Raises:
        SourceError: the name is not one of a model, or the model has no weights.
        DownloadError: it cannot be fetched; says why.
        ConfigurationError: huggingface_hub is not installed; names the extra.
    """
    return _fetch(source, _SMALL, _WEIGHTS)


def fetch_adapter(source: str) -> Path:
    """The folder of an adapter of PEFT on the Hub; arguments and errors of `fetch`."""
    return _fetch(source, (ADAPTER_CONFIG, ADAPTER_HEAD), ADAPTER_WEIGHTS)


def _fetch(source: str, small: Sequence[str], weights: Sequence[str]) -> Path:
    """Fetches small files, and the first of the weights that is there."""
    match = _NAME.fullmatch(source.removeprefix(PREFIX))
    if match is None:
        raise SourceError(
            f"a model on the Hugging Face Hub must be {PREFIX}owner/name or "
            f"{PREFIX}owner/name@revision, got {source[:80]!r}"
        )
    hub = import_extra("huggingface_hub", f"a source at {PREFIX}")
    for name in weights:
        stem, _, extension = name.partition(".")
        patterns = [*small, name, f"{name}.index.json", f"{stem}-*-of-*.{extension}"]
        reason = f"{source} cannot be fetched"
        with _guarded(hub, match["name"], DownloadError, reason) as guard:
            folder = Path(
                hub.snapshot_download(
                    match["name"], revision=match["revision"], allow_patterns=patterns
                )
            )
            guard.check_hashes(folder)
        if any((folder / file).exists() for file in (name, f"{name}.index.json")):
            return folder
    raise SourceError(
        f"{source} holds no weights: none of {', '.join(weights)}, whole or in shards"
    )


def check_repository(repository: str) -> str:
    """The `owner/name` of a repository, which `hf://` may precede.

    Raises:
        OutputError: it has another form.
    """
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
    folder: Path,
    repository: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    commit_message: str | None = None,
) -> str:
    """Makes a folder the content of a repository on the Hub, in one commit.

    Files of another model of this package's formats that the repository holds are
    deleted, files of other names and its README.md are kept; so is its history.

    Args:
        folder: of a model.
        repository: `owner/name`, which is made if there is none.
        private: bool. Whether a new repository is private; as the owner has it set if
            not given.
        token: str. By default that of `hf auth login` or `$HF_TOKEN`.
        commit_message: str.

    Returns:
        The address of the commit.

    Raises:
        OutputError: the Hub refuses it or cannot be reached; says why.
        ConfigurationError: huggingface_hub is not installed; names the extra.
    """
    name = check_repository(repository)
    hub = import_extra("huggingface_hub", "an upload to the Hub")
    api = hub.HfApi(token=token)
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    with _guarded(hub, name, OutputError, f"{PREFIX}{name} cannot be written"):
        api.create_repo(name, private=private, exist_ok=True)
        there = set(api.list_repo_files(name))
        if _CARD in there:
            files.pop(_CARD, None)
        operations = [hub.CommitOperationAdd(key, path) for key, path in files.items()]
        stale = sorted(filter(_is_of_model, there - files.keys()))
        operations += [hub.CommitOperationDelete(key) for key in stale]
        message = commit_message or "Upload a RoFormer"
        commit = api.create_commit(name, operations, commit_message=message)
    return str(commit.commit_url)


_CARD = "README.md"
_OWN = (HUGGINGFACE_PATHS | PRESET_PATHS | {*_WEIGHTS}) - {_CARD}
_PART = re.compile(r"(model|pytorch_model)(-\d{5}-of-\d{5}\.\w+|\.\w+\.index\.json)")


def _is_of_model(path: str) -> bool:
    """True if a file of a repository belongs to a model in a format of this package."""
    is_module = path.split("/")[0] in SENTENCE_FOLDERS
    return path in _OWN or is_module or _PART.fullmatch(path) is not None


@contextmanager
def _guarded(
    hub, repository: str, kind: type[RoFormerError], what: str
) -> Iterator[HubGuard]:
    """Checks the Hub's answers, and turns what its library raises into one error."""
    try:
        with guarded(hub, repository, kind, what) as guard:
            yield guard
    except (RoFormerError, MemoryError):
        raise
    except (AssertionError, AttributeError, LookupError, TypeError) as error:
        raise kind(
            f"{what}: the answer is not what huggingface_hub expects "
            f"({type(error).__name__}: {printable(str(error))[:80]})",
            hint="set HF_ENDPOINT to the address of a Hub",
        ) from error
    except Exception as error:
        causes = [error]
        while isinstance(cause := causes[-1].__cause__, Exception):
            causes.append(cause)
        for cause in causes:
            # The library puts those of uploads into its own.
            if isinstance(cause, RoFormerError):
                raise cause from None
        responses = (getattr(cause, "response", None) for cause in causes)
        status = max(getattr(response, "status_code", 0) for response in responses)
        texts = [str(cause).strip() for cause in causes]
        text = next(filter(None, reversed(texts)), type(error).__name__)
        # A model that is not there is a 401 too, for readers without a token.
        reason = _REASONS.get(status) if kind is OutputError else None
        line = printable(text.splitlines()[0])[:200]
        raise kind(f"{what}: {line}", hint=reason) from error


_REASONS = {
    401: "the Hub needs a valid token: run `hf auth login`, or set HF_TOKEN",
    403: "the token may not write there: make one with write access to the owner",
    409: "the repository has changed meanwhile: run the same again",
}
