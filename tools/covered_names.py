"""Writes the table of covered names into docs/coming-from-bert4keras.md.

python -m tools.covered_names
"""

import importlib
import sys

from tools import ROOT
from tools.commands import Parser, command
from tools.tables import between, markdown, write_text

PAGE = ROOT / "docs" / "coming-from-bert4keras.md"
BEGIN, END = "<!-- table of covered names -->", "<!-- end of the table -->"
_PACKAGE = "roformer_keras.bert4keras"


@command
def main(arguments=None):
    Parser(__doc__).parse_args(arguments)
    write_text(PAGE, with_table(PAGE.read_text(encoding="utf-8")))


def with_table(text):
    """The text of the page, with the table of today's names."""
    rows = [
        (f"`{module}`", " ".join(f"`{name}`" for name in names))
        for module, names in covered_names().items()
    ]
    return between(text, BEGIN, END, markdown(("module", "names"), rows), PAGE)


def covered_names():
    """Public names by module, without those that `layers` takes from Keras."""
    names = {
        name: sorted(importlib.import_module(f"{_PACKAGE}.{name}").__all__)
        for name in ("backend", "models", "optimizers", "snippets", "tokenizers")
    }
    layers = importlib.import_module(f"{_PACKAGE}.layers")
    names["layers"] = sorted(["Layer", *layers.custom_objects])
    functions = importlib.import_module(f"{_PACKAGE}.keras_functions")
    names["backend.K"] = sorted(
        name
        for name, value in vars(functions).items()
        if callable(value) and name[0].islower() and not name.startswith("_")
    )
    return dict(sorted(names.items()))


if __name__ == "__main__":
    sys.exit(main())
