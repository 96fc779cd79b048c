"""`roformer-keras predict`."""

from roformer_keras.cli import layouts, verbs
from roformer_keras.cli.paths import read_for_training
from roformer_keras.cli.terminal import start_backend
from roformer_keras.cli.texts import check_inputs, check_one_input

EXAMPLES = (
    "predict reviews --text 今天天气不错",
    "predict reviews texts.txt -o answers.jsonl",
)
VERB, FILES = "roformer_keras.verbs.predict.Predict", ("file",)
OPTIONS, SETTINGS = (VERB, layouts.TRAINED, layouts.JOB), verbs.SETTINGS


def run(
    source: str,
    file: str | None = None,
    *,
    text: list[list[str]] | None = None,
    output: str = "-",
    **flags,
) -> None:
    """Answer with a fine-tuned model, a line of JSON for each row.

    A command that is interrupted keeps what it has written in FILE.partial; the same
    command resumes it.

    Args:
        source: folder of `finetune`, or a preset folder or .keras file of a task, or
            its hf://OWNER/NAME.
        file: texts, one a line, with tabs between several of a row; or a file as
            `finetune --train` takes it, whose labels are ignored; - is standard input.
        text: row to take instead of a file, of as many texts as the task has, with
            choices as a JSON list; may be repeated.
        output: .jsonl, or - for standard output.
    """
    flags |= {"source": source, "output": output}
    command = verbs.VerbCommand(VERB, flags, layouts.TRAINED)
    if command.runs_on_ray(file, text):
        return
    check_one_input(file, text, "a file of texts", "--text TEXT")
    command.check_output(".jsonl")
    inputs = read_for_training(source, file, **command.layout) if file else None
    start_backend()
    loaded = command.verb.load_source()
    tuned = loaded.tuned
    if text is None:
        inputs = inputs or tuned.read_rows(file, **command.layout)
    else:
        typed = enumerate(map(tuned.read_row, text), start=1)
        inputs = [(f"text {at}", row) for at, row in typed]
    verb = command.verb.use(loaded)
    check_inputs(inputs, verb.check)
    # All have as many texts.
    tuned.check_rows([row for _, row in inputs])
    command.run(inputs, loaded=verb, endings=(".jsonl",))
