"""What each verb of the command line does: one function a verb, flags its keywords.

Results go to standard output, everything else to standard error. Packages that take
long to import are imported where they are used.
"""

import itertools
import json
import logging
import math
import os
import sys
from contextlib import contextmanager
from pathlib import Path

from roformer_keras.cli import interrupts
from roformer_keras.errors import ConfigurationError, SourceError
from roformer_keras.hub.catalog import (
    CATALOG,
    SHIPPED,
    checkpoints_folder,
    resolve,
)

__all__ = [
    "convert",
    "download",
    "embed",
    "fill_mask",
    "generate",
    "inspect",
    "list_catalog",
    "paraphrase",
    "pretrain",
    "similarity",
    "tokenize",
    "verify",
]

_PAIRS_AT_A_TIME = 256


def list_catalog(*, as_json: bool = False) -> int:
    """The released checkpoints, which of them are here, and those of this package."""
    folder = checkpoints_folder()
    here = {entry.name: (folder / f"{entry.name}.zip").is_file() for entry in CATALOG}
    if as_json:
        released = [{**e.to_dict(), "downloaded": here[e.name]} for e in CATALOG]
        shipped = [{**e.to_dict(), "downloaded": True} for e in SHIPPED]
        _print_json(released + shipped)
        return 0
    print(f"{'name':<46} {'model':<17} {'tokens':<10} {'MB':>5}  here")
    for entry in CATALOG:
        print(
            f"{entry.name:<46} {entry.model_class:<17} {entry.level:<10} "
            f"{entry.download_megabytes:>5}  {'yes' if here[entry.name] else 'no'}"
        )
    print("\nwith this package, small, under either name")
    for entry in SHIPPED:
        print(f"{entry.name:<46} {entry.model_class:<17} {entry.alias}")
        print(f"  {entry.description}")
    return 0


def download(names, *, folder=None, base_url=None, quiet: bool = False) -> int:
    """Fetches released zips into the checkpoints folder."""
    from roformer_keras.hub.download import download as fetch

    for name in names:
        print(fetch(name, folder, base_url, verbose=int(shows_progress(quiet))))
    return 0


def inspect(source, *, config=None, vocabulary=None, as_json: bool = False) -> int:
    """What a source holds, without loading a model."""
    from roformer_keras.conversion.convert import model_of
    from roformer_keras.conversion.reader import open_checkpoint
    from roformer_keras.text.level import vocabulary_level

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
    kind = facts["config"].get("model_type", "encoder-decoder")
    print(f"model        {facts['model']} ({kind})")
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

    print(run(source, target, verbose=shows_progress(quiet), **options))
    return 0


def export(
    source,
    target,
    *,
    format: str = "saved_model",
    int8: bool = False,
    calibrate=None,
    config=None,
    vocabulary=None,
    overwrite: bool = False,
    as_json: bool = False,
) -> int:
    """Writes a model for serving: of a fine-tuned one its answers, else vectors.

    Vectors are those of `RoFormerSim`, or else the pooled output where there is one
    and the output of every position.
    """
    start_backend()
    from roformer_keras.io.atomic import check_target
    from roformer_keras.serving import check_export, export_model

    check_target(Path(target), overwrite, folder=True)
    # What is wrong is said before a model is loaded.
    texts = () if calibrate is None else _lines(calibrate)
    check_export(format, int8, texts)
    facts = export_model(
        _served_model(source, config, vocabulary),
        target,
        format,
        int8=int8,
        calibration_texts=texts,
        overwrite=overwrite,
    )
    if as_json:
        _print_json(facts)
        return 0
    print(target)
    for name, shape in facts["outputs"].items():
        found = facts["differences"][name]
        print(
            f"  {name:<20} {shape:<28} to Keras at most {found['largest']:.1e}, mean "
            f"{found['mean']:.1e}, cosine at least {found['min_cosine']:.6f}"
        )
    return 0


def verify(source, *, quiet: bool = False, as_json: bool = False, **options) -> int:
    """Compares with the real bert4keras; 0 if every output is within its bar."""
    start_backend()
    from roformer_keras.verification.verify import verify as run

    report = run(source, verbose=shows_progress(quiet), **options)
    if as_json:
        _print_json(report.to_dict())
    else:
        print(report)
    return 0 if report.passed else 1


def fill_mask(
    source, texts, *, top_k: int = 5, config=None, vocabulary=None, as_json=False
) -> int:
    """The likeliest tokens for each [MASK] of each text."""
    start_backend()
    from roformer_keras.models import RoFormerMaskedLM
    from roformer_keras.models.fill_mask import fill_mask as fill

    texts = _texts(texts)
    tokenizer = _tokenizer(source, vocabulary)
    model = RoFormerMaskedLM.from_preset(source, config=config, output_activation=None)
    for text, masks in zip(texts, fill(model, tokenizer, texts, top_k), strict=True):
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
    max_length: int | None = None,
    normalize: bool = True,
    dtype=None,
    config=None,
    vocabulary=None,
    overwrite: bool = False,
    quiet: bool = False,
) -> int:
    """A vector for each line of a text file, to .npy or .jsonl.

    Of a fine-tuned sentence encoder they are those that it was trained for.
    """
    start_backend()
    import numpy as np

    from roformer_keras.io.atomic import replacing
    from roformer_keras.models.embedding import embed as compute

    if output != "-" and not output.endswith((".npy", ".jsonl")):
        raise ConfigurationError(
            f"the output must end in .npy or .jsonl, or be - for lines of JSON, "
            f"got {output!r}"
        )
    texts = _lines(input)

    def vectors():
        progress = shows_progress(quiet)
        encoder = _sentence_encoder(source, max_length, config, vocabulary, dtype)
        if encoder is not None:
            found = encoder.encode(texts, normalize=normalize, verbose=int(progress))
        else:
            tokenizer = _tokenizer(source, vocabulary)
            found = compute(
                _vector_model(source, config, dtype),
                tokenizer,
                texts,
                512 if max_length is None else max_length,
                normalize,
                progress=progress,
            )
        interrupts.check()
        return found

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


def generate(
    source,
    input=None,
    *,
    texts=None,
    output="-",
    model=None,
    unilm: bool = False,
    method: str = "sample",
    num_return_sequences: int = 1,
    max_length: int | None = None,
    min_length: int = 0,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 0.95,
    num_beams: int = 4,
    length_penalty: float = 0.0,
    stop=None,
    seed: int | None = None,
    batch_size: int = 64,
    config=None,
    vocabulary=None,
    overwrite: bool = False,
    quiet: bool = False,
) -> int:
    """What is written on from each line of a text file."""
    prompts = _inputs(input, texts)
    decoding = {
        "method": method,
        "max_length": max_length,
        "min_length": min_length,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "stop_tokens": stop,
    }
    search = {
        "num_return_sequences": num_return_sequences,
        "num_beams": num_beams,
        "length_penalty": length_penalty,
    }
    style = _style(output, texts)

    def load():
        found = _generative_model(source, model, unilm, config, vocabulary, quiet)
        # No line is to blame for these.
        found.check_lengths(max_length, min_length)
        _check_lines(
            prompts, lambda text: found.as_prompt(text, max_length, min_length)
        )
        return found

    # One text for who sits before it is shown as it comes.
    is_one = len(prompts) == num_return_sequences == 1
    if style == "plain" and is_one and method != "beam":
        start_backend()
        pieces = load().stream(prompts[0][1], seed=seed, **decoding)
        # The second piece takes a program that the first does not. Until it is there
        # no text stands in the line, which remarks would break.
        with _remarks(quiet):
            first = list(itertools.islice(pieces, 2))
        for piece in itertools.chain(first, pieces):
            interrupts.check()
            print(piece, end="", flush=True)
        print()
        return 0

    def write(found, batch, job):
        written = found.generate(
            batch,
            **decoding,
            **search,
            seed=job.seed,
            batch_size=batch_size,
            first_number=job.done,
            return_scores=True,
            progress=False,
        )
        return _lines_of_outputs(batch, written, style)

    copies = num_beams if method == "beam" else num_return_sequences
    return write_job(
        load,
        write,
        prompts,
        max(1, batch_size // copies),
        output,
        {
            "command": "generate",
            "model": model,
            "unilm": unilm,
            **decoding,
            **search,
        },
        (source, config, vocabulary),
        seed=seed,
        overwrite=overwrite,
        quiet=quiet,
    )


def paraphrase(
    source,
    input=None,
    *,
    texts=None,
    output="-",
    n: int = 100,
    k: int = 20,
    masked_positions=(),
    max_length: int = 64,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 0.95,
    seed: int | None = None,
    batch_size: int = 128,
    config=None,
    vocabulary=None,
    overwrite: bool = False,
    quiet: bool = False,
) -> int:
    """Similar sentences for each line of a text file, nearest first."""
    sentences = _inputs(input, texts)
    options = {
        "n": n,
        "k": k,
        "masked_positions": masked_positions,
        "max_length": max_length,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
    }
    style = _style(output, texts)

    def load():
        model = _sim(source, config, vocabulary)
        _check_lines(
            sentences,
            lambda text: model.as_prompt(
                model.masked(text, masked_positions), max_length
            ),
        )
        return model

    def write(model, batch, job):
        written = model.paraphrase(
            batch,
            **options,
            seed=job.seed,
            batch_size=batch_size,
            first_number=job.done,
            progress=False,
        )
        return _lines_of_outputs(batch, written, style)

    return write_job(
        load,
        write,
        sentences,
        max(1, batch_size // n),
        output,
        {
            "command": "paraphrase",
            **options,
        },
        (source, config, vocabulary),
        seed=seed,
        overwrite=overwrite,
        quiet=quiet,
    )


def similarity(
    source,
    input=None,
    *,
    pairs=None,
    fields=("first", "second"),
    output="-",
    max_length: int | None = None,
    config=None,
    vocabulary=None,
    overwrite: bool = False,
    quiet: bool = False,
) -> int:
    """The cosine of each pair of texts of a file."""
    check_one_input(input, pairs, "a file of pairs", "--pair TEXT TEXT")
    if pairs is not None:
        pairs = [(f"pair {at}", tuple(pair)) for at, pair in enumerate(pairs, start=1)]
    else:
        pairs = _pairs(input, fields)

    def load():
        """A function from pairs to cosines."""
        from roformer_keras.data.texts import as_texts

        encoder = _sentence_encoder(source, max_length, config, vocabulary)
        if encoder is not None:
            _check_lines(pairs, lambda pair: as_texts([pair], (2,)))
            return lambda batch: encoder.similarity(
                *zip(*batch, strict=True), verbose=0
            )
        model = _sim(source, config, vocabulary)
        _check_lines(pairs, lambda pair: [model.check_text(text) for text in pair])
        options = {"max_length": max_length or 512, "progress": False}
        return lambda batch: model.similarity(
            [first for first, _ in batch], [second for _, second in batch], **options
        )

    def write(cosines_of, batch, job):
        cosines = cosines_of(batch)
        rows = [
            {"first": first, "second": second, "similarity": _score(cosine)}
            for (first, second), cosine in zip(batch, cosines, strict=True)
        ]
        if _style(output) == "tsv":
            return [_tsv(*row.values()) for row in rows]
        return [json.dumps(row, ensure_ascii=False) for row in rows]

    return write_job(
        load,
        write,
        pairs,
        _PAIRS_AT_A_TIME,
        output,
        {"command": "similarity", "max_length": max_length},
        (source, config, vocabulary),
        overwrite=overwrite,
        quiet=quiet,
    )


def pretrain(
    task,
    files=(),
    *,
    output,
    config=None,
    overwrite: bool = False,
    quiet: bool = False,
    **flags,
) -> int:
    """Trains a model on a corpus, in a folder in which it can be taken up again."""
    from roformer_keras.training.pretraining_settings import settings_of_command

    # What the settings hold is known before a backend is waited for.
    settings = settings_of_command(task, files, config, **flags)
    start_backend()
    from roformer_keras.training.folder import PRESET
    from roformer_keras.training.pretrain import pretrain as run

    try:
        model = run(
            settings,
            output,
            callbacks=[interruptible()],
            overwrite=overwrite,
            verbose=shows_progress(quiet),
        )
    except KeyboardInterrupt:
        print(
            f"roformer-keras: what was saved is kept in {output}; run the same command "
            "again to resume",
            file=sys.stderr,
        )
        raise
    has_zip = model.config.bert4keras_compatible
    print(Path(output, f"{settings.name}.zip" if has_zip else PRESET))
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


# === Long jobs ===


def write_job(
    load,
    write,
    inputs,
    window: int,
    output,
    settings: dict,
    checkpoint,
    *,
    seed: int | None = None,
    overwrite: bool,
    quiet: bool,
) -> int:
    """Computes lines from inputs, a window of them at a time; see `cli.jobs`.

    Args:
        load: function without arguments; returns the model if all inputs can be used.
        write: function of model, window and job; returns the window's lines.
        inputs: pairs of where an input comes from and the input.
        settings: what distinguishes the job from others on the same inputs.
        checkpoint: source, configuration file and vocabulary file of the model.
    """
    from tqdm import tqdm

    from roformer_keras.cli.jobs import open_job
    from roformer_keras.hub.catalog import checkpoint_files
    from roformer_keras.io.journal import digest, fingerprints, run_metadata

    if output != "-" and not output.endswith((".jsonl", ".tsv")):
        raise ConfigurationError(
            f"the output must end in .jsonl or .tsv, or be - for lines of JSON, "
            f"got {output!r}"
        )
    inputs_alone = [content for _, content in inputs]
    source, config, vocabulary = checkpoint
    metadata = run_metadata(
        {
            **settings,
            "source": os.path.abspath(resolve(source)),
            "config": config,
            "vocabulary": vocabulary,
            "seed": seed,
        },
        {
            "source": fingerprints(checkpoint_files(source)),
            "config": fingerprints(filter(None, [config])),
            "vocabulary": fingerprints(filter(None, [vocabulary])),
            "texts": digest(inputs_alone),
        },
    )
    count = len(inputs)
    with open_job(output, metadata, seed, overwrite) as job:
        if job.done and not quiet:
            print(
                f"roformer-keras: resuming after {job.done} of {count}",
                file=sys.stderr,
            )
        try:
            start_backend()
            model = load()
            with (
                tqdm(
                    total=count,
                    initial=job.done,
                    disable=not shows_progress(quiet),
                ) as bar,
                _remarks(quiet),
            ):
                while job.done < count:
                    interrupts.check()
                    batch = inputs_alone[job.done : job.done + window]
                    job.write(write(model, batch, job), len(batch))
                    bar.update(len(batch))
            interrupts.check()
        except BaseException:
            if job.done and output != "-":
                print(
                    f"roformer-keras: {job.done} of {count} are kept in {job.partial}; "
                    "run the same command again to resume",
                    file=sys.stderr,
                )
            raise
    if output != "-":
        print(output)
    return 0


@contextmanager
def _remarks(quiet: bool):
    """Shows on standard error, above a progress bar, when a program is compiled."""
    from tqdm import tqdm

    class Handler(logging.Handler):
        def emit(self, record):
            tqdm.write(f"roformer-keras: {record.getMessage()}", file=sys.stderr)

    logger, handler = logging.getLogger("roformer_keras.generation"), Handler()
    before = logger.level
    if not quiet:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _inputs(input, texts):
    """Texts, and where each comes from, of a file or of the command line."""
    check_one_input(input, texts, "a text file", "--text TEXT")
    if texts is not None:
        return [(f"text {at}", text) for at, text in enumerate(texts, start=1)]
    try:
        lines = _lines(input)
    except SourceError as error:
        if input == "-" or os.path.exists(input):
            raise
        raise SourceError(f"{error}; to give a text itself, use --text") from error
    return _numbered(input, lines)


def _numbered(input, lines):
    name = "standard input" if input == "-" else input
    return [(f"line {at} of {name}", line) for at, line in enumerate(lines, start=1)]


def _pairs(input, fields):
    read = _pair_of_json if input.endswith(".jsonl") else _pair_of_columns
    pairs = []
    for place, line in _numbered(input, _lines(input)):
        try:
            pairs.append((place, read(line, fields)))
        except ConfigurationError as error:
            raise ConfigurationError(f"{place}: {error}") from error
    return pairs


def _pair_of_columns(line, fields):
    columns = line.split("\t")
    if len(columns) != 2:
        raise ConfigurationError(
            f"a pair must be two texts with a tab between, got {len(columns)} "
            f"{'column' if len(columns) == 1 else 'columns'}: {line:.40}"
        )
    return tuple(columns)


def _pair_of_json(line, fields):
    try:
        content = json.loads(line)
    except ValueError as error:
        raise ConfigurationError(f"a line must be JSON: {error}") from error
    if isinstance(content, dict) and all(name in content for name in fields):
        content = [content[name] for name in fields]
    if (
        not isinstance(content, list)
        or len(content) != 2
        or not all(isinstance(text, str) for text in content)
    ):
        raise ConfigurationError(
            f"a pair must be a list of two texts, or an object with two texts "
            f"{fields[0]!r} and {fields[1]!r} (--fields names others), got {line:.80}"
        )
    return tuple(content)


def _check_lines(inputs, check):
    """Before the long work, not in the middle of it."""
    for place, content in inputs:
        try:
            check(content)
        except ConfigurationError as error:
            raise ConfigurationError(f"{place}: {error}") from error


def _style(output, texts=None) -> str:
    """How lines look: for programs, or for who typed a text and sits there."""
    if output == "-":
        return "plain" if texts is not None and sys.stdout.isatty() else "json"
    return Path(output).suffix[1:]


def _lines_of_outputs(texts, written, style):
    lines = []
    for text, outputs in zip(texts, written, strict=True):
        found = [{"text": one.output, "score": _score(one.score)} for one in outputs]
        if style == "plain":
            lines += [text, *(f"{one['score']:>9.4f}  {one['text']}" for one in found)]
        elif style == "tsv":
            lines += [_tsv(text, one["text"], one["score"]) for one in found]
            # No text is left out, not even one for which nothing was found.
            if not found:
                lines.append(_tsv(text, "", ""))
        else:
            line = {"text": text, "outputs": found}
            lines.append(json.dumps(line, ensure_ascii=False))
    return lines


def _score(number) -> float:
    """As many digits as float32 is good for."""
    return round(float(number), 6)


_TSV_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def _tsv(*values) -> str:
    return "\t".join(str(value).translate(_TSV_ESCAPES) for value in values)


def _generative_model(source, name, unilm, config, vocabulary, quiet):
    """Of the class that the source speaks for."""
    from roformer_keras import models
    from roformer_keras.tasks.load import model_class

    found = model_class(source, config)
    if found == "RoFormerSeq2Seq":
        _check_no_files(source, config, vocabulary)
        if name is not None or unilm:
            raise ConfigurationError(
                f"{source} is an encoder-decoder: leave --model and --unilm out"
            )
        return models.RoFormerSeq2Seq.from_preset(source)
    if name is None:
        name = "RoFormerSim" if found == "RoFormerSim" else "RoFormerCausalLM"
        if found not in ("RoFormerSim", "RoFormerCausalLM") and not (unilm or quiet):
            print(
                f"roformer-keras: nothing tells that {source} was trained to write; "
                "taking it for a RoFormerCausalLM (--model or --unilm says otherwise)",
                file=sys.stderr,
            )
    changes = {"attention": "unilm"} if unilm and name == "RoFormerCausalLM" else {}
    model = getattr(models, name).from_preset(source, config=config, **changes)
    return _with_vocabulary(model, source, vocabulary)


def _sentence_encoder(source, max_length, config, vocabulary, dtype=None):
    """A fine-tuned one; None if the source is another model."""
    from roformer_keras.tasks.load import load_model, model_class

    if model_class(source, config) != "RoFormerSentenceEncoder":
        return None
    _check_no_files(source, config, vocabulary)
    return load_model(source, max_length=max_length, dtype=dtype)


def _sim(source, config, vocabulary):
    from roformer_keras.models import RoFormerSim

    model = RoFormerSim.from_preset(source, config=config)
    return _with_vocabulary(model, source, vocabulary)


def _with_vocabulary(model, source, vocabulary):
    if vocabulary is not None:
        model.tokenizer = _tokenizer(source, vocabulary)
    return model


def interruptible():
    """A callback that ends a training at a Ctrl-C that a library has lost."""
    import keras

    class Interruptible(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            interrupts.check()

        on_test_batch_end = on_train_batch_end

    return Interruptible()


# === Helpers ===


def start_backend():
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


def shows_progress(quiet: bool) -> bool:
    """A bar is for who sits before it; in a log it would only be in the way."""
    return not quiet and sys.stderr.isatty()


def _tokenizer(source, vocabulary):
    from roformer_keras.text.tokenizer import RoFormerTokenizer

    return RoFormerTokenizer.from_preset(source, vocabulary=vocabulary)


def _served_model(source, config, vocabulary):
    """A fine-tuned model whole, `RoFormerSim`, or else the encoder."""
    from roformer_keras import tasks
    from roformer_keras.tasks.load import load_model, model_class

    name = model_class(source, config)
    if name in tasks.__all__:
        _check_no_files(source, config, vocabulary)
        return load_model(source)
    if name == "RoFormerSim":
        return _sim(source, config, vocabulary)
    return _with_vocabulary(_vector_model(source, config), source, vocabulary)


def _check_no_files(source, config, vocabulary):
    if config is not None or vocabulary is not None:
        raise ConfigurationError(
            f"{source} is a model that holds its configuration and its vocabulary: "
            "leave --config and --vocabulary out"
        )


def _vector_model(source, config, dtype=None):
    """With the pooler where the source has one."""
    from roformer_keras.conversion.convert import pooler_activation_of
    from roformer_keras.conversion.reader import open_checkpoint
    from roformer_keras.models import RoFormerBackbone

    with open_checkpoint(resolve(source), config) as checkpoint:
        has_pooler = "pooler" in checkpoint.heads
        pooler = pooler_activation_of(checkpoint) if has_pooler else None
    return RoFormerBackbone.from_preset(
        source, config=config, pooler_activation=pooler, dtype=dtype
    )


def check_one_input(input, given, file: str, flag: str) -> None:
    """Raises ConfigurationError unless there is a file, or else what a flag gives."""
    if (input is None) == (given is None):
        raise ConfigurationError(f"give {file}, or - for standard input, or {flag}")


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
