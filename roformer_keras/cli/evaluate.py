"""`roformer-keras evaluate`."""

import contextlib
from pathlib import Path
from typing import Literal

from roformer_keras.cli import interrupts, layouts
from roformer_keras.cli.flags import Count
from roformer_keras.cli.paths import check_table
from roformer_keras.cli.terminal import shows_progress, start_backend
from roformer_keras.cli.texts import json_line, print_json
from roformer_keras.errors import ConfigurationError, RoFormerError
from roformer_keras.extras import require
from roformer_keras.io.atomic import check_target, replacing
from roformer_keras.types import Engine

FILES = ("file",)
EXAMPLES = (
    "evaluate reviews held-out.tsv",
    "evaluate reviews held-out.tsv --json -o report",
    "evaluate run/preset test.tsv --num-beams 4 --length-penalty 0.6",
)
OPTIONS = (layouts.TRAINED,)


def run(
    source: str,
    file: str,
    *,
    fields: tuple[str, ...] = (),
    on_bad_row: Literal["error", "skip"] = "error",
    output: str | None = None,
    num_beams: Count | None = None,
    length_penalty: float | None = None,
    max_new_tokens: Count | None = None,
    batch_size: Count | None = None,
    tokenize: str | None = None,
    engine: Engine = "auto",
    as_json: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    **layout,
) -> None:
    """Measure a fine-tuned model on labelled texts, or an encoder-decoder on pairs.

    The metrics of an encoder-decoder are BLEU by sacrebleu (pip install
    'roformer-keras[evaluate]') and the cross-entropy in nats a token, without label
    smoothing. Pairs whose source has no token of the vocabulary are left out.

    Args:
        source: folder of `finetune`, or a preset folder of a task or of `pretrain
            seq2seq`, or its hf://OWNER/NAME.
        file: as `finetune --train` takes it; for an encoder-decoder rows of two texts,
            of which it writes the second from the first.
        fields: columns or keys of texts and label (default: the names of the
            training; of an encoder-decoder 1,2, in JSON first,second).
        on_bad_row: skip leaves out rows that the task cannot use, and lists them.
        output: folder for the report and its pictures, or for hypotheses.jsonl.
        num_beams: encoder-decoder: beams of each text (default: 4).
        length_penalty: encoder-decoder: beams are ranked by score / length ** X
            (default: 0).
        max_new_tokens: encoder-decoder: maximum of tokens of a text (default: 50 more
            than the source has).
        batch_size: encoder-decoder: beams that are computed together (default: 64).
        tokenize: encoder-decoder: how sacrebleu splits texts, as 13a, zh or char
            (default: zh if most letters of the references are Chinese, else 13a).
        engine: what computes, as in `embed`.
    """
    from roformer_keras.training.finetuning_settings import trained_settings
    from roformer_keras.verbs.sources import class_of

    writing = {
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "max_new_tokens": max_new_tokens,
        "batch_size": batch_size,
        "tokenize": tokenize,
    }
    writing = {name: value for name, value in writing.items() if value is not None}
    writes = False
    # A fine-tuning that is not finished is named below.
    with contextlib.suppress(RoFormerError):
        writes = class_of(source) == "RoFormerSeq2Seq"
    if writing and not writes:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in writing)
        raise ConfigurationError(
            f"{flags} must be left out: {source} is not the preset folder of a "
            "RoFormerSeq2Seq"
        )
    require("BLEU" if writes else "an evaluation")
    if output is not None and not writes:
        require("drawing")
    trained = None if writes or on_bad_row == "skip" else trained_settings(source)
    check_table(file, trained, fields, classes=None, **layout)
    if output is not None:
        check_target(Path(output), overwrite, folder="report.txt")
    start_backend()
    from roformer_keras.training.results import (
        format_page,
        load_finetuned,
        write_reports,
    )

    # An output that cannot be written is refused before the work.
    target: contextlib.AbstractContextManager = contextlib.nullcontext()
    if output is not None:
        target = replacing(output, overwrite, folder="report.txt")
    with target as partial:
        progress, lines = shows_progress(quiet), None
        if writes:
            report, lines = _evaluate_pairs(
                *(source, file, fields, layout, on_bad_row), writing, progress, engine
            )
        else:
            tuned = load_finetuned(source)
            tuned.task.engine = engine
            report = tuned.evaluate(
                *(file, fields), on_bad_row=on_bad_row, **layout, verbose=progress
            )
        interrupts.check()
        page = format_page({}, {"evaluation": report})
        if partial is not None:
            if lines is not None:
                text = "".join(f"{json_line(line)}\n" for line in lines)
                (partial / "hypotheses.jsonl").write_text(text, encoding="utf-8")
            page = write_reports(partial, {}, {"evaluation": report})
    if as_json:
        print_json(report)
    else:
        print(page, end="")


def _evaluate_pairs(
    source, file, fields, layout, on_bad_row, options, progress, engine
):
    """The report of an encoder-decoder, and a line for each pair."""
    from roformer_keras.data.files import row_unit
    from roformer_keras.models import RoFormerSeq2Seq
    from roformer_keras.training.evaluate import evaluate_seq2seq, read_pairs

    skipped: list[tuple[int, str]] = []
    pairs = read_pairs(
        file,
        fields,
        skipped=skipped if on_bad_row == "skip" else None,
        **layout,
    )
    sources, references = zip(*pairs, strict=True)
    options = {"num_beams": 4, "length_penalty": 0.0, "batch_size": 64, **options}
    model = RoFormerSeq2Seq.from_preset(source)
    model.engine = engine
    evaluation = evaluate_seq2seq(
        model, sources, references, **options, verbose=int(progress)
    )
    by = "--tokenize" if "tokenize" in options else "the letters of the references"
    report = {"file": file, **evaluation.metrics(), "tokenize_by": by}
    if skipped:
        unit = row_unit(file, layout.get("format"))
        report["skipped"] = [{unit: line, "reason": why} for line, why in skipped]
    # No metric depends on how many are computed together.
    del options["batch_size"]
    lines = [
        {"source": source, "reference": reference, "hypothesis": hypothesis}
        for (source, reference), hypothesis in zip(
            evaluation.pairs, evaluation.hypotheses, strict=True
        )
    ]
    return {**report, **options}, lines
