"""`roformer-keras paraphrase`."""

from roformer_keras.base.types import FileEncoding
from roformer_keras.cli import layouts, verbs
from roformer_keras.cli.texts import output_style, read_inputs

EXAMPLES = ("paraphrase --text 学习了又时常温习，不是很愉快吗？ --n 20 --k 5",)
VERB = "roformer_keras.verbs.writing.Paraphrase"
OPTIONS, SETTINGS = (VERB, layouts.JOB), verbs.SETTINGS


def run(
    file: str | None = None,
    *,
    text: list[str] | None = None,
    encoding: FileEncoding = "utf-8",
    output: str = "-",
    **flags,
) -> None:
    """Find similar sentences.

    A command that is interrupted keeps what it has written in FILE.partial; the same
    command resumes it.

    Args:
        file: sentences, one a line; - is standard input.
        text: sentence to take instead of a file; may be repeated.
        encoding: of the file, as in `embed`.
        output: .jsonl, or .tsv with rows of sentence, similar sentence and cosine, in
            which tabs and line ends are escaped; - for JSON lines on standard
            output.
    """
    flags |= {"output": output, "encoding": encoding}
    command = verbs.VerbCommand(VERB, flags)
    if not command.runs_on_ray(file, text):
        style = output_style(output, text)
        command.run(read_inputs(file, text, encoding), style=style)
