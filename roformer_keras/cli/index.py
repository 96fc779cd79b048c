"""`roformer-keras index`."""

from pathlib import Path

from roformer_keras.cli import layouts, verbs
from roformer_keras.cli.texts import read_rows
from roformer_keras.io.atomic import check_target, making_folder
from roformer_keras.types import Engine

EXAMPLES = ("index sentences.txt -o sentences.index",)
VERB, FILES = "roformer_keras.verbs.embed.Embed", ("file",)
# Its vectors are always of length 1, and of float32.
OPTIONS = ("roformer_keras.verbs.embed.VectorVerb", layouts.TABLE, layouts.LOCAL)


def run(
    file: str,
    *,
    output: str,
    engine: Engine = "auto",
    approximate: bool = False,
    **flags,
) -> None:
    """Make an index of lines of text, in which `search` finds the nearest.

    If it is interrupted, the same command resumes.

    Args:
        file: texts, one a line; or a table, as `embed` takes it.
        output: folder of the index.
        engine: as in `embed`.
        approximate: write a graph for approximate search too, which is for millions of
            texts; needs FAISS.
    """
    from roformer_keras.data.vector_files import npy_bytes
    from roformer_keras.search import index

    folder = Path(output)
    vectors = folder / index.VECTORS
    command = verbs.VerbCommand(
        VERB, {**flags, "output": str(vectors), "engine": engine}
    )
    inputs = read_rows(file, 1, command.layout)
    texts = [text for _, (text,) in inputs]

    def lines(rows, answers, job):
        # Until all is written, it is no index. A graph is of other vectors.
        for name in (index.RECORD, index.GRAPH):
            (folder / name).unlink(missing_ok=True)
        return npy_bytes(answers["vector"], len(texts), job.done == 0)

    def finish(loaded):
        verb = command.verb
        index.write_record(
            folder, texts, _encode(loaded), str(verb.source), verb.max_length
        )
        if approximate:
            index.write_graph(folder)
        return output

    with making_folder(folder):
        check_target(vectors, command.overwrite, folder=False)
        command.run(inputs, lines=lines, endings=(".npy",), finish=finish)


def _encode(loaded):
    return lambda texts: loaded.answer([(text,) for text in texts], ())["vector"]
