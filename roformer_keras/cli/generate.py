"""`roformer-keras generate`."""

from roformer_keras.base.types import FileEncoding
from roformer_keras.cli import layouts, verbs
from roformer_keras.cli.terminal import print_stream, start_backend
from roformer_keras.cli.texts import output_style, read_inputs

EXAMPLES = (
    "generate --text 床前明月光，",
    "generate --text 春风 --num-return-sequences 3 --top-p 0.8 --seed 1",
    "generate --source roformer-sim-char --text 他的军队被打败，逃回了京城。 "
    "--method beam",
)
VERB = "roformer_keras.verbs.writing.Generate"
OPTIONS, SETTINGS = (VERB, layouts.JOB), verbs.SETTINGS


def run(
    file: str | None = None,
    *,
    text: list[str] | None = None,
    encoding: FileEncoding = "utf-8",
    output: str = "-",
    **flags,
) -> None:
    """Write continuations of prompts.

    A command that is interrupted keeps what it has written in FILE.partial; the same
    command resumes it.

    Args:
        file: prompts, one a line; - is standard input.
        text: prompt to take instead of a file; may be repeated.
        encoding: of the file, as in `embed`.
        output: .jsonl, or .tsv with rows of prompt, text and score, in which tabs and
            line ends are escaped; - for JSON lines on standard output.
    """
    flags |= {"output": output, "encoding": encoding}
    command = verbs.VerbCommand(VERB, flags)
    if command.runs_on_ray(file, text):
        return
    prompts = read_inputs(file, text, encoding)
    style, verb = output_style(output, text), command.verb
    is_one = len(prompts) == verb.num_return_sequences == 1
    if style == "plain" and is_one and verb.method != "beam":
        start_backend()
        print_stream(command.load(prompts).stream(prompts[0][1]), command.quiet)
        return
    command.run(prompts, style=style)
