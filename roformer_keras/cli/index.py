"""`roformer-keras index`."""

import os
import shutil

from roformer_keras.base.errors import refuse
from roformer_keras.base.types import Engine
from roformer_keras.cli import layouts, verbs
from roformer_keras.cli.texts import read_rows

EXAMPLES = ("index sentences.txt -o sentences.index",)
VERB, FILES = "roformer_keras.verbs.embed.Embed", ("file",)
# Its vectors are always of length 1, and of float32.
OPTIONS = ("roformer_keras.verbs.embed.VectorVerb", layouts.TABLE, layouts.LOCAL)


def run(
    file: str,
    *,
    output: str,
    engine: Engine = "auto",
    **flags,
) -> None:
    """Make an index of lines of text, in which `search` finds the nearest.

    The index appears when all is written. If it is interrupted, the same command
    resumes.

    Args:
        file: texts, one a line; or a table, as `embed` takes it.
        output: folder of the index.
        engine: as in `embed`.
    """
    from roformer_keras.io.vector_files import npy_bytes
    from roformer_keras.search.index import RECORD, VECTORS, write_record

    refuse(
        output == "-",
        "an index is a folder, got the output '-'",
    )
    command = verbs.VerbCommand(VERB, {**flags, "output": output, "engine": engine})
    inputs = read_rows(file, 1, command.layout)
    texts = [text for _, (text,) in inputs]

    def lines(rows, answers, job):
        return npy_bytes(answers["vector"], len(texts), job.done == 0)

    def convert(partial, folder):
        try:
            os.link(partial, folder / VECTORS)
        except OSError:
            # Some file systems have no links.
            shutil.copyfile(partial, folder / VECTORS)
        verb = command.verb
        encode = _encode(command.loaded)
        write_record(folder, texts, encode, str(verb.source), verb.max_length)

    command.run(inputs, lines=lines, endings=("",), convert=convert, folder=RECORD)


def _encode(loaded):
    return lambda texts: loaded.answer([(text,) for text in texts], ())["vector"]
