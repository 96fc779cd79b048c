"""`roformer-keras similarity`."""

import json

from roformer_keras.cli.flags import Count
from roformer_keras.cli.jobs import run_job
from roformer_keras.cli.models import load_sentence_encoder, load_sim
from roformer_keras.cli.texts import (
    check_inputs,
    check_one_input,
    json_line,
    number_lines,
    output_style,
    read_lines,
    rounded,
    tsv_line,
)
from roformer_keras.errors import ConfigurationError

__all__ = ["run"]

EXAMPLES = ("similarity --pair 学而时习之，不亦说乎？ 学了又时常温习，不是很愉快吗？",)
_WINDOW = 256


def run(
    file: str | None = None,
    *,
    pair: list[tuple[str, str]] | None = None,
    source: str = "roformer-sim-char",
    config: str | None = None,
    vocabulary: str | None = None,
    fields: tuple[str, ...] = ("first", "second"),
    output: str = "-",
    max_length: Count | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> None:
    """Compare pairs of texts.

    A command that is interrupted keeps what it has written in FILE.partial; the same
    command resumes it.

    Args:
        file: pairs, one a line, as two texts with a tab between, without escapes; or
            .jsonl with lists of two or objects; - is standard input, with tabs.
        pair: two texts to compare, instead of a file; may be repeated.
        fields: keys of the two texts in JSON objects.
        output: .jsonl, or .tsv with rows of first text, second text and cosine, in
            which tabs and line ends are escaped; - for JSON lines on standard
            output.
        max_length: tokens to which texts are cut (default: 512; of a fine-tuned
            encoder, as in its training).
    """
    check_one_input(file, pair, "a file of pairs", "--pair TEXT TEXT")
    if len(set(fields)) != 2:
        raise ConfigurationError(
            f"--fields must be two names with a comma between, got {','.join(fields)!r}"
        )
    if pair is not None:
        pairs = [(f"pair {at}", tuple(texts)) for at, texts in enumerate(pair, start=1)]
    else:
        pairs = _read_pairs(file, fields)

    def load():
        """A function from pairs to cosines."""
        from roformer_keras.data.texts import as_texts

        encoder = load_sentence_encoder(source, max_length, config, vocabulary)
        if encoder is not None:
            check_inputs(pairs, lambda texts: as_texts([texts], (2,)))
            return lambda batch: encoder.similarity(
                *zip(*batch, strict=True), verbose=0
            )
        model = load_sim(source, config, vocabulary)
        check_inputs(pairs, lambda texts: [model.check_text(text) for text in texts])
        options = {"max_length": max_length or 512, "progress": False}
        return lambda batch: model.similarity(*zip(*batch, strict=True), **options)

    def write(cosines_of, batch, job):
        rows = [
            {"first": first, "second": second, "similarity": rounded(cosine)}
            for (first, second), cosine in zip(batch, cosines_of(batch), strict=True)
        ]
        if output_style(output) == "tsv":
            return [tsv_line(*row.values()) for row in rows]
        return [json_line(row) for row in rows]

    run_job(
        *(load, write, pairs, _WINDOW, output),
        {"command": "similarity", "max_length": max_length},
        source,
        config=config,
        vocabulary=vocabulary,
        overwrite=overwrite,
        quiet=quiet,
    )


def _read_pairs(file, fields):
    lines, pairs = number_lines(file, read_lines(file)), []
    parse = _parse_json if file.endswith(".jsonl") else _parse_columns
    check_inputs(lines, lambda line: pairs.append(parse(line, fields)))
    return [(place, pair) for (place, _), pair in zip(lines, pairs, strict=True)]


def _parse_columns(line, fields):
    columns = line.split("\t")
    if len(columns) != 2:
        raise ConfigurationError(
            f"a pair must be two texts with a tab between, got {len(columns)} "
            f"{'column' if len(columns) == 1 else 'columns'}: {line:.40}"
        )
    return tuple(columns)


def _parse_json(line, fields):
    try:
        content = json.loads(line)
    except ValueError as error:
        raise ConfigurationError(f"a line must be JSON: {error}") from error
    if isinstance(content, dict) and all(name in content for name in fields):
        content = [content[name] for name in fields]
    is_pair = isinstance(content, list) and len(content) == 2
    if not is_pair or not all(isinstance(text, str) for text in content):
        raise ConfigurationError(
            f"a pair must be a list of two texts, or an object with two texts "
            f"{fields[0]!r} and {fields[1]!r} (--fields names others), got {line:.80}"
        )
    return tuple(content)
