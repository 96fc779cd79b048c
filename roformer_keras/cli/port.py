"""`roformer-keras port`."""

import difflib
from pathlib import Path

from roformer_keras.errors import SourceError
from roformer_keras.io.atomic import replacing

EXAMPLES = ("port finetune_scm.py", "port finetune_scm.py --output ported.py")


def run(
    script: str, *, output: str | None = None, overwrite: bool = False
) -> int | None:
    """Show what a script of bert4keras needs to run on Keras 3.

    Prints the changed import lines, and every name that is not covered with its line.
    The script is not run. Exit code 1 means that names are not covered.

    Args:
        script: a Python file that imports bert4keras
        output: also write the script with its imports changed to this file
        overwrite: replace an existing output
    """
    from roformer_keras.bert4keras.porting import find_remarks, port_imports

    try:
        text = Path(script).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{script} cannot be read as text: {error}") from error
    remarks = find_remarks(text, script)
    ported = port_imports(text)
    lines = (text.splitlines(), ported.splitlines())
    for line in difflib.unified_diff(*lines, script, script, "", "", n=0, lineterm=""):
        print(line)
    if text == ported:
        print(f"{script} imports nothing of bert4keras")
    for remark in remarks:
        print(f"{script}:{remark.line}: {remark.message}")
    if output is not None:
        with replacing(output, overwrite) as target:
            target.write_text(ported, encoding="utf-8")
    return 1 if remarks else None
