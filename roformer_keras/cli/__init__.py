"""The command `roformer-keras`: arguments in, an exit code out.

Exit codes: 0 done; 1 `verify` found a difference; 2 wrong usage, source, configuration
or vocabulary; 3 weights that are missing, misfit or corrupt; 4 output not written;
5 download failed; 6 no bert4keras to compare with; 130 interrupted.
"""

import argparse
import io
import os
import sys

from roformer_keras.cli import finetuning, interrupts, operands
from roformer_keras.cli.flags import (
    add_json,
    add_overwrite,
    add_overwrite_training,
    add_quiet,
    add_verb,
    names,
    positive,
    with_flags,
)
from roformer_keras.errors import OutputError, RoFormerError

__all__ = ["main"]


def main(arguments=None) -> int:
    """Runs one command; returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # Texts are Chinese in every locale, and may hold what is no character.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    options = vars(options)
    operands.resolve(parser, options, rest)
    command, verb = options.pop("command"), options.pop("parser")
    # TensorFlow speaks of devices and instruction sets on import.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with interrupts.watched():
        try:
            from roformer_keras.cli import commands

            module = finetuning if command in finetuning.__all__ else commands
            code = getattr(module, command)(**options)
            sys.stdout.flush()
        except (Exception, KeyboardInterrupt) as error:
            code = _code_of(error, verb)
    return code


def _code_of(error, verb) -> int:
    """Says why a command ended; raises what no command should end by."""
    from roformer_keras.io.atomic import is_space_error, one_line

    # An OutputError, an OSError too, speaks of a file and for itself.
    is_ours = isinstance(error, RoFormerError)
    is_closed = isinstance(error, BrokenPipeError)
    is_full = isinstance(error, OSError) and not is_ours and is_space_error(error)
    if is_closed or is_full:
        # What is left of the output would fail again when Python flushes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # Caught on its way, an interruption becomes any other error.
    if interrupts.came() or isinstance(error, KeyboardInterrupt):
        print("roformer-keras: interrupted", file=sys.stderr)
        return 130
    if is_closed:
        # The reader of our output has had enough, as `head` has.
        return 141
    if is_full:
        error = OutputError(f"no space left to write the output ({one_line(error)})")
    elif not is_ours:
        raise error
    hint = error.hint and with_flags(error.hint, verb)
    is_long = hint is not None and "\n" in hint
    shown = type(error)(error.message, row=error.row, hint=None if is_long else hint)
    print(f"roformer-keras: error: {one_line(shown)}", file=sys.stderr)
    if is_long:
        print(f"\n{hint}", file=sys.stderr)
    return error.exit_code


def _parser():
    parser = argparse.ArgumentParser(
        prog="roformer-keras",
        description="The Chinese RoFormer family in Keras 3.",
    )
    verbs = parser.add_subparsers(metavar="COMMAND", required=True)

    verb = add_verb(verbs, "list", "list_catalog", "list the released checkpoints")
    add_json(verb)

    verb = add_verb(verbs, "download", "download", "fetch released zips")
    verb.add_argument("names", nargs="+", metavar="NAME", help="see `list`")
    verb.add_argument("--folder", help="where to (default: ./checkpoints)")
    verb.add_argument("--base-url", help="of a mirror")
    add_quiet(verb)

    verb = add_verb(
        verbs,
        "inspect",
        "inspect",
        "say what a source holds",
        "inspect",
        "inspect roformer-sim-char --json",
    )
    operands.add(verb, operands.source, "[SOURCE]", "roformer-char")
    _source_files(verb)
    add_json(verb)

    verb = add_verb(
        verbs,
        "convert",
        "convert",
        "write weights in another format",
        "convert preset",
        "convert roformer-gpt-char gpt.safetensors",
    )
    operands.add(
        verb,
        operands.source_and_target,
        "[SOURCE] TARGET",
        "roformer-char",
        "TARGET: NAME.zip (bert4keras), NAME.keras, NAME.weights.h5, "
        "NAME.safetensors, or a folder (preset)",
    )
    _source_files(verb)
    verb.add_argument(
        "--format",
        choices=["preset", "weights.h5", "keras", "safetensors", "bert4keras"],
    )
    verb.add_argument("--dtype", choices=["float32", "float16"], default="float32")
    verb.add_argument("--model", help="class of the result, such as RoFormerCausalLM")
    verb.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="PATTERN",
        help="unexpected tensors to leave out, such as 'dense*'; may be repeated",
    )
    add_overwrite(verb)
    add_quiet(verb)

    verb = add_verb(
        verbs,
        "export",
        "export",
        "write a model that needs neither this package nor Keras",
        "export roformer-sim-char served --format onnx --int8",
        "export reviews served",
    )
    operands.add(
        verb,
        operands.source_and_target,
        "[SOURCE] TARGET",
        "roformer-char",
        "TARGET: folder",
    )
    _source_files(verb)
    verb.add_argument(
        "--format",
        choices=["saved_model", "onnx", "openvino"],
        default="saved_model",
        help="(default: saved_model)",
    )
    verb.add_argument(
        "--int8",
        action="store_true",
        help="products of integers, for --format onnx and openvino",
    )
    verb.add_argument(
        "--calibrate",
        metavar="FILE",
        help="some 100 texts like those to come, a text a line, for --int8 with "
        "--format openvino",
    )
    add_overwrite(verb)
    add_json(verb)

    verb = add_verb(
        verbs,
        "verify",
        "verify",
        "compare with the real bert4keras",
        "verify roformer-sim-char --lengths 1,2,64",
    )
    operands.add(verb, operands.source, "[SOURCE]", "roformer-char")
    _source_files(verb, vocabulary=False)
    verb.add_argument("--bert4keras", metavar="FOLDER", help="that holds bert4keras")
    verb.add_argument("--python", metavar="PATH", help="interpreter to run it with")
    verb.add_argument(
        "--reference", metavar="FILE", help="saved before; bert4keras is not run"
    )
    verb.add_argument(
        "--save-reference", metavar="FILE", help="to save bert4keras's outputs to"
    )
    verb.add_argument(
        "--published",
        action="store_true",
        help="compare with values published of released weights instead",
    )
    verb.add_argument(
        "--lengths",
        type=_lengths,
        default=(1, 2, 512, 1536),
        metavar="N,N,...",
        help="of the batches (default: 1,2,512,1536)",
    )
    add_quiet(verb)
    add_json(verb)

    verb = add_verb(
        verbs,
        "fill-mask",
        "fill_mask",
        "find tokens for [MASK]",
        "fill-mask 床前明[MASK]光",
        "fill-mask 太祖[MASK]位，大赦天下。 --top-k 3",
    )
    operands.add(
        verb,
        operands.source_and_texts,
        "[SOURCE] TEXT ...",
        "roformer-char",
        "TEXT: with [MASK] in it; - is the lines of stdin",
    )
    _source_files(verb)
    verb.add_argument("--top-k", type=int, default=5, metavar="K")
    add_json(verb)

    verb = add_verb(
        verbs,
        "embed",
        "embed",
        "turn lines of text into vectors",
        "embed sentences.txt -o vectors.npy",
    )
    operands.add(
        verb,
        operands.source_and_input,
        "[SOURCE] INPUT",
        "roformer-sim-char",
        "INPUT: text file, a text a line; - is stdin",
    )
    _source_files(verb)
    verb.add_argument(
        "--output",
        "-o",
        default="-",
        metavar="FILE",
        help=".npy or .jsonl; JSON lines on stdout if none",
    )
    verb.add_argument(
        "--max-length",
        type=int,
        metavar="N",
        help="(default: 512; of a fine-tuned encoder, as in its training)",
    )
    verb.add_argument(
        "--no-normalize",
        dest="normalize",
        action="store_false",
        help="keep the length of the vectors, instead of 1",
    )
    verb.add_argument(
        "--dtype",
        choices=["float32", "bfloat16"],
        help="bfloat16 is faster for many texts where the processor knows it, and a "
        "little off (default: float32)",
    )
    add_overwrite(verb)
    add_quiet(verb)

    verb = add_verb(
        verbs,
        "generate",
        "generate",
        "go on writing from prompts",
        "generate --text 床前明月光，",
        "generate --text 春风 --num-return-sequences 3 --top-p 0.8 --seed 1",
        "generate roformer-sim-char --text 他的军队被打败，逃回了京城。 --method beam",
    )
    operands.add(
        verb,
        operands.source_or_input,
        "[SOURCE] [INPUT]",
        "roformer-gpt-char, with --unilm roformer-sim-char",
        "INPUT: text file, a prompt a line; - is stdin",
        _writer,
    )
    _text_options(verb)
    _source_files(verb)
    _result(verb, "rows of prompt, text, score")
    verb.add_argument(
        "--model",
        choices=["RoFormerCausalLM", "RoFormerSim"],
        help="class to load, if the source does not tell",
    )
    verb.add_argument(
        "--unilm",
        action="store_true",
        help="the source writes a second text from a first that it sees both ways",
    )
    verb.add_argument(
        "--method", choices=["sample", "greedy", "beam"], default="sample"
    )
    verb.add_argument(
        "--num-return-sequences",
        type=positive,
        default=1,
        metavar="N",
        help="texts for each prompt (default: 1)",
    )
    verb.add_argument(
        "--max-length",
        type=positive,
        metavar="N",
        help="most tokens of prompt and text together, or with UniLM of each of the "
        "two (default: 256, or 64 with RoFormerSim); of an encoder-decoder of what is "
        "written (default: 50 more than the text has)",
    )
    verb.add_argument(
        "--min-length",
        type=int,
        default=0,
        metavar="N",
        help="tokens, counted likewise, before which a text does not end",
    )
    _sampling(verb)
    verb.add_argument(
        "--num-beams", type=positive, default=4, metavar="N", help="(default: 4)"
    )
    verb.add_argument(
        "--length-penalty",
        type=float,
        default=0.0,
        metavar="X",
        help="beams are ranked by score / length ** X (default: 0)",
    )
    verb.add_argument(
        "--stop",
        action="append",
        metavar="TOKEN",
        help="that ends a text, such as 。 (default: [SEP]); may be repeated",
    )
    _batch_size(verb, 64)

    verb = add_verb(
        verbs,
        "paraphrase",
        "paraphrase",
        "find similar sentences",
        "paraphrase --text 学习了又时常温习，不是很愉快吗？ --n 20 --k 5",
    )
    operands.add(
        verb,
        operands.source_or_input,
        "[SOURCE] [INPUT]",
        "roformer-sim-char",
        "INPUT: text file, a sentence a line; - is stdin",
    )
    _text_options(verb)
    _source_files(verb)
    _result(verb, "rows of sentence, similar sentence, cosine")
    verb.add_argument(
        "--n",
        type=positive,
        default=100,
        help="sentences that are written for each (default: 100)",
    )
    verb.add_argument(
        "--k",
        type=positive,
        default=20,
        help="most that are kept, the nearest (default: 20)",
    )
    verb.add_argument(
        "--mask-positions",
        dest="masked_positions",
        type=_positions,
        default=(),
        metavar="N,N,...",
        help="tokens to find others for; 1 is the first",
    )
    verb.add_argument(
        "--max-length",
        type=positive,
        default=64,
        metavar="N",
        help="most tokens of a sentence (default: 64)",
    )
    _sampling(verb)
    _batch_size(verb, 128)

    verb = add_verb(
        verbs,
        "similarity",
        "similarity",
        "compare pairs of texts",
        "similarity --pair 学而时习之，不亦说乎？ 学了又时常温习，不是很愉快吗？",
    )
    operands.add(
        verb,
        operands.source_or_input,
        "[SOURCE] [INPUT]",
        "roformer-sim-char",
        "INPUT: pairs, one a line: two texts with a tab between, as they are, without "
        "escapes; or .jsonl, lists of two or objects; - is stdin, with tabs",
    )
    _source_files(verb)
    verb.add_argument(
        "--pair",
        dest="pairs",
        nargs=2,
        action="append",
        metavar="TEXT",
        help="to compare, instead of a file; may be repeated",
    )
    verb.add_argument(
        "--fields",
        type=_fields,
        default=("first", "second"),
        metavar="NAME,NAME",
        help="of the texts in JSON objects (default: first,second)",
    )
    _result(verb, "rows of first text, second text, cosine")
    verb.add_argument(
        "--max-length",
        type=positive,
        metavar="N",
        help="tokens after which a text is cut (default: 512; of a fine-tuned encoder, "
        "as in its training)",
    )

    verb = add_verb(
        verbs,
        "pretrain",
        "pretrain",
        "train a model on a corpus",
        "pretrain mlm corpus.txt -o run --source roformer-char --steps 100",
        "pretrain lm poems.jsonl.gz -o run --fields lines --layers 2",
        "pretrain seq2seq pairs.tsv -o run --subwords --max-vocabulary 8000 --cased",
    )
    operands.add(
        verb,
        operands.task_and_files,
        "TASK [FILE ...]",
        None,
        "TASK: mlm (fill masks), lm (go on writing), sim (sentence vectors and similar "
        "sentences) or seq2seq (write a second text from a first). FILE: .txt, .jsonl "
        "or .tsv, each also .gz or .xz; a pattern such as 'a/*.txt'",
    )
    verb.add_argument(
        "--output",
        "-o",
        required=True,
        metavar="FOLDER",
        help="of this training; if one of the same settings was interrupted there, it "
        "is gone on with from its last saved state",
    )
    verb.add_argument(
        "--config", metavar="FILE", help="settings in TOML; flags go before them"
    )
    verb.add_argument(
        "--source", help="checkpoint to go on from (default: fresh weights)"
    )
    verb.add_argument(
        "--initialize-heads",
        action="store_true",
        default=None,
        help="begin heads that the source lacks afresh, such as the pooler for sim",
    )
    verb.add_argument(
        "--objective",
        choices=["simbert", "distillation", "classification", "cosent"],
        help="of sim (default: simbert)",
    )
    verb.add_argument("--teacher", metavar="SOURCE", help="to learn distillation from")
    verb.add_argument(
        "--vocabulary",
        metavar="FILE",
        help="vocab.txt (default: the source's, or else one built from the corpus)",
    )
    verb.add_argument(
        "--subwords",
        action="store_true",
        default=None,
        help="build a vocabulary of parts of words, for texts with spaces",
    )
    verb.add_argument(
        "--max-vocabulary", type=positive, metavar="N", help="tokens of a built one"
    )
    verb.add_argument(
        "--cased",
        dest="lower_case",
        action="store_const",
        const=False,
        help="keep case and accents, which the vocabulary must have",
    )
    verb.add_argument(
        "--fields",
        type=names,
        metavar="NAME,...",
        help="keys of JSON objects or numbers of columns that hold texts; with sim "
        "two, and a third for a label (default of seq2seq: 1,2)",
    )
    verb.add_argument(
        "--holdout",
        type=float,
        metavar="SHARE",
        help="of the corpus that is not trained on, but evaluated",
    )
    verb.add_argument(
        "--group", metavar="NAME", help="field by which records are held out together"
    )
    for name, what in (
        ("--layers", "of a fresh model (default: 4)"),
        ("--hidden", "its hidden size (default: 256)"),
        ("--heads", "its attention heads (default: 4)"),
        (
            "--steps",
            "updates, in each stage (default: 10000); a schedule is stretched to them",
        ),
        (
            "--length",
            "tokens of a row (default: 128; of each of two texts 64; seq2seq leaves "
            "out pairs of which one is longer)",
        ),
        ("--batch-size", "rows an update (default: 32)"),
    ):
        verb.add_argument(name, type=positive, metavar="N", help=what)
    verb.add_argument(
        "--learning-rate", type=float, metavar="X", help="(default: 0.0001)"
    )
    verb.add_argument(
        "--whole-word",
        action="store_true",
        default=None,
        help="mask words instead of characters",
    )
    verb.add_argument(
        "--packed",
        action="store_true",
        default=None,
        help="join documents until a row is full",
    )
    verb.add_argument(
        "--dtype",
        metavar="POLICY",
        help="float32 (default), mixed_bfloat16 or mixed_float16",
    )
    verb.add_argument("--seed", type=int, metavar="N", help="(default: 0)")
    verb.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes that tokenize (default: 0, a thread)",
    )
    verb.add_argument(
        "--save-every", type=positive, metavar="N", help="updates (default: 1000)"
    )
    add_overwrite_training(verb)
    add_quiet(verb)

    finetuning.add_verbs(verbs)

    verb = add_verb(
        verbs,
        "tokenize",
        "tokenize",
        "turn texts into token ids, or back",
        "tokenize 床前明月光",
        "tokenize --decode '101 102'",
    )
    operands.add(
        verb,
        operands.source_and_texts,
        "[SOURCE] TEXT ...",
        "roformer-char",
        "TEXT: to tokenize; - is the lines of stdin",
    )
    _source_files(verb, config=False)
    verb.add_argument(
        "--decode", action="store_true", help="texts are ids: decode them"
    )
    verb.add_argument("--max-length", type=int, metavar="N")
    add_json(verb)
    return parser


def _writer(options):
    is_sim = options["unilm"] or options["model"] == "RoFormerSim"
    return "roformer-sim-char" if is_sim else "roformer-gpt-char"


def _source_files(verb, config=True, vocabulary=True):
    if config:
        verb.add_argument(
            "--config", metavar="FILE", help="bert_config.json, if the source has none"
        )
    if vocabulary:
        verb.add_argument(
            "--vocabulary", metavar="FILE", help="vocab.txt, if the source has none"
        )


def _text_options(verb):
    verb.add_argument(
        "--text",
        dest="texts",
        action="append",
        metavar="TEXT",
        help="to take instead of a file; may be repeated",
    )


def _result(verb, rows):
    verb.add_argument(
        "--output",
        "-o",
        default="-",
        metavar="FILE",
        help=f".jsonl, or .tsv with {rows}, in which \\t, \\n, \\r and \\\\ stand for "
        "tab, line feed, carriage return and backslash; JSON lines on stdout if none. "
        "A command that is interrupted keeps what it has made in FILE.partial; run "
        "again, it goes on from there",
    )
    add_overwrite(verb)
    verb.add_argument(
        "--quiet", action="store_true", help="no progress bar, no remarks on stderr"
    )


def _sampling(verb):
    verb.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="(default: 1)"
    )
    verb.add_argument(
        "--top-k",
        type=positive,
        metavar="N",
        help="draw from so many of the likeliest tokens (default: all)",
    )
    verb.add_argument(
        "--top-p",
        type=float,
        default=0.95,
        metavar="P",
        help="draw from the likeliest tokens of so much probability (default: 0.95)",
    )
    verb.add_argument(
        "--seed", type=int, metavar="N", help="gives the same texts again"
    )


def _batch_size(verb, default):
    verb.add_argument(
        "--batch-size",
        type=positive,
        default=default,
        metavar="N",
        help=f"texts that are computed, and written, together (default: {default})",
    )


def _lengths(text):
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"lengths must be integers between commas, got {text!r}"
        ) from None


def _positions(text):
    return tuple(positive(part) for part in text.split(","))


def _fields(text):
    found = names(text)
    if len(found) != 2 or found[0] == found[1]:
        raise argparse.ArgumentTypeError(
            f"must be two names with a comma between, got {text!r}"
        )
    return found
