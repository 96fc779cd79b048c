"""`roformer-keras port`."""

import difflib
import io
import tokenize
from pathlib import Path

from roformer_keras.base.checks import check_file
from roformer_keras.base.errors import SourceError
from roformer_keras.cli.porting import port_notebook, port_script
from roformer_keras.io.atomic import replacing

EXAMPLES = (
    "port finetune_scm.py",
    "port finetune_scm.py --output ported.py",
    "port training.ipynb --output ported.ipynb",
)


def run(
    script: str, *, output: str | None = None, overwrite: bool = False
) -> int | None:
    """Show what a script or a notebook of bert4keras needs to run on Keras 3.

    Prints the changed imports, and each line that stays and needs more: names that are
    not covered, magics of notebooks, texts that name bert4keras. Nothing is run. Exit
    code 1 means that there are such lines.

    Args:
        script: a Python file that imports bert4keras, or a notebook (.ipynb)
        output: also write the script with its imports changed to this file
        overwrite: replace an existing output
    """
    is_notebook = Path(script).suffix.lower() == ".ipynb"
    check_file(script)
    try:
        data = Path(script).read_bytes()
        # A script may say its encoding.
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
        text = data.decode(encoding)
    except (OSError, SyntaxError, ValueError) as error:
        raise SourceError(f"{script} cannot be read as text: {error}") from error
    ported = (port_notebook if is_notebook else port_script)(text, script)
    for one, other in ported.sources:
        pair = (one.splitlines(), other.splitlines())
        for line in difflib.unified_diff(
            *pair, script, script, "", "", n=0, lineterm=""
        ):
            print(line)
    if text == ported.text and not ported.remarks:
        print(f"{script} imports nothing of bert4keras")
    for remark in ported.remarks:
        print(f"{script}:{remark.place}: {remark.message}")
    if output is not None:
        with replacing(output, overwrite) as target:
            target.write_bytes(ported.text.encode(encoding))
    return 1 if ported.remarks else None
