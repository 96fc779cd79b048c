"""`roformer-keras similarity`."""

from roformer_keras.cli import layouts, verbs
from roformer_keras.cli.texts import check_one_input, read_rows

EXAMPLES = ("similarity --pair 学而时习之，不亦说乎？ 学了又时常温习，不是很愉快吗？",)
VERB = "roformer_keras.verbs.embed.Similarity"
OPTIONS, SETTINGS = (VERB, layouts.PAIRS, layouts.JOB), verbs.SETTINGS


def run(
    file: str | None = None,
    *,
    pair: list[tuple[str, str]] | None = None,
    output: str = "-",
    **flags,
) -> None:
    """Compare pairs of texts.

    A command that is interrupted keeps what it has written in FILE.partial; the same
    command resumes it.

    Args:
        file: pairs, one a line: .txt or .tsv with a tab between, .csv, or .jsonl with
            objects; - is standard input, as .txt.
        pair: two texts to compare, instead of a file; may be repeated.
        output: .jsonl, or .tsv with rows of first text, second text and cosine, in
            which tabs and line ends are escaped; - for JSON lines on standard
            output.
    """
    command = verbs.VerbCommand(VERB, {**flags, "output": output}, layouts.PAIRS)
    if command.runs_on_ray(file, pair):
        return
    check_one_input(file, pair, "a file of pairs", "--pair TEXT TEXT")
    if pair is not None:
        pairs = [(f"pair {at}", tuple(texts)) for at, texts in enumerate(pair, start=1)]
    else:
        assert file is not None
        pairs = read_rows(file, 2, command.layout)
    command.run(pairs)
