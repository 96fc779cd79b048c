"""`roformer-keras rerank`."""

from roformer_keras.cli import layouts, verbs
from roformer_keras.cli.texts import read_rows

EXAMPLES = (
    "rerank pairs.tsv -o scores.tsv",
    "rerank answers.txt --query 怎么办信用卡",
)
VERB, FILES = "roformer_keras.verbs.search.Rerank", ("file",)
OPTIONS, SETTINGS = (VERB, layouts.PAIRS, layouts.JOB), verbs.SETTINGS


def run(file: str, *, query: str | None = None, output: str = "-", **flags) -> None:
    """Score how well texts fit a query, by a classifier of pairs or by vectors.

    If it is interrupted, the same command resumes.

    Args:
        file: pairs of a query and a text, as `similarity` takes them; with --query only
            texts, one a line, or a table as `embed` takes it; - is standard input.
        query: of all texts.
        output: .jsonl, or .tsv with rows of query, text and score; - for JSON lines on
            standard output.
        source: of the model: a folder of `finetune`, or one with vectors (default:
            roformer-sim-char).
    """
    command = verbs.VerbCommand(VERB, {**flags, "output": output}, layouts.PAIRS)
    if command.runs_on_ray(file, query):
        return
    if query is None:
        pairs = read_rows(file, 2, command.layout)
    else:
        texts = read_rows(file, 1, command.layout)
        pairs = [(place, (query, *row)) for place, row in texts]
    command.run(pairs)
