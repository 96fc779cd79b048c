"""`roformer-keras search`."""

from roformer_keras.cli import layouts, verbs
from roformer_keras.cli.texts import (
    check_one_input,
    output_style,
    read_rows,
    typed_rows,
)

EXAMPLES = (
    "search sentences.index --text 怎么办信用卡",
    "search sentences.index queries.txt -o found.jsonl --top-k 5",
)
VERB, FILES = "roformer_keras.verbs.search.Search", ("index", "file")
OPTIONS, SETTINGS = (VERB, layouts.TABLE, layouts.JOB), verbs.SETTINGS


def run(
    index: str,
    file: str | None = None,
    *,
    text: list[str] | None = None,
    output: str = "-",
    **flags,
) -> None:
    """Find the texts of an index that are nearest to queries, by their cosines.

    Args:
        index: folder of `roformer-keras index`.
        file: queries, one a line; or a table, as `embed` takes it; - is standard input.
        text: query to take instead of a file; may be repeated.
        output: .jsonl, or .tsv with rows of query, text, cosine and row; - for standard
            output.
        source: of the model (default: the one that made the index).
        max_length: tokens to which queries are cut (default: that of the index).
    """
    from roformer_keras.search.index import known_source, read_record

    if "source" not in flags:
        flags["source"] = known_source(index)
    flags |= {"index": index, "output": output}
    command = verbs.VerbCommand(VERB, flags)
    if command.runs_on_ray(file, text):
        return
    read_record(index)
    check_one_input(file, text, "a file of queries", "--text TEXT")
    if text is not None:
        queries = typed_rows(text)
    else:
        assert file is not None
        queries = read_rows(file, 1, command.layout)
    command.run(queries, style=output_style(output, text))
