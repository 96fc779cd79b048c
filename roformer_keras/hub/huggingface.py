"""Models on the Hugging Face Hub: `hf://owner/name`, downloaded once by its library.

Its cache, tokens, offline mode and resumption are those of huggingface_hub, and so are
the variables of the environment that set them.
"""

import re
from pathlib import Path

from roformer_keras.errors import DownloadError, SourceError
from roformer_keras.extras import import_extra

PREFIX = "hf://"
_NAME = re.compile(r"(?P<name>\w[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?", re.ASCII)
_SMALL = ("config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json")
# A repository may hold the same weights several times: the first that is there.
_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "tf_model.h5")


def fetch(source: str) -> Path:
    """The folder of a model on the Hub, downloaded unless it is in the cache.

    Args:
        source: `hf://owner/name`, or `hf://owner/name@revision`.

    Raises:
        SourceError: the name is not one of a model, or the model has no weights.
        DownloadError: it cannot be fetched; says why.
        ConfigurationError: huggingface_hub is not installed; names the extra.
    """
    match = _NAME.fullmatch(source.removeprefix(PREFIX))
    if match is None:
        raise SourceError(
            f"a model on the Hugging Face Hub must be {PREFIX}owner/name or "
            f"{PREFIX}owner/name@revision, got {source[:80]!r}"
        )
    hub = import_extra("huggingface_hub", f"{PREFIX} sources")
    for name in _WEIGHTS:
        stem, _, extension = name.partition(".")
        patterns = [*_SMALL, name, f"{name}.index.json", f"{stem}-*-of-*.{extension}"]
        try:
            folder = Path(
                hub.snapshot_download(
                    match["name"], revision=match["revision"], allow_patterns=patterns
                )
            )
        # What it raises derives from these, whichever HTTP library it uses.
        except (OSError, RuntimeError, ValueError) as error:
            text = str(error).strip() or type(error).__name__
            raise DownloadError(
                f"{source} cannot be fetched: {text.splitlines()[0][:200]}"
            ) from error
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in _HTTP:
                raise
            raise DownloadError(
                f"{source} cannot be fetched: {str(error)[:200]}"
            ) from error
        if any((folder / file).exists() for file in (name, f"{name}.index.json")):
            return folder
    raise SourceError(
        f"{source} holds no weights: none of {', '.join(_WEIGHTS)}, whole or in shards"
    )


_HTTP = ("huggingface_hub", "requests", "httpx", "httpx2", "httpcore", "httpcore2")
