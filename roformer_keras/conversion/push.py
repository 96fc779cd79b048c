"""Uploads of models to the Hugging Face Hub."""

import os
from typing import Any

from roformer_keras.base.checks import check_choice
from roformer_keras.base.errors import refuse
from roformer_keras.base.extras import import_extra
from roformer_keras.conversion.convert import FOLDERS, open_prepared, save
from roformer_keras.hub.huggingface_hub import check_repository, upload
from roformer_keras.io.archive import scratch_folder

# Arguments of `convert` for the layout of the folder, and their defaults.
_SAVED_BY: dict[str, Any] = {"dtype": "float32", "overwrite": False, "verbose": "auto"}


def push_to_hub(
    source: Any,
    repository: str,
    *,
    format: str = "huggingface",
    private: bool | None = None,
    token: str | None = None,
    commit_message: str | None = None,
    **options: Any,
) -> str:
    """Uploads a model to the Hugging Face Hub, with a model card, in one commit.

    A missing repository is created. An existing one gets a new commit, which keeps its
    README.md and files of other names. `hf://owner/name` loads the model again.

    Args:
        source: a model of this package, or a source of `convert`.
        repository: `"owner/name"`; `hf://` may precede it.
        format: `"huggingface"`, `"sentence-transformers"`, or `"preset"`, which
            supports every model of this package.
        private: bool. Whether a new repository is private; by default, the owner's
            settings decide.
        token: str. By default that of `hf auth login` or `$HF_TOKEN`.
        commit_message: str.
        options: as in `convert`, such as `dtype="float16"`.

    Returns:
        The address of the commit.

    Raises:
        OutputError: the Hub refuses the upload or cannot be reached.
        ConfigurationError: huggingface_hub is not installed, or the source is neither
            a model nor a path.
        RoFormerError: as in `convert`.

    Example:
        >>> address = roformer_keras.push_to_hub("roformer-char", "owner/name")
        >>> model = roformer_keras.RoFormerMaskedLM.from_preset("hf://owner/name")
    """
    name = check_repository(repository)
    check_choice("format", format, FOLDERS)
    is_path = isinstance(source, str | os.PathLike)
    refuse(
        not is_path and not hasattr(source, "save_to_preset"),
        "a source must be a model of this package, a path or a name, got "
        f"{source!r:.80}",
    )
    # Fail before the work begins.
    hub = import_extra("huggingface_hub", "an upload to the Hub")
    with scratch_folder() as scratch:
        if not is_path:
            preset = scratch / "preset"
            source.save_to_preset(preset)
            source = preset
        folder = scratch / "model"
        how = {key: options.pop(key, value) for key, value in _SAVED_BY.items()}
        with open_prepared(source, format, **options) as ready:
            save(ready, folder, format, repository=name, **how)
        api = hub.HfApi(token=token)
        return upload(api, folder, name, private, commit_message)
