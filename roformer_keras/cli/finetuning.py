"""The verbs of fine-tuning: their options, and what they do.

Functions are as those of `cli.commands`: one a verb, flags its keywords.
"""

import contextlib
import json
import sys
from pathlib import Path

from roformer_keras.cli import interrupts, operands
from roformer_keras.cli.flags import (
    add_json,
    add_overwrite,
    add_overwrite_training,
    add_quiet,
    add_verb,
    names,
    positive,
)
from roformer_keras.errors import ConfigurationError, RoFormerError

__all__ = ["add_verbs", "evaluate", "finetune", "predict"]

# Rows whose answers are computed, and written, together.
_ROWS_AT_A_TIME = 256


def finetune(
    task, *, output, config=None, overwrite: bool = False, quiet: bool = False, **flags
) -> int:
    """Trains a task on a file, in a folder in which it can be taken up again."""
    from roformer_keras.cli import commands
    from roformer_keras.training.finetuning_settings import (
        DEFAULT_PRESET,
        settings_of_command,
    )

    # What the settings hold is known before a backend is waited for.
    settings = settings_of_command(task, config, **flags)
    if settings.preset == DEFAULT_PRESET != flags["preset"] and not quiet:
        operands.say_taken(DEFAULT_PRESET)
    commands.start_backend()
    from roformer_keras.training.finetune import finetune as run

    try:
        # Keras's bar would go to standard output.
        with contextlib.redirect_stdout(sys.stderr):
            run(
                settings,
                output,
                callbacks=[commands.interruptible()],
                overwrite=overwrite,
                verbose=commands.shows_progress(quiet),
            )
    except KeyboardInterrupt:
        print(
            f"roformer-keras: what was saved is kept in {output}; run the same command "
            "again to resume",
            file=sys.stderr,
        )
        raise
    report = Path(output, "report.txt")
    if report.is_file() and not quiet:
        print(report.read_text(encoding="utf-8"), file=sys.stderr)
    print(Path(output, "preset"))
    return 0


def predict(
    source,
    input=None,
    *,
    texts=None,
    fields=(),
    output="-",
    overwrite: bool = False,
    quiet: bool = False,
) -> int:
    """The answers of a fine-tuned model, a line of JSON a row."""
    from roformer_keras.cli import commands
    from roformer_keras.io.atomic import check_target

    commands.check_one_input(input, texts, "a file of texts", "--text TEXT")
    if output != "-" and not output.endswith(".jsonl"):
        raise ConfigurationError(
            f"the output must end in .jsonl, or be - for standard output, got "
            f"{output!r}"
        )
    if output != "-":
        # Refused before the work, not after it.
        check_target(Path(output), overwrite, folder=False)
    commands.start_backend()
    from roformer_keras.training.results import answers_of, load_finetuned, read_rows

    tuned = load_finetuned(source)
    if texts is not None:
        rows = [(f"text {at}", tuple(row)) for at, row in enumerate(texts, start=1)]
    else:
        rows = read_rows(tuned, input, fields)
    tuned.check_rows([row for _, row in rows])

    def write(tuned, batch, job):
        return [
            json.dumps(line, ensure_ascii=False) for line in answers_of(tuned, batch)
        ]

    return commands.write_job(
        lambda: tuned,
        write,
        rows,
        _ROWS_AT_A_TIME,
        output,
        {"command": "predict"},
        (tuned.preset, None, None),
        overwrite=overwrite,
        quiet=quiet,
    )


def evaluate(
    source,
    input,
    *,
    fields=(),
    output=None,
    num_beams: int | None = None,
    length_penalty: float | None = None,
    max_length: int | None = None,
    batch_size: int | None = None,
    tokenize: str | None = None,
    as_json: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> int:
    """How good a fine-tuned model is on labelled texts, or one that writes on pairs."""
    from roformer_keras.cli import commands
    from roformer_keras.io.atomic import replacing

    commands.start_backend()
    from roformer_keras.tasks.load import model_class
    from roformer_keras.training.results import (
        evaluation_of,
        load_finetuned,
        page_of,
        write_reports,
    )

    writing = {
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "max_length": max_length,
        "batch_size": batch_size,
        "tokenize": tokenize,
    }
    given = {name: value for name, value in writing.items() if value is not None}
    writes = False
    # What is no checkpoint may be an unfinished fine-tuning, which is named below.
    with contextlib.suppress(RoFormerError):
        writes = model_class(source) == "RoFormerSeq2Seq"
    if given and not writes:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigurationError(
            f"{flags}: for the preset folder of a RoFormerSeq2Seq alone, which "
            f"{source} is not; leave out what is of writing"
        )
    # An output that cannot be written is refused before the work, not after it.
    target = contextlib.nullcontext()
    if output is not None:
        target = replacing(output, overwrite, folder=True)
    with target as partial:
        progress, lines = commands.shows_progress(quiet), []
        if writes:
            report, lines = _report_on_pairs(source, input, fields, given, progress)
        else:
            tuned = load_finetuned(source)
            report = evaluation_of(tuned, input, fields, verbose=progress)
        interrupts.check()
        page = page_of({}, {"evaluation": report})
        if partial is not None:
            if writes:
                text = "".join(
                    f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines
                )
                (partial / "hypotheses.jsonl").write_text(text, encoding="utf-8")
            page = write_reports(partial, {}, {"evaluation": report})
    if as_json:
        print(json.dumps(report, ensure_ascii=False, indent=2))
    else:
        print(page, end="")
    return 0


def _report_on_pairs(source, path, fields, options, progress):
    """Figures of what an encoder-decoder writes, and a line for each pair."""
    from roformer_keras.models import RoFormerSeq2Seq
    from roformer_keras.training.evaluate import evaluate_seq2seq, read_pairs

    sources, references = zip(*read_pairs(path, fields), strict=True)
    options = {"num_beams": 4, "length_penalty": 0.0, "batch_size": 64, **options}
    found = evaluate_seq2seq(
        RoFormerSeq2Seq.from_preset(source),
        sources,
        references,
        **options,
        progress=progress,
    )
    by = "--tokenize" if "tokenize" in options else "the letters of the references"
    report = {"file": path, **found.figures(), "tokenize_by": by}
    # No figure depends on how many are computed together.
    del options["batch_size"]
    lines = [
        {"source": source, "reference": reference, "hypothesis": hypothesis}
        for (source, reference), hypothesis in zip(
            found.pairs, found.hypotheses, strict=True
        )
    ]
    return {**report, **options}, lines


# === Options ===


def add_verbs(verbs) -> None:
    """Adds the parsers of these verbs."""
    verb = add_verb(
        verbs,
        "finetune",
        "finetune",
        "train a task on labelled texts",
        "finetune text-classification --train reviews.tsv --valid held-out.tsv "
        "--out reviews",
        "finetune text-regression --train pairs.tsv --pairs --holdout 0.1 "
        "--lora-rank 8 --learning-rate 1e-3 --out sts",
        "finetune token-classification --train ner.bio --holdout 0.1 --crf "
        "--patience 2 --out ner",
    )
    from roformer_keras.training.finetuning_settings import SCHEDULES, TASKS
    from roformer_keras.training.optimizer_settings import DTYPES

    verb.add_argument(
        "task", metavar="TASK", choices=TASKS, help=f"one of {', '.join(TASKS)}"
    )
    _add_data(verb)
    _add_task(verb)
    _add_training(verb, SCHEDULES, DTYPES)
    add_overwrite_training(verb)
    add_quiet(verb)

    verb = add_verb(
        verbs,
        "predict",
        "predict",
        "answer with a fine-tuned model",
        "predict reviews --text 今天天气不错",
        "predict reviews texts.txt -o answers.jsonl",
    )
    operands.add(
        verb,
        operands.source_or_input,
        "DIR [FILE]",
        None,
        "DIR: of `finetune`, or a preset folder of a task. FILE: texts, one a line, "
        "with tabs between several of a row; or a file as `finetune --train` takes it, "
        "whose labels are passed over; - is stdin",
    )
    verb.add_argument(
        "--text",
        dest="texts",
        nargs="+",
        action="append",
        metavar="TEXT",
        help="a row to take instead of a file, of as many texts as the task has; may "
        "be repeated",
    )
    _add_fields(
        verb,
        "columns or keys of the texts (default: as in training; of a .txt that lacks "
        "those, and of stdin, columns from the first on)",
        (),
    )
    _add_out(
        verb,
        default="-",
        metavar="FILE",
        help=".jsonl; JSON lines on stdout if none. A command that is interrupted "
        "keeps what it has made in FILE.partial; run again, it goes on from there",
    )
    add_overwrite(verb)
    add_quiet(verb)

    verb = add_verb(
        verbs,
        "evaluate",
        "evaluate",
        "say how good a fine-tuned model is, or one that writes",
        "evaluate reviews held-out.tsv",
        "evaluate reviews held-out.tsv --json --out report",
        "evaluate run/preset test.tsv --num-beams 4 --length-penalty 0.6",
    )
    verb.add_argument(
        "source",
        metavar="DIR",
        help="of `finetune`, or a preset folder of a task or of `pretrain seq2seq`",
    )
    verb.add_argument(
        "input",
        metavar="FILE",
        help="as `finetune --train` takes it; of an encoder-decoder two texts a row, "
        "of which it writes the second from the first",
    )
    _add_fields(
        verb,
        "columns or keys of texts and label (default: as in training; of an "
        "encoder-decoder 1,2, in JSON first,second)",
        (),
    )
    _add_out(
        verb,
        metavar="FOLDER",
        help="to write report.txt, report.json and confusion.png, or what was written "
        "as hypotheses.jsonl, to",
    )
    group = verb.add_argument_group(
        "an encoder-decoder",
        "BLEU is by sacrebleu (pip install 'roformer-keras[evaluate]'), the loss is "
        "the cross-entropy in nats a token, without label smoothing. Pairs whose "
        "source has no token of the vocabulary are left out.",
    )
    group.add_argument(
        "--num-beams", type=positive, metavar="N", help="of each text (default: 4)"
    )
    group.add_argument(
        "--length-penalty",
        type=float,
        metavar="X",
        help="beams are ranked by score / length ** X (default: 0)",
    )
    group.add_argument(
        "--max-length",
        type=positive,
        metavar="N",
        help="most tokens that are written (default: 50 more than the source has)",
    )
    group.add_argument(
        "--batch-size",
        type=positive,
        metavar="N",
        help="beams that are computed together (default: 64)",
    )
    group.add_argument(
        "--tokenize",
        metavar="NAME",
        help="how sacrebleu cuts texts: 13a, zh, char or another of its ways (default: "
        "zh if most letters of the references are Chinese, else 13a)",
    )
    add_overwrite(verb)
    add_json(verb)
    add_quiet(verb)


def _add_data(verb):
    verb.add_argument(
        "--train",
        metavar="FILE",
        help="labelled texts: .tsv, .csv, .jsonl, .bio or .conll, each also .gz or "
        ".xz. A label is a class (several with commas between), a number, B or C, a "
        "list [[start, end, label], ...] or BIO tags of all characters, or an answer, "
        "empty where there is none",
    )
    verb.add_argument(
        "--valid", metavar="FILE", help="that says after each epoch how good it is"
    )
    verb.add_argument(
        "--test", metavar="FILE", help="that is reported on at the end alone"
    )
    verb.add_argument(
        "--holdout",
        type=float,
        metavar="SHARE",
        help="of the rows of --train that stands for --valid (default: 0)",
    )
    _add_fields(
        verb,
        "keys, names in the header or numbers of the columns of the texts and the "
        "label (default: text, label or first, second, label; the first columns of a "
        "table that has no such header)",
        None,
    )
    _flag(verb, "--pairs", "a row has two texts, where a task takes one or two")
    verb.add_argument(
        "--preset",
        metavar="SOURCE",
        help="checkpoint to begin from: a zip, folder, file, or the name of a "
        "downloaded one (default: roformer-char, a small one that comes with this "
        "package)",
    )
    _add_out(
        verb,
        required=True,
        metavar="DIR",
        help="of this training; if one of the same settings was interrupted there, it "
        "is gone on with from its last epoch",
    )
    verb.add_argument(
        "--config", metavar="FILE", help="settings in TOML; flags go before them"
    )


def _add_task(verb):
    group = verb.add_argument_group("the task")
    _flag(group, "--multi-label", "text-classification: any number of classes a row")
    _flag(group, "--crf", "token-classification: tags are told together")
    group.add_argument(
        "--objective",
        choices=["cosent", "classification", "contrastive"],
        help="sentence-embedding: what labels are (default: cosent)",
    )
    group.add_argument(
        "--pooling",
        choices=["first", "mean"],
        help="vector of a text: at [CLS], or the mean (default: the task's own)",
    )
    group.add_argument(
        "--max-length",
        type=positive,
        metavar="N",
        help="tokens to which rows are cut (default: 512; triplet-ranking: 1024)",
    )
    group.add_argument(
        "--dropout", type=float, metavar="P", help="(default: the checkpoint's)"
    )


def _add_training(verb, schedules, dtypes):
    group = verb.add_argument_group("training")
    for name, default, what in (
        ("--epochs", 3, "most passes over the data"),
        ("--batch-size", 32, "rows an update"),
        ("--accumulation", 1, "parts into which a batch is cut to save memory"),
    ):
        group.add_argument(
            name, type=positive, metavar="N", help=f"{what} (default: {default})"
        )
    for name, default, what in (
        (
            "--learning-rate",
            "2e-5 where the model is 768 wide, by the square more where it is "
            "narrower, 5e-4 at most",
            "of the highest layers",
        ),
        ("--warmup", 0.1, "share of the updates over which the rate rises from 0"),
        ("--weight-decay", 0.01, "of kernels and embeddings"),
        ("--clip-norm", 1, "most that the norm of all gradients may be; 0: any"),
        ("--ema", 0, "momentum of a running mean of the weights, such as 0.99"),
        ("--layer-decay", 1, "by which the rate falls from block to block"),
        ("--adversarial-epsilon", 0, "step against the embeddings (FGM), such as 1"),
        ("--r-drop", 0, "weight of the divergence of two passes, such as 4"),
    ):
        group.add_argument(
            name, type=float, metavar="X", help=f"{what} (default: {default})"
        )
    group.add_argument(
        "--schedule",
        choices=schedules,
        help="of the rate after its rise: to 0, or as it is (default: linear)",
    )
    group.add_argument(
        "--lora-rank",
        type=int,
        metavar="N",
        help="train additions to kernels of this rank alone; 0: all weights "
        "(default: 0)",
    )
    group.add_argument(
        "--lora-alpha", type=float, metavar="X", help="their weight (default: the rank)"
    )
    group.add_argument(
        "--lora-targets",
        type=names,
        metavar="NAME,...",
        help="of query, key, value, attention_output, intermediate, "
        "feed_forward_output (default: query,value)",
    )
    _flag(group, "--freeze-embeddings", "leave the embeddings as they are")
    group.add_argument(
        "--freeze-layers",
        type=int,
        metavar="N",
        help="leave the lowest blocks as they are (default: 0)",
    )
    group.add_argument(
        "--class-weights",
        choices=["balanced"],
        help="weigh rows by how rare their class is (default: all alike)",
    )
    group.add_argument(
        "--dtype", choices=dtypes, help="Keras dtype policy (default: float32)"
    )
    _flag(group, "--gradient-checkpointing", "less memory, more time; for long texts")
    group.add_argument(
        "--monitor",
        metavar="NAME",
        help="figure of --valid that says which epoch is best: one of the report, or "
        "loss (default: the task's own)",
    )
    group.add_argument(
        "--patience",
        type=positive,
        metavar="N",
        help="epochs without a better figure that end the training (default: none do)",
    )
    group.add_argument(
        "--keep-last",
        dest="keep_best",
        action="store_false",
        default=None,
        help="keep the weights of the last epoch, not of the best",
    )
    group.add_argument("--seed", type=int, metavar="N", help="(default: 0)")


def _add_fields(verb, help, default):
    verb.add_argument(
        "--fields", type=names, default=default, metavar="NAME,...", help=help
    )


def _add_out(verb, **options):
    verb.add_argument("--out", "--output", "-o", dest="output", **options)


def _flag(parser, name, help):
    """None where it is not given, so that a configuration file can say it."""
    parser.add_argument(name, action="store_true", default=None, help=help)
