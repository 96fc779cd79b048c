"""The command `roformer-keras`: arguments in, an exit code out.

Exit codes: 0 done; 1 `verify` found a difference; 2 wrong usage, source, configuration
or vocabulary; 3 weights that are missing, misfit or corrupt; 4 output not written;
5 download failed; 6 no bert4keras to compare with; 130 interrupted.
"""

import argparse
import io
import os
import sys

from roformer_keras.errors import RoFormerError

__all__ = ["main"]

_SOURCE = (
    "a zip, folder, checkpoint prefix, .h5, .keras or .safetensors file, preset "
    "folder, or the name of a downloaded checkpoint"
)


def main(arguments=None) -> int:
    """Runs one command; returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # Texts are Chinese in every locale, and may hold what is no character.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    options = vars(_parser().parse_args(arguments))
    command = options.pop("command")
    # TensorFlow speaks of devices and instruction sets on import.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from roformer_keras.cli import commands

    try:
        code = getattr(commands, command)(**options)
        sys.stdout.flush()
    except RoFormerError as error:
        # What comes behind an empty line is advice, and keeps its lines.
        message, _, advice = str(error).partition("\n\n")
        print(f"roformer-keras: error: {' '.join(message.split())}", file=sys.stderr)
        if advice:
            print(f"\n{advice}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("roformer-keras: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has had enough, as `head` has.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


def _parser():
    parser = argparse.ArgumentParser(
        prog="roformer-keras",
        description="The Chinese RoFormer family in Keras 3.",
    )
    verbs = parser.add_subparsers(metavar="COMMAND", required=True)

    verb = _verb(verbs, "list", "list_catalog", "list the released checkpoints")
    _json(verb)

    verb = _verb(verbs, "download", "download", "fetch released zips")
    verb.add_argument("names", nargs="+", metavar="NAME", help="see `list`")
    verb.add_argument("--folder", help="where to (default: ./checkpoints)")
    verb.add_argument("--base-url", help="of a mirror")
    _quiet(verb)

    verb = _verb(verbs, "inspect", "inspect", "say what a source holds")
    _source(verb)
    _json(verb)

    verb = _verb(verbs, "convert", "convert", "write weights in another format")
    _source(verb)
    verb.add_argument(
        "target",
        help="NAME.zip (bert4keras), NAME.keras, NAME.weights.h5, NAME.safetensors, or "
        "a folder (preset)",
    )
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
    _overwrite(verb)
    _quiet(verb)

    verb = _verb(verbs, "verify", "verify", "compare with the real bert4keras")
    _source(verb, vocabulary=False)
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
    _quiet(verb)
    _json(verb)

    verb = _verb(verbs, "fill-mask", "fill_mask", "find tokens for [MASK]")
    _source(verb)
    _texts(verb, "with [MASK] in it")
    verb.add_argument("--top-k", type=int, default=5, metavar="K")
    _json(verb)

    verb = _verb(verbs, "embed", "embed", "turn lines of text into vectors")
    _source(verb)
    verb.add_argument("input", help="text file, a text a line; - is stdin")
    verb.add_argument(
        "--output",
        "-o",
        default="-",
        metavar="FILE",
        help=".npy or .jsonl; JSON lines on stdout if none",
    )
    verb.add_argument("--max-length", type=int, default=512, metavar="N")
    verb.add_argument(
        "--no-normalize",
        dest="normalize",
        action="store_false",
        help="keep the length of the vectors, instead of 1",
    )
    _overwrite(verb)
    _quiet(verb)

    verb = _verb(verbs, "tokenize", "tokenize", "turn texts into token ids, or back")
    _source(verb, config=False)
    _texts(verb, "to tokenize")
    verb.add_argument(
        "--decode", action="store_true", help="texts are ids: decode them"
    )
    verb.add_argument("--max-length", type=int, metavar="N")
    _json(verb)
    return parser


def _verb(verbs, name, command, summary):
    verb = verbs.add_parser(name, help=summary, description=summary.capitalize() + ".")
    verb.set_defaults(command=command)
    return verb


def _source(verb, config=True, vocabulary=True):
    verb.add_argument("source", help=_SOURCE)
    if config:
        verb.add_argument(
            "--config", metavar="FILE", help="bert_config.json, if the source has none"
        )
    if vocabulary:
        verb.add_argument(
            "--vocabulary", metavar="FILE", help="vocab.txt, if the source has none"
        )


def _texts(verb, what):
    verb.add_argument(
        "texts", nargs="+", metavar="TEXT", help=f"{what}; - is the lines of stdin"
    )


def _json(verb):
    verb.add_argument(
        "--json", dest="as_json", action="store_true", help="for programs"
    )


def _quiet(verb):
    verb.add_argument(
        "--quiet", action="store_true", help="no progress bar, on a terminal either"
    )


def _overwrite(verb):
    verb.add_argument("--overwrite", action="store_true", help="replace the output")


def _lengths(text):
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"lengths must be integers between commas, got {text!r}"
        ) from None
