"""The command `roformer-keras`: arguments in, an exit code out.

Each module of this folder with a function `run` is a command of the module's name. Its
arguments are operands and flags, see `cli.flags`; its docstring is the help. Optional:
`EXAMPLES`, lines of the help; `SETTINGS`, dataclasses whose fields are flags too, or
their full names, by the name of a table; `OPTIONS`, such dataclasses that no file of
settings holds, a verb among them; `FILES`, arguments that are files to read.

Exit codes: 0 done; 1 `verify` found a difference; 2 wrong usage, source, configuration
or vocabulary; 3 weights that are missing, misfit or corrupt; 4 output not written;
5 download failed; 6 no bert4keras to compare with; 7 another process of the training
ended; 128 + N ended by signal N: 130 is Ctrl-C.
"""

import argparse
import contextlib
import difflib
import importlib
import inspect
import io
import os
import pkgutil
import re
import sys
import warnings
from typing import Any

from roformer_keras.base.errors import OutputError, RoFormerError, printable
from roformer_keras.base.extras import installed_version
from roformer_keras.base.keras_backend import UNUSED_BY_COMMANDS, starting
from roformer_keras.base.other_names import FLAGS, explain_withdrawn
from roformer_keras.cli import interrupts
from roformer_keras.cli.flags import add_flags, show_hint
from roformer_keras.cli.libraries import check_libraries
from roformer_keras.cli.paths import check_paths
from roformer_keras.cli.terminal import remark_source
from roformer_keras.cli.verb_commands import command_of
from roformer_keras.verbs import VERBS

# Characters at either end of a message, which may quote a file.
_HALF_OF_ERROR = 2000


class _Parser(argparse.ArgumentParser):
    """Says what is wrong, and what may have been meant, without all the usage."""

    def error(self, message):
        known = re.findall(r"'([^']*)'", message.partition("(choose from ")[2])
        is_choice = re.search(r"invalid choice: '([^']*)'", message)
        if message.startswith("unrecognized arguments: -"):
            words = message.split()[2:]
            known = re.findall(r"--[\w-]+", self.format_help())
        else:
            words = is_choice.groups() if is_choice else ()
        meant = []
        words = [word.partition("=")[0] for word in words]
        withdrawn = filter(None, map(explain_withdrawn, words))
        message = "; ".join([message, *withdrawn])
        for word in words:
            others = (f"--{name}" for name in FLAGS.get(word.removeprefix("--"), ()))
            near = difflib.get_close_matches(word, known, n=1)
            meant += [name for name in (*others, *near) if name in known][:1]
        hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
        self.exit(
            2, f"{self.prog}: error: {message}{hint}\n{self.prog} --help says more\n"
        )


def main(arguments=None) -> int:
    """Runs one command.

    Args:
        arguments: words of the command, or None for those of the process.

    Returns:
        int: 0 if it is done; `roformer_keras.base.errors` has the other codes.

    Example:
        >>> from roformer_keras.cli import main
        >>> main(["tokenize", "你好"])
        101 413 316 102
        0
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The next file that is opened would take the place of a closed stream.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # Texts are Chinese in every locale, and may hold what is no character.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    hidden: tuple[str, ...] = ()
    if arguments is None:
        # The process is this command's alone.
        hidden = UNUSED_BY_COMMANDS
        warnings.formatwarning = _warning_line
        arguments = sys.argv[1:]
    words = list(arguments)
    for word in words:
        if re.search("[\ud800-\udfff]", word) and not os.path.lexists(word):
            print(
                "roformer-keras: error: arguments must be UTF-8, got "
                f"{os.fsencode(word)[:60]!r}: set PYTHONUTF8=1, or correct them",
                file=sys.stderr,
            )
            return 2
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if words[:1] in (["-V"], ["--version"]):
        print(f"roformer-keras {installed_version()}")
        return 0
    completes = "_ARGCOMPLETE" in os.environ
    modules = find_commands(words[0] if words and not completes else "")
    parser = _Parser(
        prog="roformer-keras",
        description="The Chinese RoFormer family in Keras 3.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "-V", "--version", action="store_true", help="show the version and exit"
    )
    verbs = parser.add_subparsers(metavar="COMMAND", required=True)
    parsers = {name: _add_command(verbs, name, modules[name]) for name in modules}
    if completes:
        # The shell asks what may come next; this ends the process.
        for name, verb in parsers.items():
            add_flags(verb, modules[name])
        importlib.import_module("argcomplete").autocomplete(parser)
    if not words:
        parser.print_help(sys.stderr)
        return 2
    if words[0] not in parsers:
        # Shows the help, or what is wrong.
        parser.parse_args(words)
    verb, run = parsers[words[0]], modules[words[0]].run
    add_flags(verb, modules[words[0]])
    # Operands may stand before, between and after flags.
    options = vars(verb.parse_intermixed_args(words[1:]))
    source = inspect.signature(run).parameters.get("source")
    if not options.keys() & {"source", "quiet"} and source and source.default:
        remark_source(source.default)
    with interrupts.watched(), starting(hidden):
        try:
            files = getattr(modules[words[0]], "FILES", ())
            check_paths(options, files)
            check_libraries(options, files)
            code = run(**options) or 0
            sys.stdout.flush()
        except (Exception, KeyboardInterrupt) as error:
            code = _code_of(error, verb)
    return code


def _warning_line(message, *_):
    """A warning without its place in a program, which users of commands do not see."""
    return f"roformer-keras: warning: {printable(' '.join(str(message).split()))}\n"


def find_commands(name: str = "") -> dict[str, Any]:
    """The commands by name, such as `fill-mask`; of modules only that of a name."""
    folder = pkgutil.iter_modules([os.path.dirname(__file__)])
    files = {file.name.replace("_", "-"): file.name for file in folder}
    commands: dict[str, Any] = {one: command_of(kind) for one, kind in VERBS.items()}
    for one in () if name in VERBS else {name} & files.keys() or files:
        module = importlib.import_module(f"{__package__}.{files[one]}")
        if hasattr(module, "run"):
            commands[one] = module
    if name in files and name not in commands:
        # A file of another purpose.
        return find_commands()
    return dict(sorted(commands.items()))


def _add_command(verbs, name, module):
    """Adds the parser of a command, without its flags yet."""
    text = inspect.getdoc(module.run) or ""
    summary, _, description = text.partition("\n\nArgs:")[0].partition("\n\n")
    summary = summary.removesuffix(".")
    lines = [f"  roformer-keras {line}" for line in getattr(module, "EXAMPLES", ())]
    return verbs.add_parser(
        name,
        help=f"{summary[:1].lower()}{summary[1:]}",
        description=f"{summary}.\n\n{description}".strip(),
        epilog="\n".join(["examples:", *lines]) if lines else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # Part of a flag may be another one in the next version, or elsewhere.
        allow_abbrev=False,
    )


def _code_of(error, verb) -> int:
    """Says why a command ended; raises errors that are bugs."""
    from roformer_keras.io.atomic import is_space_error, one_line

    # An OutputError, an OSError too, names its file already.
    is_ours = isinstance(error, RoFormerError)
    is_closed = isinstance(error, BrokenPipeError)
    is_full = isinstance(error, OSError) and not is_ours and is_space_error(error)
    if is_closed or is_full:
        # Python flushes the unwritten output at its end, and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # Caught on its way, an interruption becomes any other error.
    if interrupts.came() or isinstance(error, KeyboardInterrupt):
        with contextlib.suppress(OSError):
            # After SIGHUP the terminal may be gone.
            print("roformer-keras: interrupted", file=sys.stderr)
        return interrupts.exit_code()
    if is_closed:
        # The reader of our output has had enough, as `head` has.
        return 141
    if is_full:
        error = OutputError(f"no space left to write the output ({one_line(error)})")
    elif not is_ours:
        raise error
    hint = error.hint and show_hint(error.hint, verb)
    is_long = hint is not None and "\n" in hint
    shown = type(error)(error.message, row=error.row, hint=None if is_long else hint)
    text = one_line(shown)
    if len(text) > 2 * _HALF_OF_ERROR:
        text = f"{text[:_HALF_OF_ERROR]} ... {text[-_HALF_OF_ERROR:]}"
    print(f"roformer-keras: error: {text}", file=sys.stderr)
    if hint and is_long:
        print("", *map(printable, hint.split("\n")), sep="\n", file=sys.stderr)
    return error.exit_code
