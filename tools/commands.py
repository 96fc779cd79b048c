"""The command lines of the scripts: `--help` from docstrings, errors as exit codes."""

import argparse
import functools
import sys

from roformer_keras.base.errors import RoFormerError


class Parser(argparse.ArgumentParser):
    """Options of a script, with its docstring.

    `sizes` are flag -> its default, that with `--quick`, and help, of integers; `parts`
    are names of what can be run alone.
    """

    def __init__(self, description, sizes=None, parts=()):
        super().__init__(
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.sizes = sizes or {}
        for name, (full, quick, what) in self.sizes.items():
            help = f"{what}; {full}, with --quick {quick}"
            self.add_argument(f"--{name}", type=int, help=help)
        if self.sizes:
            self.add_argument("--quick", action="store_true", help="tiny, to try it")
        if parts:
            self.add_argument("--parts", nargs="+", choices=parts, default=list(parts))

    def parse_args(self, arguments=None):
        options = super().parse_args(arguments)
        for flag, (full, quick, _) in self.sizes.items():
            name = flag.replace("-", "_")
            if getattr(options, name) is None:
                setattr(options, name, quick if options.quick else full)
        return options


def command(main):
    """Makes a `main` print errors of the package, and return their exit codes."""

    @functools.wraps(main)
    def run(*arguments):
        try:
            return main(*arguments) or 0
        except RoFormerError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code

    return run
