"""What each verb of the command line does: one function a verb, flags its keywords.

Results go to standard output, everything else to standard error. Packages that take
long to import are imported where they are used.
"""

import json
import math
import os
import sys
from pathlib import Path

from roformer_keras.conversion.catalog import CATALOG, checkpoints_folder, resolve
from roformer_keras.errors import ConfigurationError, SourceError

__all__ = [
    "convert",
    "download",
    "embed",
    "fill_mask",
    "inspect",
    "list_catalog",
    "tokenize",
    "verify",
]


def list_catalog(*, as_json: bool = False) -> int:
    """The released checkpoints, and which of them are here."""
    folder = checkpoints_folder()
    here = {entry.name: (folder / f"{entry.name}.zip").is_file() for entry in CATALOG}
    if as_json:
        _print_json([{**e.to_dict(), "downloaded": here[e.name]} for e in CATALOG])
        return 0
    print(f"{'name':<46} {'model':<17} {'tokens':<10} {'MB':>5}  here")
    for entry in CATALOG:
        print(
            f"{entry.name:<46} {entry.model_class:<17} {entry.level:<10} "
            f"{entry.download_megabytes:>5}  {'yes' if here[entry.name] else 'no'}"
        )
    return 0


def download(names, *, folder=None, base_url=None, quiet: bool = False) -> int:
    """Fetches released zips into the checkpoints folder."""
    from roformer_keras.conversion.download import download as fetch

    for name in names:
        print(fetch(name, folder, base_url, progress=_shows_progress(quiet)))
    return 0


def inspect(source, *, config=None, vocabulary=None, as_json: bool = False) -> int:
    """What a source holds, without loading a model."""
    from roformer_keras.conversion.convert import model_of
    from roformer_keras.conversion.reader import open_checkpoint
    from roformer_keras.tokenizer import vocabulary_level

    with open_checkpoint(resolve(source), config, vocabulary) as checkpoint:
        tokens = checkpoint.vocabulary
        facts = {
            "source": str(source),
            "format": checkpoint.format,
            "model": model_of(checkpoint),
            "heads": list(checkpoint.heads),
            "config": checkpoint.config.to_dict(),
            "vocabulary_size": None if tokens is None else len(tokens),
            "level": None if tokens is None else vocabulary_level(tokens),
            "tensors": {
                name: {"shape": list(tensor.shape), "dtype": tensor.dtype}
                for name, tensor in checkpoint.tensors.items()
            },
            "unexpected": list(checkpoint.unexpected),
            "training_state": list(checkpoint.training_state),
        }
    if as_json:
        _print_json(facts)
        return 0
    count = sum(math.prod(tensor["shape"]) for tensor in facts["tensors"].values())
    print(f"source       {facts['source']}")
    print(f"format       {facts['format']}")
    print(f"model        {facts['model']} ({facts['config']['model_type']})")
    print(f"heads        {', '.join(facts['heads']) or 'none'}")
    print(f"vocabulary   {facts['vocabulary_size'] or 'none'} {facts['level'] or ''}")
    print(f"tensors      {len(facts['tensors'])}, {count:,} numbers")
    for name, tensor in facts["tensors"].items():
        mark = "  unexpected" if name in facts["unexpected"] else ""
        print(f"  {name:<60} {tensor['dtype']:<9} {tuple(tensor['shape'])}{mark}")
    if facts["training_state"]:
        print(f"ignored      {len(facts['training_state'])} of an optimizer")
    print("configuration")
    for name, value in facts["config"].items():
        print(f"  {name:<34} {value}")
    return 0


def convert(source, target, *, quiet: bool = False, **options) -> int:
    """Writes the weights in another format."""
    from roformer_keras.conversion.convert import convert as run

    print(run(source, target, progress=_shows_progress(quiet), **options))
    return 0


def verify(source, *, quiet: bool = False, as_json: bool = False, **options) -> int:
    """Compares with the real bert4keras; 0 if every output is within its bar."""
    _start_backend()
    from roformer_keras.verification.verify import verify as run

    report = run(source, progress=_shows_progress(quiet), **options)
    if as_json:
        _print_json(report.to_dict())
    else:
        print(report)
    return 0 if report.passed else 1


def fill_mask(
    source, texts, *, top_k: int = 5, config=None, vocabulary=None, as_json=False
) -> int:
    """The likeliest tokens for each [MASK] of each text."""
    _start_backend()
    from roformer_keras.inference import fill_mask as fill
    from roformer_keras.models import RoFormerMaskedLM

    texts = _texts(texts)
    tokenizer = _tokenizer(source, vocabulary)
    model = RoFormerMaskedLM.from_preset(source, config=config, output_activation=None)
    for text in texts:
        masks = fill(model, tokenizer, text, top_k)
        if as_json:
            _print_json_line(
                {
                    "text": text,
                    "masks": [[vars(candidate) for candidate in m] for m in masks],
                }
            )
            continue
        print(text)
        for number, candidates in enumerate(masks, start=1):
            shown = "  ".join(f"{c.token} {c.probability:.4f}" for c in candidates)
            print(f"  {number}  {shown}")
    return 0


def embed(
    source,
    input,
    *,
    output="-",
    max_length: int = 512,
    normalize: bool = True,
    config=None,
    vocabulary=None,
    overwrite: bool = False,
    quiet: bool = False,
) -> int:
    """A vector for each line of a text file, to .npy or .jsonl."""
    _start_backend()
    import numpy as np

    from roformer_keras.conversion.outputs import replacing
    from roformer_keras.inference import embed as compute

    if output != "-" and not output.endswith((".npy", ".jsonl")):
        raise ConfigurationError(
            f"the output must end in .npy or .jsonl, or be - for lines of JSON, "
            f"got {output!r}"
        )
    texts = _lines(input)

    def vectors():
        tokenizer = _tokenizer(source, vocabulary)
        model = _vector_model(source, config)
        return compute(
            model,
            tokenizer,
            texts,
            max_length,
            normalize,
            progress=_shows_progress(quiet),
        )

    if output == "-":
        for text, vector in zip(texts, vectors(), strict=True):
            _print_json_line({"text": text, "vector": vector.tolist()})
        return 0
    # An output that cannot be written is refused before the work, not after it.
    with replacing(output, overwrite) as partial:
        if output.endswith(".npy"):
            with open(partial, "wb") as file:
                np.save(file, vectors())
        else:
            with open(partial, "w", encoding="utf-8") as file:
                for text, vector in zip(texts, vectors(), strict=True):
                    line = {"text": text, "vector": vector.tolist()}
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
    print(output)
    return 0


def tokenize(
    source,
    texts,
    *,
    decode: bool = False,
    max_length: int | None = None,
    vocabulary=None,
    as_json: bool = False,
) -> int:
    """Tokens, ids and offsets of texts; or texts of ids."""
    tokenizer = _tokenizer(source, vocabulary)
    for text in _texts(texts):
        if decode:
            print(tokenizer.decode(_ids(text)))
            continue
        ids, _ = tokenizer.encode(text, max_length=max_length)
        if as_json:
            facts = {"text": text, "token_ids": ids}
            if max_length is None:
                facts["tokens"] = tokenizer.tokenize(text)
                facts["offsets"] = tokenizer.offsets(text)
            _print_json_line(facts)
        else:
            print(" ".join(map(str, ids)))
    return 0


# === Helpers ===


def _start_backend():
    """Imports Keras and its backend without what they say of devices meanwhile.

    TensorFlow writes it to the file descriptor, past every setting of its own.
    """
    sys.stderr.flush()
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        import keras

        keras.ops.zeros(())
    except (ImportError, ValueError) as error:
        raise ConfigurationError(
            f"Keras's backend {os.environ.get('KERAS_BACKEND', 'tensorflow')!r} cannot "
            f"be used: {error}"
        ) from error
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def _shows_progress(quiet: bool) -> bool:
    """A bar is for who sits before it; in a log it would only be in the way."""
    return not quiet and sys.stderr.isatty()


def _tokenizer(source, vocabulary):
    from roformer_keras.tokenizer import RoFormerTokenizer

    return RoFormerTokenizer.from_preset(source, vocabulary=vocabulary)


def _vector_model(source, config):
    """With the pooler where the source has one."""
    from roformer_keras.conversion.convert import pooler_activation_of
    from roformer_keras.conversion.reader import open_checkpoint
    from roformer_keras.models import RoFormerBackbone

    with open_checkpoint(resolve(source), config) as checkpoint:
        has_pooler = "pooler" in checkpoint.heads
        pooler = pooler_activation_of(checkpoint) if has_pooler else None
    return RoFormerBackbone.from_preset(source, config=config, pooler_activation=pooler)


def _texts(texts):
    """Those of the command line, "-" standing for the lines of standard input."""
    return [line for text in texts for line in (_lines("-") if text == "-" else [text])]


def _lines(path) -> list[str]:
    name = "standard input" if path == "-" else path
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{name} must be UTF-8 text: {error}") from error
    except OSError as error:
        raise SourceError(f"cannot read {name}: {error.strerror}") from error
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    lines = [line.removesuffix("\r") for line in lines]
    if not lines:
        raise SourceError(f"{name} holds no text")
    return lines


def _ids(text):
    try:
        return [int(word) for word in text.split()]
    except ValueError as error:
        raise ConfigurationError(
            f"ids to decode must be integers between spaces, got {text!r}"
        ) from error


def _print_json(content):
    print(json.dumps(content, ensure_ascii=False, indent=2))


def _print_json_line(content):
    print(json.dumps(content, ensure_ascii=False))
