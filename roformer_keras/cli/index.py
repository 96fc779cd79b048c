"""`roformer-keras index`."""

import os
import shutil

from roformer_keras.base.errors import refuse
from roformer_keras.base.types import Engine
from roformer_keras.cli import layouts
from roformer_keras.verbs.vectors import VectorVerb

EXAMPLES = ("index sentences.txt -o sentences.index",)
FILES = ("file",)
# Its vectors are always of length 1, and of float32.
OPTIONS = (VectorVerb, layouts.TableLayout, layouts.LocalFlags)


def run(file: str, *, output: str, engine: Engine = "auto", **flags) -> None:
    """Make an index of lines of text, in which `search` finds the nearest.

    The index appears when all is written. If it is interrupted, the same command
    resumes.

    Args:
        file: texts, one a line; or a table, as `embed` takes it.
        output: folder of the index.
        engine: as in `embed`.
        encoding: of a text file; auto looks for a byte-order mark, or tries UTF-8 and
            GB18030.
    """
    from roformer_keras.cli.answering import Answering
    from roformer_keras.jobs.sinks import Vectors
    from roformer_keras.search.index import RECORD, VECTORS, write_record
    from roformer_keras.verbs.embed import Embed

    refuse(
        output == "-",
        "an index is a folder, got the output '-'",
    )
    options = {"file": file, "output": output, "engine": engine}
    command = Answering(Embed, {**flags, **options})
    inputs = command.inputs(may_be_blank=False)
    texts = [text for _, (text,) in inputs]

    def convert(partial, folder):
        try:
            os.link(partial, folder / VECTORS)
        except OSError:
            # Some file systems have no links.
            shutil.copyfile(partial, folder / VECTORS)
        verb = command.verb
        encode = verb.encoder(command.loaded)
        write_record(folder, texts, encode, str(verb.source), verb.max_length)

    command.answer(inputs, Vectors(len(texts), convert), folder=RECORD)
